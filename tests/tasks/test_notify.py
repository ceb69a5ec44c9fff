"""Who is told, over real sockets: a webhook whose receiver verifies the signature, a mail server
with STARTTLS and a login. Servers that are dead, silent, or say no. And when: a request that waits,
a scheduled run that failed."""

from __future__ import annotations

import json
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ladder_clone
import pytest
import yaml
from local_servers import PASSWORD, SECRET, Hooks, Mailbox, certificate, dead_port, hooks, mailbox

from flows import unattended
from rft import config, doctor, notices, secrets
from rft.errors import ConfigError, UserError
from tasks import notify, stage_runner
from tasks.ledger import book
from tasks.promotion import registration
from tasks.runs import records
from tests import tiny_recipe

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/notify.md").read_text(encoding="utf-8")
EVENT = notify.RequestWaiting(
    key="0f31",
    model="icd10",
    run="20260309-0300-4f1c",
    candidate="challenger",
    gain={"value": 0.081, "low": 0.052, "high": 0.11},
    approve="rft approve 20260309-0300-4f1c --reason TEXT",
    clone="trainer-1:/srv/agent",
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    monkeypatch.setenv("MAIL_PASSWORD", PASSWORD)
    monkeypatch.setattr(notices, "PAUSES_S", (0.01, 0.02, 0.03))


@pytest.fixture
def receiver() -> Iterator[Hooks]:
    with hooks() as found:
        yield found


@pytest.fixture
def post() -> Iterator[Mailbox]:
    with mailbox() as found:
        yield found


def parsed(**channels: Any) -> config.Notify:
    return config.parse(channels, "params.yaml", config.Notify)


def webhook(url: str) -> dict[str, Any]:
    return {"url": url, "signing_secret": "env:HOOK_SECRET"}


def mail(port: int, **more: Any) -> dict[str, Any]:
    given = {"to": ["ada@example.com"], "from": "agent@example.com", "server": f"127.0.0.1:{port}", "tls": "none"}
    return given | more


def told(settings: config.Notify, tmp_path: Path, event: notify.Event = EVENT) -> str:
    """What the console and the log say."""
    log = tmp_path / "logs" / "notify.log"
    notify.tell(settings, event, log)
    return "".join(line.split(" ", 1)[1] for line in log.read_text().splitlines(True)) if log.exists() else ""


# -- the webhook -----------------------------------------------------------------------------------
def test_a_message_is_signed_and_a_further_try_is_the_same_message(
    receiver: Hooks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    receiver.answers = [503, 503]
    output = told(parsed(webhook=webhook(receiver.url)), tmp_path)
    host = receiver.url.removeprefix("http://").removesuffix("/hook")
    assert output == f"[notify] told that icd10: run {EVENT.run} waits for approval: run.notify.webhook ({host})\n"
    assert capsys.readouterr().out == output
    assert len(receiver.ids) == 3
    assert len({*receiver.ids}) == 1
    [body] = receiver.taken
    assert body["data"]["approve"] == EVENT.approve
    told(parsed(webhook=webhook(receiver.url)), tmp_path)
    assert len({*receiver.ids}) == 1, "the same event, told twice, can be dropped"


def test_the_message_on_the_page_is_the_one_that_is_sent(receiver: Hooks, tmp_path: Path) -> None:
    found = re.search(r"<!-- sent -->\n```json\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    shown = json.loads(found[1])
    told(parsed(webhook=webhook(receiver.url)), tmp_path)
    assert receiver.taken == [shown | {"timestamp": receiver.taken[0]["timestamp"]}]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", receiver.taken[0]["timestamp"])


@pytest.mark.parametrize(
    ("status", "tries", "message"),
    [
        (400, 1, "HTTP 400"),
        (302, 1, "HTTP 302: the webhook has moved"),
        (429, 4, "HTTP 429 (tried 4 times)"),
        (500, 4, "HTTP 500 (tried 4 times)"),
    ],
)
def test_a_receiver_that_says_no(receiver: Hooks, tmp_path: Path, status: int, tries: int, message: str) -> None:
    receiver.answers = [status] * 4
    output = told(parsed(webhook=webhook(receiver.url)), tmp_path)
    assert output.startswith(f"warning: not told that icd10: run {EVENT.run} waits for approval: run.notify.webhook (")
    assert message in output
    assert len(receiver.ids) == tries
    assert receiver.taken == []


def test_another_secret_is_refused_by_the_receiver_and_never_shown(
    receiver: Hooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOOK_SECRET", "whsec_b3RoZXIgc2VjcmV0IGVudGlyZWx5")
    assert "HTTP 401" in told(parsed(webhook=webhook(receiver.url)), tmp_path)
    monkeypatch.setenv("HOOK_SECRET", "not-a-webhook-secret")
    assert "run.notify.webhook.signing_secret: a Standard-Webhooks secret is whsec_" in told(
        parsed(webhook=webhook(receiver.url)), tmp_path
    )
    monkeypatch.delenv("HOOK_SECRET")
    assert "HOOK_SECRET, which is not set" in told(parsed(webhook=webhook(receiver.url)), tmp_path)
    shown = capsys.readouterr()
    assert "b3RoZXIg" not in shown.out + shown.err
    assert "not-a-webhook-secret" not in shown.out + shown.err


def test_an_address_that_is_secret_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = dead_port()
    monkeypatch.setenv("HOOK_URL", f"http://127.0.0.1:{port}/canary-4711")
    output = told(parsed(webhook=webhook("env:HOOK_URL")), tmp_path)
    assert f"run.notify.webhook (127.0.0.1:{port}): no connection: " in output
    assert "canary" not in output
    monkeypatch.setenv("HOOK_URL", "canary-4711")
    output = told(parsed(webhook=webhook("env:HOOK_URL")), tmp_path)
    assert "run.notify.webhook.url: write an address such as https://" in output
    assert "canary" not in output


# -- mail ------------------------------------------------------------------------------------------
def test_a_mail_over_starttls_with_a_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = certificate(tmp_path / "server.pem")
    with mailbox(pem) as post:
        login = {"tls": "starttls", "user": "agent", "password": "env:MAIL_PASSWORD"}
        settings = parsed(mail=mail(post.port, to=["ada@example.com", "bob@example.com"], **login))
        assert "certificate verify failed" in told(settings, tmp_path), "its maker is not known yet"
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
        assert "warning" not in told(settings, tmp_path).splitlines()[-1]
        post.answers = [f"554 who logs in with {PASSWORD} is not welcome"]
        assert "554 who logs in with [secret MAIL_PASSWORD] is not welcome" in told(settings, tmp_path)
        monkeypatch.setenv("MAIL_PASSWORD", "canary password")
        output = told(settings, tmp_path)
        assert "the server said 535" in output
        assert "canary" not in output
        assert post.logins[0] == (b"agent", PASSWORD.encode())
    [message] = post.taken
    assert post.to == [["ada@example.com", "bob@example.com"]]
    assert (message["subject"], message["from"]) == (
        f"[agent-rft] icd10: run {EVENT.run} waits for approval",
        "agent@example.com",
    )
    text = message.get_content()
    assert "Gain       +0.081 [+0.052, +0.110] over the champion" in text
    assert f"Approve    {EVENT.approve}" in text
    assert message["auto-submitted"] == "auto-generated"
    assert message["date"].datetime is not None
    assert re.fullmatch(r"<[0-9a-f-]{36}@example\.com>", message["message-id"])
    assert socket.gethostname() not in message["message-id"]


def test_a_mail_is_sent_again_as_the_same_mail(post: Mailbox, tmp_path: Path) -> None:
    post.answers = ["451 try later"]
    assert "warning" not in told(parsed(mail=mail(post.port)), tmp_path)
    told(parsed(mail=mail(post.port)), tmp_path)
    assert len({message["message-id"] for message in post.taken}) == 1
    post.answers = ["554 we do not want it"]
    assert "the server said 554 we do not want it" in told(parsed(mail=mail(post.port)), tmp_path)


def test_a_mailbox_that_is_not_there_is_named_and_the_others_are_told(post: Mailbox, tmp_path: Path) -> None:
    output = told(parsed(mail=mail(post.port, to=["nobody@example.com", "ada@example.com"])), tmp_path)
    refused = "the server refused nobody@example.com (550 no such mailbox)"
    assert f"the server accepted the message for the other recipients, but {refused}" in output
    assert post.to == [["ada@example.com"]]
    assert "the server refused nobody@example.com (550" in told(
        parsed(mail=mail(post.port, to=["nobody@example.com"])), tmp_path
    )


def test_a_name_with_a_line_break_adds_no_header_and_one_that_is_no_text_is_sent(
    receiver: Hooks, post: Mailbox, tmp_path: Path
) -> None:
    odd = "untracked: \x00 \udcff.txt"
    event = notify.RunFailed(key="1", run="a\nBcc: eve@example.com", message=odd, again="rft run", clone="h:/x")
    assert "warning" not in told(parsed(webhook=webhook(receiver.url), mail=mail(post.port)), tmp_path, event)
    [message] = post.taken
    assert receiver.taken[0]["data"]["message"] == "untracked: \x00 ?.txt"
    assert message["bcc"] is None
    assert "a Bcc: eve@example.com failed" in message["subject"]


# -- servers that do not answer --------------------------------------------------------------------
def test_dead_servers_are_named_each_and_nobody_waits_long(tmp_path: Path) -> None:
    first, second = dead_port(), dead_port()
    began = time.monotonic()
    output = told(parsed(webhook=webhook(f"http://127.0.0.1:{first}/x"), mail=mail(second)), tmp_path)
    assert time.monotonic() - began < 3
    assert f"run.notify.webhook (127.0.0.1:{first}): no connection: " in output
    assert f"run.notify.mail (127.0.0.1:{second}): no connection: " in output
    assert output.count("(tried 4 times)") == 2


def test_servers_that_take_the_connection_and_say_nothing_end_at_the_deadline(
    receiver: Hooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "DEADLINE_S", 0.5)
    receiver.silent.set()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        began = time.monotonic()
        output = told(parsed(webhook=webhook(receiver.url), mail=mail(mute.getsockname()[1])), tmp_path)
        assert time.monotonic() - began < 2
    assert output.count("no answer") == output.count("warning: ") == 2


def test_one_that_drips_is_cut_off_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, so no time-out of a socket strikes."""
    monkeypatch.setattr(notices, "DEADLINE_S", 0.5)
    over = threading.Event()

    def drip(listening: socket.socket) -> None:
        client, _ = listening.accept()
        with client:
            client.sendall(b"HTTP/1.1 200 OK\r\n")
            while not over.wait(0.05):
                try:
                    client.sendall(b"x: y\r\n")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, args=(listening,))
        thread.start()
        began = time.monotonic()
        output = told(parsed(webhook=webhook(f"http://127.0.0.1:{listening.getsockname()[1]}/x")), tmp_path)
        assert time.monotonic() - began < 2
        over.set()
        thread.join()
    assert "no answer within 0.5 s; it is not known whether it arrived" in output


def test_a_log_that_cannot_be_written_fails_nothing(
    receiver: Hooks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    notify.tell(parsed(webhook=webhook(receiver.url)), EVENT, tmp_path / "logs" / "notify.log")
    assert capsys.readouterr().err == ""
    assert len(receiver.taken) == 1


# -- settings --------------------------------------------------------------------------------------
def test_the_settings_on_the_page_are_settings(tmp_path: Path) -> None:
    found = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    params = tiny_recipe.params(tmp_path, **yaml.safe_load(found[1]))
    notice = params.run.notify
    assert notice.webhook is not None
    assert notice.mail is not None
    assert (notice.mail.from_, notice.mail.host, notice.mail.port) == ("agent@example.com", "smtp.example.com", 587)
    assert "run" not in params.identity(), "a new address is the same run"
    silent = tiny_recipe.params(tmp_path).run.notify
    assert (silent.webhook, silent.mail) == (None, None)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"webhook": {"url": "https://h/x"}}, "'run.notify.webhook.signing_secret' is missing"),
        ({"webhook": {"url": "https://h/x", "signing_secret": "whsec_canary"}}, "signing_secret' holds a key"),
        ({"webhook": webhook("https://ada:canary@h/x")}, "url' holds a user name or password"),
        ({"webhook": webhook("ftp://h/canary")}, "url': write an address such as https://"),
        ({"webhook": webhook("https://h:99999/canary")}, "url': write an address"),
        ({"mail": mail(25, user="ada", password="canary")}, "password' holds a key"),
        ({"mail": mail(25, user="ada")}, "'run.notify.mail': set both user and password, or neither"),
        ({"mail": mail(25, to=[])}, "'run.notify.mail.to'"),
        ({"mail": mail(25, to=["Ada <ada@example.com>"])}, "'run.notify.mail.to.0' ="),
        ({"mail": mail(25, server="smtp://ada:canary@h")}, "server': write HOST or HOST:PORT"),
        ({"mail": mail(25, server="h:0")}, "server': write HOST or HOST:PORT"),
        ({"mail": mail(25, server="h", user="ada", password="env:MAIL_PASSWORD")}, "would cross the network in clear"),
        ({"mail": mail(25, form="ada@example.com")}, "unknown key 'run.notify.mail.form'. Did you mean 'from'?"),
    ],
)
def test_wrong_settings_are_refused_before_a_run(tmp_path: Path, section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        tiny_recipe.params(tmp_path, run={"notify": section})
    assert message in str(refused.value)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    ("server", "tls", "host", "port"),
    [
        ("h", "starttls", "h", 587),
        ("h", "tls", "h", 465),
        ("h:2525", "none", "h", 2525),
        ("[::1]:26", "none", "::1", 26),
    ],
)
def test_the_port_follows_from_tls(server: str, tls: str, host: str, port: int) -> None:
    section = parsed(mail=mail(0, server=server, tls=tls)).mail
    assert section is not None
    assert (section.host, section.port) == (host, port)


# -- the doctor ------------------------------------------------------------------------------------
def checked(tmp_path: Path, section: config.Notify) -> doctor.Finding:
    base = tiny_recipe.params(tmp_path)
    params = base.model_copy(update={"run": base.run.model_copy(update={"notify": section})})
    [*_, found] = doctor.examine(lambda: params, ["notify"])
    return found


def test_the_doctor_knocks_at_both_doors_and_sends_nothing(
    receiver: Hooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checked(tmp_path, config.Notify()).words == "nobody is told of a waiting request: run.notify is not set"
    monkeypatch.setenv("SSL_CERT_FILE", str(pem := certificate(tmp_path / "server.pem")))
    with mailbox(pem) as post:
        section = mail(post.port, tls="starttls", user="agent", password="env:MAIL_PASSWORD")
        found = checked(tmp_path, parsed(webhook=webhook(receiver.url), mail=section))
        assert (found.status, found.words.count("answers")) == ("ok", 2)
        assert (receiver.ids, post.taken) == ([], [])
        monkeypatch.setenv("MAIL_PASSWORD", "canary password")
        dead = dead_port()
        found = checked(tmp_path, parsed(webhook=webhook(f"https://127.0.0.1:{dead}/x"), mail=section))
    assert (found.status, found.infrastructure) == ("warn", False)
    assert f"run.notify.webhook (127.0.0.1:{dead}): no connection" in found.words
    assert "the server said 535" in found.words
    assert "canary" not in found.words
    assert "docs/notify.md" in found.remedy


# -- when ------------------------------------------------------------------------------------------
@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ladder_clone.Scripted:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    made = ladder_clone.make(tmp_path / "a")
    monkeypatch.chdir(made.root)
    return made


def flow_run(**parameters: Any) -> Any:
    return SimpleNamespace(id="f-1", deployment_id="d-1", parameters=parameters)


def ended(error: BaseException | None, message: str = "") -> Any:
    return SimpleNamespace(data=error, message=message)


@pytest.mark.slow
def test_a_stage_is_named_and_what_it_said_is_not(
    receiver: Hooks, scripted: ladder_clone.Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error of a stage that reads traffic may quote it."""
    scripted.set_params(run={"notify": {"webhook": webhook(receiver.url)}})
    (scripted.script / "fail-traffic").write_text('messages[0] is {"role": "user", "content": "canary"}')
    params = config.load("params.yaml")
    with (
        pytest.raises(stage_runner.repro.StageFailed) as failed,
        stage_runner.recorded(scripted.clone, params, None, False, "f-1") as run,
    ):
        stage_runner.drive_stage(run, "traffic", config.BaseModel, lambda report: {})  # type: ignore[arg-type]
    assert receiver.taken == [], "at a terminal this is seen"
    unattended.failed(None, flow_run(), ended(failed.value))
    [body] = receiver.taken
    assert (body["type"], body["data"]["run"]) == ("run.failed", run.name)
    assert body["data"]["message"] == "stage traffic failed (exit code 3: a server, a disk or a process failed)."
    assert body["data"]["again"] == run.record.again
    assert body["data"]["log"] == str(scripted.clone.log(run.name, "traffic"))
    assert "canary" in Path(body["data"]["log"]).read_text()
    assert "canary" not in json.dumps(receiver.taken)
    assert "told that scheduled run" in scripted.clone.log(run.name, "notify").read_text()


def test_a_failure_before_there_was_a_run_and_settings_that_cannot_be_read(
    receiver: Hooks, scripted: ladder_clone.Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = scripted.root / "params.yaml"
    scripted.set_params(run={"notify": {"webhook": webhook(receiver.url)}})
    whole = params.read_text()
    unattended.remember({"": config.load(params)})
    asked = flow_run(window="data/inbox/*.jsonl", params="params.yaml", clean_only=True)
    dirty = UserError("the tree has uncommitted work (a.py), and a scheduled run takes none along. Commit it.")
    for text in (whole, whole.replace("gate:", "gaet:"), f"<<<<<<< HEAD\n{whole}"):
        params.write_text(text)
        receiver.taken.clear()
        unattended.failed(None, asked, ended(dirty))
        [body] = receiver.taken
        assert (body["data"]["run"], body["data"]["message"]) == (None, str(dirty))
        assert body["data"]["again"] == "rft run --window 'data/inbox/*.jsonl' --clean-only"
    receiver.taken.clear()
    unattended.failed(None, asked, ended(KeyError("canary")))
    unattended.failed(None, asked, ended(SystemExit(1)))  # Prefect's, when the console is gone
    unattended.failed(None, asked, ended(None, "Process exited with status code: -9.\nMore of it"))
    messages = [body["data"]["message"] for body in receiver.taken]
    assert messages == [
        "KeyError, which is a bug.",
        "SystemExit, which is a bug.",
        "Process exited with status code: -9.",
    ]
    receiver.taken.clear()
    unattended.failed(None, asked, ended(KeyboardInterrupt()))
    asked.deployment_id = None
    unattended.failed(None, asked, ended(dirty))
    assert receiver.taken == []


def test_a_file_that_holds_the_password_of_the_mail_server_refuses_the_run(scripted: ladder_clone.Scripted) -> None:
    scripted.set_params(run={"notify": {"mail": mail(25, user="agent", password="env:MAIL_PASSWORD")}})
    (scripted.root / "notes.txt").write_text(f"the password is {PASSWORD}")
    with pytest.raises(UserError, match=r"notes\.txt holds the value of the secret MAIL_PASSWORD"):
        ladder_clone.run_ladder(scripted)


@pytest.mark.slow
def test_a_request_that_waits_is_told_once_it_can_be_approved(receiver: Hooks, scripted: ladder_clone.Scripted) -> None:
    params = config.load("params.yaml")
    params = params.model_copy(
        update={"run": params.run.model_copy(update={"notify": parsed(webhook=webhook(receiver.url))})}
    )
    with stage_runner.recorded(scripted.clone, params, None, False, "f-1") as run:
        shutil.copytree(scripted.script / "data", run.tree / "data", dirs_exist_ok=True)
        registration.register(run, lambda _: None)
        stage_runner.repro.dvc(run.tree, "commit", "--force", "--quiet")
        run.update(decision="promote", candidate="challenger", gain={"value": 0.1, "low": None, "high": None})
        assert receiver.taken == []
    [body] = receiver.taken
    assert body["type"] == "request.waiting"
    assert (body["data"]["model"], body["data"]["run"]) == ("tiny", run.name)
    assert body["data"]["approve"] == run.record.approve
    assert run.record.approve.startswith(f"rft approve {run.name} ")
    assert records.find(scripted.clone, run.name).revision
    assert not secrets.holds(json.dumps(receiver.taken))
    assert body["data"]["expires"] == book.read(scripted.clone).state.requests[3].act.expires
    with stage_runner.recorded(scripted.clone, params, None, False, "f-2") as run:
        run.update(decision="reject")
    assert len(receiver.taken) == 1
