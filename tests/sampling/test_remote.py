"""Policies on servers, over real sockets: what comes through is the in-process engine's own, and
each fault has its outcome."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rft import config, files, recipe
from rft.chat.renderer import Chat
from rft.errors import ConfigError, InfrastructureError, UserError
from rft.grading.endpoint import EndpointGrader
from rft.models import weights as model
from rft.reports import PromptSettings
from rft.rollouts.loop import Conditions, Request, run_rollouts
from rft.rollouts.policy import Policy, PolicyFailed, ReadsAhead
from rft.sampling.engine import Engine
from rft.sampling.remote import ChatPolicy, TokenPolicy, connection, policy_for
from rft.sampling.remote.routes import COMPLETIONS, GENERATE, SGLANG, GenerateRequest, Route, ServerTurn
from rft.sampling.remote.tokens import fold
from rft.tools.client import ToolClient
from rft.tools.lifetime import running
from rft.tools.signatures import schemas
from rft.types import Opening, Sampled, StopReason, ToolCall, ToolResult, Trajectory, Turn, Usage
from rft.wire.contract import Malformed
from tests import small_policy, tiny_recipe, token_server
from tests.token_server import LEFT_OUT, MODEL, TokenServer, puts, serving, status

PROMPT = PromptSettings(name="seed", system="", max_turns=4)
LIMITS: dict[str, Any] = {"max_turns": 4, "max_turn_tokens": 40, "max_tokens": 200}
OPENING = Opening(({"role": "user", "content": "value of k0002"},))
KEY = "sk-canary-7f3a9c"


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BACKOFF_S", 0.01)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> recipe.Recipe:
    return recipe.load(config.Recipe(path=str(tiny_recipe.make(tmp_path_factory.mktemp("recipe")))))


@pytest.fixture(scope="module")
def engine(ours: recipe.Recipe, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Sixty steps of warm start: it calls its tool, and mostly answers wrongly."""
    return Engine(
        *small_policy.build(ours.folder, steps=60, work=tmp_path_factory.mktemp("warm")), small_policy.device()
    )


@pytest.fixture(scope="module")
def opening(engine: Engine, ours: recipe.Recipe) -> Opening:
    """One that the policy answers with a call."""
    for example in ours.examples("train", 40, 0):
        one = Opening(example.messages)
        if (turn := engine.session([one], [(0,)], 0.0, 200).sample([0], 40)[0]).ended and turn.reading.calls:
            return one
    raise AssertionError("the policy calls no tool")


@pytest.fixture(scope="module")
def endpoint(ours: recipe.Recipe):
    with running(ours, config.Tools()) as endpoint:
        yield endpoint


def section(server: TokenServer, kind: str = "vllm", **more: Any) -> config.PolicyServer:
    given = {"kind": kind, "url": server.url, "model": MODEL, "retries": 1, "timeout_s": 60, **more}
    return config.parse(given, "params.yaml", config.PolicyServer)


def tokens(server: TokenServer, kind: str = "vllm", **more: Any) -> TokenPolicy:
    return TokenPolicy(section(server, kind, **more), server.engine.chat, (server.engine.chat.end_id,))


async def play(
    ours: recipe.Recipe, endpoint: Any, policy: Policy, temperature: float = 0.0, rows: int = 3, **limits: Any
) -> list[Trajectory]:
    conditions = Conditions(PROMPT, temperature, (5,), config.Rollout(**{**LIMITS, **limits}))
    requests = [Request(row, 0) for row in ours.examples("validation", rows, 0)]
    async with (
        ToolClient(endpoint, config.Tools(), schemas(ours)) as client,
        EndpointGrader(ours.grader, endpoint, config.Tools()) as grader,
    ):
        return await run_rollouts(policy, client, grader, requests, conditions, {})


