"""The detailed pictures and tables of a run, from training to stop reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rft import reports
from rft.formatting import counted, decimal, signed
from rft.page import charts, learned
from rft.page.charts import Series
from rft.page.inputs import StageFiles
from rft.page.markup import Child, Html, card, h, table
from rft.reports.plain import ARMS, between


def pictures(stage_files: StageFiles) -> Iterator[Html]:
    """Yield the cards for a grid of two columns."""
    for found in (training(stage_files), tool_calls(stage_files), best_of_k(stage_files)):
        if found is not None:
            yield found


def training(stage_files: StageFiles) -> Html | None:
    train = stage_files.train
    if train is None or len(train.curve) < 2:
        return None
    smooth = _smoothed(train.curve)
    first, last = smooth[0][1], smooth[-1][1]
    smoothed = f"smoothed over {counted(_window(train.curve), 'step')}"
    text = f"Mean reward of each optimizer step's rollouts, {smoothed}: from {decimal(first)} to {decimal(last)}."
    series = [Series("training", "challenger", smooth, train.curve)]
    picture = charts.lines("Reward over training steps", text, series, "optimizer step", "mean reward")
    left_out = "; ".join(f"{count:,} {reason}" for reason, count in train.left_out.items())
    missing = f", of which not trained on: {left_out}" if left_out else ""
    what = f"{train.algorithm}, {train.weights} weights, {counted(train.rollouts, 'rollout')}{missing}"
    note = f"{what}. The weights moved by {train.weight_change:.3g} (L2)."
    if train.alarms:
        note += f" ALARM: failures depended on what the policy did, {train.alarms} times; the stage's log says how."
    for fall in train.falls:
        note += f" At step {fall.step} it collapsed: {fall.reason}."
        note += f" It went back to the weights of step {fall.back_to}, and on with a learning rate of {fall.lr:g}."
    parts = h("p", text, class_="note"), picture, h("p", note, class_="note"), learned.beside(stage_files)
    return card("Reward while training", *parts)


def untrained(stage_files: StageFiles) -> Html | None:
    """Say why there is no reward curve."""
    if stage_files.train is None or stage_files.train.trained:
        return None
    return card("Training", h("p", "No weights were trained: ", stage_files.train.reason, "."))


def tool_calls(stage_files: StageFiles) -> Html | None:
    shown = _before_and_after(stage_files)
    if not shown:
        return None
    bars = [(label, kind, _shares(arm.tool_calls), arm.metrics["tool_calls/p95"].value) for label, kind, arm in shown]
    parts = [
        f"{label}: 95 % of rollouts make at most {p95:g} call{'' if p95 == 1 else 's'}" for label, _, _, p95 in bars
    ]
    text = "; ".join(parts) + "."
    picture = charts.histogram("Tool calls per rollout", text, bars, "tool calls per rollout")
    note = h("p", text[:1].upper() + text[1:], class_="note")
    return card("Tool calls", note, _legend([kind for _, kind, _ in shown]), picture)


def best_of_k(stage_files: StageFiles) -> Html | None:
    """Draw best of k. With one rollout per test example there is none, so the baseline's champion
    is shown."""
    shown = [(arm.name, arm.sampled) for arm in stage_files.arms if len(arm.sampled.max_at_k) > 1]
    if not shown and stage_files.baseline is not None and len(stage_files.baseline.sampled.max_at_k) > 1:
        shown = [("champion", stage_files.baseline.sampled)]
    if not shown:
        return None
    lines = [Series(ARMS[name], name, sampled.max_at_k) for name, sampled in shown]
    parts = [
        f"{line.label}: one rollout {decimal(line.points[0][1])}, best of {line.points[-1][0]:g} "
        f"{decimal(line.points[-1][1])}"
        for line in lines
    ]
    room = "The room above k = 1 is what training can teach."
    note = f"The score expected of the best of k rollouts{between(shown[0][1])}. {room}"
    picture = charts.lines("Best of k rollouts", "; ".join(parts) + ".", lines, "k", "expected best score", dots=True)
    return card("Best of k", h("p", note, class_="note"), _legend([line.kind for line in lines]), picture)


def candidates(stage_files: StageFiles) -> Html | None:
    report = stage_files.prompt
    if report is None:
        return None
    head = ("candidate", "from", "search: mean reward", "gain over the seed prompt", "round", "")
    ordered = sorted(report.candidates, key=lambda c: (not _wins(report, c), -c.round, -c.search.value))
    rows = [_candidate(report, candidate) for candidate in ordered]
    note = f"{report.reason[:1].upper()}{report.reason[1:]}. {counted(report.num_rollouts, 'rollout')} spent."
    if rows:
        note += (
            " The best of a search is also the luckiest, so its gain must hold on examples that the search did not see."
        )
        if report.found:
            note += " It did: that candidate stands first, the others follow in the order of the search."
        else:
            note += f" None held: '{report.winner.name}' stays, whatever the search showed."
    name = h("summary", f"The instruction of '{report.winner.name}'")
    full_text = h("details", name, h("pre", report.winner.system, class_="command"))
    shown = table(head, rows, wide=True) if rows else None
    return card("Prompt candidates", h("p", note, class_="note"), shown, full_text)


def _wins(report: reports.PromptReport, one: reports.Candidate) -> bool:
    return one.settings.name == report.winner.name


def _candidate(report: reports.PromptReport, one: reports.Candidate) -> Html:
    wins = _wins(report, one)
    state = "eliminated" if one.eliminated else "finalist"
    if wins:
        state = "✓ winner" if report.found else "✓ stays"
    return h(
        "tr",
        h("th", one.settings.name, h("small", _settings(one.settings)), scope="row"),
        h("td", one.parent or "–"),
        h("td", decimal(one.search.value), _bracket(one.search)),
        h("td", *_gain(one.gain)),
        h("td", one.round),
        h("td", state, class_="verdict good" if wins else "muted"),
        class_="picked" if wins else None,
    )


def stop_reasons(stage_files: StageFiles) -> Html | None:
    shown = [(ARMS[arm.name], arm.name, arm.sampled) for arm in stage_files.arms]
    if not shown and stage_files.baseline is not None:
        shown = [("champion", "champion", stage_files.baseline.sampled)]
    if not shown:
        return None
    found = {reason for _, _, arm in shown for reason in arm.stop_reasons}
    reasons = sorted(found, key=lambda reason: (-max(arm.stop_reasons.get(reason, 0) for _, _, arm in shown), reason))
    rows: list[Html] = []
    for label, kind, arm in shown:
        name = h("th", charts.legend_mark(kind), label, scope="row")
        total = sum(arm.stop_reasons.values())
        counts = [h("td", _count(arm.stop_reasons.get(reason, 0), total)) for reason in reasons]
        why = ", ".join(f"{_describe(reason)} {count:,}" for reason, count in arm.unscored_stop_reasons.items())
        rows.append(h("tr", name, counts, h("td", arm.unscored, h("small", why))))
    note = (
        "Why the scored rollouts ended. Unscored ones, cut off by an outage or left without a grade, count in no "
        "other number."
    )
    head = ("", *map(_describe, reasons), "unscored")
    return card("Stop reasons", h("p", note, class_="note"), table(head, rows))


# -- small parts -----------------------------------------------------------------------------------
def _before_and_after(stage_files: StageFiles) -> list[tuple[str, str, reports.Evaluation]]:
    names = dict.fromkeys(("champion", stage_files.candidate))
    shown = [(ARMS[arm.name], arm.name, arm.sampled) for name in names if (arm := stage_files.arm(name)) is not None]
    if not shown and stage_files.baseline is not None:
        return [("champion", "champion", stage_files.baseline.sampled)]
    return shown


def _legend(kinds: Sequence[str]) -> Html:
    marks = [(charts.legend_mark(kind), ARMS[kind], "\u2003") for kind in kinds]
    return h("p", marks, class_="note", style="margin-bottom:4px")


def _shares(histogram: dict[str, int]) -> dict[int, float]:
    total = sum(histogram.values()) or 1
    return {int(calls): count / total for calls, count in histogram.items()}


def _window(curve: Sequence[tuple[int, float]]) -> int:
    return max(1, len(curve) // 10)


def _smoothed(curve: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Return a trailing mean, which uses only earlier steps."""
    width = _window(curve)
    parts = [curve[max(0, i - width + 1) : i + 1] for i in range(len(curve))]
    return [(part[-1][0], sum(y for _, y in part) / len(part)) for part in parts]


def _settings(settings: reports.PromptSettings) -> str:
    parts = [
        f"{tool}: {', '.join(f'{key}={value}' for key, value in defaults.items())}"
        for tool, defaults in settings.tool_defaults.items()
    ]
    if settings.max_turns is not None:
        parts.append(counted(settings.max_turns, "turn"))
    if settings.block_repeated_calls:
        parts.append("repeated calls blocked")
    return "; ".join(parts)


def _gain(metric: reports.Metric | None) -> tuple[Child, ...]:
    if metric is None:
        return ("–",)
    return signed(metric.value), _bracket(metric, signed)


def _bracket(metric: reports.Metric, number: Callable[[float], str] = decimal) -> Html | None:
    if metric.low is None or metric.high is None:
        return None
    return h("small", f"[{number(metric.low)}, {number(metric.high)}]")


def _describe(reason: str) -> str:
    return reason.replace("_", " ")


def _count(count: int, total: int) -> Child:
    return "0" if not count else (f"{count:,}", h("small", f"{100 * count / total:.1f} %"))
