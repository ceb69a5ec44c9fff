"""docs/verify-ledger.sh says of a ledger what this code says, with Git and ssh-keygen alone.

A team's ledger with everything in it is found right. Then somebody who holds the machine's key, but
no person's, forges one thing at a time; the script names each, and so does the code.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rft.errors import UserError
from tasks.ledger import book, chain, entry, keys, objects, policy, statement, verify
from tasks.ledger.entry import Act, Entry
from tasks.ledger.keys import Key
from tasks.ledger.state import State
from tasks.ledger.statement import Content, Signed
from tasks.runs.clone import Clone
from tests import ledger_world

pytestmark = pytest.mark.story  # more than a minute together; test_verify_ledger_world.py is always run

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "verify-ledger.sh"
FOUND = [found for shell in ("dash", "bash", "sh") if (found := shutil.which(shell))]
SHELLS = [*{os.path.realpath(found): found for found in reversed(FOUND)}.values()][::-1]
"""Each once: `sh` is another name for one of them."""
SLY = '","act":"approve","reason":"\n\tSHA256: \\ é'


def run(clone: Clone, *arguments: str, shell: str = "sh") -> subprocess.CompletedProcess[str]:
    command = [shell, str(SCRIPT), str(clone.root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def git(clone: Clone, *arguments: str) -> str:
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    return subprocess.run(["git", *who, *arguments], cwd=clone.root, check=True, capture_output=True, text=True).stdout


def make(root: Path) -> Clone:
    root.mkdir()
    subprocess.run(["git", "init", "-q", "-b", "main", str(root)], check=True)
    (root / "code.py").write_text("x = 1\n")
    clone = Clone(root)
    git(clone, "add", "code.py")
    git(clone, "commit", "-qm", "code")
    return clone


class Team:
    """People with their keys, and what they do to a clone's ledger."""

    def __init__(self, clone: Clone, people: dict[str, Key]) -> None:
        self.clone, self.people = clone, people
        self._hashes = (f"{number:064x}" for number in itertools.count(1))

    @staticmethod
    def with_keys(root: Path) -> Team:
        clone, people = make(root / "clone"), {}
        for name in ("ada", "bob", "eve", "mallory"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(root / name)]
            subprocess.run(command, check=True)
            people[name] = keys.person(clone, str(root / name))
        return Team(clone, people)

    def clone_state(self) -> State:
        return book.read(self.clone, report_line=lambda _: None).state

    def append(
        self, act: Act, signed: Signed | None = None, clone: Clone | None = None, weights: bytes | None = None
    ) -> Entry:
        with book.opened(clone or self.clone, report_line=lambda _: None) as ledger:
            return ledger.append(act, signed, {chain.WEIGHTS: weights} if weights else {})

    def says(self, who: str, act: str, reason: str = "good", **about: Any) -> Signed:
        with book.opened(self.clone, report_line=lambda _: None) as ledger:
            ledger.begin()
            return statement.sign(self.people[who], ledger.statement(act, reason, **about))

    def change(self, who: str, change: policy.Change) -> Entry:
        return self.append(entry.PolicyChange(change=change), self.says(who, "policy", change=change))

    def enrol(self, who: str, name: str, *roles: policy.Role) -> Entry:
        return self.change(who, policy.Enrol(name=name, roles=list(roles), key=self.people[name].public))

    def request(self, model: str = "tiny", champion: int = 0, starter: str | None = None, **changes: Any) -> Entry:
        content = Content(
            decision_sha256=next(self._hashes),
            prompt_sha256=next(self._hashes),
            weights_sha256=changes.pop("weights", next(self._hashes)),
            base_sha256=next(self._hashes),
            test_sha256=next(self._hashes),
        )
        made: dict[str, Any] = {"content": content, "champion": champion, "edits_sha256": None, "key": "k"}
        made |= {"run": SLY, "revision": git(self.clone, "rev-parse", "HEAD").strip(), "candidate": "challenger"}
        made |= {"expires": statement.later(statement.now(), days=3), "started_by": "Ada Lovelace", "model": model}
        if "registration" not in changes:
            changes["registration"] = self.look(model, content, champion)
        act = entry.Request(**(made | changes))
        return self.append(act, self.says(starter, "start", model=model, run="k") if starter else None)

    def look(self, model: str, content: Content, champion: int) -> int:
        state = book.read(self.clone, report_line=lambda _: None).state
        return self.append(ledger_world.look_at(state, model, content, champion=champion)).number

    def about(self, who: str, request: Entry, act: str, reason: str = "good", **about: Any) -> Signed:
        asked = request.act
        assert isinstance(asked, entry.Request)
        return self.says(who, act, reason, model=asked.model, request=request.id, content=asked.content, **about)

    def approve(self, who: str, request: Entry, reason: str = "good") -> Entry:
        act = entry.Approval(model=model_of(request), request=request.number)
        return self.append(act, self.about(who, request, "approve", reason))

    def reject(self, who: str, request: Entry, reason: str = "bad") -> Entry:
        act = entry.Rejection(model=model_of(request), request=request.number)
        return self.append(act, self.about(who, request, "reject", reason))

    def promote(self, request: Entry, *approvals: Entry, before: int = 0, weights: bytes | None = None) -> Entry:
        return self.append(promotion(request, *approvals, before=before, weights=weights), weights=weights)

    def roll_back(self, who: str, promoted: Entry, to: Entry | None) -> Entry:
        model, number = model_of(promoted), to.number if to else 0
        signed = self.says(who, "rollback", model=model, champion=promoted.id, to=to.id if to else None)
        return self.append(entry.Rollback(model=model, before=promoted.number, to=number), signed)

    # -- what a machine's key is enough for -----------------------------------------------------
    def forge(self, act: Act, signed: Signed | None = None, key: Key | None = None, **changes: Any) -> None:
        """Append whatever it is, and ask nobody."""
        state = book.read(self.clone, report_line=lambda _: None).state
        number, name = state.number + 1, next(iter(state.policy.machines))
        carried = changes.pop("carries", None) or verify.carried_revisions(state, act)
        if isinstance(act, entry.PolicyChange):
            state.change(act.change)
        files = {chain.POLICY: state.policy_yaml, chain.SIGNERS: state.signers} | changes.pop("files", {})
        if signed:
            files |= {chain.STATEMENT: signed.statement.content_bytes, chain.SIGNATURE: signed.signature.encode()}
        made: dict[str, Any] = {"number": number, "previous": state.head, "time": max(state.time, statement.now())}
        made |= {"machine": name, "act": act, "files": {one: objects.sha256(text) for one, text in files.items()}}
        head = chain.head(self.clone)
        assert head
        machine = key or keys.machine(self.clone)
        self.point(chain.make(self.clone, Entry(**(made | changes)), files, [head, *carried], machine))

    def point(self, commit: str) -> None:
        git(self.clone, "update-ref", chain.REF, commit)


