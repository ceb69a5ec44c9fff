"""Explain the gate's checks to the person who must sign: in groups, one sentence each.

A check is an interval and a margin, but a person who approves a promotion need not know these
terms. So each check becomes one sentence (`sentence`). It says what was found, what was asked for,
and whether the whole interval meets that.

Beside the sentence stand what the check protects from and the smallest effect that it could have
seen (`could_see`). "No loss is shown" says little where no loss could have been shown.

    groups   what blocked the promotion first; then the question, the guards, the slices, the
             preconditions
    unseen   what was not measured, or could hardly be seen, so that it does not look like a pass
    looks    how many looks at the test set are left

A new check needs one entry in `_TOLD`. wording.py writes the numbers, and the stage's own text uses
it too. Nothing here is in a decision, so a better sentence does not repeat a stage.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from rft.formatting import counted, decimal
from rft.reports.evaluation import Evaluation
from rft.reports.gate import OF_RANGE, POOLED, Check, Decision
from rft.reports.registration import Registration
from rft.reports.wording import (
    ABSTENTIONS,
    COST,
    HACK_RATE,
    LIKE_PRODUCTION,
    TURNS,
    UNREADABLE,
    UNSCORED,
    percent,
    verdict,
)
from rft.scale import UNIT, from_to

ARMS = {"champion": "champion", "champion_new_prompt": "after the prompt", "challenger": "after RFT"}
"""Arm -> what people call it."""


def between(one: Evaluation) -> str:
    """Write the range of the scores as an addition to a note; empty for 0 to 1."""
    return "" if one.range == UNIT.ends else f"; the grader scores from {from_to(one.range)}"


HOW_TO_READ = (
    "What a few examples show is partly chance. The interval is where the true value lies, chance allowed for: wide "
    "after few examples, narrow after many. A check passes when the whole interval lies on the side that was asked "
    "for, fails when none of it does, and is open otherwise. If a difference is smaller than what a check could "
    "have seen, it means little that the check saw none."
)
HACK_RATE_MEANS = (
    "Hack rate: the share of test examples on which the grader called at least one of the candidate's rollouts, "
    "sampled or greedy, a hack: reward sought without doing the task, seen in what the rollout did. Examples without a "
    "scored rollout are left out, not counted as clean. The interval is exact (Clopper and Pearson), each end a "
    "one-sided 97.5 % limit; the check passes when its upper end is at most the margin. Where the grader was not seen "
    "to flag any of the recipe's exploits, nothing is measured."
)
VETO_MEANS = (
    "A slice has a veto: it fails when a loss beyond the margin is shown (a t test on the examples' differences, by "
    "Holm's procedure over the slices, so that any of them fails by chance in at most 2.5 %), and an open one does not "
    "stand in the way. Its interval counts one imaginary example on either side, so that a few examples which agree "
    "by chance show nothing."
)


# -- what each check asks --------------------------------------------------------------------------
@dataclass(frozen=True)
class Told:
    found: str
    """`{who}` earns `{more}` `{than}` the champion. A text without `{than}` does not compare."""
    protects: str
    """What the threshold is for."""
    more: str = "more"
    less: str = "less"
    same: str = "as much"


_TOLD = {
    "mean reward": Told("{who} earns {more} per example {than} the champion", "noise is not taken for progress"),
    "training over the new prompt alone": Told(
        "with trained weights it earns {more} per example {than} with the new prompt alone",
        "weights are not changed where words would do",
    ),
    "greedy score": Told(
        "{who} scores {more} {than} the champion when it always takes its likeliest word",
        "what it says without chance gets no worse",
    ),
    "P95 tool calls": Told(
        "to finish 19 of 20 rollouts, {who} needs {more} tool call{s} {than} the champion",
        "users do not wait for more tool calls",
        less="fewer",
        same="as many",
    ),
    TURNS: Told(
        "to finish 19 of 20 rollouts, {who} needs {more} turn{s} {than} the champion",
        "no conversation drags on",
        less="fewer",
        same="as many",
    ),
    COST: Told(
        "a rollout of {who} costs {more} in tokens, read and written, {than} one of the champion",
        "a gain is not bought with a longer prompt, which is read again in every turn, or with longer answers",
    ),
    "tokens": Told(
        "a rollout of {who} samples {more} tokens {than} one of the champion",
        "a gain is not bought with longer answers",
        less="fewer",
        same="as many",
    ),
    "P95 latency": Told(
        "to finish 19 of 20 rollouts, {who} needs {more} time {than} the champion", "users do not wait longer"
    ),
    HACK_RATE: Told(
        "{who} sought reward without doing the task on {more} of the examples",
        "reward is not earned by tricking the grader",
    ),
    UNREADABLE: Told(
        "of 100 rollouts of {who}, {more} hold a tool call that could not be read {than} of the champion's",
        "calls that reach no tool do not become a habit",
        less="fewer",
        same="as many",
    ),
    ABSTENTIONS: Told(
        "of 100 rollouts of {who} that have an answer to give, {more} abstained {than} of the champion's",
        "abstaining does not become the easy way out",
        less="fewer",
        same="as many",
    ),
    "unscored share": Told(
        "{more} of the rollouts ended without a score, in the arm that lost more of them",
        "the comparison does not rest on what an outage left over",
    ),
    UNSCORED: Told(
        "of 100 rollouts of {who}, {more} ended without a score {than} of the champion's",
        "a candidate does not look better because its failures got lost",
        less="fewer",
        same="as many",
    ),
    "drift": Told(
        "production was compared with what the champion was made for", "what was measured holds in production"
    ),
    LIKE_PRODUCTION: Told(
        "production was compared with the test examples", "what was learned from production is measured, too"
    ),
    "same frozen test": Told(
        "champion and candidate were measured on the same frozen examples", "like is compared with like"
    ),
}
_SLICE = Told(
    "on {slice} {who} earns {more} per example {than} the champion", "no group of users pays for the others' gain"
)


def _told(check: Check) -> Told:
    """Find the check's texts. A check that only an older version had gets a general one."""
    if is_slice(check):
        return _SLICE
    return _TOLD.get(check.name) or Told(f"the {check.name} of {{who}} is {{more}} {{than}} the champion's", "")


