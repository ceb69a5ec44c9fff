"""`rft new --from` at the command line: what it says, that nothing is left of a refusal, and that
the commands of docs/from_openai.md measure an agent of an exported job."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import local_servers
import pytest
from aiohttp import web
from test_new import clone as clone
from test_new import rft

from flows import cli
from tasks.runs.clone import Clone
from tests.bridges import jobs

PAGE = Path(__file__).resolve().parents[2] / "docs/from_openai.md"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone in which no run is played."""
    root = tmp_path / "clone"
    root.mkdir()
    made = Clone(root)
    made.git("init", "--quiet")
    (root / ".dvc").mkdir()
    (root / ".dvc/config").write_text("")
    (root / "rft.yaml").write_text("agents: []\n")
    made.git("add", "--all")
    made.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "start")
    monkeypatch.chdir(root)
    return root


def test_a_refused_import_leaves_nothing(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = jobs.exported(tmp_path / "out", jobs.job())
    (tmp_path / "out/file-valid.jsonl").unlink()
    command = ["new", "agents/mine", "--from", f"openai:{path}", "--files", str(tmp_path / "out")]
    assert cli.main(command) == 2
    assert "validation_file is 'file-valid'" in capsys.readouterr().err
    assert not (small / "agents").exists()
    jobs.written([jobs.row(n) for n in range(100, 110)], tmp_path / "out/file-valid.jsonl")
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    assert "Not taken over: job.json: model: " in out
    assert "To fill: agents/mine/params.yaml" in out
    before = {path: path.read_bytes() for path in (small / "agents/mine").rglob("*") if path.is_file()}
    assert cli.main(command) == 2
    assert "agents/mine exists already" in capsys.readouterr().err
    assert all(path.read_bytes() == content for path, content in before.items())


def test_the_doctor_of_an_import_needs_no_margins_to_look_at_the_rest(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = jobs.exported(tmp_path / "out", jobs.job())
    assert cli.main(["new", "agents/mine", "--from", f"openai:{path}", "--files", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    at = ["--agent", "mine", "--set", "policy.model=some/model", "--json"]
    assert cli.main(["doctor", *at, "--only", "configuration", "--only", "gate"]) == 2
    configuration, gate = json.loads(capsys.readouterr().out)["checks"]
    assert (configuration["status"], gate["status"]) == ("warn", "fail"), configuration
    assert configuration["words"].startswith("read strictly; ")
    assert configuration["words"].endswith("traffic.file = data/inbox/mine/*.jsonl is not there")
    assert "params.yaml: 'gate' is missing" in gate["words"]


def test_what_is_for_an_import_alone(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["new", "agents/mine", "--range", "0", "5"]) == 2
    assert "--range is for an import. Add --from KIND:FILE." in capsys.readouterr().err


class Servers:
    """The owner's tool server, and an agent behind a server of chat completions that asks it."""

    def __init__(self) -> None:
        self.keys: set[str | None] = set()

    async def lookup(self, request: web.Request) -> web.Response:
        self.keys.add(request.headers.get("Authorization"))
        asked = json.loads((await request.json())["arguments"])["query"]
        return web.json_response({"output": f"SKU-{int(asked) % 5}"})

    async def complete(self, request: web.Request) -> web.Response:
        last = (await request.json())["messages"][-1]
        reply: dict[str, Any] = {"role": "assistant", "content": last["content"]}
        if last["role"] == "user":
            number = re.findall(r"\d+", str(last["content"]))[-1]
            call = {"name": "find_item", "arguments": json.dumps({"query": number})}
            reply = {"role": "assistant", "content": None}
            reply["tool_calls"] = [{"id": "c1", "type": "function", "function": call}]
        choice = {"index": 0, "message": reply, "finish_reason": "tool_calls" if "tool_calls" in reply else "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        return web.json_response({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage})


@pytest.fixture
def servers() -> Iterator[tuple[Servers, str]]:
    here, app = Servers(), web.Application()

    async def listed(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "NAME", "object": "model"}]})

    app.add_routes([web.post("/v1/chat/completions", here.complete), web.get("/v1/models", listed)])
    app.add_routes([web.post("/find", here.lookup)])
    with local_servers.serving(app) as address:
        yield here, address


@pytest.mark.story
def test_run_here_in_ten_minutes(
    clone: Clone,
    servers: tuple[Servers, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The commands of the page, with the names that stand for the reader's own filled in."""
    here, url = servers
    tools = [{"name": "find_item", "server_url": f"{url}/find", "headers": {"Authorization": "hidden"}}]
    jobs.exported(tmp_path / "out", jobs.job(tools=tools), tools=[jobs.FIND])
    section = PAGE.read_text().split("## Run here in ten minutes")[1].split("\n## ")[0]
    block = re.sub(r"\\\n\s+", "", "\n".join(line[4:] for line in section.splitlines() if line.startswith("    ")))
    new, exported, baseline = block.splitlines()
    assert exported.startswith("export LOOKUP_AUTHORIZATION=")
    new = new.replace("exported/jobs/JOB.json", str(tmp_path / "out/job.json"))
    monkeypatch.chdir(clone.root)
    assert cli.main(shlex.split(new.replace("exported/files", str(tmp_path / "out")))[1:]) == 0
    assert "export FIND_ITEM_AUTHORIZATION=" in capsys.readouterr().out
    monkeypatch.setenv("FIND_ITEM_AUTHORIZATION", "Bearer key-of-the-tool")
    done = rft(clone, *shlex.split(baseline.replace("http://127.0.0.1:8000", url))[1:])
    assert done.returncode == 0, done.stderr
    assert "10 rows, " in done.stdout
    assert "1.00" in done.stdout, "the agent that asks the tool is right"
    assert here.keys == {"Bearer key-of-the-tool"}
    assert "key-of-the-tool" not in done.stdout + done.stderr
