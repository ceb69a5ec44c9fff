"""The two names of a rollout: ours, made from the seed, and the wire's, which is always new.

Equal seeds must give equal bytes, so our files name a rollout by its `rollout_id`. Tool servers
keep state under the `trace_id`, so no trace id may ever be used again: not by another run or
recipe, a refill, or a resumed run. (It once was: a server that kept state under trace ids credited
16 of 30 rollouts with a call that another run had made.)

    trace_id = "trace_" + uuid5(nonce, "ROLLOUT_ID ATTEMPT")         in a stage's first start
               "trace_" + uuid5(nonce, "ROLLOUT_ID ATTEMPT START")   in start 2, 3, ... after a kill

The nonce is random. It is made with the stage's work folder, kept there when the stage resumes, and
published in the stage's `timing.json`. So an auditor can compute a rollout's name in a tool
server's log: `python -m rft.wire.trace data/baseline/timing.json ROLLOUT_ID`.
"""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rft import files


@dataclass(frozen=True, slots=True)
class Traces:
    """Makes the trace ids of one stage."""

    nonce: uuid.UUID = field(default_factory=uuid.uuid4)
    start: int = 1
    """How often the stage was started with this nonce."""

    def trace_id(self, rollout_id: str, attempt: int) -> str:
        return trace_id(self.nonce, rollout_id, attempt, self.start)

    def published(self) -> dict[str, str | int]:
        return {"nonce": str(self.nonce), "starts": self.start}


def begin(work: Path) -> Traces:
    """Make the traces of a stage that starts or resumes in this folder."""
    path = work / "trace.json"
    try:
        kept = json.loads(path.read_text())
        traces = Traces(uuid.UUID(kept["nonce"]), kept["starts"] + 1)
    except FileNotFoundError:
        traces = Traces()
    files.write_text(json.dumps(traces.published()), path, durable=True)  # a lost start would repeat its ids
    return traces


def rollout_id(name: str, seed: Sequence[int]) -> str:
    """Return our id of a rollout, made from name and seed, so that equal runs make equal
    records."""
    return f"rollout_{uuid.uuid5(uuid.NAMESPACE_OID, ' '.join([name, *map(str, seed)]))}"


def trace_id(nonce: uuid.UUID, rollout_id: str, attempt: int, start: int = 1) -> str:
    parts = [rollout_id, str(attempt), *([str(start)] if start > 1 else [])]
    return f"trace_{uuid.uuid5(nonce, ' '.join(parts))}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rft.wire.trace",
        description="Print the trace ids under which tool servers and graders may have seen a rollout: one per "
        "start of the stage. There is more than one start only if the stage was killed and resumed.",
    )
    timing = "the timing.json beside the rollout's log, such as data/train/timing.json"
    parser.add_argument("timing", type=Path, metavar="TIMING_JSON", help=timing)
    parser.add_argument("rollout_id", help="as `rft rollouts` shows it")
    attempt = "the refill's number, as in the log (default: 0)"
    parser.add_argument("--attempt", type=int, default=0, metavar="N", help=attempt)
    args = parser.parse_args(argv)
    try:
        kept = json.loads(args.timing.read_text())["trace"]
        nonce, starts = uuid.UUID(kept["nonce"]), int(kept["starts"])
    except (OSError, ValueError, KeyError, TypeError):
        print(f"{args.timing}: holds no trace nonce. Give the timing.json of a stage with rollouts.", file=sys.stderr)
        return 2
    for start in range(1, starts + 1):
        print(trace_id(nonce, args.rollout_id, args.attempt, start))
    return 0


if __name__ == "__main__":
    sys.exit(main())


__all__ = ["Traces", "begin", "rollout_id", "trace_id"]
