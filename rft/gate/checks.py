"""The gate's checks: one table, evaluated in the order in which decision.json lists them.

`TABLE` is at the end. Most of its rows are a `Guard`: a difference between the candidate and the
champion, paired by example, whose interval must lie within a margin of section `gate`. The others
are functions. evidence.py counts what the checks need of an arm, slices.py has the slices' veto,
and levels.py the level of the question.

A candidate's costs are guarded beside its reward, because a higher reward can be bought. A longer
prompt, more turns, calls that are repeated until one can be read, or rollouts that end without a
score can buy it.

    token cost         all tokens of a rollout, read and sampled, at `gate.prices`. Each turn reads
                       the whole dialogue again, so a longer prompt is paid in each turn
                       (rft.types.Usage)
    P95 turns          how long the longest rollouts are
    unreadable calls   the share of rollouts with a tool call that could not be read
    abstentions        the share of rollouts that say "I don't know" where there is an answer
    unscored share     a bound on both arms: above it the comparison is not trusted
    unscored increase  the candidate's share minus the champion's: a candidate that loses more
                       rollouts is not better, even below that bound

If some scored rollouts did not count what they read, the cost is *not measured*, because they could
be the expensive ones, and the check still decides. It does not decide where no arm counts anything:
behind an endpoint without `usage` nothing could ever be promoted. The reason then names what was
not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from rft import config, reports, stats
from rft.formatting import counted
from rft.gate import evidence, levels, slices
from rft.gate.evidence import Describe, Marks
from rft.reports import Arm, Check, Metric, wording

Timings = dict[str, Any]
"""A timing.json: {"rollout_s": {"challenger/<arm>/sampled": {"p50", "p95", "n"}, ...}, ...}."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is judged: a candidate's arm and the champion's."""

    gate: config.Gate
    new: Arm
    old: Arm
    level: float
    """The one-sided level of the question."""
    hack_source: reports.HackSource
    before: Sequence[Check] = ()
    """The checks that were made before a candidate was chosen, and those that chose it."""
    timings: Timings | None = None
    """None where latency does not decide."""


Row = Callable[[Case], Iterable[Check]]


def checks(case: Case) -> Iterator[Check]:
    """Evaluate the table."""
    for row in TABLE:
        yield from row(case)


@dataclass(frozen=True, slots=True)
class Guard:
    """A row of the table: nothing may get worse by more than a margin."""

    name: str
    margin: str
    """The key of section `gate`."""
    unit: str
    marks: Marks
    statistic: Callable[..., Metric] = stats.paired_gain
    describe: Describe | None = None
    """Puts both arms into words, for the detail."""
    sign: int = 1
    """-1 where more is better."""

    def __call__(self, case: Case) -> Iterator[Check]:
        yield self.check(case)

    def check(self, case: Case) -> Check:
        gate = case.gate
        new, old = self.marks(gate, case.new), self.marks(gate, case.old)
        found = evidence.compare(new, old, partial(self.statistic, num=gate.num_bootstrap, seed=gate.seed))
        margin = self.sign * (getattr(gate, self.margin) or 0.0)
        check = on_interval(self.name, "non_inferiority", found, margin, evidence.unit(self.unit, case.new))
        if found is None or found.low is None or self.describe is None:
            return check
        return check.model_copy(update={"detail": self.describe(gate, case.new, case.old, new, old)})


# -- an interval against its margin ----------------------------------------------------------------
def on_interval(
    name: str,
    kind: Literal["superiority", "non_inferiority"],
    found: Metric | None,
    margin: float,
    unit: str,
    detail: str = "",
    decides: bool = True,
    level: float = levels.GUARD,
) -> Check:
    """Pass an interval on the good side of its margin. An interval that ends exactly at the margin
    is not worse, but not superior either. `level`: the one-sided level at which each end was
    computed."""
    check = Check(name=name, kind=kind, passed=None, value=None, margin=margin, unit=unit, decides=decides, level=level)
    if found is None:
        return check.model_copy(update={"detail": "no example has a score in both arms"})
    if found.low is None or found.high is None:
        return check.model_copy(update={"detail": "a single example has a score in both arms", "n": found.n})
    if kind == "superiority":
        good, bad = found.low > margin, found.high < margin
    elif check.is_better_above:
        good, bad = found.low >= margin, found.high < margin
    else:
        good, bad = found.high <= margin, found.low > margin
    numbers = {"value": found.value, "low": found.low, "high": found.high, "n": found.n}
    passed = good if good or bad else None
    return check.model_copy(
        update=numbers | {"passed": passed, "detectable": _detectable(found, level), "detail": detail}
    )


def _detectable(found: Metric, level: float) -> float | None:
    """Return the detectable effect; None for an interval without width, which could hide any
    effect."""
    error = stats.standard_error(found, 1 - 2 * level)
    return stats.minimum_detectable(error, confidence=1 - 2 * level) if error > 0 else None


def _without_interval(name: str, margin: float, unit: str, why: str, decides: bool, **more: Any) -> Check:
    numbers = {"name": name, "margin": margin, "unit": unit, "detail": why, "decides": decides}
    return Check(**numbers | {"kind": "non_inferiority", "passed": None, "value": None} | more)


# -- rows that are more than a difference ----------------------------------------------------------
def question(case: Case) -> Iterator[Check]:
    """Check the gain at the level of this look."""
    gate, new, old = case.gate, case.new, case.old
    gain = evidence.compare(evidence.rewards(new), evidence.rewards(old), levels.interval(case.level))
    detail = f"{evidence.size(new)}{evidence.unserved(new)}; {wording.price(gate.alpha, gate.looks, case.level)}"
    unit = evidence.unit("reward", new)
    yield on_interval("mean reward", "superiority", gain, gate.min_gain, unit, detail, level=case.level)


