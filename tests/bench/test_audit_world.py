"""bench/audit_world.py: the simulated year is one that production could have lived."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import audit_search, audit_world
from bench.audit_world import World
from rft import stage_files
from tasks.dependencies import STAGES
from tasks.ledger import book
from tasks.promotion import champions
from tasks.runs import repro, transfer
from tasks.runs.artifacts import PROFILE, WEIGHTS, WINDOW, Revision

pytestmark = pytest.mark.story  # two years are lived: half a minute


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    place = tmp_path_factory.mktemp("world")
    with audit_world.entered(place):
        yield audit_world.year(place, runs=4, entries=40)


def test_lock_is_the_one_that_dvc_writes(world: World) -> None:
    """Of a run whose champion has weights of its own, and of one on a given base model."""
    for run in world.runs[2:]:
        at = Revision(world.clone, audit_world.revision(world.clone, run))
        assert (WEIGHTS in at.outs) == (run == world.runs[2])
        with transfer._laid(world.clone, at.commit) as tree:  # pyright: ignore[reportPrivateUsage]
            pointers = [
                name for name in (f"{path}.dvc" for path in (WEIGHTS, PROFILE, WINDOW)) if (tree / name).exists()
            ]
            repro.dvc(tree, "checkout", "--quiet", *STAGES, *pointers)
            (tree / "data/champion/.gitignore").unlink(missing_ok=True)  # of this checkout, which takes all
            shutil.copytree(tree / stage_files.CONVERSATIONS, tree / stage_files.SNAPSHOT)
            before = (tree / "dvc.lock").read_text()
            (tree / "dvc.lock").unlink()
            repro.dvc(tree, "commit", "--force", "--quiet", *STAGES)  # not the champion's pointers
            assert (tree / "dvc.lock").read_text() == before


def test_what_was_promoted_stands_after_a_full_verification(world: World) -> None:
    state = book.read(world.clone, reverify=True, report_line=audit_world.silent).state
    assert state.number >= 40
    made = [each.run for each in state.promotions.values()]
    assert made == world.runs
    for number in state.promotions:
        served = champions.at(world.clone, state, number)
        assert served.champion.run == state.promotions[number].run


def test_force_finds_what_the_plot_says(world: World) -> None:
    found = audit_search.search(world.scripted.root)
    prompt, first, trained, given = found.versions
    assert prompt.conversations == {f"c-{each:05}" for each in range(30, 70)}
    assert first.conversations == found.windows[first.run]
    assert trained.conversations == found.windows[trained.run] | first.conversations
    assert given.conversations == found.windows[given.run]
    assert found.examples[trained.run] < found.windows[trained.run]
    shared = found.windows[first.run] & found.windows[trained.run]
    assert len(shared) == audit_world.OVERLAP
    for each in shared:
        assert ("tiny", trained.number) in found.versions_with(each)


def test_same_seed_same_bytes(world: World, tmp_path: Path) -> None:
    again = audit_world.year(tmp_path, runs=2, entries=10)
    for one, other in zip(world.runs, again.runs, strict=False):
        ours, theirs = (
            Revision(each.clone, audit_world.revision(each.clone, run)) for each, run in ((world, one), (again, other))
        )
        assert {path: out.md5 for path, out in ours.outs.items()} == {
            path: out.md5 for path, out in theirs.outs.items()
        }
