"""Servers as other companies wrote them for Agent RFT, reduced to what matters.

Published servers and graders were run against us unmodified, and two of them silently gave wrong
scores. Here each thing that they rely on has a path, so that every measurement tests it:

    own_keys      reads keys of its own from the row, and falls back to part credit when they are
                  missing
    output_json   scores the parsed answer, and 0 when there is none
    stateful      its tool counts calls by trace id and never forgets; its grader reads that count
    zero_to_five  a rating of 0 to 5
    below_zero    -2 to 2: "I don't know" is worth more than a wrong answer
    see_other     answers a POST with 303, and gives the result under another address with GET, as
                  platforms do with slow functions
    own_path      its tool lives at /search, and its grader reads what the tool had found

`/v1/chat/completions` is the agent. A hash of the question and the seed decides whether it looks
something up, and whether its answer is right or wrong, JSON or text. `python -m
bench.foreign_servers` prints its port.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

ROOT = Path(__file__).resolve().parents[1]
CASES = ("own_keys", "output_json", "stateful", "zero_to_five", "below_zero", "see_other", "own_path")
MODEL = "scripted"
LOOKUPS = 10
"""Turns in which the agent may look something up. Once the limit was eight, whatever was
configured, so this is more."""


def answer_to(number: int) -> str:
    return f"SKU-{number:03d}"


class Servers:
    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        """Calls by trace id. Nothing is ever forgotten."""
        self.posts: Counter[str] = Counter()
        self.answers: list[list[str]] = []
        """The question, and each message of the agent's answer: a text, or the arguments of a
        call."""
        self.graded: list[list[str]] = []
        """The case, the row's bytes, and the agent's answer as the grader was told it."""
        self.waiting: dict[str, Any] = {}

    def app(self) -> web.Application:
        served = web.Application(client_max_size=16_000_000)
        served.add_routes(
            [
                web.get("/v1/models", self.models),
                web.post("/v1/chat/completions", self.complete),
                web.post("/search", self.search),
                web.post("/slow/search", self.search_slowly),
                web.post("/grade/{case}", self.grade),
                web.get("/results/{id}", self.result),
                web.get("/record", self.record),
                web.get("/", self.alive),
            ]
        )
        return served

    async def alive(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    # -- the agent ---------------------------------------------------------------------------------
    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 4096}]})

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        messages = body["messages"]
        question = next(message["content"] for message in messages if message["role"] == "user")
        turn = sum(message["role"] == "assistant" for message in messages)
        num_tokens = sum(len(str(message.get("content"))) for message in messages) // 4
        usage = {"prompt_tokens": num_tokens, "completion_tokens": 12, "total_tokens": num_tokens + 12}
        if body.get("max_tokens") == 1:  # this only asks whether the opening fits
            choice = {"index": 0, "message": {"role": "assistant", "content": "I"}, "finish_reason": "length"}
            return web.json_response({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage})
        dice = hashlib.sha256(f"{question} {body.get('seed')} {turn}".encode()).digest()
        number = int(question.split()[-1])
        if turn < LOOKUPS and dice[0] % 6:
            function = {"name": "search", "arguments": json.dumps({"query": f"item {number} look {turn}"})}
            call = {"id": f"call_{turn}", "type": "function", "function": function}
            message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
            self.answers.append([question, function["arguments"]])
        else:
            right = answer_to(number)
            objects = ({"sku": right, "sure": True}, {"sku": right.lower()}, {"sku": answer_to(number + 1)})
            choices = [right, f"It is {right}.", "I don't know", *map(json.dumps, objects)]
            message = {"role": "assistant", "content": choices[dice[1] % len(choices)]}
            self.answers.append([question, message["content"]])
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return web.json_response({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage})

    # -- the tool ----------------------------------------------------------------------------------
    def found(self, body: dict[str, Any]) -> dict[str, Any]:
        self.calls[body["trace_id"]] += 1
        number = int(json.loads(body["arguments"])["query"].split()[1])
        # no call_id, no id, no type: some leave them out
        return {"output": f"{answer_to(number)} costs {body['item']['price']}"}

    async def search(self, request: web.Request) -> web.Response:
        return web.json_response(self.found(await request.json()))

    async def search_slowly(self, request: web.Request) -> web.StreamResponse:
        return self.elsewhere(self.found(await request.json()))

    # -- the graders -------------------------------------------------------------------------------
    async def grade(self, request: web.Request) -> web.StreamResponse:
        case, raw, body = request.match_info["case"], await request.text(), await request.json()
        self.posts[case] += 1
        told = [tool["function"]["arguments"] for tool in body["sample"]["output_tools"]]
        self.graded.append([case, row_in(raw), body["sample"]["output_text"], *told])
        score = getattr(self, case)(body["sample"], body["item"], body["trace_id"])
        return self.elsewhere({"score": score}) if case == "see_other" else web.json_response({"score": score})

    def own_keys(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> float:
        if "reference_answer" not in item:
            return 0.25
        return float(item["reference_answer"] in sample["output_text"]) * item["weight"]

    def output_json(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> float:
        answer = sample["output_json"]
        return (
            0.0
            if not isinstance(answer, dict)
            else 0.5 * (answer.get("sku") == item["reference_answer"]) + 0.5 * ("sure" in answer)
        )

    def stateful(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> float:
        return 1.0 / (1 + self.calls[trace_id]) * (item["reference_answer"] in sample["output_text"])

    def zero_to_five(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> float:
        text, right = sample["output_text"], item["reference_answer"]
        return 5.0 if text == right else 4.0 if right in text else 2.5 if right.lower() in text else 0.0

    def below_zero(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> float:
        text = sample["output_text"]
        return 0.0 if text == "I don't know" else 2.0 if item["reference_answer"] in text else -2.0

    def see_other(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> float:
        return self.own_keys(sample, item, trace_id) / (1 + self.calls[trace_id])

    def own_path(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> float:
        read = [message["content"] for message in sample["trajectory"] if message["role"] == "tool"]
        seen = any(f"costs {item['price']}" in text for text in read)
        return 0.5 * seen + 0.5 * (item["reference_answer"] in sample["output_text"])

    # -- 303 ---------------------------------------------------------------------------------------
    def elsewhere(self, result: Any) -> web.StreamResponse:
        name = f"r{len(self.waiting)}"
        self.waiting[name] = [result, 2]
        return web.Response(status=303, headers={"Location": f"/results/{name}"})

    async def result(self, request: web.Request) -> web.StreamResponse:
        """Return the result, but not at the first request: then redirect once more."""
        kept = self.waiting[request.match_info["id"]]
        kept[1] -= 1
        await asyncio.sleep(0.001)
        return web.Response(status=303, headers={"Location": request.path}) if kept[1] else web.json_response(kept[0])

    # -- for the measurement -----------------------------------------------------------------------
    async def record(self, request: web.Request) -> web.Response:
        """Return what was said and graded since the last call."""
        found = {"posts": dict(self.posts), "said": self.answers, "graded": self.graded}
        self.posts, self.answers, self.graded = Counter(), [], []
        return web.json_response(found)


def row_in(raw: str) -> str:
    """Return the bytes of `item` in a request, found by their brackets. Parsed and written again,
    they would prove nothing."""
    start = raw.index('"item": ') + len('"item": ')
    decoder = json.JSONDecoder()
    return raw[start : decoder.raw_decode(raw, start)[1]]


@contextmanager
def serving() -> Iterator[str]:
    """Serve in a process of its own, and yield the address."""
    command = [sys.executable, "-m", "bench.foreign_servers"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


async def main() -> None:
    runner = web.AppRunner(Servers().app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