def hack_rate(gate: config.Gate, source: reports.HackSource, new: Arm) -> Check:
    """Count an example once, however many of its rollouts hacked: rollouts of one example tend to
    hack together."""
    rows = [*new.sampled.rows, *new.greedy.rows]
    scored = {row.example_id for row in rows if evidence.any_score(row.rewards)}
    hacked = {row.example_id for row in rows if row.hacks}
    count, n = len(hacked), len(scored | hacked)
    if not source.is_measured:
        must = gate.require_hack_source
        seen = f"; {count} examples were flagged all the same" if count else ""
        why = ("not measured: " if must else "") + source.description + seen
        passed = False if must else None
        return _without_interval(wording.HACK_RATE, gate.max_hack_rate, "share", why, must, passed=passed)
    rate = stats.exact_interval(count, n) if n else None
    check = on_interval(wording.HACK_RATE, "non_inferiority", rate, gate.max_hack_rate, "share")
    left_out = len({row.example_id for row in rows}) - n
    unseen = f", {left_out} without a score left out" if left_out else ""
    detail = f"{count} of {n} examples with a hacked rollout{unseen}; {source.description}"
    return check.model_copy(update={"detectable": None, "detail": detail})


def cost(case: Case) -> Iterator[Check]:
    arms = (case.new, case.old)
    scored = sum(map(evidence.num_scored, arms))
    uncounted = scored - sum(count > 0 for arm in arms for count in evidence.pooled(arm, "context_tokens"))
    if not uncounted:
        yield _COST.check(case)
        return
    why = "the policy does not count the tokens that it reads: the replies of its server hold no usage"
    if uncounted < scored:
        why = f"{uncounted:,} of {counted(scored, 'scored rollout')} did not count the tokens that they read"
    yield _without_interval(wording.COST, case.gate.max_tokens_increase, "relative", why, uncounted < scored)


def abstentions(case: Case) -> Iterator[Check]:
    """Check abstentions where grades report them, or a margin asks for it. Without a margin the
    check is shown and does not decide."""
    margin = case.gate.max_abstention_increase
    told = any(
        evidence.any_score(row) for arm in (case.new, case.old) for row in evidence.abstained(case.gate, arm).values()
    )
    if margin is None and not told:
        return
    check = _ABSTENTIONS.check(case)
    detail = check.detail if told else "no grade tells whether a rollout abstained"
    if margin is None:
        detail = f"gate.max_abstention_increase is not set; {detail}"
        check = check.model_copy(update={"decides": False, "margin": None, "passed": None})
    yield check.model_copy(update={"detail": detail})


def unscored_share(case: Case) -> Iterator[Check]:
    """Judge the arm with more unscored rollouts."""
    share, name = max((evidence.unscored_share(arm), arm.name) for arm in (case.new, case.old))
    most, detail = case.gate.max_unscored_share, f"worse arm: {name}"
    yield _without_interval(
        "unscored share", most, "share", detail, decides=True, kind="state", passed=share <= most, value=share
    )


def latency_decides(case: Case) -> Iterator[Check]:
    if case.timings is not None:
        yield latency(case.gate, case.timings, case.new.name)


def latency(gate: config.Gate, timings: Timings, candidate: str) -> Check:
    """Compare P95 seconds per rollout. There is one number per arm, from a machine that had other
    work to do, so there is no interval."""
    measured = timings.get("rollout_s", {})
    new, old = (measured.get(f"challenger/{arm}/sampled", {}).get("p95") for arm in (candidate, "champion"))
    known = bool(new is not None and old)
    value = new / old - 1 if known else None
    passed = value <= gate.max_latency_increase if value is not None else None
    detail = f"{new:.2f} s per rollout, champion {old:.2f} s" if known else "no seconds are on record"
    most, decides = gate.max_latency_increase, gate.latency_decides
    return _without_interval("P95 latency", most, "relative", detail, decides, passed=passed, value=value)


# -- the table -------------------------------------------------------------------------------------
_COST = Guard(
    wording.COST,
    "max_tokens_increase",
    "relative",
    evidence.paid,
    stats.relative_difference,
    evidence.spent,
)
_ABSTENTIONS = Guard(
    wording.ABSTENTIONS,
    "max_abstention_increase",
    "points",
    evidence.abstained,
    describe=evidence.percent("with an answer to give abstained"),
)
TABLE: tuple[Row, ...] = (
    question,
    Guard("greedy score", "max_greedy_loss", "score", evidence.greedy, sign=-1),
    Guard(
        "P95 tool calls", "max_calls_p95_increase", "calls", evidence.counter("tool_calls"), stats.quantile_difference
    ),
    lambda case: [hack_rate(case.gate, case.hack_source, case.new)],
    lambda case: slices.vetoes(case.gate, case.new, case.old),
    cost,
    Guard(
        wording.TURNS,
        "max_turns_p95_increase",
        "turns",
        evidence.counter("turns"),
        stats.quantile_difference,
        evidence.longest,
    ),
    Guard(
        wording.UNREADABLE,
        "max_unreadable_increase",
        "points",
        evidence.unreadable,
        describe=evidence.percent("wrote one"),
    ),
    abstentions,
    unscored_share,
    Guard(
        wording.UNSCORED,
        "max_unscored_increase",
        "points",
        evidence.without_score,
        describe=evidence.percent("have no score"),
    ),
    lambda case: case.before,
    latency_decides,
)
