"""The questions that an audit answers, as people ask them.

`rft audit` takes one of these:

    champion, previous, beginning  What is served now, and before. `icd10@champion` names the model.
    6, icd10@6                     An entry of the ledger. A version's number is the number of its
                                   promotion.
    20261122-2339-6c03             A run, or any unique part of its name.
    --all                          Every version, and every run that the ledger or this clone knows.
    --conversation, --hash, ...    Upwards: what rests on it (upwards.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rft import commands
from rft.errors import UserError, did_you_mean
from rft.reports.audit import Audit
from tasks.audit import context, downwards, entries, known, revisions, upwards
from tasks.audit.context import Context
from tasks.audit.upwards import Sought
from tasks.ledger import book
from tasks.ledger.authorise import describe
from tasks.ledger.facts import BEGINNING
from tasks.ledger.state import State
from tasks.runs import records
from tasks.runs.clone import Clone

ReportLine = Callable[[str], None]
_NAMES = ("champion", "previous", "beginning")


@dataclass(frozen=True)
class Question:
    """What somebody wants to know."""

    what: str | None = None
    """A version, an entry or a run; None with `sought` or `every`, else what is served."""
    model: str | None = None
    """The model of a version; None: the recipe of params.yaml, or the ledger's only model."""
    sought: Sought | None = None
    every: bool = False


def ask(
    clone: Clone,
    question: Question,
    fetches: bool = True,
    reverify: bool = False,
    report_line: ReportLine = print,
) -> Audit:
    """Answer a question. `fetches` allows fetching from the ledger's and DVC's remotes. `reverify`
    verifies every signature of the ledger again, even those that this clone has verified before.

    Raises UserError for what does not exist, and for a ledger that is not whole: then nothing that
    rests on it can be answered.
    """
    book.refuse_shallow(clone)
    ledger = (
        book.latest(clone, report_line, reverify)
        if fetches
        else book.read(clone, reverify=reverify, report_line=report_line)
    )
    with context.open_context(ledger, fetches, report_line) as ctx:
        if question.sought is not None:
            return upwards.audit(ctx, question.sought)
        if question.every:
            return _every(ctx)
        return _one(ctx, question)


def _one(ctx: Context, question: Question) -> Audit:
    what = question.what or "champion"
    if what.isdigit() and not (int(what) > ctx.state.number and any(what in name for name in known.runs(ctx))):
        return _entry(ctx, int(what), question.model)
    if "@" in what or what in (*_NAMES, *_models(ctx.state)):
        return _version(ctx, *_named(ctx, question))
    return _run(ctx, what)


def _named(ctx: Context, question: Question) -> tuple[str, int]:
    """Return the model and the number of a version. Raises UserError for what is not a version."""
    state, what = ctx.state, question.what or "champion"
    if what.isdigit() and int(what) in state.promotions:
        return state.promotions[int(what)].model, int(what)
    named, at, which = what.rpartition("@")
    if not at and what in _models(state):
        named, which = what, "champion"
    model = _model(ctx, named or question.model)
    if which == "previous" and state.previous(model) is None:
        raise UserError(f"{model} is at the beginning, so there is no champion before it.")
    told = {"champion": state.champion(model), "previous": state.previous(model), "beginning": BEGINNING}
    number = told.get(which, int(which) if which.isdigit() else None)
    if number is None:
        raise UserError(f"{what!r} is not a version. Write {model}@champion, @previous, @beginning or @NUMBER.")
    other = state.promotions.get(number)
    if number != BEGINNING and (other is None or other.model != model):
        mine = [str(each.number) for each in state.promotions.values() if each.model == model]
        whose = f"is a version of {other.model}" if other else "is not a promotion"
        raise UserError(f"entry {number} {whose}. Versions of {model}: {', '.join(mine[-9:]) or 'none yet'}.")
    return model, number


def _models(state: State) -> list[str]:
    return sorted({*state.moves, *(request.act.model for request in state.requests.values())})