def through(engine: Engine, use: Callable[[TokenServer], Awaitable[Any]], **settings: Any) -> Any:
    """What `use` makes of a fresh server."""

    async def all_of_it() -> Any:
        async with serving(engine, **settings) as server:
            return await use(server)

    return asyncio.run(all_of_it())


async def first_turn(policy: Any, deadline_s: float = 120.0, opening: Opening = OPENING) -> Sampled:
    (dialogue,) = policy.open([opening], [(1, 2)], 0.0, 200)
    return await dialogue.sample(40, deadline_s)


def expected(engine: Engine, ids: Sequence[int], start: int, temperature: float) -> list[float]:
    """Log-probabilities of ids[start:] by one plain forward."""
    with torch.no_grad():
        logits = engine.model(torch.tensor([list(ids)])).logits[0] / temperature
    return torch.log_softmax(logits, -1)[torch.arange(start - 1, len(ids) - 1), torch.tensor(ids[start:])].tolist()


# -- tokens in, tokens out -------------------------------------------------------------------------
SERVERS = [("vllm", {}), ("vllm", {"without": frozenset({GENERATE.path})}), ("sglang", {})]


@pytest.mark.parametrize(("kind", "settings"), SERVERS, ids=["generate", "completions", "sglang"])
def test_a_whole_rollout_with_tools_is_the_in_process_engines(engine, ours, endpoint, kind, settings):
    mine = asyncio.run(play(ours, endpoint, engine))
    theirs = through(engine, lambda server: play(ours, endpoint, tokens(server, kind)), **settings)
    # nine in ten of its examples begin with a call, whatever the noise on its first weights
    assert any(turn.results for one in mine for turn in one.turns), "no tool is called: this test shows nothing"
    for one, other in zip(mine, theirs, strict=True):
        assert (one.rollout_id, one.stop_reason, one.reward) == (other.rollout_id, other.stop_reason, other.reward)
        assert other.num_forks == 0
        for turn, remote_turn in zip(one.turns, other.turns, strict=True):
            assert (turn.prompt_ids, turn.token_ids, turn.text, turn.calls) == (
                remote_turn.prompt_ids,
                remote_turn.token_ids,
                remote_turn.text,
                remote_turn.calls,
            )
            assert remote_turn.logprobs == pytest.approx(turn.logprobs, abs=1e-4)
            assert turn.usage is not None
            assert remote_turn.usage == replace(turn.usage, cached=0), "this server does not say what it spared"


@pytest.mark.parametrize(("kind", "settings"), SERVERS, ids=["generate", "completions", "sglang"])
def test_equal_seeds_sample_equal_tokens_with_their_log_probabilities(engine, ours, endpoint, kind, settings):
    async def once(server: TokenServer) -> tuple[list[Trajectory], list[int]]:
        done = await play(ours, endpoint, tokens(server, kind), temperature=0.7)
        bodies = [body.get("sampling_params", body) for path, body in server.asked if path not in server.without]
        return done, sorted(body["sampling_seed" if kind == "sglang" else "seed"] for body in bodies)

    (first, seeds), (again, same_seeds) = (through(engine, once, **settings) for _ in range(2))
    assert _tokens(first) == _tokens(again)  # what a server computes together decides the last digits of the rest
    assert seeds == same_seeds
    assert len(set(seeds)) == sum(len(one.turns) for one in first)
    for one in (*first, *again):
        ids: list[int] = []
        for turn in one.turns:
            ids += [*turn.prompt_ids, *turn.token_ids]
            start = len(ids) - len(turn.token_ids)
            assert turn.logprobs == pytest.approx(expected(engine, ids, start, 0.7), abs=1e-4)


def _tokens(done: list[Trajectory]) -> list[Any]:
    return [[(turn.prompt_ids, turn.token_ids) for turn in one.turns] for one in done]


def test_another_rollout_or_turn_has_another_seed():
    seeds = {fold(seed, turn) for seed in ((0, 1), (0, 2), (1, 1)) for turn in range(3)}
    assert len(seeds) == 9
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert fold((0, 1), 2) == fold((0, 1), 2)


