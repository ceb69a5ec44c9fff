"""The profile of a window of traffic: a few columns over its conversations, and their counts over
fixed bins.

Three groups. *Input* is what people ask: how long, in which words and phrases, and the categories
that the recipe names (such as the chapter mix). *Agent* is what our side did: which tools, how
often, in how many turns, how slowly, with how many errors. *Performance* is what graders of
production thought of the answer. A profile made from examples has the first group only.

    feature          group        bins                                    statistic
    input_words      input        whole numbers, then 10 % apart          wasserstein_sd
    vocabulary       input        256 hash buckets, every word counted    total_variation
    phrasing         input        a sample: hashed words in order         classifier_auc
    (the recipe's)   input        the categories                          total_variation
    tool_mix         agent        names of the tools called               total_variation
    num_tool_calls   agent        whole numbers                           wasserstein_sd
    num_turns        agent        whole numbers                           wasserstein_sd
    tool_errors      agent        0, 1, 2, 3 or more                      total_variation
    latency_s        agent        a quarter of an octave                  psi
    corrected        performance  as answered, corrected                  total_variation

Bins are fixed, not quantiles of a window, so any two profiles can be compared without the rows.
Words are hashed (CRC-32, all numbers as one), so that a profile has one size in any language, and
holds no text.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import sparse

from rft import files, reports, shelves
from rft.config import Params
from rft.errors import UserError
from rft.recipe import Recipe
from rft.reports import Conversation, Feature, FeatureGroup, Profile, Statistic
from rft.types import Example, Message

Kind = Literal["numeric", "category", "text"]
BUCKETS = 256
HASHES = 4096
SAMPLE = 400
"""Conversations whose hashed words a profile keeps for the classifier: about 40 KB."""
MAX_VALUES = 100
OTHER = "(other)"

_WHOLE = [k + 0.5 for k in range(32)]
_WORD_EDGES = [*_WHOLE, *(round(32.5 * 1.1**k, 2) for k in range(1, 90))]
_SECOND_EDGES = [round(0.01 * 2 ** (k / 4), 6) for k in range(73)]
_BUCKET_NAMES = tuple(str(n) for n in range(BUCKETS))
_ERROR_COUNTS = ("0", "1", "2", "3 or more")
_GRADES = ("as answered", "corrected")
_WORD = re.compile(r"[^\W\d_]+|\d+")


@dataclass(frozen=True, slots=True)
class Column:
    """One feature of every conversation, in order.

    `rows` hold a number or None (numeric), a list of values or None (category, such as
    [["search", "search"], []]), or hashed words (text). A category with fixed `values` counts only
    these; otherwise those met, and the rest as `(other)`.
    """

    kind: Kind
    group: FeatureGroup
    statistic: Statistic
    rows: Sequence[Any]
    edges: tuple[float, ...] = ()
    values: tuple[str, ...] = ()


Columns = dict[str, Column]


# -- rows to columns -------------------------------------------------------------------------------
def input_messages(messages: Sequence[Message]) -> list[Message]:
    """Return what the agent was given: all before its first word."""
    first = next((n for n, message in enumerate(messages) if message["role"] in ("assistant", "tool")), len(messages))
    return list(messages[:first])


def user_text(messages: Sequence[Message]) -> str:
    return "\n".join(
        str(message["content"]) for message in messages if message["role"] == "user" and message.get("content")
    )


def words(text: str) -> list[str]:
    """Split into lower-case words; a number is `0`, since ages and dates are no vocabulary."""
    return ["0" if word.isdigit() else word for word in _WORD.findall(text.lower())]


def word_hash(word: str) -> int:
    return zlib.crc32(word.encode()) % HASHES


def input_columns(inputs: Sequence[Sequence[Message]], recipe: Recipe) -> Columns:
    tokens = [words(user_text(messages)) for messages in inputs]
    hashes = [[word_hash(word) for word in row] for row in tokens]
    buckets = [[str(number % BUCKETS) for number in row] for row in hashes]
    found: Columns = {
        "input_words": Column("numeric", "input", "wasserstein_sd", [len(row) for row in tokens], tuple(_WORD_EDGES)),
        "vocabulary": Column("category", "input", "total_variation", buckets, values=_BUCKET_NAMES),
        "phrasing": Column("text", "input", "classifier_auc", [" ".join(map(str, row)) for row in hashes]),
    }
    named = [recipe.features(list(messages)) for messages in inputs]
    for name in sorted({name for row in named for name in row}):
        if name in _OURS:
            what = f"{recipe.folder}/examples.py: features() names a feature '{name}', which is one of rft's own"
            raise UserError(f"{what}. Use another name.")
        found[name] = Column("category", "input", "total_variation", [_as_list(row.get(name)) for row in named])
    return found


def agent_columns(conversations: Sequence[Conversation]) -> Columns:
    called = [tool_names(conversation) for conversation in conversations]
    turns = [sum(message["role"] == "assistant" for message in conversation.messages) for conversation in conversations]
    errors = [None if c.tool_errors is None else [_ERROR_COUNTS[min(max(c.tool_errors, 0), 3)]] for c in conversations]
    graded = [None if c.feedback is None else [_GRADES[was_corrected(c)]] for c in conversations]
    return {
        "tool_mix": Column("category", "agent", "total_variation", called),
        "num_tool_calls": Column("numeric", "agent", "wasserstein_sd", [len(row) for row in called], tuple(_WHOLE)),
        "num_turns": Column("numeric", "agent", "wasserstein_sd", turns, tuple(_WHOLE)),
        "tool_errors": Column("category", "agent", "total_variation", errors, values=_ERROR_COUNTS),
        "latency_s": Column("numeric", "agent", "psi", [c.latency_s for c in conversations], tuple(_SECOND_EDGES)),
        "corrected": Column("category", "performance", "total_variation", graded, values=_GRADES),
    }


_OURS = {"input_words", "vocabulary", "phrasing", "tool_mix", "num_tool_calls", "num_turns", "tool_errors"}
_OURS |= {"latency_s", "corrected"}


def columns(conversations: Sequence[Conversation], recipe: Recipe) -> Columns:
    return input_columns([input_messages(c.messages) for c in conversations], recipe) | agent_columns(conversations)


def tool_names(conversation: Conversation) -> list[str]:
    return [call["function"]["name"] for message in conversation.messages for call in message.get("tool_calls") or []]


def was_corrected(conversation: Conversation) -> bool:
    """Tell whether the feedback differs from the last assistant message. JSON is compared as JSON,
    lists without order, and an object of one key as its value: `{"codes": ["I10"]}` agrees with
    feedback `["I10"]`."""
    answers = [message.get("content") or "" for message in conversation.messages if message["role"] == "assistant"]
    return not answers or _canonical(answers[-1]) != _canonical(conversation.feedback)


def _canonical(value: Any) -> str:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return json.dumps(value.strip())
    if isinstance(value, dict) and len(value) == 1:
        value = next(iter(value.values()))
    if isinstance(value, list):
        value = sorted(json.dumps(one, sort_keys=True) for one in value)
    return json.dumps(value, sort_keys=True)


def _as_list(value: Any) -> list[str] | None:
    if value is None:
        return None
    return [value] if isinstance(value, str) else [str(item) for item in value]


# -- columns to counts -----------------------------------------------------------------------------
def of_examples(examples: Sequence[Example], recipe: Recipe, source: str) -> Profile:
    found = input_columns([input_messages(example.messages) for example in examples], recipe)
    return summarize(found, source, [example.id for example in examples])


def reference(params: Params, loaded: Recipe) -> Profile:
    """Find what a window is compared with: the champion's profile, or before the first promotion
    that of the recipe's training examples."""
    champion = shelves.champion()
    if champion.profile_path is not None:
        path = shelves.folder("champion") / champion.profile_path
        found = reports.read(Profile, path)
        if champion.profile_sha256 not in (None, files.sha256(path)):
            named = f"{shelves.path(reports.Champion)} names {champion.profile_sha256}"
            raise UserError(f"{path}: not the champion's profile: {named}. Restore it: dvc checkout {path}.dvc")
        return found
    examples = loaded.examples("train", params.examples.train, params.examples.seed)
    return of_examples(examples, loaded, f"the training examples of recipe {loaded.name}")


