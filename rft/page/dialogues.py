"""Rollouts side by side: numbers say how much changed, dialogues say what changed.

The examples are from validation, because a person who reads test dialogues tunes on the test.

There are two pairs: the candidate's worst and best rollout, and the example that changed the most,
before and after. They are chosen by reward, then by the number of calls (more calls have more to
show), then by id, so that the same run always shows the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rft import commands
from rft import stage_files as places
from rft.formatting import counted, decimal
from rft.page.inputs import StageFiles
from rft.page.markup import Child, Html, card, h
from rft.reports.plain import ARMS

_LONGEST = 1200  # characters of one message
_OPEN = 8  # messages shown before the fold
_COLUMNS = ("arm", "example_id", "sample", "stop_reason", "reward", "num_tool_calls", "messages", "explanation")

Rollout = dict[str, Any]


def scored(stage_files: StageFiles) -> list[Rollout]:
    """Return the scored rollouts that people may read: those of the arms, or of the baseline."""
    if stage_files.challenger is None:
        path = places.rollouts("baseline")
    else:
        path = places.SHOWN_ROLLOUTS if stage_files.opened is None else places.rollouts("challenger")
    return [row for row in stage_files.log(path, *_COLUMNS) or [] if row["reward"] is not None]


def closed(stage_files: StageFiles, run: Mapping[str, str]) -> Html | None:
    """Say why there are no dialogues to read; None if there are some."""
    if (
        stage_files.challenger is None
        or stage_files.opened is not None
        or (stage_files.shown and stage_files.shown.examples)
    ):
        return None
    zero = "challenger.shown is 0, so nothing was played to be shown"
    why = (
        "the run was recorded before validation examples were played to be shown" if stage_files.shown is None else zero
    )
    command = commands.command("runs report", run.get("run", "RUN"), "--open-test", *commands.WHY)
    opens = "To open it, and use it for no later run: "
    return card("Dialogues", h("p", f"There are none: {why}. The test set stays closed. ", opens, h("code", command)))


def side_by_side(stage_files: StageFiles, rollouts: Sequence[Rollout]) -> list[Html]:
    after = [row for row in rollouts if row["arm"] == stage_files.candidate]
    if not after:
        return []
    who = ARMS.get(stage_files.candidate, stage_files.candidate)
    worst = min(after, key=lambda row: (row["reward"], *_rank(row)))
    best = min(after, key=lambda row: (-row["reward"], *_rank(row)))
    source = stage_files.source if stage_files.challenger is not None else ""
    cards = [_pair(f"Worst and best rollout, {who}", source, ("worst", worst), ("best", best))]
    before = [row for row in rollouts if row["arm"] == "champion"]
    if stage_files.candidate != "champion" and (pair := _most_changed(before, after)) is not None:
        note = f"The example whose mean reward changed the most, and one rollout of each. {source}"
        cards.append(_pair("The same example, before and after", note, ("champion", pair[0]), (who, pair[1])))
    return cards


def _rank(row: Rollout) -> tuple[int, str, int]:
    return -row["num_tool_calls"], row["example_id"], row["sample"]


def _most_changed(before: Sequence[Rollout], after: Sequence[Rollout]) -> tuple[Rollout, Rollout] | None:
    """Return each arm's typical rollout on the example with the largest change."""
    old, new = by_example(before), by_example(after)

    def change(id: str) -> tuple[float, int]:
        return round(abs(_mean(new[id]) - _mean(old[id])), 9), sum(row["num_tool_calls"] for row in old[id])

    example = max(sorted(set(old) & set(new)), key=change, default=None)
    return None if example is None else (typical(old[example]), typical(new[example]))


def typical(rows: Sequence[Rollout]) -> Rollout:
    """Return the rollout whose reward is nearest to the mean."""
    mean = _mean(rows)
    return min(rows, key=lambda row: (abs(row["reward"] - mean), row["sample"]))


def by_example(rollouts: Sequence[Rollout]) -> dict[str, list[Rollout]]:
    grouped: dict[str, list[Rollout]] = {}
    for row in rollouts:
        grouped.setdefault(row["example_id"], []).append(row)
    return grouped


def _mean(rows: Sequence[Rollout]) -> float:
    return sum(row["reward"] for row in rows) / len(rows)


# -- one dialogue ----------------------------------------------------------------------------------
def _pair(title: str, note: str, *columns: tuple[str, Rollout]) -> Html:
    shown = [column(label, row) for label, row in columns]
    return card(title, h("p", note, class_="note") if note else None, h("div", shown, class_="grid"))


def column(label: str, row: Rollout) -> Html:
    return h("div", h("h3", label[:1].upper() + label[1:]), _rollout(row), style="min-width:0")


def _rollout(row: Rollout) -> Html:
    """Show what was said and done, with the middle folded, and the grade."""
    facts = [
        h("span", "reward ", h("b", decimal(row["reward"]))),
        h("span", counted(row["num_tool_calls"], "tool call")),
        h("span", row["stop_reason"].replace("_", " ")),
        h("span", f"example {row['example_id']}"),
    ]
    messages = [_message(message) for message in json.loads(row["messages"]) if message.get("role") != "system"]
    why = row["explanation"]
    grade = h("p", f"Graded: {why}", class_="note", style="margin-top:8px") if why else None
    return h("div", h("div", facts, class_="rollout-head"), _talk(messages), grade)


def _talk(messages: list[Html]) -> list[Html]:
    """Show the start and the end, and fold what lies between."""
    if len(messages) <= _OPEN + 1:
        return [h("ul", messages, class_="talk")]
    middle = messages[_OPEN - 1 : -1]
    folded = h("details", h("summary", counted(len(middle), "more message")), h("ul", middle, class_="talk"))
    return [h("ul", messages[: _OPEN - 1], class_="talk"), folded, h("ul", messages[-1], class_="talk")]


def _message(message: dict[str, Any]) -> Html:
    role = str(message.get("role", ""))
    calls = [h("div", _call(call), class_="call") for call in message.get("tool_calls") or []]
    content = message.get("content") or ""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    body: list[Child] = [_clipped(text.strip())] if text.strip() else []
    return h("li", h("span", role, class_="who"), body, calls, class_=role if role in ("assistant", "tool") else "user")


def _call(call: dict[str, Any]) -> str:
    function = call.get("function", {})
    return f"→ {function.get('name', '')}({_clipped(str(function.get('arguments', '')))})"


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … ({len(text) - _LONGEST:,} more characters)"
