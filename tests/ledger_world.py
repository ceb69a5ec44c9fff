"""Random histories of a ledger: who proposes what, without Git; and the same history as commits.

`Story` plays people and machines who propose acts, sensible ones and wrong ones. `authorise` judges
them, and `State` takes in what may stand: milliseconds per act, so that hypothesis can search. With
`signs`, statements are signed, and `write` makes the accepted acts into signed commits, past
`book`, as another program could: the figure `ledger_tamper` and the tests read those, and attack.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from rft import files
from rft.errors import UserError
from tasks.ledger import book, chain, keys, objects, remote, spending, statement, verify
from tasks.ledger.authorise import Proposal, Refused, approval_status, authorise
from tasks.ledger.entry import (
    Act,
    Approval,
    DvcFile,
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
from tasks.ledger.facts import Look, VerifiedStatement
from tasks.ledger.keys import Key
from tasks.ledger.policy import (
    ROLES,
    Compromised,
    Enrol,
    EnrolMachine,
    Remove,
    RemoveMachine,
    Role,
    Rules,
    SetClocks,
    SetRules,
    SetThresholds,
)
from tasks.ledger.state import State
from tasks.ledger.statement import Content, Statement
from tasks.runs.clone import Clone
from tasks.runs.git import git

MODELS = ("icd10", "tiny")
PEOPLE = ("ada", "bob", "cleo", "dora")
MACHINES = ("laptop", "server", "desk")
BEGAN = "2026-01-01T00:00:00Z"
HASHES = [digit * 64 for digit in "abcd"]
RETIRED = ("c" * 64, "d" * 64)
"""The test sets that are opened, and erased: with all retired, little would follow."""
REVISION = "e" * 40
SETTINGS = [files.canonical({"gate": {"looks": looks}, "challenger": {}}).decode() for looks in (1000, 3)]
"""Thresholds, of which the ledger reads the number of looks alone."""


# -- keys and clones -------------------------------------------------------------------------------
def make_key(folder: Path, name: str, kind: str = "ed25519") -> Key:
    folder.mkdir(parents=True, exist_ok=True)
    command = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", name, "-f", str(folder / name)]
    subprocess.run(command, check=True, capture_output=True)
    public = (folder / f"{name}.pub").read_text().split()
    return Key(f"{public[0]} {public[1]}", folder / name)


def cast(folder: Path) -> dict[str, Key]:
    """A key for each person and machine; `mallory` is nobody."""
    people = {name: make_key(folder, name) for name in (*PEOPLE, "mallory")}
    return people | {name: make_key(folder, name, "ecdsa") for name in MACHINES}


def make_clone(root: Path) -> Clone:
    root.mkdir(parents=True, exist_ok=True)
    clone = Clone(root)
    clone.git("init", "-q", "-b", "main")
    (root / ".gitignore").write_text(".rft/\n")
    clone.git("add", "-A")
    clone.git("commit", "-q", "-m", "start")
    clone.git("config", "gc.auto", "0")
    return clone


def copied(template: Path, root: Path, name: str) -> Clone:
    """A clone of a template, and its remote `origin`, in a folder of their own."""
    for each in (name, "origin"):
        if not (root / each).exists():
            shutil.copytree(template / each, root / each, symlinks=True)
    clone = Clone(root / name)
    clone.git("remote", "set-url", "origin", str(root / "origin"))
    return clone


def is_machine(clone: Clone, key: Key) -> None:
    """Give a clone its machine key."""
    folder = keys.folder(clone)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "machine").write_bytes(key.file.read_bytes())
    (folder / "machine").chmod(0o600)


def look_at(state: State, model: str, *contents: Content, **other: Any) -> Registration:
    """The registration of the next look at the test set of these contents, from what is served."""
    made: dict[str, Any] = {"model": model, "run": "r", "champion": state.champion(model), "settings": SETTINGS[0]}
    made |= {"candidates": [content.pair for content in contents], "test_sha256": contents[0].test_sha256}
    listed = hashlib.sha256(contents[0].test_sha256.encode()).hexdigest()  # a list for each test set
    made |= {"grader_sha256": HASHES[3], "measured_sha256": HASHES[3]}
    made |= {"examples": DvcFile(sha256=listed, md5="0" * 32, size=65), "look": 1}
    act = Registration.model_validate(made | other)
    past = spending.past(act, [look for look in state.looks.values() if look.act.test_sha256 == act.test_sha256])
    with contextlib.suppress(UserError):  # nothing is left of alpha
        act = act.model_copy(update={"level": spending.level(act, past)} if "level" not in other else {})
    if "look" in other:
        return act
    return act.model_copy(update={"look": past.look})


def look_of(state: State, model: str, content: Content) -> int:
    """The registration that a request may rest on; 0 where there is none."""
    able = (
        look.number
        for look in state.looks.values()
        if look.by_policy
        and (look.act.model, look.act.champion) == (model, state.champion(model))
        and look.act.test_sha256 == content.test_sha256
        and content.pair in look.act.candidates
    )
    return next(able, 0)


# -- a history -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Line:
    """An entry that was let stand, with the state before it."""

    entry: Entry
    machine: str
    """By its name in the cast."""
    parents: tuple[str, ...]
    files: dict[str, bytes]


@dataclass
class Story:
    rng: Random
    keys: dict[str, Key]
    revision: str = REVISION
    signs: bool = False
    state: State = field(default_factory=State)
    lines: list[Line] = field(default_factory=list[Line])
    refused: list[str] = field(default_factory=list[str])
    time: str = BEGAN
    watch: Callable[[State, Proposal, Entry], None] = lambda *_: None
    """Called before each entry is taken in."""
    denied: Callable[[State, Proposal], None] = lambda *_: None
    """Called for what is refused."""

    # -- proposing -----------------------------------------------------------------------------
    def begin(self, machine: str = "laptop") -> None:
        act = Genesis(machine=self.keys[machine].public, nonce=self._nonce())
        assert self.propose(act, machine)

    def open(self) -> None:
        """A genesis, and ada as its first owner."""
        self.begin()
        assert self.change(Enrol(name="ada", roles=["owner"], key=self.keys["ada"].public), "ada")

    def change(self, change: Any, signer: str, machine: str = "laptop") -> bool:
        return self.propose(PolicyChange(change=change), machine, signer, act="policy", change=change)

    def propose(self, made: Act, machine: str = "laptop", signer: str | None = None, **about: Any) -> bool:
        """Propose an act, with a statement of `signer` about `about`. Returns whether it stands."""
        key = self.keys[machine]
        to_sign, verified_statement = None, None
        if signer is not None:
            to_sign = self.statement(**about)
            verified_statement = self._verified_statement(signer, to_sign)
        return self._judged(made, machine, key, to_sign, signer, verified_statement)

    def statement(self, **about: Any) -> Statement:
        made = {"ledger": self.state.genesis, "reason": "because", "time": self.time, "nonce": self._nonce()}
        made |= {"expires": statement.later(self.time, days=self.rng.choice((1, 7)))}
        return Statement.model_validate(made | about)

    def _judged(
        self,
        act: Act,
        machine: str,
        key: Key,
        to_sign: Statement | None,
        signer: str | None,
        verified_statement: VerifiedStatement | None,
    ) -> bool:
        proposal = Proposal(act, self.time, key.fingerprint, verified_statement)
        try:
            authorise(self.state, proposal)
        except Refused as refused:
            self.refused.append(str(refused))
            self.denied(self.state, proposal)
            return False
        name = self.state.policy.machine_of(key.fingerprint) or machine
        files = verify.rules_after(self.state, act, machine if isinstance(act, Genesis) else name)
        if to_sign is not None and signer is not None:
            files |= {chain.STATEMENT: to_sign.content_bytes}
            if self.signs:
                signature = keys.sign(self.keys[signer], to_sign.content_bytes, keys.ACT)
                files |= {chain.SIGNATURE: signature.encode()}
        if isinstance(act, Promotion) and act.weights_signature:
            files |= {chain.WEIGHTS: b"signed"}
        entry = Entry(
            number=self.state.number + 1,
            previous=self.state.head or None,
            time=self.time,
            machine=machine if isinstance(act, Genesis) else name,
            act=act,
            files={file: objects.sha256(content) for file, content in files.items()},
        )
        self.watch(self.state, proposal, entry)
        parents = tuple(verify.carried_revisions(self.state, act))
        self.state.apply(entry, verified_statement, key.fingerprint)
        self.lines.append(Line(entry, machine, parents, files))
        return True

    def _verified_statement(self, signer: str, to_sign: Statement) -> VerifiedStatement:
        key = self.keys[signer].fingerprint
        person = self.state.policy.person_of(key)
        if person is None and not self.state.had_owner and isinstance(to_sign.change, Enrol):
            person = to_sign.change.name
        return VerifiedStatement(person or signer, key, to_sign)

    def _nonce(self) -> str:
        return f"{self.rng.getrandbits(128):032x}"

    def look(self, model: str, content: Content, machine: str = "laptop") -> int:
        """Register a look at this content, unless that was done. Returns its entry."""
        if not look_of(self.state, model, content):
            assert self.propose(look_at(self.state, model, content), machine), self.refused
        return look_of(self.state, model, content)

    # -- chance --------------------------------------------------------------------------------
    def step(self, restarts: bool = True) -> bool:
        """Let somebody propose something. Returns whether it stands."""
        rng, number = self.rng, len(self.state.requests)
        self.time = statement.later(self.time, seconds=rng.choice((0, 1, 60, 3600, 86_400, 400_000)))
        if not self.state.number:
            self.begin(rng.choice(MACHINES))
            return True
        if not self.state.had_owner and rng.random() < 0.7:
            name = rng.choice(PEOPLE)
            return self.change(Enrol(name=name, roles=["owner"], key=self.keys[name].public), name, self._machine())
        kinds = {self._people: 3, self._look: 5, self._request: 5, self._reconcile: 1}
        kinds |= {self._open: 1} if self._looks(RETIRED[0]) else {}
        kinds |= {self._erase: 1} if self._looks(RETIRED[1]) else {}
        kinds |= {self._thresholds: 1 if self.state.had_owner else 3}
        kinds |= {self._approval: 8, self._rejection: 2, self._override: 2, self._promotion: 8} if number else {}
        kinds |= {self._rollback: 5} if self.state.promotions else {}
        kinds |= {self._lift: 2} if self.state.rejections else {}
        kinds |= {self._restart: 1} if restarts and rng.random() < 0.2 else {}
        return rng.choices([*kinds], [*kinds.values()])[0]()

    def _machine(self) -> str:
        """Mostly an enrolled one."""
        enrolled = [name for name in MACHINES if self.state.policy.machine_of(self.keys[name].fingerprint)]
        return self.rng.choice(enrolled if enrolled and self.rng.random() < 0.95 else MACHINES)

    def _person(self, *roles: Any) -> str:
        """Mostly one who may."""
        able = [name for name in self.state.policy.holders(*(roles or ROLES)) if name in self.keys]
        return self.rng.choice(able if able and self.rng.random() < 0.9 else PEOPLE)

    def _people(self) -> bool:
        rng, name, machine = self.rng, self.rng.choice(PEOPLE), self.rng.choice(MACHINES)
        rules = Rules(approvers=rng.choice((1, 1, 2)), four_eyes=rng.random() < 0.4, approval_days=rng.choice((2, 7)))
        roles: list[Role] = [rng.choice(("owner", "approver", "approver", "author"))]
        change = rng.choice(
            [Enrol(name=name, roles=roles, key=self.keys[name].public)] * 5
            + [EnrolMachine(name=machine, key=self.keys[machine].public)] * 3
            + [SetRules(model=rng.choice((None, *MODELS)), rules=rules)] * 2
            + [Remove(name=name), RemoveMachine(name=machine)]
            + [SetClocks(until=statement.later(self.state.time, days=rng.choice((-3, 1, 400))))]
            + [SetThresholds(model=rng.choice(MODELS), settings=rng.choice(SETTINGS))]
            + [Compromised(key=self.keys[rng.choice((name, machine))].fingerprint, since=self._since())]
        )
        return self.change(change, self._person("owner"), self._machine())

    def _since(self) -> int:
        """Mostly long ago, so that much rests on the key."""
        return self.rng.randint(1, self.state.number)

    def suspect(self) -> None:
        """Somebody still in charge marks a person's key from one of its entries on."""
        signed = [(number, signers[0]) for number, signers in self.state.grounds.keys.items() if len(signers) == 2]
        for since, key in self.rng.sample(signed, len(signed)):
            for owner in self.state.policy.holders("owner"):
                if self.change(Compromised(key=key, since=since), owner, self._machine()):
                    return

    def _thresholds(self) -> bool:
        """By the machine alone, as it may while nobody is enrolled."""
        change = SetThresholds(model=self.rng.choice(MODELS), settings=self.rng.choice(SETTINGS))
        return self.propose(PolicyChange(change=change), self._machine())

    def _content(self) -> Content:
        weights = self.rng.choice([*HASHES, None])
        return Content(
            decision_sha256=self.rng.choice(HASHES),
            prompt_sha256=self.rng.choice(HASHES[:2]),
            weights_sha256=weights,
            base_sha256=None if weights else HASHES[0],
            test_sha256=self.rng.choice((*HASHES[:2] * 3, *RETIRED)),
        )

    def _look(self) -> bool:
        rng, other = self.rng, dict[str, Any]()
        model, contents = rng.choice(MODELS), [self._content() for _ in range(rng.choice((1, 2)))]
        if rng.random() < 0.1:
            other["look"] = rng.randint(1, 6)
        if rng.random() < 0.1:
            other["champion"] = rng.randrange(self.state.number + 2)
        other["settings"] = SETTINGS[1] if rng.random() < 0.1 else self.state.policy.thresholds.get(model, SETTINGS[0])
        return self.propose(look_at(self.state, model, *contents, **other), self._machine())

    def _open(self) -> bool:
        rng = self.rng
        look = rng.choice(self._looks(RETIRED[0]))
        act = Opened(
            model=look.act.model if rng.random() < 0.9 else rng.choice(MODELS),
            run=rng.choice(("r", "s")),
            test_sha256=look.act.test_sha256 if rng.random() < 0.9 else rng.choice(HASHES),
            registration=look.number if rng.random() < 0.7 else rng.choice((0, 0, self.state.number)),
            examples=look.act.examples,
            who="Ada",
            reason="to see what went wrong",
        )
        return self.propose(act, self._machine())

    def _erase(self) -> bool:
        """Signed as it must be, or not."""
        rng, reason = self.rng, "its window is past its time"
        look = rng.choice(self._looks(RETIRED[1]))
        number = look.number if rng.random() < 0.9 else self.state.number
        act = Erasure(model=look.act.model, registration=number, reason=reason)
        if self.state.had_owner == (rng.random() < 0.1):
            return self.propose(act, self._machine())
        about = {"model": act.model, "registration": self.state.ids[look.number], "reason": reason}
        if rng.random() < 0.1:
            about |= rng.choice([{"model": "another"}, {"registration": self.state.head}, {"reason": "another"}])
        return self.propose(act, self._machine(), self._person("owner"), act="erase", **about)

    def _looks(self, test_sha256: str) -> list[Look]:
        return [look for look in self.state.looks.values() if look.act.test_sha256 == test_sha256]

    def _request(self) -> bool:
        rng, model, number = self.rng, self.rng.choice(MODELS), self.state.number
        content, registration = self._content(), rng.randrange(number + 2)
        if self.state.looks and rng.random() < 0.95:
            looks, served = [*self.state.looks.values()], self.state.champion
            live = [each for each in looks if each.by_policy and each.act.champion == served(each.act.model)]
            look = rng.choice(live if live and rng.random() < 0.95 else looks)
            model, registration = look.act.model, look.number
            prompt, weights = rng.choice(look.act.candidates)
            none = weights.startswith("base ")
            hashes = {"prompt_sha256": prompt, "weights_sha256": None if none else weights}
            hashes |= {"base_sha256": weights.removeprefix("base ") if none else None}
            if rng.random() < 0.95:
                content = content.model_copy(update=hashes | {"test_sha256": look.act.test_sha256})
        edits = HASHES[0] if rng.random() < 0.2 else None
        act = Request(
            model=model,
            run=f"run-{number}",
            revision=self.revision,
            candidate="challenger",
            content=content,
            champion=self.state.champion(model) if rng.random() < 0.9 else rng.randrange(number + 2),
            registration=registration,
            edits_sha256=edits,
            edited=["recipes/a.py"] if edits else [],
            key=f"key-{number}",
            started_by=rng.choice(("Ada", "bob", "Somebody Else")),
            expires=statement.later(self.time, days=rng.choice((1, 20, 30, 31))),
        )
        if rng.random() < 0.5:
            return self.propose(act, self._machine())
        run = act.key if rng.random() < 0.95 else "another"
        return self.propose(act, self._machine(), self._person(), act="start", run=run, model=model)

    def _about(
        self, kind: type[Approval | Rejection | Override], act: str, *roles: Any, request: Any = None, **more: Any
    ) -> bool:
        request = request or self._some_request()
        asked = request if self.rng.random() < 0.95 else self.rng.choice([*self.state.requests.values()])
        about = {"act": act, "model": asked.act.model, "request": asked.id, "content": asked.act.content}
        made = kind(model=request.act.model, request=request.number)
        return self.propose(made, self._machine(), self._person(*roles), **about, **more)

    def _some_request(self) -> Any:
        """Mostly one that could still be promoted."""
        live = [
            each
            for each in self.state.requests.values()
            if each.act.champion == self.state.champion(each.act.model) and each.act.expires >= self.time
        ]
        return self.rng.choice(live if live and self.rng.random() < 0.9 else [*self.state.requests.values()])

    def _approval(self) -> bool:
        return self._about(Approval, "approve", "owner", "approver")

    def _rejection(self) -> bool:
        """Often of what was promoted before."""
        earlier = [made.before for made in self.state.promotions.values() if self.state.requested(made.before)]
        over = [self.state.requests[self.state.promotions[each].request] for each in earlier]
        request = self.rng.choice(over) if over and self.rng.random() < 0.5 else None
        return self._about(Rejection, "reject", "owner", "approver", request=request)

    def _override(self) -> bool:
        return self._about(Override, "override", "owner", overrides=["dirty"])

    def _lift(self) -> bool:
        number = self.rng.choice([*self.state.rejections])
        model, *pair = self.state.rejections[number]
        act = Lift(model=model, rejection=number)
        about = {"model": model, "pair": pair, "rejection": self.state.ids[number]}
        return self.propose(act, self._machine(), self._person("owner", "approver"), act="lift", **about)

    def _promotion(self) -> bool:
        request = self._some_request()
        counting = [approval.number for approval in approval_status(self.state, request, self.time).counting]
        everything = [approval.number for approval in request.approvals]
        act = Promotion(
            model=request.act.model,
            request=request.number,
            approvals=counting if self.rng.random() < 0.9 else everything,
            before=self.state.champion(request.act.model),
            weights_signature=objects.sha256(b"signed") if self.rng.random() < 0.5 else None,
            smoke="4 of 4",
        )
        return self.propose(act, self._machine())

    def _rollback(self) -> bool:
        model = self.rng.choice(MODELS)
        now = self.state.champion(model)
        wanted = self.state.previous(model) or 0
        to = wanted if self.rng.random() < 0.9 else self.rng.choice([0, *self.state.promotions])
        ids = [self.state.promotions[each].id if each else None for each in (now, to)]
        act = Rollback(model=model, before=now, to=to)
        about = {"act": "rollback", "model": model, "champion": ids[0], "to": ids[1]}
        return self.propose(act, self._machine(), self._person("owner", "approver"), **about)

    def _reconcile(self) -> bool:
        act = Reconcile(model=self.rng.choice(MODELS), projection="alias", found="7", set="8")
        return self.propose(act, self._machine())

    def _restart(self) -> bool:
        machine = self.rng.choice(MACHINES)
        act = Genesis(
            machine=self.keys[machine].public, nonce=self._nonce(), restarts=self.state.head, reason="keys were lost"
        )
        return self.propose(act, machine)