def model_of(each: Entry) -> str:
    return getattr(each.act, "model")  # noqa: B009


def promotion(
    request: Entry, *approvals: Entry, before: int = 0, weights: bytes | None = None, **changes: Any
) -> entry.Promotion:
    made: dict[str, Any] = {"model": model_of(request), "request": request.number, "before": before, "smoke": "ok"}
    made |= {"approvals": [each.number for each in approvals]}
    return entry.Promotion(**(made | changes), weights_signature=objects.sha256(weights) if weights else None)


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Team:
    """Ada is owner, Bob and Eve approve; one promotion, one request that waits."""
    team = Team.with_keys(tmp_path_factory.mktemp("ledger"))
    team.enrol("ada", "ada", "owner")
    team.enrol("ada", "bob", "approver", "author")
    team.enrol("ada", "eve", "approver")
    first = team.request()
    team.promote(first, team.approve("bob", first, reason=SLY), weights=b"{}")
    team.request(champion=book.read(team.clone).state.number)
    return team


@pytest.fixture
def team(settled: Team) -> Iterator[Team]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(shutil.copytree(settled.clone.root, Path(folder) / "clone"))
        yield Team(Clone(root), settled.people)


# -- what is right ---------------------------------------------------------------------------------
@pytest.mark.parametrize("shell", SHELLS)
def test_a_teams_ledger_is_right(settled: Team, shell: str) -> None:
    state = book.read(settled.clone).state
    done = run(settled.clone, "refs/rft/ledger", state.genesis, shell=shell)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split()[2] for line in lines[:-1]] == [
        *("genesis", "policy", "policy", "policy", "registration", "request"),
        *("approval", "promotion", "registration", "request"),
    ]
    assert [line.split()[4] for line in lines[:-1]] == ["-", "ada", "ada", "ada", "-", "-", "bob", "-", "-", "-"]
    assert lines[-1] == f"OK: 10 entries, the last is {state.head}"


