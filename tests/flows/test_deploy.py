"""`rft up`: a real server, a real schedule, a run that starts from it, and an end that leaves no
process."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import at_hand
import ladder_clone
import local_servers
import psutil
import pytest

from flows import deploy, unattended
from rft.errors import ConfigError, UserError
from tasks.runs import records
from tasks.runs.clone import Clone

AGENTS = ("agents/refunds", "agents/billing")


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> ladder_clone.Scripted:
    return ladder_clone.make(tmp_path_factory.mktemp("alone"))


def test_the_schedules_of_this_repository(repository: Path) -> None:
    [ours] = deploy.planned(Clone(repository))
    assert (ours.agent, ours.home.folder) == ("icd10", "")
    assert ours.schedule.clean_only, "a schedule takes no uncommitted work along"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schedules: {tiny: {timezone: UTC}}", "rft.yaml: 'schedules.tiny.cron' is missing"),
        ("schedules: {tiny: {cron: every monday}}", "rft.yaml: schedules.tiny: cron 'every monday': "),
        ("schedules: {tiny: {cron: 0 0 30 2 *}}", "rft.yaml: schedules.tiny: cron '0 0 30 2 *': "),
        ("schedules: {tiny: {cron: 0 3 * * 1, timezone: Mars/Olympus}}", "timezone 'Mars/Olympus' is not known"),
        (
            "schedules: {tiny: {cron: 0 3 * * 1, windows: a}}",
            "unknown key 'schedules.tiny.windows'. Did you mean 'window'",
        ),
        ("schedules: {tinny: {cron: 0 3 * * 1}}", "rft.yaml: schedules.tinny: no agent. Did you mean 'tiny'"),
        ("slots: 0", "rft.yaml: 'slots' = 0"),
        ("slots: 1", "rft.yaml: no schedule yet. Write one"),
    ],
)
def test_wrong_schedules(scripted: ladder_clone.Scripted, text: str, message: str) -> None:
    (scripted.root / "rft.yaml").write_text(f"agents: [.]\n{text}\n")
    with pytest.raises(ConfigError) as refused:
        deploy.planned(scripted.clone)
    assert message in str(refused.value)


def test_a_clone_without_a_workspace_has_its_schedule_in_infra(scripted: ladder_clone.Scripted) -> None:
    (scripted.root / "rft.yaml").unlink(missing_ok=True)
    file = scripted.root / "infra/schedule.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text("name: x\ncron: 0 3 * * 1\n")
    [planned] = deploy.planned(scripted.clone)
    assert (planned.name, planned.agent, planned.schedule.cron) == ("x", None, "0 3 * * 1")
    file.write_text("name: x\n")
    with pytest.raises(ConfigError, match=r"infra/schedule.yaml: 'cron' is missing"):
        deploy.planned(scripted.clone)
    (scripted.root / "rft.yaml").write_text("agents: [.]\nschedules: {tiny: {cron: 0 3 * * 1}}\n")
    with pytest.raises(ConfigError, match=r"infra/schedule.yaml is not read where there is rft.yaml. Move it"):
        deploy.planned(scripted.clone)
    file.unlink()


@pytest.mark.slow
def test_the_flow_that_prefect_loads_is_ours_wherever_it_starts(repository: Path, tmp_path: Path) -> None:
    """Its runner puts the current folder first, where a program may have a package `flows`."""
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows/pipeline.py").write_text("raise SystemExit('of the user')\n")
    load = f"from prefect.utilities.importtools import import_object as load; print(load({deploy.FLOW!r}).name)"
    environment = os.environ | {"PYTHONPATH": f".:{repository}", "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", load], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "retrain\n", done.stderr


def test_n14_our_errors_are_told_in_a_line_and_a_bug_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unattended.told_once()
    unattended.told_once()
    logger, output = logging.getLogger("prefect.flow_runs"), io.StringIO()
    # Alone: where a test before this one set Prefect up, its handlers ask for a run that goes on,
    # and it says little.
    caplog.set_level(logging.INFO, logger="prefect.flow_runs")
    monkeypatch.setattr(logger, "handlers", [logging.StreamHandler(output)])
    monkeypatch.setattr(logger, "propagate", False)
    for error in (UserError("name a window"), ZeroDivisionError("a bug")):
        try:
            raise error
        except Exception as raised:
            logger.error("ended: %r", raised, exc_info=True)
    ours, _, bug = output.getvalue().partition("ended: ZeroDivisionError")
    assert ours == "ended: UserError('name a window')\n"
    assert "Traceback" in bug


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as found:
        yield found


@pytest.mark.story
def test_two_agents_schedules_are_served_and_runs_start_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack
) -> None:
    """Those who are told of its end and of its failure are (docs/notify.md)."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = ladder_clone.make(tmp_path / "a", agents=AGENTS)
    plan = "{cron: 0 3 * * 1, window: data/inbox/*.jsonl}"
    with (scripted.root / "rft.yaml").open("a") as file:
        file.write(f"slots: 2\nschedules:\n  refunds: {plan}\n  billing: {plan}\n")
    monkeypatch.setenv("HOOK_SECRET", local_servers.SECRET)
    hook = stack.enter_context(local_servers.hooks())
    scripted.set_params(run={"notify": {"webhook": {"url": hook.url, "signing_secret": "env:HOOK_SECRET"}}})
    scripted.git("add", "--all")
    scripted.git("commit", "--quiet", "--message", "a schedule")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (scripted.script / "pause-train").write_text("0.1")
    at_hand.history(tmp_path / "prefect")
    with (
        scripted.start(
            "-C", str(scripted.root), "up", "--port", str(port), PREFECT_HOME=str(tmp_path / "prefect")
        ) as up,
        contextlib.ExitStack() as after,
    ):
        after.callback(up.kill)  # where something below fails, it would be waited for
        api = f"http://127.0.0.1:{port}/api"
        served = waited_for(lambda: (post(f"{api}/deployments/filter", {}) or [])[1:] and _served(api), up)
        assert set(served) == {"refunds", "billing"}
        planned = waited_for(lambda: post(f"{api}/flow_runs/filter", {"sort": "EXPECTED_START_TIME_ASC"}), up)
        assert {run["state_type"] for run in planned} == {"SCHEDULED"}
        assert planned[0]["parameters"]["window"] == "data/inbox/*.jsonl"
        for deployment in served.values():
            waited_for(lambda id=deployment: post(f"{api}/deployments/{id}/create_flow_run", {}), up)
        both = waited_for(lambda: _with_challenger(scripted)[1:] and _with_challenger(scripted), up)
        record = next(one for one in both if one.agent == "refunds")
        assert {(one.agent, one.folder) for one in both} == {(Path(place).name, place) for place in AGENTS}
        family = psutil.Process(up.pid).children(recursive=True)
        [named] = [run for run in post(f"{api}/flow_runs/filter", {}) if record.name in run["name"]]
        assert (named["name"], named["id"]) == (f"retrain {record.name}", record.flow_run_id)
        asked = {"logs": {"flow_run_id": {"any_": [named["id"]]}}}
        step = "[train] 1/20 steps, reward 0.05"
        waited_for(lambda: step in [line["message"] for line in post(f"{api}/logs/filter", asked) or []], up)
        second = scripted.rft("-C", str(scripted.root), "up", "--port", str(port))
        assert second.returncode == 3
        assert f"port {port} is taken" in second.stderr
        for one in both:
            waited_for(lambda name=one.name: records.find(scripted.clone, name).revision, up)
        waited_for(lambda: hook.taken, up)
        (scripted.root / "notes.txt").write_text("of no agent, so it makes no run dirty")
        (scripted.home / "notes.txt").write_text("not committed")
        waited_for(lambda: post(f"{api}/deployments/{served['refunds']}/create_flow_run", {}), up)
        waited_for(lambda: hook.taken[1:], up)
        up.send_signal(signal.SIGINT)
        output, _ = up.communicate(timeout=60)
    assert up.returncode == 0
    assert f"Prefect: http://127.0.0.1:{port}" in output
    assert output.rstrip().endswith("starts late, when the schedule is served again.")
    psutil.wait_procs(family, timeout=10)
    assert [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE] == []
    assert records.find(scripted.clone, record.name).decision == "promote"

    waits, failed = hook.taken
    assert (waits["type"], waits["data"]["run"]) == ("request.waiting", record.name)
    assert (failed["type"], failed["data"]["run"]) == ("run.failed", None)
    assert failed["data"]["message"].startswith("the tree has uncommitted work (agents/refunds/notes.txt)")
    assert "--agent refunds run --window 'data/inbox/*.jsonl' --clean-only" in failed["data"]["again"]
    assert "told that refunds: run" in output
    assert output.count("[train] 20/20 steps, reward 1.0") == 2, "Prefect's own log prints it no second time"
    assert local_servers.SECRET not in output


def _served(api: str) -> dict[str, str]:
    return {each["name"]: each["id"] for each in post(f"{api}/deployments/filter", {}) or []}


def _with_challenger(scripted: ladder_clone.Scripted) -> list[records.RunRecord]:
    return [one for one in records.load_all(scripted.clone) if one.stages.get("challenger")]


def waited_for(seen: Callable[[], Any], up: Any, seconds: float = 120.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert up.poll() is None, up.communicate()
        if found := seen():
            return found
        time.sleep(0.3)
    raise AssertionError("nothing was seen in time")


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as reply:
            return json.load(reply)
    except OSError:
        return None
