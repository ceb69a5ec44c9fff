"""The token routes of vLLM and SGLang: their requests, and their replies, read strictly.

    GenerateRequest -> body of the request      ids, sampling parameters, a seed, the adapter
    reply -> ServerTurn                         ids, one finite log-probability each, whether the
                                                turn ended, the context it was sampled from

    GENERATE      vLLM's tokens in, tokens out: /inference/v1/generate
    COMPLETIONS   vLLM's /v1/completions with ids for a prompt; 0.10.2 and later return ids
    SGLANG        SGLang's /generate

A missing field will be missing in every reply: InfrastructureError, with the remedy. A wrong value
(a NaN, one number too few) may be in one reply only: Malformed, which is retried. Each sampling
filter is named and switched off, because vLLM takes a filter that is not named from the model's
generation_config.json. Its log-probabilities would then be those of another distribution than the
one that training computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rft.errors import InfrastructureError
from rft.wire.contract import Malformed

LOWEST = -9999.0  # what vLLM writes for minus infinity, which JSON does not have
ROUNDING = 1e-3  # a log-probability may come out this much above 0


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One turn: sample at most `max_new` tokens after `ids`. `adapter`: a LoRA's name at the
    server; `salt` keeps its versions' caches apart."""

    ids: tuple[int, ...]
    max_new: int
    temperature: float
    seed: int
    end_ids: tuple[int, ...]
    model: str
    adapter: str = ""
    salt: str = ""
    only_ids: tuple[int, ...] = ()
    """Only these tokens may be sampled (vLLM only)."""


@dataclass(frozen=True, slots=True)
class ServerTurn:
    """The turn that a server sampled."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ended: bool
    context_ids: tuple[int, ...] | None = None
    cached: int = 0
    """Tokens of the context that came from the server's cache, if it says so."""


@dataclass(frozen=True, slots=True)
class Route:
    """An address below the server's, with its request's body and its reply's reader."""

    path: str
    body: Callable[[GenerateRequest], dict[str, Any]]
    read: Callable[[Any, GenerateRequest], ServerTurn]


# -- vLLM ------------------------------------------------------------------------------------------
def _vllm_sampling(request: GenerateRequest) -> dict[str, Any]:
    sampling = {
        "max_tokens": request.max_new,
        "temperature": request.temperature,
        "seed": request.seed,
        "n": 1,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "logprobs": 0,  # that of the sampled token alone
        # Our end tokens only, as in the in-process engine: the model's own list may hold others.
        "ignore_eos": True,
        "stop_token_ids": list(request.end_ids),
        "skip_special_tokens": False,
    }
    return {**sampling, "allowed_token_ids": list(request.only_ids)} if request.only_ids else sampling


def _generate_body(request: GenerateRequest) -> dict[str, Any]:
    body = {
        "model": request.adapter or request.model,
        "token_ids": list(request.ids),
        "sampling_params": _vllm_sampling(request),
        "stream": False,
    }
    return {**body, "cache_salt": request.salt} if request.salt else body


def _read_generate(reply: Any, request: GenerateRequest) -> ServerTurn:
    choice = only_choice(reply)
    content = field(choice, "logprobs.content", list)
    scores = [field(one, "logprob") for one in content]
    ids = field(choice, "token_ids", list)
    # Check that the log-probabilities belong to these ids. Each entry names its token: by
    # `token_id: 17` in vLLM 0.32, and by `token: "token_id:17"` before.
    for entry, token in zip(content, ids, strict=False):
        name = str(entry.get("token", ""))
        is_other = name.startswith("token_id:") and name != f"token_id:{token}"
        if is_other or entry.get("token_id", token) != token:
            raise Malformed("the log-probabilities are those of other tokens than token_ids")
    return _vllm_turn(reply, choice, ids, scores, request)


def _completions_body(request: GenerateRequest) -> dict[str, Any]:
    body = {
        "model": request.adapter or request.model,
        "prompt": list(request.ids),
        **_vllm_sampling(request),
        "return_token_ids": True,
        "stream": False,
    }
    return {**body, "cache_salt": request.salt} if request.salt else body


def _read_completions(reply: Any, request: GenerateRequest) -> ServerTurn:
    choice = only_choice(reply)
    ids, scores = field(choice, "token_ids", list), field(choice, "logprobs.token_logprobs", list)
    return _vllm_turn(reply, choice, ids, scores, request)


def _vllm_turn(
    reply: Any, choice: dict[str, Any], ids: Any, scores: Sequence[Any], request: GenerateRequest
) -> ServerTurn:
    _same_length(reply.get("usage"), request)
    finish, matched = choice.get("finish_reason"), choice.get("stop_reason")
    made = server_turn(ids, scores, finish, matched, choice.get("prompt_token_ids"), request)
    return replace(made, cached=cached_tokens(reply.get("usage")))


# -- SGLang ----------------------------------------------------------------------------------------
def _sglang_body(request: GenerateRequest) -> dict[str, Any]:
    sampling = {
        "max_new_tokens": request.max_new,
        "temperature": request.temperature,
        "sampling_seed": request.seed,  # honored under --enable-deterministic-inference
        "n": 1,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "stop_token_ids": list(request.end_ids),
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }
    body = {
        "input_ids": list(request.ids),
        "sampling_params": sampling,
        "return_logprob": True,
        "logprob_start_len": -1,
        "stream": False,
    }
    return {**body, "lora_path": request.adapter} if request.adapter else body


