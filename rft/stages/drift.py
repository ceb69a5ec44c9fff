"""Stage `drift`: judges whether production is still like the agent's examples.

The verdict is continue, refresh or stop.

There are two separate questions. The first is whether the window is sound; contracts answer it
(rft/drift/contracts.py). The second is whether it is like the references. These are the examples of
train, validation and test, and the traffic that the champion's run saw. Each feature has one
statistic (rft/drift/features.py has the table), with an effect size and a p-value that respects the
unit of dependence. One false-discovery rate holds over the whole window (rft/drift/comparison.py).
The verdict comes from a table (`_table`): its first row that holds decides.

    stop      a contract is broken; or too large a share of tool calls failed; or the input drifted,
              and too few graded conversations are there to rebuild the examples
    refresh   the input drifted from the training examples, and enough conversations are graded
    continue  otherwise. If the window is too small to judge, the reason says so

Only input features ask for a refresh, and only where they moved away from the training examples:
that is what a refresh renews. Other drift is tested, shown and named beside the verdict. Such drift
is in what the agent did (tools, errors, latency), in what became of it (refusals, corrections), or
away from the examples of validation and test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from rft import files, progress, recipe, reports, stage_files
from rft.config import Drift, Params
from rft.drift import carriers, comparison, contracts, profile, references
from rft.drift.engines import Engine
from rft.drift.features import plan_of
from rft.errors import UserError
from rft.recipe import Recipe
from rft.reports import Against, Contract, DriftReport, FeatureDrift, Profile, TrafficReport
from rft.tools import signatures
from rft.traffic import feedback, reading
from rft.traffic.feedback import Survey
from rft.traffic.texts import bucket_words

Verdict = Literal["continue", "refresh", "stop"]


def run(params: Params) -> None:
    compared: dict[Against, Profile] = {
        against: reports.read(Profile, stage_files.reference_file(against))
        for against in stage_files.REFERENCE_ORDER
        if stage_files.reference_file(against).exists()
    }
    current = reports.read(Profile, stage_files.CURRENT_PROFILE)
    loaded = recipe.load(params.recipe, params.examples.keys)
    sha256 = stage_files.read(TrafficReport).sha256
    stage_files.write(judge(params, loaded, compared, current, stage_files.CONVERSATIONS, sha256))


def check(params: Params, snapshot: Path, against: Path | None = None) -> DriftReport:
    """Judge any window in the same way, without writing a file. `against`: the snapshot of an
    earlier window, which replaces all other references.

    Without a champion's window, what the agent did is compared with the window that stage
    `traffic` saw last.
    """
    loaded = recipe.load(params.recipe, params.examples.keys)
    plan, engine = plan_of(params, loaded, signatures.schemas(loaded)), Engine.from_params(params)
    manifest = reading.manifest(snapshot)
    current = profile.of_parts(reading.parts(snapshot), plan, params.traffic.file, engine)
    if against is not None:
        earlier = profile.of_parts(reading.parts(against), plan, reading.manifest(against).sources[0].name, engine)
        return judge(params, loaded, {"window": earlier}, current, snapshot, manifest.sha256)
    compared = references.from_params(params, loaded, plan)
    last = stage_files.path(TrafficReport)
    if "window" not in compared and last.exists() and reports.read(TrafficReport, last).sha256 != manifest.sha256:
        compared["window"] = reports.read(Profile, stage_files.CURRENT_PROFILE)
    return judge(params, loaded, compared, current, snapshot, manifest.sha256)


def judge(
    params: Params,
    loaded: Recipe,
    compared: Mapping[Against, Profile],
    current: Profile,
    snapshot: Path,
    sha256: str,
) -> DriftReport:
    """Judge a window by its profile and its snapshot. Writes Data Docs to the state folder."""
    settings, parts = params.drift, reading.parts(snapshot)
    sources = " and ".join(profile.source for profile in compared.values())
    progress.print_line("drift", f"comparing {current.num_conversations} conversations with {sources}")
    plan = plan_of(params, loaded, signatures.schemas(loaded))
    words = bucket_words(profile.sampled_texts(parts, plan, Engine.from_params(params)))
    rows = comparison.compare_all(compared, current, settings, words.__getitem__)
    statistics = comparison.control(rows, settings)
    progress.print_line("drift", "checking contracts")
    docs = Path("reports") / "data_docs" / sha256[:16]
    tools = contracts.KnownTools.from_tools(signatures.names(loaded), params.tools)
    manifest = reading.manifest(snapshot)
    held = contracts.check(parts, tools, statistics, settings, files.state() / docs, manifest)
    survey, obstacle = _survey(snapshot, loaded, params)
    facts = Facts(
        statistics=statistics,
        contracts=held,
        num_reference=next(iter(compared.values())).num_conversations,
        num_current=current.num_conversations,
        error_share=tool_error_share(parts),
        num_usable=survey.num_usable,
        obstacle=obstacle,
    )
    _, verdict, reason, advice = decide(settings, facts)
    reason += tools.not_checked
    if survey.is_strange:
        reason += f" {survey.describe(lambda one: f'conversation {one.conversation_id}')}."
    progress.print_line("drift", f"Data Docs: {files.state() / docs / 'index.html'}")
    progress.print_line("drift", f"{verdict}: {reason}")
    return DriftReport(
        verdict=verdict,
        reason=reason,
        features=statistics,
        contracts=held,
        num_reference=facts.num_reference,
        num_current=facts.num_current,
        window_sha256=sha256,
        num_usable_feedback=facts.num_usable,
        tool_error_share=round(facts.error_share, 6),
        data_docs=(docs / "index.html").as_posix(),
        alpha=settings.level,
        carriers=carriers.find(parts, statistics, compared, current, plan, loaded, words),
        advice=advice,
    )


def _survey(snapshot: Path, loaded: Recipe, params: Params) -> tuple[Survey, str]:
    """Survey the graded conversations. The second value says why none of them can become an
    example."""
    try:
        return feedback.survey(reading.conversations(snapshot, graded=True), loaded, params), ""
    except UserError as error:  # the recipe has no from_traffic
        return Survey(), str(error)


def tool_error_share(parts: Sequence[Path]) -> float:
    """Return the share of tool calls that failed, over all conversations."""
    errors, calls = reading.total(parts, "tool_errors"), reading.total(parts, "num_tool_calls")
    return errors / max(calls, errors, 1)


# -- verdict ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Facts:
    """The facts on which the verdict rests. `obstacle`: why no conversation can become an
    example."""

    statistics: Sequence[FeatureDrift]
    contracts: Sequence[Contract]
    num_reference: int
    num_current: int
    error_share: float = 0.0
    num_usable: int = 0
    obstacle: str = ""


class Row(NamedTuple):
    """A row of the table of verdicts. `advice`: what to do, in one sentence."""

    holds: bool
    verdict: Verdict
    reason: str
    advice: str


def decide(settings: Drift, facts: Facts) -> Row:
    """Return the first row of the table that holds."""
    return next(row for row in _table(settings, facts) if row.holds)


def _table(settings: Drift, facts: Facts) -> Iterator[Row]:
    broken = [one for one in facts.contracts if not one.success]
    first = next((f"{one.name} of {one.column}" for one in broken), "")
    named = "; ".join(f"{one.name} of {one.column}: {one.observed}" for one in broken)
    yield Row(
        bool(broken),
        "stop",
        f"{len(broken)} of {len(facts.contracts)} contracts broken ({named}). The log is not what it should be: fix it "
        "before anything is learned from it.",
        f"Fix the log where it breaks {first}, and run again on a sound window.",
    )
    yield Row(
        facts.error_share > settings.max_error_share,
        "stop",
        f"{facts.error_share:.1%} of the tool calls failed, more than drift.max_error_share = "
        f"{settings.max_error_share:.1%}. Fix the tools first.",
        "Fix the tools that fail, and run again on a window in which they work.",
    )
    tested = [row for row in facts.statistics if _decides(row, facts) and row.q_value is not None]
    also, nothing = _also(facts), "Nothing to do: production looks like what the agent is trained and measured on."
    moved = _what_moved(facts)
    judged = any(row.q_value is not None for row in facts.statistics)
    small = _too_few_units(settings, facts)
    units = f"{small.groups_current} in the window, {small.groups_reference} in the reference" if small else ""
    yield Row(
        not tested and small is not None,
        "continue",
        f"too few groups of units to judge drift: {units}, drift.min_units = {settings.min_units}, and traffic.unit "
        f"says what a unit is.{also}",
        moved
        or (
            nothing
            if judged
            else "Take a window of more units: what belongs to one of them counts as one, not as many."
        ),
    )
    yield Row(
        not tested,
        "continue",
        f"too few conversations to judge drift: {facts.num_current} in the window, {facts.num_reference} in the "
        f"reference, drift.min_conversations = {settings.min_conversations}.{also}",
        moved or (nothing if judged else "Take a longer window: this one is too small to judge."),
    )
    drifted = [row for row in tested if row.drifted]
    what = f"{len(drifted)} of {len(tested)} input features drifted"
    few = f" ({', '.join(row.feature for row in drifted)})" if drifted else ""
    yield Row(
        len(drifted) <= settings.refresh_share * len(tested),
        "continue",
        f"{what}{few}, all {len(facts.contracts)} contracts hold.{also}",
        moved or nothing,
    )
    numbers = "; ".join(
        f"{row.feature}: {row.statistic} {row.effect:.2f} over {row.threshold:.2f}, q {row.q_value:.4f}"
        for row in drifted
    )
    usable = f"{facts.num_usable} graded conversations can become examples"
    missing = settings.min_feedback - facts.num_usable
    only = f"only {usable}, drift.min_feedback = {settings.min_feedback}. Have more of them graded."
    yield Row(
        missing > 0,
        "stop",
        f"{what} ({numbers}), and the examples cannot be rebuilt: {facts.obstacle or only}{also}",
        "Write from_traffic in the recipe's examples.py, so that graded conversations can become examples."
        if facts.obstacle
        else f"Have {missing} more conversations of this window graded, and run again: new examples need them.",
    )
    yield Row(
        True,
        "refresh",
        f"{what} ({numbers}); {usable}: rebuild them from this window.{also}",
        f"Let the run go on: it learns from the {facts.num_usable} graded conversations of this window.",
    )


def _what_moved(facts: Facts) -> str:
    """Say what to do about what moved, where that is not a reason to stop or to refresh; empty if
    nothing did."""
    moved = [row for row in facts.statistics if row.drifted]
    if stale := sorted({row.against for row in moved if row.group == "input"} & {"validation", "test"}):
        return f"Renew the examples of {' and '.join(stale)}: they measure what production no longer asks."
    if others := [row.feature for row in moved if row.group != "input"]:
        return f"Find out why {', '.join(dict.fromkeys(others))} moved before you trust what is measured next."
    return ""


def _decides(row: FeatureDrift, facts: Facts) -> bool:
    """Whether the verdict rests on this row: input against the training examples or, when only two
    windows are compared, against the earlier one."""
    is_of_examples = any(other.against == "train" for other in facts.statistics)
    return row.group == "input" and row.against == ("train" if is_of_examples else "window")


def _too_few_units(settings: Drift, facts: Facts) -> FeatureDrift | None:
    """Find a feature with enough conversations but too few units."""
    for row in facts.statistics:
        groups = min(row.groups_reference, row.groups_current)
        enough = min(row.n_reference, row.n_current) >= settings.min_conversations
        if _decides(row, facts) and enough and 0 < groups < settings.min_units:
            return row
    return None


def _also(facts: Facts) -> str:
    """Name what moved and does not ask for a refresh."""
    beside: dict[str, list[str]] = {}
    for row in facts.statistics:
        if row.drifted and not _decides(row, facts):
            beside.setdefault(_WHAT[row.against], []).append(row.feature)
    return "".join(f" Also moved, against {what}: {', '.join(names)}." for what, names in beside.items())


_WHAT: dict[Against, str] = {
    "train": "the reference",
    "validation": "the validation examples",
    "test": "the test examples",
    "window": "the champion's traffic",
}
