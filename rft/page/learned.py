"""Did training teach the task, or only the training examples?

Shows the reward of training beside that of the test, and says when they diverge. This is advice,
not a check of the gate.

Three gains, each with a 95 % interval:

    training     the mean reward of the last tenth of the steps minus that of the first tenth
                 (Student's interval on the means of the steps). If an earlier step's weights were
                 kept, only the steps up to that one count
    validation   greedy, the last measurement up to that step minus the first, paired by example
    test         the challenger minus the new prompt alone, paired by example: the same prompt, with
                 the training and without it

The page says *overfitting* only where it is shown: the reward rose in training, and

    on the test    it gained less than half of that rise, and the difference is more than chance:
                   the interval of training's gain minus the test's is above 0; or
    on validation  it fell, with the whole interval, over the same steps.

Why half: training's reward comes from other examples than the test's, chosen by the curriculum, and
from a policy that changes. So with enough examples *some* difference is always shown. "No sign" may
mean that there were too few examples, and where a number is missing, nothing is claimed. Training
that began from another policy than the champion has no such pair of arms: not measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Literal

from rft import reports, stats
from rft import stage_files as files_of
from rft.formatting import decimal, signed
from rft.page.inputs import StageFiles
from rft.page.markup import Child, Html, h, table
from rft.reports import Metric

Verdict = Literal["overfitting", "no sign of overfitting", "not measured"]
_ARRIVES = 0.5
_TONES = {"overfitting": "bad", "no sign of overfitting": "muted", "not measured": "bad"}


@dataclass(frozen=True)
class Gain:
    before: float
    after: float
    by: Metric

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of its interval; infinite where there is no interval."""
        low, high = self.by.low, self.by.high
        return (-math.inf if low is None else low, math.inf if high is None else high)


@dataclass(frozen=True)
class Learned:
    train: Gain | None
    validation: Gain | None
    test: Gain | None
    why: str = ""
    """Why there is no gain on the test."""

    @property
    def verdict(self) -> Verdict:
        if self.train is None or self.train.by.low is None:
            return "not measured"
        rose = self.train.ends[0] > 0
        if rose and self.validation is not None and self.validation.ends[1] < 0:
            return "overfitting"
        if self.test is None or self.test.by.low is None:
            return "not measured"
        return "overfitting" if rose and self._parts(self.train, self.test) else "no sign of overfitting"

    def _parts(self, train: Gain, test: Gain) -> bool:
        gap = train.by.value - test.by.value
        halves = [gain.by.value - gain.ends[0] for gain in (train, test)]
        return test.by.value < _ARRIVES * train.by.value and gap > math.hypot(*halves)

    @property
    def description(self) -> str:
        """The verdict with the numbers that it rests on."""
        if self.verdict == "not measured":
            return f"Not measured: {self.why or 'too few steps to tell a rise from noise'}."
        assert self.train is not None
        rise = f"the reward {_moved(self.train)} on the training examples"
        if self.train.ends[0] <= 0:
            return f"No sign of overfitting: {rise}, which is not a rise beyond chance."
        fell = self.validation is not None and self.validation.ends[1] < 0
        if self.validation is not None and fell:
            return f"Overfitting: {rise}, and {_moved(self.validation)} on those of validation."
        assert self.test is not None
        arrived = f"and {_moved(self.test)} on the test"
        if self.verdict == "overfitting":
            return f"Overfitting: {rise}, {arrived}: less than half of it reached examples that were not trained on."
        return f"No sign of overfitting: {rise}, {arrived}."


def learned(stage_files: StageFiles) -> Learned | None:
    """Compare the gains; None where nothing was trained."""
    train = stage_files.train
    if train is None or not train.trained:
        return None
    why, test = _on_test(stage_files)
    return Learned(_on_train(train), _on_validation(stage_files, train.kept_step or train.steps), test, why)


