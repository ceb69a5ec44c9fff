"""Run tests that are in no file, over a module that lives in another process.

This file runs inside the sandbox. The candidate's code runs beside it, as the same user, and can
look at every file and every process there. So:

    tests    come on our standard input, and are never written to a file
    memory   of this process is closed to others: it is not dumpable when the candidate starts
    result   carries a nonce that came on standard input, is written once, and ends the process

    stdin    {"nonce", "tests": {name: source}, "modules", "folder", "remote": source}
    stdout   {"started": true}, then {"nonce", "passed", "failed", "skipped", "failures": [...]}
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

SUFFIX = ".hidden"
_PR_SET_DUMPABLE = 4


def main() -> None:
    """Read the tests, close this process to others, and run them."""
    job = json.loads(sys.stdin.buffer.readline())
    channel = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        _write(channel, {"started": False, "why": "the kernel does not close a process to others"})
        return
    try:
        pytest = importlib.import_module("pytest")  # users who have such tests install it
    except ImportError:
        _write(channel, {"started": False, "why": "pytest is not installed, so install it: pip install pytest"})
        return
    remote = _module("remote", job["remote"])
    _write(channel, {"started": True})
    serve = job["remote"] + f"\nserve_candidate({job['folder']!r})\n"
    line = remote.Line([sys.executable, "-I", "-B", "-c", serve])
    sys.meta_path.insert(0, remote.Finder(line, job["modules"]))
    found = _run(pytest, job["tests"])
    _write(channel, {"nonce": job["nonce"], **found})


def _run(pytest: Any, tests: dict[str, str]) -> dict[str, Any]:
    """Collect tests from their sources and run them."""

    class Hidden(pytest.Module):
        def _getobj(self) -> types.ModuleType:
            name = self.path.name.removesuffix(SUFFIX)
            return _module(name.removesuffix(".py"), tests[name])

    outcomes: dict[str, str] = {}
    failures: list[str] = []

    class Plugin:
        def pytest_collect_file(self, file_path: Path, parent: Any) -> Any:
            return Hidden.from_parent(parent, path=file_path) if file_path.name.endswith(SUFFIX) else None

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                self._note(report, "failed")

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed or (report.outcome == "skipped" and outcomes.get(report.nodeid) != "failed"):
                self._note(report, report.outcome)
            elif report.when == "call":
                outcomes.setdefault(report.nodeid, "passed")

        def _note(self, report: Any, outcome: str) -> None:
            outcomes[report.nodeid] = outcome
            if outcome == "failed":
                failures.append(f"{report.nodeid.replace(SUFFIX, '')}: {str(report.longrepr)[-300:]}")

    folder = tempfile.mkdtemp()
    places = [f"{folder}/{name}{SUFFIX}" for name in tests]
    for place in places:
        Path(place).touch()
    settings = ["-c", "/dev/null", "--rootdir", folder, "--noconftest", "--tb=line", "-q"]
    settings += ["-p", "no:cacheprovider", "-p", "no:faulthandler"]
    code = pytest.main([*settings, *places], plugins=[Plugin()])
    counts = {kind: list(outcomes.values()).count(kind) for kind in ("passed", "failed", "skipped")}
    if code not in (0, 1, 5) and not counts["failed"]:
        counts["failed"] = 1
        failures.append(f"pytest ended with exit code {int(code)}")
    return {**counts, "failures": failures[:5]}


def _module(name: str, source: str) -> Any:
    made = types.ModuleType(name)
    made.__file__ = f"{name}.py"
    sys.modules[name] = made
    exec(compile(source, made.__file__, "exec", dont_inherit=True), made.__dict__)
    return made


def _write(channel: int, value: Any) -> None:
    line = json.dumps(value).encode() + b"\n"
    while line:
        line = line[os.write(channel, line) :]


if __name__ == "__main__":
    main()
    os._exit(0)
