"""bench/audit_tamper.py and bench/audit_complete.py: they see an audit that is blind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import audit_attacks, audit_complete, audit_search, audit_tamper, audit_world
from bench.audit_scene import Scene
from tasks.audit import graph, upwards
from tasks.audit.graph import Graph

pytestmark = pytest.mark.story  # a year of its own: a minute


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    place = tmp_path_factory.mktemp("year")
    with audit_world.entered(place):
        yield audit_tamper.made(place, seed=0)


WORDS = (
    "a bit of data/drift/report.json of run 3",
    "data/train/weights, removed here",
    "dvc.lock of the revision, overwritten",
    "ref of run 3 on another run's revision",
    "drift.max_bad_share changed",
    "recipes/tiny/tools.py replaced",
    "data/challenger/report.json: arms edited",
    "champion file: act edited",
    "tag dvc.md5 of the registered version",
    "statement.sig of the approval",
    "a bit of the base model",
    "marked as compromised",
)


@pytest.fixture(scope="module")
def cases(scene: Scene) -> list[audit_attacks.Case]:
    return [*audit_attacks.every(scene)]


def _case(cases: list[audit_attacks.Case], word: str) -> audit_attacks.Case:
    return next(case for case in cases if word in case.name)


def test_there_are_more_than_two_hundred_cases_of_different_names(cases: list[audit_attacks.Case]) -> None:
    names = [case.name for case in cases]
    assert len({*names}) == len(names) > 200


@pytest.mark.parametrize("word", WORDS)
def test_what_is_tampered_with_is_named(
    scene: Scene, cases: list[audit_attacks.Case], tmp_path: Path, word: str
) -> None:
    case = _case(cases, word)
    assert audit_tamper.attempt(tmp_path, scene, [case]) == {case.name: None}


def test_nobody_touched_the_year(scene: Scene) -> None:
    assert audit_tamper.clean(scene, most=6) == ([], 6)


def test_what_is_at_the_remote_alone_is_fetched(scene: Scene, tmp_path: Path) -> None:
    assert audit_tamper.fetches(tmp_path, scene, most=1) == []


def test_blind_audit_is_seen(
    scene: Scene, cases: list[audit_attacks.Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every link is green, whatever its check says."""
    monkeypatch.setattr(graph, "state_of", lambda check: ("verified", "nobody looked"))
    case = _case(cases, "champion file: act edited")
    assert audit_tamper.attempt(tmp_path, scene, [case])[case.name] is not None


def test_link_beside_the_one_that_broke_does_not_count(
    scene: Scene, cases: list[audit_attacks.Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., Any] = Graph.link

    def link(self: Graph, source: str, says: str, target: str, check: Callable[[], str]) -> Any:
        other = "stage:another/drift" if "/drift" in source else source
        return real(self, other, says, target, check)

    monkeypatch.setattr(Graph, "link", link)
    case = _case(cases, "a bit of data/drift/report.json of run 3")
    assert audit_tamper.attempt(tmp_path, scene, [case])[case.name] is not None


def test_alarm_without_cause_is_seen(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "state_of", lambda check: ("altered", "it never fits"))
    assert audit_tamper.clean(scene, most=1)[0]


@pytest.fixture(scope="module")
def found(scene: Scene) -> audit_search.Found:
    return audit_search.search(scene.root)


def test_answers_are_those_of_a_search_by_force(scene: Scene, found: audit_search.Found) -> None:
    version = found.versions[2]
    shared = next(each for each in version.conversations if len(found.versions_with(each)) > 1)
    assert audit_complete.downwards(scene.clone, version) == ""
    assert audit_complete.upwards(scene.clone, found, shared) == ""
    assert audit_complete.of_example(scene.clone, found, sorted(found.examples[version.run])[0]) == ""


def test_search_that_follows_no_weights_is_seen(
    scene: Scene, found: audit_search.Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = found.versions[2]
    monkeypatch.setattr(upwards, "came_from", lambda *_: None)
    assert "too few" in audit_complete.downwards(scene.clone, version)
    early = next(each for each in version.conversations if each not in found.windows[version.run])
    assert "versions too few" in audit_complete.upwards(scene.clone, found, early)