def _on_train(train: reports.TrainReport) -> Gain | None:
    curve = [reward for step, reward in train.curve if step <= (train.kept_step or train.steps)]
    width = max(2, len(curve) // 10)
    if len(curve) < 2 * width:
        return None
    first, last = curve[:width], curve[-width:]
    value = fmean(last) - fmean(first)
    error = math.sqrt((variance(first) + variance(last)) / width)
    half = stats.t_quantile(0.025, 2 * width - 2) * error
    return Gain(fmean(first), fmean(last), Metric(value=value, low=value - half, high=value + half, n=len(curve)))


def _on_validation(stage_files: StageFiles, until: int) -> Gain | None:
    rows = stage_files.log(files_of.rollouts("train"), "split", "step", "example_id", "reward") or []
    steps: dict[int, dict[str, list[float | None]]] = {}
    for row in rows:
        if row["split"] == "validation" and row["step"] <= until:
            steps.setdefault(row["step"], {})[row["example_id"]] = [row["reward"]]
    if len(steps) < 2:
        return None
    return _paired(steps[max(steps)], steps[min(steps)])


def _on_test(stage_files: StageFiles) -> tuple[str, Gain | None]:
    """Return why there is no gain, or else the gain."""
    arms = {arm.name: arm for arm in stage_files.challenger.arms} if stage_files.challenger is not None else {}
    if not {"champion", "champion_new_prompt", "challenger"} <= {*arms}:
        return "the test set was not opened", None
    if not stage_files.trained_from_champion:
        return "training did not begin from the champion, so no arm shows what the test was worth before it", None
    after, before = (
        {row.example_id: row.rewards for row in arms[name].sampled.rows}
        for name in ("challenger", "champion_new_prompt")
    )
    gain = _paired(after, before)
    return ("" if gain else "no test example has a score in both arms"), gain


def _paired(after: stats.ById, before: stats.ById) -> Gain | None:
    both = [
        (mean, was)
        for id in after
        if (mean := _mean(after[id])) is not None and (was := _mean(before.get(id, []))) is not None
    ]
    if not both:
        return None
    news, olds = ({str(i): [pair[side]] for i, pair in enumerate(both)} for side in (0, 1))
    return Gain(fmean(pair[1] for pair in both), fmean(pair[0] for pair in both), stats.t_gain(news, olds))


def _mean(row: Sequence[float | None]) -> float | None:
    scored = [reward for reward in row if reward is not None]
    return fmean(scored) if scored else None


# -- on the page -----------------------------------------------------------------------------------
def beside(stage_files: StageFiles) -> list[Html]:
    """Make a small table and a sentence; empty where nothing was trained."""
    found = learned(stage_files)
    if found is None:
        return []
    tone = _TONES[found.verdict]
    rows = [
        _row("training", "first and last tenth of the steps", found.train),
        _row("validation", "greedy, first and last measurement", found.validation),
        _row("test", "the new prompt alone, and with the training", found.test),
    ]
    champion = stage_files.arm("champion")
    earns = (
        f" The champion earns {decimal(champion.sampled.metrics['reward/mean'].value)} on the test." if champion else ""
    )
    mark = h("b", "! ") if tone == "bad" else None
    return [
        table(("mean reward on", "before", "after", "gain"), rows),
        h("p", mark, found.description, class_="bad" if tone == "bad" else None),
        h("p", f"This is advice, not a check of the gate.{earns}", class_="note"),
    ]


def _row(name: str, what: str, gain: Gain | None) -> Html:
    head = h("th", name, h("small", what), scope="row")
    if gain is None:
        return h("tr", head, h("td", "! not measured", colspan="3", class_="bad"))
    return h("tr", head, h("td", decimal(gain.before)), h("td", decimal(gain.after)), h("td", *_cell(gain.by)))


def _cell(by: Metric) -> tuple[Child, ...]:
    if by.low is None or by.high is None:
        return (signed(by.value),)
    return signed(by.value), h("small", f"[{signed(by.low)}, {signed(by.high)}]")


def _moved(gain: Gain) -> str:
    """Write a gain: `rose by 0.304 [0.254, 0.354]`."""
    by, sign = gain.by, 1 if gain.by.value >= 0 else -1
    ends = sorted(sign * end for end in (by.low, by.high) if end is not None)
    interval = f" [{', '.join(map(decimal, ends))}]" if ends else ""
    return f"{'rose' if sign > 0 else 'fell'} by {decimal(abs(by.value))}{interval}"
