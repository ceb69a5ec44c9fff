"""What became of a request, as every list shows it: never waiting when an approval would be
refused."""

from __future__ import annotations

import random
from collections import Counter

import ledger_world
import pytest
from ledger_world import Story

from tasks.ledger import authorise, fate
from tasks.ledger.authorise import Refused
from tasks.ledger.facts import Waiting
from tasks.ledger.keys import Key
from tasks.ledger.state import State


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Key]:
    return ledger_world.cast(tmp_path_factory.mktemp("keys"))


def can_be_approved(state: State, waiting: Waiting, time: str) -> bool:
    try:
        authorise.assert_approvable(state, waiting, time)
    except Refused:
        return False
    return True


@pytest.mark.slow
def test_what_waits_can_be_approved_and_nothing_else_does(cast: dict[str, Key]) -> None:
    seen = Counter[str]()
    for seed in range(40):
        story = Story(random.Random(seed), cast)
        for _ in range(80):
            story.step()
            state = story.state
            for waiting in state.requests.values():
                found = fate.of(state, waiting, story.time)
                seen[found.kind] += 1
                can = can_be_approved(state, waiting, story.time)
                assert (found.kind == "waits") == (found.approve is not None)
                assert can or found.kind != "waits"
                if can and found.kind != "waits":
                    assert waiting.promoted, "a rollback led away from it, and nobody has approved it again"
                    assert not found.standing.counting
                if found.kind == "waits":
                    needs = waiting.act.edits_sha256 and not authorise.overriding(state, waiting, story.time)
                    assert ("--override-dirty" in (found.approve or "")) == bool(needs)
                    assert ("override of uncommitted code" in found.words) == bool(needs)
                    asked = [each.number for each, _ in fate.open_requests(state, story.time)]
                    assert waiting.number in asked
    assert {*seen} == {"waits", "champion", "was champion", "rejected", "superseded", "expired"}, seen
