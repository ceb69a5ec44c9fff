"""Count the looks at test examples, and what a look may spend of alpha.

Looks are counted by example, in every clone. A test set inherits the highest count and the highest
spending among its examples. So one example more or less, or another order, does not make a fresh
set. An example is its input text, as in the leakage check: case, spaces, id and target do not
matter. A list of keyed hashes, one per example, lies in DVC, and the registration holds the list's
hash. A list that cannot be fetched is an error, never a count of zero.

The clone that registers counts, and it might lie: the ledger cannot see lists. So every request for
a promotion and every approval counts again (`assert_counted`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable

from rft import commands, stage_files
from rft.errors import UserError
from rft.formatting import counted
from rft.traffic.texts import user_text
from tasks.ledger import authorise, remote, spending
from tasks.ledger.book import Ledger
from tasks.ledger.entry import DvcFile, Registration
from tasks.ledger.facts import Look, what_of
from tasks.ledger.spending import Past
from tasks.ledger.state import State
from tasks.runs import artifacts, transfer
from tasks.runs.artifacts import Out, Revision
from tasks.runs.clone import Clone


def key(ledger: Ledger) -> bytes:
    """Return the key of the hashes, from the first entry: equal examples of two ledgers have
    nothing in common."""
    ledger.begin()
    return _key(ledger.state)


def _key(state: State) -> bytes:
    return bytes.fromhex(state.ids[1])


def lines(key: bytes, rows: bytes) -> set[str]:
    """Return a name for each example. Raises UserError for a row that is cut off."""
    asked = [_asked(row, number) for number, row in enumerate(rows.splitlines(), 1)]
    return {hmac.new(key, text.encode(), hashlib.sha256).hexdigest() + "\n" for text in asked}


def _asked(row: bytes, number: int) -> str:
    try:
        return " ".join(user_text(json.loads(row)["messages"]).casefold().split())
    except (ValueError, KeyError, TypeError):
        path = stage_files.examples_file("test")
        again = commands.stage("examples")
        raise UserError(f"{path}:{number}: not a whole row with messages. Run the stage again: {again}") from None


def listed(names: set[str]) -> DvcFile:
    """Return the list of these names, in the form of an entry."""
    content = _content(names)
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return DvcFile(sha256=hashlib.sha256(content).hexdigest(), md5=md5, size=len(content))


def _content(names: set[str]) -> bytes:
    return "".join(sorted(names)).encode()


def keep(clone: Clone, names: set[str]) -> None:
    """Put the list where every clone can fetch it."""
    artifacts.keep(clone, _content(names))
    if remote.shared(clone).remote:
        transfer.push_files(clone, [out(listed(names))])


def share(clone: Clone, state: State, report_line: Callable[[str], None]) -> None:
    """Upload the lists behind the entries, including those from before there was a remote. Without
    them nobody elsewhere can count looks. Reports which lists are not here."""
    acts = [*((number, look.act) for number, look in state.looks.items()), *state.opened.items()]
    held = {number: act for number, act in acts if not state.erasure_of(act.test_sha256, act.examples)}
    here = {number: act for number, act in held.items() if artifacts.cached(clone, out(act.examples)) is not None}
    for number in sorted(held.keys() - here.keys()):
        report_line(f"[ledger] the list of test examples of entry {number} is not in this clone, so it cannot share it")
    lists = {act.examples.md5: out(act.examples) for act in here.values()}
    transfer.push_files(clone, [*lists.values()])
    if lists:
        report_line(f"[ledger] {counted(len(lists), 'list')} of test examples at DVC's remote")


def out(listed: DvcFile) -> Out:
    return Out("examples.txt", listed.md5, listed.size, None)


def past(clone: Clone, state: State, wanted: Registration, names: set[str], before: int | None = None) -> Past:
    """Count all looks before an entry that share examples with this one. The number of this look is
    one more than the highest count among its examples. What is spent is the highest spending among
    them. The same look counts once, under any terms, and an erased list does not count any more."""
    earlier = [look for look in state.looks.values() if before is None or look.number < before]
    first = {look.what: look for look in reversed(earlier)}
    same = first.get(what_of(wanted))
    until = same.number if same else None
    shared: dict[tuple[object, ...], set[str]] = {}
    for what, look in first.items():
        if what == what_of(wanted):
            shared[what] = names
        elif not state.erasure_of(look.act.test_sha256, look.act.examples):
            shared[what] = names & _list_of(clone, look.number, look.act.examples)
    counts, spent = dict.fromkeys(names, 0), dict.fromkeys(names, 0.0)
    others = [look for what, look in first.items() if what != what_of(wanted) and (not until or look.number < until)]
    for look in others:
        for name in shared.get(look.what, ()):
            counts[name] += 1
            spent[name] += spending.price(look, earlier)
    known = [look.act.look for look in others if look.act.test_sha256 == wanted.test_sha256]
    return Past(
        look=same.act.look if same else 1 + max([*counts.values(), *known], default=0),
        spent=max(spent.values(), default=0.0),
        most=spending.level_before(wanted, earlier),
        overlapping=tuple(look for look in earlier if shared.get(look.what)),
    )


def _list_of(clone: Clone, number: int, listed: DvcFile) -> set[str]:
    content = transfer.fetch_file(clone, out(listed))
    if hashlib.sha256(content).hexdigest() != listed.sha256:
        raise UserError(
            f"the list of test examples of entry {number} has other bytes than the entry names. Remove "
            f"{artifacts.path_of(clone, out(listed))}, and start again: it is fetched anew."
        )
    return set(content.decode().splitlines(keepends=True))


def assert_not_retired(clone: Clone, state: State, names: set[str], before: int | None = None) -> None:
    """Raise UserError for a set with an example that was opened (`before` an entry, if given)."""
    for number, opened in state.opened.items():
        if (before is not None and number > before) or state.erasure_of(opened.test_sha256, opened.examples):
            continue
        if known := names & _list_of(clone, number, opened.examples):
            raise UserError(
                f"{len(known)} of these {len(names)} test examples are retired: entry {number} opened them, when "
                f"{opened.who} read rollouts of run {opened.run} ({opened.reason}). {authorise.FRESH}"
            )


def assert_counted(clone: Clone, state: State, look: Look, at: Revision, run: str) -> None:
    """Raise UserError when the registration counts less than the examples of this run show."""
    rows = at.read(stage_files.examples_file("test"))
    again = f"Nobody can promote run {run}. Start it again: {commands.command('run')}"
    if rows is None or hashlib.sha256(rows).hexdigest() != look.act.test_sha256:
        raise UserError(f"entry {look.number} registered other test examples than those of run {run}. {again}")
    names = lines(_key(state), rows)
    if listed(names) != look.act.examples:
        raise UserError(f"entry {look.number} lists other examples than those of run {run}. {again}")
    assert_not_retired(clone, state, names, look.number)
    right = past(clone, state, look.act, names, look.number)
    if look.act.look < right.look:
        raise UserError(f"entry {look.number} says look {look.act.look}, and it was look {right.look}. {again}")
    if look.act.level is None:
        old = f"entry {look.number} is of an earlier version, and does not say what it spends of gate.alpha"
        raise UserError(f"{old}. {again}")
    try:
        spending.assert_paid(look.act, right)
    except UserError as error:
        raise UserError(f"entry {look.number}: {error} {again}") from None
