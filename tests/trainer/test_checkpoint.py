"""A checkpoint is there whole or not at all, belongs to one configuration, and is never silently
replaced by older weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rft.errors import UserError
from rft.trainer import checkpoint
from rft.trainer.checkpoint import Manifest


def manifest(step: int) -> Manifest:
    return Manifest(step, "abc", {"place": step}, {"idle": 0}, None, torch.get_rng_state().tolist())


def write(folder: Path, *steps: int, keep: int = 2) -> None:
    for step in steps:
        checkpoint.write(folder, manifest(step), {"weights": torch.full((3,), float(step))}, keep)


def test_the_newest_comes_back_as_it_was_written(tmp_path: Path):
    write(tmp_path, 2, 4)
    found = checkpoint.newest(tmp_path, "abc")
    assert found is not None
    assert replace(found[0], sha256="") == manifest(4)
    assert found[1]["weights"].tolist() == [4.0] * 3


def test_there_may_be_none(tmp_path: Path):
    assert checkpoint.newest(tmp_path / "nothing", "abc") is None


def test_older_ones_go(tmp_path: Path):
    write(tmp_path, 2, 4, 6, 8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000006", "000008"]


def test_one_that_was_being_written_does_not_count(tmp_path: Path):
    write(tmp_path, 2)
    (tmp_path / "new.part").mkdir()
    (tmp_path / "new.part" / "manifest.json").write_text(json.dumps({"step": 4}))
    found = checkpoint.newest(tmp_path, "abc")
    assert found is not None
    assert found[0].step == 2
    write(tmp_path, 4)
    assert not (tmp_path / "new.part").exists()


def test_a_state_that_was_cut_in_half_is_named(tmp_path: Path):
    write(tmp_path, 2)
    path = tmp_path / "000002/state.pt"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=r"000002/state\.pt: was cut off or changed.*Delete"):
        checkpoint.newest(tmp_path, "abc")


@pytest.mark.parametrize("text", ["", "{", '{"step": 1}', '{"no": "manifest"}'])
def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path, text: str):
    write(tmp_path, 2)
    (tmp_path / "000002/manifest.json").write_text(text)
    with pytest.raises(UserError, match=r"000002.*cannot be read.*Delete"):
        checkpoint.newest(tmp_path, "abc")


def test_one_of_another_configuration_is_refused(tmp_path: Path):
    write(tmp_path, 2)
    with pytest.raises(UserError, match="other settings or inputs"):
        checkpoint.newest(tmp_path, "abd")


def test_best_weights_stay_as_long_as_a_checkpoint_names_them(tmp_path: Path):
    """R22. The newest checkpoint may be deleted by hand, and then the one before it goes on, with
    its own best."""
    for step in (1, 3, 5, 7):
        checkpoint.write_best(tmp_path / "best", step, {"weights": torch.tensor(float(step))})
        if step > 1:
            best = {"step": step - 2 if step == 7 else step, "reward": 0.5}
            checkpoint.write(tmp_path / "checkpoints", replace(manifest(step), best=best), {}, keep=2)
    checkpoint.prune_bests(tmp_path / "best", tmp_path / "checkpoints")
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == ["000005"]
    assert checkpoint.read_best(tmp_path / "best", 5)["weights"] == 5
    with pytest.raises(
        UserError, match=r"best/000003/weights\.pt: the best weights of this run cannot be read.*delete"
    ):
        checkpoint.read_best(tmp_path / "best", 3)
    path = tmp_path / "best/000005/weights.pt"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"best/000005/weights\.pt: .*cannot be read"):
        checkpoint.read_best(tmp_path / "best", 5)
