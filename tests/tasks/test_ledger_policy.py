"""tasks/ledger/policy.py: what a change makes of people, machines and rules; which are refused."""

from __future__ import annotations

from pathlib import Path

import ledger_world
import pytest
from pydantic import ValidationError

from rft.errors import UserError
from tasks.ledger.keys import Key
from tasks.ledger.policy import (
    Compromised,
    Enrol,
    EnrolMachine,
    Policy,
    Remove,
    RemoveMachine,
    Rules,
    SetRules,
    changed,
    name_from,
    signers,
)


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Key]:
    return ledger_world.cast(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def policy(cast: dict[str, Key]) -> Policy:
    made = changed(Policy(), EnrolMachine(name="laptop", key=cast["laptop"].public))
    return changed(made, Enrol(name="ada", roles=["owner"], key=cast["ada"].public))


def test_key_has_one_holder(policy: Policy, cast: dict[str, Key]) -> None:
    ada, laptop = cast["ada"].public, cast["laptop"].public
    for change in (
        Enrol(name="bob", roles=["approver"], key=ada),
        Enrol(name="bob", roles=["approver"], key=laptop),
        EnrolMachine(name="desk", key=ada),
    ):
        with pytest.raises(UserError, match=r"belongs to .* already. One key has one holder"):
            changed(policy, change)
    for change in (Enrol(name="laptop", roles=["owner"], key=laptop), EnrolMachine(name="ada", key=ada)):
        with pytest.raises(UserError, match="Choose another"):
            changed(policy, change)


def test_further_key_and_other_roles_of_a_person(policy: Policy, cast: dict[str, Key]) -> None:
    both = changed(policy, Enrol(name="ada", roles=["author", "owner"], key=cast["bob"].public))
    assert both.people["ada"].roles == ["owner", "author"]
    assert both.person_of(cast["ada"].fingerprint) == both.person_of(cast["bob"].fingerprint) == "ada"


def test_somebody_stays_in_charge_on_some_machine(policy: Policy, cast: dict[str, Key]) -> None:
    for change in (
        Remove(name="ada"),
        Enrol(name="ada", roles=["author"], key=cast["ada"].public),
        Compromised(key=cast["ada"].fingerprint, since=1),
    ):
        with pytest.raises(UserError, match="that would leave no owner"):
            changed(policy, change)
    for change in (RemoveMachine(name="laptop"), Compromised(key=cast["laptop"].fingerprint, since=1)):
        with pytest.raises(UserError, match="that would leave no machine"):
            changed(policy, change)


def test_compromised_key_is_gone_for_ever(policy: Policy, cast: dict[str, Key]) -> None:
    made = changed(policy, Enrol(name="bob", roles=["approver"], key=cast["bob"].public))
    made = changed(made, Compromised(key=cast["bob"].fingerprint, since=7))
    assert "bob" not in made.people
    assert changed(made, Compromised(key=cast["bob"].fingerprint, since=9)).compromised[cast["bob"].fingerprint] == 7
    with pytest.raises(UserError, match="is marked as compromised and cannot be enrolled again"):
        changed(made, Enrol(name="bob", roles=["approver"], key=cast["bob"].public))


def test_keys_are_never_deleted_from_allowed_signers(cast: dict[str, Key]) -> None:
    enrolled = Enrol(name="bob", roles=["approver"], key=cast["bob"].public)
    text = signers(signers(b"", enrolled), EnrolMachine(name="desk", key=cast["desk"].public))
    for change in (
        Remove(name="bob"),
        enrolled,
        Compromised(key=cast["bob"].fingerprint, since=1),
        RemoveMachine(name="desk"),
    ):
        assert signers(text, change) == text
    assert text.decode().splitlines() == [
        f'bob namespaces="rft-act" {cast["bob"].public}',
        f'desk namespaces="git" {cast["desk"].public}',
    ]


def test_rules_of_a_model_stand_beside_those_of_all(policy: Policy) -> None:
    made = changed(policy, SetRules(model="tiny", rules=Rules(approvers=2)))
    made = changed(made, SetRules(model=None, rules=Rules(four_eyes=True)))
    assert (made.rules_of("tiny").approvers, made.rules_of("tiny").four_eyes) == (2, False)
    assert (made.rules_of("icd10").approvers, made.rules_of("icd10").four_eyes) == (1, True)


@pytest.mark.parametrize("name", ["Ada", "a b", "a,b", "*", "!a", "", "a" * 65, 'a"', "a\nb"])
def test_name_is_a_plain_principal(name: str, cast: dict[str, Key]) -> None:
    with pytest.raises(ValidationError):
        Enrol(name=name, roles=["owner"], key=cast["ada"].public)


@pytest.mark.parametrize(
    "key", ["", "ssh-ed25519", "ssh-ed25519 A\nB", "ssh-ed25519 AAAA x", "cert-authority ssh-ed25519 AA"]
)
def test_key_is_two_words(key: str) -> None:
    with pytest.raises(ValidationError):
        Enrol(name="ada", roles=["owner"], key=key)


def test_name_from_a_persons_name() -> None:
    assert [name_from(name) for name in ("Ada Lovelace", "josé", "***", "-x")] == [
        "ada-lovelace",
        "jos",
        "someone",
        "x",
    ]


def test_unknown_people_and_machines_are_named(policy: Policy, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no person 'bob' is enrolled. There are: ada"):
        changed(policy, Remove(name="bob"))
    with pytest.raises(UserError, match=r"no machine 'desk' is enrolled. There are: laptop"):
        changed(policy, RemoveMachine(name="desk"))
