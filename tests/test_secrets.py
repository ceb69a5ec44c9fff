"""Secrets in the text that comes in and goes out: every form that a program repeats one in, and
every way out of a process."""

from __future__ import annotations

import base64
import html
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft import config, progress, recipe, reports, secrets
from rft.errors import ConfigError
from tasks.display import tracking
from tasks.runs.console import Lines
from tests import tiny_recipe

KEY = 'canary-7f/3+a"1é~'
BEARER = f"Bearer {KEY}"


@pytest.fixture(autouse=True)
def _own_registry() -> Iterator[None]:
    secrets.forget()
    yield
    secrets.forget()


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TOOL_KEY", BEARER)
    assert config.secret("env:TOOL_KEY") == BEARER
    return KEY


# -- forms -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "form",
    [
        BEARER,
        KEY,
        quote(KEY, safe=""),
        quote(KEY, safe="").lower(),
        quote(BEARER),
        quote_plus(BEARER),
        html.escape(KEY),
        KEY.encode().hex(),
        json.dumps(KEY)[1:-1],
        json.dumps(KEY, ensure_ascii=False)[1:-1],
        base64.b64encode(BEARER.encode()).decode(),
        base64.urlsafe_b64encode(KEY.encode()).decode(),
    ],
)
def test_each_form_is_named_instead(key: str, form: str) -> None:
    assert secrets.redact(f"401: no such key <{form}>.") == "401: no such key <[secret TOOL_KEY]>."


@given(before=st.binary(max_size=8), after=st.binary(max_size=8), secret=st.binary(min_size=6, max_size=40))
def test_no_alignment_hides_it_in_base64(before: bytes, after: bytes, secret: bytes) -> None:
    secrets.forget()
    secrets.add("K", secret.hex())
    whole = base64.b64encode(before + secret.hex().encode() + after).decode()
    assert "[secret K]" in secrets.redact(whole)


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=6, max_size=12), min_size=1, max_size=4), st.data())
def test_nothing_of_any_secret_is_left_and_twice_is_as_once(values: list[str], data: st.DataObject) -> None:
    secrets.forget()
    for number, secret in enumerate(values):
        secrets.add(f"S{number}", secret)
    parts = data.draw(st.lists(st.sampled_from([*values, *map(quote, values), "[secret S0]", "a", " ", "["])))
    clean = secrets.redact("".join(parts))
    assert secrets.redact(clean) == clean
    marks = [f"[secret S{number}]" for number in range(len(values))]
    rest = clean
    for mark in marks:
        rest = rest.replace(mark, "\0")
    assert [secret for secret in values if secret in rest] == []


@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        ("Basic " + base64.b64encode(b"ada:hunter2-hunter2").decode(), "hunter2-hunter2"),
        ("session=abcdefgh; theme=dark", "abcdefgh"),
        ("whsec_" + base64.b64encode(b"0123456789").decode(), base64.b64encode(b"0123456789").decode()),
    ],
)
def test_a_server_quotes_a_part_of_a_header(value: str, quoted: str) -> None:
    secrets.add("K", value)
    assert quoted not in secrets.redact(f"no such user: {quoted}")


def test_short_parts_and_schemes_are_ordinary_words() -> None:
    secrets.add("K", "Bearer sk-1234567")
    secrets.add("C", "session=abcdefgh; theme=dark")
    text = "a Bearer token on a dark theme"
    assert secrets.redact(text) is text


def test_without_secrets_the_same_object_comes_back() -> None:
    value = {"a": ["b", "c" * 7]}
    assert secrets.redact_json(value) is value
    assert secrets.redact(value["a"][1]) is value["a"][1]
    secrets.add("K", "k-1234567")
    assert secrets.redact(value["a"][1]) is value["a"][1]


def test_json_is_cleared_in_keys_and_values_and_numbers_stay(key: str) -> None:
    given = {KEY: [1, None, {"x": f"<{KEY}>"}], "n": 0.5}
    clean = {"[secret TOOL_KEY]": [1, None, {"x": "<[secret TOOL_KEY]>"}], "n": 0.5}
    assert secrets.redact_json(given) == clean
    for ascii_only in (True, False):
        assert json.loads(secrets.dumps(given, ensure_ascii=ascii_only)) == clean
    assert secrets.dumps({"b": 1, "a": 2}, sort_keys=True) == '{"a": 2, "b": 1}'


def test_the_newest_value_of_a_name_counts() -> None:
    secrets.add("K", "first-value")
    secrets.add("K", "second-value")
    assert secrets.redact("first-value second-value") == "first-value [secret K]"


def test_the_order_of_learning_does_not_show() -> None:
    secrets.add("B", "shared-value")
    secrets.add("A", "shared-value")
    assert secrets.redact("shared-value") == "[secret A]"


