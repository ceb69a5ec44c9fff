"""A scripted ladder in its own clone, which bench/stores_down.py starts, disturbs and checks.

The fault strikes while a stage runs or after it. A run is a fork of this process, which has loaded
Prefect and MLflow: it is `rft run` as its user types it, without the ten seconds of imports.
Prefect's own cases start a new process, because Prefect reads where its home is when it is loaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 240
_SCRIPTED = str(ROOT / "tests/scripted_smoke")


@dataclass
class Ended:
    """A command that ended: its exit code, its output, how long it took."""

    code: int
    output: str
    seconds: float

    @property
    def tracebacks(self) -> int:
        return self.output.count("Traceback (most recent call last)")


@dataclass
class Scene:
    """A clone in its own folder. `anew`: each command is a new process, not a fork."""

    folder: Path
    settings: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    anew: bool = False

    @property
    def root(self) -> Path:
        return self.folder / "clone"

    @property
    def clone(self) -> Any:
        from tasks.runs.clone import Clone

        return Clone(self.root)

    def runs_now(self, stage: str) -> bool:
        """Whether this stage has begun."""
        ran = self.folder / "script" / "ran"
        return ran.exists() and f"{stage} " in ran.read_text()

    def rft(self, *arguments: str, log: Path | None = None) -> Started:
        log = log or self.folder / f"said-{time.monotonic_ns()}.log"
        return Started(log, self._spawn(list(arguments), log), time.monotonic())

    def _spawn(self, arguments: list[str], log: Path) -> int:
        if self.anew:
            given = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "MLFLOW", "RFT"))}
            with log.open("wb") as out:
                return subprocess.Popen(
                    [sys.executable, "-P", "-m", "flows.cli", *arguments],
                    cwd=self.root,
                    env=given | {"PYTHONPATH": f"{_SCRIPTED}:{ROOT}"} | self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                ).pid
        child = os.fork()
        if child == 0:
            _be(self.root, arguments, log, self.environment)
        return child

    def run(self) -> Started:
        return self.rft("run", *self.settings)

    @property
    def only(self) -> str:
        """Return the template's run."""
        return min(self.root.glob(".rft/runs/*.json")).stem

    def approve(self) -> Started:
        key = self.folder / "ada"
        if not key.exists():
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ada", "-f", str(key)]
            subprocess.run(command, check=True)
        return self.rft("approve", self.only, "--reason", "fewer calls", "--key", str(key))

    def share(self) -> None:
        """Give the ledger a Git remote, and the clone a DVC remote."""
        git = self.clone.git
        git("init", "--quiet", "--bare", str(self.folder / "remote.git"))
        git("remote", "add", "origin", str(self.folder / "remote.git"))
        (self.folder / "store").mkdir()
        settings = self.root / ".dvc" / "config"
        text = settings.read_text().replace("[core]", "[core]\n    remote = store")
        settings.write_text(f"{text}['remote \"store\"']\n    url = {self.folder / 'store'}\n")
        (self.root / "infra" / "ledger.yaml").write_text("remote: origin\n")
        git("add", "--all")
        git("commit", "--quiet", "--message", "shared")
        git("push", "--quiet", "origin", "main")


@dataclass
class Started:
    log: Path
    pid: int
    began: float

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wait(self, timeout_s: float = TIMEOUT_S) -> Ended:
        """Wait for the end. A command that hangs is killed: its exit code is then -9."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                return Ended(os.waitstatus_to_exitcode(status), self.output, time.monotonic() - self.began)
            time.sleep(0.05)
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        return Ended(-9, f"{self.output}\n(killed: it hung)", timeout_s)

    @property
    def over(self) -> bool:
        """Whether it has ended. `wait` must still be called."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _be(root: Path, arguments: list[str], log: Path, environment: dict[str, str]) -> Any:
    """Run `rft ARGUMENTS` in this process, to its end."""
    code = 70
    try:
        os.setsid()
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream in (1, 2):
            os.dup2(handle, stream)
        os.environ.update(environment)
        os.environ["PYTHONPATH"] = f"{_SCRIPTED}:{ROOT}"
        os.chdir(root)
        from flows import cli

        with contextlib.suppress(SystemExit):
            code = cli.main(arguments)
    except BaseException:  # as Python would end
        traceback.print_exc()
        code = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


# -- what is looked at -----------------------------------------------------------------------------
def begun(output: str) -> set[str]:
    """Return the runs that a command says it began or continued."""
    return set(re.findall(r"^\[run\] (\S+?),?(?: |$)", output, re.MULTILINE))


def missing_in_mlflow(scene: Scene, address: str | None, name: str) -> list[str]:
    """Return what MLflow does not show of a run that is over, or shows twice."""
    return _asked(lambda: _missing(scene, address, name))


def missing_in_registry(scene: Scene) -> list[str]:
    """Return where MLflow does not show the champion."""
    return _asked(lambda: _unregistered(scene))


def _unregistered(scene: Scene) -> list[str]:
    from tasks.display import tracking

    with _address(None):
        shown = tracking.client(scene.clone).get_registered_model("tiny").aliases
    return [] if "champion" in shown else ["the alias @champion"]


def _asked(question: Callable[[], list[str]]) -> list[str]:
    """Ask in another process: every later fork would inherit a database that is open here."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = question()
        except BaseException as error:
            found = [f"what it shows ({type(error).__name__}: {error})"[:300]]
        os.write(writer, json.dumps(found).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        found = json.loads(file.read() or b'["what it shows"]')
    os.waitpid(child, 0)
    return found


def _missing(scene: Scene, address: str | None, name: str) -> list[str]:
    from tasks.display import tracking
    from tasks.runs import records

    record = records.find(scene.clone, name)
    with _address(address):
        client = tracking.client(scene.clone)
        if record.mlflow_run_id is None:
            return ["the run"]
        shown = client.get_run(record.mlflow_run_id)
        tags, wrong = shown.data.tags, list[str]()
        stages = [f"stage.{stage}" for stage in record.stages]
        after = ("decision", "trained") if "gate" in record.stages else ()
        for tag in ("revision", "drift", "dvc.lock_sha256", tracking.NOTE, *after, *stages):
            wrong += [] if tag in tags else [f"tag {tag}"]
        if shown.info.status != "FINISHED" or tags.get("state") != record.state:
            wrong.append("its state")
        if not shown.data.params:
            wrong.append("its settings")
        pages = {f"{name}.html", f"{name}.drift.html"}
        if "train" in record.stages:
            steps = Counter(each.step for each in client.get_metric_history(record.mlflow_run_id, "train/reward/mean"))
            # for a training that DVC did not have to run, it shows only the last step
            wanted = range(1, 21) if record.stages["train"] == "ran" else (20,)
            wrong += [f"step {step} of the training ({steps[step]} times)" for step in wanted if steps[step] != 1]
        if len(shown.inputs.dataset_inputs) != 4:
            wrong.append(f"{4 - len(shown.inputs.dataset_inputs)} datasets")
        held = {each.path for each in client.list_artifacts(record.mlflow_run_id)}
        wrong += [f"page {page}" for page in sorted(pages - held)]
        twice = client.search_runs([shown.info.experiment_id], f"tags.run = '{name}'")
        return wrong + ([f"{len(twice) - 1} runs too many"] if len(twice) != 1 else [])


@contextlib.contextmanager
def _address(address: str | None) -> Any:
    before = os.environ.pop("MLFLOW_TRACKING_URI", None)
    if address:
        os.environ["MLFLOW_TRACKING_URI"] = address
    try:
        yield
    finally:
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        if before is not None:
            os.environ["MLFLOW_TRACKING_URI"] = before