def test_an_older_server_is_asked_by_completions_decided_once(engine, caplog):
    async def use(server: TokenServer) -> list[str]:
        policy = tokens(server)
        for _ in range(3):
            await first_turn(policy)
        return [path for path, _ in server.asked]

    with caplog.at_level(logging.WARNING, "rft.sampling.remote"):
        asked = through(engine, use, without=frozenset({GENERATE.path}))
    assert asked == [GENERATE.path, *[COMPLETIONS.path] * 3]
    assert [record.message.split(": ")[-1] for record in caplog.records] == [f"asking {COMPLETIONS.path}"]


def test_a_route_that_answered_once_is_not_given_up(engine):
    async def use(server: TokenServer) -> None:
        policy = tokens(server)
        await first_turn(policy)
        server.faults = [status(404)]
        await first_turn(policy)

    with pytest.raises(InfrastructureError, match="404"):
        through(engine, use)


def test_the_context_is_a_bound(engine):
    async def use(server: TokenServer) -> None:
        opened = len(engine.chat.prompt_ids(list(OPENING.messages)))
        (dialogue,) = tokens(server).open([OPENING], [(0,)], 0.0, 200)
        whole = await dialogue.sample(40, 30.0)
        (dialogue,) = tokens(server).open([OPENING], [(0,)], 0.0, opened + len(whole.ids) - 1)
        sampled = await dialogue.sample(40, 30.0)
        assert not sampled.ended
        assert sampled.ids == whole.ids[:-1]
        assert dialogue.append([ToolCall("c", "lookup", "{}")], [ToolResult("c", "x")]) is None

    through(engine, use)


def test_results_that_do_not_fit_change_nothing(engine, opening):
    async def use(server: TokenServer) -> None:
        (dialogue,) = tokens(server).open([opening], [(0,)], 0.0, 200)
        sampled = await dialogue.sample(40, 30.0)
        assert dialogue.append(sampled.reading.calls, [ToolResult("c", "9" * 200)]) is None
        added = dialogue.append(sampled.reading.calls, [ToolResult("c", "9")])
        assert added is not None
        await dialogue.sample(4, 30.0)
        assert tuple(server.asked[-1][1]["token_ids"]) == (*dialogue.prompt_ids, *sampled.ids, *added)

    through(engine, use)


def test_tokens_of_long_results_are_made_outside_of_the_loop(engine):
    """80 kB took 0.6 s, in which no other rollout went on."""
    threads: list[threading.Thread] = []
    chat = Chat(engine.chat.tokenizer, engine.chat.tools)
    render = chat._between

    def between(*args: Any, **more: Any) -> str:
        threads.append(threading.current_thread())
        return render(*args, **more)

    chat._between = between  # pyright: ignore[reportAttributeAccessIssue]

    async def use(server: TokenServer) -> None:
        policy = TokenPolicy(section(server, "vllm"), chat, (chat.end_id,))
        (dialogue,) = policy.open([OPENING], [(0,)], 0.0, 100_000)
        calls, results = [ToolCall("c", "lookup", "{}")], [ToolResult("c", "9 " * 20_000)]
        assert isinstance(dialogue, ReadsAhead)
        await dialogue.read_ahead(calls, results)
        assert threads
        assert threading.main_thread() not in threads
        known = len(threads)
        assert dialogue.append(calls, results) is not None
        assert len(threads) == known, "they are known"

    through(engine, use)


def test_an_opening_that_does_not_fit_is_the_users_to_mend(engine):
    async def use(server: TokenServer) -> None:
        room = len(engine.chat.prompt_ids(list(OPENING.messages)))
        named = replace(OPENING, example_id="n-7")
        tokens(server).open([named], [(0,)], 0.0, room + 1)
        tokens(server).open([named], [(0,)], 0.0, room)

    with pytest.raises(
        UserError, match=r"example 'n-7': its opening alone has \d+ tokens, and rollout\.max_tokens is \d+"
    ):
        through(engine, use)


