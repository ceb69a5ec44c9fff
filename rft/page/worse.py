"""The examples that got worse, worst first: what a mean hides and an approver should read.

They are validation examples, played for this list and the dialogues. With one rollout each, much of
a difference is chance; the gate's checks judge the test set. Each entry opens into a typical
rollout of both arms, and names the command that shows all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rft import commands, reports
from rft.formatting import counted, decimal, signed
from rft.page import dialogues
from rft.page.dialogues import Rollout
from rft.page.inputs import StageFiles
from rft.page.markup import Html, card, h, table
from rft.reports.plain import ARMS

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


def worse(stage_files: StageFiles, run: Mapping[str, str], rollouts: Sequence[Rollout]) -> Html | None:
    """Make the card; None where nothing was compared with the champion."""
    champion, candidate = stage_files.arm("champion"), stage_files.arm(stage_files.candidate)
    if champion is None or candidate is None or candidate.name == "champion":
        return None
    changed = _changed(stage_files.rows(champion), stage_files.rows(candidate))
    if not changed:
        return None
    lost = sorted((example for example in changed if example.by < -_SAME), key=lambda lost: (lost.by, lost.example_id))
    gained = sum(example.by > _SAME for example in changed)
    k = candidate.sampled.k if stage_files.opened is not None else 1
    note = (
        f"{len(lost):,} of {counted(len(changed), 'example')} earn less on average than under the champion, "
        f"{gained:,} more. With {counted(k, 'rollout')} each, much of such a difference is chance: the checks above "
        f"judge the test set, this list is for reading. {stage_files.source}"
    )
    arms = ("champion", candidate.name)
    grouped = {arm: dialogues.by_example([row for row in rollouts if row["arm"] == arm]) for arm in arms}
    shown = [_entry(example, grouped, run) for example in lost[:_OPEN]]
    return card("Examples that got worse", h("p", note, class_="note"), h("div", shown), _others(lost[_OPEN:]))


def _changed(before: Sequence[reports.Row], after: Sequence[reports.Row]) -> list[Changed]:
    old, new = ({row.example_id: _mean(row) for row in rows} for rows in (before, after))
    slices = {row.example_id: row.slice for row in after}
    pairs = ((id, old.get(id), mean) for id, mean in new.items())
    return [Changed(id, slices[id], was, now) for id, was, now in pairs if was is not None and now is not None]


def _mean(row: reports.Row) -> float | None:
    """Return the mean over the scored rollouts; None if there are none."""
    scored = [reward for reward in row.rewards if reward is not None]
    return sum(scored) / len(scored) if scored else None


def _entry(one: Changed, grouped: Mapping[str, dict[str, list[Rollout]]], run: Mapping[str, str]) -> Html:
    change = f" ({one.slice}): {decimal(one.before)} → {decimal(one.after)}, {signed(one.by)}"
    columns = [
        dialogues.column(ARMS[arm], dialogues.typical(rows))
        for arm, by_example in grouped.items()
        if (rows := by_example.get(one.example_id))
    ]
    command = commands.command("rollouts group", one.example_id, run.get("run", "RUN"), "--stage", "challenger")
    return h(
        "details",
        h("summary", h("b", one.example_id), change),
        h("div", columns, class_="grid"),
        h("p", "All its rollouts: ", h("code", command), class_="note"),
        class_="worse",
    )


def _others(rest: Sequence[Changed]) -> Html | None:
    if not rest:
        return None
    rows = [
        h(
            "tr",
            h("th", one.example_id, scope="row"),
            h("td", one.slice),
            [h("td", text) for text in (decimal(one.before), decimal(one.after), signed(one.by))],
        )
        for one in rest
    ]
    summary = f"{counted(len(rest), 'more example')}, each by at most {decimal(-rest[0].by)}"
    return h("details", h("summary", summary), table(("example", "slice", "champion", "candidate", "difference"), rows))
