"""Near-duplicates between splits: what counts as one, that each is found and none invented, and
that a template costs no more than it should."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft.reports import NearDuplicates
from rft.traffic import leakage
from rft.traffic.leakage import Text

SENTENCE = "please tell me where the parcel with my new winter boots from last week is now"


def found(known: list[str], asked: list[str], threshold: float = 0.8, seed: int = 0) -> NearDuplicates:
    groups = {
        "train": [Text(f"a{n}", text) for n, text in enumerate(known)],
        "test": [Text(f"b{n}", text) for n, text in enumerate(asked)],
    }
    (one,) = leakage.between(groups, threshold, seed)
    return one


def jaccard(a: str, b: str) -> float:
    """By definition, without signatures."""
    left, right = leakage.shingles(a), leakage.shingles(b)
    return len(left & right) / len(left | right) if left | right else 0.0


@pytest.mark.parametrize(
    ("text", "is_near"),
    [
        (SENTENCE, True),
        (SENTENCE.upper().replace(" ", " \n ") + "?!", True),  # case, spaces and punctuation do not count
        (SENTENCE + " please", True),  # 14 of 15 runs
        (SENTENCE.replace("winter", "summer"), False),  # 11 of 17 runs
        ("where is my parcel", False),
        ("", False),
    ],
)
def test_what_counts_as_a_near_duplicate(text: str, is_near: bool) -> None:
    assert found([SENTENCE], [text]).num_examples == is_near


def test_a_lower_threshold_finds_more() -> None:
    changed = [SENTENCE.replace("winter", "summer")]
    assert found([SENTENCE], changed, threshold=0.6).num_examples == 1


def test_numbers_tell_texts_apart() -> None:
    assert found(["order 1234 is late"], ["order 1235 is late"], 0.5).num_examples == 0


def test_short_texts_are_compared_as_a_whole() -> None:
    assert found(["hello you"], ["Hello, you!", "hello", "hello you there"]).pairs[0].id == "b0"
    assert found(["hello you"], ["Hello, you!", "hello", "hello you there"]).num_examples == 1


def test_texts_without_spaces_between_words() -> None:
    assert found(["我的包裹现在在哪里请告诉我"], ["我的包裹现在在哪里请告诉我吗"]).num_examples == 1
    assert found(["我的包裹现在在哪里请告诉我"], ["今天天气怎么样"]).num_examples == 0


def test_a_pair_is_named_with_its_similarity() -> None:
    report = found(["other words entirely here", SENTENCE, SENTENCE], ["no such", SENTENCE + " please"])
    assert report.model_dump() == {
        "of": "train",
        "inside": "test",
        "num_examples": 1,
        "share": 0.5,
        "pairs": [{"id": "b1", "repeats": "a1", "similarity": round(14 / 15, 4)}],
    }
    assert leakage.describe(report) == "1 example of test (50.0%) like one of train, such as b1 like a1 (0.93)"
    assert leakage.describe(found([SENTENCE], ["no such"])) == ""


def test_each_group_is_compared_with_each_later_one() -> None:
    groups = {name: [Text(name, SENTENCE)] for name in ("train", "validation", "test")}
    assert [(one.of, one.inside, one.num_examples) for one in leakage.between(groups, 0.8, 0)] == [
        ("train", "validation", 1),
        ("train", "test", 1),
        ("validation", "test", 1),
    ]


def mutated(rng: random.Random, words: list[str]) -> str:
    """A text with some of its words replaced: its similarity may be anything."""
    changed = list(words)
    for _ in range(rng.randrange(6)):
        changed[rng.randrange(len(changed))] = f"new{rng.randrange(1000)}"
    return " ".join(changed)


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.8, 0.95, 1.0])
def test_pairs_are_those_of_the_definition(threshold: float) -> None:
    rng = random.Random(1)
    originals = [[f"w{rng.randrange(5000)}" for _ in range(rng.randint(8, 60))] for _ in range(150)]
    known = [" ".join(words) for words in originals]
    asked = [mutated(rng, words) for words in originals]
    best = {f"b{n}": max(jaccard(text, other) for other in known) for n, text in enumerate(asked)}
    true = {name for name, value in best.items() if value >= threshold}
    report = found(known, asked, threshold)
    shown = {pair.id for pair in report.pairs}
    assert 10 < len(true) < 140 or threshold in (0.5, 1.0)
    assert shown <= true
    assert len(report.pairs) == min(10, report.num_examples)
    assert report.num_examples >= 0.97 * len(true)
    for pair in report.pairs:
        similarity = jaccard(asked[int(pair.id[1:])], known[int(pair.repeats[1:])])
        assert pair.similarity == round(similarity, 4) >= threshold


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text("ab 1.", max_size=20), max_size=6), st.lists(st.text("ab 1.", max_size=20), max_size=6))
def test_no_text_breaks_it_and_equal_ones_are_always_found(known: list[str], asked: list[str]) -> None:
    report = found(known, asked)
    equal = [text for text in asked if leakage.shingles(text) in [leakage.shingles(other) or None for other in known]]
    assert len(equal) <= report.num_examples <= len(asked)


def test_a_text_longer_than_is_hashed_at_once() -> None:
    long = " ".join(str(n) for n in range(25_000))
    report = found([long], [long + " end", " ".join(str(n) for n in range(21_000))])
    assert [(pair.id, pair.similarity) for pair in report.pairs] == [("b0", 1.0), ("b1", 0.84)]


@pytest.mark.parametrize("threshold", [0.5, 0.6, 0.8, 0.9, 0.99, 1.0])
def test_the_index_finds_a_pair_at_the_threshold(threshold: float) -> None:
    number, length = leakage.bands(threshold)
    assert number * length <= leakage.SIGNATURE
    assert 1 - (1 - threshold**length) ** number >= leakage.RECALL


def test_what_is_made_from_one_template_is_counted_once_each_and_in_time() -> None:
    template = " ".join(f"t{n}" for n in range(40))
    known = [Text(f"a{n}", f"{template} name{n} {template} u v w x y z") for n in range(3000)]
    asked = [Text(f"b{n}", f"{template} other{n} {template} u v w x y z") for n in range(300)]
    start = time.monotonic()
    (report,) = leakage.between({"train": known, "test": asked}, 0.8, 0)
    assert (report.num_examples, report.share, len(report.pairs)) == (300, 1.0, 10)
    assert time.monotonic() - start < 10


@pytest.mark.slow
def test_the_same_seed_finds_the_same_in_any_process() -> None:
    """Python orders sets differently in each process."""
    code = (
        "from rft.traffic import leakage\n"
        "texts = [' '.join(f'w{(n * k) % 97}' for k in range(30)) for n in range(1, 60)]\n"
        "groups = {'a': [leakage.Text(str(n), t) for n, t in enumerate(texts)],\n"
        "          'b': [leakage.Text(str(n), t + ' end of it') for n, t in enumerate(texts)]}\n"
        "found = leakage.between(groups, 0.8, 3)[0].digest()"
    )
    here: dict[str, str] = {}
    exec(code, here)
    there = subprocess.run(
        [sys.executable, "-c", f"{code}\nprint(found)"],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == here["found"]