def test_everything_that_a_ledger_can_hold_is_right(tmp_path: Path) -> None:
    """Four eyes, two machines, rejection and lift, override, rollback, rules of one model, removal,
    a compromised key."""
    team = Team.with_keys(tmp_path)
    with book.opened(team.clone) as ledger:
        ledger.begin()
    team.enrol("ada", "ada", "owner")
    team.enrol("ada", "bob", "approver", "author")
    team.enrol("ada", "eve", "author", "approver")
    rules = policy.Rules(approvers=1, four_eyes=True, approval_days=0.5)
    team.change("ada", policy.SetRules(model="strict model", rules=rules))
    team.change("ada", policy.SetRules(model="strict", rules=policy.Rules(request_days=1e-5)))

    mine = team.request("strict model", starter="bob")
    approval = team.approve("eve", mine)
    team.promote(mine, approval)
    unknown = team.request("strict model", champion=team.clone_state().champion("strict model"))
    approvals = [team.approve(name, unknown) for name in ("ada", "bob")]
    second = team.promote(unknown, *approvals, before=unknown.number - 2, weights=b"signed")

    dirty = team.request(edits_sha256="e" * 64, edited=["code.py"], weights=None)
    no = team.reject("bob", dirty, reason=SLY)
    lift = team.says("eve", "lift", model="tiny", pair=content(dirty).pair, rejection=no.id)
    team.append(entry.Lift(model="tiny", rejection=no.number), lift)
    owned = team.about("ada", dirty, "override", overrides=["dirty"])
    team.append(entry.Override(model="tiny", request=dirty.number), owned)
    team.promote(dirty, team.approve("bob", dirty))
    first = team.clone_state().promotions[second.number].before
    team.roll_back("eve", second, book.read(team.clone).stored[first - 1].entry)
    team.append(entry.Reconcile(model="tiny", projection="alias", found="1", set="2"))

    other = make(tmp_path / "other")
    git(other, "fetch", "-q", str(team.clone.root), "refs/rft/ledger:refs/rft/ledger")
    machine = policy.EnrolMachine(name="zz-night", key=keys.machine(other).public)
    team.append(entry.PolicyChange(change=machine), team.says("ada", "policy", change=machine), clone=other)
    git(team.clone, "fetch", "-q", str(other.root), "refs/rft/ledger:refs/rft/ledger")
    team.change(
        "ada", policy.RemoveMachine(name=next(name for name in team.clone_state().policy.machines if "z" in name))
    )
    team.change("ada", policy.Remove(name="bob"))
    bad = policy.Compromised(key=team.people["eve"].fingerprint, since=approval.number)
    team.change("ada", bad)
    state = book.read(team.clone, reverify=True).state
    done = run(team.clone, shell=SHELLS[-1])  # what is forged is read by the first
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.splitlines()[-1] == f"OK: {state.number} entries, the last is {state.head}"
    named = [line for line in done.stdout.splitlines() if line.startswith("DOUBTFUL")]
    assert named == [f"DOUBTFUL: entry {number}: {why}" for number, why in sorted(state.doubtful().items())]
    assert len(named) >= 3


