"""An entry in one line, for people."""

from __future__ import annotations

import json

from tasks.ledger import chain
from tasks.ledger.chain import Stored
from tasks.ledger.entry import (
    Approval,
    Erasure,
    Genesis,
    Lift,
    Opened,
    Override,
    PolicyChange,
    Promotion,
    Reconcile,
    Registration,
    Rejection,
    Request,
    Rollback,
)
from tasks.ledger.policy import (
    Change,
    Compromised,
    Enrol,
    EnrolMachine,
    Remove,
    RemoveMachine,
    SetClocks,
    SetRules,
    SetThresholds,
)


def with_reason(each: Stored) -> str:
    statement = json.loads(each.files[chain.STATEMENT]) if chain.STATEMENT in each.files else {}
    why = f": {statement['reason']}" if statement.get("reason") else ""
    return f"{entry(each)}{why}"


def entry(each: Stored) -> str:
    match each.entry.act:
        case Genesis(restarts=None):
            return f"genesis {each.entry.id[:16]}, by machine {each.entry.machine}"
        case Genesis(restarts=old):
            return f"RESTARTED after entry {(old or '')[:16]}, whose owners' keys were lost: {each.entry.act.reason}"
        case PolicyChange(change=change):
            return f"policy: {_change(change)}"
        case Registration() as act:
            return f"{act.model}: look {act.look} at test {act.test_sha256[:12]}, by run {act.run}"
        case Opened() as act:
            what = f"test {act.test_sha256[:12]} is OPENED, and retired: {act.who} read rollouts of run {act.run}"
            return f"{act.model}: {what}: {act.reason}"
        case Erasure() as act:
            what = f"the list of examples of entry {act.registration} is ERASED, so their looks are counted no more"
            why = "" if chain.STATEMENT in each.files else f": {act.reason}"
            return f"{act.model}: {what}, and the set is retired{why}"
        case Request() as act:
            dirty = ", uncommitted code" if act.edits_sha256 else ""
            return f"{act.model}: request of run {act.run}, judged against {_champion(act.champion)}{dirty}"
        case Approval() as act:
            return f"{act.model}: approval of entry {act.request}"
        case Rejection() as act:
            return f"{act.model}: rejection of entry {act.request}"
        case Lift() as act:
            return f"{act.model}: the rejection of entry {act.rejection} is lifted"
        case Override() as act:
            return f"{act.model}: override for entry {act.request}, uncommitted code"
        case Promotion() as act:
            approvals = ", ".join(map(str, act.approvals))
            before = _champion(act.before)
            return f"{act.model}: PROMOTION of entry {act.request} by approvals {approvals}, in place of {before}"
        case Rollback() as act:
            return f"{act.model}: ROLLBACK to {_champion(act.to)}, away from {_champion(act.before)}"
        case Reconcile() as act:
            return f"{act.model}: {act.projection} showed {act.found}, set to {act.set}"


def _change(change: Change) -> str:
    match change:
        case Enrol():
            return f"{change.name} is enrolled as {' and '.join(change.roles)}"
        case EnrolMachine():
            return f"machine {change.name} is enrolled"
        case Remove() | RemoveMachine():
            return f"{change.name} is removed"
        case SetRules():
            rules = ", ".join(f"{key} {value}" for key, value in change.rules)
            return f"rules of {change.model or 'every model'}: {rules}"
        case SetThresholds():
            return f"thresholds of {change.model}"
        case SetClocks():
            return f"CLOCKS are not compared until {change.until}"
        case Compromised():
            return f"key {change.key} is COMPROMISED since entry {change.since}"


def _champion(number: int) -> str:
    return f"champion {number}" if number else "the beginning"
