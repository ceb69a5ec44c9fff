"""Worlds in which to try the statistics of drift: windows of traffic whose truth is known.

A world says how conversations depend on each other. Conversations belong to users, and a share
`icc` of a conversation's traits belongs to its user: its length, its topic, which tool is called,
how slowly it is answered. In a bursty world the number of calls has a heavy tail, and the calls of
one conversation resemble each other. If days differ, a share `of_day` belongs to the day.

A window has 16 features of every kind that a profile has: numbers with and without heavy tails,
categories of 2 to 400 values, lists, words and text. They are counted as a profile counts them, per
group of users (rft/traffic/schema.py). Words and text are counted on one conversation per user. A
`Change` is what is injected on purpose: more or less of one thing.

Arrays: N = conversations, C = calls, W = words, in the order of the conversations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from scipy.special import ndtr

from rft.drift import owners
from rft.drift.labels import Labels
from rft.drift.owners import Owners
from rft.reports import Feature, FeatureGroup, Profile, Statistic
from rft.traffic.schema import GROUPS
from rft.traffic.texts import BUCKETS, HASHES

Kind = Literal[
    "longer inputs",
    "larger amounts",
    "another channel",
    "a new intent",
    "other products",
    "other topics",
    "other phrasing",
    "another tool",
    "more calls",
    "slower answers",
    "more errors",
    "more refusals",
]
CHANGES: dict[Kind, tuple[str, float, float]] = {
    "longer inputs": ("input_words", 0.25, 0.75),
    "larger amounts": ("amount", 0.25, 0.75),
    "another channel": ("channel", 0.1, 0.5),
    "a new intent": ("intent", 0.1, 0.35),
    "other products": ("product", 0.15, 0.5),
    "other topics": ("vocabulary", 0.3, 0.9),
    "other phrasing": ("phrasing", 0.3, 0.9),
    "another tool": ("tool_mix", 0.1, 0.4),
    "more calls": ("num_tool_calls", 0.25, 0.75),
    "slower answers": ("latency_s", 0.25, 0.9),
    "more errors": ("tool_errors", 0.03, 0.15),
    "more refusals": ("refused", 0.08, 0.35),
}
"""Kind -> the feature that it moves, and by how much in its smaller and larger size."""


@dataclass(frozen=True, slots=True)
class World:
    """How conversations depend on each other, and how many there are on either side."""

    name: str
    reference: int = 1000
    current: int = 1000
    per_user: int = 1  # conversations of one user
    reference_per_user: int | None = None  # if it differs in the reference
    icc: float = 0.0
    bursty: bool = False
    days: int = 7
    reference_days: int | None = None  # if it differs in the reference
    of_day: float = 0.0


@dataclass(frozen=True, slots=True)
class Change:
    kind: Kind
    size: float


@dataclass(frozen=True, slots=True)
class Window:
    """A profile, and the rows behind it, one value per conversation, for tools that read rows."""

    profile: Profile
    rows: dict[str, Any] = field(default_factory=dict)


def pair(world: World, seed: Sequence[int], change: Change | None = None, rows: bool = False) -> tuple[Window, Window]:
    """Draw a reference and a current window. `change` is made in the current one."""
    rng = np.random.default_rng(seed)
    of_reference = world.per_user if world.reference_per_user is None else world.reference_per_user
    days = world.reference_days or world.days
    reference = window(replace(world, days=days), world.reference, of_reference, rng, rows=rows)
    return reference, window(world, world.current, world.per_user, rng, change, rows)


# -- a population ----------------------------------------------------------------------------------
_WHOLE = [k + 0.5 for k in range(32)]
_WORDS = [*_WHOLE, *(round(32.5 * 1.1**k, 2) for k in range(1, 90))]
_SECONDS = [round(0.01 * 2 ** (k / 4), 6) for k in range(73)]
_AMOUNTS = [round(2 ** (k / 4), 6) for k in range(-20, 60)]
TEXTS = 200
"""Conversations of a side in the sample of text. The classifier's time grows with their cube."""
TOPICS, TEMPLATES, VOCABULARY, TOOLS, SHAPES, PRODUCTS = 12, 6, 2000, 8, 30, 400


