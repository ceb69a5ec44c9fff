"""What happened and what to do now: header, ladder, three arms, approval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rft import commands, reports
from rft.formatting import counted, decimal
from rft.gate import sample_size
from rft.needs import NEEDS
from rft.page import charts
from rft.page.inputs import StageFiles
from rft.page.markup import Child, Html, card, h, table
from rft.reports.plain import ARMS, between

_SIGNS = {"good": "✓", "bad": "✗", "open": "?", "off": "–"}
_LONG = 160  # characters of a fact in the header
_READINESS = {"ready": "good", "suspect": "bad"}
_STOPPED = (
    "The champion goes on serving: nothing was measured on examples that no longer look like production. "
    "Fix what the drift card names, or collect more graded conversations, and run again: "
)


def verdict(stage_files: StageFiles) -> tuple[str, str, str]:
    """Return the run's verdict: word, tone and reason."""
    if stage_files.decision is not None:
        tone = {"promote": "good", "reject": "bad", "inconclusive": "open"}[stage_files.decision.decision]
        return stage_files.decision.decision, tone, stage_files.decision.reason
    if stage_files.drift is not None and stage_files.drift.verdict == "stop":
        return "stopped at drift", "open", stage_files.drift.reason
    if stage_files.train is not None and stage_files.train.collapsed:
        return "training collapsed", "bad", stage_files.train.reason
    return "not finished", "off", "The run has not reached a decision; below is what it found so far."


def header(stage_files: StageFiles, run: Mapping[str, str]) -> Html:
    word, tone, reason = verdict(stage_files)
    badge = h("span", h("span", _SIGNS[tone], aria_hidden="true"), word.capitalize(), class_=f"badge {tone}")
    facts = {key.replace("_", " "): value for key, value in run.items() if key not in ("run", "again") and value}
    if stage_files.challenger is not None:
        facts["frozen test"] = stage_files.challenger.test_sha256[:12]
    return h(
        "header",
        h(
            "div",
            h("div", h("div", "agent-rft run report", class_="kicker"), h("h1", run.get("run", "run"))),
            badge,
            class_="top",
        ),
        h("p", _sentence(reason), class_="reason"),
        h("dl", [h("div", h("dt", key), h("dd", _fact(value))) for key, value in facts.items()], class_="facts")
        if facts
        else None,
        class_="card",
    )


def _fact(value: str) -> Child:
    """Fold a long fact, such as the names of many files."""
    return value if len(value) <= _LONG else h("details", h("summary", f"{value[:_LONG]} ..."), value)


def ladder(stage_files: StageFiles) -> Html:
    """Show each stage with its verdict; stages that were not reached are named too."""
    items = []
    for stage, tone, text in _rungs(stage_files):
        dot = h("span", _SIGNS[tone], class_=f"dot {tone}", aria_hidden="true")
        items.append(h("li", dot, h("b", stage), text, class_="off" if tone == "off" else None))
    return card("The ladder", h("ol", items, class_="ladder"))


def _rungs(stage_files: StageFiles) -> Iterator[tuple[str, str, str]]:
    """Yield stage, tone and verdict."""
    found: dict[str, tuple[str, str]] = {}
    if (traffic := stage_files.traffic) is not None:
        found["traffic"] = "good", counted(traffic.num_conversations, "conversation")
    if (drift := stage_files.drift) is not None:
        found["drift"] = {"continue": "good", "refresh": "open", "stop": "bad"}[drift.verdict], drift.verdict
    if (examples := stage_files.examples) is not None:
        found["examples"] = "good", f"{_counts(examples)} from {examples.source}"
    if (policy := stage_files.policy) is not None:
        found["policy"] = "good", f"{policy.kind}, {_millions(policy.num_parameters)}"
    if (baseline := stage_files.baseline) is not None:
        found["baseline"] = _READINESS.get(baseline.readiness, "open"), baseline.readiness
    if (prompt := stage_files.prompt) is not None:
        found["prompt"] = ("good", "new prompt") if prompt.found else ("off", "no gain found")
    if (train := stage_files.train) is not None:
        done = f"{counted(train.steps, 'step')}, {train.weights}"
        untrained = ("bad", "collapsed") if train.collapsed else ("off", "skipped")
        found["train"] = ("good", done) if train.trained else untrained
    if stage_files.challenger is not None:
        found["challenger"] = "good", f"{counted(len(stage_files.challenger.arms), 'arm')} measured"
    if stage_files.decision is not None:
        word, tone, _ = verdict(stage_files)
        found["gate"] = tone, word
    for stage in NEEDS:
        yield stage, *found.get(stage, ("off", "not reached"))


def arms(stage_files: StageFiles) -> Html | None:
    if not stage_files.arms:
        return None
    first = stage_files.arms[0].sampled
    head = [
        "",
        "mean reward",
        "mean score",
        "greedy score",
        "solved",
        "P95 tool calls",
        "tokens sampled",
        "seconds P50 / P95",
    ]
    rows = [_arm_row(stage_files, arm) for arm in stage_files.arms]
    values = [(ARMS[arm.name], arm.name, arm.sampled.metrics["reward/mean"]) for arm in stage_files.arms]
    picture = charts.forest(
        "Mean reward by arm",
        "; ".join(f"{label} {_interval(metric)}" for label, _, metric in values),
        [
            (label, kind, m.value, m.value if m.low is None else m.low, m.value if m.high is None else m.high)
            for label, kind, m in values
        ],
    )
    note = (
        f"{counted(len(first.rows), 'frozen test example')} that nothing before this stage saw; "
        f"{counted(first.k, 'rollout')} each at temperature {first.temperature:g} and one greedy. The reward is the "
        f"score after the budget{between(first)}. In brackets: 95 % intervals. Arms with the same prompt and weights "
        "are shown once."
    )
    shown = table(head, rows, wide=True)
    return card("Before and after", h("p", note, class_="note"), shown, h("div", picture, class_="narrow"))


