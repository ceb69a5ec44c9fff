"""Looks at a test set: registered before it is opened, counted by example, and paid for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import ladder_clone
import people
import pytest

from rft import config, reports, shelves
from rft.errors import InfrastructureError, UserError
from tasks.ledger import book
from tasks.ledger.authorise import Refused
from tasks.ledger.entry import PolicyChange, Registration
from tasks.ledger.policy import SetThresholds
from tasks.promotion import acts, champions, counting, registration
from tasks.runs import champion
from tasks.runs import run as runs
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord

Climb = Callable[..., RunRecord]


def settings(clone: Clone) -> config.Params:
    return config.load(clone.root / "params.yaml")


def looks(clone: Clone) -> list[int]:
    return [look.act.look for look in book.read(clone).state.looks.values()]


def look_at(clone: Clone, rows: list[str], winner: str, looks: int = 3, **gate: object) -> reports.Registration:
    """Register the look of a run whose test set has these rows, at a prompt of its own."""
    params = settings(clone)
    params = params.model_copy(update={"gate": params.gate.model_copy(update={"looks": looks, **gate})})
    with runs.start(clone, runs.plan(clone, params, champion.BEGINNING)) as run:
        script = clone.root.parent / "script/data"
        for kind in (reports.PromptReport, reports.TrainReport, reports.PolicyReport):
            path = shelves.path(kind)
            (run.tree / path).parent.mkdir(parents=True, exist_ok=True)
            (run.tree / path).write_bytes((script / path.relative_to("data")).read_bytes())
        found = reports.read(reports.PromptReport, run.tree / shelves.path(reports.PromptReport))
        changed = found.model_copy(update={"winner": found.winner.model_copy(update={"system": winner})})
        reports.write(changed, run.tree / shelves.path(reports.PromptReport))
        test = run.tree / shelves.examples_file("test")
        test.parent.mkdir(parents=True, exist_ok=True)
        test.write_text("".join(f"{row}\n" for row in rows))
        return registration.register(run, lambda _: None)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    return ladder_clone.make(tmp_path).clone


def row(text: str, id: str = "") -> str:
    return json.dumps({"id": id or text, "messages": [{"role": "user", "content": text}]})


ROWS = [row(f"example {n}") for n in range(6)]


def test_looks_are_counted_by_example_and_the_same_again_is_free(fresh: Clone) -> None:
    first = look_at(fresh, ROWS, "one")
    assert (first.registered, first.look, first.by_policy) == (True, 1, True)
    assert look_at(fresh, ROWS, "one") == first, "the same look again"
    assert look_at(fresh, [*ROWS, row("more")], "two").look == 2, "one example more makes no fresh set"
    assert look_at(fresh, [row(" Example  0", "renamed")], "three").look == 3, "nor does another name"
    assert look_at(fresh, [row("new")], "four").look == 1, "other examples do"
    number = book.read(fresh).state.number
    with pytest.raises(UserError, match=r"gate\.looks = 3, and this would be look 4 .*rft policy sign"):
        look_at(fresh, ROWS, "five")
    assert book.read(fresh).state.number == number
    assert look_at(fresh, ROWS, "one") == first, "and what was looked at can still be resumed"


def test_a_list_that_is_gone_is_an_error_and_no_count_of_zero(fresh: Clone) -> None:
    look_at(fresh, ROWS, "one")
    [look] = book.read(fresh).state.looks.values()
    md5 = look.act.examples.md5
    (fresh.dvc_cache / "files/md5" / md5[:2] / md5[2:]).unlink()
    with pytest.raises(InfrastructureError):
        look_at(fresh, [*ROWS, row("more")], "two")
    assert looks(fresh) == [1]


def test_no_example_stands_in_git(fresh: Clone) -> None:
    look_at(fresh, ROWS, "one")
    [each] = [each for each in book.read(fresh).stored if isinstance(each.entry.act, Registration)]
    assert b"xample" not in each.entry.content.replace(b'"examples"', b"")
    assert set(each.files) == {"policy.yaml", "allowed_signers"}


def test_thresholds_are_those_of_the_first_look_until_an_owner_signs_others(fresh: Clone) -> None:
    look_at(fresh, ROWS, "one")
    assert not look_at(fresh, ROWS, "two", min_gain=-1.0).by_policy
    assert looks(fresh) == [1, 2], "it looked all the same"
    ada, wanted = people.signer("Ada"), registration.settings_of(settings(fresh))
    acts.change(fresh, SetThresholds(model="tiny", settings=wanted), ada, "five looks")
    assert book.read(fresh).state.policy.thresholds["tiny"] == wanted
    with book.opened(fresh) as ledger, pytest.raises(Refused, match="needs a signed statement"):
        ledger.append(PolicyChange(change=SetThresholds(model="tiny", settings=wanted)))
    with pytest.raises(Refused, match=r"takes the role owner|is not enrolled"):
        acts.change(fresh, SetThresholds(model="tiny", settings=wanted), people.signer("Bob"), "mine")


def test_run_with_other_thresholds_ends_with_a_decision_and_asks_nobody(here: Clone, climb: Climb) -> None:
    gate = settings(here).gate.model_copy(update={"min_gain": -1.0})
    record = climb(gate=gate)
    assert record.decision == "promote"
    with pytest.raises(UserError, match="other thresholds"):
        people.approve(here, record.name)
    assert champions.of_params(here, settings(here)).champion.version == 0


def test_ledger_that_cannot_be_reached_keeps_the_test_closed(fresh: Clone, tmp_path: Path) -> None:
    fresh.git("remote", "add", "origin", str(tmp_path / "nowhere.git"))
    (fresh.root / "infra/ledger.yaml").write_text("remote: origin\n")
    with pytest.raises(InfrastructureError):
        look_at(fresh, ROWS, "one")


def test_who_asks_for_a_promotion_counts_again(
    here: Clone, climbed: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger cannot see which examples a set holds, so a clone could say look 1 for ever."""
    script = Path(shutil.copytree(climbed.root.parent / "script", tmp_path / "script"))
    (script / "data/examples/test.jsonl").write_text(ladder_clone.ROW + row("one more") + "\n")
    ladder_clone.rehash(script / "data")
    with monkeypatch.context() as patch:
        patch.setattr(counting, "count", lambda *_: 1)
        liar = ladder_clone.climb(ladder_clone.Scripted(here, script))
    with pytest.raises(UserError, match=r"says look 1, and it was look 2"):
        people.approve(here, liar.name)
    with monkeypatch.context() as patch:
        patch.setattr(counting, "lines", lambda *_: {"0" * 64 + "\n"})
        liar = ladder_clone.climb(ladder_clone.Scripted(here, script))
    with pytest.raises(UserError, match="lists other examples than those of run"):
        people.approve(here, liar.name)


def test_settings_that_were_changed_after_the_look_are_found_out(here: Clone, climbed: Clone) -> None:
    scripted = ladder_clone.Scripted(here, climbed.root.parent / "script")
    right = registration.register

    def edited(run: runs.Run, said: object) -> None:
        right(run, lambda _: None)
        path = run.tree / "params.yaml"
        path.write_text(path.read_text().replace("max_turns: 8", "max_turns: 9"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registration, "register", edited)
        record = ladder_clone.climb(scripted)
    with pytest.raises(UserError, match=r"decided under other settings in params\.yaml than entry \d+ registered"):
        people.approve(here, record.name)


def test_the_same_pair_measured_otherwise_is_another_look(here: Clone, climb: Climb) -> None:
    assert looks(here) == [1]
    climb()
    assert looks(here) == [1], "the same again"
    climb(rollout=settings(here).rollout.model_copy(update={"max_turns": 5}))
    assert looks(here) == [1, 2]
