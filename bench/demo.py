"""The demo's figures: the time of a first run and of a second, and whether kill -9 changes results.

All are measured in a clone of HEAD under .rft/bench, never in the working tree. The clone `demo` is
set up from nothing and runs the demo. The clone `killed` has the same commit, uses the environment
of the first, and is killed once in each stage.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from bench.measure import Figure, Part, failed
from bench.watch import Kill, Watched, watch

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".rft" / "bench"
DRIVER = "import sys; from flows.cli import main; sys.exit(main())"
WALL_TIMES = {"timing.json"}
"""Files that hold times: no claim of equal bytes includes them."""


def demo_time(args: list[str]) -> Figure:
    """Seconds of `make setup` and then `make demo` in a fresh clone, and the demo's peak memory."""
    clone, setup, demo = _fresh_demo(args)
    if setup.rc or demo is None or demo.rc:
        return failed(
            "demo", f"{'make setup' if setup.rc else 'make demo'} failed in a fresh clone: see {_told(clone)}"
        )
    parts = (
        Part("demo", demo.wall_s, "s", at_most=900),
        Part("setup", setup.wall_s, "s", at_most=300),
        Part("peak memory of the demo", demo.peak_gib, "GiB", at_most=4),
    )
    return Figure(parts, {"stages_s": demo.stages})


def demo_again(args: list[str]) -> Figure:
    """Seconds of `make demo` when nothing has changed since the last one."""
    clone = _finished_demo(args)
    if clone is None:
        return failed("demo again", f"the first demo failed: see {_told(PLACE / 'demo')}")
    again = watch(_make_demo(args), clone, _log(clone))
    if again.rc:
        return failed("demo again", f"the second demo failed: see {_told(clone)}")
    return Figure((Part("demo again", again.wall_s, "s", at_most=30),))


def demo_kill(args: list[str]) -> Figure:
    """Files that differ between a demo that was killed in each stage and started again, and a demo
    that nobody disturbed."""
    clone = _finished_demo(args)
    if clone is None:
        return failed("differing files", f"the undisturbed demo failed: see {_told(PLACE / 'demo')}")
    victim = _clone("killed")
    durations: dict[str, float] = json.loads((PLACE / "demo.json").read_text())["stages"]
    command, env = [str(clone / ".venv/bin/python"), "-c", DRIVER, "demo", *args], {"PYTHONPATH": str(victim)}
    missed: list[str] = []
    outlived: list[str] = []
    for stage, seconds in durations.items():
        _print_line(f"killing in {stage}, {seconds / 2:.1f} s after its start")
        seen = watch(command, victim, _log(victim), env=env, kill=Kill(stage, seconds / 2))
        missed += [] if seen.killed else [stage]
        outlived += seen.outlived
    _print_line("the last start, undisturbed")
    last = watch(command, victim, _log(victim), env=env)
    if last.rc:
        return failed("differing files", f"the demo did not end well after the kills: see {_told(victim)}")
    expected, found = published(clone), published(victim)
    differing = sorted(path for path in expected | found if expected.get(path) != found.get(path))
    for path in differing:
        _print_line(f"differs: {path}")
    parts = (
        Part("differing files", len(differing), "files", at_most=0, n=len(expected)),
        Part(
            "stages killed",
            len(durations) - len(missed),
            "stages",
            at_least=len(durations),
            reason=_describe("not hit", missed),
        ),
        Part(
            "stages that outlived their driver",
            len(outlived),
            "stages",
            at_most=0,
            reason=_describe("left running", outlived),
        ),
        Part("another decision", int(_decision(clone) != _decision(victim)), at_most=0),
    )
    return Figure(parts, {"differing": differing})


def published(clone: Path, reaching: str = "gate", folder: str = ".") -> dict[str, str]:
    """Return file -> hash over every DVC out of the whole runs of the agent in `folder`. Wall times
    are left out.

    A run is a revision below refs/exps whose dvc.lock reaches the gate, or another stage. Folders
    are read through the cache's own lists.
    """
    files: dict[str, str] = {}
    for revision in _runs(clone, reaching, folder):
        lock = yaml.safe_load(_git(clone, "show", f"{revision}:{Path(folder, 'dvc.lock')}"))
        for stage in lock["stages"].values():
            for out in stage.get("outs", []):
                for name, md5 in _files(clone, out["path"], out["md5"]):
                    if Path(name).name not in WALL_TIMES:
                        files[name] = md5
    return files


