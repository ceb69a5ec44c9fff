"""The gate's checks, for the person who signs.

First comes what stood in the way, then how many looks are left and what was not measured. Every
check is one sentence (rft/reports/plain.py) with its picture and its numbers.
"""

from __future__ import annotations

from rft import reports
from rft.page import charts
from rft.page.inputs import StageFiles
from rft.page.markup import Html, card, h
from rft.reports import plain, wording
from rft.reports.plain import Group

_SIGNS = {"passed": ("good", "✓"), "failed": ("bad", "✗"), "open": ("open", "?"), "not measured": ("bad", "!")}


def checks(stage_files: StageFiles) -> Html | None:
    decision = stage_files.decision
    if decision is None:
        return None
    if decision.candidate == "none":
        note = "There was no candidate to compare with the champion; only the state of the run was checked."
        return card("The gate's checks", h("p", note, class_="note"), _groups(plain.groups(decision), decision))
    who = "the new prompt alone" if decision.candidate == "champion_new_prompt" else "the challenger"
    before = stage_files.registration is not None and stage_files.registration.registered
    note = (
        f"Judged: {who}, against the champion, on the same test examples. "
        + ("Limits were set before the test set was opened. " if before else "")
        + f"Dots are differences paired by example, lines their {wording.percent(decision.checks[0].confidence)} "
        "interval for the mean reward and 95 % intervals for the others; the dashed line is the limit, and the shaded "
        "side is the one that was asked for. What a check could have seen is the smallest true difference that so many "
        "examples show in 4 of 5 such tests."
    )
    found = plain.groups(decision, stage_files.latency)
    stopped = [group for group in found if group.title == plain.STOPPED]
    return card(
        "The gate's checks",
        h("p", note, class_="note"),
        _groups(stopped, decision),
        _looks(stage_files.registration),
        _unseen(decision, stage_files.latency),
        _groups(found[len(stopped) :], decision),
        _help(decision),
    )


def _looks(registration: reports.Registration | None) -> Html:
    in_order, text = plain.looks(registration)
    return h("p", text) if in_order else h("p", h("b", "! "), text, class_="bad")


def _unseen(decision: reports.Decision, latency: reports.Check | None) -> Html | None:
    """List what is not known, before what is known."""
    found = plain.unseen(decision, latency)
    if not found:
        return None
    listed = [h("li", line) for line in found]
    rest = (
        h("details", h("summary", f"and {len(listed) - plain.MANY:,} more"), h("ul", listed[plain.MANY :]))
        if len(listed) > plain.MANY
        else None
    )
    return h(
        "div", h("b", "! Not measured, or too little to tell"), h("ul", listed[: plain.MANY]), rest, class_="unseen"
    )


# -- groups ----------------------------------------------------------------------------------------
def _groups(groups: list[Group], decision: reports.Decision) -> list[Html]:
    return [_group(group, decision.candidate) for group in groups]


def _group(group: Group, candidate: str) -> Html:
    stopped = group.title == plain.STOPPED
    head = h("h3", group.title, class_="bad" if stopped else None)
    shown, folded = plain.folded(group)
    return h(
        "section",
        head,
        h("p", group.about, class_="note") if group.about else None,
        _list(shown, candidate) if shown else None,
        h("details", h("summary", plain.summary(folded)), _list(folded, candidate)) if folded else None,
        class_="group",
    )


def _list(found: list[reports.Check], candidate: str) -> Html:
    return h("ul", [_check(check, candidate) for check in found], class_="checks")


def _check(check: reports.Check, candidate: str) -> Html:
    word = "not measured" if plain.is_unmeasured(check) else wording.verdict(check)
    tone, sign = _SIGNS[word]
    picture = None
    if check.value is not None and check.margin is not None:
        good_above = check.is_better_above
        text = f"{wording.numbers(check)}: {word}"
        picture = charts.interval(check.name, text, check.value, check.low, check.high, check.margin, good_above, tone)
    seen = plain.could_see(check)
    why = plain.protects(check)
    detail = None if plain.is_unmeasured(check) or (check.kind == "state" and check.value is None) else check.detail
    asides = ["Only shown: it decides nothing." if not check.decides else "", f"Asked {why}." if why else "", seen]
    return h(
        "li",
        h("span", f"{sign} {word}", class_=f"verdict {tone}"),
        h(
            "div",
            h("b", check.name),
            h("p", plain.sentence(check, candidate), class_="bad" if plain.is_unmeasured(check) else None),
            h("small", " ".join(filter(None, asides))),
        ),
        h("div", picture, h("span", _numbers(check), class_="numbers"), h("small", detail) if detail else None),
    )


def _numbers(check: reports.Check) -> str:
    """Write value, interval and limit as the stage printed them."""
    return wording.numbers(check) if check.value is not None else ""


def _help(decision: reports.Decision) -> Html:
    texts = [plain.HOW_TO_READ]
    if any(check.name == wording.HACK_RATE for check in decision.checks):
        texts.append(plain.HACK_RATE_MEANS)
    if any(check.kind == "veto" for check in decision.checks):
        texts.append(plain.VETO_MEANS)
    return h("details", h("summary", "How to read these checks"), [h("p", text, class_="note") for text in texts])
