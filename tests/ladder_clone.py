"""A small clone of this repository whose stages are scripted: real Git, DVC, Prefect and MLflow,
and stages' files that were made beforehand.

`make(folder)` lays it out and commits it. Its `rft` holds the real config, reports and `python -m
rft`; each stage copies its files from a script folder, where a test can also make it fail, pause or
count: `script/fail-baseline` (a message), `script/pause-train` (seconds a step),
`script/pause-policy` (seconds), `script/ran` (a line each time a stage really runs). The train
stage takes twenty steps, writes metrics.jsonl in `.rft/progress` and goes on where it was killed,
or stopped in order.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import kept
import sample_reports
import scripted_windows
import tiny_recipe
import yaml
from scripted_smoke import sitecustomize as _  # noqa: F401 - in this process, too

from rft import config, files, reports, stage_files
from rft.gate import decide
from rft.rollouts import log as rollout_log
from tasks import dependencies
from tasks.dependencies import STAGES
from tasks.display import tracking
from tasks.ledger import remote
from tasks.promotion import champions, registration
from tasks.runs import agent_folder, repro, workspace
from tasks.runs import run as runs
from tasks.runs.champion import Served
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord

ROOT = Path(__file__).resolve().parents[1]
REAL = (
    "__init__.py",
    "__main__.py",
    "commands.py",
    "config",
    "engine.py",
    "errors.py",
    "files.py",
    "gate/__init__.py",
    "gate/pool.py",
    "gate/terms.py",
    "grading/__init__.py",
    "grading/margins.py",
    "lines.py",
    "needs.py",
    "process.py",
    "progress.py",
    "recipe.py",
    "reports",
    "rows.py",
    "scale.py",
    "secrets.py",
    "sources.py",
    "stage_files.py",
    "stages/__init__.py",
    "stats.py",
    "stopping.py",
    "tools/__init__.py",
    "tools/interpreter.py",
    "tools/server.py",
    "tools/signatures.py",
    "tools/states.py",
    "tools/unlearned.py",
    "types.py",
    "formatting.py",
)
COPIED = (
    "agent_rft.py",
    ".gitignore",
    ".dvcignore",
    ".dvc/config",
    ".dvc/.gitignore",
    "data/README.md",
    "data/champion/champion.json",
    "data/model/model.json",
    "data/registration/opening.json",
    "data/registration/registration.json",
    "mlruns/README.md",
)

ROW = '{"id": "e-1", "messages": [{"role": "user", "content": "Look it up."}]}\n'
"""The test set."""

STAGE = '''
"""A scripted stage."""

import json
import os
import shutil
import time
from pathlib import Path

from rft import files, progress, stopping
from rft.errors import InfrastructureError

SCRIPT = Path({script!r})


def run(params):
    section = params.{stage}
    with (SCRIPT / "ran").open("a") as file:
        file.write("{stage} %d\\n" % os.getpid())
    if (SCRIPT / "fail-{stage}").exists():
        raise InfrastructureError((SCRIPT / "fail-{stage}").read_text())
    work(params)
    shutil.copytree(SCRIPT / "data/{stage}", "data/{stage}", dirs_exist_ok=True)
    print("[{stage}] 1/1 done", flush=True)


def work(params):
    """{work}"""
'''
WORK = {
    "traffic": """It keeps the snapshot, and its report names the window of the settings."""
    + '"""\n    shutil.copytree("data/window", "data/traffic/conversations", dirs_exist_ok=True)\n'
    + '    report = json.loads((SCRIPT / "data/traffic/report.json").read_text())\n'
    + '    report["sha256"] = params.traffic.sha256 or report["sha256"]\n'
    + '    (SCRIPT / "data/traffic/report.json").write_text(json.dumps(report))\n    """',
    "examples": """Which source the flow chose is seen in the report."""
    + '"""\n    report = json.loads((SCRIPT / "data/examples/report.json").read_text())\n'
    + (
        '    (SCRIPT / "data/examples/report.json").write_text(json.dumps(report | {"source": '
        'params.examples.source}))\n    """'
    ),
    "policy": """It can be made to last."""
    + '"""\n    pause = SCRIPT / "pause-policy"\n'
    + '    time.sleep(float(pause.read_text()) if pause.exists() else 0)\n    """',
    "train": """Twenty steps, each a line; those that a killed process wrote are not repeated."""
    + '"""\n    metrics = progress.folder("train", [params.train], []) / "metrics.jsonl"\n'
    + '    print(f"[train] metrics {metrics}", flush=True)\n'
    + "    done = len(metrics.read_text().splitlines()) if metrics.exists() else 0\n"
    + "    for step in range(done + 1, 21):\n"
    + '        pause = SCRIPT / "pause-train"\n'
    + "        time.sleep(float(pause.read_text()) if pause.exists() else 0)\n"
    + '        with metrics.open("a") as file:\n'
    + '            file.write(json.dumps({"step": step, "reward/mean": step / 20}) + "\\n")\n'
    + '        print(f"[train] {step}/20 steps, reward {step / 20}", flush=True)\n'
    + '        stopping.check(f"after step {step} of 20")\n    """',
}


