"""The figure `stores_down`: no run is lost or missing in a list, whatever store is down.

Each case (bench/stores_cases.py) is a scripted ladder in its own clone (bench/stores_scene.py),
with real Git, DVC, Prefect and MLflow, and stages that take seconds. A store is locked, full,
read-only, gone or slow (bench/stores_faults.py). The fault begins before the run, in the middle of
a stage, at its end, or during an approval, and lasts until the command is over. Then the fault is
removed, and the same command is given again.

    display   MLflow, Prefect, notifications, a lineage catalog: they must not end a run. The first
              command comes to its decision
    stores    what a run needs, such as DVC's cache and the clone's own file system: the command
              ends and says why, and its exit code blames the world (3). The second one goes on

In the end each run that printed its name is in `rft runs`, the last one has come to its decision,
and MLflow shows all of it, once.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import stores_faults as faults
from bench.measure import Figure, Part, failed, unmeasured
from bench.stores_cases import SHORT, WHOLE, Case, Place, cases
from bench.stores_scene import ROOT, Ended, Scene, begun, missing_in_mlflow, missing_in_registry

HALVES = 2
"""How many drivers run at once: much of a case is waiting."""


@dataclass
class Told:
    case: Case
    lost: int = 0
    tracebacks: int = 0
    unlisted: int = 0
    blamed: bool = True
    unshown: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    @property
    def is_well(self) -> bool:
        return not (self.lost or self.tracebacks or self.unlisted or self.unshown) and self.blamed


# -- one case --------------------------------------------------------------------------------------
def play(case: Case, place: Place, address: str | None) -> Told:
    told, scene = Told(case), place.scene
    fault = case.made(place)
    if case.phase in ("before", "approval"):
        fault.strike()
    started = scene.approve() if case.approves else scene.run()
    if case.phase in ("in", "after"):
        until = time.monotonic() + 120
        while time.monotonic() < until and not started.over and not _is_time(case, scene, started.output):
            time.sleep(0.02)
        if started.over:
            told.notes.append("the command was over before the fault")
            told.lost += 1
        fault.strike()
    first = started.wait()
    listed_in_fault = scene.rft("runs", "--all").wait(60)
    fault.heal()
    ends = [first]
    if case.approves:
        ends.append(scene.approve().wait())
    elif first.code != 0 or _owed(scene):
        ends.append(scene.run().wait())
    if _owed(scene):  # a receiver took it too slowly
        ends.append(scene.run().wait())
    told.blamed = first.code in case.first
    told.lost += ends[-1].code != 0
    told.tracebacks = sum(each.tracebacks for each in (*ends, listed_in_fault))
    listed = scene.rft("runs", "--all").wait(60)
    names = {scene.only} if case.approves else set[str]().union(*(begun(each.output) for each in ends))
    if case.approves:
        told.lost += listed.output.count("champion") != 1
    told.unlisted = sum(name not in listed.output for name in names) + int(not names)
    if case.approves:
        told.unshown = missing_in_registry(scene)
    elif not told.lost and not told.unlisted:
        told.unshown = _unshown(scene, address if case.server else None, names)
    told.notes.append(f"{', '.join(f'{each.code} after {each.seconds:.0f} s' for each in ends)}")
    told.notes += [line[:300] for line in _fault_lines(first)]
    if not told.is_well:
        for each in (*ends, listed_in_fault, listed):
            print(_short(each.output), "\n----", file=sys.stderr)
    return told


def _is_time(case: Case, scene: Scene, output: str) -> bool:
    return scene.runs_now(case.stage) if case.phase == "in" else f"✓ {case.stage}" in output


def _owed(scene: Scene) -> bool:
    return any((scene.root / ".rft" / "mlflow").glob("*.ndjson"))


def _unshown(scene: Scene, address: str | None, names: set[str]) -> list[str]:
    from tasks.runs import records

    found: list[str] = []
    for record in records.load_all(scene.clone):
        if record.name in names and record.state in ("finished", "stopped"):
            found += missing_in_mlflow(scene, address, record.name)
    return found


def _fault_lines(ended: Ended) -> list[str]:
    """Return the lines that the command printed about the fault."""
    signs = ("error:", "warning:", "[mlflow]", "[prefect]", "[openlineage]", "Error")
    return [line for line in ended.output.splitlines() if line.startswith(signs)]


def _short(output: str) -> str:
    """Return the output without the tables of the gate."""
    kept = [line for line in output.splitlines() if line.startswith(("[", "error", "Trace", "  File", "  ·", "  ✗"))]
    return "\n".join([*kept[-40:], *output.splitlines()[-8:]])[-4000:]


# -- the figure ------------------------------------------------------------------------------------
def stores_down(args: list[str]) -> Figure:
    """MLflow, Prefect, DVC, the clone: locked, full, read-only, gone, slow; before, in and after a
    stage. Runs lost (0), tracebacks (0), missing in `rft runs` (0)."""
    with contextlib.ExitStack() as stack:
        outs = [stack.enter_context(tempfile.NamedTemporaryFile("r", suffix=".jsonl")) for _ in range(HALVES)]
        try:
            halves = [_half(number, out.name, args) for number, out in enumerate(outs)]
        except FileNotFoundError:
            return unmeasured("runs lost", "there is no unshare")
        codes = [half.wait() for half in halves]
        rows = [json.loads(line) for out in outs for line in out]
    if any(codes):
        if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
            return unmeasured("runs lost", "this user may not mount a small file system")
        return failed("runs lost", f"the drivers of the cases ended with {codes}")
    return _figure(rows)


def _half(number: int, out: str, args: list[str]) -> subprocess.Popen[bytes]:
    """Start a driver in a namespace where nobody else sees its mounts."""
    code = "import sys; from bench import stores_down; stores_down.drive(int(sys.argv[1]), sys.argv[2], sys.argv[3:])"
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", code, str(number), out, *args]
    return subprocess.Popen(command, cwd=ROOT)


def drive(half: int, out: str, args: list[str]) -> None:
    """Play every other case, and print a line of JSON for each."""
    chosen = [case for case in cases() if _is_chosen(case, args)]
    if "--small" in args:
        chosen = chosen[:: max(1, len(chosen) // 6)]
    mine = chosen[half::HALVES]
    if not mine:
        return
    with _prepared() as (template, slot, mode, address, proxied, closed), open(out, "w", encoding="utf-8") as file:
        for number, case in enumerate(mine, 1):
            with _laid(case, template, slot) as scene:
                port = proxied if case.server else closed
                scene.settings += [word for each in case.settings for word in ("--set", each.format(port))]
                scene.environment |= {"MLFLOW_TRACKING_URI": address} if case.server and not case.settings else {}
                one = play(case, Place(scene, mode, closed), address if not case.settings else None)
            outcome = "well" if one.is_well else f"NOT WELL: {_wrong(one)}"
            told = f"{half}: {number}/{len(mine)} {case.name}: {outcome} ({'; '.join(one.notes)})"
            print(told, file=sys.stderr, flush=True)
            counts = {"lost": one.lost, "tracebacks": one.tracebacks, "unlisted": one.unlisted}
            more = {"blamed": one.blamed, "unshown": one.unshown, "words": f"{outcome}; {one.notes[0]}"}
            print(json.dumps({"case": case.name, **counts, **more}), file=file, flush=True)


def _is_chosen(case: Case, args: list[str]) -> bool:
    wanted = [arg for arg in args if not arg.startswith("-")]
    return not wanted or any(arg in case.name for arg in wanted)


def _wrong(one: Told) -> str:
    return (
        f"lost {one.lost}, tracebacks {one.tracebacks}, unlisted {one.unlisted}, blamed {one.blamed}, MLflow lacks "
        f"{', '.join(one.unshown[:5]) or 'nothing'}"
    )


def _figure(rows: list[dict[str, Any]]) -> Figure:
    count = len(rows)
    wrongly = sum(not row["blamed"] for row in rows)
    lacking = sum(bool(row["unshown"]) for row in rows)
    return Figure(
        (
            Part("runs lost", sum(row["lost"] for row in rows), "runs", at_most=0, n=count),
            Part("tracebacks", sum(row["tracebacks"] for row in rows), "tracebacks", at_most=0, n=count),
            Part("runs missing in `rft runs`", sum(row["unlisted"] for row in rows), "runs", at_most=0, n=count),
            Part("exit codes that blame another", wrongly, "cases", at_most=0, n=count),
            Part("cases in which MLflow lacks something in the end", lacking, "cases", at_most=0, n=count),
            Part("cases", count, "cases", at_least=40),
        ),
        {row["case"]: row["words"] for row in rows},
    )


@contextlib.contextmanager
def _prepared() -> Iterator[tuple[Path, Path, Path, str, int, int]]:
    """Make a clone with one finished run, a Prefect server for all cases but Prefect's own, and
    MLflow as a server behind a proxy."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "scripted_smoke")]
    for who in ("AUTHOR", "COMMITTER"):
        os.environ |= {f"GIT_{who}_NAME": "bench", f"GIT_{who}_EMAIL": "bench@localhost"}
    os.environ["STORES_DOWN_HOOK"] = f"whsec_{b64encode(bytes(24)).decode()}"
    for name in ("MLFLOW_TRACKING_URI", "RFT_STATE", "PREFECT_API_URL"):
        os.environ.pop(name, None)
    ladder_clone, dead_port = _tests("ladder_clone"), _tests("local_servers").dead_port
    with tempfile.TemporaryDirectory(prefix="stores-down-") as top, contextlib.ExitStack() as stack:
        folder = Path(top)
        template, slot, mode = folder / "template", folder / "slot", folder / "mode"
        print("one run, for all cases", file=sys.stderr, flush=True)
        first = Scene(slot, [], anew=True)
        ladder_clone.make(slot)
        (slot / "script" / "pause-train").write_text("0.15")
        (slot / "script" / "pause-policy").write_text("3")
        ended = first.run().wait()
        assert ended.code == 0, ended.output
        slot.rename(template)
        shutil.copytree(template, slot, symlinks=True)
        os.chdir(slot / "clone")
        # before Prefect is loaded, because it then reads where its server is, or else starts one
        os.environ["PREFECT_API_URL"] = stack.enter_context(_prefect_server(folder))
        _load()
        there, proxied, closed = dead_port(), dead_port(), dead_port()
        stack.enter_context(_mlflow_server(folder, there))
        stack.enter_context(faults.proxy(proxied, there, mode))
        yield template, slot, mode, f"http://127.0.0.1:{proxied}", proxied, closed


