"""The figures of seeds: does what we ship learn with any seed, and on any processor?

    first_agent     the ladder of the agent that `rft new` writes, of the small demo and of the demo
    recipes_seeds   the ladders of the recipes that have a policy of their own

Each ladder is what its user runs: `rft run` in a clone of HEAD below .rft/bench, on invented
traffic. A seed is used for the traffic, the examples, the policy's weights and all sampling. A
disturbed ladder also adds noise of 1e-6 to the first weights (tests/disturbed). That does what
another processor does: the last digits differ, and by the end of a warm start everything differs.

A ladder takes minutes. Its result is kept in bench/results/ladders/, with a hash of all that its
stages depend on (tasks/dependencies.py finds what). It is not run again as long as the hash is the
same. So a figure that was cut off goes on, and `ARGS` may name the agents to run now, such as
`ARGS="first small"`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from bench import figure
from bench.demo import DRIVER, published
from bench.ladder import LIMIT_S, Broken, print_line
from bench.measure import Figure, Part
from bench.recipes import RECIPES
from bench.watch import watch
from tasks import dependencies

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".rft" / "bench" / "seeds"
KEPT = figure.RESULTS / "ladders"
DISTURBED = "tests/disturbed"
SEEDED = ("examples", "policy", "baseline", "prompt", "train", "challenger")
STAGES = ("traffic", "drift", *SEEDED)
"""The stages that make the numbers of a ladder. The gate only judges them."""
OTHER = "other_packages"
"""mail_search on every second package of this machine: another mailbox, and other questions."""


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent whose ladder is run, with a seed."""

    name: str
    folder: str
    seed: int
    disturbed: bool = False
    settings: tuple[str, ...] = ()
    is_new: bool = False
    """`rft new` writes it first."""

    @property
    def key(self) -> str:
        return f"{self.name}-{self.seed}{'-disturbed' if self.disturbed else ''}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a ladder. Rewards are means over the test examples, with 95 % intervals."""

    decision: str
    """The gate's decision, or `stopped` if the ladder ended before the gate."""
    reason: str
    rewards: dict[str, float]
    """Arm -> its reward."""
    gain: Sequence[float]
    """The gain of the challenger over the champion: value, low, high."""
    own: Sequence[float]
    """What RFT adds to the new prompt."""
    num: int
    falls: int
    """How often training went back (rft/trainer/collapse.py)."""
    collapsed: str
    minutes: float


def first_agent(args: list[str]) -> Figure:
    """rft new's agent on ten seeds, half of them disturbed: promote in nine at least, and none
    collapses. The small demo likewise (four of five seeds), and the demo (all of three)."""
    parts: list[Part] = []
    for agents, at_least in ((first(), 9), (small(), 4), (demo(), 3)):
        parts += _promoted(agents, at_least, args)
    return Figure(tuple(parts))


def recipes_seeds(args: list[str]) -> Figure:
    """RFT's own gain in wordle, filings, mail_search and code_research on three seeds, two of them
    disturbed, and mail_search on other packages: off 0 in each."""
    parts: list[Part] = []
    for name in (*RECIPES, OTHER):
        found = seeds_of(name, args)
        _keep(f"recipes_seeds_{name}", found)
        parts += [replace(part, name=f"{name}: {part.name}") for part in found.parts]
    return Figure(tuple(parts))


def seeds_of(name: str, args: list[str]) -> Figure:
    parts: list[Part] = []
    after: list[float] = []
    for agent in recipe(name):
        label = f"seed {agent.seed}{', disturbed' if agent.disturbed else ''}"
        outcome = ran(agent, args)
        if isinstance(outcome, str):
            parts.append(Part(f"{label}: RFT's own gain, low end", None, "reward", reason=outcome))
            continue
        value, low, high = outcome.own
        rewards = outcome.rewards
        after.append(rewards["challenger"])
        parts += [
            Part(f"{label}: RFT's own gain, low end", low, "reward", at_least=0.0001, n=outcome.num),
            Part(f"{label}: RFT's own gain", value, "reward", low=low, high=high, n=outcome.num),
            *(Part(f"{label}: reward, {arm}", reward, "reward", n=outcome.num) for arm, reward in rewards.items()),
            Part(f"{label}: went back", outcome.falls, "times"),
            Part(f"{label}: the gate said {outcome.decision}", int(outcome.decision == "promote"), ""),
            Part(f"{label}: minutes", outcome.minutes, "min"),
        ]
    spread = max(after) - min(after) if after else None
    parts.append(Part("spread of the reward after RFT between seeds", spread, "reward", n=len(after)))
    return Figure(tuple(parts))


# -- agents ----------------------------------------------------------------------------------------
def first() -> list[Agent]:
    return [Agent("first", "agents/first", seed, seed % 2 == 1, is_new=True) for seed in range(10)]


