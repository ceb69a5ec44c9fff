"""Servers by tokens that are started again, or lack what a run needs: no turn is sampled with other
weights, and what is missing is named."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rft.errors import InfrastructureError
from rft.rollouts.policy import PolicyFailed
from rft.sampling.engine import Engine
from rft.sampling.remote import connection
from tests import small_policy, tiny_recipe
from tests.sampling.test_remote import first_turn, make_adapters, through, tokens
from tests.token_server import TokenServer


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BACKOFF_S", 0.01)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine(*small_policy.build(tiny_recipe.make(tmp_path_factory.mktemp("recipe"))), small_policy.device())


@pytest.fixture(scope="module")
def adapters(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_adapters(engine, tmp_path_factory)


def test_a_server_that_was_started_again_gets_its_adapter_again(engine, adapters):
    async def use(server: TokenServer) -> None:
        policy = tokens(server)
        await policy.update(adapters[0], 1)
        before = await first_turn(policy)
        server.adapters.clear()  # all that a server that is started again has left
        again = await asyncio.gather(*(first_turn(policy) for _ in range(4)))
        assert again == [before] * 4, "no turn is sampled with the weights that the server was started with"
        loads = [body for path, body in server.asked if path == "/v1/load_lora_adapter"]
        assert len(loads) == 2, "once for all turns"

    through(engine, use)


def test_a_server_that_does_not_answer_an_update_gets_it_before_the_next_turn(engine, adapters):
    async def use(server: TokenServer) -> None:
        policy = tokens(server)
        await policy.update(adapters[0], 1)
        first = await first_turn(policy)
        there, policy._connection.url = policy._connection.url, "http://127.0.0.1:9"
        await policy.update(adapters[1], 2)
        assert policy.version == 2
        with pytest.raises(PolicyFailed, match=r"127\.0\.0\.1:9/v1/load_lora_adapter"):
            await first_turn(policy)
        policy._connection.url = there
        second = await first_turn(policy)
        assert second.ids != first.ids
        fresh = tokens(server)
        await fresh.update(adapters[1], 2)
        assert await first_turn(fresh) == second

    through(engine, use)


def test_a_token_route_that_is_closed_names_the_flag_that_opens_it(engine):
    with pytest.raises(InfrastructureError, match=r"HTTP 403: .* Start vLLM with --enable-scale-out"):
        through(engine, lambda server: first_turn(tokens(server)), scale_out=False)


def test_a_server_that_takes_no_adapters_names_the_flags(engine, adapters):
    with pytest.raises(InfrastructureError, match=r"HTTP 404: .*--enable-lora.*VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"):
        through(engine, lambda server: tokens(server).update(adapters[0], 1), takes_adapters=False)


def test_an_adapter_of_too_high_a_rank_is_refused_and_not_waited_for(engine, adapters):
    """vLLM answers 500, which may pass elsewhere; it is up, so this will not."""

    async def use(server: TokenServer) -> None:
        policy = tokens(server)
        with pytest.raises(InfrastructureError, match=r"rank 2 is greater .* --max-lora-rank"):
            await policy.update(adapters[0], 1)
        assert policy.version is None
        await first_turn(policy)

    through(engine, use, largest_rank=1)