# -- settings --------------------------------------------------------------------------------------
def test_a_file_that_names_a_variable_makes_its_value_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values = {
        name: f"{name.lower()}-0123456789" for name in ("TOOLS", "ENDPOINT", "MCP", "MCP_ENV", "LIFE", "SIGN", "POLICY")
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    params = tiny_recipe.params(
        tmp_path,
        tools={
            "headers": {"Authorization": "env:TOOLS"},
            "endpoints": [{"name": "e", "server_url": "http://h/e", "headers": {"X-Api-Key": "env:ENDPOINT"}}],
            "mcp": [
                {"name": "m", "command": ["m"], "env": {"TOKEN": "env:MCP_ENV"}},
                {"name": "n", "url": "http://h", "headers": {"X": "env:MCP"}},
            ],
            "lifecycle": {"headers": {"Cookie": "env:LIFE"}},
            "signing_secret": "env:SIGN",
        },
        policy={
            "server": {"kind": "chat", "url": "http://h", "model": "m", "headers": {"Authorization": "env:POLICY"}}
        },
    )
    assert secrets.redact(" ".join(values.values())) == " ".join(f"[secret {name}]" for name in values)
    assert not any(secrets.holds(shown) for shown in (repr(params), params.model_dump_json(), str(params.tools)))


@pytest.mark.parametrize(
    ("tools", "key"),
    [
        ({"headers": {"Authorization": "Bearer sk-canary"}}, "tools.headers"),
        ({"headers": {"authorization": "canary"}}, "tools.headers"),
        ({"headers": {"X-API-Key": "canary"}}, "tools.headers"),
        ({"headers": {"X-Functions-Key": "canary"}}, "tools.headers"),
        ({"headers": {"x-hub-signature": "canary"}}, "tools.headers"),
        ({"headers": {"X-AccessToken": "canary"}}, "tools.headers"),
        ({"headers": {"X-Amz-Security-Token": "canary"}}, "tools.headers"),
        ({"headers": {"Cookie": "s=canary"}}, "tools.headers"),
        ({"headers": {"X-Custom": "Bearer canary"}}, "tools.headers"),
        ({"headers": {"Authorization": "Bearer env:TOOL_KEY canary"}}, "tools.headers"),
        (
            {"endpoints": [{"name": "e", "server_url": "http://h", "headers": {"X-Auth-Token": "canary"}}]},
            "tools.endpoints.0.headers",
        ),
        ({"mcp": [{"name": "m", "command": ["m"], "env": {"GITHUB_TOKEN": "canary"}}]}, "tools.mcp.0.env"),
        ({"lifecycle": {"headers": {"Cookie": "canary"}}}, "tools.lifecycle.headers"),
        ({"signing_secret": "whsec_canary"}, "tools.signing_secret"),
        ({"server_url": "http://ada:canary@h", "version": "1"}, "tools.server_url"),
    ],
)
def test_a_key_in_the_file_is_refused_without_being_repeated(
    tools: dict[str, object], key: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        tiny_recipe.params(tmp_path, tools=tools)
    assert f"params.yaml: '{key}" in str(refused.value)
    assert "env:" in str(refused.value), "it says what to do"
    assert "canary" not in str(refused.value)


def test_headers_that_are_no_keys_are_welcome(tmp_path: Path) -> None:
    headers = {
        "X-Tenant": "ward 7",
        "Accept": "application/json",
        "Authorization": "env:TOOL_KEY",
        "Idempotency-Key": "a",
    }
    assert tiny_recipe.params(tmp_path, tools={"headers": headers}).tools.headers == headers


def test_a_key_in_grader_json_is_refused_without_being_repeated(tmp_path: Path) -> None:
    made = tiny_recipe.make(tmp_path)
    (made / "grader.json").write_text(json.dumps({**tiny_recipe.GRADER, "headers": {"X-Functions-Key": "canary"}}))
    with pytest.raises(ConfigError, match=r"grader\.json: 'headers\.X-Functions-Key' holds a key") as refused:
        _ = recipe.load(tiny_recipe.params(made).recipe).grader
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    "tools",
    [
        {"headers": {"X-Tenant": "canary"}, "server_url": "http://h"},  # an error of the whole section
        {"headers": {"X-Tenant": ["canary"]}},
        {"headers": "canary"},
        {"heders": {"Authorization": "canary"}},
    ],
)
def test_other_errors_repeat_no_header(tools: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"params\.yaml: .*'tools") as refused:
        tiny_recipe.params(tmp_path, tools=tools)
    assert "canary" not in str(refused.value)


def test_a_line_that_is_not_yaml_is_named_not_shown(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("tools:\n  headers:\n    Authorization: Bearer: canary\n")
    with pytest.raises(
        ConfigError, match=r"params\.yaml: not YAML: line 3, column 26: mapping values are not allowed here\."
    ) as refused:
        config.load(tmp_path / "params.yaml")
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    ("value", "message"), [("k-123", r"KEY has fewer than 6 characters"), ("k-1234567\n", r"KEY holds a line break")]
)
def test_a_value_that_cannot_be_kept_secret_is_refused(
    monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    monkeypatch.setenv("KEY", value)
    with pytest.raises(ConfigError, match=message) as refused:
        config.secret("env:KEY")
    assert value.strip() not in str(refused.value)


# -- ways out --------------------------------------------------------------------------------------
def test_what_is_written_and_said_holds_none(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports.write_json({"a": KEY}, tmp_path / "one.json")
    reports.write_jsonl([{"a": BEARER}, {"a": 1}], tmp_path / "two.jsonl")
    assert json.loads((tmp_path / "one.json").read_text()) == {"a": "[secret TOOL_KEY]"}
    assert (tmp_path / "two.jsonl").read_text() == '{"a": "[secret TOOL_KEY]"}\n{"a": 1}\n'
    progress.print_line("train", KEY)
    progress.Reporter("train", 1)(1, BEARER)
    Lines().print_line(KEY)
    assert capsys.readouterr().out == "[train] [secret TOOL_KEY]\n[train] 1/1 [secret TOOL_KEY]\n[secret TOOL_KEY]\n"


def test_mlflow_is_shown_variables_not_values() -> None:
    raw = {
        "tools": {
            "headers": {"X-Tenant": "ward 7", "Authorization": "env:TOOL_KEY"},
            "endpoints": [{"name": "e", "headers": {"X-Tenant": "ward 7", "X-Api-Key": "env:K"}}],
            "mcp": [{"name": "m", "env": {"HOME": "/var/ada"}}],
            "lifecycle": {"headers": {}, "start_url": None},
        }
    }
    assert dict(tracking.flatten(raw)) == {
        "tools.headers.X-Tenant": "(not shown)",
        "tools.headers.Authorization": "env:TOOL_KEY",
        "tools.endpoints": '[{"name": "e", "headers": {"X-Tenant": "(not shown)", "X-Api-Key": "env:K"}}]',
        "tools.mcp": '[{"name": "m", "env": {"HOME": "(not shown)"}}]',
        "tools.lifecycle.headers": "{}",
        "tools.lifecycle.start_url": "null",
    }


PROCESS = """
import asyncio, logging, sys, threading, warnings
handler = logging.FileHandler("log.txt")                     # made before the guard, and not a stream of the process
logging.getLogger("aiohttp.client").addHandler(handler)
logging.getLogger("aiohttp.client").propagate = False
logging.basicConfig(level=logging.INFO)
from rft import config, secrets
secrets.guard()
secrets.guard()
key = config.secret("env:TOOL_KEY")
print("printed", key)
sys.stderr.writelines(["written ", key, chr(10)])
warnings.warn(key)
logging.getLogger("httpx").info("HTTP Request: %s %s", "POST", key)
logging.getLogger("odd").info("does not fit %s %s", key)
try:
    raise ConnectionError(key)
except ConnectionError:
    logging.getLogger("aiohttp.client").exception("failed with %r", key)
thread = threading.Thread(target=lambda: {}[key], name="worker")
thread.start()
thread.join()
async def forgotten():
    asyncio.create_task(fail())
    await asyncio.sleep(0.01)
async def fail():
    raise ValueError(key)
asyncio.run(forgotten())
raise RuntimeError(f"a bug with {key}")
"""


def test_all_that_a_guarded_process_says(tmp_path: Path, repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROCESS],
        cwd=tmp_path,
        env={"PYTHONPATH": str(repository), "TOOL_KEY": BEARER, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 1
    log = (tmp_path / "log.txt").read_text()
    assert "failed with '[secret TOOL_KEY]'" in log
    assert "ConnectionError: [secret TOOL_KEY]" in log
    assert done.stdout == "printed [secret TOOL_KEY]\n"
    for start in (
        "written [",
        "UserWarning: [",
        "POST [",
        "KeyError: '[",
        "ValueError: [",
        "RuntimeError: a bug with [",
    ):
        assert f"{start}secret TOOL_KEY]" in done.stderr
    for text in (done.stdout, done.stderr, log):
        assert KEY not in text
        assert "canary" not in text


def test_a_guard_keeps_the_stream_and_quiet_records_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    before = logging.getLogRecordFactory()
    try:
        secrets.guard()
        assert sys.stdout.isatty() is False
        assert sys.stdout.write(KEY) == len(KEY)
        record = logging.getLogger("x").makeRecord("x", logging.INFO, "f", 1, "%s and %s", ("a", "b"), None)
        assert (record.msg, record.args) == ("%s and %s", ("a", "b"))
    finally:
        logging.setLogRecordFactory(before)
    assert capsys.readouterr().out == "[secret TOOL_KEY]"
