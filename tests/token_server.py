"""A server that speaks vLLM's and SGLang's routes over the in-process engine, and misbehaves as a
test says.

    async with serving(engine) as server:
        server.faults = [status(500), None]      the n-th sampling request gets the n-th; None, and
                                                 all after the last: none
        ... server.url, server.asked

One request is one decode of one row, so what comes out is the in-process engine's own under the
request's seed. vLLM's routes and errors are compared with what a running vLLM 0.32 answered
(tests/sampling/test_vllm_exchanges.py); SGLang's follow its protocol, and were not. One thing is
stricter here: a sampling parameter that nobody knows is an error, where vLLM reads past it.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from aiohttp import web
from aiohttp.test_utils import TestServer

from rft.models import weights
from rft.sampling.engine import Engine, Session

MODEL = "tiny"
Fault = Callable[["TokenServer", web.Request, Any], Awaitable[web.StreamResponse]]
"""Answers instead of the server, which would have said the third."""

VLLM = {
    *(
        "max_tokens",
        "temperature",
        "seed",
        "n",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
    ),
    *("logprobs", "ignore_eos", "stop_token_ids", "skip_special_tokens", "allowed_token_ids"),
}
SGLANG = {
    *("max_new_tokens", "temperature", "sampling_seed", "n", "top_p", "top_k", "min_p"),
    *("stop_token_ids", "skip_special_tokens", "no_stop_trim"),
}


@dataclass
class TokenServer:
    engine: Engine
    without: frozenset[str] = frozenset()
    """Routes that an older version does not have."""
    scale_out: bool = True
    """vLLM was started with --enable-scale-out."""
    takes_adapters: bool = True
    """vLLM was started with VLLM_ALLOW_RUNTIME_LORA_UPDATING."""
    most: int | None = None
    """With more requests at once it dies: all connections end, and nobody answers any more."""
    largest_rank: int = 16
    """vLLM's --max-lora-rank."""
    raw_logprobs: bool = False
    """vLLM's default --logprobs-mode."""
    says_length: str | None = "max_model_len"
    """Under which name its list of models tells the longest context; None: it does not."""
    key: str | None = None
    """The value of Authorization that opens it."""
    faults: list[Fault | None] = field(default_factory=list)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    most_at_once: int = 0
    adapters: dict[str, Engine] = field(default_factory=dict)
    url: str = ""
    is_dead: bool = False
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    _now: int = 0

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._door])
        sampling = {
            "/inference/v1/generate": self.generate,
            "/v1/completions": self.completions,
            "/v1/chat/completions": self.chat,
            "/generate": self.sglang,
        }
        for path, answer in sampling.items():
            if path not in self.without:
                app.router.add_post(path, self._faulty(answer))
        if self.takes_adapters:
            app.router.add_post("/v1/load_lora_adapter", self.load_vllm)
            app.router.add_post("/v1/unload_lora_adapter", self.unload_vllm)
        app.router.add_post("/load_lora_adapter", self.load_sglang)
        app.router.add_post("/unload_lora_adapter", self.unload)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        return app

    @web.middleware
    async def _door(self, request: web.Request, handler: Any) -> web.StreamResponse:
        given = request.headers.get("Authorization")
        if self.key is not None and given != self.key:
            return web.json_response({"error": {"message": f"the key {given} opens nothing"}}, status=401)
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.path, body))
        if self.is_dead:
            return await resets(self, request, None)
        try:
            return await handler(request)
        except Refused as refused:
            return vllm_error(*refused.args)
        except web.HTTPNotFound:
            return web.json_response({"detail": "Not Found"}, status=404)

    def _faulty(self, answer: Callable[[Any], Any]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            fault = self.faults.pop(0) if self.faults else None
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            try:
                await asyncio.sleep(0.001)  # others come in before the decode holds up the loop
                if self.is_dead or (self.most is not None and self._now > self.most):
                    self.is_dead = True
                    return await resets(self, request, None)
                if request.path == "/inference/v1/generate" and not self.scale_out:
                    return vllm_error(403, "PermissionDeniedError", CLOSED)
                reply = answer(await request.json())
                return await fault(self, request, reply) if fault else web.json_response(reply)
            finally:
                self._now -= 1

        return handle

    # -- routes ------------------------------------------------------------------------------------
    def generate(self, body: Any) -> Any:
        for key in ("sampling_params", "token_ids"):
            if not body.get(key):
                raise Refused(400, "Bad Request", f"1 validation error: {key}", f"body.{key}")
        _known(body["sampling_params"], VLLM)
        ids, scores, finish = self._vllm(body["model"], body["token_ids"], body["sampling_params"])
        content = [
            {"token_id": token, "logprob": score, "rank": 1, "top_logprobs": []}
            for token, score in zip(ids, scores, strict=True)
        ]
        choice = {"index": 0, "token_ids": ids, "logprobs": {"content": content}, "finish_reason": finish}
        return {
            "request_id": "r",
            "choices": [choice],
            "prompt_logprobs": None,
            "usage": _usage(body["token_ids"], ids),
        }

    def completions(self, body: Any) -> Any:
        _known(body, VLLM | {"model", "prompt", "return_token_ids", "stream", "cache_salt"})
        self._check_length(len(body["prompt"]))
        ids, scores, finish = self._vllm(body["model"], body["prompt"], body)
        choice = {
            "index": 0,
            "text": self.engine.chat.text(ids),
            "logprobs": {"token_logprobs": scores},
            "finish_reason": finish,
            "stop_reason": ids[-1] if finish == "stop" else None,
        }
        choice |= {"token_ids": ids, "prompt_token_ids": body["prompt"]} if body.get("return_token_ids") else {}
        return {"id": "cmpl-1", "object": "text_completion", "choices": [choice], "usage": _usage(body["prompt"], ids)}

    def chat(self, body: Any) -> Any:
        """The template's view of the messages, and the engine's reading of what it samples after
        them."""
        prompt = self.engine.chat.prompt_ids(body["messages"], body.get("tools", []))
        self._check_length(len(prompt))
        if body["max_tokens"] > self.engine.max_positions:
            raise Refused(400, "BadRequestError", "max_tokens cannot be greater than max_model_len", "max_tokens")
        ids, scores, finish = self._vllm(body["model"], prompt, body)
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        text, reading = self.engine.chat.read(ids, turn)
        calls = [
            {"id": one.call_id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
            for one in reading.calls
        ]
        message = {"role": "assistant", "content": (reading.content if calls else text) or None}
        message |= {"tool_calls": calls} if calls else {}
        choice: dict[str, Any] = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if calls and finish == "stop" else finish,
        }
        reply = {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "usage": _usage(prompt, ids)}
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [{"token": "", "logprob": score} for score in scores]}
        if body.get("return_token_ids"):
            choice["token_ids"] = ids
            reply["prompt_token_ids"] = prompt
        return reply

    def sglang(self, body: Any) -> Any:
        asked = body["sampling_params"]
        _known(asked, SGLANG)
        engine = self.adapters[body["lora_path"]] if "lora_path" in body else self.engine
        ids, scores, finish = self._sample(
            engine, body["input_ids"], asked["max_new_tokens"], asked["temperature"], asked["sampling_seed"]
        )
        reason = {"type": "stop", "matched": ids[-1]} if finish == "stop" else {"type": "length", "length": len(ids)}
        meta = {
            "id": "s",
            "finish_reason": reason,
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(ids),
        }
        meta["output_token_logprobs"] = [[score, token, None] for token, score in zip(ids, scores, strict=True)]
        return {"text": self.engine.chat.text(ids), "output_ids": ids, "meta_info": meta}

    async def health(self, request: web.Request) -> web.StreamResponse:
        return web.Response()

    async def models(self, request: web.Request) -> web.StreamResponse:
        length = {self.says_length: self.engine.max_positions} if self.says_length else {}
        served = [{"id": name, "object": "model", **length} for name in (MODEL, *self.adapters)]
        return await _answer({"object": "list", "data": served})

    async def load_vllm(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body["lora_name"] in self.adapters and not body.get("load_inplace"):
            message = f"The lora adapter '{body['lora_name']}' has already been loaded."
            return vllm_error(400, "InvalidUserInput", message)
        rank = json.loads(_read(Path(body["lora_path"], "adapter_config.json"))).get("r", 0)
        if rank > self.largest_rank:
            message = f"LoRA rank {rank} is greater than max_lora_rank {self.largest_rank}."
            return vllm_error(500, "InternalServerError", message)
        if (why := self._load(body)) is not None:
            return vllm_error(404, "NotFoundError", why)
        return web.Response(text=f"Success: LoRA adapter '{body['lora_name']}' added successfully.")

    async def load_sglang(self, request: web.Request) -> web.StreamResponse:
        why = self._load(await request.json())
        return await _answer(
            {
                "success": why is None,
                "error_message": why or "",
                "loaded_adapters": {name: name for name in self.adapters},
            }
        )

    async def unload_vllm(self, request: web.Request) -> web.StreamResponse:
        name = (await request.json())["lora_name"]
        if self.adapters.pop(name, None) is None:
            return vllm_error(404, "NotFoundError", f"The lora adapter '{name}' cannot be found.")
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def unload(self, request: web.Request) -> web.StreamResponse:
        name = (await request.json())["lora_name"]
        if self.adapters.pop(name, None) is None:
            return web.json_response({"success": False, "error_message": f"{name} is not loaded"}, status=400)
        return await _answer({"success": True})

    # -- sampling ----------------------------------------------------------------------------------
    def _load(self, body: Any) -> str | None:
        folder = Path(body["lora_path"])
        if not (folder / "adapter_model.safetensors").exists():
            return f"No adapter found for {folder}"
        changed = weights.with_weights(copy.deepcopy(self.engine.model), "lora", folder, self.engine.device)
        self.adapters[body["lora_name"]] = Engine(changed, self.engine.chat, self.engine.device)
        return None

    def _vllm(self, name: str, ids: list[int], asked: Any) -> tuple[list[int], list[float], str]:
        if name not in (MODEL, *self.adapters):
            raise Refused(404, "NotFoundError", f"The model `{name}` does not exist.", "model")
        engine = self.adapters.get(name, self.engine)
        if asked["max_tokens"] < 1:
            raise Refused(400, "BadRequestError", "max_tokens must be at least 1", "max_tokens")
        if asked["temperature"] < 0:
            raise Refused(400, "BadRequestError", "temperature must be non-negative", "temperature")
        if max(ids) >= engine.model.config.vocab_size:
            raise Refused(400, "BadRequestError", f"Token id {max(ids)} is out of vocabulary")
        room = engine.max_positions - len(ids)
        if room < 1:
            raise Refused(400, "BadRequestError", "The decoder prompt is longer than the maximum model length")
        if only := asked.get("allowed_token_ids"):
            with torch.inference_mode():
                logits = engine.model(torch.tensor([ids])).logits[0, -1]
            score = torch.log_softmax(logits, -1)[only[0]].item() if self.raw_logprobs else 0.0
            return [only[0]], [score], "stop" if only[0] in asked["stop_token_ids"] else "length"
        return self._sample(engine, ids, min(asked["max_tokens"], room), asked["temperature"], asked["seed"])

    def _check_length(self, length: int) -> None:
        if length > self.engine.max_positions:
            message = f"This model's maximum context length is {self.engine.max_positions} tokens."
            raise Refused(400, "BadRequestError", message, "input_tokens")

    def _sample(
        self, engine: Engine, ids: list[int], max_new: int, temperature: float, seed: int
    ) -> tuple[list[int], list[float], str]:
        if len(ids) + max_new > engine.max_positions:
            asked = f"you asked for {len(ids) + max_new}"
            raise Refused(400, "BadRequestError", f"The context has {engine.max_positions} tokens, {asked}.")
        one = Session(engine, [ids], [[seed]], temperature, len(ids) + max_new).sample([0], max_new)[0]
        return list(one.ids), list(one.logprobs), "stop" if one.ended else "length"


@asynccontextmanager
async def serving(engine: Engine, **settings: Any) -> AsyncIterator[TokenServer]:
    ours = TokenServer(engine, **settings)
    server = TestServer(ours.app())
    await server.start_server()
    try:
        ours.url = str(server.make_url("")).rstrip("/")
        yield ours
    finally:
        ours.closing.set()
        await asyncio.sleep(0.02)  # a connection that is just being accepted would outlive the loop
        await server.close()


class Refused(Exception):
    """Status, kind, words, and sometimes the parameter."""


CLOSED = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."


def vllm_error(status: int, kind: str, message: str, param: str | None = None) -> web.Response:
    return web.json_response(
        {"error": {"message": message, "type": kind, "param": param, "code": status}}, status=status
    )


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else "{}"


def _known(body: Any, names: set[str]) -> None:
    if unknown := sorted(set(body) - names):
        raise Refused(400, "BadRequestError", f"unknown sampling parameters {unknown}")


def _usage(prompt: list[int], ids: list[int]) -> dict[str, int]:
    return {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}


async def _answer(value: Any) -> web.StreamResponse:
    return web.json_response(value)


# -- faults ----------------------------------------------------------------------------------------
def status(code: int, text: str = "sorry", headers: dict[str, str] | None = None) -> Fault:
    async def fault(server: TokenServer, request: web.Request, reply: Any) -> web.StreamResponse:
        return web.Response(text=text, status=code, headers=headers)

    return fault


def writes(text: str) -> Fault:
    """A body that is not what it should be, under a 200."""
    return status(200, text)


async def hangs(server: TokenServer, request: web.Request, reply: Any) -> web.StreamResponse:
    await server.closing.wait()
    return web.Response()


async def resets(server: TokenServer, request: web.Request, reply: Any) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def breaks_off(server: TokenServer, request: web.Request, reply: Any) -> web.StreamResponse:
    """Half of the bytes that were promised."""
    body = json.dumps(reply).encode()
    response = web.StreamResponse(headers={"Content-Length": str(len(body)), "Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    assert request.transport is not None
    request.transport.close()
    return response


async def half_json(server: TokenServer, request: web.Request, reply: Any) -> web.StreamResponse:
    """A whole reply, whose JSON is not."""
    text = json.dumps(reply)
    return web.Response(text=text[: len(text) // 2], content_type="application/json")


async def cuts_off_the_end(server: TokenServer, request: web.Request, reply: Any) -> web.StreamResponse:
    """A vLLM choice without its last token, as servers give it that take the end token for no part
    of the turn."""
    choice = reply["choices"][0]
    choice["token_ids"].pop()
    choice["logprobs"]["content"].pop()
    return web.json_response(reply)


async def says_one_more(server: TokenServer, request: web.Request, reply: Any) -> web.StreamResponse:
    """As if the turn had begun with a token that its reading, and so the next rendering of it,
    leaves out."""
    choice = reply["choices"][0]
    choice["token_ids"].insert(0, choice["token_ids"][0])
    choice["logprobs"]["content"].insert(0, {"logprob": -0.5})
    return web.json_response(reply)


def puts(path: str, value: Any) -> Fault:
    """The reply with another value at a dotted path (`choices.0.finish_reason`); `value` may be a
    function of the true one, or LEFT_OUT."""

    async def fault(server: TokenServer, request: web.Request, reply: Any) -> web.StreamResponse:
        *way, last = [int(name) if name.isdigit() else name for name in path.split(".")]
        inner = reply
        for name in way:
            inner = inner[name]
        if value is LEFT_OUT:
            del inner[last]
        else:
            inner[last] = value(inner.get(last)) if callable(value) else value
        return web.Response(text=json.dumps(reply), content_type="application/json")

    return fault


LEFT_OUT = object()
