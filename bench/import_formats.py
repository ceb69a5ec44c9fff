"""The figure of the import: does an imported agent get the scores of its original grader?

For each case of bench/import_files.py and bench/import_puzzles.py a folder is written, imported by
`rft.bridges`, and run: the stages examples, policy and baseline, on eight rows, over sockets. The
agent behind chat completions answers right, wrong, in other letters, with JSON or not at all. Then
the original grader is called directly for every rollout of the log. Files that must be refused are
refused in one sentence that names the place.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from aiohttp import web

from bench import import_files as files
from bench import import_puzzles as puzzles
from bench.import_files import Case
from bench.measure import Figure, Part

CASES = [*files.CASES, *puzzles.CASES]
ROOT = Path(__file__).resolve().parents[1]
EXAMPLES, K = 8, 4
KEY = "Bearer a-key"


@dataclass(frozen=True)
class Played:
    """The result of a case: how many scores differ, of how many, and what went wrong."""

    differing: int = 0
    graded: int = 0
    unscored: int = 0
    wrong: str = ""


class Servers:
    """Plays agent, judge, tool and endpoint grader."""

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        last = body["messages"][-1]
        if body["model"] == "judge":
            return web.json_response(_reply(self.judge(str(last["content"]), body)))
        number = int(re.findall(r"\d+", next(_text(one) for one in body["messages"] if one["role"] == "user"))[-1])
        if body.get("tools") and last["role"] != "tool":
            call = {"name": "find_item", "arguments": json.dumps({"query": str(number)})}
            return web.json_response(_reply(None, [{"id": "c", "type": "function", "function": call}]))
        right = files.reference(number)
        of_items = (right, "no", f" {right.lower()} x", json.dumps({"sku": right}), "", "I am sorry .")
        answers = next((case.answers for case in CASES if str(case) == body["model"]), ()) or of_items
        return web.json_response(_reply(answers[(number + int(body.get("seed") or 0)) % len(answers)]))

    def judge(self, told: str, body: Any) -> str:
        """Read the answer out of the block that holds it for the judge (docs/graders.md)."""
        from rft.grading.neutralize import NO_ANSWER

        block = re.search(r"BEGINS\]\n(.*)\n\[DATA", told, re.DOTALL)
        assert block is not None
        score = files.judged("" if block[1] == NO_ANSWER else block[1])
        is_label = "good" in json.dumps(body.get("response_format"))
        return json.dumps({"steps": [], "result": ("good" if score > 5 else "bad") if is_label else score})

    async def find(self, request: web.Request) -> web.Response:
        asked = json.loads((await request.json())["arguments"])["query"]
        return web.json_response({"output": files.reference(int(asked))})

    async def grade(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != KEY:
            return web.json_response({"error": "no key"}, status=401)
        body = await request.json()
        return web.json_response({"score": files.graded_there(body["sample"]["output_text"], body["item"])})


def _text(message: Any) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _reply(text: str | None, calls: Any = None) -> Any:
    message: dict[str, Any] = {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    return {"id": "x", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}


@contextlib.contextmanager
def serving() -> Iterator[str]:
    here, loop, app = Servers(), asyncio.new_event_loop(), web.Application(client_max_size=16_000_000)

    async def models(request: web.Request) -> web.Response:
        names = [{"id": str(case), "object": "model"} for case in CASES]
        return web.json_response({"object": "list", "data": names})

    app.add_routes([web.post("/v1/chat/completions", here.complete), web.get("/v1/models", models)])
    app.add_routes([web.post("/find", here.find), web.post("/grade", here.grade)])
    runner = web.AppRunner(app)
    loop.run_until_complete(runner.setup())
    loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0).start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(runner.cleanup())
        loop.close()


def played(case: Case, url: str) -> Played:
    """Import a case, run its baseline, and grade its rollouts once more."""
    from rft import bridges
    from rft.errors import RftError

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        out = Path("out")
        out.mkdir()
        name = case.write(out)
        for file in out.iterdir():
            file.write_text(file.read_text(encoding="utf-8").replace(files.HERE, url), encoding="utf-8")
        try:
            given = None if case.kind == "promptfoo" else out
            imported = bridges.read(f"{case.kind}:{out / name}", given)
            bridges.write_agent(imported, Path("mine"), "mine", "mine", {})
        except RftError as error:
            return _refusal(case, str(error))
        if case.refused:
            return Played(wrong="was imported, and must be refused")
        secrets = dict.fromkeys(imported.secrets, KEY)
        with patch.dict(os.environ, secrets | {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "sk-none"}):
            return _compared(case, _baseline(url, str(case)))


def _refusal(case: Case, message: str) -> Played:
    if not case.refused:
        return Played(wrong=f"was refused: {message}")
    if case.refused not in message or "\n" in message:
        return Played(wrong=f"was refused in other words: {message}")
    return Played()


def _baseline(url: str, model: str) -> list[Any]:
    from rft import config
    from rft.rollouts import log as rollout_log
    from rft.stages import baseline, examples, policy

    raw = yaml.safe_load(Path("mine/params.yaml").read_text(encoding="utf-8"))
    raw["policy"] = {"server": {"kind": "chat", "url": url, "model": model}}
    raw["baseline"] |= {"examples": min(EXAMPLES, raw["baseline"]["examples"]), "k": K}
    raw["rollout"]["max_unscored_share"] = 1
    raw["rollout"]["refill"] = 0
    raw["gate"] = yaml.safe_load((ROOT / "params.yaml").read_text())["gate"]
    params = config.parse(raw)
    for stage in (examples, policy, baseline):
        stage.run(params)
    return rollout_log.read(Path("data/baseline/rollouts.parquet"))


def _compared(case: Case, log: list[Any]) -> Played:
    from rft import config, recipe

    raw = yaml.safe_load(Path("mine/params.yaml").read_text(encoding="utf-8"))
    loaded = recipe.load(config.Recipe(path="mine"), config.Keys(**raw["examples"].get("keys", {})))
    rows = {one.id: one.row() for one in loaded.examples("validation", 10_000, 0)}
    assert case.direct is not None
    differing = unscored = 0
    for row in log:
        messages = json.loads(row.messages)
        answer = messages[-1]["content"] if messages[-1]["role"] == "assistant" else ""
        direct = case.direct(answer or "", rows[row.example_id])
        unscored += row.score is None
        same = row.score is None if direct is None else row.score is not None and abs(row.score - direct) < 1e-9
        if not same:
            differing += 1
            print(f"  {case}: {answer!r}: {row.score} here, {direct} there", file=sys.stderr)
    return Played(differing, len(log), unscored)


def import_formats(args: list[str]) -> Figure:
    """Scores of imported agents that differ from the original grader's own, of 40 files or more."""
    asked = [case for case in CASES if not args or str(case) in args]
    found: dict[str, Played] = {}
    with serving() as url, contextlib.redirect_stdout(sys.stderr):
        for case in asked:
            try:
                found[str(case)] = one = played(case, url)
            except Exception as error:
                found[str(case)] = one = Played(wrong=f"{type(error).__name__}: {error}")
            print(f"{case}: {one.wrong or f'{one.graded} rollouts, {one.differing} differ'}", file=sys.stderr)
    graded = sum(one.graded for one in found.values())
    wrong = [f"{name}: {one.wrong}" for name, one in found.items() if one.wrong]
    parts = (
        Part("scores that differ", sum(one.differing for one in found.values()), "rollouts", at_most=0, n=graded),
        Part("files", len(found), "files", at_least=1 if args else 40),
        Part("files that came out otherwise than they must", len(wrong), "files", at_most=0, reason="; ".join(wrong)),
        Part("files refused with their place", sum(bool(case.refused) for case in asked), "files"),
        Part("rollouts unscored because the original has no score", sum(one.unscored for one in found.values())),
    )
    return Figure(parts, {"files": [str(case) for case in asked]})


FIGURES = {"import_formats": import_formats}
