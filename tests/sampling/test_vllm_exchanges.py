"""What a real vLLM 0.32 (CPU build, SmolLM2-135M-Instruct) answered, and the same asked of the
tests' server: equal statuses, kinds of errors and fields, and our client reads both.

tests/golden/vllm-0.32.json holds the exchanges: name, path, body, status, reply. Long lists of ids
in a body are written as {"times": N, "id": ID}, long texts as {"times": N, "text": TEXT}.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rft.sampling.engine import Engine
from rft.sampling.remote import context
from rft.sampling.remote.routes import COMPLETIONS, GENERATE, GenerateRequest
from tests import small_policy, tiny_recipe
from tests.token_server import MODEL, serving

HELD: dict[str, Any] = {
    one["name"]: one for one in json.loads((Path(__file__).parents[1] / "golden/vllm-0.32.json").read_text())
}
CLOSED = {"generate, closed": {"scale_out": False}, "load an adapter, not allowed": {"takes_adapters": False}}
PROMPT = [1, 2, 3, 4, 5]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine(*small_policy.build(tiny_recipe.make(tmp_path_factory.mktemp("recipe"))), small_policy.device())


def asked(engine: Engine, name: str) -> tuple[str, Any]:
    """Put the recorded request in terms of the tests' server: its model, its tokens, its limit."""
    held = HELD[name]
    body = json.loads(json.dumps(held["body"]))
    if body is None:
        return held["path"], None
    if body.get("model") == "smol":
        body["model"] = MODEL
    for key in ("token_ids", "prompt"):
        if isinstance(body.get(key), dict):
            body[key] = [5] * (engine.max_positions + body[key]["times"] - 2048)
        elif body.get(key) and max(body[key]) < 50_000:
            body[key] = PROMPT
    for message in body.get("messages", ()):
        if isinstance(message["content"], dict):
            message["content"] = message["content"]["text"] * message["content"]["times"]
    for part in (body, body.get("sampling_params", {})):
        if "stop_token_ids" in part:
            part["stop_token_ids"] = [engine.chat.end_id]
        if "allowed_token_ids" in part:
            part["allowed_token_ids"] = [engine.chat.end_id]
    return held["path"], body


async def answer(engine: Engine, name: str) -> tuple[int, Any]:
    path, body = asked(engine, name)
    async with serving(engine, **CLOSED.get(name, {})) as server, aiohttp.ClientSession() as session:
        method = "GET" if body is None else "POST"
        async with session.request(method, server.url + path, json=body) as reply:
            return reply.status, json.loads(await reply.read())


def fields(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield each field with its kind; of a list, those of its first entry."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from fields(inner, f"{where}.{name}")
    elif isinstance(value, list):
        yield where, "list"
        yield from fields(value[0], f"{where}[]") if value else ()
    else:
        yield where, "null" if value is None else "number" if isinstance(value, int | float) else "text"


@pytest.mark.parametrize("name", HELD)
def test_the_tests_server_answers_as_a_real_one_did(engine: Engine, name: str):
    real = HELD[name]
    status, reply = asyncio.run(answer(engine, name))
    assert status == real["status"], reply
    if status != 200:
        for field in ("type", "param", "code"):
            assert reply.get("error", {}).get(field) == real["reply"].get("error", {}).get(field), field
        return
    known = dict(fields(real["reply"]))
    differ = {(name, kind) for name, kind in fields(reply) if known.get(name) not in (kind, "null") and kind != "null"}
    assert differ == set(), "a real one has no such field"
    assert {name for name, _ in fields(reply)} <= known.keys()


def test_our_client_reads_what_a_real_one_answered():
    for name, route in (("generate", GENERATE), ("completions", COMPLETIONS)):
        held = HELD[name]
        ids = held["body"].get("token_ids") or held["body"]["prompt"]
        turn = route.read(held["reply"], GenerateRequest(tuple(ids), 6, 0.0, 1, (2,), "smol"))
        assert len(turn.ids) == len(turn.logprobs) == 6
        assert all(score < 0 for score in turn.logprobs)
    models = HELD["models"]["reply"]["data"]
    assert [context._length(model) for model in models] == [2048]
