"""What the doctor finds out about a policy's server, before a run meets it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rft import config
from rft.chat.renderer import Chat
from rft.doctor import Finding
from rft.models import weights
from rft.recipe import load
from rft.sampling.engine import Engine
from rft.tools.signatures import schemas
from tests import ladder, small_policy, tiny_recipe
from tests.sick_agents import examine, settings
from tests.token_server import MODEL, TokenServer, serving


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_recipe.make(tmp_path_factory.mktemp("recipe"))


@pytest.fixture(scope="module")
def policy(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_policy.save(*small_policy.build(recipe, structured=False), tmp_path_factory.mktemp("policy") / "model")


@pytest.fixture(scope="module")
def engine(recipe: Path, policy: Path) -> Engine:
    network, tokenizer = weights.load(str(policy), config.Policy(), small_policy.device())
    return Engine(network, Chat(tokenizer, schemas(load(config.Recipe(path=str(recipe))))), small_policy.device())


@contextmanager
def in_a_thread(engine: Engine, **faults: Any) -> Iterator[TokenServer]:
    """A server with an event loop of its own, as the doctor has."""
    found: list[TokenServer] = []
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serving(engine, **faults) as server:
            found.append(server)
            ready.set()
            while not over.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(30)
    try:
        yield found[0]
    finally:
        over.set()
        thread.join()


def seen(server: TokenServer, recipe: Path, policy: Path, folder: Path, rank: int = 4, **train: Any) -> Finding:
    section = {"model": str(policy), "server": {"kind": "vllm", "url": server.url, "model": MODEL, "concurrency": 6}}
    lora = {"weights": "lora", "from": "policy", "lora": {"r": rank, "alpha": 8}, **train}
    params = settings(recipe, policy=section, train=lora, rollout={"max_tokens": None})
    with ladder.inside(folder):
        return examine(params, "server")["server"]


@pytest.mark.slow
def test_a_fit_server_is_asked_for_a_burst_and_given_an_adapter(engine, recipe, policy, tmp_path):
    with in_a_thread(engine) as server:
        found = seen(server, recipe, policy, tmp_path)
        assert found.status == "ok", found
        assert found.words.endswith(", 6 at once, an adapter of rank 4")
        assert server.most_at_once > 1
        asked = [body["sampling_params"]["seed"] for path, body in server.asked if path == "/inference/v1/generate"]
        assert len(set(asked[-6:])) == 6, "each turn of the burst has a seed of its own"
        assert server.adapters == {}, "taken away again"
    assert list(tmp_path.iterdir()) == [], "nothing stays"


@pytest.mark.parametrize(
    ("faults", "train", "message"),
    [
        ({"scale_out": False}, {}, "--enable-scale-out"),
        ({"takes_adapters": False}, {}, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
        ({}, {"rank": 32}, "--max-lora-rank of at least train.lora.r"),
        ({"raw_logprobs": True}, {"temperature": 0.7}, "--logprobs-mode processed_logprobs"),
        ({"most": 1}, {}, "died of 6 at once, each with its own seed"),
        ({"most": 1}, {}, "--no-enable-chunked-prefill"),
    ],
)
def test_a_server_that_lacks_something_is_told_what(engine, recipe, policy, tmp_path, faults, train, message):
    with in_a_thread(engine, **faults) as server:
        found = seen(server, recipe, policy, tmp_path, **train)
    assert found.status == "fail"
    assert message in f"{found.words} {found.remedy}"


def test_raw_log_probabilities_do_no_harm_at_temperature_1(engine, recipe, policy, tmp_path):
    with in_a_thread(engine, raw_logprobs=True) as server:
        assert seen(server, recipe, policy, tmp_path, temperature=1.0).status == "ok"


def test_behind_a_chat_server_nothing_of_the_model_is_here_and_nothing_can_be_built(recipe: Path, tmp_path: Path):
    """It once said: build it, and then: build it again."""
    server = {"kind": "chat", "url": "http://127.0.0.1:9", "model": "m"}
    names = ("template", "capacity", "step")
    with ladder.inside(tmp_path):
        found = examine(settings(recipe, policy={"server": server}, rollout={"max_tokens": None}), *names)
    why = "does not apply: the server renders the prompts and holds the model"
    assert {(found[name].status, found[name].words, found[name].remedy) for name in names} == {("skipped", why, "")}
