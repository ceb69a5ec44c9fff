"""Names of invented companies: two words and a trade, and one more for a near-duplicate.

`Amber Harbor Foods` and `Amber Harbor Foods Holdings` are two companies. They are in one split,
because one of the names gives away half of the other.
"""

from __future__ import annotations

import functools
import itertools
import random


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST = _words("""
    Amber Arctic Aspen Azure Beacon Birch Blue Bright Bronze Cedar Clear Cobalt Copper Coral Crest Crystal Delta
    Eagle Ember Falcon Fern Flint Frost Gale Garnet Golden Granite Green Grand Hazel Hollow Indigo Iron Ivory Jade
    Juniper Lake Laurel Linden Lunar Maple Marble Meadow Misty Noble North Oak Ocean Olive Onyx Opal Orchid Pearl
    Pine Prairie Quartz Raven River Ruby Sable Silver Solar Stone Willow
""")
SECOND = _words("""
    Anchor Arch Bank Bay Bend Bluff Bridge Brook Canyon Cape Castle Cliff Cove Creek Cross Dale Dune Field Ford
    Forest Forge Gate Glen Grove Gulf Harbor Haven Heath Hill Horizon Island Junction Key Landing Ledge Light Lodge
    March Mesa Mill Moor Mountain Orchard Park Pass Path Peak Plain Point Pond Port Range Reef Ridge Rock Shore
    Spring Summit Trail Valley View Vista Water Wood
""")
TRADES = _words("""
    Foods Motors Energy Textiles Software Mining Airlines Pharma Logistics Retail Steel Media Chemicals Robotics
""")
MORE = ("Holdings", "Group", "International")
"""The word that a near-duplicate has in addition."""


@functools.cache
def names() -> tuple[str, ...]:
    """Return all names, in an order that never changes."""
    found = [" ".join(parts) for parts in itertools.product(FIRST, SECOND, TRADES)]
    random.Random("names").shuffle(found)
    return tuple(found)


def families(count: int, near_duplicate_share: float) -> dict[str, str]:
    """Map each of `count` companies to its name without the additional word of a near-duplicate."""
    rng = random.Random(f"families {count} {near_duplicate_share}")
    found: dict[str, str] = {}
    for name in names():
        if len(found) < count:
            found[name] = name
        if len(found) < count and rng.random() < near_duplicate_share / (1 - near_duplicate_share):
            found[f"{name} {rng.choice(MORE)}"] = name
        if len(found) == count:
            break
    return found


def strangers(count: int) -> tuple[str, ...]:
    """Return names of companies that have filed nothing, if `count` companies have filed."""
    return names()[count:]
