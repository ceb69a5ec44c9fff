"""Stage policy: what is built, what is only pointed to, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rft import files, reports
from rft.errors import InfrastructureError, UserError
from rft.stages import policy
from tests import small_policy
from tests.ladder import SECTIONS, inside, params, run


def test_the_policy_learned_its_demonstrations(ladder: Path):
    report = reports.read(reports.PolicyReport, ladder / "data/policy/report.json")
    assert report.final_loss is not None
    assert report.final_loss < report.losses[0][1] / 2
    assert report.num_parameters < 200_000


def test_of_finished_work_the_shelf_alone_is_left(ladder: Path):
    """By hand nobody says that DVC has it: it stays for a week, without the checkpoints and
    rollouts that it was made of."""
    work = sorted((ladder / ".rft/progress").iterdir())
    assert [path.name.rsplit("-")[0] for path in work] == ["baseline", "challenger", "policy", "prompt", "train"]
    assert all({one.name for one in path.iterdir()} == {"work.json", "shelf", "complete.json"} for path in work)


def test_a_warm_start_that_was_cut_off_ends_with_the_same_bytes(
    tmp_path: Path, ladder_recipe: Path, monkeypatch: pytest.MonkeyPatch
):
    """The checkpoint stands between two reported losses, so what was summed up since the last one
    must be in it."""
    warm = {"demonstrations": 32, "steps": 206, "batch": 2, "checkpoint_every": 7}
    settings = params(ladder_recipe, policy={"architecture": SECTIONS["policy"]["architecture"], "warm_start": warm})
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    with inside(tmp_path / "whole"):
        run("policy", settings)

    def cut(network: Any, batch: Any, weight: float, step: int) -> Any:
        if step == 110:
            raise KeyboardInterrupt
        return once(network, batch, weight, step)

    once = policy._loss
    with inside(tmp_path / "cut"):
        monkeypatch.setattr(policy, "_loss", cut)
        with pytest.raises(KeyboardInterrupt):
            run("policy", settings)
        monkeypatch.undo()
        run("policy", settings)
    assert files.tree_sha256(tmp_path / "cut/data/policy") == files.tree_sha256(tmp_path / "whole/data/policy")


def test_a_warm_start_that_diverges_ends_at_once_and_names_its_key(tmp_path: Path, ladder_recipe: Path):
    warm = {"demonstrations": 32, "steps": 206, "batch": 2, "lr": 1e30}
    settings = params(ladder_recipe, policy={"architecture": SECTIONS["policy"]["architecture"], "warm_start": warm})
    told = r"params\.yaml: policy\.warm_start\.lr = 1e\+30: the loss is nan at step \d\. Lower it\."
    with inside(tmp_path), pytest.raises(UserError, match=told):
        run("policy", settings)


def test_a_given_model_is_a_pointer_with_a_hash(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    given = small_policy.save(*small_policy.build(ladder_recipe), tmp_path / "given")
    with inside(tmp_path):
        run("policy", params(ladder_recipe, policy={"model": str(given)}))
    report = reports.read(reports.PolicyReport, tmp_path / "data/policy/report.json")
    assert (report.kind, report.model, report.sha256) == ("given", str(given), files.tree_sha256(given))


def test_a_model_folder_without_a_tokenizer_is_named(tmp_path: Path, ladder_recipe: Path):
    given = small_policy.save(*small_policy.build(ladder_recipe), tmp_path / "given")
    for path in given.glob("tokenizer*"):
        path.unlink()
    with inside(tmp_path), pytest.raises(UserError, match="tokenizer"):
        run("policy", params(ladder_recipe, policy={"model": str(given)}))


def test_a_hub_id_out_of_reach_is_one_message(tmp_path: Path, ladder_recipe: Path):
    with inside(tmp_path), pytest.raises(InfrastructureError, match=r"nobody/no-such-model'.* cannot be reached"):
        run("policy", params(ladder_recipe, policy={"model": "nobody/no-such-model"}))
