"""Examples: games of Wordle that a player has begun and asks the agent to finish.

A game has a secret, and one guess that the player has made with the marks that it got. The agent
sees guess and marks, never the secret. Secret and given words of an example come from one split, so
no secret is asked for in two splits, and no input is in two of them.

A game does not begin on an empty board, because then all games would have the same input. Two
splits, or two weeks of traffic, could not be told apart.

The defaults are what the embedded policy of a million parameters can learn. For a real model set
`find: false`, so that it must keep the dictionary and the marks in mind. Also set `spelled: true`,
because its tokens are not words, and a larger `dictionary`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from rft.recipe import Conversation, Example, Message
from rft.tools.signatures import schema
from rft.types import Split

from . import tools, words
from .game import Game, clue

OPENINGS = (" so far", " we have", " my clue", " on the board", " i began with")
"""How a player tells what was guessed."""


class Options(BaseModel):
    """`recipe.options` of params.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    given: int = Field(1, ge=1, le=3)
    """How many guesses the player has made. Their words are random, so they help little, and each
    costs a turn."""
    find: bool = True
    """Whether the agent may look words up. Without it, the rows offer `guess` alone."""
    spelled: bool = False
    """Clues also give the marks letter by letter, for a model whose tokens are not words."""
    dictionary: str | None = None
    """A list of words, such as /usr/share/dict/words. null: our own list of 934 words."""

    @field_validator("dictionary")
    @classmethod
    def _can_be_played(cls, path: str | None) -> str | None:
        words.dictionary(path)
        return path


@dataclass(frozen=True)
class Board:
    """A game as the player leaves it to the agent."""

    opening: str
    secret: str
    given: tuple[str, ...]
    options: Options

    def game(self) -> Game:
        dictionary = words.dictionary(self.options.dictionary)
        return Game.begun(dictionary, self.secret, self.given, self.options.spelled)

    @property
    def text(self) -> str:
        game = self.game()
        clues = " ;".join(clue(move, self.options.spelled) for move in game.moves)
        return f"{self.opening}{clues}{game.state}"


def examples(options: Options, split: Split, count: int, seed: int) -> list[Example]:
    """Return examples, equal for equal arguments. Every secret of the split is used once before any
    is used again."""
    boards = deal(options, split, random.Random(f"{split} {seed}"))
    return [_example(f"{split}-{n:05d}", next(boards)) for n in range(count)]


def deal(
    options: Options, split: Split, rng: random.Random, openings: Sequence[str] = OPENINGS, favored: str = ""
) -> Iterator[Board]:
    """Yield games without end. `favored`: the given words have one of these letters."""
    known = words.dictionary(options.dictionary).of_split[split]
    first = [word for word in known if not favored or set(word) & set(favored)]
    if len(first) <= options.given:
        first = list(known)
    while True:
        for secret in rng.sample(known, len(known)):
            given = [word for word in rng.sample(first, options.given + 1) if word != secret]
            yield Board(rng.choice(openings), secret, tuple(given[: options.given]), options)


def answer(target: str) -> str:
    """Write what the agent says at the end. It earns nothing: only the game counts."""
    return f" {target}"


def turns(options: Options, example: Example, target: str) -> list[str]:
    """Return the messages that reach a target: one guess."""
    del options, example
    call = f'<tool_call>\n{{"name": "guess", "arguments": {{"word": " {target}"}}}}\n</tool_call>'
    return [call, answer(target)]


def from_traffic(options: Options, conversation: Conversation) -> Example | None:
    """Make an example of a conversation whose player told the word. None if a word in it is not a
    training word, which could leak what is tested, or if the marks do not fit."""
    secret, known = conversation.feedback, words.dictionary(options.dictionary).of_split["train"]
    text = next((message["content"] for message in conversation.messages if message["role"] == "user"), None)
    if not isinstance(secret, str) or secret not in known or not isinstance(text, str):
        return None
    clues = tools.clues_in(text)
    given = tuple(guess for guess, _ in clues)
    is_game = 0 < len(set(given) - {secret}) == len(given) <= tools.MAX_CLUES and set(given) <= set(known)
    if not is_game or any(marks != words.marks(guess, secret) for guess, marks in clues):
        return None
    return Example(
        f"traffic-{conversation.conversation_id}",
        ({"role": "user", "content": text},),
        secret,
        _metadata(given, options),
        tools=_offered(options),
    )


def features(messages: list[Message]) -> dict[str, str | list[str]]:
    """Return what drift compares beside lengths and words: how a player tells the board, how many
    guesses were made, how much they hit, and with which letters they begin."""
    text = next((message["content"] for message in messages if message["role"] == "user"), "")
    clues = tools.clues_in(text)
    return {
        "opening": text[: text.find(clues[0][0])].strip() if clues else "",
        "guesses": str(len(clues)),
        "hits": [str(words.LENGTH - marks.count(words.GRAY)) for _, marks in clues],
        "initial": [guess[0] for guess, _ in clues],
    }


def exploit_values(options: Options, example: Example) -> dict[str, str | list[str]]:
    """Return values for the placeholders of exploits.jsonl. `hit` is a guess that comes near the
    secret, `misses` are guesses that do not."""
    secret, given = example.target, example.metadata["given"]
    known = words.dictionary(options.dictionary).words
    others = [word for word in known if word != secret and word not in given]
    far = sorted(others, key=lambda word: (_nearness(word, secret), word))
    misses = {f"miss_{n}": word for n, word in zip("abcde", far, strict=False)}
    return {
        "secret": secret,
        "hit": far[-1],
        "hit_upper": far[-1].upper(),
        "given": given[0],
        "cyrillic": secret.translate(str.maketrans("aceopxyi", "асеорхуі")),
        "full_width": "".join(chr(ord(letter) + 0xFEE0) for letter in secret),
        "letters": " ".join(secret),
        "net": " ".join(sorted({secret, *far[:50]})),
        **misses,
    }


def _nearness(word: str, secret: str) -> int:
    found = words.marks(word, secret)
    return 2 * found.count(words.GREEN) + found.count(words.YELLOW)


def _example(example_id: str, board: Board) -> Example:
    return Example(
        example_id,
        ({"role": "user", "content": board.text},),
        board.secret,
        _metadata(board.given, board.options),
        tools=_offered(board.options),
    )


def _metadata(given: Sequence[str], options: Options) -> dict[str, Any]:
    """Put the settings into the example, because a tool knows nothing else."""
    metadata: dict[str, Any] = {"slice": str(len(given)), "given": list(given)}
    if not options.find:
        metadata["find"] = False
    if options.spelled:
        metadata["spelled"] = True
    if options.dictionary is not None:
        metadata["dictionary"] = options.dictionary
    return metadata


def _offered(options: Options) -> tuple[dict[str, Any], ...] | None:
    """Return the row's own tools, if it does not offer all of them."""
    return None if options.find else (schema(tools.guess),)
