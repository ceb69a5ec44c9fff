"""bench/own_repository.py: what changes of the user's is seen, whatever it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench import own_repository
from bench.own_repository import World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    place = tmp_path_factory.mktemp("own")
    made = World(place, place / "program")
    own_repository._make_program(made)
    return made


def _edit(world: World) -> None:
    (world.root / "tasks.py").write_text("changed")


def _forget_experiment(world: World) -> None:
    [ref] = world.git("for-each-ref", "--format=%(refname)", "refs/exps/*/*/*").splitlines()
    world.git("update-ref", "-d", ref)


def _drop_cached(world: World) -> None:
    next(path for path in (world.root / ".dvc/cache/files").rglob("*") if path.is_file()).unlink()


def _run_hook(world: World) -> None:
    with world.log.open("a") as file:
        file.write(f"filter {world.root}/.rft/worktrees/a\n")


@pytest.mark.story
def test_each_change_of_the_users_is_seen(world: World) -> None:
    before = own_repository._theirs(world)
    assert {name.split()[0] for name in before} == {"file", "ref", "cache"}
    assert own_repository._changed(before, own_repository._theirs(world)) == []
    changes: list[Callable[[World], None]] = [_edit, _forget_experiment, _drop_cached, _run_hook]
    for number, change in enumerate(changes, 1):
        change(world)
        assert len(own_repository._changed(before, own_repository._theirs(world))) == number, change


def test_the_program_of_the_figure_has_modules_of_our_names() -> None:
    assert {"tasks.py", "rft/__init__.py", "flows/pipeline.py"} <= set(own_repository.PROGRAM)
    assert all(not Path(name).is_absolute() for name in own_repository.PROGRAM)
