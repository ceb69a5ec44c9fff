"""The figure `prose`: is what a stranger reads short and plain?

It counts the words of README, the verbs on the first screen of `rft --help`, long sentences, and
phrases that a reader of English stumbles over (PATTERNS). A sentence of more than 30 words is long:
readers of a second language lose its beginning before its end. Code, tables' headings and addresses
are left out. A list item or a table's cell counts as a sentence of its own.

Readers find what no pattern finds. Three readers without context mark the sentences that they read
twice, in files that a seed chooses. Their counts are in the notes on the issue that asked for this
figure, not here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Figure, Part

ROOT = Path(__file__).resolve().parents[1]
LONG = 30
"""A sentence with more words than this is long."""
ROOMS = ("rft", "tasks", "flows")
PATTERNS = {
    "is no X, for: is not a X": r"(?<![Tt]here )(?<![Tt]here also )\b(?:is|was) no (?!longer|more|such|less|better|"
    r"worse|need|other|one|matter|later|earlier|larger|smaller|further|room|doubt|difference|looser)[a-zA-Z]+\b",
    "whoever, for: the one who": r"\b[Ww]hoever\b",
    "a sentence that begins with Of": r"(?:^|(?<=[.:] ))Of (?!course)[a-z]+",
    "below a stroke": r"\bbelow a stroke\b",
    "told nobody": r"\bis told nobody\b",
}
_SENTENCE = re.compile(r"(?<=[.!?:;])\s+(?=[\"'`(\[]?[A-Z0-9`(])")
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Sentence:
    where: str
    text: str

    @property
    def num_words(self) -> int:
        return len(re.findall(r"[^\s]*\w[^\s]*", self.text))


def prose(args: list[str]) -> Figure:
    """Words of README, verbs on the first screen, sentences over 30 words, and phrases that a
    reader stumbles over."""
    from flows.cli import table

    readme = len((ROOT / "README.md").read_text(encoding="utf-8").split())
    pages, docstrings = list(of_pages()), list(of_code())
    long_pages = [one for one in pages if one.num_words > LONG]
    long_code = [one for one in docstrings if one.num_words > LONG]
    found = {
        name: [one for one in (*pages, *docstrings) if re.search(pattern, one.text)]
        for name, pattern in PATTERNS.items()
    }
    parts = [
        Part("words of README", readme, "words", at_most=2500),
        Part("verbs on the first screen", len(table.VERBS), "verbs", at_most=25),
        Part("sentences over 30 words, of README and docs", len(long_pages), "sentences", at_most=0, n=len(pages)),
        Part("sentences over 30 words, of docstrings", len(long_code), "sentences", at_most=0, n=len(docstrings)),
        *(
            Part(name, len(hits), "sentences", at_most=0, n=len(pages) + len(docstrings))
            for name, hits in found.items()
        ),
    ]
    if args == ["--list"]:
        for one in (*long_pages, *long_code, *(hit for hits in found.values() for hit in hits)):
            print(f"{one.where}: {one.num_words} words: {one.text}")
    return Figure(tuple(parts))


def of_pages() -> Iterator[Sentence]:
    """Yield the sentences of README and docs, without pages that are written from docstrings."""
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]:
        if path.name not in ("params.md", "cli.md", "architecture.md"):
            yield from _sentences(str(path.relative_to(ROOT)), _CODE.sub("", path.read_text(encoding="utf-8")))


def of_code() -> Iterator[Sentence]:
    """Yield the sentences of all docstrings, those below fields included."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Expr)
                    and isinstance(node.value, ast.Constant)
                    and isinstance(node.value.value, str)
                ):
                    where = f"{path.relative_to(ROOT)}:{node.lineno}"
                    yield from _sentences(where, _indented_out(node.value.value))


def _indented_out(text: str) -> str:
    """Drop what is indented under a paragraph: examples and tables of two columns."""
    lines = text.splitlines()
    body = [line for line in lines[1:] if line.strip()]
    least = min((len(line) - len(line.lstrip()) for line in body), default=0)
    kept = [line[least:] if line[:least].strip() == "" else line for line in lines[1:]]
    return "\n".join([lines[0] if lines else "", *("" if line.startswith(" ") else line for line in kept)])


def _sentences(where: str, text: str) -> Iterator[Sentence]:
    """Split at full stops, and at colons and semicolons before a capital; at list items, table
    cells, headings and empty lines."""
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*#|>]|\d+\.) )|\n(?=    )|\|", text):
        if not block.startswith("    "):
            for sentence in _SENTENCE.split(" ".join(block.split())):
                if sentence:
                    yield Sentence(where, sentence)


FIGURES = {"prose": prose}
