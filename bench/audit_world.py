"""A simulated year of a clone, for the figures of audits: they ask about it.

`year(folder, runs, entries)` simulates it. There are two agents, people who approve, reject,
override and roll back, windows of traffic that overlap, and prompts and weights that build on each
other. Packages, recipes, graders and base models change. Git, the ledger, SSH keys, MLflow, DVC's
cache and dvc.lock are real, and written by the functions of production. Only three things are
simulated. The stages only leave files that were made beforehand (tests/sample_reports.py). The
clock is moved. And two slow things that are not the question here are replaced: `dvc commit`
(audit_lock.py), and reading a chain that this process has just written.

The plot of each run is drawn from a seed. The same seed gives the same year, except for keys and
signatures. The first runs are chosen, so that a small world has some of everything.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Literal
from unittest import mock

import yaml

from bench.audit_lock import Tree, cached
from rft import config, files, reports, stage_files
from rft.traffic import reading
from rft.types import Example
from tasks.runs.clone import TELEMETRY_OFF, Clone

if TYPE_CHECKING:
    from tasks.ledger.book import Ledger
    from tests.ladder_clone import Scripted

ROOT = Path(__file__).resolve().parents[1]
BEGAN = datetime.fromisoformat("2025-01-06T08:00:00+00:00")
DAYS = 300
"""The days between the runs. The rest of the year passes while people decide."""
MODELS = ("tiny", "given")
GIVEN = "data/models/base"
WINDOW, OVERLAP = 40, 10
"""How many conversations a window has, and how many of them were in the window before."""
STORE = "store"

Outcome = Literal["promote", "prompt_only", "reject", "inconclusive", "drift_stop"]
Change = Literal["", "recipe", "grader", "engine", "edits", "base"]
RequestStatus = Literal["promoted", "rejected", "waits"]
Then = Literal["", "rollback", "opened", "alias"]


@dataclass(frozen=True)
class Plot:
    """What happens in a run, and after it."""

    model: str = "tiny"
    outcome: Outcome = "promote"
    source: Literal["recipe", "window"] = "recipe"
    trains_from: Literal["policy", "champion"] = "policy"
    change: Change = ""
    request_status: RequestStatus = "promoted"
    then: Then = ""


CHOSEN = (
    Plot(outcome="prompt_only"),
    Plot(change="base"),
    Plot(trains_from="champion", source="window", change="engine"),
    Plot(model="given", outcome="promote", change="recipe"),
    Plot(outcome="prompt_only", change="grader"),
    Plot(change="edits", trains_from="champion"),
    Plot(then="rollback", source="window"),
    Plot(request_status="rejected"),
    Plot(outcome="reject"),
    Plot(model="given", trains_from="champion", then="alias"),
    Plot(outcome="inconclusive", then="opened"),
    Plot(outcome="drift_stop"),
    Plot(request_status="waits"),
)


def plots(rng: Random) -> Iterator[Plot]:
    yield from CHOSEN
    while True:
        model = rng.choices(MODELS, (3, 1))[0]
        outcomes: list[Outcome] = ["promote", "prompt_only", "reject", "inconclusive", "drift_stop"]
        changes: list[Change] = ["", "recipe", "grader", "engine", "edits"]
        thens: list[Then] = ["", "rollback", "opened", "alias"]
        yield Plot(
            model=model,
            outcome=rng.choices(outcomes, (64, 30, 2, 2, 2))[0],
            source=rng.choices(("recipe", "window"), (3, 1))[0],
            trains_from=rng.choice(("policy", "champion")),
            change=rng.choices(changes, (4, 2, 1, 2, 1))[0],
            request_status=rng.choices(("promoted", "rejected", "waits"), (96, 2, 2))[0],
            then=rng.choices(thens, (85, 7, 3, 5))[0],
        )


@dataclass
class World:
    scripted: Scripted
    rng: Random
    entries: int
    """How many entries there must be at the end of the year, at least."""
    runs: list[str] = field(default_factory=list[str])
    clock: datetime = BEGAN
    ledger: Ledger | None = None
    """The ledger, kept in memory during the simulation."""
    test_seed: int = 0
    base: int = 0

    @property
    def clone(self) -> Clone:
        return self.scripted.clone

    def now(self) -> str:
        return self.clock.strftime("%Y-%m-%dT%H:%M:%SZ")

    def passes(self, **time: float) -> None:
        self.clock += timedelta(**time)
        for who in ("AUTHOR", "COMMITTER"):
            os.environ[f"GIT_{who}_DATE"] = self.clock.strftime("%Y-%m-%dT%H:%M:%S+0000")


def year(
    folder: Path, runs: int = 50, entries: int = 1000, seed: int = 0, at: Callable[[int, Clone], None] | None = None
) -> World:
    """Simulate a year in `folder/clone`. Call it within `entered`. After each run `at` is called
    with the number of runs; the ledger then has its length of that time."""
    world = _begin(folder, entries, seed)
    with _simulated(world):
        world.passes(seconds=1)
        _people(world)
        for number, plot in zip(range(1, runs + 1), plots(world.rng), strict=False):
            _run(world, number, plot)
            _chatter(world, entries * number // runs)
            if at is not None:
                at(number, world.clone)
            world.passes(days=DAYS / runs)
    _read_anew(world)
    return world


@contextlib.contextmanager
def entered(place: Path) -> Iterator[None]:
    """Set the environment of this process and its children."""
    # tests/ladder_clone.py and its parts import each other without the name of their package
    sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "tests")) if path not in sys.path]
    before = dict(os.environ)
    os.environ.update(
        TELEMETRY_OFF,
        GIT_CONFIG_GLOBAL=os.devnull,
        GIT_CONFIG_NOSYSTEM="1",
        DVC_SITE_CACHE_DIR=str(place / "dvc"),
        OMP_NUM_THREADS="1",
    )
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# -- what is played --------------------------------------------------------------------------------
@contextlib.contextmanager
def _simulated(world: World) -> Iterator[None]:
    from tasks.ledger import book, statement
    from tasks.promotion import agents, smoke
    from tasks.runs import records, repro

    real, before = book._read, dict(os.environ)  # pyright: ignore[reportPrivateUsage]

    def read(clone: Clone, *arguments: Any) -> Ledger:
        if world.ledger is None or not world.ledger.stored:
            world.ledger = real(clone, *arguments)
        return world.ledger

    def play(*_: object) -> smoke.Smoke:
        return smoke.Smoke(source="scripted", examples=4, solved=4, mean_reward=1.0, stop_reasons={}, seconds=0.0)

    patches = (
        mock.patch.object(book, "_read", read),
        mock.patch.object(statement, "now", world.now),
        mock.patch.object(agents, "now", world.now),
        mock.patch.object(records, "now", world.now),
        mock.patch.object(smoke, "play", play),
        mock.patch.object(repro, "dvc", partial(_checkout, world.clone)),
        mock.patch.object(yaml, "safe_load", partial(yaml.load, Loader=yaml.CSafeLoader)),
    )
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        try:
            yield
        finally:
            # MLflow sets it for its children, and the next world would write into this one's store
            for name in ("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE", "MLFLOW_TRACKING_URI"):
                os.environ.pop(name, None)
            os.environ.update(before)


def _checkout(clone: Clone, tree: Path, *arguments: str) -> str:
    """Do `dvc checkout FOLDER.dvc`, the only command that is needed to make a run."""
    command, pointer = arguments
    assert command == "checkout", arguments
    row = yaml.safe_load((tree / pointer).read_text())["outs"][0]
    for file in json.loads(cached(clone, row["md5"]).read_bytes()):
        target = tree / pointer.removesuffix(".dvc") / file["relpath"]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(cached(clone, file["md5"]), target)
    return ""


def _read_anew(world: World) -> None:
    """Read as the next command does: everything is verified, and remembered."""
    from tasks.ledger import book

    assert world.ledger is not None
    found = book.read(world.clone, reverify=True, report_line=silent)
    assert found.state == world.ledger.state
    world.ledger = None


# -- the beginning ---------------------------------------------------------------------------------
def _begin(folder: Path, entries: int, seed: int) -> World:
    from tests import ladder_clone, tiny_recipe

    scripted = ladder_clone.make(folder)
    tiny_recipe.make(scripted.root / "recipes", "given")
    for name in ("config.json", "tokenizer_config.json"):
        _write(scripted.root / GIVEN / name, "{}")
    _write(scripted.root / GIVEN / "model.safetensors", "a model that somebody gave us")
    settings = scripted.root / ".dvc/config"
    text = settings.read_text().replace("[core]", "[core]\n    remote = store")
    settings.write_text(f"{text}['remote \"store\"']\n    url = ../../{STORE}\n")
    (scripted.root / "data/inbox/window.jsonl").unlink()
    scripted.set_params(gate={"looks": 1000})
    scripted.git("config", "gc.auto", "0")
    scripted.git("add", "--all")
    scripted.git("commit", "--quiet", "--message", "two recipes")
    return World(scripted, Random(seed), entries)


def _people(world: World) -> None:
    from tasks.ledger.policy import Enrol, Rules, SetRules
    from tasks.promotion import acts
    from tests import people

    ada = people.signer("ada")
    acts.change(world.clone, Enrol(name="ada", roles=["owner"], key=ada.key.public), ada, "the owner", silent)
    for name in ("bob", "cleo"):
        change = Enrol(name=name, roles=["approver"], key=people.signer(name).key.public)
        acts.change(world.clone, change, ada, f"{name} joins", silent)
    rules = SetRules(model="given", rules=Rules(approvers=2))
    acts.change(world.clone, rules, ada, "four eyes on what is given", silent)


# -- one run ---------------------------------------------------------------------------------------
def _run(world: World, number: int, plot: Plot) -> None:
    from tasks import stage_runner
    from tasks.display.tracking import Tracker
    from tasks.promotion import champions, registration
    from tasks.runs import run as runs

    clone = world.clone
    _change(world, number, plot)
    params = _params(world, number, plot)
    served = champions.of_params(clone, params, silent)
    plan = runs.plan(clone, params, served)
    with runs.start(clone, plan) as run:
        run.update(ledger=champions.anchor(clone))
        run.tracker = Tracker(run, plot.model, silent)
        run.tracker.settings({"plot": plot.outcome}, stage_runner._tags(run))  # pyright: ignore[reportPrivateUsage]
        lay(world, run.tree, number, plot, config.load(run.tree / "params.yaml"))
        if plot.outcome != "drift_stop":
            registration.register(run, silent)
        Tree(clone, run.tree).lock()
        world.passes(hours=3)
        run.tracker.settle(60)
        _end(run, plot)
    stage_runner._end(run)  # pyright: ignore[reportPrivateUsage]
    world.runs.append(run.name)
    if plot.change == "edits":
        clone.git("checkout", "--quiet", "--", "recipes")
    _decide(world, run.record, plot)


def _end(run: Any, plot: Plot) -> None:
    if plot.outcome == "drift_stop":
        stages = dict.fromkeys(_stages()[:2], "ran")
        run.update(state="stopped", verdict="stop", message="the data drifted", stages=stages)
        return
    decision = reports.read(reports.Decision, run.stage_folder("gate") / "decision.json")
    run.update(
        decision=decision.decision,
        message=decision.reason,
        verdict="continue",
        candidate=decision.candidate,
        stages=dict.fromkeys(_stages(), "ran"),
        seconds=dict.fromkeys(_stages(), 60.0),
    )


def _stages() -> list[str]:
    from tasks.dependencies import STAGES

    return [*STAGES]


def _change(world: World, number: int, plot: Plot) -> None:
    """Edit what somebody edits before the run."""
    root, recipe = world.scripted.root, world.scripted.root / "recipes" / plot.model
    if plot.change in ("recipe", "edits"):
        with (recipe / "tools.py").open("a") as file:
            file.write(f"\n# as of run {number}\n")
    elif plot.change == "grader":
        grader = json.loads((recipe / "grader.json").read_text())
        (recipe / "grader.json").write_text(json.dumps(grader | {"name": f"exact-{number}"}))
    elif plot.change == "engine":
        with (root / "rft/rows.py").open("a") as file:
            file.write(f"\n# as of run {number}\n")
    elif plot.change == "base":
        world.base += 1
    if plot.change and plot.change not in ("edits", "base"):
        world.scripted.git("commit", "--quiet", "--all", "--message", f"{plot.change} for run {number}")


def _params(world: World, number: int, plot: Plot) -> config.Params:
    window = world.scripted.root / "data/inbox" / f"window-{number:03}.jsonl"
    _write(window, "".join(json.dumps(row) + "\n" for row in conversations(number)))
    world.scripted.set_params(
        recipe={"path": f"recipes/{plot.model}"},
        traffic={"file": window.relative_to(world.scripted.root).as_posix(), "min_conversations": 1},
        examples={"source": plot.source, "seed": world.test_seed},
        train={"from": plot.trains_from},
        policy={"model": GIVEN if plot.model == "given" else None, "seed": world.base},
    )
    return config.load(world.scripted.root / "params.yaml")


def conversations(number: int) -> list[dict[str, Any]]:
    """Make the window of a run. Some of its conversations were in the window before, and a few are
    much older."""
    first = number * (WINDOW - OVERLAP)
    ids = [*range(first, first + WINDOW), *(range(5 * (number // 7), 5 * (number // 7) + 3) if number % 3 == 0 else ())]
    return [
        {
            "conversation_id": f"c-{each:05}",
            "time": (BEGAN + timedelta(minutes=each)).isoformat(),
            "latency_s": 1.5,
            "tool_errors": 0,
            "messages": [
                {"role": "user", "content": f"value of k{each:05}"},
                {"role": "assistant", "content": f"{each:05}"},
            ],
            "feedback": f"{each:05}" if each % 2 else None,
        }
        for each in sorted(set(ids))
    ]


def lay(world: World, tree: Path, number: int, plot: Plot, params: config.Params) -> None:
    """Write the files of every stage of a run, consistent by hash."""
    from tests import ladder_clone

    data = tree / "data"
    shutil.copytree(ladder_clone._stage_files(plot.outcome) / "data", data, dirs_exist_ok=True)  # pyright: ignore[reportPrivateUsage]
    shutil.copytree(tree / stage_files.SNAPSHOT, tree / stage_files.CONVERSATIONS, dirs_exist_ok=True)
    manifest = reading.manifest(tree / stage_files.CONVERSATIONS)
    traffic = reports.TrafficReport(
        source=params.traffic.file,
        sha256=manifest.sha256,
        first=manifest.first,
        last=manifest.last,
        num_rows=manifest.num_rows,
        num_conversations=manifest.num_conversations,
        num_with_feedback=manifest.num_with_feedback,
    )
    reports.write(traffic, data / "traffic/report.json")
    _reword(reports.DriftReport, data / "drift/report.json", number)
    if plot.outcome == "drift_stop":
        for stage in _stages()[2:]:
            shutil.rmtree(data / stage, ignore_errors=True)
        return
    _examples(world, data, plot, [*reading.conversations(tree / stage_files.CONVERSATIONS)])
    base = _policy(world, data, tree, plot)
    _reword(reports.BaselineReport, data / "baseline/report.json", number)
    _prompt(data, number)
    _train(data, number)
    champion = reports.read(reports.Champion, data / "champion/champion.json")
    _arms(data, champion, base)
    ladder_clone.rehash(data, params.gate)


def _examples(world: World, data: Path, plot: Plot, window: Any) -> None:
    seed, found = world.test_seed, reports.read(reports.ExamplesReport, data / "examples/report.json")
    tested = reports.read(reports.ChallengerReport, data / "challenger/report.json").arms[0].sampled.rows
    train = [_example(f"t-{seed}-{each:04}", f"train {seed} {each}") for each in range(60)]
    if plot.source == "window":
        train = [_example(each.conversation_id, each.messages[0]["content"]) for each in window if each.feedback]
    splits = {
        "train": train,
        "validation": [_example(f"v-{seed}-{each:04}", f"validation {seed} {each}") for each in range(24)],
        "test": [_example(row.example_id, f"test {seed} {row.example_id}") for row in tested],
    }
    for split, some in splits.items():
        reports.write_lines((row.line for row in some), data / "examples" / f"{split}.jsonl")
    changes = {
        "source": plot.source,
        "counts": {split: len(some) for split, some in splits.items()},
        "sha256": {split: files.sha256(data / "examples" / f"{split}.jsonl") for split in splits},
        "slices": {split: {"all": len(some)} for split, some in splits.items()},
    }
    reports.write(found.model_copy(update=changes), data / "examples/report.json")
    reports.write_json(config.Keys().model_dump(), data / "examples/keys.json")
    reports.write_json({"source": plot.source, "seed": seed}, data / "examples/profile.json")


def _example(name: str, text: str) -> Example:
    return Example(name, ({"role": "user", "content": text},), "0000")


def _policy(world: World, data: Path, tree: Path, plot: Plot) -> str:
    shutil.rmtree(data / "policy")
    if plot.model == "given":
        sha256 = files.tree_sha256(tree / GIVEN)
        made = reports.PolicyReport(kind="given", model=GIVEN, sha256=sha256, num_parameters=1000)
    else:
        _write(data / "policy/model/model.bin", f"base model {world.base}")
        sha256 = files.tree_sha256(data / "policy/model")
        made = reports.PolicyReport(kind="embedded", model=str(stage_files.MODEL), sha256=sha256, num_parameters=1000)
    reports.write(made, data / "policy/report.json")
    return sha256


def _prompt(data: Path, number: int) -> None:
    """Give each run a different prompt that was found."""
    report = reports.read(reports.PromptReport, data / "prompt/report.json")
    if report.found:
        winner = report.winner.model_copy(update={"system": f"{report.winner.system} Run {number}."})
        report = report.model_copy(update={"winner": winner})
    reports.write(report, data / "prompt/report.json")
    reports.write(report.winner, data / "prompt/prompt.json")


def _train(data: Path, number: int) -> None:
    shutil.rmtree(data / "train/weights")
    _write(data / "train/weights/adapter/model.bin", f"weights of run {number}")
    _write(data / "train/weights/adapter.json", json.dumps({"rank": 8}))
    _reword(reports.TrainReport, data / "train/report.json", number)
    sha256 = files.tree_sha256(data / "train/weights")
    found = reports.read(reports.TrainReport, data / "train/report.json")
    reports.write(found.model_copy(update={"sha256": sha256}), data / "train/report.json")


def _arms(data: Path, champion: reports.Champion, base: str) -> None:
    """Name in each arm the weights that it played with."""
    train = reports.read(reports.TrainReport, data / "train/report.json")
    report = reports.read(reports.ChallengerReport, data / "challenger/report.json")
    served = champion.weights_sha256 or base
    arms = [
        arm.model_copy(update={"weights_sha256": train.sha256 if arm.name == "challenger" else served})
        for arm in report.arms
    ]
    if champion.prompt is not None:
        arms[0] = arms[0].model_copy(update={"prompt_sha256": champion.prompt.digest()})
    reports.write(report.model_copy(update={"arms": arms}), data / "challenger/report.json")


def _reword(kind: type[Any], path: Path, number: int) -> None:
    """Reword the reports of a run: no two real runs have the same numbers."""
    report = reports.read(kind, path)
    reports.write(report.model_copy(update={"reason": f"{report.reason} (run {number})"}), path)


# -- what people do --------------------------------------------------------------------------------
def _decide(world: World, record: Any, plot: Plot) -> None:
    from tasks.promotion import acts
    from tests import people

    world.passes(hours=20)
    if record.decision == "promote":
        acts.request_promotion(world.clone, record, silent)
        world.passes(hours=5)
        if plot.request_status == "rejected":
            acts.reject(world.clone, record.name, people.signer("bob"), "it answers too shortly", silent)
        elif plot.request_status == "promoted":
            _approve(world, record, plot)
    if plot.then == "opened":
        _open(world, record)
    elif plot.then == "alias":
        _move_alias(world, plot.model)
    elif plot.then == "rollback":
        _roll_back(world, plot.model)


def _approve(world: World, record: Any, plot: Plot) -> None:
    from tasks.promotion import acts
    from tests import people

    who = ["ada"] if record.dirty else [world.rng.choice(("ada", "bob", "cleo"))]
    who += ["cleo" if who == ["bob"] else "bob"] if plot.model == "given" else []
    for name in who:
        world.passes(minutes=30)
        is_override = record.dirty and name == "ada"
        acts.approve(world.clone, record.name, people.signer(name), "half the calls", is_override, silent)
    outcome = acts.promote(world.clone, record.name, silent)
    assert outcome.promoted, outcome.approval_status
    assert not outcome.problems, outcome.problems


def _open(world: World, record: Any) -> None:
    """Let somebody read rollouts of the test set. It is retired, and later runs have another."""
    from tasks.promotion import retiring

    source = retiring.of_run(world.clone, record.name, record.revision)
    retiring.open_test(world.clone, source, "to see what went wrong", silent)
    world.test_seed += 1


def _move_alias(world: World, model: str) -> None:
    """Let somebody point MLflow to the version before. The next command corrects it."""
    from tasks.display import tracking
    from tasks.promotion import projections

    client = tracking.client(world.clone)
    versions = sorted(int(each.version) for each in client.search_model_versions(f"name = '{model}'"))
    if len(versions) > 1:
        client.set_registered_model_alias(model, "champion", str(versions[0]))
    assert not projections.reconcile(world.clone, silent)


def _roll_back(world: World, model: str) -> None:
    from tasks.promotion import acts
    from tests import people

    assert world.ledger is not None
    if world.ledger.state.champion(model):
        world.passes(days=1)
        acts.rollback(world.clone, model, people.signer("bob"), "it loops", silent)


def _chatter(world: World, length: int) -> None:
    """Write what else happens in a ledger, up to its length at this time of the year. People and
    rules change, aliases are corrected, and runs in other clones look without a result."""
    from tasks.ledger import book

    with book.opened(world.clone, report_line=silent) as ledger:
        while ledger.state.number < length:
            world.passes(minutes=1)
            world.rng.choices((_set_right, _looks_elsewhere, _other_rules), (80, 15, 5))[0](world, ledger)


def _set_right(world: World, ledger: Ledger) -> None:
    from tasks.ledger.entry import Reconcile

    found = str(world.rng.randrange(9))
    ledger.append(Reconcile(model=world.rng.choice(MODELS), projection="MLflow registry", found=found, set="9"))


def _looks_elsewhere(world: World, ledger: Ledger) -> None:
    """Add a look at its own test set, with its list of examples, as another clone shared it."""
    from tasks.ledger import spending
    from tasks.ledger.entry import Registration
    from tasks.promotion import counting

    number, model = ledger.state.number, "tiny"
    if model not in ledger.state.policy.thresholds:
        return
    names = {f"{number:060}{each:04}\n" for each in range(20)}
    counting.keep(world.clone, names)
    act = Registration(
        model=model,
        run=f"elsewhere-{number}",
        champion=ledger.state.champion(model),
        candidates=[(f"{number:064x}", f"{number:064x}")],
        test_sha256=f"{number:064x}",
        grader_sha256="0" * 64,
        measured_sha256="0" * 64,
        settings=ledger.state.policy.thresholds[model],
        look=1,
        examples=counting.listed(names),
    )
    ledger.append(act.model_copy(update={"level": spending.level(act, spending.past(act, []))}))


def _other_rules(world: World, ledger: Ledger) -> None:
    from tasks.ledger.entry import PolicyChange
    from tasks.ledger.policy import Enrol, Remove, Rules, SetRules
    from tasks.promotion import acts
    from tests import people

    is_there = "dora" in ledger.state.policy.people
    dora = Enrol(name="dora", roles=["author"], key=people.signer("dora").key.public)
    rules = SetRules(model="other", rules=Rules(request_days=1 + world.rng.randrange(9)))
    change = world.rng.choice((rules, Remove(name="dora") if is_there else dora))
    statement = ledger.statement("policy", "as things are now", change=change)
    acts.append(ledger, PolicyChange(change=change), statement, people.signer("ada"))


# -- small things ----------------------------------------------------------------------------------
def share(world_folder: Path) -> None:
    """Copy all that the cache holds to DVC's remote."""
    clone = Clone(world_folder / "clone")
    shutil.copytree(clone.dvc_cache / "files", world_folder / STORE / "files", dirs_exist_ok=True)


def revision(clone: Clone, run: str) -> str:
    """Return the commit that a run was recorded as."""
    return clone.git("for-each-ref", "--format=%(objectname)", f"refs/exps/*/*/{run}")


def silent(_: str) -> None:
    """Drop what an act reports on the way."""


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
