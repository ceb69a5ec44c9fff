"""A policy that a server samples, tokens in and tokens out: vLLM and SGLang.

A dialogue keeps its ids, append-only, and sends the whole context each turn: the server's prefix
cache makes that cheap, and nothing is ever encoded twice. The server returns ids with their
log-probabilities; the chat reads the text from them as it does for the in-process engine. If the
server echoes the context, the loop compares it with ours, and a difference counts as a fork.

Each request has a seed, made of the rollout's seed and the turn's number, so that a server that
honors seeds repeats itself. A temperature of 0 is greedy. Log-probabilities must be those of the
distribution that was sampled from. SGLang's are; vLLM's are only with `--logprobs-mode
processed_logprobs`, which `check` finds out.

A server that was started again has forgotten the adapter that `update` gave it. The first turn that
is refused for this reason loads it again. A server that does not answer `update` gets the adapter
before its next turn. Turns fail until then, and no turn is sampled with other weights.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from rft import config, files, progress
from rft.chat.renderer import Chat
from rft.errors import ConfigError, InfrastructureError, UserError
from rft.rollouts.policy import PolicyFailed
from rft.sampling.remote import context
from rft.sampling.remote.connection import Connection, Refused, parsed
from rft.sampling.remote.routes import COMPLETIONS, GENERATE, SGLANG, GenerateRequest, Route, ServerTurn
from rft.types import Opening, Sampled, ToolCall, ToolResult, Usage
from rft.wire.contract import Malformed

log = logging.getLogger("rft.sampling.remote")

LONG_RESULTS = 10_000  # characters
NO_MODEL = "does not exist"
"""How vLLM refuses a model or adapter that it does not have; a route that it lacks is `Not
Found`."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """What `update` was given: a LoRA folder, the hash of its bytes, its version, and its name at
    the server."""

    folder: Path
    sha256: str
    version: int
    name: str


class TokenPolicy:
    """`end_ids`: the tokens that end an assistant turn. `async with` closes it; so does the end of
    the event loop."""

    blocks = False
    trainable = True

    def __init__(self, section: config.PolicyServer, chat: Chat, end_ids: Sequence[int]) -> None:
        self.chat, self.end_ids = chat, tuple(end_ids)
        self.longest: int | None = None
        """The server's longest context, once `fetch_context_limit` has asked."""
        self.version: int | None = None
        """The version of `update`'s adapter; None: the weights that the server was started with."""
        self._section, self._connection = section, Connection(section)
        self._routes: list[Route] = [SGLANG] if section.kind == "sglang" else [GENERATE, COMPLETIONS]
        self._adapter: Adapter | None = None
        """The adapter that all turns are sampled with."""
        self._is_missing = False
        """Whether the server lacks the adapter: it did not answer, or was started again."""
        self._loading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._connection.close()

    def limit(self, configured: int | None) -> int:
        """Return the limit of a whole context. Raises ConfigError for one that the server does not
        take, or if neither it nor params.yaml sets one."""
        if (found := context.limit(configured, self.longest)) is None:
            raise context.unknown(self._section)
        return found

    async def check_openings(self, openings: Sequence[Opening], max_context_tokens: int | None) -> None:
        self.chat.opening_ids(openings, self.limit(max_context_tokens))

    def open(
        self,
        openings: Sequence[Opening],
        seeds: Sequence[Sequence[int]],
        temperature: float,
        max_context_tokens: int | None,
    ) -> list[TokenDialogue]:
        """Open a dialogue per rollout. The prompt states an opening's response_format: a constraint
        on sampled tokens would hold for every turn, and forbid tool calls."""
        limit = self.limit(max_context_tokens)
        prompts = self.chat.opening_ids(openings, limit)
        return [TokenDialogue(self, ids, seed, temperature, limit) for ids, seed in zip(prompts, seeds, strict=True)]

    async def turn(self, request: GenerateRequest, deadline_s: float) -> ServerTurn:
        """Sample a turn. Raises PolicyFailed if this turn failed, InfrastructureError if all others
        would fail too."""
        ends = time.monotonic() + deadline_s
        if self._is_missing:
            await self._reload_adapter(deadline_s)
        try:
            return await self._sampled(request, ends - time.monotonic())
        except Refused as refused:
            if not self._has_forgotten(refused, request):
                raise
        self._is_missing = True
        await self._reload_adapter(ends - time.monotonic())
        return await self._sampled(request, ends - time.monotonic())

    async def _sampled(self, request: GenerateRequest, deadline_s: float) -> ServerTurn:
        route = self._routes[0]

        def read(body: bytes) -> ServerTurn:
            return route.read(parsed(body), request)

        try:
            turn = await self._connection.post(route.path, route.body(request), deadline_s, read)
        except Refused as refused:
            is_no_route = refused.status == 404 and NO_MODEL not in refused.body
            if not is_no_route or route is not GENERATE or COMPLETIONS not in self._routes:
                raise
            if self._routes[0] is route:
                self._routes = [COMPLETIONS]
                log.warning("%s has no %s: asking %s", self._connection.url, GENERATE.path, COMPLETIONS.path)
            return await self._sampled(request, deadline_s)
        self._routes = [route]
        return turn

    def build_request(
        self, ids: Sequence[int], max_new: int, temperature: float, seed: int, only_ids: tuple[int, ...] = ()
    ) -> GenerateRequest:
        adapter, is_vllm = self._adapter, self._section.kind == "vllm"
        name = salt = ""
        if adapter is not None:
            name = adapter.name if is_vllm else _versioned(adapter)
            # vLLM's prefix cache knows an adapter by name and path. Without the bytes' hash in the
            # salt, it would reuse keys and values of the weights that were there before.
            salt = adapter.sha256 if is_vllm else ""
        return GenerateRequest(
            ids=tuple(ids),
            max_new=max_new,
            temperature=temperature,
            seed=seed,
            end_ids=self.end_ids,
            model=self._section.model,
            adapter=name,
            salt=salt,
            only_ids=only_ids,
        )

    # -- before and between batches ----------------------------------------------------------------
    async def fetch_context_limit(self, max_context_tokens: int | None) -> None:
        """Ask once which models are served and how long a context ours takes. Raises ConfigError if
        no rollout could succeed."""
        served = await context.served(self._connection)
        if self._section.model not in served:
            raise ConfigError(
                f"params.yaml: policy.server.model = {self._section.model!r}, but {self._connection.url} serves "
                f"{sorted(served)}. Set it to one of them."
            )
        self.longest = served[self._section.model]
        self.limit(max_context_tokens)

    async def check(self, max_context_tokens: int | None, temperature: float) -> None:
        """Do `fetch_context_limit`, and check that log-probabilities come after the temperature, as
        training needs them."""
        await self.fetch_context_limit(max_context_tokens)
        if self._section.kind == "vllm" and temperature not in (0.0, 1.0):
            await self._check_logprobs(temperature)

    async def _check_logprobs(self, temperature: float) -> None:
        """Allow one token only. Its probability is 1, unless the server takes it before that mask,
        and so before the temperature too. Then at least one of the two tokens that we try has a
        probability below 1."""
        end = self.end_ids[0]
        try:
            turns = [
                await self.turn(self.build_request((end,), 1, temperature, 0, (token,)), self._section.timeout_s)
                for token in (end, 0 if end else 1)
            ]
        except PolicyFailed as failure:
            raise InfrastructureError(str(failure)) from None
        if min(one.logprobs[0] for one in turns) < -0.01:
            raise ConfigError(
                f"The vLLM server at {self._connection.url} reports log-probabilities before temperature "
                f"{temperature:g}: training would compare them with another distribution. Start it with "
                "--logprobs-mode processed_logprobs, or set the temperature to 1."
            )

    async def update(self, folder: Path, version: int, name: str = "agent-rft") -> None:
        """Sample with this LoRA adapter, a folder that the server can read, from the next turn on.
        Call it between batches. Policies that share a server need different names."""
        if not (folder / "adapter_config.json").exists():
            raise UserError(
                f"{folder}: holds no adapter_config.json. A server takes LoRA adapters only (train.weights: lora)."
            )
        adapter = Adapter(folder.resolve(), files.tree_sha256(folder), version, name)
        is_missing = False
        try:
            await self._load_adapter(adapter)
        except Refused as refused:
            raise self._not_taken(adapter, refused) from None
        except PolicyFailed as failure:
            if await self._connection.is_up():  # vLLM answers 500 to an adapter that it cannot take
                raise self._not_taken(adapter, failure) from None
            progress.print_line(
                "server", f"{failure}. It gets the adapter of version {version} when it is back; turns wait"
            )
            is_missing = True
        self._adapter, self.version, self._is_missing = adapter, version, is_missing

    async def unload_adapter(self) -> None:
        """Take the adapter of `update` away from the server. Raises InfrastructureError."""
        if (adapter := self._adapter) is None:
            return
        self._adapter, self.version, self._is_missing = None, None, False
        is_vllm = self._section.kind == "vllm"
        path = "/v1/unload_lora_adapter" if is_vllm else "/unload_lora_adapter"
        try:
            await self._post_command(path, {"lora_name": adapter.name if is_vllm else _versioned(adapter)})
        except PolicyFailed as failure:
            raise InfrastructureError(str(failure)) from None

    async def is_up(self) -> bool:
        """Return whether the server says that it is well."""
        return await self._connection.is_up()

    async def _load_adapter(self, adapter: Adapter) -> None:
        """Load this adapter. Raises Refused or PolicyFailed."""
        if self._section.kind == "sglang":
            await self._swap_sglang(adapter)
        else:
            body = {"lora_name": adapter.name, "lora_path": str(adapter.folder), "load_inplace": True}
            await self._post_command("/v1/load_lora_adapter", body)

    def _has_forgotten(self, refused: Refused, request: GenerateRequest) -> bool:
        """Tell whether the server lost the adapter that it had, because it was started again."""
        return (
            self._adapter is not None and bool(request.adapter) and refused.status == 404 and NO_MODEL in refused.body
        )

    async def _reload_adapter(self, deadline_s: float) -> None:
        """Give the server its adapter again, once for all turns that wait. Raises PolicyFailed if
        it does not answer, InfrastructureError if it refuses."""
        if self._loading is None or self._loading.done():
            self._loading = asyncio.create_task(self._load_missing())
            self._loading.add_done_callback(_take_exception)  # perhaps nobody waits for it any more
        try:
            async with asyncio.timeout(deadline_s):
                await asyncio.shield(self._loading)
        except TimeoutError:
            raise PolicyFailed(
                f"policy.server: {self._connection.url} did not take its adapter again within {deadline_s:g} s"
            ) from None

    async def _load_missing(self) -> None:
        adapter = self._adapter
        if adapter is None or not self._is_missing:
            return
        try:
            await self._load_adapter(adapter)
        except Refused as refused:
            raise self._not_taken(adapter, refused) from None
        if adapter is self._adapter:
            self._is_missing = False
        progress.print_line("server", f"{self._connection.url} was started again, and has its adapter again")

    def _not_taken(self, adapter: Adapter, why: Exception) -> InfrastructureError:
        return InfrastructureError(
            f"{adapter.folder}: the server did not take this adapter. {why} Start vLLM with --enable-lora, a "
            "--max-lora-rank of at least train.lora.r and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, or SGLang with "
            "--enable-lora; it must see the folder under the same path."
        )

    async def _swap_sglang(self, adapter: Adapter) -> None:
        """Load the version under its own name, then unload the last one: SGLang cannot replace an
        adapter in place."""
        new, old = _versioned(adapter), self._adapter
        with suppress(Refused):  # it is loaded only if a run was cut off and resumes
            await self._post_command("/unload_lora_adapter", {"lora_name": new})
        await self._post_command("/load_lora_adapter", {"lora_name": new, "lora_path": str(adapter.folder)})
        if old is not None and not self._is_missing and _versioned(old) != new:
            await self._post_command("/unload_lora_adapter", {"lora_name": _versioned(old)})

    async def _post_command(self, path: str, body: dict[str, str | bool]) -> None:
        """Post a command. vLLM answers with a sentence, SGLang with an object, which may have
        `success` false although the status is 200."""
        reply = await self._connection.post(path, body, self._section.timeout_s, lambda text: text)
        with suppress(Malformed):
            if isinstance(answer := parsed(reply), dict) and answer.get("success") is False:
                raise self._connection.refusal(path, 200, str(answer.get("error_message", "")))