def test_no_more_requests_at_once_than_allowed(engine):
    async def use(server: TokenServer) -> int:
        policy = tokens(server, concurrency=2)
        await asyncio.gather(*(first_turn(policy) for _ in range(6)))
        return server.most_at_once

    assert through(engine, use) == 2


# -- faults ----------------------------------------------------------------------------------------
LOGPROB = "choices.0.logprobs.content.0.logprob"
PASSING = {
    "500": status(500),
    "429": status(429),
    "html": token_server.writes("<html>busy</html>"),
    "reset": token_server.resets,
    "breaks off": token_server.breaks_off,
    "half JSON": token_server.half_json,
    "no finish": puts("choices.0.finish_reason", None),
    "aborted": puts("choices.0.finish_reason", "abort"),
    "nan": puts(LOGPROB, float("nan")),
    "minus infinity": puts(LOGPROB, -9999.0),
    "one score too few": puts("choices.0.logprobs.content", lambda scores: scores[:-1]),
    "scores of other tokens": puts("choices.0.token_ids", lambda ids: [ids[0] + 1, *ids[1:]]),
    "scores of other tokens, before 0.32": puts("choices.0.logprobs.content.0", {"token": "token_id:-1", "logprob": 0}),
    "more than asked for": puts("choices.0.token_ids", lambda ids: ids * 9),
    "an error under a 200": puts("error", {"message": "upstream"}),
}


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
def test_passing_trouble_is_asked_again_and_then_leaves_the_turn_unsampled(engine, fault):
    async def use(server: TokenServer) -> list[Sampled]:
        whole = await first_turn(tokens(server))
        server.faults = [fault]
        mended = await first_turn(tokens(server))
        server.faults = [fault] * 2
        with pytest.raises(PolicyFailed, match="2 tries"):
            await first_turn(tokens(server))
        return [whole, mended]

    whole, mended = through(engine, use)
    assert whole == mended


@pytest.mark.parametrize(
    ("kind", "path", "value", "spared"),
    [
        ("vllm", "usage.prompt_tokens_details", {"cached_tokens": 4}, 4),
        ("vllm", "usage.prompt_tokens_details", {"cached_tokens": 10**6}, 0),
        ("vllm", "usage.prompt_tokens_details", None, 0),
        ("sglang", "meta_info.cached_tokens", 4, 4),
        ("sglang", "meta_info.cached_tokens", -4, 0),
        ("sglang", "meta_info.cached_tokens", "4", 0),
    ],
)
def test_a_server_says_what_its_cache_spared(engine, opening, kind, path, value, spared):
    async def use(server: TokenServer) -> Sampled:
        server.faults = [puts(path, value)]
        return await first_turn(tokens(server, kind), opening=opening)

    sampled = through(engine, use)
    (prompt,) = engine.chat.opening_ids([opening], 200)
    assert sampled.usage == Usage(len(prompt), spared, len(sampled.ids))


LASTING: dict[str, tuple[Any, str]] = {
    "no log-probabilities": (puts("choices.0.logprobs", None), r"no 'logprobs\.content'"),
    "no ids": (puts("choices.0.token_ids", LEFT_OUT), "no 'token_ids'"),
    "no choices": (puts("choices", LEFT_OUT), "no 'choices'"),
    "end token cut off": (token_server.cuts_off_the_end, "not an end token"),
    "context cut": (puts("usage.prompt_tokens", 3), "the server took 3"),
    "400": (status(400, "too long"), r"too long.*rollout\.max_tokens"),
    "401": (status(401), r"policy\.server\.headers, such as {Authorization: env:NAME}"),
    "no such model": (status(400, "Invalid model name passed in model=m"), r"another policy\.server\.model than"),
    "redirect": (status(302, headers={"Location": "http://127.0.0.1:1/"}), "final address"),
}


