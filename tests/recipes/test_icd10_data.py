"""recipes/icd10: the classification, the search and the examples."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from pydantic import ValidationError

from rft import config, recipe
from rft.errors import UserError
from rft.recipe import Recipe
from rft.reports import Conversation
from rft.stages import examples


@pytest.fixture(scope="module")
def icd10() -> Recipe:
    return recipe.load(config.Recipe(path="recipes/icd10"))


@pytest.fixture(scope="module")
def codes(icd10: Recipe) -> ModuleType:
    return icd10._module("codes")


@pytest.fixture(scope="module")
def index(icd10: Recipe) -> ModuleType:
    return icd10._module("index")


@pytest.fixture(scope="module")
def data(icd10: Recipe) -> ModuleType:
    return icd10._module("examples")


def test_whole_classification(codes: ModuleType) -> None:
    known = codes.catalogue()
    assert sum(known.is_leaf) == 74_719  # the package lists 74,736; 17 are there twice, as a code and as a block of one
    assert known.text("I20.9") == "angina pectoris unspecified"
    assert known.chapter("I20.9") == "I00-I99"
    assert "ischemic chest pain" in known.terms["I20.9"]
    assert known.has_leaf("I10")
    assert not known.has_leaf("I20")
    assert "I20.9" in known.children("I20")


def test_words_are_folded(codes: ModuleType) -> None:
    assert codes.words("Crohn's disease, NOS (Ménière)") == "crohns disease nos meniere"


def test_splits_are_disjoint_and_stable(codes: ModuleType) -> None:
    by_split = {split: codes.pairs(split) for split in ("train", "validation", "test")}
    owned = {split: {code for _, code in pairs} for split, pairs in by_split.items()}
    assert not owned["train"] & owned["validation"]
    assert not owned["train"] & owned["test"]
    assert not owned["validation"] & owned["test"]
    assert {split: len(found) for split, found in owned.items()} == {"train": 2797, "validation": 310, "test": 335}
    assert {split: len(pairs) for split, pairs in by_split.items()} == {"train": 5156, "validation": 580, "test": 679}
    assert [codes.split_of(code) for code in ("I20.9", "J18.9", "I10")] == ["train", "train", "test"]


def test_a_term_stands_for_one_code(codes: ModuleType) -> None:
    for split in ("train", "validation", "test"):
        for term, code in codes.pairs(split):
            assert codes.names()[term] == {code}
            assert len(term) <= codes.MAX_CHARACTERS


def test_cache_is_read_again_after_it_is_lost(
    codes: ModuleType, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes, "CACHE", tmp_path / "cache")
    fresh = codes.catalogue.__wrapped__()
    assert fresh.codes == codes.catalogue().codes
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".json"]
    assert codes.catalogue.__wrapped__() == fresh


# -- search ----------------------------------------------------------------------------------------
def sample(codes: ModuleType, count: int) -> list[tuple[str, str]]:
    return random.Random(0).sample(codes.pairs("train"), count)


def test_search_quality(codes: ModuleType, index: ModuleType, data: ModuleType) -> None:
    pairs, rng, options = sample(codes, 400), random.Random(1), data.Options()
    whole = [index.search(term, 3)[0].code == code for term, code in pairs]
    noted = [index.search(data._perturb(term, options, rng), 3)[0].code == code for term, code in pairs]
    hidden = [index.search(term, 1, frozenset([term])) for term, _ in pairs]
    assert sum(whole) / len(whole) >= 0.98
    assert sum(noted) / len(noted) >= 0.9
    assert (
        0.1
        < sum(bool(hits) and hits[0].code == code for hits, (_, code) in zip(hidden, pairs, strict=True)) / len(pairs)
        < 0.4
    )


@pytest.mark.slow
def test_hits_are_those_of_a_full_sort(codes: ModuleType, index: ModuleType) -> None:
    """The thresholds save time and change nothing."""
    built = index.index()
    for term, _ in sample(codes, 25):
        scores = [0.0] * len(built.rows)
        for word in term.split():
            for n in range(*built.names.starts[built.names.words[word] :][:2]):
                scores[built.names.documents[n]] += float(built.names.weights[n])
        best: dict[str, float] = {}
        for (_, code), score in zip(built.rows, scores, strict=True):
            best[code] = max(best.get(code, 0.0), score)
        wanted = sorted((round(-score, 3), code) for code, score in best.items() if score > 0)[:5]
        assert [round(-best[hit.code], 3) for hit in built.search(term, 5)] == [score for score, _ in wanted]


def test_ties_go_to_the_lower_code(index: ModuleType) -> None:
    hits = index.index().search("fracture", 10)
    assert len({hit.code for hit in hits}) == 10
    assert hits == index.index().search("fracture fracture", 10)


def test_no_word_known(index: ModuleType) -> None:
    assert index.search("qqqq zzzz", 3) == ()
    assert index.search("", 3) == ()


def test_lines(codes: ModuleType) -> None:
    assert codes.line("angina nos", "I20.9") == " angina nos | I20.9"
    assert codes.line("angina nos", "I20.9", "code | description") == " I20.9 | angina nos"
    clipped = codes.line("coma scale best motor response abnormal flexion at arrival", "R40.2331")
    assert clipped == " coma scale best motor response abnormal | R40.2331"


# -- examples --------------------------------------------------------------------------------------
def parts(data: ModuleType, codes: ModuleType, note: str) -> Iterator[str]:
    for part in data.stretches(note):
        for prefix in codes.DISTRACTORS:
            part = part.removeprefix(prefix)
        yield part


def terms_and_shortened(pairs: list[tuple[str, str]]) -> set[str]:
    found: set[str] = set()
    for term, _ in pairs:
        words = term.split()
        found |= {term, *(" ".join(words[:n] + words[n + 1 :]) for n in range(len(words)))}
    return found


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_notes_hold_their_split_only(icd10: Recipe, codes: ModuleType, data: ModuleType, split: Any) -> None:
    allowed = terms_and_shortened(codes.pairs(split))
    for example in icd10.examples(split, 300, 0):
        assert all(codes.split_of(code) == split for code in example.target)
        assert set(parts(data, codes, example.messages[0]["content"])) <= allowed


def test_form_of_an_example(icd10: Recipe, codes: ModuleType) -> None:
    found = icd10.examples("train", 300, 0)
    assert [example.id for example in found[:2]] == ["train-00000", "train-00001"]
    for example in found:
        note = example.messages[0]["content"]
        assert len(example.messages) == 1
        assert note == f" {' '.join(note.split())}" == note.lower()
        assert example.target == sorted(set(example.target))
        assert example.slice == str(len(example.target))
        assert example.metadata["chapters"] == sorted({codes.catalogue().chapter(code) for code in example.target})
    assert {example.slice for example in found} == {"1", "2", "3"}


def test_no_note_is_a_text_of_the_index(icd10: Recipe, codes: ModuleType) -> None:
    found = icd10.examples("train", 600, 0)
    phrases = [phrase for example in found for phrase in example.metadata["phrases"]]
    long = [phrase for phrase in phrases if len(phrase.split()) >= 3]
    assert not any(codes.words(example.messages[0]["content"]) in codes.names() for example in found)
    assert sum(phrase not in codes.names() for phrase in phrases) / len(phrases) > 0.2
    assert sum(phrase in codes.names() for phrase in long) / len(long) < 0.65


def test_distractors_in_their_share(data: ModuleType, codes: ModuleType) -> None:
    for share in (0.0, 0.5):
        notes = [
            example.messages[0]["content"]
            for example in data.examples(data.Options(distractor_share=share), "train", 400, 0)
        ]
        has = [any(part.startswith(codes.DISTRACTORS) for part in data.stretches(note)) for note in notes]
        assert abs(sum(has) / len(has) - share) < 0.08


def test_same_seed_same_bytes(icd10: Recipe) -> None:
    first, again, other = (json.dumps([e.row() for e in icd10.examples("validation", 50, seed)]) for seed in (3, 3, 4))
    assert first == again != other
    assert icd10.examples("validation", 20, 3) == icd10.examples("validation", 50, 3)[:20]


def test_blocks_share_no_code_and_hold_test_codes_only(icd10: Recipe, codes: ModuleType, data: ModuleType) -> None:
    assert icd10.offers_blocks
    section = config.Examples(test=288, blocks=1 + codes.FRESH_BLOCKS)
    blocks = examples.tested(icd10, section)
    assert set(examples.check_blocks(blocks, disjoint_targets=True).values()) == {0}
    assert blocks[0] == icd10.examples("test", 288, 0), "the first is what it was before there were others"
    for block in range(1, 1 + codes.FRESH_BLOCKS):
        allowed = terms_and_shortened(codes.fresh_pairs(block))
        for example in blocks[block]:
            assert all(codes.split_of(code) == "test" for code in example.target)
            assert set(parts(data, codes, example.messages[0]["content"])) <= allowed
    with pytest.raises(UserError, match=r"no block 3 of test examples: the classification has codes for 0 to 2"):
        icd10.examples("test", 4, 0, 3)


def test_unknown_options_are_refused(data: ModuleType) -> None:
    with pytest.raises(ValidationError):
        data.Options(distractors=0.5)
    with pytest.raises(ValidationError):
        data.Options(max_diagnoses=0)


# -- traffic to examples ---------------------------------------------------------------------------
def conversation(feedback: Any, note: str = " patient with angina nos , no gout") -> Conversation:
    return Conversation(
        conversation_id="c1",
        time="2026-01-05T08:00:00Z",
        messages=[
            {"role": "system", "content": " s"},
            {"role": "user", "content": note},
            {"role": "assistant", "content": '{"codes": []}'},
        ],
        latency_s=1.0,
        tool_errors=0,
        feedback=feedback,
    )


def test_graded_traffic_becomes_an_example(icd10: Recipe) -> None:
    example = icd10.from_traffic(conversation(["I20.9", "G43.909", "I20.9"]))
    assert example is not None
    assert example.id == "traffic-c1"
    assert example.target == ["G43.909", "I20.9"]
    assert example.messages == ({"role": "user", "content": " patient with angina nos , no gout"},)
    assert example.metadata["phrases"] == ["angina nos"]


def test_traffic_that_could_leak_or_is_no_grade(icd10: Recipe, codes: ModuleType) -> None:
    held_out = codes.pairs("test")[0][1], codes.pairs("validation")[0][1]
    for feedback in (None, [], "I20.9", ["I20.9", held_out[0]], [held_out[1]], ["I20"], ["nonsense"], [1]):
        assert icd10.from_traffic(conversation(feedback)) is None
    assert icd10.from_traffic(conversation(["I20.9"], note=" ")) is None


def test_features_come_from_the_note(icd10: Recipe) -> None:
    note = {"role": "user", "content": " patient with angina nos , ocular migraine"}
    assert icd10.features([note]) == {"chapter": ["I00-I99", "G00-G99"], "opening": "patient"}
    assert icd10.features([note, {"role": "assistant", "content": '{"codes": ["A00.0"]}'}]) == icd10.features([note])