# -- as commits ------------------------------------------------------------------------------------
def write(clone: Clone, story: Story, done: int = 0) -> str:
    """Write a history into a clone, signed by those who made it, but for the first entries that are
    there. Names the ledger in infra/ledger.yaml, when it does not go on. Returns its head."""
    head = chain.head(clone)
    for line in story.lines[done:]:
        parents = [*([head] if head else []), *line.parents]
        head = chain.make(clone, line.entry, line.files, parents, story.keys[line.machine])
    assert head is not None
    chain.move(clone, head, chain.head(clone))
    if not done:
        remote.pin(clone, remote.shared(clone), story.state.genesis)
    return head


def record(clone: Clone, name: str, entry: Entry) -> str:
    """Record a run's revision that knows this entry. Returns its ref."""
    start = clone.git("rev-parse", "main")
    message = f"run {name}\n\nLedger: {entry.number} {entry.id}\n"
    commit = git(clone.root, "commit-tree", f"{start}^{{tree}}", "-p", start, given=message.encode())
    ref = f"refs/exps/{start[:2]}/{start[2:]}/{name}"
    clone.git("update-ref", ref, commit)
    return ref


# -- through book ----------------------------------------------------------------------------------
NOTE = Reconcile(model="tiny", projection="alias", found="1", set="2")


def silent(_: str) -> None:
    pass


def append(clone: Clone, made: Act = NOTE, signer: Key | None = None, /, **about: Any) -> Entry:
    """Append an act, with a statement of `signer` where there is one, as a verb does."""
    with book.opened(clone, report_line=silent) as ledger:
        act, reason = str(about.pop("act", "")), "because"
        signed = statement.sign(signer, ledger.statement(act, reason, **about)) if signer else None
        return ledger.append(made, signed)


def own(clone: Clone, key: Key) -> Entry:
    """Make the key's holder the first owner, as ada."""
    change = Enrol(name="ada", roles=["owner"], key=key.public)
    return append(clone, PolicyChange(change=change), key, act="policy", change=change)