WINDOW = 1_200
"""Conversations in the window, as the traffic report of sample_reports.py says."""


def small(number: int) -> dict[str, Any]:
    """A conversation of it."""
    messages = [{"role": "user", "content": "Look it up."}, {"role": "assistant", "content": "done"}]
    return {"conversation_id": f"c-{number}", "time": "2026-03-30T08:00:00Z", "messages": messages}


CODE = [*(path for room in ("rft", "tasks") for path in (ROOT / room).rglob("*.py")), *(ROOT / "tests").glob("*.py")]
CODE += [ROOT / "constraints.txt"]
"""What decides on what is kept."""
_PREPARED = tempfile.TemporaryDirectory(prefix="rft-stage-files-")


@dataclass(frozen=True)
class Scripted:
    clone: Clone
    script: Path

    @property
    def root(self) -> Path:
        return self.clone.root

    @property
    def home(self) -> Path:
        """The agent's folder."""
        return self.clone.home

    def ran(self) -> list[str]:
        """The stages that really ran, in order."""
        return [line.split()[0] for line in self.lines()]

    def lines(self) -> list[str]:
        return (self.script / "ran").read_text().splitlines() if (self.script / "ran").exists() else []

    def git(self, *arguments: str) -> str:
        return self.clone.git(*arguments)

    def set_params(self, **sections: dict[str, Any]) -> None:
        path = self.home / "params.yaml"
        raw = yaml.safe_load(path.read_text())
        for name, section in sections.items():
            raw[name] = raw.get(name, {}) | section
        path.write_text(yaml.safe_dump(raw))

    def rft(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            **self.command(*arguments, **environment), capture_output=True, text=True, check=False, timeout=120
        )

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            **self.command(*arguments, **environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def command(self, *arguments: str, **environment: str) -> dict[str, Any]:
        dropped = ("MLFLOW_TRACKING_URI", "RFT_STATE")
        passed = {name: value for name, value in os.environ.items() if name not in dropped}
        return {
            "args": [sys.executable, "-P", "-m", "flows.cli", *arguments],
            "cwd": self.home,
            "env": passed | {"PYTHONPATH": f"{ROOT / 'tests/scripted_smoke'}:{ROOT}"} | environment,
        }


def run_ladder(
    scripted: Scripted,
    served: Served | None = None,
    begun: Callable[[runs.Run], None] = lambda run: None,
    **changes: Any,
) -> RunRecord:
    """A whole recorded run, its stages' files put there and committed to DVC at once: for tests of
    what comes after a run. `begun` is called with it once it goes on."""
    params = config.load(scripted.home / "params.yaml").model_copy(update=changes)
    served = served or champions.of_params(scripted.clone, params)
    with runs.start(scripted.clone, runs.plan(scripted.clone, params, served)) as run:
        begun(run)
        shutil.copytree(scripted.script / "data", run.tree / "data", dirs_exist_ok=True)
        shutil.copytree(run.tree / stage_files.SNAPSHOT, run.tree / stage_files.CONVERSATIONS, dirs_exist_ok=True)
        _name_window(run)
        registration.register(run, lambda _: None)
        _commit(run.tree, scripted.clone.dvc_cache)
        decision = reports.read(reports.Decision, run.stage_folder("gate") / "decision.json")
        run.update(decision=decision.decision, message=decision.reason)
    return run.record


def _commit(tree: Path, cache: Path) -> None:
    """DVC's commit takes 2 s. Of the same files it makes the same: that is kept for the session."""
    digest = hashlib.sha256()
    for path in sorted(path for path in tree.rglob("*") if path.is_file()):
        name = path.relative_to(tree)
        if name.parts[0] not in (".git", ".dvc") and name != stage_files.ENVIRONMENT:
            digest.update(f"{name} {files.sha256(path)}\n".encode())
    made = Path(_PREPARED.name) / "commits" / digest.hexdigest()
    if not (made / "dvc.lock").exists():
        settings = tree / ".dvc/config.local"
        settings.write_text(settings.read_text().replace(str(cache), str(made / "cache")))
        repro.dvc(tree, "commit", "--force", "--quiet")
        shutil.copy(tree / "dvc.lock", made)
    shutil.copy(made / "dvc.lock", tree)
    for path in (path for path in made.rglob("cache/**/*") if path.is_file()):
        if not (target := cache / path.relative_to(made / "cache")).exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)


