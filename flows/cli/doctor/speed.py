"""Measure how fast this machine samples and learns with the configured model, in about a minute.

  rft doctor speed
  rft doctor speed --set policy.model=HuggingFaceTB/SmolLM2-135M-Instruct
  rft doctor speed --set policy.threads=1 --json

Beside each speed stand two limits, measured now: how long the arithmetic alone takes, and how long
reading the weights alone takes. The last lines say how long a run would take at this speed.

The dialogues are as long as the recipe's, and their tokens are drawn at random. No tool or grader
is asked, and nothing is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from flows import settings
from flows.cli.doctor.check import policy_of_a_run
from flows.cli.options import add_settings
from flows.screen import print_line
from rft import config
from rft.progress import duration
from tasks.runs import clone

if TYPE_CHECKING:
    from rft.doctor.speed import Found, Rate

WORDS = {"read": "reading", "say": "saying", "learn": "learning"}
WORTH = 1.1
"""How many times as fast another number of threads must be to be named."""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object for scripts")
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    from rft.doctor import speed
    from rft.doctor.setup import Setup

    here, params = clone.enter(), options.params
    if params and Path(params).exists():
        params = str(Path(params).absolute())

    def load() -> config.Params:
        return settings.resolve(here, params, options.overrides)

    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        stack.enter_context(contextlib.chdir(here.home))
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        setup = Setup(load, find_policy=lambda params: policy_of_a_run(here, params, scratch))
        found = speed.measure(setup, lambda text: print(f"[speed] {text}", file=sys.stderr, flush=True))
    if options.json:
        print_line(json.dumps(as_json(found), ensure_ascii=False, allow_nan=False))
    else:
        draw(found)
    return 0


def as_json(found: Found) -> dict[str, Any]:
    """Return what the table shows, in plain values: tokens per second, seconds, hours."""
    limits = found.limits
    return {
        "model": found.model,
        "parameters": found.parameters,
        "device": found.device,
        "dtype": found.dtype,
        "threads": found.threads,
        "flops_per_s": limits.flops,
        "bytes_per_s": limits.bytes_per_s,
        "flops_per_s_by_threads": {str(count): value for count, value in found.by_threads.items()},
        "forward": found.forward,
        "decoding": found.decoding,
        "prompt_tokens": found.prompt,
        "rates": {
            rate.name: {
                "tokens_per_s": rate.per_s,
                "rows": rate.rows,
                "tokens": rate.tokens,
                "seconds": rate.seconds,
                "arithmetic_s": rate.work.arithmetic_s(limits),
                "memory_s": rate.work.memory_s(limits),
            }
            for rate in found.rates
        },
        "hours": {stage: [seconds / 3600 for seconds in ends] for stage, ends in found.stages.items()},
    }


def draw(found: Found) -> None:
    console = Console(highlight=False)
    on_cpu = f", {found.threads} thread{'s' if found.threads > 1 else ''}" if found.by_threads else ""
    limits = found.limits
    console.print(f"{found.model}: {found.parameters / 1e6:.1f} M parameters, {found.dtype}", soft_wrap=True)
    can = f"{limits.flops / 1e9:.0f} GFLOP/s and {limits.bytes_per_s / 1e9:.1f} GB/s"
    console.print(f"{found.device}{on_cpu}: {can}, measured just now", soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for name in ("", "rows", "tokens", "seconds", "tokens/s", "arithmetic", "memory", "of limit"):
        table.add_column(name, justify="left" if not name else "right")
    for rate in found.rates:
        table.add_row(*_row(rate, found))
    console.print(table)
    if found.forward == "ModelForward":
        console.print("The model samples with its own forward pass, which is slower: ours does not know it.")
    if found.decoding != "float32":
        console.print(
            f"Reading and saying are measured in {found.decoding}, as train.decoding says, beside limits of "
            f"{found.dtype}. All stages but train are sampled in {found.dtype}, and take longer than told below.",
            soft_wrap=True,
        )
    for line in _threads(found):
        console.print(line, soft_wrap=True)
    console.print("")
    for stage, (low, high) in found.stages.items():
        console.print(f"{stage:<11} about {duration(low)}, at most {duration(high)}")
    total = [sum(ends[side] for ends in found.stages.values()) for side in (0, 1)]
    text = f"about {duration(total[0])}, at most {duration(total[1])}; tools and graders not counted"
    console.print(f"{'a run':<11} {text}", soft_wrap=True)


def _row(rate: Rate, found: Found) -> list[str]:
    arithmetic_s, memory_s = rate.work.arithmetic_s(found.limits), rate.work.memory_s(found.limits)
    told = [WORDS[rate.name], str(rate.rows), str(rate.tokens), f"{rate.seconds:.2f}", f"{rate.per_s:.0f}"]
    return [*told, f"{arithmetic_s:.2f} s", f"{memory_s:.2f} s", f"{rate.share(found.limits):.0%}"]


def _threads(found: Found) -> list[str]:
    """Name a number of threads that multiplies faster than the present one."""
    if found.threads not in found.by_threads:
        return []
    best = max(found.by_threads, key=lambda count: found.by_threads[count])
    gain = found.by_threads[best] / found.by_threads[found.threads]
    return [f"Products are {gain:.1f} times as fast with policy.threads: {best}."] if gain > WORTH else []
