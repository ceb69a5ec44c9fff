"""`make figure NAME=demo_time`: measure one figure, keep the result, and end with one JSON line.

    {"name", "value", "low", "high", "n", "unit", "bound", "holds"}

There is also `parts` when it has several bounds, and `reason` when it has no value.

`holds` is null when the figure cannot be measured here. The exit code is 1 when it does not hold,
or when what it measures broke. What it prints on the way goes to stderr. bench/results/NAME.json
keeps the last line that has a value, with the commit and the machine in words.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import pkgutil
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench
from bench import stale
from bench.measure import Figure

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"


def figures() -> dict[str, Callable[[list[str]], Figure]]:
    """Return name -> function, over all families."""
    found: dict[str, Callable[[list[str]], Figure]] = {}
    for info in pkgutil.iter_modules(bench.__path__):
        found |= getattr(importlib.import_module(f"bench.{info.name}"), "FIGURES", {})
    return found


def main(argv: list[str]) -> int:
    known = figures()
    if not argv:
        for name, function in sorted(known.items()):
            mark = stale.mark(ROOT, name, function.__module__)
            print(f"{name:32}{(function.__doc__ or '').strip().splitlines()[0]}{f' [{mark}]' if mark else ''}")
        return 0
    name, *args = argv
    if name not in known:
        print(f"make figure: no figure is named '{name}'. Known: {', '.join(sorted(known))}.", file=sys.stderr)
        return 2
    figure = known[name](args)
    line = figure.line(name)
    if line["value"] is not None:
        record(line, args, figure.notes)
    print(json.dumps(line), flush=True)
    return 1 if line["holds"] is False else 0


def record(line: dict[str, Any], args: list[str], notes: dict[str, Any] | None = None) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    kept = line | {"args": args, "commit": commit(), "machine": machine()} | ({"notes": notes} if notes else {})
    (RESULTS / f"{line['name']}.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def commit() -> str:
    """Return the commit that was measured, marked when files differ from it."""
    found = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    status = subprocess.run(
        ["git", "status", "--porcelain", "--", ":!bench/results"], cwd=ROOT, capture_output=True, text=True
    )
    return (found.stdout.strip() or "none") + ("+edits" if status.stdout.strip() else "")


def machine() -> dict[str, Any]:
    """Describe the machine without its name, which would mean nothing elsewhere."""
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(gib),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        **_gpu(),
    }


def _gpu() -> dict[str, str]:
    """Name the GPU that a figure could use. One that did not load torch used none."""
    torch = sys.modules.get("torch")
    return {"gpu": torch.cuda.get_device_name()} if torch and torch.cuda.is_available() else {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
