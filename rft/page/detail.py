"""The pictures and tables behind the story: drift, prompt, training, tool calls, best of k, stop
reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rft import reports
from rft.page import charts
from rft.page.charts import Series
from rft.page.inputs import ARMS, Shelves, between
from rft.page.markup import Child, Html, h
from rft.words import counted, decimal, signed


def pictures(shelves: Shelves) -> Iterator[Html]:
    """Cards for a grid of two columns."""
    for card in (training(shelves), tool_calls(shelves), best_of_k(shelves), drift(shelves)):
        if card is not None:
            yield card


def training(shelves: Shelves) -> Html | None:
    train = shelves.train
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
        note += f" ALARM: {train.alarms} times failures depended on what the policy did; the stage's log says how."
    return _card("Reward while training", h("p", text, class_="note"), picture, h("p", note, class_="note"))


def untrained(shelves: Shelves) -> Html | None:
    """Why there is no reward curve."""
    if shelves.train is None or shelves.train.trained:
        return None
    return _card("Training", h("p", "No weights were trained: ", shelves.train.reason, "."))


def tool_calls(shelves: Shelves) -> Html | None:
    shown = _before_and_after(shelves)
    if not shown:
        return None
    bars = [(label, kind, _shares(one.tool_calls), one.metrics["tool_calls/p95"].value) for label, kind, one in shown]
    text = (
        "; ".join(
            f"{label}: 95 % of rollouts make at most {p95:g} call{'' if p95 == 1 else 's'}" for label, _, _, p95 in bars
        )
        + "."
    )
    picture = charts.histogram("Tool calls a rollout", text, bars, "tool calls a rollout")
    return _card(
        "Tool calls",
        h("p", text[:1].upper() + text[1:], class_="note"),
        _legend([kind for _, kind, _ in shown]),
        picture,
    )


def best_of_k(shelves: Shelves) -> Html | None:
    """With one rollout per test example there is no best: then the baseline's champion alone, which
    always has several."""
    shown = [(arm.name, arm.sampled) for arm in shelves.arms if len(arm.sampled.max_at_k) > 1]
    if not shown and shelves.baseline is not None and len(shelves.baseline.sampled.max_at_k) > 1:
        shown = [("champion", shelves.baseline.sampled)]
    if not shown:
        return None
    lines = [Series(ARMS[name], name, one.max_at_k) for name, one in shown]
    ends = [(one.label, one.points[0][1], one.points[-1]) for one in lines]
    text = (
        "; ".join(
            f"{label}: one rollout {decimal(first)}, best of {k:g} {decimal(best)}" for label, first, (k, best) in ends
        )
        + "."
    )
    note = (
        f"The score expected of the best of k rollouts{between(shown[0][1])}. The room above k = 1 is what "
        "training can teach."
    )
    picture = charts.lines("Best of k rollouts", text, lines, "k", "expected best score", dots=True)
    return _card("Best of k", h("p", note, class_="note"), _legend([one.kind for one in lines]), picture)


def drift(shelves: Shelves) -> Html | None:
    report = shelves.drift
    if report is None:
        return None
    bars = h(
        "ul",
        [_feature(feature) for feature in sorted(report.features, key=lambda one: (-_ratio(one), one.feature))],
        class_="bars",
    )
    broken = [contract for contract in report.contracts if not contract.success]
    words = f"{counted(len(report.contracts), 'data contract')}: " + (
        "all hold." if not broken else f"{len(broken)} broken."
    )
    note = (
        f"{counted(report.num_current, 'conversation')} against {report.num_reference:,}. A bar is the effect, the "
        "line across it the smallest that "
        "counts. Drift needs an effect beyond it that also survives the false-discovery control."
    )
    lost = (
        h(
            "ul",
            [h("li", f"{one.column}: {one.name}, observed {one.observed}", class_="bad") for one in broken],
            class_="broken",
        )
        if broken
        else None
    )
    return _card(f"Drift: {report.verdict}", h("p", note, class_="note"), bars, h("p", words, class_="note"), lost)


def _feature(one: reports.FeatureDrift) -> Html:
    name = h("span", h("b", one.feature.replace("_", " ")), h("span", f" {one.group}", class_="muted"))
    if one.effect is None or one.q_value is None:
        return h("li", name, h("small", one.detail or "nothing to compare with"))
    large = one.effect > one.threshold
    tone, word = (
        ("bad", "drifted") if one.drifted else ("open", "large, but not significant") if large else ("off", "as before")
    )
    text = (
        f"{one.statistic.replace('_', ' ')} {one.effect:.3f}, counts from {one.threshold:g}, q = "
        f"{one.q_value:.2g}: {word}"
    )
    figure = h("span", f"{one.effect:.2f} of {one.threshold:g} · {word}", class_="muted" if tone == "off" else tone)
    picture = charts.threshold_bar(f"Drift of {one.feature}", text, _ratio(one), tone)
    return h("li", h("div", name, figure, class_="row"), picture)


def _ratio(one: reports.FeatureDrift) -> float:
    """How far the effect goes, where 1 is the threshold; -1 where nothing could be compared."""
    return -1.0 if one.effect is None else one.effect / one.threshold if one.threshold else 2.0


def candidates(shelves: Shelves) -> Html | None:
    report = shelves.prompt
    if report is None:
        return None
    head = h(
        "tr",
        [
            h("th", text, scope="col")
            for text in ("candidate", "from", "search: mean reward", "gain over the seed prompt", "round", "")
        ],
    )
    rows = [
        _candidate(report, one)
        for one in sorted(report.candidates, key=lambda c: (not _wins(report, c), -c.round, -c.search.value))
    ]
    note = f"{report.reason[:1].upper()}{report.reason[1:]}. {counted(report.num_rollouts, 'rollout')} spent."
    if rows:
        note += (
            " The best of a search is also the luckiest, so its gain must hold on examples that the search did "
            "not see. "
            + (
                "It did: that candidate stands first, the others follow in the order of the search."
                if report.found
                else "None held: "
            )
            + ("" if report.found else f"'{report.winner.name}' stays, whatever the search showed.")
        )
    words = h(
        "details",
        h("summary", f"The instruction of '{report.winner.name}'"),
        h("pre", report.winner.system, class_="command"),
    )
    table = h("div", h("table", h("thead", head), h("tbody", rows)), class_="scroll wide") if rows else None
    return h("section", h("h2", "Prompt candidates"), h("p", note, class_="note"), table, words, class_="card")


def _wins(report: reports.PromptReport, one: reports.Candidate) -> bool:
    return one.settings.name == report.winner.name


def _candidate(report: reports.PromptReport, one: reports.Candidate) -> Html:
    wins = _wins(report, one)
    kept = "✓ winner" if report.found else "✓ stays"
    state = kept if wins else "eliminated" if one.eliminated else "finalist"
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


def stop_reasons(shelves: Shelves) -> Html | None:
    shown = [(ARMS[arm.name], arm.name, arm.sampled) for arm in shelves.arms]
    if not shown and shelves.baseline is not None:
        shown = [("champion", "champion", shelves.baseline.sampled)]
    if not shown:
        return None
    found = {reason for _, _, one in shown for reason in one.stop_reasons}
    reasons = sorted(found, key=lambda reason: (-max(one.stop_reasons.get(reason, 0) for _, _, one in shown), reason))
    head = h(
        "tr",
        h("th", "", scope="col"),
        [h("th", _words(reason), scope="col") for reason in reasons],
        h("th", "unscored", scope="col"),
    )
    rows = [
        h(
            "tr",
            h("th", charts.legend_mark(kind), label, scope="row"),
            [h("td", _count(one.stop_reasons.get(reason, 0), sum(one.stop_reasons.values()))) for reason in reasons],
            h(
                "td",
                one.unscored,
                h("small", ", ".join(f"{_words(why)} {count:,}" for why, count in one.unscored_stop_reasons.items())),
            ),
        )
        for label, kind, one in shown
    ]
    note = (
        "Why the scored rollouts ended, and beside them the unscored, cut off by an outage or left without a "
        "grade, which enter no number."
    )
    table = h("div", h("table", h("thead", head), h("tbody", rows)), class_="scroll")
    return _card("Stop reasons", h("p", note, class_="note"), table)


# -- small parts -----------------------------------------------------------------------------------
def _before_and_after(shelves: Shelves) -> list[tuple[str, str, reports.Evaluation]]:
    names = dict.fromkeys(("champion", shelves.candidate))
    shown = [(ARMS[arm.name], arm.name, arm.sampled) for name in names if (arm := shelves.arm(name)) is not None]
    if not shown and shelves.baseline is not None:
        return [("champion", "champion", shelves.baseline.sampled)]
    return shown


def _card(title: str, *children: Child) -> Html:
    return h("section", h("h2", title), *children, class_="card")


def _legend(kinds: Sequence[str]) -> Html:
    return h(
        "p",
        [(charts.legend_mark(kind), ARMS[kind], "\u2003") for kind in kinds],
        class_="note",
        style="margin-bottom:4px",
    )


def _shares(histogram: dict[str, int]) -> dict[int, float]:
    total = sum(histogram.values()) or 1
    return {int(calls): count / total for calls, count in histogram.items()}


def _window(curve: Sequence[tuple[int, float]]) -> int:
    return max(1, len(curve) // 10)


def _smoothed(curve: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """A trailing mean: at no step does the line know the future."""
    width = _window(curve)
    return [
        (step, sum(y for _, y in curve[max(0, i - width + 1) : i + 1]) / (i + 1 - max(0, i - width + 1)))
        for i, (step, _) in enumerate(curve)
    ]


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
    interval = metric.low is not None and metric.high is not None
    return _plus(metric.value), h("small", f"[{_plus(metric.low)}, {_plus(metric.high)}]") if interval else None


def _plus(x: float | None) -> str:
    return signed(x or 0.0)


def _bracket(metric: reports.Metric) -> Html | None:
    return (
        h("small", f"[{decimal(metric.low)}, {decimal(metric.high)}]")
        if metric.low is not None and metric.high is not None
        else None
    )


def _words(reason: str) -> str:
    return reason.replace("_", " ")


def _count(count: int, total: int) -> Child:
    return "0" if not count else (f"{count:,}", h("small", f"{100 * count / total:.1f} %"))