@dataclass(frozen=True, slots=True)
class Language:
    """Each word has a hash, each topic has its own words, and a template is six opening words."""

    hash_W: Any
    topics_TW: Any  # cumulative shares
    common_W: Any
    templates: Any


@cache
def language() -> Language:
    rng = np.random.default_rng(7)
    zipf = 1 / np.arange(1, VOCABULARY + 1)
    topics = np.stack([rng.permutation(zipf) for _ in range(TOPICS)])
    return Language(
        rng.integers(0, HASHES, VOCABULARY),
        np.cumsum(topics / topics.sum(axis=1, keepdims=True), axis=1),
        np.cumsum(zipf / zipf.sum()),
        rng.integers(0, VOCABULARY, (TEMPLATES, 6)),
    )


def zipf(num: int, power: float = 1.0) -> Any:
    weights = np.arange(1, num + 1) ** -power
    return weights / weights.sum()


class _Drawer:
    """Draws the traits of one window. Each has a user's part and a conversation's own part."""

    def __init__(self, num: int, per_user: int, world: World, rng: np.random.Generator) -> None:
        self.num, self.rng, self.icc = num, rng, world.icc if per_user > 1 else 0.0
        self.of_day, self.num_days = world.of_day, world.days
        self.day_N = rng.integers(0, world.days, num)
        self.user_N = np.arange(num) // per_user
        self.num_users = int(self.user_N[-1]) + 1
        self.group_N = rng.integers(0, GROUPS, self.num_users)[self.user_N]
        self.owners = Owners(self.group_N, self.day_N)

    def normal(self) -> Any:
        of_user = self.rng.standard_normal(self.num_users)[self.user_N]
        of_day = self.rng.standard_normal(self.num_days)[self.day_N]
        own = np.sqrt(1 - self.icc - self.of_day) * self.rng.standard_normal(self.num)
        return np.sqrt(self.icc) * of_user + np.sqrt(self.of_day) * of_day + own

    def category(self, shares: Any) -> Any:
        return np.minimum(np.searchsorted(np.cumsum(shares), ndtr(self.normal())), len(shares) - 1)

    def favorite(self, shares: Any) -> Any:
        """Draw a nominal trait: a conversation takes its user's favorite, or any value. Two
        conversations of a user agree by chance, or in a share icc."""
        of_user = self.rng.choice(len(shares), self.num_users, p=shares)[self.user_N]
        of_day = self.rng.choice(len(shares), self.num_days, p=shares)[self.day_N]
        own = self.rng.choice(len(shares), self.num, p=shares)
        own = np.where(self.rng.random(self.num) < np.sqrt(self.of_day), of_day, own)
        return np.where(self.rng.random(self.num) < np.sqrt(self.icc), of_user, own)

    def some(self, share: float) -> Any:
        return self.rng.random(self.num) < share


