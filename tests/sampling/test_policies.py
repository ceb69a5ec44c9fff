"""Whole stages whose policy is sampled on a server: the numbers are those of the in-process engine,
and weights reach the server."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rft import config, reports
from rft.chat.renderer import Chat
from rft.errors import ConfigError, UserError
from rft.kernels import onednn
from rft.models import weights
from rft.recipe import load
from rft.sampling.engine import Engine
from rft.tools.signatures import schemas
from tests import small_policy, tiny_recipe
from tests.ladder import SECTIONS, again, inside, params, run
from tests.token_server import MODEL, TokenServer, serving

pytestmark = pytest.mark.usefixtures("ready_server")

LORA = {"weights": "lora", "steps": 3, "lr": 1e-2, "lora": {"r": 4, "alpha": 8}, "from": "policy"}


@pytest.fixture(scope="module")
def server(ladder: Path, ladder_recipe: Path) -> Iterator[TokenServer]:
    """Serves the ladder's base model, in a thread with an event loop of its own."""
    network, tokenizer = weights.load(str(ladder / "data/policy/model"), config.Policy(), small_policy.device())
    engine = Engine(
        network, Chat(tokenizer, schemas(load(config.Recipe(path=str(ladder_recipe))))), small_policy.device()
    )
    found: list[TokenServer] = []
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serving(engine) as one:
            found.append(one)
            ready.set()
            while not over.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(30)
    yield found[0]
    over.set()
    thread.join()


def at(server: TokenServer, kind: str, ladder: Path | None) -> dict[str, Any]:
    section: dict[str, Any] = {"server": {"kind": kind, "url": server.url, "model": MODEL}}
    return section | ({"model": str(ladder / "data/policy/model")} if ladder else {})


def greedy(folder: Path) -> list[list[Any]]:
    rows = reports.read(reports.BaselineReport, folder / "data/baseline/report.json").greedy.rows
    return [[row.rewards, row.tool_calls, row.tokens] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_baseline_over_token_routes_is_the_engines_own(
    ladder: Path, tmp_path: Path, ladder_recipe: Path, server: TokenServer, kind: str
):
    again(ladder, tmp_path, ladder_recipe, "baseline", policy=at(server, kind, ladder))
    assert greedy(tmp_path) == greedy(ladder)


@pytest.mark.slow
def test_training_pushes_its_adapter_to_the_server_after_each_step(
    ladder: Path, tmp_path: Path, ladder_recipe: Path, server: TokenServer
):
    server.asked.clear()
    again(ladder, tmp_path, ladder_recipe, "train", policy=at(server, "vllm", ladder), train=LORA)
    loads = [body for path, body in server.asked if path == "/v1/load_lora_adapter"]
    assert len(loads) == 1 + 3, "the start, and each step"
    report = reports.read(reports.TrainReport, tmp_path / "data/train/report.json")
    assert (report.trained, report.weights) == (True, "lora")
    metrics = [json.loads(line) for line in (tmp_path / "data/train/metrics.jsonl").read_text().splitlines()]
    assert max(one["logprob_mismatch"] for one in metrics if "logprob_mismatch" in one) < 1e-3, (
        "the server samples with the learner's weights"
    )
    assert not any(row["num_forks"] for row in pq.read_table(tmp_path / "data/train/rollouts.parquet").to_pylist())


@pytest.mark.slow
def test_a_server_takes_no_full_weights(ladder: Path, tmp_path: Path, ladder_recipe: Path, server: TokenServer):
    with pytest.raises(ConfigError, match=r"train\.weights: lora"):
        again(ladder, tmp_path, ladder_recipe, "train", policy=at(server, "vllm", ladder))


@pytest.mark.slow
def test_a_chat_endpoint_is_evaluated_and_searched_a_prompt_for_but_not_trained(
    ladder: Path, tmp_path: Path, ladder_recipe: Path, server: TokenServer
):
    shutil.copytree(ladder / "data/examples", tmp_path / "data/examples")
    settings = params(ladder_recipe, policy={"server": at(server, "chat", None)["server"]})
    with inside(tmp_path):
        for stage in ("policy", "baseline", "prompt", "train", "challenger"):
            run(stage, settings)
    pointer = reports.read(reports.PolicyReport, tmp_path / "data/policy/report.json")
    assert (pointer.kind, pointer.model) == ("served", MODEL)
    assert [one[:2] for one in greedy(tmp_path)] == [one[:2] for one in greedy(ladder)]
    train = reports.read(reports.TrainReport, tmp_path / "data/train/report.json")
    assert not train.trained
    assert "no token ids" in train.reason
    arms = reports.read(reports.ChallengerReport, tmp_path / "data/challenger/report.json").arms
    assert len(arms) == 3


# -- the limit of a context ------------------------------------------------------------------------
def with_long_row(folder: Path, split: str, place: int, num_words: int) -> str:
    """One row of the split asks at length; its id."""
    path = folder / f"data/examples/{split}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[place]["messages"][-1]["content"] = "value of " * num_words + rows[place]["messages"][-1]["content"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows[place]["id"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [None, "vllm", "sglang", "chat"])
def test_a_stage_finds_an_opening_that_does_not_fit_before_anything_is_sampled(
    ladder: Path, tmp_path: Path, ladder_recipe: Path, server: TokenServer, kind: str | None
):
    """The last row, batches behind the first. Behind a server the limit is the server's own,
    256."""
    shutil.copytree(ladder / "data", tmp_path / "data")
    name = with_long_row(tmp_path, "validation", 7, 200)
    server.asked.clear()
    rollout = {"max_tokens": 200 if kind is None else None, "batch": 2}
    settings = params(ladder_recipe, policy={} if kind is None else at(server, kind, ladder), rollout=rollout)
    with inside(tmp_path), pytest.raises(UserError, match=f"example '{name}': its opening"):
        run("baseline", settings)
    trials = [body for path, body in server.asked if path == "/v1/chat/completions"]
    assert [body["max_tokens"] for body in trials] == ([1] if kind == "chat" else [])
    assert not [path for path, _ in server.asked if path in ("/generate", "/inference/v1/generate", "/v1/completions")]
    assert not list(tmp_path.glob("**/rollouts/**/*.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vllm", "sglang", "chat"])
def test_a_stage_without_a_limit_has_the_servers(
    ladder: Path, tmp_path: Path, ladder_recipe: Path, server: TokenServer, kind: str
):
    """512 tokens, the bound that nobody had set, were more than this server takes."""
    server.asked.clear()
    again(ladder, tmp_path, ladder_recipe, "baseline", policy=at(server, kind, ladder), rollout={"max_tokens": None})
    assert [one[0] for one in greedy(tmp_path)] == [one[0] for one in greedy(ladder)]


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "validation"])
def test_training_finds_an_opening_that_does_not_fit_before_its_first_step(
    ladder: Path, tmp_path: Path, ladder_recipe: Path, split: str
):
    shutil.copytree(ladder / "data", tmp_path / "data")
    name = with_long_row(tmp_path, split, -1, 200)
    with (
        inside(tmp_path),
        pytest.raises(UserError, match=f"example '{name}': its opening alone has .* rollout.max_tokens is 200"),
    ):
        run("train", params(ladder_recipe))
    assert not list(tmp_path.glob(".rft/**/metrics.jsonl"))


