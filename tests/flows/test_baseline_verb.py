"""`rft baseline` says how good an agent is from rows, tools and a grader: without traffic, a ledger
or a gate, with or without a recipe, and leaves no run behind."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ladder_clone
import local_servers
import pytest
import yaml
from aiohttp import web
from test_new import clone as clone
from test_new import rft

from flows import cli
from tasks.ledger import book
from tasks.runs import records
from tasks.runs.clone import Clone

CAPITALS = {"France": "Paris", "Italy": "Rome", "Peru": "Lima", "Mali": "Bamako", "Oman": "Muscat", "Cuba": "Havana"}
GRADER = {
    "type": "string_check",
    "name": "right",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
}
TOOLS = f'''"""A tool."""

CAPITALS = {CAPITALS!r}


def capital(country: str) -> str:
    """Return the capital of a country."""
    return CAPITALS[country]


TOOLS = [capital]
'''


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ladder_clone.Scripted:
    made = ladder_clone.make(tmp_path)
    monkeypatch.chdir(made.clone.root)
    return made


def files(folder: Path) -> list[str]:
    """Write rows, a grader and tools, and return the options that name them."""
    rows = (
        {"messages": [{"role": "user", "content": f"What is the capital of {country}"}], "answer": city}
        for country, city in CAPITALS.items()
    )
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "grader.json").write_text(json.dumps(GRADER))
    (folder / "tools.py").write_text(TOOLS)
    return [*("--rows", str(folder / "rows.jsonl")), *("--grader", str(folder / "grader.json"))]


@pytest.mark.slow
def test_the_agent_of_the_settings_without_traffic_or_margins(
    scripted: ladder_clone.Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    path = scripted.clone.root / "params.yaml"
    raw = yaml.safe_load(path.read_text())
    del raw["gate"], raw["traffic"]
    path.write_text(yaml.safe_dump(raw))
    assert cli.main(["baseline", "--worst", "1"]) == 0
    out = capsys.readouterr().out
    for phrase in ("95 % intervals", "reward", "best of", "The worst rollouts", "ready: "):
        assert phrase in out
    assert out.count("explanation") <= 1, "one of them"
    assert [line.split()[0] for line in (scripted.script / "ran").read_text().splitlines()] == ["policy", "baseline"]
    assert (scripted.clone.root / "data/baseline/rollouts.parquet").exists()
    assert records.load_all(scripted.clone) == []
    assert book.read(scripted.clone).state.number == 0


@pytest.mark.slow
def test_a_second_time_comes_from_the_cache(scripted: ladder_clone.Scripted) -> None:
    assert cli.main(["baseline"]) == 0
    assert cli.main(["baseline"]) == 0
    assert len((scripted.script / "ran").read_text().splitlines()) == 2


MINE = ["--rows", "rows.jsonl", "--grader", "grader.json"]
CHAT = [
    part
    for key, value in {"kind": "chat", "url": "http://127.0.0.1:9", "model": "m"}.items()
    for part in ("--set", f"policy.server.{key}={value}")
]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tools", "tools.py"], "--tools is for an agent without a recipe. Add --grader FILE"),
        (["--grader", "grader.json"], "so where are the rows? Add --rows FILE."),
        (["--rows", "rows.jsonl", "--grader", "none.json"], "--grader none.json: cannot be read"),
        (["--rows", "rows.jsonl", "--grader", "grader.json"], "there is no policy. Name a server"),
        (["--rows", "none.jsonl"], "none.jsonl: cannot be read"),
        (["--rows", "tools.py"], "tools.py:1: not JSON"),
        (["--rows", "empty"], "empty: holds no examples. A row is a JSON object with `messages`, one a line."),
        (["--rows", "twice"], "twice:2: id 'a' was met before, at "),
        (["--rows", "twice"], "twice:1. Remove one, or give each row an id of its own: under `id`, or under the key"),
        (["--rows", "rows.jsonl", "--set", "examples.keys.target=ansr"], "Did you mean 'answer'?"),
        (["--rows", "rows.jsonl", "--set", "baseline.ks=3"], "baseline"),
        ([*MINE, "--set", "baseline.k=1"], "--set: 'baseline.k' = 1"),
        (
            ["--rows", "rows.jsonl", "--grader", "other.json", *CHAT],
            "the grader's {{item.anser}} names nothing: no row of",
        ),
        (["--rows", "rows.jsonl", "--grader", "broken.json"], "broken.json: line 2: not JSON"),
        ([*MINE, "--tools", "broken.py"], "--tools broken.py: line 1: '(' was never closed. Fix that line."),
        ([*MINE, "--tools", "binary.py"], "--tools binary.py: is not Python: "),
        (
            [*MINE, *CHAT, "--set", "tools.endpoints=[{name: capital, server_url: 'http://127.0.0.1:9'}]"],
            "capital has no parameters, and no row brings its schema",
        ),
    ],
)
def test_what_cannot_be_measured(
    scripted: ladder_clone.Scripted,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    """Files are named from where the user is, not from the clone's root."""
    place = scripted.clone.root / "mine"
    place.mkdir()
    files(place)
    (place / "empty").write_text("")
    (place / "other.json").write_text(json.dumps(GRADER).replace("item.answer", "item.anser"))
    (place / "broken.json").write_text('{"type":\n')
    (place / "broken.py").write_text("def capital(\n")
    (place / "binary.py").write_bytes(b"a = 1\0")
    (place / "twice").write_text(2 * '{"id": "a", "messages": [{"role": "user", "content": "q"}]}\n')
    monkeypatch.chdir(place)
    assert cli.main(["baseline", *options]) == 2
    assert message in capsys.readouterr().err
    assert not (scripted.script / "ran").exists()