@pytest.mark.parametrize(("fault", "message"), LASTING.values(), ids=LASTING)
def test_lasting_trouble_stops_the_stage_with_a_remedy(engine, opening, fault, message):
    async def use(server: TokenServer) -> None:
        server.faults = [fault]
        try:
            await first_turn(tokens(server, retries=3), opening=opening)
        finally:
            assert len(server.asked) == 1

    with pytest.raises(InfrastructureError, match=message):
        through(engine, use)


def test_another_models_name_is_named(engine):
    async def use(server: TokenServer) -> None:
        await first_turn(tokens(server, model="gpt-9"))

    with pytest.raises(InfrastructureError, match=r"`gpt-9` does not exist.*policy\.server\.model = 'gpt-9'"):
        through(engine, use)


@pytest.mark.parametrize("kind", ["vllm", "sglang", "chat"])
def test_a_hang_ends_at_the_turns_deadline(engine, kind):
    async def use(server: TokenServer) -> float:
        server.faults = [token_server.hangs] * 9
        policy = policy_for(section(server, kind, retries=9, timeout_s=0.2), [], lambda: engine.chat)
        began = asyncio.get_running_loop().time()
        with pytest.raises(PolicyFailed, match="no reply in time"):
            await first_turn(policy, deadline_s=0.7)
        return asyncio.get_running_loop().time() - began

    assert through(engine, use) < 3


def test_nobody_there_is_no_zero(engine, ours, endpoint):
    dead = config.PolicyServer(kind="vllm", url="http://127.0.0.1:9", model=MODEL, retries=0)
    done = asyncio.run(play(ours, endpoint, TokenPolicy(dead, engine.chat, (engine.chat.end_id,))))
    assert {(one.stop_reason, one.reward, one.grade.score) for one in done} == {(StopReason.sampler_error, None, None)}
    assert "127.0.0.1:9" in done[0].grade.explanation


def test_one_failed_rollout_leaves_the_others_alone(engine, ours, endpoint):
    async def use(server: TokenServer) -> list[Trajectory]:
        server.faults = [status(500)]
        return await play(ours, endpoint, tokens(server, retries=0))

    done = through(engine, use)
    assert sorted(one.stop_reason is StopReason.sampler_error for one in done) == [False, False, True]
    assert all((one.reward is None) == (one.stop_reason is StopReason.sampler_error) for one in done)


def test_another_context_than_ours_is_a_fork(engine, ours, endpoint):
    async def use(server: TokenServer) -> list[Trajectory]:
        server.faults = [None, puts("choices.0.prompt_token_ids", lambda ids: [ids[0] + 1, *ids[1:]])]
        return await play(ours, endpoint, tokens(server), rows=1)

    (done,) = through(engine, use, without=frozenset({GENERATE.path}))
    assert [turn.forked for turn in done.turns][:2] == [False, True]


# -- keys ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["vllm", "sglang", "chat"])
@pytest.mark.parametrize(
    "fault", [status(400, f"no {KEY} here"), status(500, "x" * 290 + KEY), token_server.writes(f"<{KEY}>")]
)
def test_a_key_reaches_the_server_and_no_message(engine, monkeypatch, kind, fault):
    monkeypatch.setenv("POLICY_KEY", f"Bearer {KEY}")
    monkeypatch.setenv("WRONG_KEY", f"Bearer not-{KEY}")

    async def use(server: TokenServer) -> list[str]:
        policy = policy_for(section(server, kind, headers={"Authorization": "env:POLICY_KEY"}), [], lambda: engine.chat)
        await first_turn(policy)
        wrong = policy_for(section(server, kind, headers={"Authorization": "env:WRONG_KEY"}), [], lambda: engine.chat)
        server.faults = [fault] * 2
        told = []
        for one in (policy, wrong):
            with pytest.raises((InfrastructureError, PolicyFailed)) as caught:
                await first_turn(one)
            told.append(f"{caught.value!r} {caught.value} {caught.value.__cause__!r}")
        return told

    for text in through(engine, use, key=f"Bearer {KEY}"):
        assert KEY[:9] not in text