def restart(team: Team, reason: str | None = "the owners' keys are lost") -> None:
    """What a machine does when nobody is left who could sign."""
    state, own = book.read(team.clone).state, keys.machine(team.clone)
    machines = {name: key for name, key in state.policy.machines.items() if key == own.fingerprint}
    after = state.policy.model_copy(update={"people": {}, "machines": machines})
    act = entry.Genesis(machine=own.public, nonce="n", restarts=state.head, reason=reason)
    team.forge(act, files={chain.POLICY: after.yaml()})


def test_a_restart_is_told_for_ever(team: Team) -> None:
    before = book.read(team.clone).state
    restart(team)
    head = git(team.clone, "cat-file", "blob", f"{chain.REF}:entry.json")
    done = run(team.clone, "refs/rft/ledger", objects.sha256(head.encode()))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[-2].startswith("RESTARTED: the owners of the entries above had no say")
    assert lines[-1].endswith("RESTARTED 1 times")
    unaware = run(team.clone, "refs/rft/ledger", before.genesis)
    assert (unaware.returncode, "was restarted with genesis" in unaware.stdout) == (1, True)


def content(request: Entry) -> Content:
    assert isinstance(request.act, entry.Request)
    return request.act.content


# -- what is wrong ---------------------------------------------------------------------------------
Attack = Callable[[Team], object]


def waiting(team: Team) -> Entry:
    return book.read(team.clone).stored[9].entry


def first(team: Team) -> Entry:
    return book.read(team.clone).stored[5].entry


def altered(team: Team) -> None:
    """The promotion's file is another, and the commits on top of it are written again."""
    head = git(team.clone, "rev-parse", chain.REF).strip()
    raw = git(team.clone, "cat-file", "commit", head)
    text = git(team.clone, "cat-file", "blob", f"{head}:entry.json").replace('"number":10', '"number":11')
    (team.clone.root / "new").write_text(text)
    blob = git(team.clone, "hash-object", "-w", "new").strip()
    rows = git(team.clone, "ls-tree", head).splitlines()
    rows = [row.replace(row.split()[2], blob) if row.endswith("entry.json") else row for row in rows]
    (team.clone.root / "rows").write_text("\n".join(rows) + "\n")
    with (team.clone.root / "rows").open() as file:
        made = subprocess.run(["git", "mktree"], cwd=team.clone.root, stdin=file, capture_output=True, check=True)
    (team.clone.root / "commit").write_text(raw.replace(raw.split()[1], made.stdout.decode().strip(), 1))
    team.point(git(team.clone, "hash-object", "-t", "commit", "-w", "commit").strip())


def signed_again(team: Team) -> None:
    """The last commit carries the signature of the one before."""
    head, before = (git(team.clone, "cat-file", "commit", f"{chain.REF}{up}") for up in ("", "~1"))
    one, other = (text[text.index("gpgsig") : text.index("-----END")] for text in (head, before))
    (team.clone.root / "commit").write_text(head.replace(one, other))
    team.point(git(team.clone, "hash-object", "-t", "commit", "-w", "commit").strip())


def bytes_changed(team: Team) -> None:
    """Git does not look whether an object's bytes fit its name."""
    import zlib

    head = git(team.clone, "rev-parse", chain.REF).strip()
    path = team.clone.root / ".git/objects" / head[:2] / head[2:]
    raw = zlib.decompress(path.read_bytes())
    path.chmod(0o600)
    path.write_bytes(zlib.compress(raw.replace(b"rft.invalid", b"rft.unvalid", 1)))


