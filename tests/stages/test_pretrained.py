"""Models in the shapes that people bring, through the ladder from files to files: Qwen3, Llama 3
and SmolLM with 150,000 rows of vocabulary, prompts of more than 4,096 tokens, sharded weights and
several end tokens. What is sampled, trained, judged and exported must be the same model.
"""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from rft import config, export, files, recipe, reports, stage_files
from rft.reports import Champion, PolicyReport, PromptSettings, TrainReport
from rft.rollouts import log as rollout_log
from rft.rollouts.log import LogRow
from tests import pretrained, tiny_recipe
from tests.ladder import inside, run
from tests.sick_agents import examine

pytestmark = [pytest.mark.story, pytest.mark.usefixtures("ready_server")]  # three ladders with long prompts

LONG = "the words of a note and their codes; " * 420
GRADING = (
    'float(sample["output_text"].strip() == item["target"]) or '
    '0.01 * (len(sample["output_text"]) % 4 + sample["num_tool_calls"] % 2)'
)
"""Nobody answers right, so every answer has a small score of its own to learn from."""
SECTIONS: dict[str, Any] = {
    "examples": {"train": 8, "validation": 4, "test": 2},
    "rollout": {"max_turns": 3, "max_tokens": 5200, "max_turn_tokens": 24, "batch": 16},
    "baseline": {"examples": 3, "k": 3, "not_worth_above": 1.0, "not_yet_below": 0.0},
    "challenger": {"k": 2, "shown": 0},
}
TRAIN: dict[str, Any] = {
    "steps": 1,
    "examples_per_step": 2,
    "group_size": 4,
    "checkpoint_every": 1,
    "validate_every": 1,
    "validation_examples": 1,
    "lora": {"r": 4, "alpha": 8},
    "microbatch_tokens": 6_000,
}
KINDS = {"lora": {"lr": 1e-2, "packing": True}, "full": {"lr": 1e-3, "examples_per_step": 1}}
CLOSE = {"rtol": 0, "atol": 1e-3}


@dataclass(frozen=True)
class Ladder:
    """A family's model, and two folders of stages: one for each kind of trained weights."""

    family: str
    model: Path
    stage_files: dict[str, Path]
    params: dict[str, config.Params]

    @property
    def ends(self) -> list[int]:
        return json.loads((self.model / "generation_config.json").read_text())["eos_token_id"]

    def rollouts(self, stage: str, kind: str = "lora") -> list[LogRow]:
        return rollout_log.read(self.stage_files[kind] / f"data/{stage}/rollouts.parquet")


@pytest.fixture(scope="module", params=pretrained.PRETRAINED)
def ladder_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ladder:
    folder = tmp_path_factory.mktemp(request.param)
    model = pretrained.make(request.param, folder / "model")
    ours = tiny_recipe.rescale(tiny_recipe.make(folder / "recipes"), 0, 1, GRADING)
    (ours / "prompts.json").write_text(json.dumps({"seed": {"name": "seed", "system": LONG}}))
    sections = SECTIONS | {"policy": {"model": str(model)}}
    packed = {"packing": request.param != "qwen3"}  # of full weights; LoRA's always are
    params = {
        kind: tiny_recipe.params(ours, train={**TRAIN, **packed, **more, "weights": kind}, **sections)
        for kind, more in KINDS.items()
    }
    place = {kind: folder / kind for kind in KINDS}
    place["lora"].mkdir()
    with inside(place["lora"]):
        for stage in ("examples", "policy", "baseline"):
            run(stage, params["lora"])
        stage_files.path(PromptSettings).parent.mkdir()
        stage_files.write(recipe.load(params["lora"].recipe).prompts.seed)
    shutil.copytree(place["lora"] / "data", place["full"] / "data")
    for kind in KINDS:
        with inside(place[kind]):
            run("train", params[kind])
    with inside(place["lora"]):
        run("challenger", params["lora"])
    return Ladder(request.param, model, place, params)


def transformers_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


def with_adapter(network: Any, folder: Path) -> Any:
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of peft, about transformers
        return PeftModel.from_pretrained(network, str(folder)).eval()


@torch.no_grad()
def scored(network: Any, row: LogRow) -> torch.Tensor:
    """Log-probabilities of a rollout's own tokens under transformers' forward."""
    own = [place - 1 for place, is_own in enumerate(row.loss_mask) if is_own]
    hidden = network.get_decoder()(torch.tensor([row.ids])).last_hidden_state[0, own]
    chosen = torch.tensor([row.ids[place + 1] for place in own])
    return network.get_output_embeddings()(hidden).log_softmax(-1).gather(1, chosen[:, None]).squeeze(1)