def window(
    world: World,
    num: int,
    per_user: int,
    rng: np.random.Generator,
    change: Change | None = None,
    rows: bool = False,
) -> Window:
    """Draw a window of `num` conversations, and count it."""
    by = {} if change is None else {change.kind: change.size}
    draw = _Drawer(num, per_user, world, rng)
    words = np.floor(np.exp(3.2 + 0.6 * (draw.normal() + by.get("longer inputs", 0.0)))).astype(np.int64) + 1
    amount = np.exp(1.5 * (draw.normal() + by.get("larger amounts", 0.0)))
    channel = np.where(draw.some(by.get("another channel", 0.0)), 3, draw.category([0.5, 0.3, 0.15, 0.05]))
    spoken = draw.favorite(zipf(8, 1.5))
    intent = np.where(draw.some(by.get("a new intent", 0.0)), 20, draw.favorite(zipf(20)))
    product = draw.favorite(zipf(PRODUCTS))
    product = np.where(draw.some(by.get("other products", 0.0)), (product * 7 + 50) % PRODUCTS, product)
    topic = np.where(draw.some(by.get("other topics", 0.0)), 0, draw.favorite(np.full(TOPICS, 1 / TOPICS)))
    latency = np.exp(0.5 + 0.8 * (draw.normal() + by.get("slower answers", 0.0)))
    failed = np.where(draw.some(by.get("more errors", 0.0)), 1, draw.category([0.97, 0.02, 0.007, 0.003]))
    refused = np.where(draw.some(by.get("more refusals", 0.0)), 1, draw.category([0.95, 0.05]))
    corrected, graded = draw.category([0.8, 0.2]), draw.some(0.3)
    busy = draw.normal() + by.get("more calls", 0.0)
    turns = 1 + np.floor(np.exp(0.8 + 0.5 * draw.normal())).astype(np.int64)
    if world.bursty:  # the tail of a Pareto distribution with exponent 1.3
        turns = 1 + np.minimum(np.floor((1 - ndtr(draw.normal())) ** (-1 / 1.3)), 500).astype(np.int64)
        calls = np.minimum(np.floor((1 - ndtr(busy)) ** (-1 / 1.3)), 500).astype(np.int64)
    else:
        calls = np.floor(np.exp(0.7 + 0.5 * busy)).astype(np.int64)
    call_N = np.repeat(np.arange(num), calls)
    tool, shape = (_called(draw, call_N, share, world) for share in (zipf(TOOLS), zipf(SHAPES)))
    tool = np.where(rng.random(len(tool)) < by.get("another tool", 0.0), TOOLS - 1, tool)

    picked = _one_per_user(draw)
    chosen, word_N = _spoken(topic[picked], words[picked], by.get("other phrasing", 0.0), rng)
    bucket = language().hash_W[chosen] % BUCKETS
    of, calls_of = draw.owners, draw.owners.take(call_N)
    ones = [
        _number("input_words", "input", "wasserstein_sd", _WORDS, words, of),
        _number("amount", "input", "wasserstein_sd", _AMOUNTS, amount, of),
        _category("channel", "input", 4, channel, of, num),
        _category("language", "input", 8, spoken, of, num),
        _category("intent", "input", 21, intent, of, num),
        _category("product", "input", PRODUCTS, product, of, num),
        _category("vocabulary", "input", BUCKETS, bucket, of.take(picked[word_N]), len(picked)),
        _text(chosen, word_N, min(len(picked), TEXTS)),
        _category("tool_mix", "agent", TOOLS, tool, calls_of, num),
        _category("reply_shapes", "agent", SHAPES, shape, calls_of, num),
        _number("num_tool_calls", "agent", "wasserstein_sd", _WHOLE, calls, of),
        _number("num_turns", "agent", "wasserstein_sd", _WHOLE, turns, of),
        _number("latency_s", "agent", "psi", _SECONDS, latency, of),
        _category("tool_errors", "agent", 4, failed, of, num),
        _category("refused", "performance", 2, refused, of, num),
        _category("corrected", "performance", 2, corrected[graded], of.take(graded), int(graded.sum())),
    ]
    found = Profile(source=world.name, num_conversations=num, features=dict(ones))
    if not rows:
        return Window(found)
    first = np.zeros(num, dtype=np.int64)
    first[call_N[::-1]] = tool[::-1]
    held: dict[str, Any] = {
        "input_words": words, "amount": amount, "channel": channel, "language": spoken, "intent": intent,
        "product": product, "tool_mix": first, "num_tool_calls": calls, "num_turns": turns, "latency_s": latency,
        "tool_errors": failed, "refused": refused,
    }  # fmt: skip
    every, every_N = _spoken(topic, words, by.get("other phrasing", 0.0), rng)
    held["phrasing"] = [" ".join(f"w{n}" for n in part) for part in _split(every, every_N, num)]
    return Window(found, held)