def removed(team: Team) -> None:
    """The approval is cut out, and what follows is made again with the machine's key."""
    stored = book.read(team.clone).stored
    parents = [stored[5].commit.id]
    team.point(chain.make(team.clone, stored[7].entry, stored[7].files, parents, keys.machine(team.clone)))


def cut(team: Team) -> None:
    """The genesis is gone: the chain begins with the second entry."""
    stored = book.read(team.clone).stored
    team.point(chain.make(team.clone, stored[1].entry, stored[1].files, [], keys.machine(team.clone)))


def enrols_herself(team: Team) -> None:
    change = policy.Enrol(name="mallory", roles=["owner"], key=team.people["mallory"].public)
    team.forge(entry.PolicyChange(change=change), team.says("mallory", "policy", change=change))


def makes_herself_owner(team: Team) -> None:
    change = policy.Enrol(name="eve", roles=["owner"], key=team.people["eve"].public)
    team.forge(entry.PolicyChange(change=change), team.says("eve", "policy", change=change))


def other_change(team: Team) -> None:
    other = policy.Enrol(name="mallory", roles=["author"], key=team.people["mallory"].public)
    change = policy.Enrol(name="mallory", roles=["author", "owner"], key=team.people["mallory"].public)
    team.forge(entry.PolicyChange(change=change), team.says("ada", "policy", change=other))


def approval(team: Team, signed: Signed, request: Entry | None = None) -> None:
    request = request or waiting(team)
    team.forge(entry.Approval(model=model_of(request), request=request.number), signed)


def replayed(team: Team) -> None:
    signed = team.about("bob", waiting(team), "approve")
    team.append(entry.Approval(model="tiny", request=10), signed)
    team.promote(waiting(team), book.read(team.clone).stored[10].entry, before=8)
    approval(team, signed)


def removed_person(team: Team) -> None:
    team.change("ada", policy.Remove(name="bob"))
    approval(team, team.about("bob", waiting(team), "approve"))


def twice(team: Team) -> None:
    team.approve("bob", waiting(team))
    approval(team, team.about("bob", waiting(team), "approve", "once more"))


def expired(team: Team) -> None:
    to_sign = team.about("bob", waiting(team), "approve").statement.model_copy(
        update={"time": "2020-01-01T00:00:00Z", "expires": "2020-01-02T00:00:00Z"}
    )
    approval(team, statement.sign(team.people["bob"], to_sign))


def changed_statement(team: Team) -> None:
    signed = team.about("bob", waiting(team), "reject")
    approval(team, signed.model_copy(update={"statement": signed.statement.model_copy(update={"act": "approve"})}))


def too_few(team: Team) -> None:
    team.change("ada", policy.SetRules(model=None, rules=policy.Rules(approvers=2)))
    made = team.approve("bob", waiting(team))
    team.forge(promotion(waiting(team), made, before=8))


def one_approval_twice(team: Team) -> None:
    team.change("ada", policy.SetRules(model=None, rules=policy.Rules(approvers=2)))
    made = team.approve("bob", waiting(team))
    team.forge(promotion(waiting(team), made, made, before=8))


def rejected(team: Team) -> None:
    made = team.approve("bob", waiting(team))
    team.reject("eve", waiting(team))
    team.forge(promotion(waiting(team), made, before=8))


def own_run(team: Team) -> None:
    team.change("ada", policy.SetRules(model="tiny", rules=policy.Rules(four_eyes=True)))
    mine = team.request(champion=8, starter="bob")
    approval(team, team.about("bob", mine, "approve"), mine)


def uncommitted(team: Team) -> None:
    dirty = team.request(champion=8, edits_sha256="e" * 64)
    made = team.approve("bob", dirty)
    team.forge(promotion(dirty, made, before=8))


def machine_unknown(team: Team) -> None:
    stolen = keys.machine(make(team.clone.root / "other"))
    team.forge(entry.Reconcile(model="tiny", projection="alias", found="1", set="2"), key=stolen)


