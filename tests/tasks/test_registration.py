"""Looks at a test set: registered before it is opened, counted by example, and paid for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import ladder_clone
import people
import pytest

from rft import config, reports, stage_files
from rft.errors import InfrastructureError, UserError
from tasks.ledger import book
from tasks.ledger.authorise import Refused
from tasks.ledger.entry import PolicyChange, Registration
from tasks.ledger.policy import SetThresholds
from tasks.ledger.spending import Past
from tasks.promotion import acts, champions, counting, registration, retiring
from tasks.runs import champion
from tasks.runs import run as runs
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord

RunLadder = Callable[..., RunRecord]


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
        for kind in (reports.ExamplesReport, reports.PromptReport, reports.TrainReport, reports.PolicyReport):
            path = stage_files.path(kind)
            (run.tree / path).parent.mkdir(parents=True, exist_ok=True)
            (run.tree / path).write_bytes((script / path.relative_to("data")).read_bytes())
        found = reports.read(reports.PromptReport, run.tree / stage_files.path(reports.PromptReport))
        changed = found.model_copy(update={"winner": found.winner.model_copy(update={"system": winner})})
        reports.write(changed, run.tree / stage_files.path(reports.PromptReport))
        test = run.tree / stage_files.examples_file("test")
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


@pytest.mark.slow
def test_looks_are_counted_by_example_and_the_same_again_is_free(fresh: Clone) -> None:
    first = look_at(fresh, ROWS, "one")
    assert (first.registered, first.look, first.by_policy) == (True, 1, True)
    assert look_at(fresh, ROWS, "one") == first, "the same look again"
    assert look_at(fresh, [*ROWS, row("more")], "two").look == 2, "one example more makes no fresh set"
    assert look_at(fresh, [row(" Example  0", "renamed")], "three").look == 3, "nor does another name"
    assert look_at(fresh, [row("new")], "four").look == 1, "other examples do"
    number = book.read(fresh).state.number
    with pytest.raises(UserError, match=r"gate\.looks = 3, and this would be look 4 .*raise gate\.looks before"):
        look_at(fresh, ROWS, "five")
    assert book.read(fresh).state.number == number
    assert look_at(fresh, ROWS, "one") == first, "and what was looked at can still be resumed"


@pytest.mark.slow
def test_alpha_is_spent_and_not_divided_anew(fresh: Clone) -> None:
    first = look_at(fresh, ROWS, "one", looks=5)
    assert first.level == pytest.approx(0.05 / 5 / 2)
    assert look_at(fresh, ROWS, "two", looks=5).level == pytest.approx(first.level)
    raised = look_at(fresh, ROWS, "three", looks=10).level
    assert raised == pytest.approx((0.05 - 2 * 0.05 / 5) / 8 / 2)
    lowered = look_at(fresh, ROWS, "four", looks=4).level
    assert lowered == pytest.approx((0.05 - 2 * 0.05 / 5 - 2 * raised) / 2)
    with pytest.raises(UserError, match=r"nothing is left of gate\.alpha = 0\.05: .*by raising gate\.looks"):
        look_at(fresh, ROWS, "five", looks=10)
    with pytest.raises(UserError, match="nothing is left"):
        look_at(fresh, [*ROWS, row("more")], "five", looks=10)
    assert look_at(fresh, [row("new")], "five", looks=10).level == pytest.approx(0.05 / 10 / 2)


@pytest.mark.slow
def test_terms_that_are_looser_than_those_of_an_earlier_look_are_refused(fresh: Clone) -> None:
    first = look_at(fresh, ROWS, "one")
    number = book.read(fresh).state.number
    for change in ({"min_gain": -1.0}, {"alpha": 0.5}, {"seed": 7}):
        message = rf"when entry {first.entry} looked at these test examples, the policy had .*{next(iter(change))} was"
        with pytest.raises(UserError, match=message):
            look_at(fresh, ROWS, "one", **change)  # type: ignore[arg-type]
        with pytest.raises(UserError, match=message):
            look_at(fresh, [*ROWS[:1], row("more")], "two", **change)  # type: ignore[arg-type]
    assert book.read(fresh).state.number == number
    again = look_at(fresh, ROWS, "one", min_gain=0.5)
    assert (again.look, again.level) == (1, first.level), "stricter terms for the same look are another registration"
    assert look_at(fresh, ROWS, "two").look == 2, "and bind nobody: the policy's were others"
    assert look_at(fresh, [row("new")], "two", min_gain=-1.0).look == 1, "fresh examples may have any"


def test_a_ledger_lets_no_look_stand_that_spends_more_than_is_left(fresh: Clone) -> None:
    look_at(fresh, ROWS, "one")
    [look] = book.read(fresh).state.looks.values()
    assert look.act.level is not None
    other = look.act.model_copy(update={"candidates": [("f" * 64, "f" * 64)], "look": 2})
    with book.opened(fresh) as ledger:
        for level in (2 * look.act.level, None):
            with pytest.raises(Refused, match=r"may ask at 0\.00833333 at most|does not say what it spends"):
                ledger.append(other.model_copy(update={"level": level}))


def test_rows_that_are_cut_off_open_nothing(fresh: Clone) -> None:
    with pytest.raises(
        UserError, match=r"data/examples/test\.jsonl:2: not a whole row with messages.*stage run examples"
    ):
        look_at(fresh, [ROWS[0], ROWS[1][:20]], "one")
    assert book.read(fresh).state.looks == {}


@pytest.mark.slow
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


@pytest.mark.slow
def test_thresholds_are_those_of_the_first_look_until_an_owner_signs_others(fresh: Clone) -> None:
    look_at(fresh, ROWS, "one")
    assert not look_at(fresh, ROWS, "two", min_gain=0.5).by_policy
    assert looks(fresh) == [1, 2], "it looked all the same"
    ada, wanted = people.signer("Ada"), registration.settings_of(settings(fresh))
    acts.change(fresh, SetThresholds(model="tiny", settings=wanted), ada, "five looks")
    assert book.read(fresh).state.policy.thresholds["tiny"] == wanted
    with book.opened(fresh) as ledger, pytest.raises(Refused, match="needs a signed statement"):
        ledger.append(PolicyChange(change=SetThresholds(model="tiny", settings=wanted)))
    with pytest.raises(Refused, match=r"takes the role owner|is not enrolled"):
        acts.change(fresh, SetThresholds(model="tiny", settings=wanted), people.signer("Bob"), "mine")


@pytest.mark.slow
def test_run_with_other_thresholds_ends_with_a_decision_and_asks_nobody(here: Clone, run_ladder: RunLadder) -> None:
    gate = settings(here).gate.model_copy(update={"looks": 50})
    record = run_ladder(gate=gate)
    assert (record.decision, record.by_policy) == ("promote", False)
    with pytest.raises(UserError, match=r"other thresholds than the policy of tiny, .* rft ledger policy sign"):
        people.approve(here, record.name)
    assert champions.of_params(here, settings(here)).champion.version == 0


def test_ledger_that_cannot_be_reached_keeps_the_test_closed(fresh: Clone, tmp_path: Path) -> None:
    fresh.git("remote", "add", "origin", str(tmp_path / "nowhere.git"))
    (fresh.root / "infra/ledger.yaml").write_text("remote: origin\n")
    with pytest.raises(InfrastructureError):
        look_at(fresh, ROWS, "one")


@pytest.mark.slow
def test_who_asks_for_a_promotion_counts_again(
    here: Clone, clone_with_run: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger cannot see which examples a set holds, so a clone could say look 1 for ever."""
    script = Path(shutil.copytree(clone_with_run.root.parent / "script", tmp_path / "script"))
    (script / "data/examples/test.jsonl").write_text(ladder_clone.ROW + row("one more") + "\n")
    ladder_clone.rehash(script / "data")
    with monkeypatch.context() as patch:
        patch.setattr(counting, "past", lambda *_: Past(1, 0.0, None, ()))
        liar = ladder_clone.run_ladder(ladder_clone.Scripted(here, script))
    with pytest.raises(UserError, match=r"says look 1, and it was look 2"):
        people.approve(here, liar.name)
    with monkeypatch.context() as patch:
        patch.setattr(counting, "lines", lambda *_: {"0" * 64 + "\n"})
        liar = ladder_clone.run_ladder(ladder_clone.Scripted(here, script))
    with pytest.raises(UserError, match="lists other examples than those of run"):
        people.approve(here, liar.name)


