"""Translates a regular expression from JavaScript to Python, so that it finds the same.

Both read a text as JavaScript does, in units of 16 bits (grader.py: units). Differences are written
out: `.` stops at four line ends, `$` matches only at the very end, `\\s` matches other blanks, `{`
may be a letter. What the two read differently, or only one can read, is refused: back-references,
flags inside the expression, property classes.
"""

from __future__ import annotations

import re
import warnings

from rft.bridges.promptfoo.grader import units

_BLANKS = "\\t\\n\\x0b\\x0c\\r \\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000\\ufeff"
_NO_BLANKS = (
    "\\x00-\\x08\\x0e-\\x1f!-\\x9f\\xa1-\\u167f\\u1681-\\u1fff\\u200b-\\u2027\\u202a-\\u202e\\u2030-\\u205e\\u2060-\\u2fff"
    "\\u3001-\\ufefe\\uff00-\\uffff"
)
_DOT = "[^\\n\\r\\u2028\\u2029]"
_CONTROLS = {"t": "\\t", "n": "\\n", "v": "\\x0b", "f": "\\x0c", "r": "\\r"}
_COUNT = re.compile(r"\{\d+(?:,\d*)?\}", re.ASCII)
_GROUP = re.compile(r"\((?:\?(?::|=|!|<=|<!|<[A-Za-z_$][\w$]*>))?", re.ASCII)


class Unlike(ValueError):
    """JavaScript and Python read the expression differently, or JavaScript cannot read it."""


def translated(pattern: str) -> str:
    """Return the Python expression, for `re.ASCII` and a text in 16-bit units. Raises Unlike."""
    found = _Translation(units(pattern)).whole()
    try:
        with warnings.catch_warnings(action="ignore"):
            re.compile(found, re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise Unlike(f"cannot be read ({error})") from None
    return found


class _Translation:
    def __init__(self, pattern: str) -> None:
        self.pattern, self.position = pattern, 0

    def whole(self) -> str:
        found, can_repeat = list[str](), False
        while self.position < len(self.pattern):
            piece, repeats = self.piece()
            if repeats and not can_repeat:
                raise Unlike(f"has nothing to repeat at {piece!r}")
            found.append(piece)
            can_repeat = not repeats and piece not in ("^", "\\Z", "|", "\\b", "\\B") and not piece.startswith("(")
        return "".join(found)

    def piece(self) -> tuple[str, bool]:
        """Return the next piece in Python, and whether it repeats the one before."""
        letter, start = self.pattern[self.position], self.position
        if count := _COUNT.match(self.pattern, start):
            self.position = count.end()
            return count[0] + self.lazy(), True
        if group := _GROUP.match(self.pattern, start):
            self.position = group.end()
            if self.pattern.startswith("?", self.position):
                raise Unlike("has a group of an unusual kind: write it with (?:...)")
            return ("(" if group[0].endswith(">") else group[0]), False
        self.position += 1
        match letter:
            case "*" | "+" | "?":
                return letter + self.lazy(), True
            case "\\":
                return self.escape(inside=False), False
            case "[":
                return self.letters(), False
            case ".":
                return _DOT, False
            case "$":
                return "\\Z", False
            case "^" | "|" | ")":
                return letter, False
            case _:
                return re.escape(letter), False

    def lazy(self) -> str:
        if self.pattern.startswith("?", self.position):
            self.position += 1
            return "?"
        return ""

    def escape(self, inside: bool) -> str:
        """Read what follows a backslash. `inside`: inside brackets."""
        if self.position >= len(self.pattern):
            raise Unlike("ends with a backslash")
        letter = self.pattern[self.position]
        self.position += 1
        if letter in "dDwW":
            return f"\\{letter}"
        if letter in "sS":
            blanks = _BLANKS if letter == "s" else _NO_BLANKS
            return blanks if inside else f"[{blanks}]"
        if letter in "bB" and not (inside and letter == "B"):
            return "\\x08" if inside else f"\\{letter}"
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter in "xu":
            length = 2 if letter == "x" else 4
            digits = self.pattern[self.position : self.position + length]
            if re.fullmatch(rf"[0-9a-fA-F]{{{length}}}", digits):
                self.position += length
                return f"\\u{int(digits, 16):04x}"
        if letter == "0" and not self.pattern[self.position : self.position + 1].isdigit():
            return "\\x00"
        if letter.isalnum():
            raise Unlike(f"has \\{letter}, which JavaScript reads in another way than Python, or not at all")
        return re.escape(letter)

    def letters(self) -> str:
        """Read a class in brackets."""
        negated = self.pattern.startswith("^", self.position)
        self.position += negated
        items = list[str]()
        while not self.pattern.startswith("]", self.position):
            items.append(self.one())
            if self.pattern.startswith("-", self.position) and not self.pattern.startswith("-]", self.position):
                self.position += 1
                last = self.one()
                single = all(len(re.sub(r"\\(?:u....|x..|.)", "x", each)) == 1 for each in (items[-1], last))
                single = single and not any(each in ("\\d", "\\D", "\\w", "\\W") for each in (items[-1], last))
                items += ["-", last] if single else ["\\-", last]
        self.position += 1
        if not items:
            return "[\\x00-\\uffff]" if negated else "(?!)"
        return f"[{'^' if negated else ''}{''.join(items)}]"

    def one(self) -> str:
        """Read one letter or escape of a class."""
        if self.position >= len(self.pattern):
            raise Unlike("has a bracket that is not closed")
        letter = self.pattern[self.position]
        self.position += 1
        if letter == "\\":
            return self.escape(inside=True)
        return letter if letter.isalnum() else f"\\u{ord(letter):04x}"