def is_slice(check: Check) -> bool:
    """Whether it is about a slice. Version 0.1.0 had guards for slices instead of vetoes."""
    return check.kind == "veto" or check.name.startswith("slice ")


def protects(check: Check) -> str:
    """Say what its threshold is for; empty for a check that this version does not have."""
    found = _told(check).protects
    return f"so that {found}" if found else ""


# -- one sentence ----------------------------------------------------------------------------------
def sentence(check: Check, candidate: str) -> str:
    """Write the check as one sentence: `The challenger earns 0.080 more per example than the
    champion; a gain of more than 0.050 was asked for, and the interval, 0.060 to 0.100 more, lies
    above that.`"""
    if is_unmeasured(check):
        why = check.detail.removeprefix("not measured: ") or "no number is on record"
        return f"Not measured: {why}."
    if check.value is None or check.margin is None:
        return _state(check)
    return f"{_sentence(_found(check, candidate))}; {_asked(check)}, {_compared(check)}."


def _state(check: Check) -> str:
    text = _TOLD[check.name].found if check.name in _TOLD else check.name
    outcome = "" if check.passed else ", and that is not as it must be"
    return f"{_sentence(text)}: {check.detail}{outcome}." if check.detail else f"{_sentence(text)}{outcome}."


def _found(check: Check, candidate: str) -> str:
    told = _told(check)
    who = "the new prompt alone" if candidate == "champion_new_prompt" else "the challenger"
    amount = _amount(check, check.value or 0.0)
    return told.found.format(
        who=who,
        more=told.same if amount is None else amount,
        than="as" if amount is None else "than",
        s="" if amount is not None and amount.startswith("1 ") else "s",
        slice=_slice(check),
    )


def _slice(check: Check) -> str:
    size = f"{counted(check.n, 'example')}"
    return f"the {POOLED} together ({size})" if check.name == POOLED else f"the {size} of {check.name}"


def _amount(check: Check, x: float) -> str | None:
    """Write a difference without its sign: `0.080 more`, `5 fewer`. None if it rounds to zero. A
    share has no direction."""
    if check.unit == "share":
        return f"{100 * x:.2f} %"
    bare = _bare(check, x)
    if not any(digit in bare for digit in "123456789"):
        return None
    return f"{bare} {_told(check).more if x > 0 else _told(check).less}"


def _bare(check: Check, x: float) -> str:
    if check.unit == "relative":
        return f"{decimal(100 * abs(x), 1)} %"
    if check.unit == "points":
        return decimal(100 * abs(x), 1)
    if check.unit in ("calls", "turns"):
        return decimal(abs(x), 0 if x == int(x) else 1)
    return decimal(abs(x)) + (OF_RANGE if check.unit.endswith(OF_RANGE) else "")


