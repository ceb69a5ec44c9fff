"""The drift report as pictures and sentences: is production still like what the agent knows?

`cards` are part of a run's page. `render` makes a separate page, which `rft traffic drift --html`
writes and MLflow keeps. Both are built from the report alone, have no script and load nothing.

First comes what to do. Then come the features in three groups: the input, what the agent did, and
how well it did (the outcome apart from the input). Each group is divided by what it was compared
with. Drifted features come first, and each is open only once, because it looks much the same
against the training and the test examples. The others are folded; their lines still show how far
they are from their thresholds.

    rft/reports/drift_wording  order, names and sentences, shared with the terminal
    drift_pictures             an effect on its scale; reference against window; a course over time
    drift_comparisons          several windows: pictures over time, and a table
    drift_style                the additions to the style sheet
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rft import reports
from rft.formatting import counted
from rft.page import drift_pictures
from rft.page.drift_comparisons import DriftComparison, over_time, summary
from rft.page.drift_style import DRIFT
from rft.page.markup import Html, card, h, page
from rft.page.style import STYLE
from rft.reports import Carrier, DriftReport, FeatureDrift, drift_wording
from rft.reports.drift_wording import SIGNS, TONES, VERDICTS, Compared, Part


def render(
    comparisons: Sequence[DriftComparison], facts: Mapping[str, str], title: str = "", with_features: bool = True
) -> str:
    """Make one page. `facts` are shown in the header. `with_features`: show each report in full,
    not only the pictures over time."""
    known = [comparison for comparison in comparisons if comparison.report is not None]
    body: list[Html | None] = []
    if len(comparisons) == 1 and known:
        body += [_header(known[0], facts), *_cards_of(known[0])]
    else:
        body += [_several(comparisons, facts, title), over_time(comparisons, "Over time"), summary(comparisons)]
        for comparison in reversed(known) if with_features else ():
            head = h("header", h("h2", comparison.name), class_="card window-head", style="margin-top:32px")
            body += [head, *_cards_of(comparison)]
    name = title or (comparisons[0].name if comparisons else "")
    return page(f"Drift: {name}", STYLE + DRIFT, body)


def cards(report: DriftReport, comparisons: Sequence[DriftComparison] = ()) -> Iterator[Html]:
    """Yield the cards on a run's drift. `comparisons`: those of earlier runs and its own, for the
    pictures over time."""
    yield card(
        f"Drift: {report.verdict}",
        h("p", drift_wording.headline(report), class_="advice"),
        _reason(report),
        *_features(report),
        _contracts(report),
    )
    course = over_time(comparisons, "Drift over time")
    if course is not None:
        yield course


# -- the page of its own ---------------------------------------------------------------------------
def _header(comparison: DriftComparison, facts: Mapping[str, str]) -> Html:
    assert comparison.report is not None
    report = comparison.report
    tone, sign = VERDICTS[report.verdict]
    found = {"window": comparison.when, "compared": drift_wording.size(report)}
    if report.window_sha256:
        found["SHA-256"] = report.window_sha256[:16]
    if report.alpha is not None:
        found["false-discovery rate"] = f"{report.alpha:g}"
    return h(
        "header",
        h(
            "div",
            h("div", h("div", "agent-rft drift", class_="kicker"), h("h1", comparison.name)),
            h("span", h("span", sign, aria_hidden="true"), report.verdict.capitalize(), class_=f"badge {tone}"),
            class_="top",
        ),
        h("p", drift_wording.headline(report), class_="reason"),
        _reason(report),
        _facts({**found, **facts}),
        class_="card",
    )


def _several(comparisons: Sequence[DriftComparison], facts: Mapping[str, str], title: str) -> Html:
    known = [comparison.report for comparison in comparisons if comparison.report is not None]
    count = {verdict: sum(report.verdict == verdict for report in known) for verdict in VERDICTS}
    text = ", ".join(f"{number:,} {verdict}" for verdict, number in count.items() if number)
    return h(
        "header",
        h("div", "agent-rft drift", class_="kicker"),
        h("h1", title or counted(len(comparisons), "window")),
        h(
            "p",
            f"{counted(len(known), 'window')}: {text}." if known else "No window was compared yet.",
            class_="reason",
        ),
        _facts(facts),
        class_="card",
    )


def _facts(facts: Mapping[str, str]) -> Html | None:
    shown = [h("div", h("dt", key), h("dd", value)) for key, value in facts.items() if value]
    return h("dl", shown, class_="facts") if shown else None


def _cards_of(comparison: DriftComparison) -> Iterator[Html]:
    assert comparison.report is not None
    yield card("What was compared", *_features(comparison.report))
    contracts = _contracts(comparison.report)
    if contracts is not None:
        yield card("The log itself", contracts)


def _reason(report: DriftReport) -> Html | None:
    reason = drift_wording.because(report)
    return h("p", reason, class_="note because") if reason else None


# -- features --------------------------------------------------------------------------------------
def _features(report: DriftReport) -> Iterator[Html]:
    level = "" if report.alpha is None else f" ({report.alpha:g})"
    note = (
        f"{drift_wording.size(report)}. A feature drifted when its effect is larger than the smallest that counts, and "
        f"larger than chance allows: q is below the false-discovery rate{level}."
    )
    yield h("p", note, class_="note")
    yield drift_pictures.legend(
        with_noise=any(feature.noise is not None for feature in report.features),
        with_pairs=any(feature.bars for feature in report.features),
    )
    told: set[str] = set()
    for part in drift_wording.sections(report):
        yield _part(report, part, told)
    if left := [carrier for carrier in report.carriers if carrier.feature not in told]:
        yield h("div", h("h3", "Further conversations"), _carriers(left), class_="drift-part")


def _part(report: DriftReport, part: Part, told: set[str]) -> Html:
    blocks: list[Html] = []
    for compared in part.compared:
        open_, rest = _split(compared)
        shown = [_feature(report, feature, told) for feature in open_]
        folded = [_feature(report, feature, told) for feature in rest]
        blocks.append(h("h4", compared.title[:1].upper() + compared.title[1:]))
        blocks += shown
        why = drift_wording.uncompared(compared.features)
        if folded and (shown or why):
            text = f"{drift_wording.summary(rest)}{f'; {why}' if why else ''}"
            blocks.append(h("details", h("summary", text), folded, class_="rest"))
        else:
            blocks += folded
    about = h("p", part.about, class_="note")
    return h("div", h("h3", part.title), about, blocks, class_="drift-part")


def _split(compared: Compared) -> tuple[list[FeatureDrift], list[FeatureDrift]]:
    """Split the features into those that need a look and the rest."""
    alarming = ("drifted", "could be chance")
    shown = [feature for feature in compared.features if drift_wording.state(feature) in alarming]
    return shown, [feature for feature in compared.features if drift_wording.state(feature) not in alarming]


def _feature(report: DriftReport, feature: FeatureDrift, told: set[str]) -> Html:
    """Show one feature: a line that is always visible, and details below it. The details are open
    for a drifted feature, with its conversations, but only against the first reference."""
    opened = feature.drifted and feature.feature not in told
    state = drift_wording.state(feature)
    text = drift_wording.named(feature.feature)
    name = h("span", h("b", text[:1].upper() + text[1:]), h("code", feature.feature), class_="name")
    picture = None
    if feature.effect is not None:
        noise = None if feature.noise is None else drift_wording.place(feature, feature.noise)
        about = f"{drift_wording.effect(feature)}; {drift_wording.numbers(feature)}: {state}."
        picture = drift_pictures.scale(
            f"Drift of {feature.feature}", about, drift_wording.ratio(feature), noise, TONES[state]
        )
    says = h(
        "span",
        h("b", SIGNS[state], aria_hidden="true"),
        f" {drift_wording.measured(feature)} " if feature.effect is not None else " ",
        h("b", state) if feature.drifted else state,
        class_=f"says {TONES[state].replace('off', 'muted')}",
    )
    examples: list[Carrier] = []
    if opened:
        examples = [carrier for carrier in report.carriers if carrier.feature == feature.feature]
        told.add(feature.feature)
    body = [
        h(
            "div",
            h("p", feature.detail) if feature.detail else None,
            h("p", h("small", f"{_capital(drift_wording.effect(feature))}.")) if feature.effect is not None else None,
            h("p", h("small", f"{_capital(drift_wording.numbers(feature))}.")),
            class_=None if feature.bars else "alone",
        ),
        drift_pictures.pairs(feature.bars, f"Shares of {text}") if feature.bars else None,
        h("div", h("b", "Conversations that carry it"), _carriers(examples), class_="alone") if examples else None,
    ]
    summary_ = h("summary", name, picture if picture is not None else h("span", class_="none"), says)
    return h("details", summary_, h("div", body, class_="feature-body"), class_="feature", open=opened)


def _carriers(carriers: Sequence[Carrier]) -> Html:
    items = [h("li", h("code", carrier.conversation_id), h("div", carrier.says)) for carrier in carriers]
    return h("ul", items, class_="carriers")


# -- contracts -------------------------------------------------------------------------------------
def _contracts(report: DriftReport) -> Html | None:
    if not report.contracts:
        return None
    broken = [contract for contract in report.contracts if not contract.success]
    text = f"{counted(len(report.contracts), 'data contract')}: {f'{len(broken)} broken' if broken else 'all hold'}."
    lost = [h("li", _contract(contract), class_="bad") for contract in broken]
    every = [h("li", f"{'✓' if contract.success else '✗'} {_contract(contract)}") for contract in report.contracts]
    return h(
        "div",
        h("p", text, class_="bad" if broken else "note"),
        h("ul", lost, class_="broken") if lost else None,
        h("details", h("summary", "all of them"), h("ul", every, class_="broken")),
        class_="drift-part",
    )


def _contract(contract: reports.Contract) -> str:
    observed = f", observed {contract.observed}" if contract.observed else ""
    return f"{contract.column}: {contract.name}{observed}" if contract.column else f"{contract.name}{observed}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
