"""bench/ledger_tamper.py: it names what is tampered with and nothing else, and says so of what
is not named.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import ledger_world
import pytest

from bench import ledger_attacks, ledger_rogue, ledger_tamper
from bench.ledger_scene import Scene
from tasks.ledger import book
from tasks.ledger.keys import Key

OUTSIDER = [*ledger_attacks.outsider()]
MACHINE = [*ledger_rogue.rogue()]


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Key]:
    return ledger_world.cast(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def scene(cast: dict[str, Key], tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return ledger_tamper.scripted(tmp_path_factory.mktemp("scene") / "clone", cast, seed=0)


def test_there_are_more_than_a_hundred_cases_of_different_names() -> None:
    names = [name for name, _ in (*OUTSIDER, *MACHINE, *ledger_rogue.powerless())]
    assert len({*names}) == len(names)
    assert len(OUTSIDER) >= 100


WORDS = (
    "altered, linked again, old",
    "restarted by mallory, left: last",
    "kind holds an enrolled",
    "bytes of a run's revision",
    "another date",
    "that a forged entry enrolled",
    "a replayed statement",
    "signed as a commit",
)


@pytest.mark.slow
@pytest.mark.parametrize("word", WORDS)
def test_tampered_ledger_is_named(scene: Scene, tmp_path: Path, word: str) -> None:
    trick = next((name, attack) for name, attack in (*OUTSIDER, *MACHINE) if word in name)
    found = Counter[str]()
    ledger_tamper.attempt(tmp_path, scene, [trick], found)
    assert found.total() == 1
    assert not found["missed"]


@pytest.mark.slow
def test_what_changes_nothing_or_crashes_counts_as_missed(scene: Scene, tmp_path: Path) -> None:
    found = Counter[str]()

    def crashes(copy: Scene) -> None:
        (copy.clone.root / ".git/HEAD").unlink()

    ledger_tamper.attempt(tmp_path, scene, [("nothing", lambda _: None), ("no repository, left: all", crashes)], found)
    assert found == {"missed": 2}


@pytest.mark.slow
def test_what_git_alone_believes_has_no_effect(scene: Scene, tmp_path: Path) -> None:
    assert not any(ledger_tamper.without_use(tmp_path, scene, [*ledger_rogue.powerless()][::4]))
    note = ledger_world.NOTE
    effect = [("an entry more", lambda copy: copy.append(note, copy.keys["laptop"], machine="laptop"))]
    assert ledger_tamper.without_use(tmp_path, scene, effect) == [True]


@pytest.mark.slow
def test_clean_history_is_read_without_alarm(cast: dict[str, Key], tmp_path: Path) -> None:
    assert ledger_tamper.clean(tmp_path / "history", cast, seed=1) == []


def test_scene_itself_is_clean(scene: Scene) -> None:
    assert book.read(scene.clone, reverify=True).state == scene.state
