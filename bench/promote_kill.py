"""The figure of cut-off promotions: after kill -9 at any write, an act is done or not, never half.

The acts are an approval, a promotion, a reconciliation and a rollback. A recorder around our writes
(files, Git, DVC, MLflow; see `Recorder`) lists what each undisturbed act writes. Then, for each
write, the act begins in a fresh copy of the same clone, and kills itself right before that write or
right after it. More acts run in their own processes. They are killed at random moments, either with
all their children or alone, so that the children go on.

After each kill comes the next start: the ledger is verified again, and `reconcile` runs. Then the
ledger, MLflow, its prompt registry and the champion file must say, to the byte, what they said
before the act, or what an undisturbed act leaves. No entry may claim that somebody moved something
by hand. Then the act is done again, and must end like the undisturbed one.

A copy of a clone includes its Git remote. Git's processes at the remote's end stand for another
machine, so no kill reaches them. Cases run in forks of one process that has everything imported.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import promoting
from bench.measure import Figure, Part
from bench.promoting import MODEL, ROOT, WHY, silent
from tasks.runs.clone import Clone

MOMENTS = 50
SIDES = ("before", "after")
LOOSE = ("scratch", "git hash-object", "git mktree")
"""Writes that nothing refers to yet. Scenes with a remote kill on one side of them, those without a
remote on the other."""
Seen = dict[str, Any]

# -- the acts --------------------------------------------------------------------------------------
ADDS = {
    "approve": ["request", "policy", "approval"],
    "promote": ["promotion"],
    "reconcile": ["reconcile", "reconcile"],
    "rollback": ["rollback"],
}
"""Act -> the entries that it appends."""


def perform(act: str, clone: Clone, key: Path) -> None:
    """Do the act, or find that it is done."""
    from tasks.ledger import book
    from tasks.promotion import acts, projections
    from tasks.runs import records

    ada, run = promoting.signer(clone, "ada", key), records.load_all(clone)[0].name
    if act == "approve":
        assert acts.approve(clone, run, ada, WHY, report_line=silent).approval_status.is_enough
    elif act == "promote":
        outcome = acts.promote(clone, run, report_line=silent)
        assert outcome.promoted, "not promoted"
        assert not outcome.problems, outcome.problems
    elif act == "reconcile":
        assert not (problems := projections.reconcile(clone, silent)), problems
    elif book.read(clone, fetch=True, report_line=silent).state.champion(MODEL):
        back = acts.rollback(clone, MODEL, ada, WHY, report_line=silent)
        assert not back.problems, back.problems


def move_by_hand(clone: Clone) -> None:
    """Move what `reconcile` must find."""
    from tasks.display import tracking
    from tasks.promotion.champion_file import ChampionFile

    client = tracking.client(clone)
    beginning = client.get_model_version_by_alias(MODEL, "previous").version
    client.set_registered_model_alias(MODEL, "champion", beginning)
    ChampionFile(clone).path(MODEL).write_text("{}")


# -- what is there ---------------------------------------------------------------------------------
def observe(clone: Clone) -> Seen:
    """Return everything that the ledger and its projections say, verified again."""
    from tasks.display import tracking
    from tasks.ledger import book
    from tasks.promotion.champion_file import ChampionFile
    from tasks.promotion.mlflow_registry import MLflowRegistry, prompt_name

    ledger = book.read(clone, fetch=True, reverify=True, report_line=silent)
    file, registry, client = ChampionFile(clone).path(MODEL), MLflowRegistry(clone), tracking.client(clone)
    shown = registry.shown(MODEL)
    found: Seen = {
        "kinds": [each.entry.act.kind for each in ledger.stored],
        "champion": ledger.state.champion(MODEL),
        "file": json.loads(file.read_text()) if file.exists() else None,
        "MLflow": [shown.ledger, shown.act, shown.champion, shown.previous, shown.begun] if shown else None,
        "versions": sorted(
            str(version.tags.get("rft.champion")) for version in client.search_model_versions(f"name = '{MODEL}'")
        )
        if shown
        else [],
        "prompts": {},
    }
    if client.get_prompt(prompt_name(MODEL)):
        for alias in ("champion", "previous"):
            with contextlib.suppress(Exception):  # there is no such alias
                prompt = client.get_prompt_version_by_alias(prompt_name(MODEL), alias)
                found["prompts"][alias] = [prompt.version, prompt.template]
    if ledger.shared.remote and ledger.head:
        there = clone.git("ls-remote", ledger.shared.remote, f"refs/heads/{ledger.shared.branch}").split()
        found["remote is the same"] = there[:1] == [ledger.head]
    return found


def differs(found: Seen, wanted: Seen) -> str:
    """Say which parts differ, and how. Empty: none do. The ledger's kinds are judged elsewhere."""
    names = [name for name in wanted if name != "kinds" and found.get(name) != wanted[name]]
    return "; ".join(f"{name} is {found.get(name)}, not {wanted[name]}" for name in names)