def of_conversations(conversations: Sequence[Conversation], recipe: Recipe, source: str) -> Profile:
    return summarize(columns(conversations, recipe), source, [c.conversation_id for c in conversations])


def summarize(found: Columns, source: str, ids: Sequence[str]) -> Profile:
    return Profile(
        source=source,
        num_conversations=len(ids),
        features={name: feature(column, ids) for name, column in found.items()},
    )


def feature(column: Column, ids: Sequence[str]) -> Feature:
    num_present = sum(row is not None for row in column.rows)
    bare = Feature(
        kind=column.kind,
        group=column.group,
        statistic=column.statistic,
        n=num_present,
        nulls=len(column.rows) - num_present,
    )
    if column.kind == "text":
        return bare.model_copy(update={"sample": [column.rows[n] for n in sampled(ids)]})
    if column.kind == "category":
        axis = bare.model_copy(update={"values": list(column.values) or _met(column)})
    else:
        numbers = np.array([row for row in column.rows if row is not None], dtype=np.float64)
        moments = {"mean": round(float(numbers.mean()), 6), "sd": round(float(numbers.std()), 6)} if num_present else {}
        axis = bare.model_copy(update={"edges": list(column.edges)} | moments)
    counts = np.asarray(matrix(column, axis).sum(axis=0), dtype=np.int64).ravel()
    return axis.model_copy(update={"counts": counts.tolist()})