@pytest.mark.slow
def test_overlong_rollouts_are_measured_by_the_servers_limit(
    ladder: Path, tmp_path: Path, ladder_recipe: Path, server: TokenServer
):
    dapo = {**LORA, "algorithm": "dapo", "overlong": {"buffer": 300}}
    with pytest.raises(ConfigError, match=r"= 300 must be below rollout\.max_tokens, .* \(256\)\. Lower the buffer"):
        again(
            ladder,
            tmp_path,
            ladder_recipe,
            "train",
            policy=at(server, "vllm", ladder),
            train=dapo,
            rollout={"max_tokens": None},
        )


@pytest.mark.slow
def test_the_search_and_the_comparison_look_at_all_their_prompts_first(
    ladder: Path, tmp_path: Path, ladder_recipe: Path
):
    shutil.copytree(ladder / "data", tmp_path / "data")
    winner = tmp_path / "data/prompt/prompt.json"
    winner.write_text(json.dumps(json.loads(winner.read_text()) | {"system": "look it up and answer " * 40}))
    with inside(tmp_path), pytest.raises(UserError, match="its opening alone has"):
        run("challenger", params(ladder_recipe))
    recipe = tmp_path / "recipe"
    shutil.copytree(ladder_recipe, recipe)
    (recipe / "prompts.json").write_text(
        json.dumps(
            {
                "seed": {"name": "seed", "system": "", "max_turns": 3},
                "instructions": {"long": "look it up and answer " * 40},
            }
        )
    )
    with inside(tmp_path), pytest.raises(UserError, match="its opening alone has"):
        run("prompt", params(recipe))
    assert not list(tmp_path.glob(".rft/**/rollouts/**/*.jsonl"))


