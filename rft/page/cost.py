"""What the run cost: wall time by stage, rollouts, sampled tokens, optimizer steps.

The split of a stage's time (sampling, tools, grading) comes from its `timing.json`, counts come
from its log and report. A stage whose files were reused from an earlier run cost this run nothing,
so no total counts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rft.needs import NEEDS
from rft.page.inputs import StageFiles
from rft.page.markup import Html, card, h, table

_REUSED = ("unchanged", "restored")


@dataclass(frozen=True)
class Spent:
    """What one stage took in one run: `Spent(312.4, "ran")`."""

    seconds: float
    """Wall time over all attempts."""
    how: str
    """ran; or unchanged, restored: an earlier run made its files."""


def cost(stage_files: StageFiles, spent: Mapping[str, Spent]) -> Html | None:
    """Return the card of costs; None when neither times nor rollouts of the run are known."""
    counts = {stage: found for stage in NEEDS if (found := stage_files.sampled(stage)) is not None}
    stages = [stage for stage in NEEDS if stage in spent or stage in counts]
    if not stages:
        return None
    steps = {
        name: report.steps for name, report in (("policy", stage_files.policy), ("train", stage_files.train)) if report
    }
    head = ("", "wall time", "of it sampling / tools / grading", "rollouts", "sampled tokens", "optimizer steps")
    own = [stage for stage in stages if stage not in spent or spent[stage].how not in _REUSED]
    rows = [_row(stage, stage_files, spent.get(stage), counts.get(stage), steps.get(stage, 0)) for stage in stages]
    total = h(
        "tr",
        h("th", "this run", scope="row"),
        h("td", duration(sum(each.seconds for each in spent.values())) if spent else "not on record"),
        h("td"),
        h("td", f"{sum(counts[stage][0] for stage in own if stage in counts):,}"),
        h("td", f"{sum(counts[stage][1] for stage in own if stage in counts):,}"),
        h("td", f"{sum(steps.get(stage, 0) for stage in own):,}"),
        class_="picked",
    )
    note = "Wall time is this run's own, on its machine. Sampled tokens are those that the policy wrote itself."
    if len(own) < len(stages):
        note += " A reused result is an earlier run's work: its counts are shown, and the total leaves them out."
    return card("What it cost", h("p", note, class_="note"), table(head, rows, total, wide=True))


def _row(stage: str, stage_files: StageFiles, spent: Spent | None, count: tuple[int, int] | None, steps: int) -> Html:
    phases = stage_files.timing(stage).get("phases", {})
    inside = [phases.get(name) for name in ("sampling", "tools", "grading")]
    total = duration(spent.seconds) if spent else "not on record"
    reused = h("small", "reused") if spent is not None and spent.how in _REUSED else None
    return h(
        "tr",
        h("th", stage, scope="row"),
        h("td", total, reused),
        h("td", " / ".join("–" if seconds is None else duration(seconds) for seconds in inside) if phases else ""),
        h("td", f"{count[0]:,}" if count else ""),
        h("td", f"{count[1]:,}" if count else ""),
        h("td", f"{steps:,}" if steps else ""),
    )


def duration(seconds: float) -> str:
    """Write a duration: `4.2 s`, `3 min 20 s`, `1 h 02 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
