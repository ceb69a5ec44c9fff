"""Agents that learn nothing: the honest one, and shortcuts that a trained policy must beat."""

from __future__ import annotations

from rft.recipe import Example

from . import tools
from .options import Options


def scripted_answer(options: Options, example: Example) -> tuple[list[dict[str, str]], int]:
    """Search each subject in the words of the question, and take the hits that are of its kind and
    symbol. Return the facts, and the number of calls."""
    del options  # the settings that matter travel with the example
    phrases: list[str] = example.metadata["phrases"]
    found: list[dict[str, str]] = []
    for phrase in phrases:
        hits = hits_of(tools.search(f" {phrase}", k=10, item=example.row()))
        right = [fact for kind, fact in hits if phrase == f"{kind} {fact['value' if kind == 'calls' else 'symbol']}"]
        found += right or [fact for _, fact in hits[:1]]
    return [fact for n, fact in enumerate(found) if fact not in found[:n]], len(phrases)


def first_hit(options: Options, example: Example) -> tuple[list[dict[str, str]], int]:
    """Search the whole question once, and take the first hit."""
    del options
    hits = hits_of(tools.search(str(example.messages[-1]["content"]), k=1, item=example.row()))
    return [fact for _, fact in hits], 1


def hits_of(reply: str) -> list[tuple[str, dict[str, str]]]:
    """Read the hits of a reply that name a value: its kind, and the fact."""
    found: list[tuple[str, dict[str, str]]] = []
    for line in reply.splitlines():
        symbol, _, rest = line.rpartition(" | ")[0].partition(" | ")
        path, _, said = rest.partition(" | ")
        kind, _, value = said.partition(" ")
        if value:
            found.append((kind, {"symbol": symbol, "path": path, "value": value}))
    return found