def test_defaults_of_room_fit_the_policy_and_do_not_count_as_written(ladder_recipe: Path):
    settings = tiny_recipe.params(ladder_recipe)
    assert settings.rollout.max_tokens == 512
    assert "max_tokens" not in tiny_recipe.params(ladder_recipe, rollout={"batch": 3}).rollout.model_fields_set
    served = tiny_recipe.params(ladder_recipe, policy={"server": {"kind": "chat", "url": "http://h", "model": "m"}})
    assert (served.rollout.max_tokens, served.rollout.max_turn_tokens) == (None, 1024)
    assert "max_turn_tokens" not in served.rollout.model_fields_set
    long = tiny_recipe.params(ladder_recipe, rollout={"max_turn_tokens": 1024})
    assert long.rollout.max_tokens == 4096, "a turn must leave room for others"
    assert tiny_recipe.params(ladder_recipe, rollout={"max_tokens": 600}).rollout.max_tokens == 600


def test_token_routes_need_the_models_folder():
    with pytest.raises(ConfigError, match=r"needs the model's tokenizer\. Set model to that model's folder"):
        config.parse(
            {**SECTIONS["policy"], "server": {"kind": "vllm", "url": "http://127.0.0.1:1", "model": "m"}},
            "params.yaml",
            config.Policy,
        )


@pytest.mark.slow
def test_a_rows_own_tools_win_over_the_jobs(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    """The first row's lookup takes one key that no policy says: its call does not fit, and it hears
    so."""
    shutil.copytree(ladder / "data", tmp_path / "data")
    settings = tmp_path / "data/policy/model/config.json"  # a schema that the tokenizer never saw is long, in bytes
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"max_position_embeddings": 1024}))
    path = tmp_path / "data/examples/validation.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    key = {"type": "string", "enum": ["no policy says so"]}
    narrow = {"type": "object", "properties": {"key": key}, "required": ["key"]}
    rows[0]["tools"] = [
        {"type": "function", "function": {"name": "lookup", "description": "A narrow one.", "parameters": narrow}}
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with inside(tmp_path):
        run("baseline", params(ladder_recipe, rollout={"max_tokens": 700}))
    log = pq.read_table(tmp_path / "data/baseline/rollouts.parquet").to_pylist()
    mine = [row for row in log if row["example_id"] == rows[0]["id"] and row["num_tool_calls"]]
    assert all("A narrow one." in small_text(tmp_path, row) for row in mine)
    answered = [row for row in mine if row["stop_reason"] == "completed"]  # in the others the last call may not be made
    assert all(row["num_tool_errors"] == row["num_tool_calls"] for row in answered)
    assert sum(row["num_tool_errors"] for row in mine) > 0
    rows[0]["tools"][0]["function"]["name"] = "nobody_serves_this"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with inside(tmp_path), pytest.raises(ConfigError, match="nobody_serves_this"):
        run("baseline", params(ladder_recipe, rollout={"max_tokens": 700}))


def small_text(folder: Path, row: dict[str, Any]) -> str:
    """What the policy was given, as text."""
    return weights.tokenizer(str(folder / "data/policy/model")).decode(row["ids"])


# -- decoding in bfloat16 --------------------------------------------------------------------------
@pytest.mark.skipif(not onednn.has_bfloat16(), reason="no bfloat16 here")
def test_rollouts_that_are_learned_from_may_be_sampled_in_bfloat16_and_validations_are_not(
    ladder: Path, tmp_path: Path, ladder_recipe: Path, monkeypatch: pytest.MonkeyPatch
):
    real, seen = Engine.session, set[tuple[bool, float]]()

    def session(self: Engine, openings: Any, seeds: Any, temperature: float, max_context_tokens: Any) -> Any:
        found = real(self, openings, seeds, temperature, max_context_tokens)
        seen.add((found._forward is not self.forward and self._in_bfloat16, temperature))
        return found

    monkeypatch.setattr(Engine, "session", session)
    again(ladder, tmp_path, ladder_recipe, "train", train={"decoding": "bfloat16"})
    assert seen == {(True, 1.0), (False, 0.0)}
    lines = (tmp_path / "data/train/metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines]
    mismatches = [one["logprob_mismatch"] for one in metrics if "logprob_mismatch" in one]
    assert 1e-3 < max(mismatches) < 0.5, "the sampler rounds, and says so"
    assert reports.read(reports.TrainReport, tmp_path / "data/train/report.json").trained


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ({"dtype": "bfloat16"}, "policy.dtype is bfloat16"),
        (
            {"model": "m", "server": {"kind": "vllm", "url": "http://127.0.0.1:1", "model": "m"}},
            "policy.server samples",
        ),
    ],
)
def test_decoding_in_bfloat16_where_nothing_here_decodes_is_refused(
    ladder_recipe: Path, policy: dict[str, Any], why: str
):
    with pytest.raises(ConfigError, match=f"train.decoding = bfloat16 cannot be honored: {why}"):
        tiny_recipe.params(ladder_recipe, policy=policy, train={"decoding": "bfloat16"})