def _read_sglang(reply: Any, request: GenerateRequest) -> ServerTurn:
    """Read ids from the log-probabilities, (logprob, id, text); `output_ids`, which older versions
    leave out, must agree."""
    pairs = field(reply, "meta_info.output_token_logprobs", list)
    if not all(isinstance(pair, list) and len(pair) >= 2 for pair in pairs):
        raise Malformed("meta_info.output_token_logprobs holds something other than (logprob, id, text)")
    ids = [pair[1] for pair in pairs]
    if reply.get("output_ids") not in (None, ids):
        raise Malformed("output_ids are other tokens than those of meta_info.output_token_logprobs")
    finish = field(reply, "meta_info.finish_reason", dict)
    meta = reply["meta_info"]
    _same_length(meta, request)
    made = server_turn(ids, [pair[0] for pair in pairs], finish.get("type"), finish.get("matched"), None, request)
    return replace(made, cached=within(meta.get("cached_tokens"), meta.get("prompt_tokens")))


GENERATE = Route("/inference/v1/generate", _generate_body, _read_generate)
COMPLETIONS = Route("/v1/completions", _completions_body, _read_completions)
SGLANG = Route("/generate", _sglang_body, _read_sglang)


# -- what every reply must hold --------------------------------------------------------------------
def field(value: Any, path: str, kind: type | None = None) -> Any:
    """Return `value` at a dotted path. A server that leaves a field out will always do so."""
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
        if value is None:
            raise InfrastructureError(
                f"policy.server: the reply has no '{path}'. Set policy.server.kind to what the server is; a token "
                "route needs vLLM from 0.10.2, or SGLang, without a proxy that strips fields."
            )
    if kind is not None and not isinstance(value, kind):
        raise Malformed(f"'{path}' is {type(value).__name__}, expected {kind.__name__}")
    return value


def only_choice(reply: Any) -> dict[str, Any]:
    if isinstance(reply, dict) and reply.get("error"):
        raise Malformed(f"an error in a reply with status 200: {reply['error']}")
    choices = field(reply, "choices", list)
    if len(choices) != 1 or not isinstance(choices[0], dict):
        raise Malformed(f"{len(choices)} choices, expected one")
    return choices[0]


def tokens(ids: Any, scores: Any) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Check sampled ids with one finite log-probability each. Raises Malformed."""
    ids = token_ids(ids)
    if len(scores) != len(ids):
        raise Malformed(f"{len(scores)} log-probabilities for {len(ids)} tokens")
    for score in scores:
        if isinstance(score, bool) or not isinstance(score, int | float) or not LOWEST < score <= ROUNDING:
            raise Malformed(f"a log-probability is {score!r}")
    return ids, tuple(float(score) for score in scores)


def token_ids(ids: Any) -> tuple[int, ...]:
    if not isinstance(ids, list) or not ids or not all(type(token) is int and token >= 0 for token in ids):
        raise Malformed("the token ids are not a list of ids, or it is empty")
    return tuple(ids)


def server_turn(
    ids: Any, scores: Sequence[Any], finish: Any, matched: Any, context_ids: Any, request: GenerateRequest
) -> ServerTurn:
    ids, logprobs = tokens(ids, scores)
    if finish not in ("stop", "length"):
        raise Malformed(f"finish_reason is {finish!r}, expected 'stop' or 'length'")
    if len(ids) > request.max_new:
        raise Malformed(f"{len(ids)} tokens where at most {request.max_new} were asked for")
    if finish == "stop" and ids[-1] not in request.end_ids and matched != ids[-1]:
        raise InfrastructureError(
            f"policy.server: a turn stopped after token {ids[-1]}, which is not an end token of the chat template "
            f"{list(request.end_ids)}: the server cuts the end token off, or stops at strings of its own. Start it "
            "without stop strings, with the model folder's own tokenizer."
        )
    echo = None if context_ids is None else token_ids(context_ids)
    return ServerTurn(ids, logprobs, finish == "stop" or ids[-1] in request.end_ids, echo)


def cached_tokens(usage: Any) -> int:
    """Return the tokens of the prompt that OpenAI's `usage` says came from a cache; 0 if it does
    not say."""
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    return within(details.get("cached_tokens"), usage.get("prompt_tokens")) if isinstance(details, dict) else 0


def within(count: Any, most: Any) -> int:
    """Return a server's count; 0 if it is missing or impossible."""
    return count if type(count) is int and type(most) is int and 0 <= count <= most else 0


def _same_length(usage: Any, request: GenerateRequest) -> None:
    """Raises InfrastructureError if the server's count of tokens shows that it cut the prompt."""
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if count is not None and count != len(request.ids):
        raise InfrastructureError(
            f"policy.server: a context has {len(request.ids)} tokens, but the server took {count}. Switch off its "
            "truncation, or lower rollout.max_tokens."
        )
