"""Inputs that nearly repeat one of an earlier split: how many, and some of them side by side.

Only the two texts of a pair tell whether it matters. The same question in other words is a leak;
two questions from one template are not. So pairs of training and validation examples are shown as
texts. For a pair with a test example, the page shows both ids but no text, unless the test set is
open. Reading a text that nearly repeats a test input is like reading the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast, get_args

from rft import commands, config
from rft import stage_files as places
from rft.errors import UserError
from rft.formatting import counted
from rft.page.inputs import StageFiles
from rft.page.markup import Html, card, h, table
from rft.reports import NearDuplicates, NearPair
from rft.traffic.texts import user_text
from rft.types import Split

_LONGEST = 600  # characters of one input
_CLOSED = "The page shows only ids of test examples and of what nearly repeats them: the test set stays closed."
Texts = dict[str, dict[str, str]]
"""Split -> id -> what the user wrote; only splits that people may read."""


def card_of(stage_files: StageFiles) -> Html | None:
    """Make the card; None if the check for near duplicates did not run."""
    found = stage_files.examples.near_duplicates if stage_files.examples is not None else []
    if not found:
        return None
    title = "Inputs that nearly repeat each other"
    some = [one for one in found if one.num_examples]
    if not some:
        return card(title, h("p", "None: no input nearly repeats one of an earlier split.", class_="note"))
    rows = [_row(one) for one in found]
    texts = _texts(stage_files, some)
    return card(
        title,
        h("p", _advice(some, stage_files.opened is None), class_="note"),
        table(("inputs of", "like one of", "examples", "share"), rows),
        [_pairs(one, texts) for one in some],
    )


def _advice(some: list[NearDuplicates], closed: bool) -> str:
    tested = any(_is_test(one.inside) for one in some)
    why = (
        "A score on inputs that were nearly trained on says little about new ones. "
        if tested
        else "Inputs that were nearly trained on are a poor basis for choosing a prompt or a step. "
    )
    which = " of train and validation" if tested and closed else ""
    return (
        f"{why}Read a few pairs{which}. If both ask the same, let the recipe keep what was made from one source in one "
        "split, and set examples.max_near_duplicates, so that it stays an error. If they come from one template and "
        "ask different things, there is nothing to do."
    )


def _row(one: NearDuplicates) -> Html:
    share = f"{100 * one.share:.1f} %" if one.num_examples else "–"
    cells = [h("td", one.of), h("td", f"{one.num_examples:,}"), h("td", share)]
    return h("tr", h("th", one.inside, scope="row"), cells)


def _pairs(one: NearDuplicates, texts: Texts) -> Html:
    summary = f"{counted(one.num_examples, 'example')} of {one.inside} like one of {one.of}"
    if len(one.pairs) < one.num_examples:
        summary += f"; the first {len(one.pairs)}"
    if one.inside in texts and one.of in texts:
        body = [h("div", [*_side_by_side(one, pair, texts)], class_="nearly") for pair in one.pairs]
        return h("details", h("summary", summary), body)
    rows = [
        h("tr", h("td", h("code", pair.id)), h("td", h("code", pair.repeats)), h("td", _alike(pair)))
        for pair in one.pairs
    ]
    closed = h("p", _CLOSED, class_="note") if _is_test(one.inside) or _is_test(one.of) else None
    return h("details", h("summary", summary), closed, table((one.inside, one.of, "alike"), rows))


def _side_by_side(one: NearDuplicates, pair: NearPair, texts: Texts) -> Iterator[Html]:
    yield h("p", f"{_alike(pair)} alike", class_="note")
    sides = ((one.inside, pair.id), (one.of, pair.repeats))
    columns = [
        h(
            "li",
            h("span", f"{split}, {name}", class_="who"),
            _clipped(texts[split].get(name, "(not among the stage's files)")),
        )
        for split, name in sides
    ]
    yield h("div", [h("ul", column, class_="talk") for column in columns], class_="grid")


def _alike(pair: NearPair) -> str:
    return f"{100 * pair.similarity:.0f} %"


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … ({len(text) - _LONGEST:,} more characters)"


def _texts(stage_files: StageFiles, some: list[NearDuplicates]) -> Texts:
    """Read the inputs of the pairs, where people may read both."""
    found: Texts = {}
    for one in some:
        if stage_files.opened is None and (_is_test(one.inside) or _is_test(one.of)):
            continue
        for name in (one.inside, one.of):
            split = cast(Split, name if name in get_args(Split) else "test")  # a block is part of the test set
            if name not in found and (stage_files.root / places.examples_file(split)).exists():
                found[name] = _of_split(stage_files, split)
    return found


def _of_split(stage_files: StageFiles, split: Split) -> dict[str, str]:
    keys = stage_files.root / places.KEYS
    try:
        known = config.Keys.model_validate_json(keys.read_bytes())
    except (OSError, ValueError):
        again = commands.stage("examples")
        raise UserError(f"{keys}: missing, or not the keys of the rows beside it. Run again: {again}") from None
    rows = places.load_examples(split, stage_files.root / places.examples_file(split), known)
    return {row.id: user_text(row.messages) for row in rows}


def _is_test(name: str) -> bool:
    """Whether it is the test set or a block of it."""
    return name not in ("train", "validation")