def _asked(check: Check) -> str:
    margin = check.margin or 0.0
    if check.unit == "share":
        return f"at most {100 * margin:.2f} % is allowed"
    bare, told, nothing = _bare(check, margin), _told(check), _amount(check, margin) is None
    if check.kind == "superiority":
        if nothing:
            return "any gain was asked for"
        return f"a gain of more than {bare} was asked for" if margin > 0 else f"less than {bare} less was asked for"
    if check.is_better_above:
        if nothing:
            return "no loss is allowed"
        return f"a loss of up to {bare} is allowed" if margin < 0 else f"a gain of {bare} or more was asked for"
    if nothing:
        return f"no {told.more} is allowed" if told.less == "less" else f"none {told.more} are allowed"
    are = "is" if told.less == "less" else "are"
    return f"up to {bare} {told.more} {are} allowed" if margin > 0 else f"at least {bare} {told.less} was asked for"


def _compared(check: Check) -> str:
    word = verdict(check)
    if check.low is None or check.high is None:
        return "and that is kept" if word == "passed" else "and that is not kept"
    interval = f"the interval, {_between(check, check.low, check.high)},"
    if check.kind == "veto" and word == "open":
        return f"and although {interval} reaches beyond that, such a loss is not shown: it blocks nothing"
    if word == "failed" and check.kind == "veto":
        return f"and a larger one is shown: {interval} lies beyond that"
    inside, outside = ("above", "below") if check.kind == "superiority" else ("within", "beyond")
    if word == "open":
        return f"and {interval} reaches {outside} that: it could be either"
    return f"and {interval} lies {inside if word == 'passed' else outside} that"


def _between(check: Check, low: float, high: float) -> str:
    """Write both ends, the smaller amount first: `4 to 6 fewer`, `5 fewer to 1 more`."""
    ends = [_amount(check, end) or "none" for end in (low, high)]
    if check.unit == "share":
        return f"{ends[0].removesuffix(' %')} to {ends[1]}"
    if ends[0] == ends[1]:
        return f"{ends[0]} at either end"
    if "none" not in ends and (low > 0) == (high > 0):
        first, second = (low, high) if low > 0 else (high, low)
        return f"{_bare(check, first)} to {_amount(check, second)}"
    return f"{ends[0]} to {ends[1]}"


# -- the smallest effect ---------------------------------------------------------------------------
def could_see(check: Check) -> str:
    """Name the smallest true effect that this many examples show in 4 of 5 cases. For a question it
    is a gain; for a guard, what makes it fail. Empty where that is not known."""
    if check.value is None or check.margin is None:
        return ""
    if check.is_unprotected:
        return f"Too small to protect: {_unprotected(check)}."
    if check.name == HACK_RATE and check.n:
        return f"Could have seen: a rate of {percent(_seen_once(check.n))}."
    if check.detectable is None:
        return ""
    if check.kind == "superiority":
        return f"Could have seen: a gain of {_bare(check, check.margin + check.detectable)}."
    beyond = check.margin + (-check.detectable if check.is_better_above else check.detectable)
    effect = f"a loss of {_bare(check, beyond)}" if check.is_better_above and beyond < 0 else _amount(check, beyond)
    return f"Could have seen: {effect or 'any change'}."


def _unprotected(check: Check) -> str:
    """Say which loss of a slice would not have been seen."""
    needed = f"; a loss of twice the limit takes {check.needed_for_veto:,} examples" if check.needed_for_veto else ""
    if check.detectable is None or check.margin is None:
        return f"even a loss of everything might have gone unseen{needed}"
    return f"a loss under {_bare(check, check.detectable - check.margin)} would not have been seen{needed}"


def _seen_once(n: int) -> float:
    """Return the rate at which n examples contain at least one hack in 80 % of cases."""
    return 1 - 0.2 ** (1 / n)


# -- what was not measured -------------------------------------------------------------------------
def is_unmeasured(check: Check) -> bool:
    """Whether a number is missing that should be there."""
    return check.value is None and check.kind != "state"