def _files(clone: Path, path: str, md5: str) -> list[tuple[str, str]]:
    if not md5.endswith(".dir"):
        return [(path, md5)]
    listing = json.loads((clone / ".dvc/cache/files/md5" / md5[:2] / md5[2:]).read_text())
    return [(f"{path}/{entry['relpath']}", entry["md5"]) for entry in listing]


def _runs(clone: Path, reaching: str = "gate", folder: str = ".") -> list[str]:
    """Return the revisions of whole runs, in order of name. The demo makes one."""
    lock = Path(folder, "dvc.lock")
    refs = _git(clone, "for-each-ref", "--format=%(refname)", "refs/exps").split()
    locks = {ref: yaml.safe_load(_git(clone, "show", f"{ref}:{lock}", check=False) or "{}") for ref in refs}
    return sorted(ref for ref, lock in locks.items() if reaching in (lock or {}).get("stages", {}))


def _decision(clone: Path) -> Any:
    """Read the gate's decision from the cache."""
    md5 = published(clone)["data/gate/decision.json"]
    return json.loads((clone / ".dvc/cache/files/md5" / md5[:2] / md5[2:]).read_text())["decision"]


def _finished_demo(args: list[str]) -> Path | None:
    """Return the clone in which this commit's demo has run to its end. Make it if there is none."""
    try:
        kept = json.loads((PLACE / "demo.json").read_text())
    except FileNotFoundError:
        kept = {}
    if kept.get("commit") == _git(ROOT, "rev-parse", "HEAD").strip() and kept["args"] == args:
        return PLACE / "demo"
    clone, setup, demo = _fresh_demo(args)
    return None if setup.rc or demo is None or demo.rc else clone


def _fresh_demo(args: list[str]) -> tuple[Path, Watched, Watched | None]:
    """Set up and run from nothing. The durations of the stages are kept beside the clone."""
    (PLACE / "demo.json").unlink(missing_ok=True)
    clone = _clone("demo")
    _print_line("make setup, from nothing")
    setup = watch(["make", "-s", "setup"], clone, _log(clone))
    if setup.rc:
        return clone, setup, None
    _print_line(f"set up in {setup.wall_s:.0f} s; make demo")
    demo = watch(_make_demo(args), clone, _log(clone))
    _print_line(f"demo: exit code {demo.rc} after {demo.wall_s:.0f} s, peak memory {demo.peak_gib:.2f} GiB")
    if not demo.rc:
        kept = {"commit": _git(clone, "rev-parse", "HEAD").strip(), "args": args, "stages": demo.stages}
        (PLACE / "demo.json").write_text(json.dumps(kept))
    return clone, setup, demo


def _clone(name: str) -> Path:
    """Clone HEAD, without anything that is not committed."""
    clone = PLACE / name
    shutil.rmtree(clone, ignore_errors=True)
    PLACE.mkdir(parents=True, exist_ok=True)
    _log(clone).unlink(missing_ok=True)
    _git(ROOT, "clone", "--quiet", str(ROOT), str(clone))
    return clone


def _make_demo(args: list[str]) -> list[str]:
    return ["make", "-s", "demo", f"DEMO={' '.join(args)}"]


def _log(clone: Path) -> Path:
    return clone.with_suffix(".log")


def _told(clone: Path) -> str:
    return str(_log(clone).relative_to(ROOT))


def _describe(what: str, names: list[str]) -> str:
    return f"{what}: {', '.join(names)}" if names else ""


def _git(where: Path, *args: str, check: bool = True) -> str:
    return subprocess.run(["git", *args], cwd=where, check=check, capture_output=True, text=True).stdout


def _print_line(message: str) -> None:
    print(f"[figure] {message}", file=sys.stderr, flush=True)


FIGURES = {"demo_time": demo_time, "demo_again": demo_again, "demo_kill": demo_kill}