def _arm_row(stage_files: StageFiles, arm: reports.Arm) -> Html:
    metrics = arm.sampled.metrics
    spans = stage_files.timings.get("rollout_s", {}).get(f"challenger/{arm.name}/sampled")
    judged = stage_files.decision is not None and arm.name == stage_files.decision.candidate
    note = h("small", "judged by the gate") if judged else None
    means = (metrics["reward/mean"], metrics["score/mean"], arm.greedy.metrics["score/mean"])
    return h(
        "tr",
        h("th", charts.legend_mark(arm.name), ARMS[arm.name], note, scope="row"),
        [h("td", *_cell(metric)) for metric in means],
        h("td", *_cell(metrics["solved/share"], percent=True)),
        h("td", *_cell(metrics["tool_calls/p95"], digits=0)),
        h("td", *_cell(metrics["tokens/mean"], digits=0), _read(metrics)),
        h("td", f"{spans['p50']:.2f} / {spans['p95']:.2f}" if spans else "not measured"),
        class_="picked" if judged else None,
    )


def _read(metrics: Mapping[str, reports.Metric]) -> Html | None:
    """Show the tokens that a rollout reads, if the policy counts them."""
    if "context_tokens/mean" not in metrics:
        return None
    read, cached = (metrics[f"{name}/mean"].value for name in ("context_tokens", "cached_tokens"))
    return h("small", f"{read:,.0f} read, {cached:,.0f} of them cached")


def _cell(metric: reports.Metric, digits: int = 3, percent: bool = False) -> tuple[Child, ...]:
    def text(x: float) -> str:
        return f"{decimal(100 * x, 1)} %" if percent else decimal(x, digits)

    if metric.low is None or metric.high is None:
        return (text(metric.value),)
    return text(metric.value), h("small", f"[{text(metric.low)}, {text(metric.high)}]")


# -- what to do now --------------------------------------------------------------------------------
def next_step(stage_files: StageFiles, run: Mapping[str, str]) -> Html | None:
    again = run.get("again") or commands.command("run")
    if stage_files.decision is None:
        stopped = stage_files.drift is not None and stage_files.drift.verdict == "stop"
        return card("What now", h("p", _STOPPED, h("code", again))) if stopped else None
    name = run.get("run", "RUN")
    dirty = run.get("dirty", "").lower() not in ("", "no", "false")
    override = ["--override-dirty"] if dirty else []
    model = ["--model", Path(run["recipe"]).name] if run.get("recipe") else []
    if (
        stage_files.decision.decision == "promote"
        and stage_files.registration
        and not stage_files.registration.by_policy
    ):
        unasked = f"Not up for promotion: {stage_files.registration.description}. To see the thresholds that count: "
        body: list[Child] = [h("p", unasked, h("code", commands.command("ledger policy", "show")))]
    elif stage_files.decision.decision == "promote":
        approve = commands.command("approve", name, *commands.WHY, *override)
        reject = commands.command("reject", name, *commands.WHY)
        rollback = commands.command("rollback", *model, *commands.WHY)
        means = (
            "People decide. An approver signs with their SSH key. When as many have signed as the ledger's rules "
            "require, this candidate is the champion, and @previous is the one that it replaces."
        )
        body = [
            h("p", means),
            h("pre", h("code", approve), class_="command"),
            h("p", "To turn it down: ", h("code", reject), class_="note"),
            h("p", "To undo an approval later: ", h("code", rollback), class_="note"),
        ]
        if dirty:
            text = (
                "This run used edits that are in no commit, named above: with --override-dirty the approver takes "
                "responsibility for them."
            )
            body.append(h("p", text, class_="open"))
    elif stage_files.decision.decision == "inconclusive":
        advice = _sentence(sample_size.advice(stage_files.decision.checks))
        body = [h("p", "There is nothing to approve yet. ", advice, " Then run again: ", h("code", again))]
        if (
            stage_files.decision.more_examples
            and stage_files.examples is not None
            and stage_files.examples.offers_blocks
        ):
            body.append(h("p", "To extend this run: ", h("code", commands.command("runs extend", name)), class_="note"))
    else:
        why = "" if stage_files.decision.candidate == "none" else " The failed checks above say what stood in the way."
        body = [h("p", f"There is nothing to approve: the champion goes on serving.{why}")]
    return card("What now", body)


def footer(stage_files: StageFiles) -> Html | None:
    if stage_files.decision is None:
        return None
    rows = [
        h("tr", h("th", key.replace("_", " "), scope="row"), h("td", value))
        for key, value in stage_files.decision.hashes.items()
    ]
    hashes = h("div", h("table", h("tbody", rows)), class_="scroll")
    return h("footer", h("details", h("summary", "What the decision rests on, by sha256"), hashes))


def _interval(metric: reports.Metric) -> str:
    if metric.low is None or metric.high is None:
        return decimal(metric.value)
    return f"{decimal(metric.value)} [{decimal(metric.low)}, {decimal(metric.high)}]"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _counts(report: reports.ExamplesReport) -> str:
    return " / ".join(f"{count:,}" for count in report.counts.values())


def _millions(count: int) -> str:
    return f"{count / 1e9:.1f} B weights" if count >= 1e9 else f"{count / 1e6:.1f} M weights"