class TokenDialogue:
    """One rollout: `prompt_ids` and what came after, as sent and as sampled."""

    def __init__(
        self,
        policy: TokenPolicy,
        prompt_ids: Sequence[int],
        seed: Sequence[int],
        temperature: float,
        max_context_tokens: int,
    ) -> None:
        self.prompt_ids = tuple(prompt_ids)
        self._policy, self._seed, self._temperature, self._max_context_tokens = (
            policy,
            seed,
            temperature,
            max_context_tokens,
        )
        self._ids = list(prompt_ids)
        self._turn = 0

    async def sample(self, max_new: int, deadline_s: float) -> Sampled:
        request = self._policy.build_request(
            self._ids, min(max_new, self._room), self._temperature, fold(self._seed, self._turn)
        )
        turn = await self._policy.turn(request, deadline_s)
        text, reading = self._policy.chat.read(turn.ids, self._turn)
        usage = Usage(len(request.ids), turn.cached, len(turn.ids))
        self._ids += turn.ids
        self._turn += 1
        # `seconds` stays 0: the wait includes the server's queue and our retries, and the policy is
        # not to blame for it.
        return Sampled(text, reading, turn.ids, turn.logprobs, turn.ended, turn.context_ids, usage=usage)

    async def read_ahead(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> None:
        """Put the tokens of long results into the chat's cache: 80 kB take up to 0.2 s."""
        outputs = [result.output for result in results]
        if sum(map(len, outputs)) > LONG_RESULTS:
            await asyncio.to_thread(self._policy.chat.tool_result_ids, calls, outputs)

    def append(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> tuple[int, ...] | None:
        ids = self._policy.chat.tool_result_ids(calls, [result.output for result in results])
        if len(ids) >= self._room:
            return None
        self._ids += ids
        return tuple(ids)

    def close(self) -> None:
        """The server holds nothing for us."""

    @property
    def _room(self) -> int:
        return self._max_context_tokens - len(self._ids)


def _versioned(adapter: Adapter) -> str:
    return f"{adapter.name}-{adapter.version}"


def _take_exception(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def fold(seed: Sequence[int], turn: int) -> int:
    """Make one integer for a turn of a rollout, positive in 32 bits, which every server takes."""
    return int(np.random.SeedSequence([*seed, turn]).generate_state(1)[0]) & 0x7FFFFFFF
