"""Write what docs/params.md and docs/graders.md say about every key.

The words are the docstrings under the keys (reference.py), so source and pages cannot differ.
People write the pages, except the part between two marks.

    python -m rft.config.pages            # which pages are old
    python -m rft.config.pages --write    # write them
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from rft.config.graders import TYPES, Grader
from rft.config.reference import Key, keys, table, tables
from rft.errors import UserError

DOCS = Path(__file__).parents[2] / "docs"
BEGIN, END = "<!-- keys -->\n", "<!-- end of keys -->\n"


def of_graders() -> str:
    """Write the keys that all types have, and then those of each type."""
    common = [key for key in keys(Grader, "") if key.name != "type"]
    parts = ["Keys of every type:\n", *table(common), ""]
    for name, kind in TYPES.items():
        known = {key.name for key in common}
        parts += [f"### `{name}`\n", *table([key for key in _own(kind) if key.name not in known]), ""]
    return "\n".join(parts)


def _own(kind: type[Grader]) -> Iterator[Key]:
    for key in keys(kind, ""):
        if key.name != "type" and not key.name.startswith("graders."):
            yield key


PAGES = {"params.md": tables, "graders.md": of_graders}


def renewed(name: str) -> str:
    """Return a page with new tables. Raises UserError for a page without its marks, because the
    text behind them would be lost."""
    before, begin, rest = (DOCS / name).read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"docs/{name}: the marks {BEGIN.strip()} and {END.strip()} are not there. Put them back.")
    return f"{before}{begin}{PAGES[name]()}{end}{after}"


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--write"]):
        print("usage: python -m rft.config.pages [--write]", file=sys.stderr)
        return 2
    pages = {name: renewed(name) for name in PAGES}
    old = [name for name, now in pages.items() if now != (DOCS / name).read_text(encoding="utf-8")]
    for name in old:
        print(f"docs/{name} is {'written' if arguments else 'old'}")
        if arguments:
            (DOCS / name).write_text(pages[name], encoding="utf-8")
    return 1 if old and not arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