def small() -> list[Agent]:
    from flows.cli.demo import SMALL

    return [Agent("small", ".", seed, seed % 2 == 1, SMALL) for seed in range(5)]


def demo() -> list[Agent]:
    return [Agent("demo", ".", seed, seed > 0) for seed in range(3)]


def recipe(name: str) -> list[Agent]:
    if name == OTHER:
        return [Agent(name, "recipes/mail_search", 0, settings=(f"recipe.options.mailbox={_half()}",))]
    return [Agent(name, f"recipes/{name}", seed, seed > 0) for seed in range(3)]


def _half() -> Path:
    """Copy the changelogs of every second package."""
    place = PLACE / "packages"
    found = sorted(Path("/usr/share/doc").glob("*/changelog.Debian.gz"))
    for one in found[::2]:
        target = place / one.parent.name / one.name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(one, target)
    return place


def _promoted(agents: Sequence[Agent], at_least: int, args: list[str]) -> list[Part]:
    name, found = agents[0].name, list[Outcome]()
    for agent in agents:
        outcome = ran(agent, args)
        if isinstance(outcome, str):
            return [Part(f"{name}: promoted", None, "ladders", at_least=at_least, reason=outcome, n=len(found))]
        found.append(outcome)
    others = "; ".join(
        f"{agent.key}: {outcome.reason}"
        for agent, outcome in zip(agents, found, strict=True)
        if outcome.decision != "promote"
    )
    gains = sorted(outcome.gain[0] for outcome in found)
    promoted = sum(outcome.decision == "promote" for outcome in found)
    low, high = (_mean_of(arm, found) for arm in ("champion", "challenger"))
    return [
        Part(f"{name}: promoted", promoted, "ladders", at_least=at_least, n=len(found), reason=others),
        Part(f"{name}: collapsed", sum(bool(one.collapsed) for one in found), "ladders", at_most=0, n=len(found)),
        Part(f"{name}: went back", sum(one.falls for one in found), "times", n=len(found)),
        Part(f"{name}: median gain", gains[len(gains) // 2], "reward", low=gains[0], high=gains[-1], n=len(found)),
        Part(f"{name}: mean reward before", low, "reward", n=len(found)),
        Part(f"{name}: mean reward after RFT", high, "reward", n=len(found)),
        Part(f"{name}: minutes of a ladder", sum(one.minutes for one in found) / len(found), "min", n=len(found)),
    ]


def _mean_of(arm: str, outcomes: Sequence[Outcome]) -> float | None:
    """Average the rewards of an arm over the ladders that measured it."""
    known = [outcome.rewards[arm] for outcome in outcomes if outcome.rewards]
    return sum(known) / len(known) if known else None


# -- one ladder ------------------------------------------------------------------------------------
def ran(agent: Agent, args: list[str]) -> Outcome | str:
    """Return the result of an agent's ladder, or why there is none. The ladder is run now unless
    its result is on record."""
    kept, stamp = KEPT / f"{agent.key}.json", _stamp(agent)
    if kept.exists() and (found := json.loads(kept.read_text()))["stamp"] == stamp:
        return Outcome(**{each.name: found[each.name] for each in fields(Outcome)})
    if args and agent.name not in args and agent.key not in args:
        return f"{agent.key} is not on record for this code, and ARGS names others"
    outcome = _run_ladder(agent, stamp)
    KEPT.mkdir(parents=True, exist_ok=True)
    facts = {"stamp": stamp, "commit": figure.commit(), "machine": figure.machine()}
    kept.write_text(json.dumps(asdict(outcome) | facts, indent=1) + "\n", encoding="utf-8")
    print_line(f"{agent.key}: {outcome.decision}, own gain {outcome.own[0]:+.3f}, {outcome.minutes:.1f} min")
    return outcome


def _run_ladder(agent: Agent, stamp: str) -> Outcome:
    """Run the ladder in its own clone, which is deleted afterwards. A ladder that was cut off goes
    on."""
    clone, log, mark = PLACE / agent.key, PLACE / f"{agent.key}.log", PLACE / f"{agent.key}.json"
    state: dict[str, Any] = json.loads(mark.read_text()) if mark.exists() else {}
    window = str(Path(agent.folder, f"data/inbox/seeds/{agent.seed}.jsonl"))
    at = ("-C", agent.folder)
    if state.get("stamp") != stamp or not clone.exists():
        shutil.rmtree(clone, ignore_errors=True)
        PLACE.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        if agent.is_new:
            _rft(agent, clone, log, "new", agent.folder)
            who = ("-c", "user.name=figure", "-c", "user.email=figure@localhost")
            for command in (("add", "--all"), (*who, "commit", "--quiet", "--message", "A new agent")):
                subprocess.run(["git", *command], cwd=clone, check=True)
        state = {"stamp": stamp, "minutes": 0.0}
        mark.write_text(json.dumps(state))
    if not (clone / window).exists():
        _rft(agent, clone, log, "traffic", "invent", str(clone / window), "--seed", str(agent.seed), *at)
    print_line(f"{agent.key}: rft run; what it prints is in {log.relative_to(ROOT)}")
    settings = [*agent.settings, *(f"{section}.seed={agent.seed}" for section in SEEDED)]
    words = [word for setting in settings for word in ("--set", setting)]
    state["minutes"] += _rft(agent, clone, log, "run", "--window", str(clone / window), *at, *words) / 60
    mark.write_text(json.dumps(state))
    outcome = _outcome(clone, agent.folder, state["minutes"])
    shutil.rmtree(clone)
    return outcome


def _rft(agent: Agent, clone: Path, log: Path, *args: str) -> float:
    """Run a verb. Return its seconds."""
    paths = [clone, *([clone / DISTURBED] if agent.disturbed else [])]
    env = {"PYTHONPATH": ":".join(map(str, paths)), "RFT_TEST_DISTURB": str(agent.seed) if agent.disturbed else ""}
    seen = watch([sys.executable, "-c", DRIVER, *args], clone, log, env=env, limit_s=LIMIT_S)
    if seen.rc:
        raise Broken(f"rft {' '.join(args)} ended with {seen.rc} in {clone}: see {log}")
    return seen.wall_s


def _outcome(clone: Path, folder: str, minutes: float) -> Outcome:
    from rft import reports, stats
    from rft.gate import evidence

    files = published(clone, "train", folder)

    def read(kind: Any, path: str) -> Any:
        md5 = files.get(path)
        return reports.read(kind, clone / ".dvc/cache/files/md5" / md5[:2] / md5[2:]) if md5 else None

    train = read(reports.TrainReport, "data/train/report.json")
    decision = read(reports.Decision, "data/gate/decision.json")
    challenger = read(reports.ChallengerReport, "data/challenger/report.json")
    if challenger is None:
        nothing = (0.0, 0.0, 0.0)
        return Outcome("stopped", train.reason, {}, nothing, nothing, 0, len(train.falls), train.collapsed, minutes)
    arms = {arm.name: evidence.rewards(arm) for arm in challenger.arms}
    gain = stats.paired_gain(arms["challenger"], arms["champion"])
    own = stats.paired_gain(arms["challenger"], arms["champion_new_prompt"])
    return Outcome(
        decision=decision.decision,
        reason=decision.reason,
        rewards={name: round(stats.mean_interval(rows.values()).value, 4) for name, rows in arms.items()},
        gain=_rounded(gain),
        own=_rounded(own),
        num=own.n,
        falls=len(train.falls),
        collapsed=train.collapsed,
        minutes=round(minutes, 2),
    )


def _rounded(metric: Any) -> tuple[float, float, float]:
    return round(metric.value, 4), round(metric.low, 4), round(metric.high, 4)


def _stamp(agent: Agent) -> str:
    folder = "flows/template" if agent.is_new else agent.folder
    recipe = {"recipes/icd10", "params.yaml"} if folder == "." else {folder}
    how = [agent.seed, agent.disturbed, [setting for setting in agent.settings if "mailbox" not in setting]]
    return stamp(recipe, how)


def stamp(more: Iterable[str], how: Any) -> str:
    """Hash what the stages of a ladder depend on, as it is at HEAD, `more` files, and how it is
    run. Prose is left out."""
    paths = sorted({*_engine(), *more})
    done = subprocess.run(
        ["git", "ls-tree", "-r", "HEAD", *paths], cwd=ROOT, check=True, capture_output=True, text=True
    )
    lines = [line for line in done.stdout.splitlines() if not line.endswith(".md")]
    return hashlib.sha256(json.dumps([lines, how]).encode()).hexdigest()


@cache
def _engine() -> frozenset[str]:
    """List the files of the engine that the stages of a ladder depend on."""
    found = {path for stage in STAGES for path in dependencies.modules(ROOT, stage, ROOT / "recipes")}
    return frozenset(found | {"constraints.txt"})


def _keep(name: str, found: Figure) -> None:
    if found.parts[0].value is not None:
        figure.record(found.line(name), [])


def _one(name: str) -> Any:
    def of_one(args: list[str]) -> Figure:
        return seeds_of(name, args)

    of_one.__doc__ = f"{name}: RFT's own gain on each seed, off 0."
    return of_one


FIGURES = {"first_agent": first_agent, "recipes_seeds": recipes_seeds} | {
    f"recipes_seeds_{name}": _one(name) for name in (*RECIPES, OTHER)
}
