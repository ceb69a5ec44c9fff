"""What became of a request, as every list shows it: never waiting when an approval would be
refused."""

from __future__ import annotations

import random
from collections import Counter

import ledger_world
import pytest
from ledger_world import Story

from tasks.ledger import authorise, request_status
from tasks.ledger.authorise import Refused
from tasks.ledger.facts import RequestState
from tasks.ledger.keys import Key
from tasks.ledger.state import State


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Key]:
    return ledger_world.cast(tmp_path_factory.mktemp("keys"))


def can_be_approved(state: State, request: RequestState, time: str) -> bool:
    try:
        authorise.assert_approvable(state, request, time)
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
            for request in state.requests.values():
                found = request_status.status(state, request, story.time)
                seen[found.kind] += 1
                can = can_be_approved(state, request, story.time)
                assert (found.kind == "waits") == (found.approve is not None)
                assert can or found.kind != "waits"
                if can and found.kind != "waits":
                    assert request.promoted, "a rollback led away from it, and nobody has approved it again"
                    assert not found.approval_status.counting
                if found.kind == "waits":
                    needs = request.act.edits_sha256 and not authorise.overriding(state, request, story.time)
                    assert ("--override-dirty" in (found.approve or "")) == bool(needs)
                    assert ("override of uncommitted code" in found.description) == bool(needs)
                    asked = [each.number for each, _ in request_status.open_requests(state, story.time)]
                    assert request.number in asked
    assert {*seen} == {"waits", "champion", "was champion", "rejected", "superseded", "expired"}, seen
