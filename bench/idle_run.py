"""The figure of idle runs: how long does a scheduled run take if nothing has changed?

A clone has finished a whole run. `rft up` serves it, and the same server serves a flow that does
nothing. Both are started again and again, in turns, as a schedule starts them. The time of
`retrain` beyond the empty flow is ours: its imports, a worktree, DVC's check of each stage, MLflow,
the ledger and the record. Times are those of Prefect's states, from `Pending`, before it starts the
process, to `Completed`.

The same is measured at the command line, process against process: `rft run`, and an empty flow on
its own server.

The clone is a clone of HEAD below .rft/bench, with the small demo's settings. Its first run is
kept, and the next measurement of the same commit begins with it. With --small the stages are
scripted.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from bench.measure import Figure, Part, failed
from tasks.runs import records, workspace
from tasks.runs.clone import TELEMETRY_OFF, Clone
from tasks.runs.records import RunRecord

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".rft" / "bench"
BOUND_S = 15.0
TURNS, SMALL = 3, 2
FIRST_S, AGAIN_S = 3600.0, 300.0
"""How long a first run, and one that changes nothing, may take before the figure gives up."""
SCHEDULE = {"cron": "0 3 1 1 *", "params": "params.yaml", "window": "data/inbox/*.jsonl"}

EMPTY = """
from prefect import flow


@flow
def nothing():
    pass
"""
SERVE_EMPTY = """
from tasks.runs import clone

clone.enter()
from nothing import nothing
from prefect.types.entrypoint import EntrypointType

nothing.serve(
    name="nothing", limit=1, pause_on_shutdown=False, print_starting_message=False,
    entrypoint_type=EntrypointType.MODULE_PATH,
)
"""
RUN_EMPTY = """
from flows.server import prefect_server
from tasks.runs import clone

with prefect_server(clone.enter()) as server:
    from nothing import nothing

    server.ready()
    nothing()
"""


@dataclass(frozen=True)
class Turn:
    """One idle run, and one empty flow before it."""

    empty_s: float
    retrain_s: float
    stages_s: float
    """The part of `retrain_s` in stages: DVC's check, and showing their numbers."""
    ran: tuple[str, ...] = ()
    """Stages that DVC did not skip. If there are any, something had changed."""

    @property
    def ours_s(self) -> float:
        return self.retrain_s - self.empty_s


@dataclass(frozen=True)
class Place:
    """A clone, and where its `flows` and `tasks` are imported from."""

    clone: Clone
    code: Path
    scratch: Path
    """A folder outside the clone, which stays clean."""

    def environment(self) -> dict[str, str]:
        dropped = ("MLFLOW_TRACKING_URI", "RFT_STATE", "PREFECT_API_URL", "PREFECT_HOME")
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        kept |= TELEMETRY_OFF | {"PREFECT_RUNNER_POLL_FREQUENCY": "2", "PREFECT_LOGGING_LEVEL": "INFO"}
        return kept | {"PYTHONPATH": f"{self.code}{os.pathsep}{self.scratch}"}


def idle_run(args: list[str]) -> Figure:
    """Seconds of a scheduled run in which nothing has changed, beyond those of an empty flow of
    Prefect (at most 15)."""
    small = "--small" in args
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rft-idle-")))
        (scratch / "nothing.py").write_text(EMPTY)
        place = scripted(scratch) if small else Place(_real(), PLACE / "idle", scratch)
        try:
            served, by_hand = _measure(place, SMALL if small else TURNS)
        except RuntimeError as broke:
            return failed("idle run", str(broke))
    return figure_of(served, by_hand)