def _met(column: Column) -> list[str]:
    """List the MAX_VALUES most frequent values by name, and a bin for all others."""
    tally = Counter(value for row in column.rows for value in row or ())
    frequent = sorted(tally, key=lambda value: (-tally[value], value))[:MAX_VALUES]
    return [*sorted(frequent), OTHER]


def matrix(column: Column, axis: Feature) -> sparse.csr_matrix:
    """Count by conversation that has a value, and by bin of `axis`."""
    present = [row for row in column.rows if row is not None]
    if axis.kind == "numeric":
        bins = np.searchsorted(axis.edges, np.asarray(present, dtype=np.float64))
        return _sparse(bins, np.arange(len(present) + 1), len(axis.edges) + 1)
    position = {value: n for n, value in enumerate(axis.values)}
    other = position.get(OTHER, -1)
    bins = np.array([position.get(value, other) for row in present for value in row], dtype=np.int64)
    assert (bins >= 0).all(), "a category with fixed values met another"
    return _sparse(bins, np.cumsum([0, *(len(row) for row in present)]), len(axis.values))


def text_matrix(rows: Sequence[str]) -> sparse.csr_matrix:
    """Mark which hashed words and pairs of neighbors occur in each row."""
    found: list[list[int]] = []
    for row in rows:
        ids = [int(number) for number in row.split()]
        pairs = [HASHES + (a * 31 + b) % HASHES for a, b in itertools.pairwise(ids)]
        found.append(sorted({*ids, *pairs}))
    bins = np.array([number for row in found for number in row], dtype=np.int64)
    return _sparse(bins, np.cumsum([0, *map(len, found)]), 2 * HASHES)


def _sparse(bins: Any, row_ends: Any, width: int) -> sparse.csr_matrix:
    counts = sparse.csr_matrix((np.ones(len(bins)), bins, row_ends), shape=(len(row_ends) - 1, width))
    counts.sum_duplicates()
    return counts


def sampled(ids: Sequence[str]) -> list[int]:
    """Choose at most SAMPLE rows by the hash of their ids, whatever the order; return positions."""
    order = sorted(range(len(ids)), key=lambda n: hashlib.sha256(ids[n].encode()).digest())
    return sorted(order[:SAMPLE])
