"""Enrol and remove the people and machines that the ledger knows.

  rft ledger people list
  rft ledger people add bob --role approver --public "ssh-ed25519 AAAA..." --reason "joins us"
  rft ledger people add --machine --reason "the new trainer"          this clone itself
  rft ledger people remove bob --reason "left the team"
  rft ledger people remove bob --compromised-since 41 --reason "a stolen laptop"

An owner changes people, approves and overrides. An approver approves, rejects and rolls back. An
author starts runs under their own name. With --compromised-since, every audit marks the entries
from that one on which rest on a key of theirs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from flows.cli.options import add_person, signer
from flows.screen import print_line
from rft import commands
from rft.errors import UserError
from tasks.ledger import book, keys
from tasks.ledger.policy import Compromised, Enrol, EnrolMachine, Remove, RemoveMachine, changed, keys_of
from tasks.ledger.state import State
from tasks.promotion import acts
from tasks.runs import clone
from tasks.runs.clone import Clone

ROLES = ("owner", "approver", "author")


def add(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="add|remove|list", required=True, dest="what")
    enrol = verbs.add_parser("add", help="enrol a person, a further key of theirs, or a machine")
    enrol.add_argument("name", metavar="NAME", nargs="?", help="lowercase, without blanks")
    enrol.add_argument("--role", choices=ROLES, action="append", default=[], help="repeatable")
    enrol.add_argument("--public", metavar="KEY", help="their public SSH key, or the .pub file that holds it")
    enrol.add_argument("--machine", action="store_true", help="a clone: this one, or the one whose key --public gives")
    add_person(enrol)
    remove = verbs.add_parser("remove", help="end the roles of a person, or what a machine may append")
    remove.add_argument("name", metavar="NAME")
    remove.add_argument(
        "--compromised-since", metavar="ENTRY", type=int, help="their keys were in other hands from this entry on"
    )
    remove.add_argument("--compromised-key", metavar="SHA256:...", help="only this one of their keys")
    add_person(remove)
    verbs.add_parser("list", help="show people, machines and rules")


def run(options: argparse.Namespace) -> int:
    here = clone.enter()
    return {"add": _add, "remove": _remove, "list": _list}[options.what](here, options)


def _add(here: Clone, options: argparse.Namespace) -> int:
    if options.machine:
        if options.role:
            raise UserError("--machine: a machine has no role. Leave --role out.")
        key = _public(options.public) if options.public else keys.machine(here).public
        change = acts.enrolled(EnrolMachine, name=options.name or book.machine_name(keys.fingerprint(key)), key=key)
    else:
        if not (options.name and options.role and options.public):
            raise UserError("a person needs NAME, --role and --public KEY; this clone itself: --machine")
        change = acts.enrolled(Enrol, name=options.name, roles=options.role, key=_public(options.public))
    entry = acts.change(here, change, signer(here, options), options.reason, print_line)
    print_line(f"Enrolled: {change.name}, from entry {entry.number + 1} on.")
    return 0


def _public(text: str) -> str:
    """Return a public key, or that of a file, without its comment."""
    if not text.startswith(("ssh-", "ecdsa-", "sk-")):
        try:
            text = Path(text).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--public {text[:80]!r} is not a public key, and no .pub file ({error}).") from None
    made = " ".join(text.split()[:2])
    keys.fingerprint(made)
    return made


def _remove(here: Clone, options: argparse.Namespace) -> int:
    state = book.latest(here, print_line).state
    policy, machine = state.policy, state.policy.machines.get(options.name)
    if options.compromised_since is not None:
        return _compromised(here, options, state)
    if options.name not in {*policy.people, *policy.machines}:
        known = ", ".join([*policy.people, *policy.machines]) or "nobody"
        raise UserError(f"{options.name} is not enrolled. There are: {known}.")
    who = signer(here, options)
    change = RemoveMachine(name=options.name) if machine else Remove(name=options.name)
    acts.change(here, change, who, options.reason, print_line)
    print_line(f"Removed {options.name}. What they signed before stays signed.")
    return 0


def _compromised(here: Clone, options: argparse.Namespace, state: State) -> int:
    """Mark keys of somebody who is enrolled, or was: all of them, or the one that is named."""
    held = keys_of(state.signers, options.name)
    if not held:
        raise UserError(f"{options.name} was never enrolled. See who was: {commands.command('ledger')}")
    if options.compromised_key and options.compromised_key not in held:
        raise UserError(f"{options.compromised_key} is not a key of {options.name}, who has {', '.join(held)}.")
    wanted = [options.compromised_key] if options.compromised_key else held
    changes = [acts.enrolled(Compromised, key=key, since=options.compromised_since) for key in wanted]
    policy = state.policy
    for change in changes:  # all of them, before the first is signed
        policy = changed(policy, change)
    who = signer(here, options)
    for change in changes:
        acts.change(here, change, who, options.reason, print_line)
    gone = options.name not in {*policy.people, *policy.machines}
    print_line(
        f"{'Removed ' + options.name if gone else options.name + ' stays, with another key'}. What "
        f"{', '.join(wanted)} signed since entry {options.compromised_since} is doubtful."
    )
    return 0


def _list(here: Clone, options: argparse.Namespace) -> int:
    state = book.read(here, report_line=print_line).state
    if not state.number:
        print_line("There is no ledger yet. It begins with the first request; the first to decide becomes its owner.")
        return 0
    for name, person in state.policy.people.items():
        print_line(f"{name}  {', '.join(person.roles)}  {' '.join(person.keys)}")
    if not state.policy.people:
        print_line("Nobody is enrolled yet: the first to decide becomes the owner.")
    for name, key in state.policy.machines.items():
        print_line(f"{name}  machine  {key}")
    for key, since in state.policy.compromised.items():
        print_line(f"{key}  compromised since entry {since}")
    for model, rules in {"every model": state.policy.rules, **state.policy.models}.items():
        eyes = "four eyes" if rules.four_eyes else "own runs may be approved"
        days = f"a request waits {rules.request_days:g} days, an approval counts {rules.approval_days:g}"
        print_line(f"rules of {model}: approvers {rules.approvers}, {eyes}; {days}")
    return 0
