"""The examples that got worse, worst first: what a mean hides, and what the approver should read
before signing.

A single example has a handful of rollouts, so that much of its difference is chance; the gate's
checks judge the whole. This list is for reading: each entry opens into a typical rollout of both
arms, and names the command that shows all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rft import commands, reports
from rft.page import dialogues
from rft.page.dialogues import Rollout
from rft.page.inputs import ARMS, Shelves
from rft.page.markup import Html, h
from rft.words import counted, decimal, signed

_OPEN = 10  # entries with dialogues; the others are listed with their numbers alone
_SAME = 1e-9


@dataclass(frozen=True)
class Changed:
    """One example's mean reward in both arms."""

    example_id: str
    slice: str
    before: float
    after: float

    @property
    def by(self) -> float:
        return self.after - self.before


def worse(shelves: Shelves, run: Mapping[str, str], rollouts: Sequence[Rollout]) -> Html | None:
    """None where nothing was compared with the champion."""
    champion, candidate = shelves.arm("champion"), shelves.arm(shelves.candidate)
    if champion is None or candidate is None or candidate.name == "champion":
        return None
    changed = _changed(champion.sampled, candidate.sampled)
    if not changed:
        return None
    lost = sorted((one for one in changed if one.by < -_SAME), key=lambda one: (one.by, one.example_id))
    gained = sum(one.by > _SAME for one in changed)
    k = candidate.sampled.k
    note = (
        f"{len(lost):,} of {counted(len(changed), 'example')} earn less on average than under the champion, "
        f"{gained:,} more. With "
        f"{counted(k, 'rollout')} each, much of such a difference is chance: the checks above judge it, this list is "
        "for reading."
    )
    grouped = {
        arm: dialogues.by_example([row for row in rollouts if row["arm"] == arm])
        for arm in ("champion", candidate.name)
    }
    shown = [_entry(one, candidate.name, grouped, run) for one in lost[:_OPEN]]
    return h(
        "section",
        h("h2", "Examples that got worse"),
        h("p", note, class_="note"),
        h("div", shown),
        _others(lost[_OPEN:]),
        class_="card",
    )


def _changed(before: reports.Evaluation, after: reports.Evaluation) -> list[Changed]:
    old, new = ({row.example_id: _mean(row) for row in one.rows} for one in (before, after))
    slices = {row.example_id: row.slice for row in after.rows}
    pairs = ((id, old.get(id), mean) for id, mean in new.items())
    return [Changed(id, slices[id], was, now) for id, was, now in pairs if was is not None and now is not None]


def _mean(row: reports.Row) -> float | None:
    """Over the scored rollouts; None without any."""
    scored = [reward for reward in row.rewards if reward is not None]
    return sum(scored) / len(scored) if scored else None


def _entry(one: Changed, arm: str, grouped: Mapping[str, dict[str, list[Rollout]]], run: Mapping[str, str]) -> Html:
    line = h(
        "summary",
        h("b", one.example_id),
        f" ({one.slice}): {decimal(one.before)} → {decimal(one.after)}, {signed(one.by)}",
    )
    pairs = [(ARMS[name], grouped[name].get(one.example_id)) for name in ("champion", arm)]
    columns = [
        h("div", h("h3", who[:1].upper() + who[1:]), dialogues.rollout(dialogues.typical(rows)), style="min-width:0")
        for who, rows in pairs
        if rows
    ]
    command = commands.command("rollouts", run.get("run", "RUN"), "--stage", "challenger", "--group", one.example_id)
    return h(
        "details",
        line,
        h("div", columns, class_="grid"),
        h("p", "All its rollouts: ", h("code", command), class_="note"),
        class_="worse",
    )


def _others(rest: Sequence[Changed]) -> Html | None:
    if not rest:
        return None
    head = h("tr", [h("th", text, scope="col") for text in ("example", "slice", "champion", "candidate", "difference")])
    rows = [
        h(
            "tr",
            h("th", one.example_id, scope="row"),
            h("td", one.slice),
            [h("td", text) for text in (decimal(one.before), decimal(one.after), signed(one.by))],
        )
        for one in rest
    ]
    table = h("div", h("table", h("thead", head), h("tbody", rows)), class_="scroll")
    return h(
        "details", h("summary", f"{counted(len(rest), 'more example')}, each by at most {decimal(-rest[0].by)}"), table
    )