def _model(ctx: Context, model: str | None) -> str:
    every = _models(ctx.state)
    chosen = ctx.clone.model(every)
    if model is None and chosen is not None and every:
        if chosen not in every:
            raise UserError(
                f"nothing of {chosen} was promoted or asked for yet. Start a run: {commands.command('run')}"
            )
        return chosen
    if model is not None and model in every:
        return model
    if model is not None and every:
        raise UserError(f"the ledger knows no model {model!r}. {did_you_mean(model, every)}")
    if len(every) == 1:
        return every[0]
    if not every:
        raise UserError(f"nothing was promoted or asked for yet. Start a run: {commands.command('run')}")
    raise UserError(f"the ledger knows several models: {', '.join(every)}. Name one: {every[0]}@champion")


def _version(ctx: Context, model: str, number: int) -> Audit:
    root = downwards.version(ctx, model, number)
    return ctx.graph.audit(f"what {model}, {describe(number)}, rests on", ctx.head, root)


def _entry(ctx: Context, number: int, model: str | None) -> Audit:
    if number == BEGINNING:
        return _version(ctx, _model(ctx, model), BEGINNING)
    if number > ctx.state.number:
        every = commands.command("ledger")
        raise UserError(f"the ledger ends with entry {ctx.state.number}: there is no entry {number}. All: {every}")
    if number in ctx.state.promotions:
        return _version(ctx, ctx.state.promotions[number].model, number)
    root = entries.root(ctx, number)
    for name in [*ctx.graph.nodes]:
        kind, _, told = name.partition(":")
        if kind == "entry" and int(told) in ctx.state.requests:
            downwards.link_request(ctx, ctx.state.requests[int(told)])
    return ctx.graph.audit(f"what entry {number} rests on", ctx.head, root)


def _run(ctx: Context, name: str) -> Audit:
    every = known.runs(ctx)
    found = every[records.pick([*every], name)]
    request = ctx.state.request(found.name)
    if request is not None:
        entries.root(ctx, request.number)
        root = downwards.link_request(ctx, request)
    else:
        if found.commit is None:
            raise UserError(f"run {found.name} is not over, so it has no revision yet. Wait for it, or: rft runs")
        root = _unasked(ctx, found.name, found.commit)
    return ctx.graph.audit(f"what run {found.name} was", ctx.head, root)


def _unasked(ctx: Context, name: str, commit: str) -> str:
    """Add a run that nobody asked to promote. Only its registration is signed."""
    run = revisions.link(ctx, _ref(ctx, name), "names", name, commit, None)
    for look in ctx.state.looks.values():
        if look.act.run == name:
            entries.root(ctx, look.number)
            downwards.looked(ctx, look.number, name, ctx.at(commit))
    return run


def _ref(ctx: Context, name: str) -> str:
    refs = ctx.refs.get(name)
    return ctx.graph.add("alias", f"ref/{name}", refs[0][0] if refs else f"this clone's record of run {name}")


def _every(ctx: Context) -> Audit:
    state = ctx.state
    for made in state.promotions.values():
        downwards.version(ctx, made.model, made.number)
    for model in _models(state):
        downwards.version(ctx, model, BEGINNING)
    for request in state.requests.values():
        if not ctx.graph.knows("run", request.act.run):
            entries.root(ctx, request.number)
            downwards.link_request(ctx, request)
    for each in known.runs(ctx).values():
        if each.commit is not None and not ctx.graph.knows("run", each.name):
            _unasked(ctx, each.name, each.commit)
    return ctx.graph.audit("what every version and every run rests on", ctx.head, None)


def conversations(
    clone: Clone, question: Question, fetches: bool = True, report_line: ReportLine = print
) -> dict[str, list[str]]:
    """Return the conversations that a version rests on: conversation -> the runs whose windows hold
    it. Raises UserError for what is not a version, and Broken where the bytes do not fit."""
    ledger = book.latest(clone, report_line) if fetches else book.read(clone, report_line=report_line)
    with context.open_context(ledger, fetches, report_line) as ctx:
        return upwards.conversations_of(ctx, *_named(ctx, question))
