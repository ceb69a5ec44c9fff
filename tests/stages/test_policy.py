"""Stage policy: what is built, what is only pointed to, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rft import config, files, reports
from rft.errors import ConfigError, InfrastructureError, RftError, UserError
from rft.models import weights
from rft.trainer.learner import Learner
from tests import small_policy
from tests.ladder import SECTIONS, inside, params, run


def test_the_policy_learned_its_demonstrations(ladder: Path):
    report = reports.read(reports.PolicyReport, ladder / "data/policy/report.json")
    assert report.final_loss is not None
    assert report.final_loss < report.losses[0][1] / 2
    assert report.num_parameters < 200_000
    assert report.threads == torch.get_num_threads()


def test_of_finished_work_the_stage_folder_alone_is_left(ladder: Path):
    """By hand nobody says that DVC has it: it stays for a week, without the checkpoints and
    rollouts that it was made of."""
    work = sorted((ladder / ".rft/progress").iterdir())
    assert [path.name.rsplit("-")[0] for path in work] == ["baseline", "challenger", "policy", "prompt", "train"]
    assert all({one.name for one in path.iterdir()} == {"work.json", "shelf", "complete.json"} for path in work)


@pytest.mark.slow
def test_a_warm_start_that_was_cut_off_ends_with_the_same_bytes(
    tmp_path: Path, ladder_recipe: Path, monkeypatch: pytest.MonkeyPatch
):
    """The checkpoint stands between two reported losses, so what belongs to the next one must be
    kept with it."""
    warm = {"demonstrations": 32, "steps": 206, "batch": 2, "checkpoint_every": 7}
    settings = params(ladder_recipe, policy={"architecture": SECTIONS["policy"]["architecture"], "warm_start": warm})
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    with inside(tmp_path / "whole"):
        run("policy", settings)

    def cut(self: Learner, *given: Any) -> dict[str, float]:
        if self.num_updates == 110:
            raise KeyboardInterrupt
        return once(self, *given)

    once = Learner.update
    with inside(tmp_path / "cut"):
        monkeypatch.setattr(Learner, "update", cut)
        with pytest.raises(KeyboardInterrupt):
            run("policy", settings)
        monkeypatch.undo()
        run("policy", settings)
    assert files.tree_sha256(tmp_path / "cut/data/policy") == files.tree_sha256(tmp_path / "whole/data/policy")


def test_a_warm_start_that_diverges_ends_at_once_and_names_its_key(tmp_path: Path, ladder_recipe: Path):
    warm = {"demonstrations": 32, "steps": 206, "batch": 2, "lr": 1e30}
    settings = params(ladder_recipe, policy={"architecture": SECTIONS["policy"]["architecture"], "warm_start": warm})
    told = r"update 1: the weights have left all bounds at a learning rate of \S+\. Lower policy\.warm_start\.lr\."
    with inside(tmp_path), pytest.raises(RftError, match=told):
        run("policy", settings)


def test_a_given_model_is_a_pointer_with_a_hash(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    given = small_policy.save(*small_policy.build(ladder_recipe), tmp_path / "given")
    with inside(tmp_path):
        run("policy", params(ladder_recipe, policy={"model": str(given)}))
    report = reports.read(reports.PolicyReport, tmp_path / "data/policy/report.json")
    assert (report.kind, report.model, report.sha256) == ("given", str(given), files.tree_sha256(given))


WARM = {"demonstrations": 32, "steps": 6, "batch": 4, "lr": 1e-3, "checkpoint_every": 4}


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_a_given_model_is_warm_started_where_its_weights_are_named(
    ladder: Path, tmp_path: Path, ladder_recipe: Path, kind: str
):
    """It is a model folder of its own, whose report says what it was made of; the given one stays
    as it was. The loss falls."""
    given = ladder / "data/policy/model"
    before = files.tree_sha256(given)
    lora = {"lora": {"r": 4, "alpha": 8}} if kind == "lora" else {}
    settings = params(ladder_recipe, policy={"model": str(given), "warm_start": WARM | {"weights": kind} | lora})
    with inside(tmp_path):
        run("policy", settings)
        report = reports.read(reports.PolicyReport, Path("data/policy/report.json"))
        made, tokenizer = weights.load(report.model, config.Policy(), small_policy.device())
        assert report.sha256 == files.tree_sha256(Path(report.model)) != before
    assert (report.kind, report.base, report.base_sha256, report.weights) == ("warm_started", str(given), before, kind)
    assert files.tree_sha256(given) == before
    assert report.is_made_here
    assert tokenizer.chat_template
    assert {parameter.dtype for parameter in made.parameters()} == {torch.float32}
    rows = [json.loads(line) for line in (tmp_path / "data/policy/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert all(row["weights/change"] > 0 for row in rows)


def test_a_section_that_an_earlier_version_ignored_still_warm_starts_nothing(tmp_path: Path, ladder_recipe: Path):
    """A run writes all defaults down, those of the embedded policy too."""
    given = small_policy.save(*small_policy.build(ladder_recipe), tmp_path / "given")
    written = config.Policy(model=str(given)).model_dump(mode="json", by_alias=True)
    for section in (written, {"model": str(given), "warm_start": {"demonstrations": 2400, "steps": 300}}):
        with inside(tmp_path):
            run("policy", params(ladder_recipe, policy=section))
        assert reports.read(reports.PolicyReport, tmp_path / "data/policy/report.json").kind == "given"


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"weights": "lora"}, r"needs warm_start\.lr and warm_start\.steps"),
        ({"weights": "lora", "lr": 1e-3}, r"needs warm_start\.steps"),
        ({"schedule": "cosine"}, r"warm_start\.schedule has no effect: .* Set it to lora or full"),
        ({"weights": "full", "lora": {"r": 4}, "lr": 1e-3, "steps": 4}, r"lora has no effect here"),
        ({"steps": 4, "warmup_steps": 4}, r"warmup_steps = 4 must be below steps = 4"),
    ],
)
def test_a_warm_start_that_cannot_be_honored_is_refused(ladder_recipe: Path, section: dict[str, Any], told: str):
    with pytest.raises(ConfigError, match=told):
        params(ladder_recipe, policy={"model": "some/model", "warm_start": section})


def test_a_server_cannot_be_warm_started(ladder_recipe: Path):
    server = {"kind": "vllm", "url": "http://127.0.0.1:1", "model": "m"}
    warm = {"weights": "lora", "lr": 1e-3, "steps": 4}
    with pytest.raises(ConfigError, match=r"server samples from the model that it was started with"):
        params(ladder_recipe, policy={"model": "some/model", "server": server, "warm_start": warm})


def test_demonstrations_that_do_not_fit_are_named(tmp_path: Path, ladder_recipe: Path):
    given = small_policy.save(*small_policy.build(ladder_recipe), tmp_path / "given")
    warm = WARM | {"weights": "full"}
    told = r"longest = 16 leaves 0 of 32 demonstrations, which have \d+ to \d+ tokens: fewer than .*batch = 4"
    with inside(tmp_path), pytest.raises(UserError, match=told):
        run("policy", params(ladder_recipe, policy={"model": str(given), "warm_start": warm | {"longest": 16}}))
    description = json.loads((given / "config.json").read_text())
    (given / "config.json").write_text(json.dumps(description | {"max_position_embeddings": 20}))
    with inside(tmp_path), pytest.raises(UserError, match=r"has \d+ tokens, and the model has 20 positions"):
        run("policy", params(ladder_recipe, policy={"model": str(given), "warm_start": warm}))


def test_a_template_that_drops_tool_calls_is_named(tmp_path: Path, ladder_recipe: Path):
    """As SmolLM2's does: role and content of each message, and nothing else."""
    network, chat = small_policy.build(ladder_recipe)
    chat.tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    given = small_policy.save(network, chat, tmp_path / "given")
    section = {"model": str(given), "tool_format": "hermes", "warm_start": WARM | {"weights": "full"}}
    told = r"policy\.model = .*: its chat template leaves out the tools and tool calls, which the demonstrations have"
    with inside(tmp_path), pytest.raises(UserError, match=told):
        run("policy", params(ladder_recipe, policy=section))


def test_a_model_folder_without_a_tokenizer_is_named(tmp_path: Path, ladder_recipe: Path):
    given = small_policy.save(*small_policy.build(ladder_recipe), tmp_path / "given")
    for path in given.glob("tokenizer*"):
        path.unlink()
    with inside(tmp_path), pytest.raises(UserError, match="tokenizer"):
        run("policy", params(ladder_recipe, policy={"model": str(given)}))


def test_a_hub_id_out_of_reach_is_one_message(tmp_path: Path, ladder_recipe: Path):
    with inside(tmp_path), pytest.raises(InfrastructureError, match=r"nobody/no-such-model'.* cannot be reached"):
        run("policy", params(ladder_recipe, policy={"model": "nobody/no-such-model"}))
