"""Explain every key of grader.json, in docs/graders.md.

As in rft/config/reference.py, the words are the docstrings under the keys, so that source and
reference cannot differ. The page is written by people but for its last part, between two marks.

    python -m rft.config.grader_keys            # print that part
    python -m rft.config.grader_keys --write    # write it into docs/graders.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from rft.config.graders import TYPES, Grader
from rft.config.reference import Key, keys, table

PAGE = Path(__file__).parents[2] / "docs/graders.md"
BEGIN, END = "<!-- keys -->\n", "<!-- end of keys -->\n"


def tables() -> str:
    """Write the keys that all types have, and then those of each type."""
    common = [key for key in keys(Grader, "") if key.name != "type"]
    parts = ["Of all types:\n", *table(common), ""]
    for name, kind in TYPES.items():
        known = {key.name for key in common}
        parts += [f"### `{name}`\n", *table([key for key in _own(kind) if key.name not in known]), ""]
    return "\n".join(parts)


def _own(kind: type[Grader]) -> Iterator[Key]:
    for key in keys(kind, ""):
        if key.name != "type" and not key.name.startswith("graders."):
            yield key


def page(text: str) -> str:
    """Return the page with its tables renewed."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}{tables()}{END}{after}"


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--write"]):
        print("usage: python -m rft.config.grader_keys [--write]", file=sys.stderr)
        return 2
    if arguments:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(tables(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
