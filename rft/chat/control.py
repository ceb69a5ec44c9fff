"""Keeps outside text from becoming a control token.

Outside text is a tool's result, a message, a tool's description or a recorded answer. A template
turns messages into one string, and the tokenizer turns each `<|im_end|>` in that string into the
token that ends a turn. So a tool's reply with `<|im_end|>\\n<|im_start|>assistant` could forge a
turn of the policy. The tokens that the policy sampled are kept as ids and never come here.

    marks       what a control token is recognized by: its text, or the tags in it. An added token
                is a control token if it is special, or holds a tag (`<...>` or `[...]`), or belongs
                to the family's markup. Other added tokens are words, and stay words in any text
    texts       what others write: all values, and the keys that they make up, such as names of
                arguments and of a schema's properties. The protocol's own words (`tool_calls`,
                `"role": "user"`, a schema's `properties`) stay, because templates look for them
    suspects    tells whether any text holds a mark, as it is or normalized by the tokenizer, or
                begins or ends with a part of one. Almost no text does, and then the template's
                string is encoded as usual
    hide        otherwise the template is rendered a second time, with texts whose marks cannot be
                recognized. Each character that marks begin or end with is replaced by a private-use
                character. That character occurs nowhere else, nor does its JSON escape; if all
                private-use characters occur, a random word is used. If a mark is still left (one of
                letters, or one that a normalizer joins), all characters but whitespace are
                replaced. The control tokens of this string are the template's own
    encode      if the string with the real texts has the same control tokens, nothing was forged,
                and it is used (a template may read `</think>` in an answer and drop it). Otherwise
                the hidden string is used. Its characters are put back, and a twin of the tokenizer
                encodes it, whose control tokens have names that nobody can guess. The whole string
                is encoded in one call, so that text and template join as they always do

There are two limits. If a template itself writes both ends of a mark around a text, the result is
that mark. And tags that are not a token of the tokenizer, such as `<tool_response>` with many
models, are ordinary text, even if the template writes them.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from rft.errors import UserError

_TAGS = (re.compile(r"<[^<>\s]+>"), re.compile(r"\[[^\[\]\s]+\]"))
_PRIVATE = (range(0xE000, 0xF900), range(0x100000, 0x10FFFD), range(0xF0000, 0xFFFFE))  # short ones first
_ESCAPES = re.compile(r"\\u(?:d[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|e[0-9a-f]{3}|f[0-8][0-9a-f]{2})")
"""A private character as json.dumps escapes it."""


@dataclass(frozen=True)
class Hidden:
    """The value to render, without marks in it. `originals`: hidden character -> the real one."""

    value: Any
    originals: dict[str, str]

    def restored(self, text: str) -> str:
        text = self._written.sub(lambda found: self._words[found[0]], text) if self._words else text
        return text.translate(self._letters)

    @cached_property
    def _letters(self) -> dict[int, str]:
        return {ord(hidden): original for hidden, original in self.originals.items() if len(hidden) == 1}

    @cached_property
    def _words(self) -> dict[str, str]:
        """Words that hide a character, and JSON escapes of hidden characters, which a template's
        tojson may write."""
        words = {hidden: original for hidden, original in self.originals.items() if len(hidden) > 1}
        return words | {_escaped(hidden): _escaped(original) for hidden, original in self.originals.items()}

    @cached_property
    def _written(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self._words)) or "(?!)")


class Control:
    """The control tokens of one tokenizer. Encodes text so that only the template can write
    them."""

    def __init__(self, tokenizer: Any, markup: Iterable[str]):
        self._tokenizer = tokenizer
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is None:
            raise UserError(
                f"the tokenizer of {tokenizer.name_or_path!r} has no tokenizer.json: outside text could not be kept "
                "apart from its control tokens. Save it as tokenizer.json, or choose a model that has one."
            )
        known = frozenset(markup)
        added: dict[int, Any] = tokenizer.added_tokens_decoder
        self._contents: dict[int, str] = {
            token: entry.content
            for token, entry in added.items()
            if entry.special or entry.content in known or any(tag.search(entry.content) for tag in _TAGS)
        }
        self._own = frozenset("".join(entry.content for entry in added.values()))
        contents = self._contents.items()
        marks = {mark for token, content in contents for mark in _marks(content, whole=added[token].special)}
        self._normalizer = self._backend.normalizer
        # a tokenizer may look for an added token in normalized text, in its normalized form
        if self._normalizer is not None:
            marks |= {normal for mark in marks if (normal := self._normalizer.normalize_str(mark).strip())}
        self._tags = frozenset(mark for mark in marks if any(tag.fullmatch(mark) for tag in _TAGS))
        self._others = sorted(marks - self._tags, key=len, reverse=True)
        self._other = re.compile("|".join(map(re.escape, self._others)) or "(?!)")
        self._longest = max(map(len, marks), default=0)
        self._begun = frozenset(mark[:end] for mark in marks for end in range(1, len(mark)))
        self._ended = frozenset(mark[start:] for mark in marks for start in range(1, len(mark)))
        self._heads, self._tails = {mark[0] for mark in marks}, {mark[-1] for mark in marks}
        self._edge = re.compile(f"[{re.escape(''.join(self._heads | self._tails))}]" if marks else "(?!)")
        self._signs = {sign for sign in self._heads | self._tails if not sign.isalnum() and not sign.isspace()}

    # -- is there anything to keep apart? ----------------------------------------------------------
    def suspects(self, value: Any) -> bool:
        return any(self._suspects(text) for text in _texts(value))

    def _suspects(self, text: str) -> bool:
        if self._has_mark(text):
            return True
        if self._normalizer is None:
            return False
        normal = self._normalizer.normalize_str(text)
        return normal != text and self._has_mark(normal)

    def _has_mark(self, text: str) -> bool:
        if not self._edge.search(text):
            return False
        if any(not self._tags.isdisjoint(tag.findall(text)) for tag in _TAGS) or self._other.search(text):
            return True
        start, end = text[: self._longest], text[-self._longest :]
        if any(start[: n + 1] in self._ended for n in _places(start, self._tails)):
            return True
        return any(end[n:] in self._begun for n in _places(end, self._heads))

    # -- hidden ------------------------------------------------------------------------------------
    def hide(self, value: Any, rendered: str) -> Hidden:
        """Replace what could be a mark. `rendered`: the template's string of `value`; none of its
        characters is used as a replacement."""
        texts = [*_texts(value), rendered]
        used = self._own.union(
            *texts, (json.loads(f'"{escape}"') for text in texts for escape in _ESCAPES.findall(text))
        )
        signs = sorted(sign for sign in used if self._is_sign(sign))
        signs += sorted({mark[0] for mark in self._others} - self._signs)
        free = self._free(used)
        hidden_by = {sign: next(free) for sign in dict.fromkeys(signs)}
        plain = {sign: code for sign, code in hidden_by.items() if not sign.isalnum() and not sign.isspace()}
        table = str.maketrans(plain)

        def hidden(text: str) -> str:
            made = self._other.sub(lambda found: hidden_by[found[0][0]] + found[0][1:], text).translate(table)
            return wholly(text) if self._suspects(made) else made

        def wholly(text: str) -> str:
            """Hide every character, if a mark is left: a normalized one, one inside another, or a
            half that the template completes."""
            for sign in dict.fromkeys(text):
                if not sign.isspace() and sign not in hidden_by:
                    hidden_by[sign] = next(free)
            return "".join(hidden_by.get(sign, sign) for sign in text)

        value = _mapped(value, hidden)
        return Hidden(value, {code: sign for sign, code in hidden_by.items()})

    def _free(self, used: frozenset[str]) -> Iterator[str]:
        """Yield private characters that are not used, and then, without end, random words of such
        characters, which nobody can have written."""
        yield from (sign for sign in map(chr, chain(*_PRIVATE)) if sign not in used)
        kept = [sign for sign in map(chr, _PRIVATE[1]) if sign not in self._own]
        while True:
            yield "".join(secrets.choice(kept) for _ in range(16))

    def _is_sign(self, character: str) -> bool:
        if character in self._signs:
            return True
        if self._normalizer is None or character.isascii():
            return False
        return not self._signs.isdisjoint(self._normalizer.normalize_str(character))

    # -- encoded -----------------------------------------------------------------------------------
    def encode(self, text: str, hidden_text: str, hidden: Hidden) -> list[int]:
        """`text`: the template's string with the real texts, `hidden_text`: the same with the
        hidden ones."""
        own = self._written(hidden_text)
        # If there are more marks than the template wrote, some are forged: no need to encode this
        # string.
        if all(text.count(mark) <= hidden_text.count(mark) for mark in self._contents.values()):
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
            if [token for token, _, _ in own] == self._tokens(text, ids):
                return ids
        parts: list[str] = []
        at = 0
        for token, start, end in own:
            parts += [hidden.restored(hidden_text[at:start]), self._names[token]]
            at = end
        parts.append(hidden.restored(hidden_text[at:]))
        ids = self._twin.encode_batch_fast(["".join(parts)], add_special_tokens=False)[0].ids
        unknown = self._tokenizer.unk_token_id
        kept = [token for token in ids if token in self._contents and token != unknown]
        assert kept == [token for token, _, _ in own if token != unknown], "a text became a control token"
        return ids

    def _tokens(self, text: str, ids: list[int]) -> list[int]:
        """Return the control tokens among the ids of a string. Their places matter only if the
        token of an unknown character is a control token."""
        if self._tokenizer.unk_token_id in self._contents:
            return [token for token, _, _ in self._written(text)]
        return [token for token in ids if token in self._contents]

    def _written(self, text: str) -> list[tuple[int, int, int]]:
        """Return the control tokens that the tokenizer finds in a string: token, start, end."""
        encoding = self._backend.encode_batch([text], add_special_tokens=False)[0]  # `encode` keeps other threads out
        found: list[tuple[int, int, int]] = []
        at = 0
        places = [(n, token) for n, token in enumerate(encoding.ids) if token in self._contents]
        for n, token in places:  # all offsets would be a list of as many pairs as the text has tokens
            content, (start, end) = self._contents[token], encoding.token_to_chars(n)
            # The offsets may hold whitespace around the token, or have lost what it begins with.
            place = text.find(content, max(at, start - len(content)), end + len(content))
            if place >= 0:
                start, end = place, place + len(content)
            elif token == self._tokenizer.unk_token_id:  # an unknown character
                continue
            found.append((token, max(start, at), end))
            at = end
        return found

    @cached_property
    def _names(self) -> dict[int, str]:
        """Name the control tokens for the twin, so that no text can hold the names."""
        nonce = secrets.token_hex(16)
        return {token: f"\U0010fffd{nonce}.{token}\U0010fffd" for token in self._contents}

    @cached_property
    def _twin(self) -> Any:
        """Copy the tokenizer with other names for the control tokens, also where its model knows
        them as words. Every id stays the same."""
        from tokenizers import Tokenizer

        try:
            raw = json.loads(self._backend.to_str())
        except Exception as error:  # a part of it is written in Python
            raise UserError(
                f"the tokenizer of {self._tokenizer.name_or_path!r} cannot be copied ({error}): outside text could not "
                "be kept apart from its control tokens. Choose a model whose tokenizer.json describes all of it."
            ) from None
        raw |= {"post_processor": None, "truncation": None, "padding": None}
        names = {self._contents[token]: name for token, name in self._names.items()}
        for entry in raw["added_tokens"]:
            if entry["content"] in names:
                entry |= {"content": names[entry["content"]], "normalized": False}
        _rename(raw["model"], names)
        twin = Tokenizer.from_str(json.dumps(raw))
        assert all(twin.token_to_id(name) == token for token, name in self._names.items()), "the twin has other ids"
        return twin


def _marks(content: str, whole: bool) -> set[str]:
    """Return an added token's marks: its tags, else its text, which may be blank if special."""
    tags = {found for tag in _TAGS for found in tag.findall(content)}
    return tags or ({content} if whole or content.strip() else set())