def _name_window(run: runs.Run) -> None:
    path = run.stage_folder("traffic") / "report.json"
    sha256 = config.load(run.tree / "params.yaml").traffic.sha256
    reports.write(reports.read(reports.TrafficReport, path).model_copy(update={"sha256": sha256}), path)


def make(folder: Path, scenario: sample_reports.Scenario = "promote", agents: Sequence[str] = ()) -> Scripted:
    """Lay out a clone with one agent at its top; `agents`: a workspace with agents in these
    folders, each named after its own. The clone that is returned works on the first."""
    root, script = folder / "clone", folder / "script"
    shutil.copytree(_stage_files(scenario), script)
    for name in (*COPIED, *(f"rft/{name}" for name in REAL)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, root / name)
    for stage in STAGES:
        text = STAGE.format(script=str(script), stage=stage, work=WORK.get(stage, "Nothing."))
        (root / "rft/stages" / f"{stage}.py").write_text(text.lstrip())
    if agents:
        workspace.write(root, workspace.Workspace(agents=tuple(agents)))
    remote.pin(Clone(root), remote.Shared(), None)  # not the owner's, who may have a ledger of their own
    for place in agents or ("",):
        _lay_agent(root / place, named=Path(place).name)
    if agents:
        shutil.rmtree(root / "data")
    else:
        (root / "dvc.yaml").write_text(_pipeline(root))
    if "MLFLOW_TRACKING_URI" not in os.environ:
        Clone(root).mlruns.mkdir(parents=True, exist_ok=True)
        shutil.copy2(_empty_store(), Clone(root).mlruns / "mlflow.db")
    clone = Clone(root, agents[0] if agents else "")
    clone.git("init", "--quiet", "--initial-branch", "main")
    clone.git("add", "--all")
    clone.git("commit", "--quiet", "--message", "start")
    return Scripted(clone, script)


def _lay_agent(home: Path, named: str) -> None:
    tiny_recipe.make(home / "recipes")
    (home / "data" / "inbox").mkdir(parents=True)
    write_window(home, (small(number) for number in range(1, WINDOW + 1)))
    params: dict[str, Any] = {
        "recipe": {"path": "recipes/tiny"},
        "traffic": {"file": "data/inbox/window.jsonl"},
        "gate": sample_reports.GATE.model_dump(mode="json"),
    }
    if named:
        params["agent"] = named
        agent_folder.lay(home)
    (home / "params.yaml").write_text(yaml.safe_dump(params))


def write_window(root: Path, rows: Iterable[dict[str, Any]]) -> None:
    scripted_windows.write(root / "data/inbox/window.jsonl", rows)


def _pipeline(root: Path) -> str:
    """It is the same for every clone."""
    made = Path(_PREPARED.name) / "dvc.yaml"
    if not made.exists():
        made.write_text(dependencies.render(root))
    return made.read_text()


def _empty_store() -> Path:
    """MLflow takes 5 s to lay out a new database. It does so in `rft demo`; every clone here begins
    with a copy."""
    return kept.folder("store", _lay_out_store, CODE) / "mlruns" / "mlflow.db"