def test_a_key_that_is_not_set_is_named(engine):
    with pytest.raises(ConfigError, match="POLICY_KEY"):
        policy_for(
            config.PolicyServer(kind="chat", url="http://h", model="m", headers={"A": "env:POLICY_KEY"}),
            [],
            lambda: engine.chat,
        )


@pytest.mark.parametrize("url", ["localhost:8000", "http://me:secret@h", "http://h/?key=secret", "ftp://h", ""])
def test_an_address_with_a_key_in_it_is_refused_unseen(engine, url):
    with pytest.raises(ConfigError, match=r"policy\.server\.url") as caught:
        TokenPolicy(config.PolicyServer(kind="vllm", url=url, model="m"), engine.chat, (0,))
    assert "secret" not in str(caught.value)


# -- event loops -----------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_a_policy_outlives_its_event_loops_and_leaves_nothing_open(engine):
    made: list[TokenPolicy] = []

    async def use(server: TokenServer) -> Sampled:
        policy = made[0] if made else tokens(server)
        made[:] = [policy]
        policy._connection.url = server.url  # each loop has a server of its own
        return await first_turn(policy)

    first, again = through(engine, use), through(engine, use)
    assert first == again
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        server = runner.run(stack.enter_async_context(serving(engine)))
        assert [runner.run(use(server)) for _ in range(2)] == [first, first]
        runner.run(stack.aclose())
    gc.collect()


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_a_policy_can_be_closed_and_used_again(engine):
    async def use(server: TokenServer) -> list[Sampled]:
        async with tokens(server) as policy:
            first = await first_turn(policy)
        return [first, await first_turn(policy)]

    first, again = through(engine, use)
    assert first == again
    gc.collect()


# -- before and between batches --------------------------------------------------------------------
@pytest.mark.parametrize(
    ("more", "max_tokens", "temperature", "settings", "message"),
    [
        ({"model": "gpt-9"}, 200, 1.0, {}, r"policy\.server\.model = 'gpt-9'.*\['tiny'\]"),
        ({}, 100_000, 1.0, {}, r"rollout\.max_tokens = 100000, but the server takes 256"),
        ({}, 200, 0.7, {"raw_logprobs": True}, "--logprobs-mode processed_logprobs"),
    ],
)
def test_what_would_spoil_every_rollout_is_found_before(engine, more, max_tokens, temperature, settings, message):
    with pytest.raises(ConfigError, match=message):
        through(engine, lambda server: tokens(server, **more).check(max_tokens, temperature), **settings)


@pytest.mark.parametrize(
    ("kind", "temperature", "raw"),
    [("vllm", 0.7, False), ("vllm", 1.0, True), ("vllm", 0.0, True), ("sglang", 0.7, False)],
)
def test_a_fit_server_passes_the_check(engine, kind, temperature, raw):
    through(engine, lambda server: tokens(server, kind).check(200, temperature), raw_logprobs=raw)


def test_a_check_of_nobody_says_so(engine):
    dead = config.PolicyServer(kind="vllm", url="http://127.0.0.1:9", model=MODEL)
    with pytest.raises(InfrastructureError, match="Is that server running"):
        asyncio.run(TokenPolicy(dead, engine.chat, (0,)).check(200, 1.0))