def leftovers(clone: Clone) -> list[str]:
    """Return locks of Git that nobody holds any more, and that block the next command."""
    places = [clone.root / ".git", clone.root.parent / "remote.git"]
    return [str(path.relative_to(clone.root.parent)) for place in places for path in place.rglob("*.lock")]


# -- the recorder ----------------------------------------------------------------------------------
GIT = {"hash-object", "mktree", "update-ref", "push", "fetch", "worktree", "commit-tree", "write-tree", "read-tree"}
GIT |= {"checkout", "checkout-index", "config", "reset", "update-index"}
MLFLOW = ("create_", "_create_", "set_", "delete_", "register_", "log_", "finalize_", "update_")
FILES = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "symlink", "link", "chmod")


@dataclass
class Recorder:
    """Wraps all functions that write, for the rest of this process, and counts the writes.

    A write to a file makes, empties, renames, removes or links it. For Git, each command counts
    that writes objects, refs or a worktree; for DVC, each transfer. For MLflow, each method of its
    client counts that changes something, together with what it calls. A promotion makes hundreds of
    writes to scratch folders: those in a row count as one.
    """

    folder: Path
    die: tuple[str, int, str] | None = None
    """A write, how often it came before, and "before" or "after" it. Its number may differ by one,
    because some folders are made only once."""
    writes: list[str] = field(default_factory=list[str])
    _depth: int = 0
    _scratch: bool = False

    def install(self) -> None:
        from mlflow import MlflowClient

        from tasks.runs import repro

        for name in FILES:
            setattr(os, name, self.wrap(getattr(os, name), lambda *a, name=name, **k: self._file(name, *a, **k)))
        builtins.open = io.open = self.wrap(io.open, self._opened)
        os.open = self.wrap(os.open, self._os_opened)
        subprocess.run = self.wrap(subprocess.run, self._command)
        repro.dvc = self.wrap(repro.dvc, lambda tree, *arguments: f"dvc {arguments[0]}")
        for name in dir(MlflowClient):
            if name.startswith(MLFLOW):
                wrapped = self.wrap(getattr(MlflowClient, name), lambda _, *a, name=name, **k: _describe(name, a))
                setattr(MlflowClient, name, wrapped)

    def wrap(self, real: Callable[..., Any], what: Callable[..., str | None]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            description = what(*arguments, **named) if self._depth == 0 else None
            is_again = description == "scratch" and self._scratch
            if description is None or is_again:
                return real(*arguments, **named)
            self._scratch = description == "scratch"
            self.writes.append(description)
            number = self.writes.count(description) - 1
            self._die_at((description, number, "before"))
            self._depth += 1
            try:
                return real(*arguments, **named)
            finally:
                self._depth -= 1
                self._die_at((description, number, "after"))

        return wrapped

    def _die_at(self, moment: tuple[str, int, str]) -> None:
        if self.die == moment:
            os.killpg(os.getpgrp(), signal.SIGKILL)

    def _file(self, verb: str, path: Any, *more: Any, **named: Any) -> str | None:
        target = more[0] if verb in ("replace", "rename", "link", "symlink") and more else path
        if not isinstance(target, str | Path):
            return None
        if (at := named.get("dir_fd")) is not None:
            target = Path(os.readlink(f"/proc/self/fd/{at}")) / target
        if verb == "mkdir" and Path(target).exists():
            return None
        return self._place(verb, target)

    def _opened(self, path: Any, mode: str = "r", *_: Any, **__: Any) -> str | None:
        if not isinstance(path, str | Path) or not {*mode} & {*"wxa"}:
            return None
        return None if "a" in mode and Path(path).exists() else self._place("open", path)

    def _os_opened(self, path: Any, flags: int, *_: Any, **__: Any) -> str | None:
        if not isinstance(path, str | Path) or not flags & (os.O_CREAT | os.O_TRUNC):
            return None
        return None if Path(path).exists() and not flags & os.O_TRUNC else self._place("open", path)

    def _place(self, verb: str, path: str | Path) -> str | None:
        path = Path(os.path.abspath(path))
        if path.is_relative_to("/dev") or path.is_relative_to("/proc"):
            return None
        if not path.is_relative_to(self.folder):
            return "scratch"
        parts = path.relative_to(self.folder).parts
        if len(parts) > 2 and parts[1] == ".rft" and parts[2].startswith(("agent-", "transfer-")):
            return "scratch"
        name = re.sub(r"(tmp|making-)[a-z0-9_]{8}", r"\1", "/".join(parts))
        return f"{verb} {name}"

    def _command(self, command: Any, *_: Any, **__: Any) -> str | None:
        if command[0] == "ssh-keygen":
            return "ssh-keygen makes a key" if "-t" in command[:6] else None
        if command[0] != "git":
            return None
        words = list(command[1:])
        while words[:1] == ["-c"]:
            words = words[2:]
        verb = words[0] if words else ""
        if verb not in GIT or (verb == "config" and len(words) < 3):
            return None
        named = [word for word in words[1:] if word in ("add", "remove", "prune", "blob", "commit", "refs/rft/ledger")]
        return " ".join(["git", verb, *named])


def _describe(name: str, arguments: tuple[Any, ...]) -> str:
    return " ".join(["MLflow", name, *(str(each) for each in arguments[:3] if len(str(each)) < 40)])


# -- in forks --------------------------------------------------------------------------------------
def forked(act: Callable[[], Any]) -> tuple[int, Any]:
    """Run in a fork, which leads its own process group. Returns the exit status, and what the
    function returned (None: it was killed)."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            os.close(reader)
            found = json.dumps(act())
            with os.fdopen(writer, "w") as pipe:
                pipe.write(found)
            code = 0
        except BaseException:
            with os.fdopen(writer, "w") as pipe:
                pipe.write(json.dumps(traceback.format_exc()[-2000:]))
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), json.loads(text) if text else None


def done(act: Callable[[], Any]) -> Any:
    code, found = forked(act)
    if code != 0:
        raise RuntimeError(found)
    return found


# -- cases -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Scene:
    """A clone in which an act will happen."""

    act: str
    base: Path
    """A folder with `clone` in it, and `remote.git` if it is shared."""
    shared: bool
    key: Path
    before: Seen
    after: Seen
    writes: tuple[str, ...]
    lasts_s: float

    @property
    def name(self) -> str:
        return f"{self.act}, {'shared' if self.shared else 'alone'}"


@dataclass(frozen=True)
class Case:
    scene: Scene
    write: int | None = None
    side: str = ""
    """"before" or "after" that write."""
    share: float = 0.0
    """The kill comes at this share of the act's time, a random moment."""
    alone: bool = False
    """Only the driver is killed, and its children go on."""

    @property
    def name(self) -> str:
        if self.write is None:
            who = "driver alone" if self.alone else "with children"
            return f"{self.scene.name}, at {self.share:.2f} of its time, {who}"
        return f"{self.scene.name}, {self.side} {self.write}: {self.scene.writes[self.write]}"


@dataclass(frozen=True)
class Result:
    case: Case
    killed: bool
    was_done: bool
    """When the kill came, the act was in the ledger."""
    faults: tuple[str, ...]
    locks: tuple[str, ...]


def attempt(case: Case) -> Result:
    scene = case.scene
    with tempfile.TemporaryDirectory(prefix="case-", dir=scene.base.parent, ignore_cleanup_errors=True) as place:
        folder = Path(place)
        copy(scene.base, folder)
        clone = Clone(folder / "clone")
        kill = _at_random if case.write is None else _at_a_write
        killed, message = kill(case, clone)
        faults = [] if killed is not None else [f"was not killed: {message}"]
        locks = leftovers(clone)
        was_done = False
        for step, wanted in (("next start", None), ("done again", scene.after)):
            code, found = forked(lambda step=step: _start(scene, clone, again=step == "done again"))
            if code != 0:
                faults.append(f"{step}: {found}")
                break
            faults += [f"{step}: {each}" for each in judged(scene, found, wanted)]
            was_done = was_done or (step == "next start" and found["kinds"] == scene.after["kinds"])
        return Result(case, bool(killed), was_done, tuple(faults), tuple(locks))


def _at_a_write(case: Case, clone: Clone) -> tuple[bool | None, Any]:
    assert case.write is not None
    description = case.scene.writes[case.write]
    recorder = Recorder(clone.root.parent, (description, case.scene.writes[: case.write].count(description), case.side))

    def act() -> None:
        recorder.install()
        perform(case.scene.act, clone, case.scene.key)

    code, found = forked(act)
    return (True, "") if code == -signal.SIGKILL else (None, found)


def _at_random(case: Case, clone: Clone) -> tuple[bool | None, Any]:
    """Kill a real process at a random moment. It may be over before that."""
    command = [sys.executable, "-m", "bench.promote_kill", case.scene.act, str(clone.root), str(case.scene.key)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        text=True,
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdin
        assert child.stdout
        assert child.stderr
        if child.stdout.readline() != "ready\n":
            return None, child.stderr.read()[-1000:]
        child.stdin.write("go\n")
        child.stdin.flush()
        time.sleep(case.share * case.scene.lasts_s)
        for process in [child.pid] if case.alone else below(child.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        code = child.wait()
        errors = child.stderr.read() if code not in (0, -signal.SIGKILL) else ""
    return (None, errors[-1000:]) if errors else (code == -signal.SIGKILL, "")


def below(process: int) -> list[int]:
    """Return a process and its descendants. Those at the remote's end are another machine's, and
    left out."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            text = stat.read_text()
            if "(git-receive-pac" not in text and "(git-upload-pack" not in text:
                children.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found = [process]
    for each in found:
        found += children.get(each, [])
    return found


def _start(scene: Scene, clone: Clone, again: bool) -> Seen:
    """Do the next start, and return what is there then."""
    from tasks.promotion import projections

    if again:
        perform(scene.act, clone, scene.key)
    elif problems := projections.reconcile(clone, silent):
        raise RuntimeError(f"reconcile: {problems}")
    return observe(clone)


def judged(scene: Scene, found: Seen, wanted: Seen | None) -> list[str]:
    """Return what is wrong. `wanted` None: the state before the act or after it is right."""
    faults: list[str] = []
    begun, whole = scene.before["kinds"], scene.after["kinds"]
    kinds = found["kinds"]
    if scene.act == "reconcile":  # after a kill between the record and the correction, it is recorded again
        wanted, more = scene.after, kinds[len(whole) :]
        if kinds[: len(whole)] != whole or more not in ([], ["reconcile"]):
            faults.append(f"entries {kinds}")
    elif kinds != whole[: max(len(kinds), len(begun))] or (wanted is not None and kinds != whole):
        faults.append(f"entries {kinds}, not {whole}")
    wanted = wanted or (scene.after if kinds == whole else scene.before)
    how = differs(found, wanted)
    if found.get("remote is the same") is False:
        faults.append("clone and remote have other heads")
    return faults + ([how] if how else [])


def copy(base: Path, folder: Path) -> None:
    subprocess.run(["cp", "-a", "--reflink=auto", f"{base}/.", str(folder)], check=True)


# -- scenes ----------------------------------------------------------------------------------------
def scenes(place: Path, shared: bool, key: Path) -> list[Scene]:
    """Make the acts in a row. Each begins where the one before has left the clone."""
    root = place / ("shared" if shared else "alone")
    start = root / "approve"
    promoting.make(start, shared)
    found: list[Scene] = []
    for act, then in (("approve", "promote"), ("promote", "rollback"), ("rollback", ""), ("reconcile", "")):
        base = root / act
        if act == "reconcile":
            base.mkdir()
            copy(root / "rollback", base)
            done(lambda base=base: move_by_hand(Clone(base / "clone")))
        found.append(_scene(act, base, shared, key, root / (then or f"after-{act}")))
    return found


def _scene(act: str, base: Path, shared: bool, key: Path, after: Path) -> Scene:
    """Do the act undisturbed in a copy. The next act begins in that copy."""
    after.mkdir()
    copy(base, after)
    clone, began = Clone(after / "clone"), time.monotonic()
    before = done(lambda: observe(clone))

    def recorded() -> tuple[list[str], float]:
        recorder = Recorder(after)
        recorder.install()
        began = time.monotonic()
        perform(act, clone, key)
        return recorder.writes, time.monotonic() - began

    writes, lasts_s = done(recorded)
    seen = done(lambda: observe(clone))
    assert seen["kinds"] == before["kinds"] + ADDS[act], seen["kinds"]
    print(f"{act}: {len(writes)} writes, {lasts_s:.1f} s of {time.monotonic() - began:.1f} s", file=sys.stderr)
    return Scene(act, base, shared, key, before, seen, tuple(writes), lasts_s)


def cases(found: Iterable[Scene], moments: int) -> list[Case]:
    """List a kill on both sides of each write, some with a remote and some without, and at random
    moments."""
    found = [*found]
    at_writes = [
        Case(scene, write, side)
        for scene in found
        for write, description in enumerate(scene.writes)
        for side in (SIDES if not description.startswith(LOOSE) else SIDES[not scene.shared :][:1])
        if scene.shared or side == "after"
    ]
    draw = random.Random(0)
    at_random = [
        Case(found[number % len(found)], share=draw.random(), alone=number // len(found) % 2 == 1)
        for number in range(moments)
    ]
    return at_writes + at_random


# -- the figure ------------------------------------------------------------------------------------
def promote_kill(args: list[str]) -> Figure:
    """kill -9 before and after every write of an approval, a promotion, a reconciliation and a
    rollback, and at 50 random moments: promotions that are half done (0)."""
    small = "--small" in args
    with tempfile.TemporaryDirectory(prefix="rft-kill-") as place, redirect_stdout(sys.stderr):
        return _figure(Path(place), small)


def _figure(place: Path, small: bool) -> Figure:
    from tests import people

    _import(place)
    key = people.key("ada")
    every = [scene for shared in ((True,) if small else (True, False)) for scene in scenes(place, shared, key)]
    wanted = cases(every, 4 if small else MOMENTS)
    if small:
        wanted = wanted[:-4:30] + wanted[-4::2]
    random.Random(0).shuffle(wanted)
    results, began = list[Result](), time.monotonic()
    with multiprocessing.get_context("fork").Pool(max(1, len(os.sched_getaffinity(0)))) as pool:
        for result in pool.imap_unordered(attempt, wanted):
            results.append(result)
            if result.faults or result.locks or len(results) % 25 == 0:
                line = f"{len(results)}/{len(wanted)} {result.case.name}"
                print(f"{line}: {result.faults} {result.locks}", file=sys.stderr)
    bad = [result for result in results if result.faults]
    writes = {scene.name: list(scene.writes) for scene in every}
    at_writes = [each for each in results if each.case.write is not None]
    at_random = [each for each in results if each.case.write is None]
    why = "; ".join(f"{each.case.name}: {each.faults[0][-300:]}" for each in bad[:3])
    alone = sum(not each.case.scene.shared for each in results)
    parts = (
        Part("half done, out of line or stuck after a kill", len(bad), "cases", at_most=0, n=len(results), reason=why),
        Part("writes that were found", sum(map(len, writes.values())), "writes", at_least=None if small else 50),
        Part("kills before and after them", len(at_writes), "kills", at_least=None if small else 100),
        Part("kills at random moments", len(at_random), "kills", at_least=None if small else MOMENTS),
        Part("of these, after the act was over", sum(not each.killed for each in at_random), "kills"),
        Part("of all, with locks of Git left behind", sum(bool(each.locks) for each in results), "kills"),
        Part("of all, with the act in the ledger", sum(each.was_done for each in results), "kills"),
        Part("of all, in a clone without a remote", alone, "kills"),
    )
    notes = {
        "cases": Counter(each.case.scene.name for each in results),
        "wall_s": round(time.monotonic() - began),
        "writes": writes,
    }
    return Figure(parts, notes)


def _import(place: Path) -> None:
    """Import all that an act needs, so that forks need not do it."""
    promoting.enter(place)
    from mlflow import MlflowClient  # noqa: F401
    from mlflow.store.model_registry import sqlalchemy_store  # noqa: F401
    from model_signing import signing, verifying  # noqa: F401

    from tasks.display import tracking
    from tasks.promotion import acts, projections  # noqa: F401

    tracking.quiet()


def child(act: str, clone: Clone, key: Path) -> None:
    """Wait for the start, then act."""
    _import(clone.root.parent.parent)
    print("ready", flush=True)
    sys.stdin.readline()
    perform(act, clone, key)


FIGURES = {"promote_kill": promote_kill}

if __name__ == "__main__":
    child(sys.argv[1], Clone(Path(sys.argv[2])), Path(sys.argv[3]))
