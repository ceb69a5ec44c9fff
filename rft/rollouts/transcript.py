"""One rollout as a text for a person.

It shows who said what, how tools answered, why the rollout ended, what it earned, and whether it
was trained on. `lines` is the transcript, and `token_lines` shows its tokens. `facts` is a summary
in a few cells, to compare rollouts of one example. All results are text. Each line has a kind, so
that a terminal can color it. `dialogue` splits a row's messages into the opening and the turns. The
replay (rft/rollouts/replay.py) and the traces (tasks/display/traces.py) use it too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple

from rft.errors import UserError
from rft.formatting import counted
from rft.rollouts.log import LogRow
from rft.types import Message

LOW_PROBABILITY = 0.1
"""A sampled token with a lower probability is marked: the policy was not sure here."""
Kind = Literal["head", "role", "text", "call", "result", "good", "bad", "dim"]


class Line(NamedTuple):
    text: str
    kind: Kind = "text"


@dataclass(frozen=True, slots=True)
class Spoken:
    """One turn as messages."""

    message: Message
    results: tuple[Message, ...]

    @property
    def calls(self) -> list[dict[str, Any]]:
        return self.message.get("tool_calls") or []

    def result(self, call_id: str) -> str | None:
        """Return the answer to the call; None if the call was never sent."""
        return next((str(one["content"]) for one in self.results if one["tool_call_id"] == call_id), None)


@dataclass(frozen=True, slots=True)
class Dialogue:
    opening: tuple[Message, ...]
    turns: tuple[Spoken, ...]


def dialogue(row: LogRow) -> Dialogue:
    """Split a row's messages. Raises UserError when they hold fewer turns than the row counts."""
    messages: list[Message] = json.loads(row.messages)
    spoken = [n for n, message in enumerate(messages) if message["role"] == "assistant"]  # the example's own are first
    if len(spoken) < row.num_turns:
        what = f"rollout {row.rollout_id} of {row.stage} counts {row.num_turns} turns, but its messages hold fewer"
        raise UserError(f"{what}: the log was changed.")
    starts = spoken[len(spoken) - row.num_turns :]
    ends = [*starts[1:], len(messages)][: len(starts)]
    turns = tuple(
        Spoken(messages[start], tuple(messages[start + 1 : end])) for start, end in zip(starts, ends, strict=True)
    )
    return Dialogue(tuple(messages[: starts[0]] if starts else messages), turns)


# -- the transcript --------------------------------------------------------------------------------
def lines(row: LogRow) -> Iterator[Line]:
    yield Line(f"{row.rollout_id}  {title(row)}, example {row.example_id}, sample {row.sample}" + refill(row), "head")
    parts = dialogue(row)
    if num := _num_opening(row):
        yield Line(f"opening of {counted(num, 'token')}, with the tools' schemas", "dim")
    for message in parts.opening:
        yield Line(message["role"], "role")
        yield from _block(_text(message))
    for number, turn in enumerate(parts.turns, 1):
        yield Line(f"assistant, turn {number}", "role")
        if reasoning := turn.message.get("reasoning_content"):
            yield from _block(reasoning, "dim")
        if turn.message.get("content") or not turn.calls:
            yield from _block(_text(turn.message))
        for call in turn.calls:
            yield from _call(call, turn.result(call["id"]))
    yield Line("end", "role")
    yield from (Line(f"  {name:<11} {value}", kind) for name, value, kind in _ending(row))


def _num_opening(row: LogRow) -> int:
    """Count the tokens that the policy was given before its first turn; 0 if none were recorded."""
    return next((n for n, own in enumerate(row.loss_mask) if own), 0)


def title(row: LogRow) -> str:
    return f"{row.stage}/{row.arm}" + (f", step {row.step}" if row.step else "")


def refill(row: LogRow) -> str:
    return f", refill {row.attempt}" if row.attempt else ""


def _call(call: dict[str, Any], result: str | None) -> Iterator[Line]:
    yield Line(f"  → {signature(call)}", "call")
    if result is None:
        yield Line("  ← never sent", "bad")
        return
    first, *more = result.splitlines() or [""]
    yield Line(f"  ← {first}", "result")
    yield from (Line(f"    {line}", "result") for line in more)


def signature(call: dict[str, Any]) -> str:
    """Write a call as `search(query="angina", limit=3)`. Arguments that are not a JSON object stay
    as they are."""
    name, written = call["function"]["name"], call["function"]["arguments"]
    try:
        arguments = json.loads(written)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        return f"{name}({written})"
    return f"{name}({', '.join(f'{key}={json.dumps(value, ensure_ascii=False)}' for key, value in arguments.items())})"


