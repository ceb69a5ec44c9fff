"""The figure of the tampered ledger: is every change without an enrolled key named?

In a chain that nobody touched, nothing may be named. Each case is a copy of a clone, one trick
(ledger_attacks, ledger_bytes, ledger_rogue), and two readings. The ordinary reading believes what
this clone has verified before, and the other one verifies everything again. Both must end in a
message with exit code 2; a traceback does not count. If the signatures, hashes and rules of the
chain must be enough, it is read once more without any memory or other anchor.

The clean chains are random histories of people, machines, models, rules, rollbacks, lifts,
removals, compromised keys and restarts. The clone reads them in steps, and a second clone reads
them through a remote.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from bench import ledger_attacks, ledger_rogue, ledger_scene
from bench.ledger_scene import Attack, Scene
from bench.measure import Figure, Part
from rft.errors import UserError
from tasks.ledger import book, remote, restart, statement
from tasks.ledger.entry import Approval, Promotion, Reconcile, Rejection, Request, Rollback
from tasks.ledger.facts import RequestState
from tasks.ledger.keys import Key
from tasks.ledger.policy import Enrol, EnrolMachine, Remove, RemoveMachine, Rules, SetRules
from tasks.ledger.remote import Shared
from tasks.ledger.statement import Content, Statement
from tasks.runs.clone import Clone
from tests import ledger_world
from tests.ledger_world import HASHES, Story

CLEAN, RANDOM = 100, 3


def ledger_tamper(args: list[str]) -> Figure:
    """A ledger that was tampered with without an enrolled key: cases that are named (all), and
    alarms on clean chains (0)."""
    small = "--small" in args
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        keys = ledger_world.cast(root / "keys")
        outside, machine = Counter[str](), Counter[str]()
        scene = scripted(root / "scripted", keys, seed=0)
        tricks = list(ledger_attacks.outsider())
        attempt(root, scene, tricks[::9] if small else tricks, outside)
        attempt(root, scene, list(ledger_rogue.rogue())[:: 9 if small else 1], machine)
        for seed in range(0 if small else RANDOM):
            random = _random_scene(root / f"random-{seed}", keys, seed)
            attempt(root, random, list(ledger_attacks.general()), outside)
        calm = without_use(root, scene, list(ledger_rogue.powerless()))
        alarms = [clean(root / f"clean-{seed}", keys, seed) for seed in range(4 if small else CLEAN)]
    missed = outside["missed"] + machine["missed"]
    parts = (
        Part("tampered, and not named", missed, "cases", at_most=0, n=outside.total() + machine.total()),
        Part("cases of an outsider", outside.total(), "cases", at_least=None if small else 100),
        Part("cases of an enrolled machine without a person's key", machine.total(), "cases"),
        Part("of these, named by an anchor alone", outside["anchored"] + machine["anchored"], "cases"),
        Part(
            "tricks on Git alone that changed what the ledger says", calm.count(True), "cases", at_most=0, n=len(calm)
        ),
        Part("false alarms", sum(map(len, alarms)), "alarms", at_most=0, n=len(alarms)),
    )
    return Figure(parts, {"alarms": [each for found in alarms for each in found]})


def attempt(root: Path, scene: Scene, tricks: list[tuple[str, Attack]], found: Counter[str]) -> None:
    for name, attack in tricks:
        with tempfile.TemporaryDirectory(dir=root) as place:
            copy = ledger_scene.copy(scene, Path(place) / "clone")
            attack(copy)
            readings = [_reading(copy, reverify) for reverify in (False, True)]
            if "left: " not in name:
                copy.only()
                readings.append(_reading(copy, reverify=True))
        is_named = all(each is not None and not each.startswith("!") for each in readings)
        found["missed" if not is_named else "anchored" if "left: " in name else "named"] += 1
        print(
            f"{'named ' if is_named else 'MISSED'} {name}: {' | '.join(dict.fromkeys(map(str, readings)))}",
            file=sys.stderr,
        )


def _reading(scene: Scene, reverify: bool) -> str | None:
    """Return what the reader says. None: nothing is wrong."""
    try:
        book.read(scene.clone, reverify=reverify, report_line=_silent)
    except UserError as error:
        return str(error)
    except Exception as error:
        return f"!{error!r}"
    return None


def without_use(root: Path, scene: Scene, tricks: list[tuple[str, Attack]]) -> list[bool]:
    """Return for each trick whether it changed what is read."""
    changed = list[bool]()
    for name, attack in tricks:
        with tempfile.TemporaryDirectory(dir=root) as place:
            copy = ledger_scene.copy(scene, Path(place) / "clone")
            attack(copy)
            states = [book.read(copy.clone, reverify=reverify, report_line=_silent).state for reverify in (False, True)]
            changed.append(any(state != scene.state for state in states))
        print(f"{'CHANGED' if changed[-1] else 'no use '} {name}", file=sys.stderr)
    return changed


# -- scenes ----------------------------------------------------------------------------------------
def scripted(root: Path, keys: dict[str, Key], seed: int) -> Scene:
    """Make a ledger in which everything happened once, and a request waits."""
    clone = ledger_world.make_clone(root)
    story = Story(Random(seed), keys, clone.git("rev-parse", "main"), signs=True)
    story.open()
    story.change(Enrol(name="bob", roles=["approver"], key=keys["bob"].public), "ada")
    for name in ("server", "desk"):
        story.change(EnrolMachine(name=name, key=keys[name].public), "ada")
    first = _request(story, "icd10", "first", weights=HASHES[1])
    _promote(story, first)
    story.change(Enrol(name="cleo", roles=["author"], key=keys["cleo"].public), "ada", "server")
    story.change(Enrol(name="dora", roles=["approver"], key=keys["dora"].public), "ada")
    champion = story.state.champion("icd10")
    back = {"act": "rollback", "model": "icd10", "champion": story.state.promotions[champion].id}
    assert story.propose(Rollback(model="icd10", before=champion, to=0), "server", "bob", **back)
    _promote(story, _request(story, "icd10", "second", weights=HASHES[2]))
    refused = _request(story, "tiny", "refused", weights=HASHES[3])
    assert story.propose(Rejection(model="tiny", request=refused.number), "laptop", "bob", **_about(refused, "reject"))
    story.change(SetRules(model=None, rules=Rules(four_eyes=True, approval_days=7)), "ada")
    story.change(RemoveMachine(name="desk"), "ada")
    story.change(Remove(name="dora"), "ada")
    story.time = statement.later(story.time, days=10)
    request = _request(story, "tiny", "waiting", weights=HASHES[0], starter="ada")
    assert story.propose(Reconcile(model="tiny", projection="alias", found="7", set="8"), "server")

    def elsewhere() -> Statement:
        return story.statement(**_about(request, "approve") | {"ledger": "9" * 64})

    return _written(root, keys, story, elsewhere)


def _request(story: Story, model: str, run: str, weights: str, starter: str | None = None) -> RequestState:
    content = Content(
        decision_sha256=HASHES[0],
        prompt_sha256=HASHES[0],
        weights_sha256=weights,
        base_sha256=None,
        test_sha256=HASHES[0],
    )
    act = Request(
        model=model,
        run=run,
        revision=story.revision,
        candidate="challenger",
        content=content,
        champion=story.state.champion(model),
        registration=story.look(model, content),
        edits_sha256=None,
        key=run,
        started_by="Ada",
        expires=statement.later(story.time, days=20),
    )
    about = {"act": "start", "run": run, "model": model} if starter else {}
    assert story.propose(act, "laptop", starter, **about)
    return story.state.requests[story.state.number]


def _about(request: RequestState, act: str) -> dict[str, object]:
    return {"act": act, "model": request.act.model, "request": request.id, "content": request.act.content}


def _promote(story: Story, request: RequestState) -> None:
    model = request.act.model
    assert story.propose(Approval(model=model, request=request.number), "laptop", "bob", **_about(request, "approve"))
    act = Promotion(
        model=model,
        request=request.number,
        approvals=[story.state.number],
        before=story.state.champion(model),
        weights_signature=None,
        smoke="4 of 4",
    )
    assert story.propose(act, "laptop")


def _random_scene(root: Path, keys: dict[str, Key], seed: int) -> Scene:
    clone = ledger_world.make_clone(root)
    story = Story(Random(seed), keys, clone.git("rev-parse", "main"), signs=True)
    story.open()
    while len(story.lines) < 20:
        story.step(restarts=False)
    return _written(root, keys, story, story.statement)


def _written(root: Path, keys: dict[str, Key], story: Story, elsewhere: Callable[[], Statement]) -> Scene:
    """Make the clone as it is after it has read its ledger, with runs that recorded it."""
    clone = Clone(root)
    other = clone.git("commit-tree", "main^{tree}", "-m", "other")
    clone.git("update-ref", "refs/heads/other", other)
    ledger_world.is_machine(clone, keys["laptop"])
    ledger_world.write(clone, story)
    for line in (*story.lines[:2], story.lines[-1]):
        ledger_world.record(clone, f"run-{line.entry.number}", line.entry)
    read = book.read(clone, report_line=_silent)
    assert read.state == story.state
    return Scene(clone, keys, read.stored, read.state, elsewhere)


# -- clean chains ----------------------------------------------------------------------------------
def clean(root: Path, keys: dict[str, Key], seed: int) -> list[str]:
    """Simulate a history, and read it all along. Returns what was named wrongly."""
    rng = Random(1000 + seed)
    clone = ledger_world.make_clone(root / "clone")
    ledger_world.is_machine(clone, keys["laptop"])
    story = Story(rng, keys, clone.git("rev-parse", "main"), signs=True)
    readers = [clone] if seed % 3 else [clone, _second(root, clone, keys)]
    alarms = list[str]()
    for length in sorted(rng.sample(range(4, 30), 3)):
        before, done = story.state.genesis, len(story.lines)
        while len(story.lines) < length:
            story.step()
        head = ledger_world.write(clone, story, done)
        if len(readers) > 1:
            clone.git("push", "-q", "origin", f"{head}:refs/heads/rft-ledger")
        for reader in readers:
            alarms += _reads(reader, story, is_new=before not in ("", story.state.genesis), fetch=len(readers) > 1)
            ledger_world.record(reader, f"run-{length}", rng.choice(story.lines).entry)
    return [f"history {seed}: {each}" for each in alarms]


def _second(root: Path, clone: Clone, keys: dict[str, Key]) -> Clone:
    """Make a second clone, and the remote that both share."""
    clone.git("init", "-q", "--bare", str(root / "origin"))
    clone.git("remote", "add", "origin", str(root / "origin"))
    clone.git("push", "-q", "origin", "main")
    clone.git("clone", "-q", "-b", "main", str(root / "origin"), str(root / "second"))
    second = Clone(root / "second")
    ledger_world.is_machine(second, keys["server"])
    for each in (clone, second):
        remote.pin(each, Shared(remote="origin"), None)
    return second


def _reads(clone: Clone, story: Story, is_new: bool, fetch: bool) -> list[str]:
    """Read three times, as a clone does. `is_new`: it was restarted, and its people accept that."""
    try:
        if is_new:
            restart.accept(clone, _silent)
        else:
            remote.pin(clone, remote.shared(clone), story.state.genesis)
        for reverify in (False, True, False):
            found = book.read(clone, fetch=fetch, reverify=reverify, report_line=_silent).state
            if found != story.state:
                return ["the state that was read is another"]
    except UserError as error:
        return [str(error)]
    return []


def _silent(_: str) -> None:
    pass


FIGURES = {"ledger_tamper": ledger_tamper}