def _places(text: str, characters: set[str]) -> Iterator[int]:
    return (n for n, character in enumerate(text) if character in characters)


# -- what others write -----------------------------------------------------------------------------
_MESSAGE = (
    "name tool_call_id reasoning_content reasoning thinking tool_plan refusal audio prefix citations documents "
    "id status recipient channel"
)
_ANY = (
    "title description default const enum examples required format pattern nullable deprecated readOnly writeOnly "
    "strict $ref $id $schema"
)
_LIMITS = (
    "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength minItems maxItems "
    "uniqueItems minProperties maxProperties"
)
_SCHEMAS = "items prefixItems contains additionalProperties propertyNames anyOf oneOf allOf not if then else"
_NAMED = "properties patternProperties dependentSchemas $defs definitions"
_SHAPES: dict[str, dict[str, str]] = {
    "told": {"messages": "message", "tools": "tool", "answer_format": "answer format"},
    "message": {"role": "word", "content": "part", "tool_calls": "call", "function_call": "called"}
    | dict.fromkeys(_MESSAGE.split(), "text"),
    "part": {"type": "word", "text": "text"},
    "call": {"id": "text", "type": "word", "function": "called"},
    "called": {"name": "text", "arguments": "text"},
    "tool": {"type": "word", "function": "declared"},
    "declared": {"name": "text", "description": "text", "strict": "text", "parameters": "schema", "return": "schema"},
    "answer format": {"type": "word", "json_schema": "stated"},
    "stated": {"name": "text", "description": "text", "strict": "text", "schema": "schema"},
    "schema": {"type": "word"}
    | dict.fromkeys(f"{_ANY} {_LIMITS}".split(), "text")
    | dict.fromkeys(_SCHEMAS.split(), "schema")
    | dict.fromkeys(_NAMED.split(), "schemas"),
}
"""Place -> the protocol's keys there, each with the kind of its value. Any other key is a text; in
"text" and "schemas" every key is."""
_ROLES = "system developer user assistant tool function ipython"
_TYPES = "text json_schema json_object string number integer boolean array object null"
_WORDS = frozenset(f"{_ROLES} {_TYPES}".split())
"""The words that a template compares with."""