def figure_of(served: list[Turn], by_hand: list[Turn]) -> Figure:
    """Make the figure. Its headline is the median over the turns, with the quickest and slowest."""
    ran = sorted({stage for turn in (*served, *by_hand) for stage in turn.ran})
    parts = (
        _spread("beyond Prefect's own start", served, lambda turn: turn.ours_s, at_most=BOUND_S),
        _spread("an empty flow, scheduled", served, lambda turn: turn.empty_s),
        _spread("the idle run, scheduled", served, lambda turn: turn.retrain_s),
        _spread("in its stages", served, lambda turn: turn.stages_s),
        _spread("outside of them", served, lambda turn: turn.ours_s - turn.stages_s),
        _spread("beyond Prefect's own start, at the command line", by_hand, lambda turn: turn.ours_s),
        _spread("an empty flow, at the command line", by_hand, lambda turn: turn.empty_s),
        Part("stages that ran although nothing had changed", len(ran), "stages", at_most=0, reason=", ".join(ran)),
    )
    return Figure(parts)


def _spread(name: str, turns: list[Turn], seconds: Callable[[Turn], float], at_most: float | None = None) -> Part:
    found = [seconds(turn) for turn in turns]
    return Part(name, median(found), "s", at_most=at_most, low=min(found), high=max(found), n=len(found))


def _measure(place: Place, turns: int) -> tuple[list[Turn], list[Turn]]:
    with _served(place) as start:
        if not any(record.state == "finished" for record in records.load_all(place.clone)):
            _print_line("the first run")
            start("retrain", FIRST_S)
        served = [
            _turn(place, lambda: start("nothing", AGAIN_S), lambda: start("retrain", AGAIN_S)) for _ in range(turns)
        ]
    retrain = ["-P", "-m", "flows.cli", "run", "--clean-only", "--window", SCHEDULE["window"]]
    by_hand = [
        _turn(place, lambda: _timed(place, ["-c", RUN_EMPTY]), lambda: _timed(place, retrain)) for _ in range(turns)
    ]
    return served, by_hand


def _turn(place: Place, empty: Callable[[], float], retrain: Callable[[], float]) -> Turn:
    before = {record.name for record in records.load_all(place.clone)}
    empty_s, retrain_s = empty(), retrain()
    [record] = [record for record in records.load_all(place.clone) if record.name not in before]
    turn = turn_of(empty_s, retrain_s, record)
    _print_line(f"empty {turn.empty_s:.2f} s, idle {turn.retrain_s:.2f} s ({turn.stages_s:.1f} s in stages)")
    return turn


def turn_of(empty_s: float, retrain_s: float, record: RunRecord) -> Turn:
    ran = tuple(stage for stage, how in record.stages.items() if how == "ran")
    return Turn(empty_s, retrain_s, sum(record.seconds.values()), ran)


