"""Count the words of many texts at once, as `rft.traffic.texts.words` splits one.

A word is a run of letters or a run of digits. Python's `re` decides which characters of Unicode
these are, so that both ways of counting agree. A table says for each character whether it is a
letter, a digit or neither. A word begins wherever the class changes to letter or digit.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pyarrow as pa

from rft.traffic.arrow import pc

_WORD = re.compile(r"[^\W\d_]+|\d+")
_LETTER, _DIGIT = 1, 2
_PAGE = 0x1000
_DOTTED = "\u0130"
"""The one capital whose lower case is two characters. The second is not a letter and ends a
word."""


def count(texts: pa.StringArray) -> np.ndarray:
    """Count the words of each text; null has none."""
    texts = pc.fill_null(texts, "")
    found = np.zeros(len(texts), dtype=np.int64)
    ascii_only = np.asarray(pc.string_is_ascii(texts).to_numpy(zero_copy_only=False), dtype=bool)
    dotted = np.asarray(pc.match_substring(texts, _DOTTED).to_numpy(zero_copy_only=False), dtype=bool)
    plain, other = ascii_only, ~ascii_only & ~dotted
    if plain.any():
        some = texts.filter(pa.array(plain))
        found[plain] = _starts(_bytes(some), pc.binary_length(some).to_numpy())
    if other.any():
        some = texts.filter(pa.array(other))
        wide = np.frombuffer(_bytes(some).tobytes().decode().encode("utf-32-le"), dtype=np.uint32)
        found[other] = _starts(wide, pc.utf8_length(some).to_numpy())
    for place in np.flatnonzero(dotted):
        found[place] = len(_WORD.findall(texts[int(place)].as_py().lower()))
    return found


def _bytes(texts: pa.StringArray) -> np.ndarray:
    bounds = np.frombuffer(texts.buffers()[1], dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    content = texts.buffers()[2]
    return np.zeros(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)[bounds[0] : bounds[-1]]


def _starts(characters: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Count the places in each text where a word begins."""
    bounds = np.concatenate([[0], np.cumsum(lengths.astype(np.int64))])
    if characters.dtype == np.uint8:
        kinds = np.frombuffer(characters.tobytes().translate(_table(256).tobytes()), dtype=np.uint8)
    else:
        kinds = _table(0x110000)[characters]
    before = np.zeros_like(kinds)
    before[1:] = kinds[:-1]
    before[bounds[:-1][lengths > 0]] = 0  # a word does not go on in the next text
    places = np.flatnonzero((kinds != before) & (kinds != 0))
    return np.diff(np.searchsorted(places, bounds))


@cache
def _table(size: int) -> np.ndarray:
    """Return the class of the first `size` characters of Unicode: letter, digit or neither."""
    kinds = np.zeros(size, dtype=np.uint8)
    for first in range(0, size, _PAGE):
        page = "".join(map(chr, range(first, min(size, first + _PAGE))))
        for found in _WORD.finditer(page):
            kind = _DIGIT if found[0][0].isdecimal() else _LETTER
            kinds[first + found.start() : first + found.end()] = kind
    return kinds
