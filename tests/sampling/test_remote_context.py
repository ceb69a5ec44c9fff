"""The limit of a context and the format of an answer, at servers that sample by tokens; chat
endpoints: tests/sampling/test_remote_chat.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rft.errors import ConfigError
from rft.sampling.engine import Engine
from tests import small_policy, tiny_recipe
from tests.sampling.test_remote import OPENING, through, tokens
from tests.token_server import TokenServer


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine(*small_policy.build(tiny_recipe.make(tmp_path_factory.mktemp("recipe"))), small_policy.device())


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("name", ["max_model_len", "context_length", "context_window"])
def test_without_a_limit_of_ours_the_servers_holds(engine, kind, name):
    room = 256 - len(engine.chat.prompt_ids(list(OPENING.messages)))

    async def use(server: TokenServer) -> None:
        policy = tokens(server, kind)
        await policy.fetch_context_limit(None)
        assert policy.limit(None) == 256
        (dialogue,) = policy.open([OPENING], [(0,)], 0.0, None)
        await dialogue.sample(1000, 30.0)
        asked = server.asked[-1][1]["sampling_params"]
        assert asked["max_new_tokens" if kind == "sglang" else "max_tokens"] == room

    through(engine, use, says_length=name)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_server_that_does_not_say_how_long_a_context_it_takes_needs_a_limit_of_ours(engine, kind):
    async def use(server: TokenServer) -> None:
        await tokens(server, kind).fetch_context_limit(200)
        await tokens(server, kind).check(None, 1.0)

    with pytest.raises(
        ConfigError, match=r"rollout\.max_tokens is not set, and .* does not say .*'tiny'.* Set rollout\.max_tokens"
    ):
        through(engine, use, says_length=None)


def test_a_format_stands_in_the_prompt_and_constrains_no_turn(engine):
    wanted = {"type": "json_object"}

    async def use(server: TokenServer) -> None:
        (dialogue,) = tokens(server).open([replace(OPENING, response_format=wanted)], [(0,)], 0.0, 250)
        assert list(dialogue.prompt_ids) == engine.chat.prompt_ids(list(OPENING.messages), None, wanted)
        assert len(dialogue.prompt_ids) > len(engine.chat.prompt_ids(list(OPENING.messages)))
        await dialogue.sample(4, 30.0)
        assert "response_format" not in str(server.asked[-1][1])

    through(engine, use)
    (row,) = engine.open([replace(OPENING, response_format=wanted)], [(0,)], 0.0, None)
    assert list(row.prompt_ids) == engine.chat.prompt_ids(list(OPENING.messages), None, wanted)