# -- scheduled -------------------------------------------------------------------------------------
@contextmanager
def _served(place: Place) -> Iterator[Callable[[str, float], float]]:
    """Serve both flows. Yields a function that starts one, waits for its end and returns the
    seconds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    api = f"http://127.0.0.1:{port}/api"
    up = ["-P", "-m", "flows.cli", "up", "--port", str(port)]
    with ExitStack() as stack:
        stack.enter_context(_process(place, up, {}))
        _waited_for(lambda: _asked(api, "deployments/filter", {}), 120, "rft up")
        stack.enter_context(_process(place, ["-c", SERVE_EMPTY], {"PREFECT_API_URL": api}))
        _waited_for(lambda: len(_asked(api, "deployments/filter", {}) or ()) == 2, 120, "the server of the empty flow")
        ids = {_flow(api, each): each["id"] for each in _asked(api, "deployments/filter", {})}

        def start(name: str, limit_s: float) -> float:
            made = _asked(api, f"deployments/{ids[name]}/create_flow_run", {})
            _waited_for(
                lambda: _state(api, made["id"]) in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"), limit_s, name
            )
            return seconds_of(name, _asked(api, f"flow_run_states/?flow_run_id={made['id']}"))

        yield start


def seconds_of(name: str, states: list[dict[str, Any]]) -> float:
    """Return the seconds from `Pending` to `Completed`. Raises RuntimeError for another end."""
    at = {state["type"]: datetime.fromisoformat(state["timestamp"]) for state in states}
    if "COMPLETED" not in at:
        last = max(states, key=lambda state: state["timestamp"])
        raise RuntimeError(f"the flow {name} ended as {last['type']}: {last.get('message')}")
    return (at["COMPLETED"] - at["PENDING"]).total_seconds()


def _flow(api: str, deployment: Mapping[str, Any]) -> str:
    return _asked(api, f"flows/{deployment['flow_id']}")["name"]


def _state(api: str, flow_run: str) -> str:
    return (_asked(api, f"flow_runs/{flow_run}") or {}).get("state_type", "")


def _asked(api: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Return Prefect's answer. None while its server does not answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{api}/{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as reply:
            return json.load(reply)
    except OSError:
        return None


def _waited_for(seen: Callable[[], Any], limit_s: float, what: str) -> None:
    deadline = time.monotonic() + limit_s
    while not seen():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: nothing was seen in {limit_s:g} s")
        time.sleep(0.2)


# -- processes -------------------------------------------------------------------------------------
@contextmanager
def _process(place: Place, arguments: list[str], more: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    environment = place.environment() | more
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=place.clone.root, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _timed(place: Place, arguments: list[str]) -> float:
    """Return the seconds from its start to its end. Raises RuntimeError if it fails."""
    began = time.monotonic()
    with _process(place, arguments, {"PREFECT_LOGGING_LEVEL": "CRITICAL"}) as process:
        code = process.wait(AGAIN_S)
        spent = time.monotonic() - began
    if code:
        raise RuntimeError(f"{' '.join(arguments[:4])} ended with exit code {code}")
    return spent


# -- the clone -------------------------------------------------------------------------------------
def scripted(scratch: Path) -> Place:
    """Make the tests' clone, whose stages copy files that were made beforehand."""
    from bench import promoting

    promoting.enter(scratch)
    from tests import ladder_clone

    scripted = ladder_clone.make(scratch)
    _schedule(scripted.clone)
    return Place(scripted.clone, ROOT, scratch)


def _real() -> Clone:
    """Clone HEAD with the small demo's settings, and a window of invented traffic."""
    clone = Clone(PLACE / "idle")
    if clone.root.exists() and _kept().exists() and _kept().read_text() == _head(ROOT):
        return clone
    from flows.cli import demo
    from flows.settings import of_file
    from rft import recipe

    shutil.rmtree(clone.root, ignore_errors=True)
    _kept().unlink(missing_ok=True)
    PLACE.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone.root)], check=True)
    path = clone.root / "params.yaml"
    params = of_file(path, demo.SMALL)
    path.write_text(yaml.safe_dump(params.model_dump(mode="json", by_alias=True), sort_keys=False))
    _schedule(clone)
    window = clone.root / params.traffic.file
    window.parent.mkdir(parents=True, exist_ok=True)
    made = recipe.load(params.recipe)
    made.simulate(window, start=demo.START, days=7, conversations=demo.CONVERSATIONS, drifted=False, seed=0)
    _kept().write_text(_head(ROOT))
    return clone


def _schedule(clone: Clone) -> None:
    """Commit a schedule that does not come due during the measurement."""
    plan = {workspace.name(clone.root, ""): SCHEDULE}
    (clone.root / workspace.FILE).write_text(yaml.safe_dump({"agents": ["."], "schedules": plan}))
    clone.git("add", "--all")
    clone.git("-c", "user.name=bench", "-c", "user.email=bench@localhost", "commit", "--quiet", "--message", "idle run")


def _kept() -> Path:
    """Return the file that names the commit of the clone."""
    return PLACE / "idle.commit"


def _head(root: Path) -> str:
    return Clone(root).git("rev-parse", "HEAD")


def _print_line(message: str) -> None:
    print(f"[figure] {message}", file=sys.stderr, flush=True)


FIGURES = {"idle_run": idle_run}
