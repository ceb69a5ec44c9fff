"""What a machine in wrong hands does to a ledger, for the figure `ledger_tamper`.

It holds an enrolled machine's key, but no person's. That is more than the figure asks for: not the
signature of a commit reveals these tricks, but the statements and the rules.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from bench.ledger_scene import NOTE, REVISION, SEEN, Attack, Scene, noted
from tasks.ledger import chain, keys, statement
from tasks.ledger.chain import Stored
from tasks.ledger.entry import (
    Act,
    Approval,
    Lift,
    PolicyChange,
    Promotion,
    Rejection,
    Request,
    Rollback,
)
from tasks.ledger.policy import Enrol, Rules, SetRules
from tasks.ledger.state import State
from tasks.ledger.statement import Content


def rogue() -> Iterator[tuple[str, Attack]]:
    """Yield the tricks with an enrolled machine's key and no person's: commits are signed well."""

    def by(
        act: Callable[[Scene], Act], files: Callable[[Scene], dict[str, bytes]] = lambda _: {}, **other: Any
    ) -> Attack:
        def attack(s: Scene) -> object:
            made = act(s)
            carried = [made.revision] if isinstance(made, Request) and made.edits_sha256 is None else []
            return s.append(made, s.keys["laptop"], files(s), parents=carried, machine="laptop", **other)

        return attack

    def old(kind: type, last: bool = False) -> Callable[[Scene], dict[str, bytes]]:
        return lambda s: {n: s.nth(kind, last).files[n] for n in (chain.STATEMENT, chain.SIGNATURE)}

    def waiting(s: Scene) -> Stored:
        """Return the request that nobody has decided on."""
        return next(
            each for each in s.stored if isinstance(each.entry.act, Request) and each.entry.act.run == "waiting"
        )

    def approval(s: Scene) -> Act:
        return Approval(model="tiny", request=waiting(s).entry.number)

    def promotion(s: Scene, approvals: list[int] | None = None, **more: Any) -> Act:
        made = {"model": "tiny", "request": waiting(s).entry.number, "approvals": approvals or [], "smoke": "ok"}
        return Promotion.model_validate({"before": s.state.champion("tiny"), "weights_signature": None} | made | more)

    def about(s: Scene, **more: Any) -> dict[str, Any]:
        asked = waiting(s).entry
        assert isinstance(asked.act, Request)
        return {"model": "tiny", "request": asked.id, "content": asked.act.content} | more

    yield "machine: promoted without an approval", by(promotion)
    yield (
        "machine: promoted with the approval of another request",
        by(lambda s: promotion(s, [s.nth(Approval).entry.number])),
    )
    yield "machine: promoted, replacing another champion", by(lambda s: promotion(s, before=3))
    yield "machine: a promotion again", by(lambda s: s.nth(Promotion).entry.act)
    yield "machine: approved without a statement", by(approval)
    yield "machine: approved with a statement for another request", by(approval, old(Approval))
    yield "machine: approved with mallory's key", by(approval, lambda s: s.sign("approve", "mallory", **about(s)))
    yield "machine: approved by an author", by(approval, lambda s: s.sign("approve", "cleo", **about(s)))
    yield "machine: approved by somebody removed", by(approval, lambda s: s.sign("approve", "dora", **about(s)))
    yield "machine: approved by who started the run", by(approval, lambda s: s.sign("approve", "ada", **about(s)))
    yield "machine: a replayed statement", by(lambda s: s.nth(Approval).entry.act, old(Approval))
    yield "machine: a statement of another ledger", by(approval, lambda s: s.signed(s.elsewhere(), "bob"))
    yield (
        "machine: a statement about another model",
        by(approval, lambda s: s.sign("approve", "bob", **about(s, model="icd10"))),
    )

    def other_content(s: Scene) -> dict[str, bytes]:
        asked = about(s)
        content: Content = asked["content"]
        return s.sign("approve", "bob", **asked | {"content": content.model_copy(update={"weights_sha256": "f" * 64})})

    yield "machine: a statement about other weights", by(approval, other_content)
    yield (
        "machine: an approval as a rejection",
        by(
            lambda s: Rejection(model="tiny", request=waiting(s).entry.number),
            lambda s: s.sign("approve", "bob", **about(s)),
        ),
    )
    yield "machine: a rejection as an approval", by(approval, lambda s: s.sign("reject", "bob", **about(s)))

    def expired(s: Scene) -> dict[str, bytes]:
        early = statement.later(s.head.entry.time, days=-9)
        return s.sign("approve", "bob", **about(s), time=early, expires=statement.later(early, days=8))

    yield "machine: an expired statement", by(approval, expired)

    def outlived(s: Scene) -> dict[str, bytes]:
        early = statement.later(s.head.entry.time, days=-9)
        return s.sign("approve", "bob", **about(s), time=early, expires=statement.later(early, days=900))

    yield "machine: a statement that outlives the rules", by(approval, outlived)
    yield (
        "machine: a statement of tomorrow",
        by(approval, lambda s: s.sign("approve", "bob", **about(s), time=statement.later(s.head.entry.time, days=0.5))),
    )

    def namespace(s: Scene) -> dict[str, bytes]:
        signed_files = s.sign("approve", "bob", **about(s))
        return s.signed(statement.parse(signed_files[chain.STATEMENT], "x"), "bob", "git")

    yield "machine: a statement signed as a commit", by(approval, namespace)

    def half(name: str) -> Callable[[Scene], dict[str, bytes]]:
        return lambda s: {n: each for n, each in s.sign("approve", "bob", **about(s)).items() if n != name}

    yield "machine: a statement without its signature", by(approval, half(chain.SIGNATURE))
    yield "machine: a signature without its statement", by(approval, half(chain.STATEMENT))

    def loose(s: Scene) -> dict[str, bytes]:
        signed_files = s.sign("approve", "bob", **about(s))
        content = json.dumps(json.loads(signed_files[chain.STATEMENT]), indent=1).encode()
        return {chain.STATEMENT: content, chain.SIGNATURE: keys.sign(s.keys["bob"], content, keys.ACT).encode()}

    yield "machine: a statement in another form", by(approval, loose)
    yield (
        "machine: a person's statement used up by a note",
        by(
            lambda _: NOTE,
            lambda s: s.sign("approve", "bob", **about(s)),
        ),
    )
    yield (
        "machine: a rollback without a statement",
        by(lambda s: Rollback(model="icd10", before=s.state.champion("icd10"), to=s.state.previous("icd10") or 0)),
    )
    yield (
        "machine: a rollback with an old statement",
        by(
            lambda s: Rollback(model="icd10", before=s.state.champion("icd10"), to=s.state.previous("icd10") or 0),
            old(Rollback),
        ),
    )
    yield (
        "machine: a lift without a statement",
        by(lambda s: Lift(model="tiny", rejection=s.nth(Rejection).entry.number)),
    )

    def grants(signer: str) -> Attack:
        def attack(s: Scene) -> object:
            change = Enrol(name="mallory", roles=["owner"], key=s.keys["mallory"].public)
            after = State(policy=s.state.policy, signers=s.state.signers)
            after.change(change)
            files = {chain.POLICY: after.policy_yaml, chain.SIGNERS: after.signers}
            files |= s.sign("policy", signer, change=change)
            return s.append(PolicyChange(change=change), s.keys["laptop"], files, machine="laptop")

        return attack

    yield "machine: a role granted by an approver", grants("bob")
    yield "machine: a role granted by mallory", grants("mallory")

    def bigger(s: Scene) -> object:
        change = SetRules(model=None, rules=Rules())
        return s.append(PolicyChange(change=change), s.keys["laptop"], {}, machine="laptop")

    yield "machine: rules changed without a statement", bigger

    def silently(s: Scene) -> object:
        """Change policy.yaml without a policy entry."""
        policy = s.head.files[chain.POLICY].replace(b"four_eyes: true", b"four_eyes: false")
        return s.append(NOTE, s.keys["laptop"], {chain.POLICY: policy}, machine="laptop")

    yield "machine: policy.yaml changed in a note", silently

    def signers_changed(s: Scene) -> object:
        text = s.head.files[chain.SIGNERS] + f'ada namespaces="rft-act" {s.keys["mallory"].public}\n'.encode()
        return s.append(NOTE, s.keys["laptop"], {chain.SIGNERS: text}, machine="laptop")

    yield "machine: allowed_signers changed in a note", signers_changed

    def rejected(s: Scene) -> Act:
        no = s.nth(Rejection).entry.act
        assert isinstance(no, Rejection)
        act = next(each.entry.act for each in s.stored if each.entry.number == no.request)
        assert isinstance(act, Request)
        return act.model_copy(update={"run": "again", "key": "again", "champion": s.state.champion(act.model)})

    yield "machine: a rejected pair asked for again", by(rejected)

    def endless(s: Scene) -> Act:
        act = waiting(s).entry.act
        assert isinstance(act, Request)
        return act.model_copy(update={"expires": "2999-01-01T00:00:00Z"})

    yield "machine: a request that never expires", by(endless)
    yield (
        "machine: an entry time set back",
        by(lambda _: NOTE, time="2026-01-01T00:00:00Z"),
    )
    yield (
        "machine: a number left out",
        by(lambda _: NOTE, number=999),
    )

    def forked(s: Scene) -> object:
        """Put a valid entry on top of an older one. Only an anchor can reveal it."""
        s.append(NOTE, s.keys["laptop"], after=s.stored[-4], machine="laptop")
        return s.only(REVISION)

    yield "machine: rewound and continued, left: run revision", forked

    def forked_far(s: Scene) -> object:
        s.append(NOTE, s.keys["laptop"], after=s.stored[-4], machine="laptop")
        return s.only(SEEN)

    yield "machine: rewound and continued, left: last seen head", forked_far


def powerless() -> Iterator[tuple[str, Attack]]:
    """Yield tricks that change what Git shows, but must not change what the ledger says."""

    def replacement(s: Scene) -> object:
        forged = s.rewrite(5, noted, s.keys["mallory"])
        s.point(s.head.commit.id)
        return s.clone.git("replace", s.head.commit.id, forged)

    def blob(s: Scene) -> object:
        row = next(row for row in s.rows(s.stored[5]) if row.endswith("entry.json"))
        other = s.raw(noted(s.stored[5].entry).content, "blob")
        return s.clone.git("replace", row.split()[2], other)

    def graft(s: Scene) -> object:
        return (s.clone.root / ".git/info/grafts").write_text(f"{s.head.commit.id} {s.stored[2].commit.id}\n")

    def shallow(s: Scene) -> object:
        return (s.clone.root / ".git/shallow").write_text(f"{s.stored[6].commit.id}\n")

    def public(s: Scene) -> object:
        return (keys.folder(s.clone) / "machine.pub").write_text(s.keys["mallory"].public + "\n")

    def config(s: Scene) -> object:
        s.clone.git("config", "gpg.ssh.program", "/bin/true")
        s.clone.git("config", "gpg.program", "/bin/true")
        return s.clone.git("config", "gpg.ssh.allowedSignersFile", "/dev/null")

    yield "a replacement of the head", replacement
    yield "a replacement of an entry", blob
    yield "a graft", graft
    yield "a shallow boundary", shallow
    yield "another machine.pub", public
    yield "Git told to believe signatures", config
