"""recipes/wordle: marks, the game and its record, the dictionary, and what a bad one is told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft import config, recipe
from rft.errors import UserError
from rft.recipe import Recipe


@pytest.fixture(scope="module")
def wordle() -> Recipe:
    return recipe.load(config.Recipe(path="recipes/wordle/recipe"))


@pytest.fixture(scope="module")
def words(wordle: Recipe) -> ModuleType:
    return wordle._module("words")


@pytest.fixture(scope="module")
def game(wordle: Recipe) -> ModuleType:
    return wordle._module("game")


# -- marks -----------------------------------------------------------------------------------------
def reference(guess: str, secret: str) -> str:
    """Say of each letter by itself what the rules say: no loop that takes letters away."""
    found = []
    for n, letter in enumerate(guess):
        if secret[n] == letter:
            found.append("g")
            continue
        unplaced = sum(secret[m] == letter != guess[m] for m in range(5))
        before = sum(guess[m] == letter != secret[m] for m in range(n))
        found.append("y" if before < unplaced else "x")
    return "".join(found)


few_letters = st.text("abc", min_size=5, max_size=5)


@pytest.mark.slow
@given(few_letters, few_letters)
@settings(max_examples=400)
def test_marks_are_those_of_the_rules_whatever_is_doubled(words: ModuleType, guess: str, secret: str) -> None:
    assert words.marks(guess, secret) == reference(guess, secret)


@given(few_letters, few_letters)
def test_no_letter_is_promised_more_often_than_it_is_there(words: ModuleType, guess: str, secret: str) -> None:
    marked = Counter(letter for letter, mark in zip(guess, words.marks(guess, secret), strict=True) if mark != "x")
    assert all(count <= secret.count(letter) for letter, count in marked.items())
    assert marked == Counter(guess) & Counter(secret)


@pytest.mark.parametrize(
    ("guess", "secret", "marks"),
    [
        ("crane", "crane", "ggggg"),
        ("error", "river", "yyxxg"),  # three of a letter that the secret has twice: the green goes first
        ("sweet", "steel", "gxggy"),
        ("geese", "eager", "yyyxx"),
        ("llama", "koala", "yxgxg"),
        ("abbey", "baked", "yyxgx"),
        ("pizza", "crowd", "xxxxx"),
    ],
)
def test_marks_of_doubled_letters(words: ModuleType, guess: str, secret: str, marks: str) -> None:
    assert words.marks(guess, secret) == marks


def test_what_fits_is_what_would_be_marked_so(words: ModuleType) -> None:
    known = words.dictionary()
    clues = [("crane", words.marks("crane", "eagle")), ("sheep", words.marks("sheep", "eagle"))]
    expected = {word for word in known.words if all(words.marks(guess, word) == marks for guess, marks in clues)}
    assert "eagle" in expected
    assert set(known.fitting(clues)) == expected
    assert known.fitting(clues) == known.fitting(list(clues)), "the same order again"
    assert known.fitting([("crane", "ggggg"), ("sheep", "ggggg")]) == []


# -- the game --------------------------------------------------------------------------------------
def begun(words: ModuleType, game: ModuleType, secret: str = "eagle", given: tuple[str, ...] = ("crane",)) -> Any:
    return game.Game.begun(words.dictionary(), secret, given)


def played(one: Any, *guesses: str) -> list[str]:
    start = len(one.moves)
    return [one.guess(word, f"call_{start + n}") for n, word in enumerate(guesses)]


def test_a_game_to_its_hit(words: ModuleType, game: ModuleType) -> None:
    one = begun(words, game)
    assert played(one, " sheep", " eagle") == [" sheep xxyyx , 4 left", " eagle ggggg , solved"]
    assert one.is_solved
    assert [move.word for move in one.own] == ["sheep", "eagle"]
    assert played(one, " maple", " eagle") == [" the game is over"] * 2, "the record stays as it is"
    assert len(one.moves) == 3


def test_a_game_that_is_lost(words: ModuleType, game: ModuleType) -> None:
    one = begun(words, game)
    assert played(one, "sheep", "maple", "table", "cable", "fable")[-1] == " fable xgxgg , 0 left"
    assert played(one, "eagle") == [" the game is over"]
    assert not one.is_solved


LOOK_ALIKE = ("eаgle", "ｅａｇｌｅ", "eagle\u200b")  # a Cyrillic letter, full width, a space of no width
NO_WORDS = ("", " ", "eagl", "eagles", "e a g l e", "eagle\n", "?????", "zzzzz", "eagle maple")


@pytest.mark.parametrize("wasted", [*NO_WORDS, *LOOK_ALIKE, "crane", " CRANE "])
def test_what_is_no_new_word_costs_a_turn(words: ModuleType, game: ModuleType, wasted: str) -> None:
    one = begun(words, game)
    (reply,) = played(one, wasted)
    assert reply == (" said before , 4 left" if "crane" in wasted.lower() else " no such word , 4 left")
    assert (one.num_left, one.is_solved, one.own[-1].marks) == (4, False, "")
    assert one.clues == [("crane", "xxyxg")]


def test_a_call_that_is_sent_again_gets_the_same_reply(words: ModuleType, game: ModuleType) -> None:
    one = begun(words, game)
    assert one.guess(" sheep", "call_0_0") == one.guess(" sheep", "call_0_0") == " sheep xxyyx , 4 left"
    assert one.guess(" maple", "call_0_0") == " maple xgxgg , 3 left", "another word is another call"
    assert one.guess(" sheep", "call_1_0") == " said before , 2 left"


@given(st.lists(st.one_of(st.sampled_from(["sheep", "maple", "eagle", "crane"]), st.text(max_size=8)), max_size=9))
def test_no_guess_breaks_a_game(words: ModuleType, game: ModuleType, guesses: list[str]) -> None:
    one = begun(words, game)
    played(one, *guesses)
    assert len(one.moves) <= game.GUESSES
    assert one.is_solved is ("eagle" in [move.word for move in one.moves])


@pytest.mark.parametrize(
    ("secret", "given"),
    [("zzzzz", ("crane",)), ("eagle", ()), ("eagle", ("eagle",)), ("eagle", ("crane",) * 2), ("eagle", ("zzzzz",))],
)
def test_a_broken_row_makes_no_game(words: ModuleType, game: ModuleType, secret: str, given: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"target|given"):
        begun(words, game, secret, given)


def test_marks_letter_by_letter(words: ModuleType, game: ModuleType) -> None:
    one = game.Game.begun(words.dictionary(), "eagle", ("crane",), is_spelled=True)
    spelled = " sheep xxyyx ( s gray , h gray , e yellow , e yellow , p gray ) , 4 left"
    assert played(one, "sheep") == [spelled]


# -- the dictionary --------------------------------------------------------------------------------
def test_our_own_list(words: ModuleType) -> None:
    known = words.dictionary()
    assert len(known.words) > 900
    assert known.words == tuple(sorted(set(known.words)))
    shares = {split: len(some) / len(known.words) for split, some in known.of_split.items()}
    assert shares == pytest.approx({"train": 0.6, "validation": 0.2, "test": 0.2}, abs=0.03)
    assert sum(len(some) for some in known.of_split.values()) == len(known.words)


def test_a_dictionary_of_the_users_own(wordle: Recipe, words: ModuleType, tmp_path: Path) -> None:
    """As Debian's: names, abbreviations and other lengths are in it, and are left out."""
    path = tmp_path / "words"
    path.write_text("Aaron\nAaron's\nABC\nat\n" + "\n".join(words.dictionary().words[:200]) + "\nélans\nlonger\n")
    assert words.dictionary(str(path)).words == words.dictionary().words[:200]
    options = {"dictionary": str(path)}
    own = recipe.load(config.Recipe(path="recipes/wordle/recipe", options=options))
    (example, *_) = own.examples("test", 4, 0)
    assert example.metadata["dictionary"] == str(path)
    assert example.target in words.dictionary().words[:200]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"crane\n", "words in it: 1; different ones of 5 letters a to z: 1, and a game needs 100"),
        (b"at\nlonger\nCrane\n", "words in it: 3; different ones of 5 letters a to z: 0"),
        (b"crane\n" * 200, "words in it: 200; different ones of 5 letters a to z: 1"),
        (b"", "words in it: 0;"),
        (b"cr\xe9me\n", "byte 2 is not UTF-8"),
        (None, "cannot be read (No such file or directory)"),
    ],
)
def test_a_dictionary_that_is_none(tmp_path: Path, content: bytes | None, what: str) -> None:
    path = tmp_path / "words"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as error:
        recipe.load(config.Recipe(path="recipes/wordle/recipe", options={"dictionary": str(path)}))
    message = str(error.value)
    assert message.startswith(f"params.yaml: recipe.options.dictionary = {str(path)!r}: ")
    assert what in message
    assert message.endswith(
        "Name a list of English words, one a line, such as /usr/share/dict/words, or remove the key."
    )


def test_a_dictionary_whose_hash_leaves_a_split_empty(words: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text("\n".join(words.dictionary().of_split["train"][:150]))
    with pytest.raises(UserError, match="the hash leaves 0 for validation, which needs 4"):
        words.dictionary(str(path))
