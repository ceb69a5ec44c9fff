"""From a conversation, an example, a package, a base model, a hash or a person to what rests on it.

Every run that the ledger, a ref or a record of this clone names is searched, in bytes that are
hashed on the way. A version rests on its run, and on the version whose weights it took or trained
on. So all later versions in such a chain rest on what an earlier one held.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from rft.errors import UserError, did_you_mean
from rft.formatting import counted
from rft.reports.audit import Audit, Kind
from tasks.audit import downwards, entries, holdings, known, revisions
from tasks.audit.context import Context
from tasks.audit.downwards import came_from
from tasks.audit.graph import Broken
from tasks.ledger import chain, describe, keys, verify
from tasks.ledger.authorise import describe as describe_champion
from tasks.ledger.entry import PolicyChange
from tasks.ledger.facts import Champion
from tasks.ledger.policy import Enrol, Remove
from tasks.runs import champion

Way = Literal["conversation", "example", "package", "base model", "hash", "person"]
WAYS: tuple[Way, ...] = get_args(Way)
_LEAST = 7
"""Characters of a hash that a question needs at least."""


@dataclass(frozen=True)
class Sought:
    way: Way
    value: str

    @property
    def kind(self) -> Kind:
        return "bytes" if self.way == "hash" else self.way

    @property
    def description(self) -> str:
        return f"{self.way} {self.value}"


def audit(ctx: Context, sought: Sought) -> Audit:
    """Find what rests on something. Raises UserError for an unknown hash or person."""
    if sought.way == "hash" and not re.fullmatch(rf"(SHA256:)?[0-9a-f]{{{_LEAST},64}}(\.dir)?", sought.value):
        raise UserError(f"{sought.value!r} is not a hash: write at least {_LEAST} characters of it, 0 to 9 and a to f.")
    root = ctx.graph.add(sought.kind, f"sought/{sought.value}", sought.description)
    if sought.way == "person":
        found, answer = _of_person(ctx, root, sought.value)
    else:
        found, answer = _of_runs(ctx, root, sought)
    direct = {made.number: made for made in ctx.state.promotions.values() if made.run in found}
    versions = _with_followers(ctx, direct)
    answer += _told(ctx, versions)
    answer += _began_with(ctx, root, versions, found)
    return ctx.graph.audit(f"what rests on {sought.description}", ctx.head, root, answer)


# -- runs ------------------------------------------------------------------------------------------
def _of_runs(ctx: Context, root: str, sought: Sought) -> tuple[set[str], list[str]]:
    found, unsearched = list[str](), list[str]()
    every = [each for each in known.runs(ctx).values() if each.commit is not None]
    for each in every:
        assert each.commit is not None
        reasons: list[str] = []
        try:
            run = revisions.parsed(ctx, each.name, each.commit)
            told = holdings.holds(ctx, run, sought.kind, sought.value)
            reasons += [told] if told else []
        except Broken as broken:
            unsearched.append(each.name)
            _unsearched(ctx, each.name, root, broken)
            continue
        if reasons:
            found.append(each.name)
            run_id = ctx.graph.add("run", each.name, f"run {each.name}", window=run.record.window)
            ctx.graph.link(run_id, "holds", root, lambda reasons=reasons: reasons[0])
    in_ledger = _entries_with(ctx, root, sought.value) if sought.way == "hash" else []
    if sought.way == "hash" and not found and not in_ledger and not unsearched:
        raise UserError(
            f"nothing has hash {sought.value}: not one of {counted(len(every), 'run')}, and no entry of the ledger."
        )
    answer = [_runs(found, len(every), sought.description)]
    answer += [f"Entries of the ledger with it: {', '.join(map(str, in_ledger))}."] if in_ledger else []
    if unsearched:
        answer.append(f"NOT SEARCHED, each with its reason below: {', '.join(unsearched)}.")
    return {*found}, answer


def _unsearched(ctx: Context, name: str, root: str, broken: Broken) -> None:
    def check() -> str:
        raise broken

    ctx.graph.link(ctx.graph.add("run", name, f"run {name}"), "could not be searched for", root, check)


def _runs(found: list[str], of: int, what: str) -> str:
    named = f": {', '.join(found)}" if found else ""
    return f"{len(found) or 'None'} of {counted(of, 'run')} {'holds' if len(found) == 1 else 'hold'} {what}{named}."


def _entries_with(ctx: Context, root: str, wanted: str) -> list[int]:
    found: list[int] = []
    for each in ctx.ledger.stored:
        names = (each.entry.id, each.commit.id, *each.entry.files.values())
        if any(name.startswith(wanted) for name in names) or wanted.encode() in each.entry.content:
            found.append(each.entry.number)
            number = each.entry.number
            key = ctx.graph.add("entry", str(number), f"entry {number}", said=describe.entry(each))
            ctx.graph.link(key, "names", root, lambda: "it is in the entry's canonical JSON, or hashes it")
    return found


# -- people ----------------------------------------------------------------------------------------
def _of_person(ctx: Context, root: str, name: str) -> tuple[set[str], list[str]]:
    signed, about = list[int](), list[int]()
    started: set[str] = set()
    people: set[str] = set()
    for each in ctx.ledger.stored:
        act = each.entry.act
        if isinstance(act, PolicyChange) and isinstance(act.change, Enrol | Remove):
            people.add(act.change.name)
            if act.change.name == name:
                about.append(each.entry.number)
    for number, person in _voices(ctx).items():
        people.add(person)
        if person == name:
            signed.append(number)
    for request in ctx.state.requests.values():
        people.add(request.starter_name)
        if request.starter_name == name:
            started.add(request.act.run)
            key = ctx.graph.add("run", request.act.run, f"run {request.act.run}")
            proof = "a signed statement says so" if request.starter else "as Git knew them, which is a claim"
            ctx.graph.link(key, "was started by", root, lambda proof=proof: proof)
    if name not in people:
        raise UserError(f"the ledger knows nobody named {name!r}. {did_you_mean(name, people)}")
    for number in dict.fromkeys([*signed, *about]):
        entries.link(ctx, root, "appears in", number)
    approved = {
        made.run
        for made in ctx.state.promotions.values()
        if any(approval.number in signed for approval in made.approvals)
    }
    answer = [
        f"{name} signed {counted(len(signed), 'statement')} in the ledger, approved "
        f"{counted(len(approved), 'run')} that became champion, and started {counted(len(started), 'run')}."
    ]
    return approved | started, answer


def _voices(ctx: Context) -> dict[int, str]:
    """Return who signed each entry: entry -> person."""
    found: dict[int, str] = {}
    for each in ctx.ledger.stored:
        if chain.SIGNATURE in each.files:
            before = entries.before(ctx, each.entry.number)
            public = keys.signer(each.files[chain.SIGNATURE].decode("ascii", "replace"))
            change = each.entry.act.change if isinstance(each.entry.act, PolicyChange) else None
            if (person := verify.holder(before, public, change)) is not None:
                found[each.entry.number] = person
    return found


# -- versions --------------------------------------------------------------------------------------
def _with_followers(ctx: Context, direct: dict[int, Champion]) -> dict[int, str]:
    """Return version -> why it rests on what was sought. The order is that of promotion, so a
    version comes after the one from which its weights come."""
    found: dict[int, str] = {}
    for made in ctx.state.promotions.values():
        key = f"version:{made.model}@{made.number}"
        if made.number in direct:
            found[made.number] = "its own run"
            _version(ctx, made)
            ctx.graph.link(key, "was made by", f"run:{made.run}", lambda made=made: _made_by(ctx, made))
        act = ctx.state.requested(made.number)
        if act is None:
            continue
        try:
            parent = came_from(ctx, act, ctx.at(act.revision))
        except Broken as broken:
            _version(ctx, made)
            _unfollowed(ctx, key, made, broken)
            continue
        if parent in found:
            assert parent is not None
            found.setdefault(made.number, f"through the weights of {describe_champion(parent)}")
            _version(ctx, made)
            target = f"version:{made.model}@{parent}"
            ctx.graph.link(key, "has its weights from", target, lambda made=made: _made_by(ctx, made))
    return found


def _version(ctx: Context, made: Champion) -> None:
    served = "now" if ctx.state.champion(made.model) == made.number else None
    shown = f"{made.model}, {describe_champion(made.number)}"
    ctx.graph.add("version", f"{made.model}@{made.number}", shown, promoted=made.time, run=made.run, served=served)


def _unfollowed(ctx: Context, key: str, made: Champion, broken: Broken) -> None:
    def check() -> str:
        raise broken

    ctx.graph.link(key, "could not be followed to", ctx.graph.add("run", made.run, f"run {made.run}"), check)


def _made_by(ctx: Context, made: Champion) -> str:
    if key_compromise := ctx.key_compromises.get(made.number):
        raise Broken("doubtful", f"entry {made.number} {key_compromise}")
    ctx.store.verify(made.revision)
    return f"entry {made.number} names the run, whose revision {made.revision[:12]} was hashed again"


def _told(ctx: Context, versions: dict[int, str]) -> list[str]:
    if not versions:
        return ["No version that was ever promoted rests on it."]
    lines = [f"{counted(len(versions), 'version')} {'rests' if len(versions) == 1 else 'rest'} on it:"]
    for number, why in versions.items():
        made = ctx.state.promotions[number]
        served = ", served now" if ctx.state.champion(made.model) == number else ""
        lines.append(f"  {made.model}, {describe_champion(number)}: {why}{served}")
    return lines


def _began_with(ctx: Context, root: str, versions: dict[int, str], found: set[str]) -> list[str]:
    """Name the other runs, promoted or not, whose champion's weights rest on what was sought. They
    measured and trained with these weights."""
    lines: list[str] = []
    for each in known.runs(ctx).values() if versions else ():
        if each.commit is None or each.name in found:
            continue
        try:
            run = revisions.parsed(ctx, each.name, each.commit)
            before = downwards.began_with(ctx, run.at)
        except Broken as broken:
            _unsearched(ctx, each.name, root, broken)  # a search for a person has opened no run so far
            continue
        number = champion.number(before.version)
        if number in versions and before.weights != "none" and ctx.state.promotions[number].model == run.model:
            target = f"version:{run.model}@{number}"
            key = ctx.graph.add("run", each.name, f"run {each.name}", window=run.record.window)
            ctx.graph.link(key, "began with the weights of", target, lambda: "champion.json of its revision says so")
            lines.append(f"  run {each.name}: began with the weights of {describe_champion(number)}")
    head = f"{counted(len(lines), 'run')} more {'rests' if len(lines) == 1 else 'rest'} on it:"
    return [head, *lines] if lines else []


def conversations_of(ctx: Context, model: str, number: int) -> dict[str, list[str]]:
    """Return the conversations that a version rests on: conversation -> the runs whose windows hold
    it. Raises Broken."""
    found: dict[str, list[str]] = {}
    at: int | None = number
    while at is not None and at in ctx.state.promotions:
        made = ctx.state.promotions[at]
        run = revisions.parsed(ctx, made.run, made.revision)
        for each in holdings.conversations(ctx, run):
            found.setdefault(each, []).append(made.run)
        act = ctx.state.requested(at)
        at = None if act is None else came_from(ctx, act, ctx.at(act.revision))
    return found