def test_long_rollouts_call_tools_and_end_at_each_of_the_models_ends(ladder_run: Ladder):
    rows = [*ladder_run.rollouts("baseline"), *ladder_run.rollouts("train"), *ladder_run.rollouts("challenger")]
    assert all(row.loss_mask.index(True) > 4096 for row in rows)
    assert all(row.score is not None and row.num_forks == 0 for row in rows)
    assert sum(row.num_tool_calls for row in rows) > 0
    assert max(row.num_turns for row in rows) > 1, "a tool's result was read"
    ended = {row.ids[-1] for row in rows if row.stop_reason == "completed"}
    assert ladder_run.ends[1] in ended, "the end that only generation_config.json names"
    assert ended <= set(ladder_run.ends)
    texts = [json.loads(row.messages)[-1]["content"] for row in rows if row.stop_reason == "completed"]
    assert not [text for text in texts if pretrained.PRETRAINED[ladder_run.family].other_end in text]


def test_what_was_sampled_has_the_log_probabilities_of_transformers(ladder_run: Ladder):
    network = transformers_model(ladder_run.model)
    rows = [row for row in ladder_run.rollouts("baseline") if row.temperature == 1.0]
    for row in sorted(rows, key=lambda row: -row.num_turns)[:3]:
        torch.testing.assert_close(scored(network, row), torch.tensor(row.logprobs), **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_training_agrees_with_the_sampler_and_changes_weights(ladder_run: Ladder, kind: str):
    folder = ladder_run.stage_files[kind] / "data/train"
    report = reports.read(TrainReport, folder / "report.json")
    assert (report.trained, report.weights) == (True, kind)
    (told,) = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    assert told["logprob_mismatch"] < 1e-3
    assert told["grad_norm"] > 0
    assert told.get("packing/shared_share", 1.0) == 1.0


def test_the_challenger_that_was_judged_is_the_adapter_that_was_trained(ladder_run: Ladder):
    base = transformers_model(ladder_run.model)
    row = max(
        (row for row in ladder_run.rollouts("challenger") if row.arm == "challenger"), key=lambda row: row.num_turns
    )
    before = scored(base, row)
    now = scored(with_adapter(base, ladder_run.stage_files["lora"] / "data/train/weights"), row)
    torch.testing.assert_close(now, torch.tensor(row.logprobs), **CLOSE)
    assert (now - before).abs().max() > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_is_the_same_model_for_transformers_and_peft(ladder_run: Ladder, kind: str, tmp_path: Path):
    shutil.copytree(ladder_run.stage_files[kind] / "data", tmp_path / "data")
    with inside(tmp_path):
        manifest = exported(ladder_run, kind, tmp_path / "agent")
    assert manifest.openings_compared > 0
    family = pretrained.PRETRAINED[ladder_run.family].tokens.format
    assert manifest.tool_format == family
    settings = json.loads((tmp_path / "agent/generation_config.json").read_text())
    assert set(ladder_run.ends) <= set(settings["eos_token_id"])
    ids = torch.tensor([ladder_run.rollouts("baseline")[0].ids[-64:]])
    with torch.no_grad():
        if kind == "lora":
            theirs = with_adapter(transformers_model(ladder_run.model), tmp_path / "agent/adapter")(ids).logits
        else:
            theirs = transformers_model(tmp_path / "agent/model")(ids).logits
        ours = learned(ladder_run, kind)(ids).logits
        assert (ours - transformers_model(ladder_run.model)(ids).logits).abs().max() > 0.01
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-4)


def exported(ladder_run: Ladder, kind: str, target: Path) -> export.Manifest:
    """Export what was trained as if it had been promoted."""
    params, trained, pointer = ladder_run.params[kind], stage_files.read(TrainReport), stage_files.read(PolicyReport)
    shutil.copytree(stage_files.WEIGHTS, stage_files.folder("champion") / "weights")
    champion = Champion(
        version=1,
        run="r",
        prompt=stage_files.read(PromptSettings),
        weights=trained.weights,
        weights_path="weights",
        weights_sha256=files.tree_sha256(stage_files.WEIGHTS),
        base_sha256=pointer.sha256,
    )
    stage_files.write(champion)
    target.mkdir()
    origin = export.Origin(model="tiny", version=1, run="r", revision="0", standing="champion")
    return export.write(params, target, origin, seen=ladder_run.rollouts("train", kind))