@pytest.fixture(scope="module")
def adapters(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_adapters(engine, tmp_path_factory)


def make_adapters(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two LoRA folders that change what the policy says."""
    folders = []
    for number in (1, 2):
        learner = model.trainable(
            model.merged_copy(engine.model).__class__(engine.model.config), config.Train(lora=config.Lora(r=2))
        )
        with torch.no_grad():
            for name, weights in learner.named_parameters():
                if "lora_B" in name:
                    weights.copy_(torch.randn(weights.shape, generator=torch.Generator().manual_seed(number)))
        folders.append(tmp_path_factory.mktemp("adapter") / str(number))
        model.save(learner, folders[-1])
    return folders


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_new_weights_speak_from_the_next_turn_on(engine, adapters, kind):
    async def use(server: TokenServer) -> list[Sampled]:
        policy = tokens(server, kind)
        turns = [await first_turn(policy)]
        for version, folder in enumerate(adapters, 1):
            await policy.update(folder, version)
            assert policy.version == version
            turns.append(await first_turn(policy))
            (served,) = server.adapters.values()
            alone = served.session([OPENING], [(fold((1, 2), 0),)], 0.0, 200).sample([0], 40)[0]
            assert (turns[-1].ids, turns[-1].logprobs) == (alone.ids, pytest.approx(alone.logprobs, abs=1e-4))
        if kind == "vllm":
            salts = [body.get("cache_salt") for path, body in server.asked if path == GENERATE.path]
            assert salts == [None, *map(files.tree_sha256, adapters)]
        return turns

    assert len({one.ids for one in through(engine, use)}) == 3


def test_a_version_that_a_killed_run_left_behind_is_replaced(engine, adapters):
    async def use(server: TokenServer) -> None:
        for folder in adapters:
            await tokens(server, "sglang").update(folder, 7)
        assert list(server.adapters) == ["agent-rft-7"]

    through(engine, use)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_refused_adapter_is_an_error_and_the_old_weights_stay(engine, adapters, kind, tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")

    async def use(server: TokenServer) -> None:
        policy = tokens(server, kind)
        await policy.update(adapters[0], 1)
        before = await first_turn(policy)
        with pytest.raises(InfrastructureError, match=r"No adapter found for .*--enable-lora"):
            await policy.update(tmp_path, 2)
        assert policy.version == 1
        assert await first_turn(policy) == before
        with pytest.raises(UserError, match="adapter_config"):
            await policy.update(tmp_path / "nothing", 3)

    through(engine, use)


# -- readers ---------------------------------------------------------------------------------------
REQUEST = GenerateRequest((1, 2), 4, 1.0, 0, (9,), "m")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["stop", "length", "token_id:3", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["token_ids", "logprobs", "content", "logprob", "type"]), inner)
    ),
    max_leaves=8,
)


def near(route: Route, ids: Any, scores: Any, finish: Any, usage: Any) -> Any:
    """A reply of the route's shape around these values."""
    if route is SGLANG:
        return {
            "output_ids": ids,
            "meta_info": {"output_token_logprobs": scores, "finish_reason": finish, "prompt_tokens": usage},
        }
    logprobs = {"content": scores} if route is GENERATE else {"token_logprobs": scores}
    return {
        "choices": [{"token_ids": ids, "logprobs": logprobs, "finish_reason": finish, "prompt_token_ids": usage}],
        "usage": usage,
    }


@pytest.mark.parametrize("route", [GENERATE, COMPLETIONS, SGLANG], ids=lambda route: route.path)
@settings(max_examples=50)
@given(whole=JSON, ids=JSON, scores=JSON, finish=JSON, usage=JSON)
def test_any_reply_is_a_turn_or_a_typed_error(route: Route, whole: Any, ids: Any, scores: Any, finish: Any, usage: Any):
    for reply in (whole, near(route, ids, scores, finish, usage)):
        try:
            turn = route.read(reply, REQUEST)
        except (Malformed, InfrastructureError):
            continue
        assert isinstance(turn, ServerTurn)
        assert 0 < len(turn.ids) == len(turn.logprobs) <= REQUEST.max_new


def test_sglangs_own_end_token_is_the_policys(engine):
    pairs = [[-0.1, 3, None], [-0.2, 8, None]]
    reply = near(SGLANG, [3, 8], pairs, {"type": "stop", "matched": 8}, 2)
    assert SGLANG.read(reply, REQUEST) == ServerTurn((3, 8), (-0.1, -0.2), True)
    with pytest.raises(InfrastructureError, match="not an end token"):
        SGLANG.read(near(SGLANG, None, pairs, {"type": "stop", "matched": 9}, 2), REQUEST)
    with pytest.raises(Malformed, match="other tokens"):
        SGLANG.read(near(SGLANG, [3], pairs, {"type": "length"}, 2), REQUEST)


# -- chat completions ------------------------------------------------------------------------------
def test_a_chat_endpoint_plays_whole_rollouts(engine, ours, endpoint):
    mine = asyncio.run(play(ours, endpoint, engine))
    theirs = through(engine, lambda server: play(ours, endpoint, ChatPolicy(section(server, "chat"), schemas(ours))))
    assert any(one.num_tool_calls for one in theirs)
    for one, other in zip(mine, theirs, strict=True):
        # An endpoint's own reader gives a broken call as text: then the rollout ends with an
        # answer, and not with a parse error.
        assert other.stop_reason is (
            StopReason.completed if one.stop_reason is StopReason.parse_error else one.stop_reason
        )
        assert [(turn.calls, _outputs(turn)) for turn in one.turns] == [
            (turn.calls, _outputs(turn)) for turn in other.turns
        ]
        assert one.reward == other.reward
        assert all(turn.token_ids == turn.prompt_ids == turn.logprobs == () for turn in other.turns)


def _outputs(turn: Turn) -> list[str]:
    return [result.output for result in turn.results]


def test_a_chat_endpoint_that_returns_ids_is_checked_for_forks(engine, ours, endpoint):
    mine = asyncio.run(play(ours, endpoint, engine))
    theirs = through(
        engine, lambda server: play(ours, endpoint, ChatPolicy(section(server, "chat"), schemas(ours), with_ids=True))
    )
    for one, other in zip(mine, theirs, strict=True):
        assert other.num_forks == 0
        for turn, remote_turn in zip(one.turns, other.turns, strict=True):
            assert (turn.prompt_ids, turn.token_ids) == (remote_turn.prompt_ids, remote_turn.token_ids)
            assert remote_turn.logprobs == pytest.approx(turn.logprobs, abs=1e-4)


def test_a_chat_endpoint_that_renders_other_tokens_forks(engine, ours, endpoint):
    async def use(server: TokenServer) -> list[Trajectory]:
        server.faults = [token_server.says_one_more]
        return await play(ours, endpoint, ChatPolicy(section(server, "chat"), schemas(ours), with_ids=True), rows=1)

    (done,) = through(engine, use)
    assert done.turns[1].forked


def test_a_chat_endpoint_without_ids_is_not_trained_on(engine):
    async def use(server: TokenServer) -> None:
        assert not ChatPolicy(section(server, "chat"), []).trainable
        server.faults = [puts("choices.0.token_ids", LEFT_OUT)]
        await first_turn(ChatPolicy(section(server, "chat"), [], with_ids=True))

    with pytest.raises(InfrastructureError, match="no 'token_ids'"):
        through(engine, use)


# -- which policy ----------------------------------------------------------------------------------
def test_the_kind_names_the_policy(engine):
    def no_chat() -> Any:
        raise AssertionError("a chat endpoint needs no tokenizer")

    made = [
        policy_for(config.PolicyServer(kind=kind, url="http://h/v1/", model="m"), [], lambda: engine.chat)
        for kind in ("vllm", "sglang")
    ]
    made.append(policy_for(config.PolicyServer(kind="chat", url="http://h", model="m"), [], no_chat))
    assert [(type(one), one.trainable, one.blocks) for one in made] == [(TokenPolicy, True, False)] * 2 + [
        (ChatPolicy, False, False)
    ]