def _tests(module: str) -> Any:
    """Import a module of the tests."""
    return importlib.import_module(module)


def _load() -> None:
    """Import what a run imports, before anything is forked."""
    from tasks.display import tracking
    from tasks.runs import clone

    here = clone.enter()
    for name in ("flows.pipeline", "flows.cli", "flows.cli.run", "flows.cli.runs", "flows.results", "flows.server"):
        importlib.import_module(name)
    tracking.load(here)
    os.environ.pop("PREFECT_HOME", None)


@contextlib.contextmanager
def _prefect_server(folder: Path) -> Iterator[str]:
    """Run a Prefect server for all cases but Prefect's own. Its history is not a clone's."""
    from flows.server import Server
    from tasks.runs.clone import Clone

    place = Clone(folder / "prefect")
    place.state.mkdir(parents=True)
    os.environ["PREFECT_HOME"] = str(place.state)
    server = Server(place, full=False, port=0)
    os.environ.pop("PREFECT_HOME")
    try:
        server.ready()
        yield f"{server.url}/api"
    finally:
        server.stop()


@contextlib.contextmanager
def _mlflow_server(folder: Path, port: int) -> Iterator[None]:
    data = folder / "mlflow"
    data.mkdir()
    store = ["--backend-store-uri", f"sqlite:///{data}/mlflow.db", "--artifacts-destination", str(data / "artifacts")]
    command = [sys.executable, "-m", "mlflow", "server", *store, "--port", str(port), "--workers", "1"]
    with (folder / "mlflow.log").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        _answers(port)
        yield
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def _answers(port: int) -> None:
    import urllib.request

    until = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.3)


@contextlib.contextmanager
def _laid(case: Case, template: Path, slot: Path) -> Iterator[Scene]:
    """Put the template's clone in the one place that its stages name."""
    os.chdir(slot.parent)
    faults.read_only(slot).heal()
    shutil.rmtree(slot, ignore_errors=True)
    shutil.copytree(template, slot, symlinks=True)
    scene = Scene(slot, [*(WHOLE if case.whole else SHORT)[1]], anew=case.anew)
    (slot / "script" / "ran").unlink(missing_ok=True)
    if case.shared:
        scene.share()
    with contextlib.ExitStack() as stack:
        if case.small:
            stack.enter_context(faults.small((scene.root / case.small).resolve(), case.size))
        yield scene


FIGURES: dict[str, Any] = {"stores_down": stores_down}
