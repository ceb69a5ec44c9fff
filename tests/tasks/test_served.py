"""How answers are made of rollouts is a part of what is judged, approved and served."""

from __future__ import annotations

import json
from pathlib import Path

import agent_clone
import ladder_clone
import people
import pytest

from rft import config, reports
from rft.errors import UserError
from tasks.ledger import book
from tasks.ledger.authorise import Refused
from tasks.promotion import acts, agents, champions, content
from tasks.runs import champion
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone

SERVE = config.Serve(method="majority", k=5, over="output_json")
CHALLENGER = "challenger/report.json"


def measured(scripted: ladder_clone.Scripted, serve: config.Serve) -> None:
    """The script's arms, as if their candidates had been served so, and the gate's decision."""
    data = scripted.script / "data"
    report = reports.read(reports.ChallengerReport, data / CHALLENGER)
    arms = [arm.model_copy(update={"serve": serve} if arm.name != "champion" else {}) for arm in report.arms]
    reports.write(report.model_copy(update={"arms": arms}), data / CHALLENGER)
    assert agent_clone.decide(data, config.load(scripted.root / "params.yaml")).decision == "promote"


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ladder_clone.Scripted:
    """A clone whose runs serve by majority."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    made = ladder_clone.make(tmp_path)
    served(made, SERVE)
    return made


def served(scripted: ladder_clone.Scripted, serve: config.Serve) -> None:
    scripted.set_params(policy={"serve": serve.model_dump()})
    scripted.git("commit", "--all", "--quiet", "--allow-empty", "--message", "serve")


def settings(clone: Clone) -> config.Params:
    return config.load(clone.root / "params.yaml")


def looks(clone: Clone) -> list[int]:
    return [look.act.look for look in book.read(clone).state.looks.values()]


@pytest.mark.slow
def test_a_promotion_carries_how_it_is_served(scripted: ladder_clone.Scripted):
    measured(scripted, SERVE)
    record = ladder_clone.run_ladder(scripted)
    assert champion.judged(*_judged(scripted, record.revision or "")).champion.serve == SERVE
    people.approve(scripted.clone, record.name)
    now = champions.of_params(scripted.clone, settings(scripted.clone))
    assert now.champion.serve == SERVE
    with agents.laid_out(agents.find(scripted.clone, "champion")) as tree:
        placed = json.loads((tree / "data/champion/champion.json").read_text())
    assert placed["serve"] == {"method": "majority", "k": 5, "over": "output_json"}
    [promoted] = [each.act for each in book.read(scripted.clone).state.requests.values()]
    assert now.champion.prompt is not None
    assert promoted.content.prompt_sha256 == content.prompt_sha256(now.champion.prompt, SERVE)
    assert promoted.content.prompt_sha256 != now.champion.prompt.digest()


def _judged(scripted: ladder_clone.Scripted, revision: str) -> tuple[Revision, str, reports.Decision]:
    at = Revision(scripted.clone, revision)
    decision = at.report(reports.Decision)
    assert decision is not None
    return at, "a run", decision


@pytest.mark.slow
def test_served_otherwise_it_is_another_look(scripted: ladder_clone.Scripted):
    measured(scripted, SERVE)
    ladder_clone.run_ladder(scripted)
    assert looks(scripted.clone) == [1]
    other = config.Serve(method="majority", k=9, over="output_json")
    served(scripted, other)
    measured(scripted, other)
    ladder_clone.run_ladder(scripted)
    assert looks(scripted.clone) == [1, 2], "to try out how to serve is to look again"


@pytest.mark.slow
def test_what_was_registered_as_single_cannot_be_promoted_as_a_majority(scripted: ladder_clone.Scripted):
    served(scripted, config.Serve())
    measured(scripted, SERVE)
    record = ladder_clone.run_ladder(scripted)
    with pytest.raises(Refused, match="registered another prompt or other weights"):
        acts.request_promotion(scripted.clone, record)


@pytest.mark.slow
def test_a_request_that_was_changed_after_the_decision_is_refused(scripted: ladder_clone.Scripted):
    measured(scripted, SERVE)
    path = scripted.script / "data/gate/request.json"
    for changed in (SERVE.model_copy(update={"k": 2}), config.Serve()):
        request = reports.read(reports.PromotionRequest, path)
        reports.write(request.model_copy(update={"serve": changed}), path)
        record = ladder_clone.run_ladder(scripted)
        with pytest.raises(UserError, match="how it is served has hash"):
            acts.request_promotion(scripted.clone, record)
        scripted.git("commit", "--quiet", "--allow-empty", "--message", "again")


def test_single_rollouts_are_hashed_as_ever():
    prompt = reports.PromptSettings(name="seed", system="")
    assert content.prompt_sha256(prompt, config.Serve()) == prompt.digest()
