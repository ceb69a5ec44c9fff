"""Stage `drift`: is production still like what the agent was trained on? Verdict: continue, refresh
or stop.

Two separate questions. *Is the window sound?* Contracts (rft/windows/contracts.py). *Is it like the
reference?* One statistic per feature (rft/windows/profile.py has the table), each with an effect
size and a p-value by conversation (rft/windows/distances.py). A feature drifted when

    q < alpha            q: its p-value after Benjamini-Hochberg over all features tested
    effect > threshold   the configured one or, if larger, the effect that chance alone exceeds in a
                         share alpha of windows of these sizes (the noise)
    n >= minimum         conversations with a value, on both sides

so neither a small shift in a large window nor the noise of a small one is called drift. The noise
is no second test: q is never below p, so what passes the first line exceeds it. It is there to be
read: the threshold says what drift would have taken. Then the verdict:

    stop      a contract is broken; or too large a share of tool calls failed; or the input drifted
              and too little of the window is graded to rebuild the examples from it
    refresh   the input drifted, and enough is graded
    continue  otherwise, also when the window is too small to judge, as the reason then says

Only input features ask for a refresh. What the agent did (tools, errors, latency) and how it was
corrected is tested and shown, but other data would not fix it: that is the work of later stages.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.stats import false_discovery_control

from rft import files, progress, recipe, reports, shelves
from rft.config import Drift, Params
from rft.errors import ConfigError, UserError, did_you_mean
from rft.recipe import Recipe
from rft.reports import Contract, Conversation, DriftReport, Feature, FeatureDrift, Profile, Statistic, TrafficReport
from rft.windows import contracts, distances, profile
from rft.windows.conversations import load_conversations, read_window, refused_feedback, usable_feedback
from rft.windows.profile import Column

PSI_GROUPS = 10
Verdict = Literal["continue", "refresh", "stop"]
Names = Callable[[str], str]
"""Names a bin for people."""


def run(params: Params) -> None:
    window = load_conversations()
    reference = reports.read(Profile, shelves.REFERENCE_PROFILE)
    sha256 = shelves.read(TrafficReport).sha256
    shelves.write(judge(params, recipe.load(params.recipe, params.examples.keys), {"": reference}, window, sha256))


def check(params: Params, window: Path) -> DriftReport:
    """Judge any window in the same way, without writing to a shelf.

    Where the reference profile lacks what the agent did, that is compared with the window that
    stage `traffic` saw last.
    """
    found = read_window(window, at_least=params.traffic.min_conversations)
    loaded = recipe.load(params.recipe, params.examples.keys)
    last = shelves.path(TrafficReport)
    references = {"": profile.reference(params, loaded)}
    if last.exists() and reports.read(TrafficReport, last).sha256 != found.sha256:
        references["agent"] = reports.read(Profile, shelves.CURRENT_PROFILE)
    return judge(params, loaded, references, found.conversations, found.sha256)


def judge(
    params: Params, loaded: Recipe, references: dict[str, Profile], conversations: Sequence[Conversation], sha256: str
) -> DriftReport:
    settings = params.drift
    progress.say("drift", f"comparing {len(conversations)} conversations with {references[''].source}")
    statistics = compare(settings, references, conversations, loaded)
    progress.say("drift", "checking contracts")
    docs = Path("reports") / "data_docs" / sha256[:16]
    tools = contracts.KnownTools.of([tool.__name__ for tool in loaded.tools], params.tools)
    held = contracts.check(conversations, tools, statistics, settings, files.state() / docs)
    share = tool_error_share(conversations)
    usable, obstacle = _usable(conversations, loaded)
    strange = "" if obstacle else _strange(conversations, loaded, params)
    num_reference = references[""].num_conversations
    facts = Facts(statistics, held, num_reference, len(conversations), share, usable, obstacle)
    verdict, reason = decide(settings, facts)
    reason += tools.not_checked + strange
    progress.say("drift", f"Data Docs: {files.state() / docs / 'index.html'}")
    progress.say("drift", f"{verdict}: {reason}")
    return DriftReport(
        verdict=verdict,
        reason=reason,
        features=statistics,
        contracts=held,
        num_reference=num_reference,
        num_current=len(conversations),
        window_sha256=sha256,
        num_usable_feedback=usable,
        tool_error_share=round(share, 6),
        data_docs=(docs / "index.html").as_posix(),
    )


# -- verdict ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Facts:
    """All that the verdict rests on. `obstacle`: why no conversation can become an example."""

    statistics: Sequence[FeatureDrift]
    contracts: Sequence[Contract]
    num_reference: int
    num_current: int
    error_share: float = 0.0
    num_usable: int = 0
    obstacle: str = ""


def decide(settings: Drift, facts: Facts) -> tuple[Verdict, str]:
    """Return the verdict and the reason, with its numbers."""
    broken = [one for one in facts.contracts if not one.success]
    if broken:
        named = "; ".join(f"{one.name} of {one.column}: {one.observed}" for one in broken)
        what = f"{len(broken)} of {len(facts.contracts)} contracts broken ({named})"
        return "stop", f"{what}. The log is not what it should be: fix it before anything is learned from it."
    if facts.error_share > settings.max_error_share:
        limit = f"drift.max_error_share = {settings.max_error_share:.1%}"
        return "stop", f"{facts.error_share:.1%} of the tool calls failed, more than {limit}. Fix the tools first."
    tested = [one for one in facts.statistics if one.group == "input" and one.q_value is not None]
    drifted = [one for one in tested if one.drifted]
    beside = [one.feature for one in facts.statistics if one.group != "input" and one.drifted]
    also = f" Not of the input, but moved: {', '.join(beside)}." if beside else ""
    if not tested:
        sizes = f"{facts.num_current} in the window, {facts.num_reference} in the reference"
        limit = f"drift.min_conversations = {settings.min_conversations}"
        return "continue", f"too few conversations to judge drift: {sizes}, {limit}.{also}"
    what = f"{len(drifted)} of {len(tested)} input features drifted"
    if len(drifted) <= settings.refresh_share * len(tested):
        few = f" ({', '.join(one.feature for one in drifted)})" if drifted else ""
        return "continue", f"{what}{few}, all {len(facts.contracts)} contracts hold.{also}"
    moved = "; ".join(
        f"{one.feature}: {one.statistic} {one.effect:.2f} over {one.threshold:.2f}, q {one.q_value:.4f}"
        for one in drifted
    )
    usable = f"{facts.num_usable} graded conversations can become examples"
    if facts.num_usable < settings.min_feedback:
        few = f"only {usable}, drift.min_feedback = {settings.min_feedback}. Have more of them graded."
        return "stop", f"{what} ({moved}), and the examples cannot be rebuilt: {facts.obstacle or few}{also}"
    return "refresh", f"{what} ({moved}); {usable}: rebuild them from this window.{also}"


def tool_error_share(conversations: Sequence[Conversation]) -> float:
    errors = sum(conversation.tool_errors or 0 for conversation in conversations)
    calls = sum(len(profile.tool_names(conversation)) for conversation in conversations)
    return errors / max(calls, errors, 1)


def _usable(conversations: Sequence[Conversation], loaded: Recipe) -> tuple[int, str]:
    try:
        return len(usable_feedback(conversations, loaded)), ""
    except UserError as error:  # the recipe has no from_traffic
        return 0, str(error)


def _strange(conversations: Sequence[Conversation], loaded: Recipe, params: Params) -> str:
    """Report feedback that is not what the recipe expects, whatever the verdict."""
    found = refused_feedback(conversations, loaded, params)
    return f" {found.in_words(lambda one: f'conversation {one.conversation_id}')}." if found.is_strange else ""


# -- statistics ------------------------------------------------------------------------------------
def compare(
    settings: Drift, references: dict[str, Profile], conversations: Sequence[Conversation], loaded: Recipe
) -> list[FeatureDrift]:
    """Compare each feature with the profile that knows it. `references` by group; "" is for all
    groups without their own."""
    found = profile.columns(conversations, loaded)
    if unknown := sorted(settings.thresholds.keys() - found.keys()):
        what = f"params.yaml: drift.thresholds names '{unknown[0]}', which is no feature"
        raise ConfigError(f"{what}. {did_you_mean(unknown[0], found)}")
    ids = [conversation.conversation_id for conversation in conversations]
    bucket_words = _bucket_words(conversations)
    rows: list[FeatureDrift] = []
    for name, column in found.items():
        known = references[""]
        if name not in known.features and column.group != "input":
            known = references.get("agent", known)
        names: Names = bucket_words.__getitem__ if name == "vocabulary" else str
        rows.append(_row(name, column, profile.feature(column, ids), known, settings, names))
    rows += [
        _gone(name, feature, references[""].source, settings)
        for name, feature in references[""].features.items()
        if name not in found
    ]
    return _control(rows, settings)


def _row(name: str, column: Column, current: Feature, known: Profile, settings: Drift, names: Names) -> FeatureDrift:
    """Compare one feature, without its q-value: that needs all rows."""
    configured = _configured(name, column.statistic, settings)
    bare = FeatureDrift(
        feature=name, group=column.group, statistic=column.statistic, effect=None, threshold=configured, p_value=None,
        q_value=None, n_reference=0, n_current=current.n, drifted=False,
    )  # fmt: skip
    reference = known.features.get(name)
    if reference is None:
        return bare.model_copy(update={"detail": f"no reference yet; now {_summary(current, names)}"})
    bare = bare.model_copy(update={"n_reference": reference.n, "reference": known.source})
    if reference.statistic != column.statistic or reference.edges != current.edges:
        what = f"the profile of {known.source} has other bins for '{name}' than this version of agent-rft"
        raise UserError(f"{what}. Run the stage that wrote it again.")
    fewest = min(reference.n, current.n)
    if fewest < settings.min_conversations:
        detail = f"too few to judge: {fewest}, drift.min_conversations = {settings.min_conversations}"
        return bare.model_copy(update={"detail": detail})
    seed = settings.seed + zlib.crc32(name.encode())
    if column.kind == "text":
        effect, null_D = _apart_by_text(reference, current, settings.num_resamples, seed)
        chance = np.quantile(null_D, 1 - settings.level)
        detail = f"a classifier tells the windows apart with AUC {effect:.2f}; chance alone stays below {chance:.2f}"
    else:
        effect, null_D, detail = _apart_by_counts(column, reference, current, settings.num_resamples, seed, names)
        if not len(null_D):
            return bare.model_copy(update={"detail": detail})
    # what passes q < alpha passes the noise too: the report shows what drift would have taken
    noise = float(np.quantile(null_D, 1 - settings.level))
    return bare.model_copy(
        update={
            "effect": round(effect, 6),
            "threshold": round(max(configured, noise), 6),
            "p_value": round(distances.p_value(effect, null_D), 6),
            "detail": detail,
        }
    )


def _gone(name: str, feature: Feature, source: str, settings: Drift) -> FeatureDrift:
    return FeatureDrift(
        feature=name, group=feature.group, statistic=feature.statistic, effect=None,
        threshold=_configured(name, feature.statistic, settings), p_value=None, q_value=None, n_reference=feature.n,
        n_current=0, drifted=False, detail="the recipe names it no longer", reference=source,
    )  # fmt: skip


def _configured(name: str, statistic: Statistic, settings: Drift) -> float:
    return settings.thresholds.get(name, float(getattr(settings.effects, statistic)))


def _control(rows: list[FeatureDrift], settings: Drift) -> list[FeatureDrift]:
    """Add q-values over the tested features, and decide which drifted."""
    tested = [one for one in rows if one.p_value is not None]
    needed = len(tested) / settings.level
    if settings.num_resamples + 1 <= needed:
        raise ConfigError(
            f"params.yaml: drift.num_resamples = {settings.num_resamples} can show no drift: the smallest p-value, "
            f"over {len(tested)} features, stays above drift.alpha = {settings.level}. "
            f"Take at least {int(needed) + 1} resamples, or a larger alpha."
        )
    q_values = iter(false_discovery_control([one.p_value for one in tested]) if tested else ())
    out: list[FeatureDrift] = []
    for one in rows:
        if one.p_value is not None and one.effect is not None:
            q = round(float(next(q_values)), 6)
            one = one.model_copy(update={"q_value": q, "drifted": q < settings.level and one.effect > one.threshold})
        out.append(one)
    return out


def _apart_by_text(reference: Feature, current: Feature, num_draws: int, seed: int) -> tuple[float, Any]:
    rows = profile.text_matrix([*reference.sample, *current.sample])
    labels = np.repeat([0.0, 1.0], [len(reference.sample), len(current.sample)])
    return distances.domain_classifier(rows, labels, num_draws, seed)


def _apart_by_counts(
    column: Column, reference: Feature, current: Feature, num_draws: int, seed: int, names: Names
) -> tuple[float, Any, str]:
    """Return effect, null draws and what moved; no draws when one side is empty."""
    axis, reference_B = _common_axis(reference, current)
    counts_NB = profile.matrix(column, axis)
    current_B = np.asarray(counts_NB.sum(axis=0), dtype=np.float64).ravel()
    if not reference_B.sum() or not current_B.sum():
        return 0.0, np.array([]), "the window holds none" if reference_B.sum() else "the reference holds none"
    statistic: distances.Statistic = distances.total_variation
    if column.statistic == "wasserstein_sd":
        places = positions(axis.edges)
        scale = distances.spread(reference_B, places) or distances.spread(reference_B + current_B, places) or 1.0
        statistic = lambda a, b: distances.wasserstein(a, b, places) / scale  # noqa: E731
    elif column.statistic == "psi":
        group_B = distances.equal_groups(reference_B, PSI_GROUPS)
        reference_B, current_B = distances.regroup(reference_B, group_B), distances.regroup(current_B, group_B)
        statistic = distances.psi
    effect = float(statistic(reference_B, current_B))
    null_D = distances.null_draws(
        statistic, reference_B, current_B, distances.design_effect(counts_NB), num_draws, seed
    )
    if axis.kind == "numeric":
        return effect, null_D, f"{_summary(reference, names)}; now {_summary(current, names)}"
    return effect, null_D, _moved(axis.values, reference_B, current_B, names)


def _common_axis(reference: Feature, current: Feature) -> tuple[Feature, Any]:
    """Return bins that hold both sides, and the reference's counts on them.

    New values of the window get bins of their own, unless the reference has a bin `(other)`, whose
    names are lost: then they join it.
    """
    counts = dict(zip(reference.values, reference.counts, strict=True)) if reference.kind == "category" else {}
    if reference.kind == "numeric" or counts.get(profile.OTHER, 0):
        return reference, np.array(reference.counts, dtype=np.float64)
    values = sorted(counts.keys() | set(current.values))
    reference_B = np.array([counts.get(value, 0) for value in values], dtype=np.float64)
    return reference.model_copy(update={"values": values}), reference_B


def positions(edges: Sequence[float]) -> Any:
    """Place each bin's mass in its middle; the two outer bins are as wide as their neighbors."""
    inner = np.asarray(edges, dtype=np.float64)
    outer = np.concatenate([[2 * inner[0] - inner[1]], inner, [2 * inner[-1] - inner[-2]]])
    return (outer[:-1] + outer[1:]) / 2


