"""Turn what people write into words: lower-case, without numbers, hashed.

Words are hashed (CRC-32, all numbers as one word), so that a profile has the same size in any
language and holds no text. The user's words before the agent's first message are the input.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

BUCKETS = 256
"""Bins of the vocabulary."""
HASHES = 4096
"""The number of different hashes that a word can have."""
_WORD = re.compile(r"[^\W\d_]+|\d+")

_MESSAGES = TypeAdapter(list[dict[str, Any]])


def messages_of(text: str) -> list[dict[str, Any]]:
    """Parse the messages of a conversation. Pydantic's parser is the fastest here."""
    return _MESSAGES.validate_json(text)


def input_messages(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the messages that the agent was given: all before its first one."""
    first = next((n for n, message in enumerate(messages) if message["role"] in ("assistant", "tool")), len(messages))
    return list(messages[:first])


def user_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Join what the user wrote."""
    return "\n".join(
        str(message["content"]) for message in messages if message["role"] == "user" and message.get("content")
    )


def words(text: str) -> list[str]:
    """Split into lower-case words; a number is `0`, since ages and dates are not vocabulary."""
    return ["0" if word.isdigit() else word for word in _WORD.findall(text.lower())]


def word_hash(word: str) -> int:
    """Hash a word to less than HASHES."""
    return zlib.crc32(word.encode()) % HASHES


def bucket_words(texts: Iterable[str]) -> dict[str, str]:
    """Name each bucket of the vocabulary by the most frequent word in it."""
    tally = Counter(word for text in texts for word in words(text))
    found = {str(bucket): f"bucket {bucket}" for bucket in range(BUCKETS)}
    for word, _ in sorted(tally.items(), key=lambda item: (item[1], item[0])):
        found[str(word_hash(word) % BUCKETS)] = f"'{word}'"
    return found