def _called(draw: _Drawer, call_N: Any, shares: Any, world: World) -> Any:
    """Draw the tool of each call: the conversation's favorite, or any."""
    favorite = draw.favorite(shares)[call_N]
    own = draw.rng.choice(len(shares), len(call_N), p=shares)
    alike = max(world.icc, 0.7 if world.bursty else 0.2)
    return np.where(draw.rng.random(len(call_N)) < np.sqrt(alike), favorite, own)


def _one_per_user(draw: _Drawer, at_most: int = 2000) -> Any:
    """Pick one conversation of each user, for a limited number of users."""
    order = draw.rng.permutation(draw.num)
    _, first = np.unique(draw.user_N[order], return_index=True)
    return draw.rng.permutation(order[first])[:at_most]


def _spoken(topic_N: Any, length_N: Any, rephrased: float, rng: np.random.Generator) -> tuple[Any, Any]:
    """Draw the words, and the conversation of each word. After an opening, half of the words belong
    to a topic, and half to none."""
    known, num = language(), len(topic_N)
    word_N = np.repeat(np.arange(num), length_N)
    uniform = rng.random(len(word_N))
    chosen = np.searchsorted(known.common_W, uniform)
    for topic in range(TOPICS):
        at = (topic_N[word_N] == topic) & (rng.random(len(word_N)) < 0.5)
        chosen[at] = np.searchsorted(known.topics_TW[topic], uniform[at])
    opening_N = known.templates[rng.integers(0, TEMPLATES, num)]
    opening_N = np.where((rng.random(num) < rephrased)[:, None], opening_N[:, [4, 2, 0, 5, 1, 3]], opening_N)
    both = np.concatenate([opening_N.ravel(), np.minimum(chosen, VOCABULARY - 1)])
    owners = np.concatenate([np.repeat(np.arange(num), 6), word_N])
    order = np.argsort(owners, kind="stable")
    return both[order], owners[order]


# -- counting, as a profile does -------------------------------------------------------------------
def _number(
    name: str, group: FeatureGroup, statistic: Statistic, edges: list[float], values: Any, of: Owners
) -> tuple[str, Feature]:
    counted = owners.fields(of.count(np.searchsorted(edges, values), len(edges) + 1))
    mean, sd = round(float(values.mean()), 6), round(float(values.std()), 6)
    return name, Feature(
        kind="numeric", group=group, statistic=statistic, edges=edges, mean=mean, sd=sd, n=len(values), **counted
    )  # fmt: skip


def _category(name: str, group: FeatureGroup, num: int, values: Any, of: Owners, n: int) -> tuple[str, Feature]:
    """Count values as a profile does: words by bucket, and the frequent other values by name."""
    names = [f"{value:03}" for value in range(num)]
    if num == BUCKETS:
        held: tuple[Sequence[str], Any] = names, of.count(values, num)
    else:
        labels = Labels()
        labels.add(pa.DictionaryArray.from_arrays(pa.array(values, pa.int32()), pa.array(names)), of)
        held = labels.on_values()
    counted = owners.fields(held[1])
    if num == BUCKETS:
        counted["days"] = []  # the sample of words has no days
    return name, Feature(
        kind="category", group=group, statistic="total_variation", values=list(held[0]), n=n, **counted
    )


def _text(chosen: Any, word_N: Any, num: int) -> tuple[str, Feature]:
    chosen, word_N = chosen[word_N < num], word_N[word_N < num]
    sample = [" ".join(map(str, part)) for part in _split(language().hash_W[chosen], word_N, num)]
    return "phrasing", Feature(kind="text", group="input", statistic="classifier_auc", sample=sample, n=num)


def _split(values: Any, owners: Any, num: int) -> list[list[int]]:
    ends = np.searchsorted(owners, np.arange(1, num))
    return [part.tolist() for part in np.split(values, ends)]
