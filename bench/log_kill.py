"""The figure of the rollout log: kill -9 at random moments, then open it. What was acknowledged is there, once, in order.

A child adds numbered rows to a rollout store, alone and in batches, seals it and drops from it, and says on a pipe what it begins and what it has
finished. The parent kills it at a random moment, opens the log, compares it with what was acknowledged, and lets the next child go on in the same
folder. What was in flight may be there or not, but whole: a batch is all there or not at all, and so is a drop.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path

from bench.measure import Figure, Part
from rft.rollout_log import LogRow

ROOT = Path(__file__).resolve().parents[1]
KILLS = 100
LIFE_S = 0.25  # a child is killed within it: after some 50 operations, or none
AHEAD = 3  # children that wait, with everything imported
KEPT = 150  # rows that stay, so that a drop, which rewrites the log, takes a child's life and not a minute
OPERATIONS = {"add": 8, "batch": 5, "seal": 2, "drop": 1}


def row(number: int) -> LogRow:
    """A function of its number, so that a row that came back can be compared."""
    tokens = number % 97
    return LogRow(
        stage="train",
        arm="challenger",
        step=number // 16,
        example_id=f"n-{number:06d}",
        sample=number % 8,
        attempt=0,
        trace_id=f"trace_{number:06d}",
        split="train",
        slice="all",
        stop_reason="completed",
        reward=number / 7,
        score=number / 7,
        solved=number % 2 == 0,
        status="ok",
        num_turns=1,
        num_tool_calls=0,
        num_tool_errors=0,
        num_tokens=tokens,
        num_forks=0,
        components="{}",
        explanation="",
        item="{}",
        messages=json.dumps([{"role": "assistant", "content": "ü\n" * (number % 701)}], ensure_ascii=False),
        ids=list(range(tokens)),
        mine=[True] * tokens,
        logprobs=[-0.5] * tokens,
        trained=True,
    )


# -- the child -------------------------------------------------------------------------------------------------------------
def write(folder: Path) -> None:
    """Waits for the word; then writes until it is killed."""
    from rft.rollout_store import RolloutStore

    with tempfile.TemporaryDirectory() as scratch, RolloutStore(Path(scratch)) as store:
        store.add(row(0), 0.0)
        store.seal()  # the first one loads pandas: before the word, so that a life is spent on the log
        store.rows()
    say("ready")
    number, seed = map(int, sys.stdin.readline().split())
    draw = random.Random(seed)
    with RolloutStore(folder, seal_rows=40) as store:
        while True:
            kind = draw.choices(list(OPERATIONS), list(OPERATIONS.values()))[0]
            count = {"add": 1, "batch": draw.randint(2, 9)}.get(kind, 0)
            low, high = (number, number + count) if count else _dropped(number, draw)
            say(f"begin {kind} {low} {high}")
            if kind == "seal":
                store.seal()
            elif kind == "drop":
                store.drop(lambda one, low=low, high=high: low <= number_of(one) < high)
            else:
                store.add_all([row(n) for n in range(low, high)], [0.0] * count)
            say(f"done {kind} {low} {high}")
            number += count


def _dropped(number: int, draw: random.Random) -> tuple[int, int]:
    """The oldest rows, or, as a training does that goes on from a checkpoint, the newest."""
    return (0, number - KEPT) if draw.random() < 0.5 else (number - draw.randint(1, 30), number)


def number_of(one: LogRow) -> int:
    return int(one.trace_id.removeprefix("trace_"))


def say(line: str) -> None:
    print(line, flush=True)


# -- the parent ------------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Tried:
    """`killed`: what the children were doing."""

    kills: int = 0
    opened: int = 0
    missing: int = 0
    twice: int = 0
    broken: int = 0  # out of order, other content, half a batch, half a drop, or back after it was dropped
    rows: int = 0
    killed: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def kill_often(folder: Path, kills: int, seed: int = 0, life_s: float = LIFE_S) -> Tried:
    draw, tried = random.Random(seed), Tried()
    there: list[int] = []
    number = 0
    waiting = deque(_start(folder) for _ in range(min(AHEAD, kills)))
    try:
        while tried.kills < kills:
            child = waiting.popleft()
            if tried.kills + len(waiting) + 1 < kills:
                waiting.append(_start(folder))
            said = _life(child, f"{number} {draw.getrandbits(32)}", draw.random() * life_s)
            tried.kills += 1
            number = max([number, *(high for _, kind, _, high in said if kind in ("add", "batch"))])
            there = _compare(folder, there, said, tried)
    finally:
        for child in waiting:
            _end(child)
    return tried


Said = tuple[str, str, int, int]


def _start(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.log_kill", str(folder)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _life(child: subprocess.Popen[str], word: str, seconds: float) -> list[Said]:
    """All that the child said between its word and its death."""
    assert child.stdin is not None
    assert child.stdout is not None
    if child.stdout.readline() != "ready\n":
        raise RuntimeError("the writer did not start")
    child.stdin.write(word + "\n")
    child.stdin.flush()
    time.sleep(seconds)
    child.kill()
    lines = [line.split() for line in child.stdout.read().split("\n")[:-1]]
    code = _end(child)
    if code != -signal.SIGKILL:
        raise RuntimeError(f"the writer ended by itself: exit code {code}")
    return [(word, kind, int(low), int(high)) for word, kind, low, high in lines]


def _end(child: subprocess.Popen[str]) -> int:
    child.kill()
    code = child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    return code


def _compare(folder: Path, there: list[int], said: list[Said], tried: Tried) -> list[int]:
    """What is there now, against what was there and what was said since. Returns the former."""
    from rft.rollout_store import RolloutStore

    must = list(there)
    flying: Said | None = None
    for word, kind, low, high in said:
        flying = (word, kind, low, high) if word == "begin" else None
        if word == "done":
            must = _after(must, kind, low, high)
    tried.killed[flying[1] if flying else "between" if said else "opening"] += 1
    may = _after(must, *flying[1:]) if flying else must
    try:
        with RolloutStore(folder) as store:
            rows = store.rows()
    except Exception as error:  # whatever it raises, the log did not open
        tried.faults.append(f"kill {tried.kills}: {type(error).__name__}: {error}")
        return there
    tried.opened += 1
    found = [number_of(one) for one in rows]
    tried.rows = len(found)
    tried.missing += len(set(must) & set(may) - set(found))
    tried.twice += len(found) - len(set(found))
    if found not in (must, may) or any(one != row(number) for one, number in zip(rows, found, strict=True)):
        tried.broken += 1
        tried.faults.append(f"kill {tried.kills} in {flying}: {len(found)} rows, expected {len(must)} or {len(may)}")
    return found


def _after(numbers: list[int], kind: str, low: int, high: int) -> list[int]:
    if kind == "drop":
        return [number for number in numbers if not low <= number < high]
    return numbers + list(range(low, high)) if kind in ("add", "batch") else numbers


def rollout_log_kill(args: list[str]) -> Figure:
    """Rollout logs that open, of 100 writers killed at random moments; finished rollouts that are missing or there twice."""
    kills, seed = (int(args[0]) if args else KILLS), (int(args[1]) if len(args) > 1 else 0)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rft-log-kill-") as scratch:
        tried = kill_often(Path(scratch), kills, seed)
    print("\n".join(tried.faults), end="\n" if tried.faults else "", file=sys.stderr)
    parts = (
        Part("opened", tried.opened, "logs", at_least=kills, n=tried.kills, reason="; ".join(tried.faults[:3])),
        Part("missing", tried.missing, "rollouts", at_most=0, n=tried.kills),
        Part("twice", tried.twice, "rollouts", at_most=0, n=tried.kills),
        Part("out of order, half or changed", tried.broken, "logs", at_most=0, n=tried.kills),
        Part("kills", tried.kills, "kills", at_least=kills),
    )
    notes = {"killed during": dict(sorted(tried.killed.items())), "rows at the end": tried.rows, "wall_s": round(time.monotonic() - began, 1)}
    return Figure(parts, notes)


FIGURES = {"rollout_log_kill": rollout_log_kill}

if __name__ == "__main__":
    write(Path(sys.argv[1]))
