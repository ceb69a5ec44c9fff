"""Stage policy: what is built, what is only pointed to, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from rft import progress, reports
from rft.errors import UserError
from tests import small_policy
from tests.ladder import inside, params, run


def test_the_policy_learned_its_demonstrations(ladder: Path):
    report = reports.read(reports.PolicyReport, ladder / "data/policy/report.json")
    assert report.final_loss is not None
    assert report.final_loss < report.losses[0][1] / 2
    assert report.num_parameters < 200_000


def test_no_work_is_left_behind(ladder: Path):
    assert list((ladder / ".rft/progress").iterdir()) == []


def test_a_given_model_is_a_pointer_with_a_hash(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    given = small_policy.save(*small_policy.build(ladder_recipe), tmp_path / "given")
    with inside(tmp_path):
        run("policy", params(ladder_recipe, policy={"model": str(given)}))
    report = reports.read(reports.PolicyReport, tmp_path / "data/policy/report.json")
    assert (report.kind, report.model, report.sha256) == ("given", str(given), progress.tree_sha256(given))


def test_a_model_folder_without_a_tokenizer_is_named(tmp_path: Path, ladder_recipe: Path):
    given = small_policy.save(*small_policy.build(ladder_recipe), tmp_path / "given")
    for path in given.glob("tokenizer*"):
        path.unlink()
    with inside(tmp_path), pytest.raises(UserError, match="tokenizer"):
        run("policy", params(ladder_recipe, policy={"model": str(given)}))


def test_a_hub_id_out_of_reach_is_one_message(tmp_path: Path, ladder_recipe: Path):
    with inside(tmp_path), pytest.raises(UserError, match="cannot be loaded"):
        run("policy", params(ladder_recipe, policy={"model": "nobody/no-such-model"}))
