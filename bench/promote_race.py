"""The figure of rival approvals: two clones, one remote, two people who approve at the same moment.

Each round has two requests of one model, both judged against the champion that is served: one run,
and the same run again with all its stages cached. Two processes, one in each clone, start at the
same moment. Each approves its run and promotes it, as `rft approve` does without Prefect. Only one
promotion may stand, and the other process must be told which one. The next round begins with the
new champion.

The parent makes the requests through the first clone's ledger. DVC's remote has had the bytes since
the first round. In some rounds both clones also show the champion in one MLflow. In the end both
clones verify the ledger again, and docs/verify-ledger.sh reads the remote.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from statistics import median
from typing import Any

from bench import promoting
from bench.measure import Figure, Part
from bench.promoting import MODEL, ROOT, WHY, silent
from tasks.runs.clone import Clone

ROUNDS, SMALL = 100, 5
MLFLOW_EVERY = 10
Answer = dict[str, Any]


def promote_race(args: list[str]) -> Figure:
    """Two clones, one remote: rounds of rival approvals with exactly one promotion, and a loser who
    is told which (all)."""
    rounds = SMALL if "--small" in args else ROUNDS
    with tempfile.TemporaryDirectory(prefix="rft-race-") as place, redirect_stdout(sys.stderr):
        return race(Path(place), rounds)


def race(place: Path, rounds: int) -> Figure:
    from tasks.ledger import book
    from tests import people

    promoting.enter(place)
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{place / 'mlflow.db'}"  # one for both clones
    ours = promoting.make(place / "ours", shared=True)
    theirs, run = _second(ours, place)
    good, told, wins, seconds, faults = 0, 0, [0, 0], list[float](), list[str]()
    with _rival(ours, "ada", people.key("ada")) as ada, _rival(theirs, "bob", people.key("bob")) as bob:
        for number in range(1, rounds + 1):
            names = [f"round-{number}-{who}" for who in ("ada", "bob")]
            before = _ask(ours, run, names)
            began = time.monotonic()
            answers = _at_once([ada, bob], names, mlflow=number % MLFLOW_EVERY == 1)
            seconds.append(time.monotonic() - began)
            with book.opened(ours, report_line=silent) as ledger:
                made = [each for each in ledger.state.promotions if each > before]
                now = ledger.state.champion(MODEL)
            won = [answer["promoted"] for answer in answers]
            is_one = len(made) == 1 and now == made[0] and sorted(map(str, won)) == sorted([str(now), "None"])
            loser = next((answer for answer in answers if answer["promoted"] is None), {})
            is_told = loser.get("kind") == "Refused" and f"champion {now} is served now" in loser["words"]
            good, told = good + is_one, told + is_told
            wins = [count + (value == now) for count, value in zip(wins, won, strict=True)]
            problems = [each for answer in answers for each in answer["problems"]]
            if not (is_one and is_told) or problems:
                faults.append(f"round {number}: promotions {made}, {answers}")
            print(f"round {number}: {now}, {seconds[-1]:.1f} s, {loser.get('words', answers)}", file=sys.stderr)
    heads = [_head(clone) for clone in (ours, theirs)]
    genesis = book.read(ours).state.genesis
    script = subprocess.run(
        [str(ROOT / "docs/verify-ledger.sh"), str(place / "ours/remote.git"), "refs/heads/rft-ledger", genesis],
        capture_output=True,
        text=True,
        check=False,
    )
    is_ok = script.returncode == 0 and script.stdout.splitlines()[-1].startswith("OK")
    parts = (
        Part("rounds with exactly one promotion", good, "rounds", at_least=rounds, n=rounds, reason="; ".join(faults)),
        Part("losers who are told the champion served now", told, "rounds", at_least=rounds, n=rounds),
        Part("rounds with a problem of any kind", len(faults), "rounds", at_most=0, n=rounds),
        Part("rounds that the second clone won", wins[1], "rounds", n=rounds),
        Part("both clones read the same head, verified anew", len({*heads}) == 1, "", at_least=1, n=2),
        Part("docs/verify-ledger.sh says OK", is_ok, "", at_least=1, reason="" if is_ok else script.stderr[-300:]),
        Part("a round, median", median(seconds), "s", high=max(seconds), n=rounds),
    )
    return Figure(parts, {"rounds with MLflow": len(range(1, rounds + 1, MLFLOW_EVERY)), "entries": heads[0][0]})


def _second(ours: Clone, place: Path) -> tuple[Clone, Any]:
    """Make a second clone and a second person, both enrolled. Also make the request that all others
    are copies of. Ada rejects it and lifts that, so that it stays as it is."""
    from tasks.ledger import keys
    from tasks.ledger.policy import Enrol, EnrolMachine
    from tasks.promotion import acts
    from tasks.runs import records
    from tests import people

    asked = acts.request_promotion(ours, records.load_all(ours)[0], silent)
    ours.git("clone", "--quiet", "--branch", "main", str(place / "ours/remote.git"), str(place / "theirs"))
    theirs = Clone(place / "theirs")
    (theirs.root / "infra/ledger.yaml").write_bytes((ours.root / "infra/ledger.yaml").read_bytes())
    theirs.state.mkdir()
    ada = people.signer("ada")
    acts.reject(ours, asked.act.run, ada, "the figure decides on its copies", silent)
    acts.lift(ours, asked.act.run, ada, "the figure decides on its copies", silent)
    machine = acts.enrolled(EnrolMachine, name="theirs", key=keys.machine(theirs).public)
    acts.change(theirs, machine, ada, "the second clone", silent)
    bob = acts.enrolled(Enrol, name="bob", roles=["approver"], key=people.signer("bob").key.public)
    acts.change(ours, bob, ada, "the rival", silent)
    return theirs, asked.act


def _ask(clone: Clone, run: Any, names: list[str]) -> int:
    """Make two requests against the champion. Returns the last entry before them."""
    from tasks.ledger import book, statement

    with book.opened(clone, report_line=silent) as ledger:
        before = ledger.state.number
        champion, expires = ledger.state.champion(MODEL), statement.later(statement.now(), days=1)
        look = _look(ledger, champion)
        for name in names:
            told = {"run": name, "key": name, "champion": champion, "expires": expires, "registration": look}
            ledger.append(run.model_copy(update=told))
    return before


def _look(ledger: Any, champion: int) -> int:
    """Register the same comparison with this champion. That is another look."""
    first = next(iter(ledger.state.looks.values()))
    wanted = first.act.model_copy(update={"champion": champion})
    if (known := ledger.state.registered(wanted)) is not None:
        return known.number
    look = 1 + max(each.act.look for each in ledger.state.looks.values())
    return ledger.append(wanted.model_copy(update={"look": look})).number


def _at_once(rivals: list[subprocess.Popen[str]], names: list[str], mlflow: bool) -> list[Answer]:
    for rival, name in zip(rivals, names, strict=True):
        _tell(rival, {"run": name, "mlflow": mlflow})
        assert _read_answer(rival) == {"ready": name}
    for rival in rivals:
        _tell(rival, "go")
    return [_read_answer(rival) for rival in rivals]


def _tell(rival: subprocess.Popen[str], what: object) -> None:
    assert rival.stdin is not None
    rival.stdin.write(json.dumps(what) + "\n")
    rival.stdin.flush()


def _read_answer(rival: subprocess.Popen[str]) -> Answer:
    assert rival.stdout is not None
    line = rival.stdout.readline()
    if not line:
        raise RuntimeError("a rival ended")
    return json.loads(line)


def _head(clone: Clone) -> tuple[int, str]:
    from tasks.ledger import book

    ledger = book.read(clone, fetch=True, reverify=True, report_line=silent)
    return ledger.state.number, ledger.state.head


# -- a rival ---------------------------------------------------------------------------------------
@contextmanager
def _rival(clone: Clone, name: str, key: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.promote_race", str(clone.root), name, str(key)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def decide(clone: Clone, name: str, key: Path) -> None:
    """Approve and promote the run that each line on stdin names."""
    mlflow_address = os.environ["MLFLOW_TRACKING_URI"]
    promoting.enter(clone.root.parent)
    os.environ["MLFLOW_TRACKING_URI"] = mlflow_address

    from rft.errors import RftError
    from tasks.promotion import acts, projections
    from tasks.promotion.champion_file import ChampionFile

    every = projections._all  # pyright: ignore[reportPrivateUsage]
    answers, signer = sys.stdout, promoting.signer(clone, name, key)
    for line in sys.stdin:
        task = json.loads(line)
        projections._all = every if task["mlflow"] else lambda clone: (ChampionFile(clone),)  # pyright: ignore[reportPrivateUsage]
        print(json.dumps({"ready": task["run"]}), file=answers, flush=True)
        sys.stdin.readline()
        found: Answer = {"promoted": None, "kind": "", "words": "", "problems": []}
        try:
            with redirect_stdout(sys.stderr):
                acts.approve(clone, task["run"], signer, WHY, report_line=silent)
                outcome = acts.promote(clone, task["run"], report_line=silent)
            found |= {"promoted": outcome.promoted and outcome.promoted.number, "problems": list(outcome.problems)}
        except RftError as error:
            found |= {"kind": type(error).__name__, "words": str(error)}
        print(json.dumps(found), file=answers, flush=True)


FIGURES = {"promote_race": promote_race}

if __name__ == "__main__":
    decide(Clone(Path(sys.argv[1])), sys.argv[2], Path(sys.argv[3]))
