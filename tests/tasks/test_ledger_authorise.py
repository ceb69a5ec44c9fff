"""tasks/ledger/authorise.py: whatever people and machines propose in whatever order, only what the
rules allow stands.

Random histories (tests/ledger_world.py), judged again here from the entries alone: this file counts
approvals, rejections and champions by itself and does not ask State.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ledger_world
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_world import HASHES, Story

from tasks.ledger import authorise, book, statement
from tasks.ledger.authorise import Proposal
from tasks.ledger.entry import (
    Approval,
    Entry,
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
from tasks.ledger.facts import RequestState
from tasks.ledger.keys import Key
from tasks.ledger.policy import (
    Compromised,
    Enrol,
    EnrolMachine,
    Policy,
    Remove,
    Rules,
    SetRules,
    SetThresholds,
    changed,
)
from tasks.ledger.state import State
from tasks.ledger.statement import Content

STEPS = 130


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Key]:
    return ledger_world.cast(tmp_path_factory.mktemp("keys"))


class Auditor:
    """Keeps its own books, from the entries and statements alone, and asserts the rules."""

    def __init__(self) -> None:
        self.policy, self.genesis = Policy(), ""
        self.requests: dict[int, tuple[Request, str, str | None]] = {}
        self.approvals: dict[int, tuple[int, Any]] = {}
        self.overrides: list[tuple[int, Any]] = []
        self.rejected: set[tuple[str, str, str]] = set()
        self.rejections: dict[int, tuple[str, str, str]] = {}
        self.champion: dict[str, list[int]] = {}
        self.pairs: dict[int, tuple[str, str, str]] = {}
        self.spent: set[int] = set()
        self.looks: dict[int, tuple[tuple[Any, ...], int]] = {}
        self.by_policy: set[int] = set()
        self.opened: set[tuple[str, str]] = set()
        self.erased: set[str] = set()
        self.seen: Counter[str] = Counter()
        self.time = ""

    def watch(self, before: State, proposal: Proposal, entry: Entry) -> None:
        act, verified_statement = entry.act, proposal.verified_statement
        assert entry.time >= self.time, "time goes back"
        self.time = entry.time
        if verified_statement is not None:
            assert verified_statement.statement.id not in self.seen, "a statement counts twice"
            assert verified_statement.statement.ledger == self.genesis
            assert entry.time <= verified_statement.statement.expires
            self.seen[verified_statement.statement.id] += 1
        if not isinstance(act, Genesis):
            enrols = act.change if isinstance(act, PolicyChange) else None
            known = proposal.machine in self.policy.machines.values()
            assert known or isinstance(enrols, EnrolMachine), "an unknown machine"
        match act:
            case Genesis():
                self.policy = self.policy.model_copy(update={"people": {}, "machines": {}})
                self.policy = changed(self.policy, EnrolMachine(name=entry.machine, key=act.machine))
                self.genesis = entry.id
            case PolicyChange(change=SetThresholds()) if verified_statement is None:
                assert not self.policy.holders("owner"), "thresholds without an owner"
                self.policy = changed(self.policy, act.change)
            case PolicyChange():
                assert verified_statement is not None
                first = not self.policy.holders("owner")
                assert first or self.may(verified_statement, "owner"), "policy without an owner"
                assert not first or isinstance(act.change, Enrol), "the first change enrols the first owner"
                self.policy = changed(self.policy, act.change)
                assert self.policy.holders("owner"), "nobody is in charge"
            case Registration():
                assert verified_statement is None
                line = self.champion.get(act.model, [])
                assert act.champion == (line[-1] if line else 0), "a look at what is not served"
                assert (act.model, act.test_sha256) not in self.opened, "a look at an opened test set"
                assert act.test_sha256 not in self.erased, "a look that nobody could count"
                what = act.model, act.champion, frozenset(act.candidates), act.test_sha256
                others = {look for other, look in self.looks.values() if other[3] == act.test_sha256 and other != what}
                assert act.look > max(others, default=0) or any(other == what for other, _ in self.looks.values())
                if act.model not in self.policy.thresholds:
                    change = SetThresholds(model=act.model, settings=act.settings)
                    self.policy = changed(self.policy, change)
                self.looks[entry.number] = what, act.look
                if act.settings == self.policy.thresholds[act.model]:
                    self.by_policy.add(entry.number)
            case Request():
                model, served, candidates, test = self.looks[act.registration][0]
                assert act.registration in self.by_policy, "a request under other thresholds"
                assert (model, served, test) == (act.model, act.champion, act.content.test_sha256)
                assert act.content.pair in candidates, "a request of what nobody registered"
                assert (model, test) not in self.opened, "a request after its test set was opened"
                starter = verified_statement.person if verified_statement else None
                self.requests[entry.number] = act, entry.id, starter
                assert (act.model, *act.content.pair) not in self.rejected
            case Opened():
                assert verified_statement is None
                self.opened.add((act.model, act.test_sha256))
            case Erasure():
                assert self.may(verified_statement, "owner") or not self.policy.holders("owner")
                self.erased.add(self.looks[act.registration][0][3])
            case Approval():
                assert self.may(verified_statement, "owner", "approver")
                assert verified_statement is not None
                asked, request, _ = self.requests[act.request]
                assert (verified_statement.statement.request, verified_statement.statement.content) == (
                    request,
                    asked.content,
                )
                self.approvals[entry.number] = act.request, verified_statement
            case Override():
                assert self.may(verified_statement, "owner")
                self.overrides.append((act.request, verified_statement))
            case Rejection():
                assert self.may(verified_statement, "owner", "approver")
                asked = self.requests[act.request][0]
                self.rejections[entry.number] = asked.model, *asked.content.pair
                self.rejected.add(self.rejections[entry.number])
            case Lift():
                assert self.may(verified_statement, "owner", "approver")
                self.rejected.remove(self.rejections[act.rejection])
            case Promotion():
                self.promotion(entry, act)
            case Rollback():
                assert self.may(verified_statement, "owner", "approver")
                line = self.champion[act.model]
                assert act.before == line.pop(), "what is rolled back is what is served"
                assert act.to == (line[-1] if line else 0), "and what it replaced is served again"
                assert self.pairs.get(act.to) not in self.rejected, "a rejected pair is served again"
            case Reconcile():
                assert verified_statement is None

    def may(self, verified_statement: Any, *roles: str) -> bool:
        person = self.policy.people.get(verified_statement.person) if verified_statement else None
        return person is not None and verified_statement.key in person.keys and bool({*person.roles} & {*roles})

    def promotion(self, entry: Entry, act: Promotion) -> None:
        asked, _, starter = self.requests[act.request]
        rules = self.policy.rules_of(asked.model)
        assert (asked.model, *asked.content.pair) not in self.rejected, "a rejected pair is promoted"
        assert entry.time <= asked.expires, "an expired request is promoted"
        people = set[str]()
        for number in act.approvals:
            request, verified_statement = self.approvals[number]
            assert request == act.request
            assert number not in self.spent, "an approval counts for two promotions"
            assert self.may(verified_statement, "owner", "approver"), "an approver without the role"
            assert verified_statement.statement.ledger == self.genesis, "an approval from before a restart"
            assert entry.time <= verified_statement.statement.expires, "an expired approval"
            assert entry.time <= statement.later(verified_statement.statement.time, days=rules.approval_days)
            assert not (rules.four_eyes and starter == verified_statement.person), "four eyes"
            people.add(verified_statement.person)
            self.spent.add(number)
        needed = rules.approvers + (rules.four_eyes and starter is None)
        assert len(people) == len(act.approvals) >= needed, "too few different approvers"
        if asked.edits_sha256 is not None:
            assert any(
                request == act.request and self.may(verified_statement, "owner")
                for request, verified_statement in self.overrides
            )
        line = self.champion.setdefault(act.model, [])
        assert act.before == asked.champion == (line[-1] if line else 0), "one champion per model"
        line.append(entry.number)
        self.pairs[entry.number] = (asked.model, *asked.content.pair)

    def agrees(self, state: State) -> None:
        for model, line in self.champion.items():
            assert state.champion(model) == (line[-1] if line else 0)
        assert {*state.rejected} == self.rejected
        assert state.policy == self.policy


def played(story: Story, steps: int = STEPS) -> Auditor:
    auditor = Auditor()
    story.watch = auditor.watch
    for _ in range(steps):
        story.step()
    auditor.agrees(story.state)
    return auditor


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_whatever_is_proposed_only_what_the_rules_allow_stands(seed: int, cast: dict[str, Key]) -> None:
    played(Story(random.Random(seed), cast))


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(rng=st.randoms(use_true_random=False))
def test_hypothesis_looks_for_the_shortest_wrong_history(rng: random.Random, cast: dict[str, Key]) -> None:
    played(Story(rng, cast), steps=30)


@pytest.mark.slow
def test_the_histories_contain_everything(cast: dict[str, Key]) -> None:
    kinds, doubtful, refused = Counter[str](), Counter[str](), list[str]()
    for seed in (*range(40), 159):  # 159 returns to what was rejected, which is rare
        story = Story(random.Random(seed), cast)
        played(story, steps=220)
        story.suspect()
        kinds.update(line.entry.act.kind for line in story.lines)
        rests = [number for number, why in story.state.doubtful().items() if why.path]
        doubtful.update(story.lines[number - 1].entry.act.kind for number in rests)
        refused += story.refused
    missing = {"genesis", "policy", "request", "approval", "rejection", "lift", "override", "promotion", "rollback"}
    missing |= {"reconcile", "registration", "opened", "erasure"}
    assert not missing - {*kinds}
    assert kinds["promotion"] > 20
    assert kinds["genesis"] > 45, "restarts"
    assert {*doubtful} >= {"policy", "request", "approval", "rejection", "override", "promotion", "rollback"}
    assert any("cannot serve again: this prompt and these weights" in why for why in refused)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_what_is_let_stand_before_it_is_written_stands_when_it_is_read(
    seed: int, cast: dict[str, Key], tmp_path: Path
) -> None:
    clone = ledger_world.make_clone(tmp_path / "clone")
    story = Story(random.Random(seed), cast, clone.git("rev-parse", "main"), signs=True)
    while len(story.lines) < 15:
        story.step()
    ledger_world.write(clone, story)
    assert book.read(clone, reverify=True).state == story.state
    assert book.read(clone).state == story.state


# -- one rule at a time ----------------------------------------------------------------------------
@pytest.fixture
def story(cast: dict[str, Key]) -> Iterator[Story]:
    """ada owns, bob and cleo approve."""
    made = Story(random.Random(0), cast)
    auditor = Auditor()
    made.watch = auditor.watch
    made.open()
    for name in ("bob", "cleo"):
        assert made.change(Enrol(name=name, roles=["approver"], key=cast[name].public), "ada")
    yield made
    auditor.agrees(made.state)


def make_request(story: Story, run: str = "r", starter: str | None = None, **other: Any) -> RequestState:
    content = Content(
        decision_sha256=HASHES[0],
        prompt_sha256=other.pop("prompt", HASHES[0]),
        weights_sha256=HASHES[1],
        base_sha256=None,
        test_sha256=HASHES[0],
    )
    made: dict[str, Any] = {"model": "tiny", "run": run, "revision": "e" * 40, "candidate": "challenger"}
    made |= {"content": content, "champion": story.state.champion("tiny"), "edits_sha256": None, "key": run}
    made |= {"started_by": "Ada", "expires": statement.later(story.time, days=20)}
    made |= {"registration": story.look(other.get("model", "tiny"), content)}
    about = {"act": "start", "run": run, "model": "tiny"} if starter else {}
    machine = other.pop("machine", "laptop")
    assert story.propose(Request.model_validate(made | other), machine, starter, **about), story.refused
    return story.state.requests[story.state.number]


def sign(
    story: Story, kind: type[Approval | Rejection | Override], request: RequestState, who: str, **other: Any
) -> bool:
    act = {Approval: "approve", Rejection: "reject", Override: "override"}[kind]
    about = {"act": act, "model": "tiny", "request": request.id, "content": request.act.content}
    about |= {"overrides": ["dirty"]} if kind is Override else {}
    return story.propose(kind(model="tiny", request=request.number), "laptop", who, **about | other)


def promote(story: Story, request: RequestState) -> bool:
    found = authorise.approval_status(story.state, request, story.time)
    act = Promotion(
        model="tiny",
        request=request.number,
        approvals=[approval.number for approval in found.counting],
        before=story.state.champion("tiny"),
        weights_signature=None,
        smoke="",
    )
    return story.propose(act)


def refused(story: Story, stands: bool, why: str) -> None:
    assert not stands
    assert why in story.refused[-1]


def test_two_approvers_are_two_people(story: Story) -> None:
    story.change(SetRules(model=None, rules=Rules(approvers=2)), "ada")
    request = make_request(story)
    assert sign(story, Approval, request, "bob")
    refused(story, promote(story, request), "1 of 2 approvals (bob")
    refused(story, sign(story, Approval, request, "bob"), "bob approved run r already, and a person counts once")
    assert sign(story, Approval, request, "cleo")
    assert promote(story, request)


def test_four_eyes_need_another_person_and_one_more_when_the_starter_is_unknown(story: Story) -> None:
    story.change(SetRules(model=None, rules=Rules(four_eyes=True)), "ada")
    known, unknown = make_request(story, "known", starter="bob"), make_request(story, "unknown", prompt=HASHES[2])
    refused(story, sign(story, Approval, known, "bob"), "bob started run known. Somebody else must approve it.")
    refused(story, sign(story, Approval, unknown, "ada"), "ada started run unknown")
    assert sign(story, Approval, unknown, "cleo")
    refused(story, promote(story, unknown), "1 of 2 approvals")
    assert sign(story, Approval, known, "ada")
    assert promote(story, known)


def test_approval_ends_with_its_time_its_role_its_key_and_the_rules(story: Story, cast: dict[str, Key]) -> None:
    request = make_request(story)
    assert sign(story, Approval, request, "bob", expires=statement.later(story.time, days=3))
    began = story.time
    story.time = statement.later(began, days=4)
    refused(story, promote(story, request), "0 of 1 approvals")
    assert sign(story, Approval, request, "bob", expires=statement.later(story.time, days=300))
    story.time = statement.later(story.time, days=8)  # rules.approval_days is 7
    refused(story, promote(story, request), "0 of 1 approvals")
    assert sign(story, Approval, request, "bob")
    assert story.change(Remove(name="bob"), "ada")
    refused(story, promote(story, request), "0 of 1 approvals")
    assert sign(story, Approval, request, "cleo")
    assert story.change(Compromised(key=cast["cleo"].fingerprint, since=1), "ada")
    refused(story, promote(story, request), "0 of 1 approvals")
    assert sign(story, Approval, request, "ada")
    assert promote(story, request)


def test_request_waits_no_longer_than_the_rules_allow(story: Story) -> None:
    late = {"expires": statement.later(story.time, days=31)}
    with pytest.raises(AssertionError, match="the rules let it wait until"):
        make_request(story, **late)
    request = make_request(story)
    story.time = statement.later(story.time, days=21)
    refused(story, sign(story, Approval, request, "bob"), "the request of run r expired")


def test_no_holds_for_the_pair_in_whatever_run_until_it_is_lifted(story: Story) -> None:
    first, second = make_request(story, "first"), make_request(story, "second")
    assert sign(story, Approval, second, "ada")
    assert sign(story, Rejection, first, "bob")
    refused(story, promote(story, second), "were rejected by bob")
    with pytest.raises(AssertionError, match="rejected by bob"):
        make_request(story, "third")
    number, pair = story.state.number, list(first.act.content.pair)
    lift = {"act": "lift", "model": "tiny", "pair": pair, "rejection": story.state.ids[number]}
    assert story.propose(Lift(model="tiny", rejection=number), "laptop", "ada", **lift)
    assert sign(story, Rejection, second, "cleo")
    old = story.propose(Lift(model="tiny", rejection=number), "laptop", "ada", **lift)
    refused(story, old, f"entry {number} is not a rejection that holds")
    newest = Lift(model="tiny", rejection=story.state.number)
    refused(story, story.propose(newest, "laptop", "ada", **lift), "about another rejection")
    again = lift | {"rejection": story.state.ids[newest.rejection]}
    assert story.propose(newest, "laptop", "ada", **again)
    assert promote(story, second)


def test_uncommitted_code_needs_an_owner_who_is_still_one(story: Story, cast: dict[str, Key]) -> None:
    request = make_request(story, edits_sha256=HASHES[3], edited=["a.py"])
    assert sign(story, Approval, request, "bob")
    refused(story, promote(story, request), "ran uncommitted code (a.py)")
    refused(story, sign(story, Override, request, "cleo"), "cleo is approver, and to override takes the role owner")
    story.change(Enrol(name="dora", roles=["owner"], key=cast["dora"].public), "ada")
    assert sign(story, Override, request, "dora")
    story.change(Remove(name="dora"), "ada")
    refused(story, promote(story, request), "ran uncommitted code")
    assert sign(story, Override, request, "ada")
    assert promote(story, request)


def test_of_two_rivals_the_second_is_refused_and_a_rollback_returns_to_what_was_replaced(story: Story) -> None:
    first, second = make_request(story, "first"), make_request(story, "second", prompt=HASHES[2])
    for request in (first, second):
        assert sign(story, Approval, request, "bob")
    assert promote(story, first)
    champion = story.state.champion("tiny")
    refused(story, promote(story, second), f"but champion {champion} is served now")
    about = {"act": "rollback", "model": "tiny", "champion": story.state.promotions[champion].id}
    back = Rollback(model="tiny", before=champion, to=0)
    refused(story, story.propose(back, "laptop"), "to rollback needs a signed statement")
    assert story.propose(back, "laptop", "bob", **about)
    refused(story, story.propose(back, "laptop", "bob", **about), "tiny is at its beginning")
    assert promote(story, second)


def test_statement_is_not_used_up_where_nobody_asks_for_one(story: Story) -> None:
    note = Reconcile(model="tiny", projection="alias", found="1", set="2")
    refused(story, story.propose(note, "laptop", "ada", act="policy"), "it carries a person's statement")
    assert story.propose(note, "laptop")


def test_restart_empties_people_and_machines_and_keeps_champions_rules_and_rejections(
    story: Story, cast: dict[str, Key]
) -> None:
    story.change(SetRules(model=None, rules=Rules(four_eyes=True)), "ada")
    served = make_request(story, "served", starter="ada")
    assert sign(story, Approval, served, "bob")
    assert promote(story, served)
    champion = story.state.champion("tiny")
    request, rejected = (
        make_request(story, "waiting", prompt=HASHES[2], starter="ada"),
        make_request(story, "no", prompt=HASHES[3]),
    )
    assert sign(story, Approval, request, "bob")
    assert sign(story, Rejection, rejected, "bob")
    lost: dict[str, Any] = {"nonce": "n", "restarts": story.state.head, "reason": "lost"}
    old = {**lost, "restarts": HASHES[0]}
    refused(story, story.propose(Genesis(machine=cast["desk"].public, **old), "desk"), "a ledger has one genesis")
    assert story.propose(Genesis(machine=cast["desk"].public, **lost), "desk")
    state = story.state
    assert (state.champion("tiny"), state.since, [*state.policy.machines]) == (champion, state.number, ["desk"])
    assert state.policy.rules.four_eyes
    refused(story, promote(story, request), "this clone's machine key")
    assert story.change(Enrol(name="bob", roles=["owner"], key=cast["bob"].public), "bob", "desk")
    found = authorise.approval_status(story.state, request, story.time)
    assert not found.counting, "an approval from before the restart"
    with pytest.raises(AssertionError, match="this clone's machine"):
        make_request(story, "again", prompt=HASHES[3])
    assert len(story.state.rejected) == 1


# -- what is served again --------------------------------------------------------------------------
def back(story: Story, who: str = "bob") -> bool:
    """Roll back to what the champion replaced."""
    now = story.state.champion("tiny")
    to = story.state.promotions[now].before
    ids = [story.state.promotions[each].id if each else None for each in (now, to)]
    about = {"act": "rollback", "model": "tiny", "champion": ids[0], "to": ids[1]}
    return story.propose(Rollback(model="tiny", before=now, to=to), "laptop", who, **about)


def take_back(story: Story, who: str = "ada") -> bool:
    """Lift the newest rejection."""
    number = max(story.state.rejections)
    model, *pair = story.state.rejections[number]
    about = {"act": "lift", "model": model, "pair": pair, "rejection": story.state.ids[number]}
    return story.propose(Lift(model=model, rejection=number), "laptop", who, **about)


def serve(story: Story, request: RequestState, who: str = "bob") -> int:
    assert sign(story, Approval, request, who), story.refused
    assert promote(story, request), story.refused
    return story.state.number


def test_rollback_does_not_return_to_what_was_rejected_since(story: Story) -> None:
    first = make_request(story, "first")
    number = serve(story, first)
    serve(story, make_request(story, "second", prompt=HASHES[2]))
    serve(story, make_request(story, "third", prompt=HASHES[3]))
    assert sign(story, Rejection, first, "cleo")
    assert back(story), "from the third to the second"
    refused(story, back(story), f"champion {number} cannot serve again: this prompt and these weights of tiny were")
    assert "rft reject first --lift" in story.refused[-1]
    assert take_back(story)
    assert back(story)
    assert back(story), "to the beginning, of whose prompt and weights nobody can say no"


# -- what rests on a stolen key --------------------------------------------------------------------
def doubtful_entries(story: Story, key: Key, since: int, who: str = "dora") -> dict[int, tuple[int, ...]]:
    """What is doubtful once an owner with another key says so: entry -> through which others."""
    assert story.change(Compromised(key=key.fingerprint, since=since), who), story.refused
    found = story.state.doubtful()
    assert {why.key for why in found.values()} <= {key.fingerprint}
    assert {why.since for why in found.values()} <= {since}
    return {number: why.path for number, why in found.items()}


@pytest.fixture
def owners(story: Story, cast: dict[str, Key]) -> Story:
    """dora is an owner too, enrolled in good time."""
    assert story.change(Enrol(name="dora", roles=["owner"], key=cast["dora"].public), "ada")
    return story


def test_doubt_follows_people_whom_a_stolen_key_enrolled_and_what_they_signed(
    owners: Story, cast: dict[str, Key]
) -> None:
    story = owners
    good = serve(story, make_request(story, "good"))
    assert story.change(Enrol(name="bob", roles=["owner"], key=cast["bob"].public), "ada")
    stolen = story.state.number
    assert story.change(Enrol(name="cleo", roles=["owner"], key=cast["cleo"].public), "bob")
    passed_on = story.state.number
    request = make_request(story, "bad", prompt=HASHES[2])
    bad = serve(story, request, "cleo")
    assert back(story, "cleo")
    withdrawn = story.state.number
    found = doubtful_entries(story, cast["ada"], stolen)
    through = (passed_on, stolen)
    assert found == {stolen: (), passed_on: (stolen,), bad - 1: through, bad: through, withdrawn: through}
    assert good not in found
    text = str(story.state.doubtful()[bad])
    assert text == (
        f"rests on entry {passed_on}, and that on entry {stolen}, signed with key {cast['ada'].fingerprint}, "
        f"compromised since entry {stolen}"
    )
    assert story.change(Enrol(name="cleo", roles=["approver"], key=cast["cleo"].public), "dora")
    serve(story, make_request(story, "after", prompt=HASHES[3]), "cleo")
    assert {*story.state.doubtful()} == {*found}, "whom a good owner enrols again is beyond doubt"


def test_doubt_follows_an_override_but_not_one_that_did_not_stand(owners: Story, cast: dict[str, Key]) -> None:
    story = owners
    dirty = {"edits_sha256": HASHES[3], "edited": ["a.py"]}
    one, other = make_request(story, "one", **dirty), make_request(story, "other", prompt=HASHES[2], **dirty)
    assert sign(story, Override, one, "ada")
    override = story.state.number
    assert sign(story, Override, other, "ada")
    promoted = serve(story, one)
    assert back(story)
    found = doubtful_entries(story, cast["ada"], override)
    assert found == {override: (), override + 1: (), promoted: (override,)}
    assert sign(story, Override, other, "dora")
    assert serve(story, other) not in story.state.doubtful()


def test_doubt_follows_a_lift_and_the_rules_and_ends_with_the_next_ones(owners: Story, cast: dict[str, Key]) -> None:
    story = owners
    first = make_request(story, "first")
    assert sign(story, Rejection, first, "bob")
    no = story.state.number
    assert take_back(story)
    lift = story.state.number
    promoted = serve(story, first)
    assert story.change(SetRules(model="tiny", rules=Rules(approval_days=6)), "ada")
    rules = story.state.number
    assert sign(story, Approval, make_request(story, "second", prompt=HASHES[2]), "bob")
    request = story.state.requests[story.state.number - 1]
    other = make_request(story, "other", model="icd10", champion=0)
    assert story.change(SetRules(model="tiny", rules=Rules(approvers=1)), "dora")
    again = story.state.number
    assert promote(story, request)
    found = doubtful_entries(story, cast["ada"], lift)
    assert found == {
        lift: (),
        promoted - 1: (lift,),
        promoted: (lift,),
        rules: (),
        request.number: (rules,),
        request.number + 1: (rules,),
        again + 1: (request.number, rules),
    }
    assert no not in found, "a lift is for the rejected; the rejection itself stands as it was signed"
    assert other.number not in found, "of another model"


def test_doubt_follows_a_machine_and_a_request_that_it_made(owners: Story, cast: dict[str, Key]) -> None:
    story = owners
    assert story.change(EnrolMachine(name="desk", key=cast["desk"].public), "ada")
    stolen = story.state.number
    assert story.propose(Reconcile(model="tiny", projection="alias", found="1", set="2"), "desk")
    noted = story.state.number
    asked = make_request(story, machine="desk")
    first = serve(story, asked)
    second = serve(story, make_request(story, "second", prompt=HASHES[2]))
    assert back(story)
    returned = story.state.number
    found = doubtful_entries(story, cast["ada"], stolen)
    assert {*found} == {stolen, noted, asked.number, first - 1, first, returned}
    assert found[returned] == (first, asked.number, stolen), "it returned to a doubtful champion"
    assert second not in found, "it replaced one"


# -- test sets that are retired --------------------------------------------------------------------
def open_test(story: Story, number: int, **other: Any) -> bool:
    look = story.state.looks[number].act
    made: dict[str, Any] = {"model": look.model, "run": "r", "test_sha256": look.test_sha256, "examples": look.examples}
    made |= {"registration": number, "who": "Ada", "reason": "what went wrong?"}
    return story.propose(Opened.model_validate(made | other))


def test_an_opened_test_set_leads_to_no_later_look_and_no_later_request(story: Story) -> None:
    request = make_request(story)
    look = request.act.registration
    assert open_test(story, look)
    opened = story.state.number
    refused(story, open_test(story, look), "the test set of run r was opened before")
    assert open_test(story, look, run="s", registration=0), "of another run that saw it"
    refused(story, open_test(story, look, run="t", registration=opened), "registers no look of tiny")
    refused(story, open_test(story, look, run="t", model="icd10"), "registers no look of icd10")
    again = request.act.model_copy(update={"run": "later"})
    refused(story, story.propose(again), f"entry {opened} opened the test set of run later before anybody was asked")
    fresh = ledger_world.look_at(
        story.state, "tiny", request.act.content.model_copy(update={"weights_sha256": HASHES[2]})
    )
    refused(story, story.propose(fresh), f"is retired: entry {opened} opened it: Ada read rollouts of run r")
    other = ledger_world.look_at(story.state, "icd10", request.act.content)
    refused(story, story.propose(other), f"is retired: entry {opened} opened it")
    assert sign(story, Approval, request, "bob")
    assert promote(story, request), "it was judged before the set was opened"


def test_an_erasure_is_signed_by_an_owner_and_retires_the_set(story: Story) -> None:
    request = make_request(story)
    number = request.act.registration
    made = Erasure(model="tiny", registration=number, reason="the window is past its time")
    about = {"act": "erase", "model": "tiny", "registration": story.state.ids[number], "reason": made.reason}
    refused(story, story.propose(made), "to erase needs a signed statement")
    refused(story, story.propose(made, "laptop", "bob", **about), "to erase takes the role owner")
    other = about | {"registration": story.state.head}
    refused(story, story.propose(made, "laptop", "ada", **other), "the statement is about another erasure")
    wrong = made.model_copy(update={"registration": request.number})
    refused(story, story.propose(wrong, "laptop", "ada", **about), f"entry {request.number} registers no look of tiny")
    assert story.propose(made, "laptop", "ada", **about)
    erased = story.state.number
    refused(story, story.propose(made, "laptop", "ada", **about), f"entry {erased} erased the list of these examples")
    for model in ("tiny", "icd10"):
        again = ledger_world.look_at(story.state, model, request.act.content)
        refused(story, story.propose(again), f"is retired: entry {erased} erased the list of its examples")
    assert sign(story, Approval, request, "bob")
    assert promote(story, request), "the look was counted when it was made"


def test_a_machine_alone_erases_while_nobody_is_enrolled(cast: dict[str, Key]) -> None:
    story = Story(random.Random(0), cast)
    story.begin()
    content = Content(
        decision_sha256=HASHES[0],
        prompt_sha256=HASHES[0],
        weights_sha256=HASHES[1],
        base_sha256=None,
        test_sha256="f" * 64,
    )
    number = story.look("tiny", content)
    assert story.propose(Erasure(model="tiny", registration=number, reason="past its time"))
    assert story.state.erased[story.state.number].number == number