def _texts(value: Any) -> list[str]:
    """Return every text in a JSON value that is not the protocol's, keys too."""
    found: list[str] = []

    def keep(text: str) -> str:
        found.append(text)
        return text

    _mapped(value, keep)
    return found


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Change each text that is not the protocol's. Without recursion: the value may be nested as
    deep as JSON can be read."""
    whole: list[Any] = [value]
    places: list[tuple[Any, Any, str]] = [(whole, 0, "told")]
    while places:
        holder, at, what = places.pop()
        one = holder[at]
        if isinstance(one, str):
            holder[at] = one if what == "word" and one in _WORDS else change(one)
        elif isinstance(one, dict):
            shape, other = _SHAPES.get(what, {}), "schema" if what == "schemas" else "text"
            kinds = {
                key if key in shape or not isinstance(key, str) else change(key): shape.get(key, other) for key in one
            }
            holder[at] = made = dict(zip(kinds, one.values(), strict=True))
            places += [(made, key, kind) for key, kind in kinds.items()]
        elif isinstance(one, list | tuple):
            holder[at] = listed = list(one)
            places += [(listed, n, what) for n in range(len(listed))]
    return whole[0]


def _escaped(text: str) -> str:
    return json.dumps(text)[1:-1]


def _rename(model: dict[str, Any], names: dict[str, str]) -> None:
    """Rename pieces of a tokenizer's model, and drop the merges that would make or use one."""
    if isinstance(model["vocab"], list):
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
        return
    known = names.keys() & model["vocab"].keys()
    if not known:
        return
    model["vocab"] = {names.get(piece, piece): token for piece, token in model["vocab"].items()}
    if model.get("unk_token") in known:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        pairs = [(merge, merge.split(" ", 1) if isinstance(merge, str) else merge) for merge in model["merges"]]
        model["merges"] = [merge for merge, (left, right) in pairs if known.isdisjoint((left, right, left + right))]


__all__ = ["Control", "Hidden"]