@pytest.fixture
def chat() -> Iterator[str]:
    """A server of chat completions. Its agent asks the tool now and then, and else says Rome. It
    never gets to the end about Oman."""

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        messages: list[dict[str, Any]] = body["messages"]
        rng = random.Random(json.dumps([messages, body.get("seed")]))
        last, finish = messages[-1], "stop"
        reply: dict[str, Any] = {"role": "assistant", "content": last["content"] if last["role"] == "tool" else "Rome"}
        if str(last["content"]).endswith("Oman"):
            finish = "length"
        elif last["role"] == "user" and rng.random() < 0.5:
            arguments = json.dumps({"country": last["content"].split()[-1]})
            call = {"id": "c1", "type": "function", "function": {"name": "capital", "arguments": arguments}}
            reply, finish = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
        choice = {"index": 0, "message": reply, "finish_reason": finish}
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        return web.json_response({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage})

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "small", "object": "model"}]})

    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", complete), web.get("/v1/models", models)])
    with local_servers.serving(app) as address:
        yield address


@pytest.mark.story
def test_rows_a_grader_and_tools_are_enough(
    clone: Clone, chat: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real engine, a real server of chat completions, and no recipe."""
    server = {"kind": "chat", "url": chat, "model": "small"}
    settings = [f"policy.server.{key}={value}" for key, value in server.items()] + ["baseline.k=4"]
    options = [*files(tmp_path), "--tools", str(tmp_path / "tools.py")]
    done = rft(clone, "baseline", *options, *(part for one in settings for part in ("--set", one)))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "6 rows, 4 rollouts each at temperature 1" in done.stdout
    assert "ready: mean score 0." in done.stdout
    assert "explanation not eq: 'Rome' and '" in done.stdout
    assert "4 of 24 rollouts were cut, and graded as they stand: a turn may have 1024 tokens" in done.stdout
    assert "1 call" in done.stdout or "0 calls" in done.stdout
    assert records.load_all(clone) == []
    assert clone.git("status", "--porcelain") == "", "nothing was left in the user's tree"

    def at_hand(*arguments: str) -> tuple[int, str, str]:
        return cli.main(arguments), *capsys.readouterr()

    monkeypatch.chdir(clone.root)
    (tmp_path / "beside.py").write_text(f"CAPITALS = {CAPITALS!r}\n")
    table, imported = f"CAPITALS = {CAPITALS!r}\n", "from beside import CAPITALS\n"
    (tmp_path / "tools.py").write_text(TOOLS.replace(table, imported))
    code, again, errors = at_hand("baseline", *options, *(part for one in settings for part in ("--set", one)))
    assert code == 0, errors
    assert re.findall(r"reward +\d", done.stdout)[:1] == re.findall(r"reward +\d", again)[:1] != []
    (tmp_path / "beside.py").unlink()
    code, _, errors = at_hand("baseline", *options, *(part for one in settings for part in ("--set", one)))
    assert f"{tmp_path / 'tools.py'}: line 3: raised ModuleNotFoundError: No module named 'beside'" in errors
    assert (code, "Traceback" in errors) == (2, False)
    (tmp_path / "wrong.py").write_text("")
    wrong = [*options[:-1], str(tmp_path / "wrong.py"), *(part for one in settings for part in ("--set", one))]
    code, _, errors = at_hand("baseline", *wrong)
    assert (code, f"stage baseline: {tmp_path / 'wrong.py'}: has no TOOLS" in errors) == (2, True)
    code, shown, errors = at_hand(
        "rollouts", "--here", "--stage", "baseline", "--where", "num_tool_calls > 0", "-n", "2"
    )
    assert "2 of " in shown, errors


def test_an_agent_behind_a_chat_endpoint_waits_for_no_pytorch() -> None:
    """Stage policy writes down where it is; to load PyTorch and Transformers took 5 s of its 6."""
    code = "import sys, rft.stages.policy; sys.exit('torch' in sys.modules)"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    )