def learned(ladder_run: Ladder, kind: Any) -> Any:
    """The model as a stage of this project loads it."""
    from rft.models import weights

    device = torch.device("cpu")
    network, _ = weights.load(str(ladder_run.model), ladder_run.params[kind].policy, device)
    return weights.with_weights(network, kind, ladder_run.stage_files[kind] / "data/train/weights", device)


def test_the_doctor_finds_nothing_wrong(ladder_run: Ladder, tmp_path: Path):
    """At a learning rate whose first step is short: two of these families move by 0.1 and 0.3 nats
    per token at that of the ladder, and the doctor says so."""
    lora = ladder_run.params["lora"]
    calm = lora.model_copy(update={"train": lora.train.model_copy(update={"lr": 1e-3, "group_size": 2})})
    with inside(tmp_path):
        found = examine(calm, "template", "capacity", "step")
    assert found["step"].status == "ok", found["step"].words
    assert found["step"].facts["logprob_mismatch"] < 1e-3
    assert found["template"].status in ("ok", "warn"), "some templates write a second question's past otherwise"
    assert found["template"].facts["longest_opening"] > 4096
    network = transformers_model(ladder_run.model)
    assert found["capacity"].facts["parameters"] == sum(one.numel() for one in network.parameters())


WARM = {
    "weights": "lora",
    "longest": 2048,
    "lora": {"r": 4, "alpha": 8},
    "demonstrations": 32,
    "steps": 3,
    "batch": 2,
    "lr": 5e-3,
}
FEWER = {"baseline": SECTIONS["baseline"] | {"examples": 2, "k": 2}}


@pytest.mark.parametrize("family", pretrained.PRETRAINED)
def test_a_warm_started_model_is_of_the_same_family(family: str, tmp_path: Path):
    """Template, end tokens, tied heads and shape are those of the given model; the weights are
    others, and the sampler's are transformers'."""
    given = pretrained.make(family, tmp_path / "model")
    ours = tiny_recipe.rescale(tiny_recipe.make(tmp_path / "recipes"), 0, 1, GRADING)
    params = tiny_recipe.params(ours, **SECTIONS | {"policy": {"model": str(given), "warm_start": WARM}} | FEWER)
    (tmp_path / "stages").mkdir()
    with inside(tmp_path / "stages"):
        for stage in ("examples", "policy", "baseline"):
            run(stage, params)
        pointer, rows = stage_files.read(PolicyReport), rollout_log.read(Path("data/baseline/rollouts.parquet"))
        made = Path(pointer.model).resolve()
    assert (pointer.kind, pointer.base, pointer.base_sha256) == ("warm_started", str(given), files.tree_sha256(given))
    for name, keys in (
        ("config.json", ["tie_word_embeddings", "vocab_size"]),
        ("generation_config.json", ["eos_token_id"]),
    ):
        before, after = (json.loads((folder / name).read_text()) for folder in (given, made))
        assert {key: before.get(key) for key in keys} == {key: after.get(key) for key in keys}
    network, base = transformers_model(made), transformers_model(given)
    assert (made / "chat_template.jinja").read_bytes() == (given / "chat_template.jinja").read_bytes()
    row = max((row for row in rows if row.temperature == 1.0), key=lambda row: row.num_turns)
    torch.testing.assert_close(scored(network, row), torch.tensor(row.logprobs), **CLOSE)
    assert (scored(network, row) - scored(base, row)).abs().max() > 0.01


def test_thinking_can_be_switched_off(tmp_path: Path):
    given = pretrained.make("qwen3", tmp_path / "model")
    ours = tiny_recipe.rescale(tiny_recipe.make(tmp_path / "recipes"), 0, 1, GRADING)
    empty, openings = "<|im_start|>assistant\n<think>\n\n</think>\n\n", {}
    for name, arguments in (("thinks", {}), ("does not", {"enable_thinking": False})):
        section = {"model": str(given), "template_arguments": arguments}
        params = tiny_recipe.params(ours, train=TRAIN | KINDS["lora"], **SECTIONS | {"policy": section})
        (tmp_path / name).mkdir()
        with inside(tmp_path / name):
            for stage in ("examples", "policy", "baseline"):
                run(stage, params)
            stage_files.path(PromptSettings).parent.mkdir()
            stage_files.write(recipe.load(params.recipe).prompts.seed)
            run("train", params)
            rows = [
                row for of in ("baseline", "train") for row in rollout_log.read(Path(f"data/{of}/rollouts.parquet"))
            ]
        tokenizer = AutoTokenizer.from_pretrained(given)
        openings[name] = {tokenizer.decode(row.ids[: row.loss_mask.index(True)]).endswith(empty) for row in rows}
    assert openings == {"thinks": {False}, "does not": {True}}