@pytest.mark.slow
def test_settings_that_were_changed_after_the_look_are_found_out(here: Clone, clone_with_run: Clone) -> None:
    scripted = ladder_clone.Scripted(here, clone_with_run.root.parent / "script")
    right = registration.register

    def edited(run: runs.Run, said: object) -> None:
        right(run, lambda _: None)
        path = run.tree / "params.yaml"
        path.write_text(path.read_text().replace("max_turns: 8", "max_turns: 9"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registration, "register", edited)
        record = ladder_clone.run_ladder(scripted)
    with pytest.raises(UserError, match=r"decided under other settings in params\.yaml than entry \d+ registered"):
        people.approve(here, record.name)


@pytest.mark.slow
def test_the_same_pair_measured_otherwise_is_another_look(here: Clone, run_ladder: RunLadder) -> None:
    assert looks(here) == [1]
    run_ladder()
    assert looks(here) == [1], "the same again"
    run_ladder(rollout=settings(here).rollout.model_copy(update={"max_turns": 5}))
    assert looks(here) == [1, 2]
    run_ladder(challenger=settings(here).challenger.model_copy(update={"shown": 3}))
    assert looks(here) == [1, 2, 3], "the stage plays its arms again, and with a server or a judge that draws anew"


@pytest.mark.slow
def test_a_result_belongs_to_the_look_that_was_registered_before_it(here: Clone, run_ladder: RunLadder) -> None:
    """Under other thresholds it is the same look: what was measured stays, and is judged anew."""

    def opening(record: RunRecord) -> reports.Opening:
        assert record.revision is not None
        return Revision(here, record.revision).told(reports.Opening)

    first = opening(run_ladder())
    state = book.read(here).state
    assert first.look == state.ids[min(state.looks)]
    assert opening(run_ladder(gate=settings(here).gate.model_copy(update={"min_gain": 0.9}))) == first
    other = opening(run_ladder(rollout=settings(here).rollout.model_copy(update={"max_turns": 5})))
    assert other.look not in ("", first.look)


# -- test sets that are retired --------------------------------------------------------------------
def opened(clone: Clone, rows: list[str], run: str = "by hand", why: str | None = "what went wrong?") -> int:
    folder = clone.root.parent / run
    (folder / "data/examples").mkdir(parents=True, exist_ok=True)
    (folder / stage_files.examples_file("test")).write_text("".join(f"{row}\n" for row in rows))
    return retiring.open_test(clone, retiring.of_folder(folder, run, "tiny"), why, lambda _: None)


@pytest.mark.slow
def test_an_opened_example_is_in_no_later_look(fresh: Clone) -> None:
    first = look_at(fresh, ROWS, "one")
    number = opened(fresh, ROWS[:2])
    assert opened(fresh, ROWS[:2], why=None) == number, "the same again is not a second entry"
    [entry] = book.read(fresh).state.opened.values()
    assert (entry.registration, entry.run) == (0, "by hand"), "it registered nothing"
    message = (
        rf"2 of these 6 test examples are retired: entry {number} opened them, .* \(what went wrong\?\)\. Take fresh"
    )
    with pytest.raises(UserError, match=message):
        look_at(fresh, ROWS, "two")
    with pytest.raises(UserError, match=message):
        look_at(fresh, ROWS, "one")
    with pytest.raises(UserError, match="is retired: entry"):
        look_at(fresh, ROWS[:2], "three")
    assert looks(fresh) == [first.look]
    assert look_at(fresh, ROWS[2:], "four").look == 2, "the others count as before"
    assert look_at(fresh, [row("new")], "five").look == 1


def test_in_a_clone_without_a_ledger_opening_begins_one(fresh: Clone) -> None:
    assert opened(fresh, ROWS) == 2
    assert book.read(fresh).state.number == 2


@pytest.mark.slow
def test_an_erased_list_is_asked_for_no_more_and_its_set_is_retired(fresh: Clone) -> None:
    look_at(fresh, ROWS, "one")
    [look] = book.read(fresh).state.looks.values()
    md5 = look.act.examples.md5
    path = fresh.dvc_cache / "files/md5" / md5[:2] / md5[2:]
    assert path.exists()
    nobody: Callable[[object], None] = lambda _: None  # noqa: E731
    with pytest.raises(UserError, match=rf"entry 1 registers no look at a test set\. These do: {look.number}\."):
        retiring.erase(fresh, 1, "past its time", nobody)
    entry, elsewhere = retiring.erase(fresh, look.number, "past its time", nobody)
    assert (path.exists(), elsewhere) == (False, [])
    assert retiring.erase(fresh, look.number, "past its time", nobody)[0] == entry, "again is not a second entry"
    for rows in (ROWS, ROWS[::-1]):
        with pytest.raises(UserError, match=f"is retired: entry {entry} erased the list of its examples. Take fresh"):
            look_at(fresh, rows, "two")
    assert not path.exists(), "and nothing brought it back"
    assert look_at(fresh, [*ROWS, row("more")], "three").look == 1, "what cannot be counted is not"


@pytest.mark.slow
def test_an_erasure_is_an_owners_once_there_is_one(fresh: Clone) -> None:
    look_at(fresh, ROWS, "one")
    [look] = book.read(fresh).state.looks.values()
    ada = people.signer("Ada")
    acts.change(fresh, SetThresholds(model="tiny", settings=registration.settings_of(settings(fresh))), ada, "mine")
    with pytest.raises(Refused, match="to erase needs a signed statement"):
        retiring.erase(fresh, look.number, "past its time", lambda _: None)
    with pytest.raises(Refused, match=r"takes the role owner|is not enrolled"):
        retiring.erase(fresh, look.number, "past its time", lambda _: people.signer("Bob"))
    md5 = look.act.examples.md5
    assert (fresh.dvc_cache / "files/md5" / md5[:2] / md5[2:]).exists(), "what was refused erases nothing"
    retiring.erase(fresh, look.number, "past its time", lambda _: ada)
    assert not (fresh.dvc_cache / "files/md5" / md5[:2] / md5[2:]).exists()


def test_how_many_examples_are_shown_is_no_threshold(fresh: Clone) -> None:
    params = settings(fresh)
    more = params.model_copy(update={"challenger": params.challenger.model_copy(update={"shown": 3})})
    assert registration.settings_of(more) == registration.settings_of(params)
