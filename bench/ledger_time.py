"""The figure of the ledger's speed: 1,000 entries, which is years of decisions.

A clone reads its ledger at every start, so reading must not be felt. It hashes everything and
judges everything each time, and verifies only the signatures that it has not verified before. A
full verification asks ssh-keygen twice per decision, 5 ms each, and is printed without a bound.

The chain is written without `book`, with an approval and a promotion for each request. Both models
take turns, and people and rules change now and then. Appending is timed through `book` itself.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from statistics import median

from bench.measure import Figure, Part
from tasks.ledger import statement
from tasks.ledger.entry import Approval, Promotion, Request
from tasks.ledger.policy import Enrol, Rules, SetRules
from tasks.ledger.statement import Content
from tasks.runs.clone import Clone
from tests import ledger_world
from tests.ledger_world import HASHES, MODELS, Story

ENTRIES, TIMES, APPENDS = 1000, 5, 10
_BEFORE = """
import sys, time
from pathlib import Path
from tasks.ledger import book
from tasks.ledger.entry import Reconcile
from tasks.runs.clone import Clone

clone, silent = Clone(Path(sys.argv[1])), lambda _: None
"""
_READ = "book.read(clone, report_line=silent)"
_ANEW = "book.read(clone, reverify=True, report_line=silent)"
_APPEND = f"""
with book.opened(clone, report_line=silent) as ledger:
    ledger.append(Reconcile(model={MODELS[0]!r}, projection="alias", found="1", set="2"))
"""


def ledger_time(args: list[str]) -> Figure:
    """A ledger of 1,000 entries: to append one (1 s), to read it with the memory (2 s), to verify
    all of it again, and growth from 500 to 1,000."""
    entries = 60 if "--small" in args else ENTRIES
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        clone, story = _clone(root, entries // 2)
        ledger_world.write(clone, story)
        half_anew, half = _read(clone)
        done = len(story.lines)
        _grow(story, entries)
        ledger_world.write(clone, story, done)
        anew, whole = _read(clone)
        appended = [_seconds(clone, _APPEND) for _ in range(APPENDS)]
    print(f"half: {half}, whole: {whole}, anew: {half_anew:.2f} and {anew:.2f}, append: {appended}", file=sys.stderr)
    small = entries < ENTRIES  # with a few entries, most of the time does not grow
    parts = (
        Part("append one entry, median", median(appended), "s", at_most=1, high=max(appended), n=APPENDS),
        Part("append one entry, slowest", max(appended), "s", at_most=1, n=APPENDS),
        Part("read, remembered, median", median(whole), "s", at_most=2, high=max(whole), n=TIMES),
        Part(
            "read, remembered: time at all entries / at half of them",
            median(whole) / median(half),
            at_least=None if small else 1.4,
            at_most=None if small else 2.6,
            n=TIMES,
        ),
        Part("verify every signature anew", anew, "s"),
        Part("verify anew: time at all entries / at half of them", anew / half_anew),
        Part("entries", entries, "entries"),
    )
    return Figure(parts)


def _clone(root: Path, entries: int) -> tuple[Clone, Story]:
    keys = ledger_world.cast(root / "keys")
    clone = ledger_world.make_clone(root / "clone")
    ledger_world.is_machine(clone, keys["laptop"])
    story = Story(Random(0), keys, clone.git("rev-parse", "main"), signs=True)
    story.open()
    story.change(Enrol(name="bob", roles=["approver"], key=keys["bob"].public), "ada")
    _grow(story, entries)
    return clone, story


def _grow(story: Story, entries: int) -> None:
    """Add requests, approvals and promotions, and sometimes other rules."""
    while len(story.lines) < entries:
        number = story.state.number
        story.time = statement.later(story.time, seconds=3600)
        if number % 100 < 3:
            story.change(SetRules(model="other", rules=Rules(request_days=1 + number % 7)), "ada")
        model = MODELS[number // 3 % 2]
        content = Content(
            decision_sha256=f"{number:064x}",
            prompt_sha256=HASHES[0],
            weights_sha256=f"{number:064x}",
            base_sha256=None,
            test_sha256=HASHES[0],
        )
        made = Request(
            model=model,
            run=f"run-{number}",
            revision=story.revision,
            candidate="challenger",
            content=content,
            champion=story.state.champion(model),
            registration=story.look(model, content),
            edits_sha256=None,
            key=f"key-{number}",
            started_by="Ada",
            expires=statement.later(story.time, days=3),
        )
        assert story.propose(made)
        request = story.state.requests[story.state.number]
        about = {"act": "approve", "model": model, "request": request.id, "content": content}
        assert story.propose(Approval(model=model, request=request.number), "laptop", "bob", **about)
        promotion = Promotion(
            model=model,
            request=request.number,
            approvals=[story.state.number],
            before=story.state.champion(model),
            weights_signature=None,
            smoke="4 of 4",
        )
        assert story.propose(promotion)


def _read(clone: Clone) -> tuple[float, list[float]]:
    """Return the seconds to verify everything again, and then to read with the memory."""
    return _seconds(clone, _ANEW), [_seconds(clone, _READ) for _ in range(TIMES)]


def _seconds(clone: Clone, act: str) -> float:
    """Measure in a new process, as for a verb: a process never verifies a signature twice."""
    program = f"{_BEFORE}\nbegan = time.monotonic()\n{act}\nprint(time.monotonic() - began)"
    done = subprocess.run([sys.executable, "-c", program, str(clone.root)], check=True, capture_output=True)
    return float(done.stdout)


FIGURES = {"ledger_time": ledger_time}