# -- words -----------------------------------------------------------------------------------------
def _summary(feature: Feature, names: Names) -> str:
    if feature.kind == "numeric" and feature.n:
        return f"mean {feature.mean:.4g}, P50 {_quantile(feature, 0.5):.3g}, P95 {_quantile(feature, 0.95):.3g}"
    if feature.kind == "category" and sum(feature.counts):
        share = distances.shares(feature.counts)
        top = sorted(range(len(share)), key=lambda n: (-share[n], feature.values[n]))[:3]
        return ", ".join(f"{names(feature.values[n])} {share[n]:.0%}" for n in top if share[n])
    return f"{feature.n} conversations"


def _quantile(feature: Feature, level: float) -> float:
    """Find a quantile of the histogram: the middle of the bin where it falls."""
    at = int(np.searchsorted(np.cumsum(feature.counts), level * sum(feature.counts)))
    return float(positions(feature.edges)[at])


def _moved(values: Sequence[str], reference_B: Any, current_B: Any, names: Names) -> str:
    before, now = distances.shares(reference_B), distances.shares(current_B)
    # A hash bucket is named by a word of this window, which says nothing of what the bucket lost.
    gap = np.abs(now - before) if names is str else now - before
    most = sorted(range(len(values)), key=lambda n: (-gap[n], values[n]))[:3]
    return ", ".join(f"{names(values[n])} {before[n]:.1%} -> {now[n]:.1%}" for n in most if now[n] != before[n])


def _bucket_words(conversations: Sequence[Conversation]) -> dict[str, str]:
    """Name each bucket of the vocabulary by the window's most frequent word in it."""
    tally = Counter(
        word for one in conversations for word in profile.words(profile.user_text(profile.input_messages(one.messages)))
    )
    found = {str(bucket): f"bucket {bucket}" for bucket in range(profile.BUCKETS)}
    for word, _ in sorted(tally.items(), key=lambda item: (item[1], item[0])):
        found[str(profile.word_hash(word) % profile.BUCKETS)] = f"'{word}'"
    return found
