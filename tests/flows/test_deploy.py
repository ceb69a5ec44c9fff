"""`rft up`: a real server, a real schedule, a run that starts from it, and an end that leaves no
process."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import signal
import socket
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


def test_the_schedule_of_this_repository_and_wrong_ones(repository: Path, tmp_path: Path) -> None:
    assert deploy.schedule(repository).clean_only, "a schedule takes no uncommitted work along"
    (tmp_path / "infra").mkdir()
    file = tmp_path / "infra/schedule.yaml"
    for text, message in (
        ("name: x\n", "infra/schedule.yaml: 'cron' is missing"),
        ("name: x\ncron: every monday\n", "infra/schedule.yaml: cron 'every monday'"),
        ("name: x\ncron: 0 3 * * 1\ntimezone: Mars/Olympus\n", "timezone 'Mars/Olympus'"),
        ("name: x\ncron: 0 3 * * 1\nwindows: a\n", "unknown key 'windows'. Did you mean 'window'"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError) as refused:
            deploy.schedule(tmp_path)
        assert message in str(refused.value)


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
def test_a_schedule_is_served_and_a_run_starts_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack
) -> None:
    """Those who are told of its end and of its failure are (docs/notify.md)."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = ladder_clone.make(tmp_path / "a")
    (scripted.root / "infra").mkdir(exist_ok=True)
    (scripted.root / "infra/schedule.yaml").write_text("name: weekly\ncron: 0 3 * * 1\nwindow: data/inbox/*.jsonl\n")
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
        scripted.start("up", "--port", str(port), PREFECT_HOME=str(tmp_path / "prefect")) as up,
        contextlib.ExitStack() as after,
    ):
        after.callback(up.kill)  # where something below fails, it would be waited for
        api = f"http://127.0.0.1:{port}/api"
        [deployment] = waited_for(lambda: post(f"{api}/deployments/filter", {}), up)
        planned = waited_for(lambda: post(f"{api}/flow_runs/filter", {"sort": "EXPECTED_START_TIME_ASC"}), up)
        assert {run["state_type"] for run in planned} == {"SCHEDULED"}
        assert planned[0]["parameters"]["window"] == "data/inbox/*.jsonl"
        waited_for(lambda: post(f"{api}/deployments/{deployment['id']}/create_flow_run", {}), up)
        [record] = waited_for(
            lambda: [one for one in records.load_all(scripted.clone) if one.stages.get("challenger")], up
        )
        family = psutil.Process(up.pid).children(recursive=True)
        [named] = [run for run in post(f"{api}/flow_runs/filter", {}) if record.name in run["name"]]
        assert (named["name"], named["id"]) == (f"retrain {record.name}", record.flow_run_id)
        told = post(f"{api}/logs/filter", {"logs": {"flow_run_id": {"any_": [named["id"]]}}})
        assert "[train] 1/20 steps, reward 0.05" in [line["message"] for line in told], "while it goes on"
        second = scripted.rft("up", "--port", str(port))
        assert second.returncode == 3
        assert f"port {port} is taken" in second.stderr
        waited_for(lambda: records.find(scripted.clone, record.name).revision, up)
        waited_for(lambda: hook.taken, up)
        (scripted.root / "notes.txt").write_text("not committed")
        waited_for(lambda: post(f"{api}/deployments/{deployment['id']}/create_flow_run", {}), up)
        waited_for(lambda: hook.taken[1:], up)
        (scripted.root / "notes.txt").unlink()
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
    assert failed["data"]["message"].startswith("the tree has uncommitted work (notes.txt)")
    assert "run --window 'data/inbox/*.jsonl' --clean-only" in failed["data"]["again"]
    assert "told that tiny: run" in output
    assert output.count("[train] 20/20 steps, reward 1.0") == 1, "Prefect's own log prints it no second time"
    assert local_servers.SECRET not in output


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
