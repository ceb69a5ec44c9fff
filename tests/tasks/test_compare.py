"""Two runs side by side, from their revisions alone: what differed, and whether their numbers can
be compared. Real Git and DVC."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import ladder_clone
import pytest
from ladder_clone import Scripted
from rich.console import Console

from flows import cli, comparison
from rft import config, page, reports
from rft.errors import UserError
from tasks.runs import artifacts
from tasks.runs import compare as compared
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone
from tasks.runs.compare import Comparison, compare
from tasks.runs.records import RunRecord

pytestmark = pytest.mark.slow

Made = tuple[Scripted, dict[str, RunRecord]]
OTHER_TEST = '{"messages": [{"role": "user", "content": "another"}]}\n'


def run_on_other_examples(scripted: Scripted, **changes: Any) -> RunRecord:
    data = scripted.script / "data"
    with (data / "examples/test.jsonl").open("a") as file:
        file.write(OTHER_TEST)
    examples = reports.read(reports.ExamplesReport, data / "examples/report.json")
    sha256 = examples.sha256 | {"test": "f" * 64}
    reports.write(examples.model_copy(update={"sha256": sha256}), data / "examples/report.json")
    ladder_clone.rehash(data)
    return ladder_clone.run_ladder(scripted, **changes)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scripted, dict[str, RunRecord]]:
    """A clone with a run, one with other settings, one on other test examples, and one that was cut
    off."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        scripted = ladder_clone.make(tmp_path_factory.mktemp("compare"))
        runs = {
            "first": ladder_clone.run_ladder(scripted),
            "settings": ladder_clone.run_ladder(scripted, train=config.Train(steps=7)),
            "test": run_on_other_examples(scripted, challenger=config.Challenger(k=2)),
        }
    return scripted, runs


@pytest.fixture
def here(made: Made, tmp_path: Path) -> Clone:
    return Clone(Path(shutil.copytree(made[0].root, tmp_path / "clone", symlinks=True)))


def pair(here: Clone, made: Made, a: str, b: str) -> Comparison:
    return compare(here, made[1][a].name, made[1][b].name)


def shown(found: Comparison, width: int) -> str:
    out = io.StringIO()
    comparison.show(found, Console(file=out, width=width, highlight=False))
    return out.getvalue()


def test_settings_that_differ_are_named_with_defaults_and_the_rest_is_the_same(here: Clone, made: Made) -> None:
    found = pair(here, made, "first", "settings")
    assert found.settings == {"train.steps": (config.Train().steps, 7)}
    assert {*found.data.values()} == {"same"}
    assert (found.same_test, found.reservations) == (True, [])
    challenger = reports.read(reports.ChallengerReport, made[0].script / "data/challenger/report.json")
    assert found.a.metrics["reward"] == challenger.arms[-1].sampled.metrics["reward/mean"]
    assert found.a.metrics["champion's reward"] == challenger.arms[0].sampled.metrics["reward/mean"]
    latency = found.a.metrics["seconds, P95"]
    assert latency is not None
    assert latency.value == pytest.approx(0.744)
    for name in ("gain in reward", "hack rate", "tokens read", "tool calls, P95", "greedy score"):
        assert found.a.metrics[name] is not None, name


def test_numbers_of_different_test_sets_are_not_compared_directly(here: Clone, made: Made) -> None:
    found = pair(here, made, "first", "test")
    assert found.same_test is False
    assert found.data["test examples"] == "differs"
    assert found.data["train examples"] == "same"
    assert found.reservations == [
        "they were measured on different test examples",
        "settings of the measurement differ: challenger.k",
    ]
    text = " ".join(shown(found, 200).split())
    assert "! The numbers cannot be compared directly: they were measured on different test examples" in text
    assert "each run's gain over the champion that it was compared with" in text