def enrolled_machine(team: Team) -> None:
    """A machine that nobody enrolled brings its own key."""
    key = keys.machine(make(team.clone.root / "other"))
    act = entry.PolicyChange(change=policy.EnrolMachine(name="night", key=key.public))
    team.forge(act, key=key, machine="night")


def person_as_machine(team: Team) -> None:
    act = entry.Reconcile(model="tiny", projection="alias", found="1", set="2")
    team.forge(act, key=team.people["mallory"])


def reconcile(team: Team, **changes: Any) -> None:
    team.forge(entry.Reconcile(model="tiny", projection="alias", found="1", set="2"), **changes)


def policy_differs(team: Team, change: Callable[[bytes], bytes]) -> None:
    """A change that is allowed, and a policy.yaml that says something else."""
    state = book.read(team.clone).state
    change_ = policy.Remove(name="bob")
    state.change(change_)
    act = entry.PolicyChange(change=change_)
    team.forge(act, team.says("ada", "policy", change=change_), files={chain.POLICY: change(state.policy_yaml)})


ATTACKS: dict[str, tuple[Attack, str]] = {
    "an entry was altered": (altered, "does not name the SHA-256 of entry.json"),
    "a signature of another commit": (signed_again, "no enrolled machine key signed the commit"),
    "an object's bytes were changed": (bytes_changed, "its bytes were changed"),
    "an entry was removed": (removed, "removed or reordered"),
    "the beginning was cut off": (cut, "allowed_signers is not the one before"),
    "a stranger enrols herself": (enrols_herself, "a key that is nobody's"),
    "an approver makes herself owner": (makes_herself_owner, "eve is not an owner"),
    "an owner signed another change": (other_change, "another change"),
    "a stranger approves": (lambda team: approval(team, team.about("mallory", waiting(team), "approve")), "WRONG"),
    "a removed person approves": (removed_person, "nobody's at this point"),
    "a no in the words of a yes": (
        lambda team: approval(team, team.about("bob", waiting(team), "reject", SLY)),
        "its statement is to reject, not to approve",
    ),
    "a statement was changed": (changed_statement, "no enrolled person's key signed the statement"),
    "an approval of another request": (
        lambda team: approval(team, team.about("bob", first(team), "approve")),
        "another request",
    ),
    "an approval of other content": (
        lambda team: approval(
            team, team.says("bob", "approve", model="tiny", request=waiting(team).id, content=content(first(team)))
        ),
        "other content",
    ),
    "an approval for another ledger": (
        lambda team: approval(
            team,
            statement.sign(
                team.people["bob"],
                team.about("bob", waiting(team), "approve").statement.model_copy(update={"ledger": "f" * 64}),
            ),
        ),
        "another ledger",
    ),
    "an approval counts again": (replayed, "stands in the ledger already"),
    "a person counts twice": (twice, "approved this request already"),
    "an expired approval": (expired, "had expired"),
    "four eyes": (own_run, "four eyes"),
    "nobody approved": (lambda team: team.forge(promotion(waiting(team), before=8)), "0 of 1 approvals"),
    "too few approved": (too_few, "1 of 2 approvals"),
    "one approval twice": (one_approval_twice, "1 of 2 approvals"),
    "rejected, and promoted": (rejected, "are rejected, by entry 12"),
    "uncommitted edits": (uncommitted, "no owner took the responsibility"),
    "over another champion": (lambda team: team.forge(promotion(waiting(team), before=0)), "not served"),
    "an unknown machine": (machine_unknown, "no enrolled machine key"),
    "a machine enrols itself": (enrolled_machine, "takes a statement"),
    "a person's key as a machine's": (person_as_machine, "no enrolled machine key"),
    "time goes back": (lambda team: reconcile(team, time="2020-01-01T00:00:00Z"), "before that of the entry before"),
    "a number is left out": (lambda team: reconcile(team, number=13), "removed or reordered"),
    "another entry before": (lambda team: reconcile(team, previous="f" * 64), "another entry before it"),
    "the policy changes on the way": (
        lambda team: reconcile(team, files={chain.POLICY: b"people: {}\n"}),
        "changes policy.yaml, and it is of kind reconcile",
    ),
    "the policy says another": (
        lambda team: policy_differs(team, lambda text: text.replace(b"approvers: 1", b"approvers: 2")),
        "policy.yaml does not say",
    ),
    "the policy says more": (
        lambda team: policy_differs(team, lambda text: text + b"# people: mallory is owner\n"),
        "policy.yaml does not say",
    ),
    "a key more among the signers": (
        lambda team: reconcile(
            team,
            files={
                chain.SIGNERS: book.read(team.clone).state.signers
                + f'bob namespaces="rft-act" {team.people["mallory"].public}\n'.encode()
            },
        ),
        "allowed_signers is not the one before",
    ),
    "a revision that it is not about": (
        lambda team: reconcile(team, carries=[git(team.clone, "rev-parse", "HEAD").strip()]),
        "does not carry the revision",
    ),
    "a genesis in the middle": (
        lambda team: team.forge(entry.Genesis(machine=keys.machine(team.clone).public, nonce="n")),
        "a ledger has one genesis",
    ),
    "a restart without a reason": (lambda team: restart(team, None), "a restart needs a reason"),
    "a rollback that nobody signed": (
        lambda team: team.forge(entry.Rollback(model="tiny", before=8, to=0)),
        "takes a statement",
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_is_forged_is_named(team: Team, name: str) -> None:
    attack, message = ATTACKS[name]
    attack(team)
    done = run(team.clone, shell=SHELLS[0])
    assert done.returncode == 1, done.stdout
    assert message in done.stdout[done.stdout.index("WRONG") :]
    with pytest.raises(UserError):
        book.read(team.clone, reverify=True)


def test_another_ledger_is_named_by_its_genesis(team: Team) -> None:
    done = run(team.clone, "refs/rft/ledger", "0" * 64)
    assert (done.returncode, f"not with {'0' * 64}" in done.stdout) == (1, True)


def test_a_run_that_is_gone_is_named(team: Team) -> None:
    name = git(team.clone, "rev-parse", "HEAD").strip()
    (team.clone.root / ".git/objects" / name[:2] / name[2:]).unlink()
    done = run(team.clone)
    assert (done.returncode, f"is about {name}, which is missing" in done.stdout) == (1, True)


def test_neither_replaced_objects_nor_a_graft_fool_it(team: Team) -> None:
    head, before = (git(team.clone, "rev-parse", f"{chain.REF}{up}").strip() for up in ("", "~2"))
    git(team.clone, "replace", head, before)
    assert "OK: 10 entries" in run(team.clone).stdout
    (team.clone.root / ".git/info/grafts").write_text(f"{head} {before}\n")
    done = run(team.clone)
    assert (done.returncode, "the chain was cut" in done.stdout) == (1, True)


def test_the_configuration_of_the_repository_does_not_decide(team: Team) -> None:
    """Whoever writes the refs may write .git/config, too."""
    signed_again(team)
    yes = team.clone.root / "yes"
    yes.write_text("#!/bin/sh\necho 'Good \"git\" signature for ada with ED25519 key SHA256:x'\n")
    yes.chmod(0o755)
    for key in ("gpg.program", "gpg.ssh.program"):
        git(team.clone, "config", key, str(yes))
    assert run(team.clone).returncode == 1


def test_nothing_there_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    done = run(make(tmp_path / "empty"))
    assert (done.returncode, "Fetch it: git fetch" in done.stderr) == (1, True)


def test_it_explains_itself() -> None:
    done = subprocess.run([str(SCRIPT), "--help"], capture_output=True, text=True, check=True)
    assert "verify-ledger.sh [REPOSITORY [REF [GENESIS]]]" in done.stdout
    assert os.access(SCRIPT, os.X_OK)
