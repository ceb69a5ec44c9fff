"""The figure of the rollout log: kill -9 at random moments, then open the log.

Every acknowledged row must be there once, and missing rollouts are rolled out.

`store`: a child adds numbered rows to a rollout store, alone and in batches, drops rows, closes the
store and opens it. It says on a pipe what it begins and what it has finished. The parent kills it
at a random moment, opens the log, and compares it with what was acknowledged. Then the next child
goes on in the same folder. An operation that was under way may be there or not, but it must be
whole: a batch is all there or not at all, and so is a drop.

`rollouts`: a child rolls out step after step as a training does, with a scripted policy that waits
(no barrier). Its tool server runs in another process and fails now and then
(bench/faulty_server.py), so that rollouts are refilled, and batches are paused and redone. The
child says which rollouts the store has acknowledged, each when it has its grade. The next child
goes on from the last checkpoint. When all steps are done, the parent checks that each step has each
of its rollouts once, and that no acknowledged rollout was rolled out again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench import faulty_server
from bench.faulty_server import Faults
from bench.measure import Figure, Part
from rft.rollouts.log import LogRow

if TYPE_CHECKING:
    from rft.rollouts.runner import RolloutRunner
    from rft.rollouts.store import RolloutStore

ROOT = Path(__file__).resolve().parents[1]
KILLS = 100
LIFE_S = 0.25  # a child is killed within it: after some 50 operations, or none
AHEAD = 3  # children that wait with everything imported
KEPT = 150  # rows that stay: a drop rewrites the log, and must fit into a child's life
OPERATIONS = {"add": 8, "batch": 5, "close": 2, "drop": 1}
CHECKPOINT_PAGES = 40  # so small that the WAL moves into the database within a child's life

STEPS, EXAMPLES, GROUP, CHUNK = 6, 6, 8, 24  # a step is two batches
CHECKPOINT = 2  # steps between checkpoints; a training goes on from the last one
ROLLOUTS_LIFE_S = 0.7
# shares of calls and grades: rollouts are refilled, and now and then a batch pauses
FAULTS = Faults(latency_s=0.01, error=0.012)


def row(number: int) -> LogRow:
    """Make a row as a function of its number, so that it can be compared later."""
    tokens = number % 97
    return LogRow(
        stage="train",
        arm="challenger",
        step=number // 16,
        example_id=f"n-{number:06d}",
        sample=number % 8,
        attempt=0,
        rollout_id=f"rollout_{number:06d}",
        split="train",
        slice="all",
        stop_reason="completed",
        reward=number / 7,
        score=number / 7,
        solved=number % 2 == 0,
        status="ok",
        num_turns=1,
        num_tool_calls=0,
        num_tool_errors=0,
        num_tokens=tokens,
        num_forks=0,
        components="{}",
        explanation="",
        item="{}",
        messages=json.dumps([{"role": "assistant", "content": "ü\n" * (number % 701)}], ensure_ascii=False),
        ids=list(range(tokens)),
        loss_mask=[True] * tokens,
        logprobs=[-0.5] * tokens,
        trained=True,
    )


# -- the child that writes -------------------------------------------------------------------------
def write(folder: Path) -> None:
    """Wait for the start, then write until killed."""
    from rft.rollouts import store as rollout_store
    from rft.rollouts.store import RolloutStore

    rollout_store.CHECKPOINT_PAGES = CHECKPOINT_PAGES
    print_line("ready")
    number, seed = map(int, sys.stdin.readline().split())
    draw = random.Random(seed)
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(RolloutStore(folder))
        while True:
            kind = draw.choices(list(OPERATIONS), list(OPERATIONS.values()))[0]
            count = {"add": 1, "batch": draw.randint(2, 9)}.get(kind, 0)
            low, high = (number, number + count) if count else _dropped(number, draw)
            print_line(f"begin {kind} {low} {high}")
            if kind == "close":
                stack.close()
                store = stack.enter_context(RolloutStore(folder))
            elif kind == "drop":
                store.drop(lambda one, low=low, high=high: low <= number_of(one) < high)
            else:
                store.add_all([row(n) for n in range(low, high)], [0.0] * count)
            print_line(f"done {kind} {low} {high}")
            number += count


def _dropped(number: int, draw: random.Random) -> tuple[int, int]:
    """Choose rows to drop: the oldest, or the newest as in a training that goes on from a
    checkpoint."""
    return (0, number - KEPT) if draw.random() < 0.5 else (number - draw.randint(1, 30), number)


def number_of(one: LogRow) -> int:
    return int(one.rollout_id.removeprefix("rollout_"))


def print_line(line: str) -> None:
    """Print in one write, because threads print, too."""
    os.write(1, f"{line}\n".encode())


# -- the child that rolls out ----------------------------------------------------------------------
def roll_out(folder: Path, recipe_folder: Path, url: str, steps: int) -> None:
    """Wait for the start, then roll out step after step until killed."""
    from rft import recipe
    from rft.rollouts import recovery
    from rft.rollouts.runner import rollout_runner
    from rft.rollouts.store import RolloutStore
    from tests import tiny_recipe

    class Telling(RolloutStore):
        def hold(
            self, rows: Sequence[LogRow], seconds: Sequence[float], turns_jsons: Sequence[str], batch: str
        ) -> None:
            super().hold(rows, seconds, turns_jsons, batch)
            print_line(f"held {' '.join(row.rollout_id for row in rows)}")

    recovery.FIRST_PAUSE_S = recovery.LONGEST_PAUSE_S = 0.01
    limits = {"max_turns": 12, "max_unscored_share": 0.12, "refill": 0.5, "batch": CHUNK}
    params = tiny_recipe.params(recipe_folder, tools={"server_url": url, "version": "1", "retries": 0}, rollout=limits)
    with rollout_runner(params, recipe.load(params.recipe)) as runner, contextlib.redirect_stdout(sys.stderr):
        print_line("ready")
        sys.stdin.readline()
        with Telling(folder) as store:
            done = max((row.step for row in store), default=0) // CHECKPOINT * CHECKPOINT
            store.reopen(lambda row: row.step > done)
            for step in range(done + 1, steps + 1):
                _step(runner, store, step)
                print_line(f"step {step}")
        print_line("over")
        sys.stdin.readline()


def _step(runner: RolloutRunner, store: RolloutStore, step: int) -> None:
    from bench.rollouts import PROMPT, Caller
    from rft.rollouts.loop import Conditions, Request
    from rft.rollouts.runner import Waiting

    batch = f"step {step}"
    examples = runner.recipe.examples("train", EXAMPLES * STEPS, 0)[EXAMPLES * (step - 1) : EXAMPLES * step]
    requests = [Request(example, sample) for example in examples for sample in range(GROUP)]
    conditions = Conditions(PROMPT, 1.0, (0, 1, step), runner.params.rollout, "train", "train", step)
    ended: dict[str, str] = {}
    for start in range(0, len(requests), CHUNK):
        played = runner.run(
            Caller(), requests[start : start + CHUNK], conditions, "train", Waiting(store, batch, "challenger")
        )
        ended |= {
            one.rollout_id: "" if one.reward is not None else f"unscored: {one.grade.status}"
            for one in played.trajectories
        }
        ended |= {one.trajectory.rollout_id: one.why for one in played.superseded}
    held = {kept.row.rollout_id: kept for kept in store.held(batch)}
    rows = [replace(held[name].row, trained=not why, left_out=why) for name, why in ended.items()]
    store.add_all(rows, [held[name].wall_s for name in ended], batch)


# -- the parent ------------------------------------------------------------------------------------
@dataclass(slots=True)
class Tried:
    """The results of the kills. `killed`: what the children were doing."""

    kills: int = 0
    opened: int = 0
    missing: int = 0
    twice: int = 0
    broken: int = 0  # out of order, other content, half a batch, half a drop, or back after it was dropped
    rows: int = 0
    killed: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def kill_often(folder: Path, kills: int, seed: int = 0, life_s: float = LIFE_S) -> Tried:
    draw, tried = random.Random(seed), Tried()
    there: list[int] = []
    number = 0
    with _children(kills, "store", folder) as children:
        for child in children:
            lines = _life(child, f"{number} {draw.getrandbits(32)}", draw.random() * life_s)
            events = [(word, kind, int(low), int(high)) for word, kind, low, high in map(str.split, lines)]
            tried.kills += 1
            number = max([number, *(high for _, kind, _, high in events if kind in ("add", "batch"))])
            there = _compare(folder, there, events, tried)
    return tried


Event = tuple[str, str, int, int]


@contextmanager
def _children(count: int, *arguments: object) -> Iterator[Iterator[subprocess.Popen[str]]]:
    """Yield one child after another. Some are started ahead."""
    waiting: deque[subprocess.Popen[str]] = deque()

    def start() -> None:
        command = [sys.executable, "-m", "bench.log_kill", *map(str, arguments)]
        waiting.append(subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))

    def each() -> Iterator[subprocess.Popen[str]]:
        for number in range(count):
            while len(waiting) < min(AHEAD, count - number):
                start()
            yield waiting.popleft()

    try:
        yield each()
    finally:
        for child in waiting:
            _end(child)


def _life(child: subprocess.Popen[str], word: str, seconds: float, until: str = "") -> list[str]:
    """Return the lines that the child printed between its start and its death. It is killed after
    `seconds`, or when it prints `until`."""
    assert child.stdin is not None
    assert child.stdout is not None
    if child.stdout.readline() != "ready\n":
        raise RuntimeError("the writer did not start")
    child.stdin.write(word + "\n")
    child.stdin.flush()
    killer = threading.Timer(seconds, child.kill)
    killer.start()
    lines: list[str] = []
    for line in child.stdout:
        if line.endswith("\n"):
            lines.append(line[:-1])
        if line == f"{until}\n":
            child.kill()
    killer.cancel()
    code = _end(child)
    if code != -signal.SIGKILL:
        raise RuntimeError(f"the writer ended by itself: exit code {code}")
    return lines


def _end(child: subprocess.Popen[str]) -> int:
    child.kill()
    code = child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    return code


def _compare(folder: Path, there: list[int], events: list[Event], tried: Tried) -> list[int]:
    """Compare what is there now with what was there and what was said since. Returns what is there
    now."""
    from rft.rollouts.store import RolloutStore

    must = list(there)
    flying: Event | None = None
    for word, kind, low, high in events:
        flying = (word, kind, low, high) if word == "begin" else None
        if word == "done":
            must = _after(must, kind, low, high)
    tried.killed[flying[1] if flying else "between" if events else "opening"] += 1
    may = _after(must, *flying[1:]) if flying else must
    try:
        with RolloutStore(folder) as store:
            rows = store.rows()
    except Exception as error:  # whatever it raises, the log did not open
        tried.faults.append(f"kill {tried.kills}: {type(error).__name__}: {error}")
        return there
    tried.opened += 1
    found = [number_of(one) for one in rows]
    tried.rows = len(found)
    tried.missing += len(set(must) & set(may) - set(found))
    tried.twice += len(found) - len(set(found))
    if found not in (must, may) or any(one != row(number) for one, number in zip(rows, found, strict=True)):
        tried.broken += 1
        tried.faults.append(f"kill {tried.kills} in {flying}: {len(found)} rows, expected {len(must)} or {len(may)}")
    return found


def _after(numbers: list[int], kind: str, low: int, high: int) -> list[int]:
    if kind == "drop":
        return [number for number in numbers if not low <= number < high]
    return numbers + list(range(low, high)) if kind in ("add", "batch") else numbers


# -- the parent of children that roll out ----------------------------------------------------------
@dataclass(slots=True)
class Rolled:
    """The results of the kills. `struck`: kills that left finished rollouts of an unfinished
    batch."""

    kills: int = 0
    opened: int = 0
    struck: int = 0
    acknowledged: int = 0
    missing: int = 0
    twice: int = 0
    again: int = 0  # acknowledged, and rolled out a second time
    runs: int = 0  # runs that came to their end
    incomplete: int = 0  # runs with a step that has a rollout too few or too many
    left_out: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def kill_rollouts(
    scratch: Path, kills: int, seed: int = 0, life_s: float = ROLLOUTS_LIFE_S, steps: int = STEPS
) -> Rolled:
    """Kill at least `kills` times. The last run comes to its end."""
    from tests import tiny_recipe

    draw, rolled = random.Random(seed), Rolled()
    recipe = tiny_recipe.make(scratch)
    with faulty_server.serving(recipe) as url:
        faulty_server.tell(url, FAULTS.model_copy(update={"seed": seed}))
        while rolled.kills < kills:
            folder = scratch / f"run-{rolled.runs}"
            acknowledged: set[str] = set()
            with _children(4 * kills + 40, "rollouts", folder, recipe, url, steps) as children:
                for child in children:
                    last = rolled.kills >= kills
                    lines = _life(child, "go", 60.0 if last else draw.random() * life_s, until="over")
                    rolled.kills += 1
                    _open(folder, steps, lines, acknowledged, rolled)
                    if lines[-1:] == ["over"]:
                        break
            rolled.runs += 1
            rolled.acknowledged += len(acknowledged)
    return rolled


def _open(folder: Path, steps: int, lines: list[str], acknowledged: set[str], rolled: Rolled) -> None:
    from rft.rollouts import log as rollout_log
    from rft.rollouts.store import RolloutStore

    for line in lines:
        if line.startswith("held"):
            traces = line.split()[1:]
            rolled.again += len(acknowledged & set(traces))
            acknowledged.update(traces)
    try:
        with RolloutStore(folder) as store:
            rows = store.rows()
            held = [one.row for step in range(1, steps + 1) for one in store.held(f"step {step}")]
        rollout_log.tally([*rows, *held])
    except Exception as error:  # whatever it raises, the log did not open
        rolled.faults.append(f"kill {rolled.kills}: {type(error).__name__}: {error}")
        return
    rolled.opened += 1
    rolled.struck += bool(held)
    found = [one.rollout_id for one in [*rows, *held]]
    rolled.missing += len(acknowledged - set(found))
    rolled.twice += len(found) - len(set(found))
    acknowledged.update(found)  # also what only the disk shows: a kill may come between the write and its report
    if lines[-1:] == ["over"]:
        rolled.incomplete += bool(held) or not _is_complete(rows, steps)
        rolled.left_out.update(one.left_out for one in rows)


def _is_complete(rows: Sequence[LogRow], steps: int) -> bool:
    """Whether each rollout of a step is there once, trained on or unscored. Others are ignored."""
    answers = Counter(
        (one.step, one.example_id, one.sample) for one in rows if one.trained or one.left_out.startswith("unscored")
    )
    return len(answers) == steps * EXAMPLES * GROUP == answers.total()


# -- the figure ------------------------------------------------------------------------------------
def rollout_log_kill(args: list[str]) -> Figure:
    """Rollout logs that open after writers and rollouts were killed at 100 random moments each, and
    finished rollouts that are missing or there twice."""
    kills, seed = (int(args[0]) if args else KILLS), (int(args[1]) if len(args) > 1 else 0)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rft-log-kill-") as scratch:
        tried = kill_often(Path(scratch), kills, seed)
    between = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rft-log-kill-") as scratch:
        rolled = kill_rollouts(Path(scratch), kills, seed)
    print("\n".join(tried.faults + rolled.faults), end="\n" if tried.faults + rolled.faults else "", file=sys.stderr)
    parts = (
        Part("opened", tried.opened, "logs", at_least=kills, n=tried.kills, reason="; ".join(tried.faults[:3])),
        Part("missing", tried.missing, "rollouts", at_most=0, n=tried.kills),
        Part("twice", tried.twice, "rollouts", at_most=0, n=tried.kills),
        Part("out of order, half or changed", tried.broken, "logs", at_most=0, n=tried.kills),
        Part("kills", tried.kills, "kills", at_least=kills),
        Part(
            "rollouts: logs that did not open",
            rolled.kills - rolled.opened,
            "logs",
            at_most=0,
            n=rolled.kills,
            reason="; ".join(rolled.faults[:3]),
        ),
        Part("rollouts: finished and missing", rolled.missing, "rollouts", at_most=0, n=rolled.acknowledged),
        Part("rollouts: there twice", rolled.twice, "rollouts", at_most=0, n=rolled.acknowledged),
        Part("rollouts: finished and rolled out again", rolled.again, "rollouts", at_most=0, n=rolled.acknowledged),
        Part("rollouts: runs without each rollout once", rolled.incomplete, "runs", at_most=0, n=rolled.runs),
        Part("rollouts: kills", rolled.kills, "kills", at_least=kills),
        Part(
            "rollouts: kills inside of a batch with finished rollouts",
            rolled.struck,
            "kills",
            at_least=kills // 3,
            n=rolled.kills,
        ),
    )
    notes = {
        "killed during": dict(sorted(tried.killed.items())),
        "rows at the end": tried.rows,
        "rollouts, of all runs": {why or "trained": count for why, count in sorted(rolled.left_out.items())},
        "wall_s": [round(between - began, 1), round(time.monotonic() - between, 1)],
    }
    return Figure(parts, notes)


FIGURES = {"rollout_log_kill": rollout_log_kill}

if __name__ == "__main__":
    if sys.argv[1] == "store":
        write(Path(sys.argv[2]))
    else:
        roll_out(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