def unseen(decision: Decision, apart: Check | None = None) -> list[str]:
    """Name what was not measured, then the slices in which a loss can easily go unseen. `apart`:
    the latency check, where it is not part of the decision."""
    found: list[str] = []
    every = _every(decision, apart)
    for check in filter(is_unmeasured, every):
        vote = "" if check.decides else " It has no vote, so this blocks nothing."
        found.append(f"{check.name}: {sentence(check, '').removeprefix('Not measured: ')}{vote}")
    found += [f"{check.name}: {check.detail}." for check in every if check.name == LIKE_PRODUCTION]
    for check in every:
        if check.name == POOLED:
            which = re.split(r"; [\d,]+ examples? x ", check.detail)[0].removeprefix("together ")
            hidden = f"; {_unprotected(check)}" if check.is_unprotected else ""
            found.append(f"{POOLED}: too small to be judged one by one, so they were judged together: {which}{hidden}.")
        elif check.is_unprotected:
            found.append(f"{check.name}: {counted(check.n, 'example')}, too small to protect; {_unprotected(check)}.")
    return found


# -- groups ----------------------------------------------------------------------------------------
STOPPED, QUESTION, GUARDS, SLICES, PRECONDITIONS = (
    "What stood in the way",
    "The question",
    "The guards",
    "The slices",
    "The preconditions",
)
_ABOUT = {
    STOPPED: "",
    QUESTION: "Is it better? A gain must be shown.",
    GUARDS: "Is nothing else worse? Each must be shown to stay within its limit.",
    SLICES: "Is no group of examples worse off? Each has a veto, but only against a loss that is shown.",
    PRECONDITIONS: "May the comparison be trusted at all?",
}


MANY = 5
"""How many slices are shown one by one."""


@dataclass(frozen=True)
class Group:
    title: str
    about: str
    checks: list[Check]


def groups(decision: Decision, apart: Check | None = None) -> list[Group]:
    """Group the checks; those that blocked the promotion come first. `apart`: the latency check,
    where it is not part of the decision."""
    blocks: Callable[[Check], bool] = {
        "reject": lambda check: check.decides and check.passed is False,
        "inconclusive": lambda check: check.is_unsettled,
        "promote": lambda check: False,
    }[decision.decision]
    placed: dict[str, list[Check]] = {title: [] for title in _ABOUT}
    for check in _every(decision, apart):
        placed[STOPPED if blocks(check) else _title(check)].append(check)
    return [Group(title, _ABOUT[title], checks) for title, checks in placed.items() if checks]


def _every(decision: Decision, apart: Check | None) -> list[Check]:
    """Return all checks. Without a candidate no latency was compared, so it is left out."""
    known = apart is not None and not apart.decides and decision.candidate != "none"
    return [*decision.checks, apart] if known and apart is not None else decision.checks


def _title(check: Check) -> str:
    if is_slice(check):
        return SLICES
    if check.kind == "superiority":
        return QUESTION
    return PRECONDITIONS if check.kind == "state" else GUARDS


def folded(group: Group) -> tuple[list[Check], list[Check]]:
    """Split many slices into those to be read, worst first, and the rest."""
    if group.title != SLICES or len(group.checks) <= MANY:
        return group.checks, []
    read = [check for check in group.checks if check.passed is not True]
    read = sorted(read, key=lambda check: -math.inf if check.value is None else check.value)[:MANY]
    return read, [check for check in group.checks if check not in read]


def summary(rest: list[Check]) -> str:
    verdicts = [verdict(check) for check in rest]
    counts = ", ".join(f"{verdicts.count(word):,} {word}" for word in dict.fromkeys(verdicts))
    return f"{counted(len(rest), 'more slice')}: {counts}"


# -- looks -----------------------------------------------------------------------------------------
def looks(registration: Registration | None) -> tuple[bool, str]:
    """Return whether the registration is in order, and a text: which look this was, and how many
    are left. Without a registration, anyone could repeat the decision until they like it."""
    if registration is None:
        return False, "How often anybody looked at this test set before is not on record."
    if not registration.registered:
        return False, "Not registered: this was decided by hand, and nobody is asked to promote it."
    left = max(0, registration.looks - registration.look)
    rest = f"{left} left" if left else "none left: the next run needs fresh test examples"
    look = f"Look {registration.look} of {registration.looks} at this test set; {rest}."
    entry = f" Registered before the test set was opened, as entry {registration.entry} of the ledger."
    if registration.by_policy:
        return True, look + entry
    return False, f"{look}{entry} Under other thresholds than the policy's: nobody is asked to promote it."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