def _ending(row: LogRow) -> Iterator[tuple[str, str, Kind]]:
    bad = row.stop_reason != "completed"
    yield "stopped", _after(row), "bad" if bad else "text"
    if row.num_context_tokens is not None:
        yield "cost", f"{row.num_context_tokens:,} tokens read, {row.num_cached_tokens or 0:,} of them cached", "text"
    if row.num_tool_errors or row.num_forks:
        refused, forked = counted(row.num_tool_errors, "call"), counted(row.num_forks, "turn")
        yield "trouble", f"{refused} refused, {forked} forked", "bad"
    if row.score is None:
        yield "grade", f"unscored ({row.status})", "bad"
    else:
        solved = "solved" if row.solved else "not solved"
        status = "" if row.status == "ok" else f" ({row.status})"
        yield "grade", f"{row.score:g}, {solved}{status}", worth(row)
    if components := json.loads(row.components):
        yield "components", ", ".join(f"{name} {value:g}" for name, value in components.items()), "text"
    if row.explanation:
        yield "explanation", row.explanation, "text"
    for suspicion in json.loads(row.evidence or "[]"):
        yield "evidence", " ".join(suspicion.split()), "text"
    if flags := json.loads(row.flags or "[]"):
        yield "flags", ", ".join(flags), "bad"
    yield "reward", number(row.reward), worth(row)
    if use(row):
        yield "training", use(row), "dim" if row.left_out else "good"


def use(row: LogRow) -> str:
    """Say whether the rollout was trained on and, if not, why."""
    if row.trained:
        return "trained on"
    return f"left out: {row.left_out}" if row.left_out else ""


def worth(row: LogRow) -> Kind:
    if row.reward is None or row.status == "hack":
        return "bad"
    return "good" if row.solved else "text"


def number(value: float | None) -> str:
    return "none" if value is None else f"{value:z.3f}"  # z: no -0.000


def _after(row: LogRow) -> str:
    counts = {"turn": row.num_turns, "call": row.num_tool_calls, "token": row.num_tokens}
    return f"{row.stop_reason} after {', '.join(counted(count, word) for word, count in counts.items())}"


def _text(message: Message) -> str:
    content = message.get("content", "")
    if content is None:
        return ""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _block(text: str, kind: Kind = "text") -> Iterator[Line]:
    yield from (Line(f"  {line}", kind) for line in text.splitlines() or ["(empty)"])


# -- tokens ----------------------------------------------------------------------------------------
def token_lines(row: LogRow, decode: Callable[[list[int]], str] | None = None) -> Iterator[Line]:
    """Yield one line per completion token: its id, its text if `decode` is known, and its
    log-probability. A run of tokens that were given to the policy is one dim line."""
    if not row.ids:
        yield Line("no tokens were recorded: this policy speaks text only", "dim")
        return
    logprobs = iter(row.logprobs)
    low, position = math.log(LOW_PROBABILITY), 0
    for own, run in groupby(zip(row.loss_mask, row.ids, strict=True), key=lambda pair: pair[0]):
        ids = [token for _, token in run]
        if not own:
            text = f"  {_quoted(decode(ids), 60)}" if decode else ""
            yield Line(f"{position:>5}  {len(ids)} tokens given{text}", "dim")
        else:
            for n, token in enumerate(ids, position):
                logprob = next(logprobs, math.nan)
                marked = f"  ◀ {math.exp(logprob):.1%}" if logprob < low else ""
                text = f"  {_quoted(decode([token])):<16}" if decode else ""
                yield Line(f"{n:>5}  {token:>7}{text}  {logprob:8.3f}{marked}", "bad" if marked else "text")
        position += len(ids)
    mean = math.exp(sum(row.logprobs) / len(row.logprobs)) if row.logprobs else math.nan
    unsure = sum(value < low for value in row.logprobs)
    own = f"{len(row.logprobs)} completion tokens of {position}, {unsure} below {LOW_PROBABILITY:.0%}"
    yield Line(f"{own}; geometric mean probability {mean:.1%}", "head")


def _quoted(text: str, most: int = 16) -> str:
    shown = json.dumps(text, ensure_ascii=False)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


# -- side by side ----------------------------------------------------------------------------------
def facts(row: LogRow) -> dict[str, str]:
    """Collect, in order, what a reader compares between rollouts of one example."""
    found = {"sample": f"{row.sample}{refill(row)}"}
    for n, turn in enumerate(dialogue(row).turns, 1):
        shown = [signature(call) for call in turn.calls] or [_text(turn.message) or "(empty)"]
        found[f"turn {n}"] = "\n".join(shown)
    found |= {
        "stopped": row.stop_reason,
        "score": number(row.score) + (f" {row.status}" if row.status != "ok" else ""),
        "reward": number(row.reward),
        "solved": "none" if row.solved is None else "yes" if row.solved else "no",
        "tokens": str(row.num_tokens),
        "explanation": row.explanation,
        "training": use(row),
    }
    return found
