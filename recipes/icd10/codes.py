"""ICD-10-CM as plain columns: the codes, the words that describe them, and who may see which.

`simple-icd-10-cm` carries the whole classification (a work of the US government), and takes seconds
to read its XML. So the columns are written once to `.rft/cache/`, keyed by the package's version
and by FORMAT. All text is folded to lower-case ASCII words joined by single spaces, so that a word
is the same string in a note, in a query and in a hit.

A *pair* is (inclusion term, leaf code): what a clinician may call a diagnosis, and the code by
which it is billed. Pairs whose term is long, or stands for two codes, are left out. A stable hash
splits codes, not pairs: a code that is tested was never trained on under any of its names.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import re
import warnings
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rft import files
from rft.normal_form import normal

PACKAGE = "simple-icd-10-cm"
FORMAT = 2
"""Raise it when a cached file's content changes its meaning."""
CACHE = Path(".rft/cache")
MAX_WORDS, MAX_CHARACTERS = 7, 50
DISTRACTORS = ("no ", "family history of ")
"""Beginnings of phrases that must not be coded. Terms that begin with one are left out."""
FRESH_BLOCKS = 2
"""Blocks of test examples beyond the first."""
CLIP = 44
"""How many characters of a text a tool shows. The text is cut at a word."""
Split = Literal["train", "validation", "test"]
LineFormat = Literal["description | code", "code | description"]
DEFAULT_FORMAT: LineFormat = "description | code"


@dataclass(frozen=True)
class Catalogue:
    """Columns over categories and codes in the order of the classification; `position` finds a
    code's row."""

    codes: list[str]
    texts: list[str]
    parents: list[str]  # "" for a category
    chapters: list[str]  # "I00-I99"
    is_leaf: list[bool]
    terms: dict[str, list[str]]  # leaf code -> its inclusion terms

    @functools.cached_property
    def position(self) -> dict[str, int]:
        return {code: n for n, code in enumerate(self.codes)}

    @functools.cached_property
    def _children(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for code, parent in zip(self.codes, self.parents, strict=True):
            found[parent].append(code)
        return found

    def children(self, code: str) -> list[str]:
        return self._children.get(code, [])

    def text(self, code: str) -> str:
        return self.texts[self.position[code]]

    def chapter(self, code: str) -> str:
        return self.chapters[self.position[code]]

    def has_leaf(self, code: str) -> bool:
        return code in self.position and self.is_leaf[self.position[code]]

    def entries(self) -> list[tuple[str, str]]:
        """Yield (text, leaf code) for every name under which the index knows a code."""
        rows: list[tuple[str, str]] = []
        for code, text, leaf in zip(self.codes, self.texts, self.is_leaf, strict=True):
            if leaf:
                rows += dict.fromkeys([(text, code), *((term, code) for term in self.terms.get(code, []))])
        return rows


def words(text: str) -> str:
    """`words("Crohn's disease, NOS") == "crohns disease nos"`."""
    plain = normal("NFKD", text).encode("ascii", "ignore").decode().lower().replace("'", "")
    return " ".join(re.findall(r"[a-z0-9]+", plain))


def line(text: str, code: str, form: LineFormat = DEFAULT_FORMAT) -> str:
    """Write one line of a tool's reply. It begins with a space, so that its first word is the same
    token as in a note."""
    shown = text if len(text) <= CLIP else text[: CLIP + 1].rpartition(" ")[0] or text[:CLIP]
    return f" {shown} | {code}" if form == "description | code" else f" {code} | {shown}"


def children_reply(code: str) -> str:
    """Return the tool's answer: the codes one level below, one per line."""
    known = catalogue()
    return "\n".join(line(known.text(child), child) for child in known.children(code)) or " no children"


def split_of(code: str) -> Split:
    """Assign 80 / 10 / 10 by hash, so that a code never changes its split."""
    bucket = int.from_bytes(hashlib.sha256(code.encode()).digest()[:8], "big") % 10
    return "test" if bucket == 9 else "validation" if bucket == 8 else "train"


@functools.cache
def pairs(split: Split) -> list[tuple[str, str]]:
    """Return the usable (term, leaf code) pairs of one split, sorted."""
    return [(term, code) for term, code in _usable() if split_of(code) == split]


@functools.cache
def fresh_pairs(block: int) -> list[tuple[str, str]]:
    """Return the pairs of a further block of the test split.

    Nearly all tested codes that have a usable term are in the first block. The further blocks have
    the other codes, each under its own title. A hash of the code chooses the block.
    """
    asked = {code for _, code in _usable()}
    titles = ((known.text(code), code) for known in [catalogue()] for code in known.codes if known.has_leaf(code))
    return sorted(
        (title, code)
        for title, code in titles
        if code not in asked and split_of(code) == "test" and _is_usable(title) and _block_of(code) == block
    )


def _block_of(code: str) -> int:
    return 1 + int.from_bytes(hashlib.sha256(f"block {code}".encode()).digest()[:8], "big") % FRESH_BLOCKS


@functools.cache
def names() -> dict[str, set[str]]:
    """Map each text to the leaf codes that it stands for."""
    found: dict[str, set[str]] = defaultdict(set)
    for text, code in catalogue().entries():
        found[text].add(code)
    return found


@functools.cache
def _usable() -> list[tuple[str, str]]:
    return sorted({(term, code) for code, terms in catalogue().terms.items() for term in terms if _is_usable(term)})


def _is_usable(term: str) -> bool:
    """Whether a note may use this term for a diagnosis: it is short, and names no other code."""
    is_short = 0 < len(term) <= MAX_CHARACTERS and len(term.split()) <= MAX_WORDS
    return is_short and len(names()[term]) == 1 and not term.startswith(DISTRACTORS)


@functools.cache
def catalogue() -> Catalogue:
    path = files.kept(
        cache_path("codes.json"),
        lambda part: part.write_text(json.dumps(_read_package(), separators=(",", ":")), encoding="utf-8"),
    )
    return Catalogue(**json.loads(path.read_bytes()))


def cache_path(name: str) -> Path:
    return CACHE / f"icd10-{importlib.metadata.version(PACKAGE)}-{FORMAT}-{name}"


def _read_package() -> dict[str, Any]:
    with warnings.catch_warnings():  # it reads its data through a deprecated function
        warnings.simplefilter("ignore", DeprecationWarning)
        import simple_icd_10_cm as icd
    chapter, rows, terms = "", [], {}
    for code in dict.fromkeys(icd.get_all_codes()):
        if icd.is_chapter(code):
            chapter = icd.get_description(code).rpartition("(")[2].rstrip(")")
        elif icd.is_category_or_subcategory(code):  # blocks are left out
            parent = "" if icd.is_category(code) else icd.get_parent(code)
            rows.append((code, words(icd.get_description(code)), parent, chapter, icd.is_leaf(code)))
            if rows[-1][4] and (found := icd.get_inclusion_term(code)):
                terms[code] = list(dict.fromkeys(words(term) for term in found))
    codes, texts, parents, chapters, is_leaf = (list(column) for column in zip(*rows, strict=True))
    return {
        "codes": codes,
        "texts": texts,
        "parents": parents,
        "chapters": chapters,
        "is_leaf": is_leaf,
        "terms": terms,
    }