def _lay_out_store(place: Path) -> None:
    tracking.client(Clone(place)).search_experiments()
    assert (place / "mlruns" / "mlflow.db").exists(), "MLflow was told of another store"


@cache
def _stage_files(scenario: sample_reports.Scenario) -> Path:
    """Every file that dvc.yaml names, consistent by hash, so that a promotion can verify them."""
    return kept.folder(f"stage-files-{scenario}", lambda place: _make_stage_files(place, scenario), CODE) / "script"


def _make_stage_files(folder: Path, scenario: sample_reports.Scenario) -> Path:
    place = folder / "script"
    sample_reports.write_stage_files(place, scenario)
    data = place / "data"
    for stage, outputs in STAGES.items():
        for name in outputs.leaves:
            path = data / stage / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name == "conversations":  # the scripted stage keeps what the flow ingested
                path.mkdir(exist_ok=True)
            elif name in ("", "weights", "references"):
                path.mkdir(exist_ok=True)
                (path / "model.bin").write_bytes(b"weights of " + stage.encode())
            elif not path.exists() and path.suffix == ".parquet":
                rollout_log.write([], path)
            elif not path.exists():
                path.write_text(ROW if name == "test.jsonl" else "{}\n")
    if scenario == "drift_stop":
        return place
    _fit(data)
    metrics = "".join(json.dumps({"step": step, "reward/mean": step / 20}) + "\n" for step in range(1, 21))
    (data / "train/metrics.jsonl").write_text(metrics)
    rehash(data)
    return place


def _fit(data: Path) -> None:
    """The reports of the first stages say what lies beside them."""
    for split in ("train", "validation"):
        (data / f"examples/{split}.jsonl").write_text(ROW.replace("e-1", f"{split}-1"))
    examples = reports.read(reports.ExamplesReport, data / "examples/report.json")
    sha256 = {split: files.sha256(data / f"examples/{split}.jsonl") for split in examples.sha256}
    counts = {split: (data / f"examples/{split}.jsonl").read_bytes().count(b"\n") for split in sha256}
    reports.write(examples.model_copy(update={"sha256": sha256, "counts": counts}), data / "examples/report.json")
    model = data / "policy/model"
    model.mkdir()
    (model / "base.bin").write_bytes(b"base model")
    policy = reports.read(reports.PolicyReport, data / "policy/report.json")
    reports.write(policy.model_copy(update={"sha256": files.tree_sha256(model)}), data / "policy/report.json")


def rehash(data: Path, gate: config.Gate = sample_reports.GATE, level: float | None = None) -> None:
    """The train report names the weights that lie there, and the decision the train report.
    `level`: of a look that was registered."""
    train = reports.read(reports.TrainReport, data / "train/report.json")
    if train.trained:
        train = train.model_copy(
            update={"path": "data/train/weights", "sha256": files.tree_sha256(data / "train/weights")}
        )
        reports.write(train, data / "train/report.json")
    drift = reports.read(reports.DriftReport, data / "drift/report.json")
    baseline = reports.read(reports.BaselineReport, data / "baseline/report.json")
    prompt = reports.read(reports.PromptReport, data / "prompt/report.json")
    challenger = reports.read(reports.ChallengerReport, data / "challenger/report.json")
    test = files.sha256(data / "examples/test.jsonl")
    arms: list[reports.Arm] = []
    for arm in challenger.arms:
        changes: dict[str, Any] = {} if arm.name == "champion" else {"prompt_sha256": prompt.winner.digest()}
        for name in ("sampled", "greedy"):
            changes[name] = getattr(arm, name).model_copy(update={"examples_sha256": test})
        arms.append(arm.model_copy(update=changes))
    challenger = challenger.model_copy(update={"arms": arms, "test_sha256": test})
    reports.write(challenger, data / "challenger/report.json")
    timings = json.loads((data / "challenger/timing.json").read_text())
    decision = decide.decide(gate, drift, baseline, prompt, train, challenger, timings, level)
    request = decide.promotion_request(decision, prompt, train, challenger)
    reports.write(decision, data / "gate/decision.json")
    reports.write(request, data / "gate/request.json")
