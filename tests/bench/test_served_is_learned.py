"""The figure `served_is_learned`: it measures each place by the code that a run uses, and sees a
loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import served_is_learned as figure
from rft.models import weights


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(figure, "STEPS", (1,))
    figure._write("qwen3", tmp_path / "qwen3")
    return tmp_path / "qwen3"


def measured(source: Path, dtype: Any, kind: Any) -> figure.Found:
    ((_, found),) = figure._measured(figure.Setting("qwen3", dtype, kind, 1e-5), source, source.parent)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "full"])
def test_in_bfloat16_nothing_is_lost_and_what_would_lose_it_is_refused(source: Path, kind: str):
    found = measured(source, "bfloat16", kind)
    assert min(found.cosines.values()) >= 0.99
    assert set(found.cosines) == {"sampled", "judged", "exported", "served"}
    assert "refused: --dtype bfloat16: of what was learned, only a cosine of 0." in found.refused
    assert "Choose --dtype float32" in found.refused
    assert ("leave --merge out" in found.refused) == (kind == "lora")


@pytest.mark.slow
def test_a_merged_sampler_is_seen(source: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(weights, "sampler_copy", weights.merged_copy)
    found = measured(source, "bfloat16", "lora")
    assert found.cosines["sampled"] < 0.5
    assert found.cosines["judged"] >= 0.99