def test_a_grader_that_changed_is_a_reservation(here: Clone, made: Made) -> None:
    tools, grader = (here.root / "recipes/tiny" / name for name in ("tools.py", "grader.json"))
    grader.write_text(json.dumps(json.loads(grader.read_text()) | {"name": "another"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        edited = ladder_clone.run_ladder(Scripted(here, made[0].script))
    found = compare(here, made[1]["test"].name, edited.name)
    assert found.data["grader.json"] == found.data["recipe"] == "differs"
    assert "their graders differ" in found.reservations
    assert found.b.code.endswith(" + edits")
    here.git("checkout", "--quiet", "recipes")
    tools.write_text(tools.read_text() + "\n# another\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        edited = ladder_clone.run_ladder(Scripted(here, made[0].script))
    found = compare(here, made[1]["test"].name, edited.name)
    assert (found.data["grader.json"], found.data["recipe"]) == ("same", "differs")
    assert "their recipes differ, and with them perhaps the tools and the grader's code" in found.reservations


def test_runs_of_another_clone_are_found_by_their_revisions(here: Clone, made: Made) -> None:
    before = pair(here, made, "first", "settings")
    shutil.rmtree(here.runs)
    after = pair(here, made, "first", "settings")
    assert after.settings == before.settings
    assert after.a.metrics == before.a.metrics
    assert (after.a.decision, after.a.champion) == ("promote", "the beginning")


def test_a_run_that_is_not_over_shows_what_is_there(here: Clone, made: Made) -> None:
    record = made[1]["first"].model_copy(
        update={"name": "2026-04-07-half-way", "state": "interrupted", "revision": None}
    )
    reports.write(record, here.runs / "2026-04-07-half-way.json")
    found = compare(here, "half-way", made[1]["first"].name)
    assert (found.a.state, found.a.metrics, found.same_test) == ("interrupted", {}, None)
    assert found.reservations == ["there are no numbers on a test set for 2026-04-07-half-way"]
    tree = here.worktrees / record.name
    for part in ("traffic", "drift", "examples"):
        shutil.copytree(made[0].script / "data" / part, tree / "data" / part)
    told = Revision(here, made[1]["first"].revision or "").read("data/traffic/report.json")
    (tree / "data/traffic/report.json").write_bytes(told or b"")
    shutil.copy(here.root / "params.yaml", tree / "params.yaml")
    again = compare(here, "half-way", made[1]["first"].name)
    assert again.data["window"] == "same"
    assert again.data["base model"] == "unknown"
    assert "not known" in shown(again, 80)


def test_bytes_that_are_gone_are_said_and_the_rest_is_shown(here: Clone, made: Made) -> None:
    shutil.rmtree(here.dvc_cache / "files")
    found = pair(here, made, "first", "settings")
    assert found.settings == {"train.steps": (config.Train().steps, 7)}
    assert found.data["recipe"] == "same"
    assert any("is not in this clone's DVC cache" in line for line in found.a.missing)
    assert "! " + found.a.run in shown(found, 300)


@pytest.mark.parametrize("width", [80, 160])
def test_it_fits_the_terminal_and_loses_nothing(here: Clone, made: Made, width: int) -> None:
    found = pair(here, made, "first", "test")
    text = shown(found, width)
    assert max(map(len, text.splitlines())) <= width
    together = re.sub(r"\s", "", text)
    for word in ("train.steps", "challenger.k", "testexamples:differs", "championsreward"):
        assert (word in together.replace("'", "")) == (word != "train.steps")
    if width >= 120:
        assert f"{found.a.metrics['reward'].value:.3f} [" in text  # type: ignore[union-attr]


def test_what_it_says_for_programs_is_the_same(
    here: Clone, made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here.root)
    names = [made[1][name].name for name in ("first", "test")]
    assert cli.main(["runs", "compare", *names, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = pair(here, made, "first", "test")
    assert found == json.loads(json.dumps(expected.json()))
    assert found["comparable"] is False
    assert found["runs"][0]["metrics"]["reward"]["low"] == expected.a.metrics["reward"].low  # type: ignore[union-attr]
    assert cli.main(["runs", "compare", *names]) == 0
    assert "Settings that differ" in capsys.readouterr().out


def test_a_run_that_nobody_knows_and_the_same_one_twice(here: Clone, made: Made) -> None:
    first = made[1]["first"].name
    with pytest.raises(UserError, match=r"no run named 'nothing'. The latest: "):
        compare(here, first, "nothing")
    with pytest.raises(UserError, match=f"{first} and {first} are the same run, {first}. Name two."):
        compare(here, first, first)
    with pytest.raises(UserError, match=r"could be any of .* Write more of the name"):
        compare(here, first, "2")


def test_no_secret_is_shown(
    here: Clone, made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUR_KEY", "sesame-open-now")
    monkeypatch.setattr(
        compared._Source, "report", lambda source, kind: source.missing.append("it said sesame-open-now") or None
    )
    monkeypatch.chdir(here.root)
    record = made[1]["first"].model_copy(update={"name": "x-secret", "revision": None, "state": "failed"})
    reports.write(record, here.runs / "x-secret.json")
    tree = here.worktrees / "x-secret"
    tree.mkdir(parents=True)
    (tree / "params.yaml").write_text("recipe:\n  options:\n    key: env:OUR_KEY\n")
    for extra in ([], ["--json"]):
        assert cli.main(["runs", "compare", "x-secret", made[1]["first"].name, *extra]) == 0
        out = capsys.readouterr().out
        assert "it said [secret" in " ".join(out.split())
        assert "sesame" not in out


def test_what_another_clone_wrote_cannot_rewrite_the_terminal(here: Clone, made: Made) -> None:
    record = made[1]["first"].model_copy(update={"name": "x-evil", "revision": None, "message": "\x1b[2Jall is well"})
    reports.write(record, here.runs / "x-evil.json")
    tree = here.worktrees / "x-evil"
    tree.mkdir(parents=True)
    (tree / "params.yaml").write_text('recipe:\n  options: {"[red]\\e[2K": "\\e]0;x[/red]"}\n')
    text = shown(compare(here, "x-evil", made[1]["first"].name), 200)
    assert "\x1b" not in text
    assert "recipe.options.[red]\\x1b[2K" in text
    assert "\\x1b[2Jall is well" in text


def test_the_page_that_is_written_again_from_the_revision_names_its_look(
    here: Clone, made: Made, tmp_path: Path
) -> None:
    at = Revision(here, made[1]["settings"].revision or "")
    artifacts.restore(at, tmp_path / "restored")
    text = page.render(tmp_path / "restored", {"run": "x"})
    look = at.told(reports.Registration)
    assert look is not None
    assert f"Look {look.look} of 5 at this test set; {5 - look.look} left. Registered before" in text
    assert f"as entry {look.entry} of the ledger" in text
    assert (tmp_path / "restored/params.yaml").exists()
