"""Stage baseline, and that every stage with rollouts is a function of its inputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rft import reports, stage_files
from rft.errors import ConfigError
from tests import tiny_recipe
from tests.ladder import again, inside, stage_hashes

pytestmark = pytest.mark.usefixtures("ready_server")


def test_baseline_counts_add_up(ladder: Path):
    report = reports.read(reports.BaselineReport, ladder / "data/baseline/report.json")
    assert sum(report.sampled.tool_calls.values()) == sum(report.sampled.stop_reasons.values()) == 8 * 3
    assert [k for k, _ in report.sampled.max_at_k] == [1, 2, 3]
    assert sum(report.sampled.shares.values()) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["examples", "policy", "baseline", "prompt", "train"])
def test_equal_inputs_give_equal_bytes(ladder: Path, tmp_path: Path, ladder_recipe: Path, stage: str):
    assert stage_hashes(again(ladder, tmp_path, ladder_recipe, stage), stage) == stage_hashes(ladder, stage)


@pytest.mark.slow
def test_readiness_in_words(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    again(ladder, tmp_path, ladder_recipe, "baseline", baseline={"not_worth_above": 0.0})
    report = reports.read(reports.BaselineReport, tmp_path / "data/baseline/report.json")
    mean = report.sampled.metrics["score/mean"].value
    assert report.readiness == (
        "not worth it" if mean > 0 else "not yet" if report.sampled.max_at_k[-1][1] < 0.02 else "ready"
    )


def measured(ladder: Path, folder: Path, recipe: Path, **section: float) -> reports.BaselineReport:
    """The ladder's policy, measured on another recipe."""
    again(ladder, folder, recipe, "baseline", baseline=section)
    return reports.read(reports.BaselineReport, folder / "data/baseline/report.json")


def teachable(folder: Path) -> Path:
    """The recipe that the ladder's policy learned, to be given another grader."""
    return tiny_recipe.teachable(tiny_recipe.make(folder))


@pytest.mark.slow
def test_replies_without_room_are_counted(ladder: Path, tmp_path: Path):
    made = teachable(tmp_path / "recipe")
    text = (made / "tools.py").read_text(encoding="utf-8")
    talks = "import functools\n\n\n@functools.wraps(lookup)\ndef talks(**asked):\n    return lookup(**asked) * 2000\n"
    talks += "\n\nTOOLS = [talks]"
    (made / "tools.py").write_text(text.replace("TOOLS = [lookup]", talks), encoding="utf-8")
    report = measured(ladder, tmp_path / "long", made)
    assert "of 24 rollouts a tool's reply was longer than what was left of the context" in report.reason
    assert "longer than what was left" not in measured(ladder, tmp_path / "short", teachable(tmp_path / "usual")).reason


HALF = '0.5 + 0.5 * (sample["output_text"].strip() == item["target"])'


@pytest.mark.slow
@pytest.mark.parametrize(("low", "high"), [(0, 5), (-2, 2)])
def test_verdicts_are_on_shares_of_the_range_and_numbers_on_its_own_scale(
    ladder: Path, tmp_path: Path, low: int, high: int
):
    """A failure earns half of the range, and a success all of it. On 0 to 1 every mean here would
    be above 0.95 (0 to 5), or below 0.02 at worst."""
    scaled = tiny_recipe.rescale(teachable(tmp_path / "recipe"), low, high, HALF)
    report = measured(ladder, tmp_path / "ready", scaled, not_worth_above=0.95, not_yet_below=0.3)
    mean = report.sampled.metrics["score/mean"].value
    share = (mean - low) / (high - low)
    assert 0.5 < share < 0.95
    assert report.sampled.range == report.greedy.range == (low, high)
    assert report.readiness == "ready"
    assert report.reason.startswith(f"mean score {mean:.3f} of {low} to {high}, best of 3 ")
    good = measured(ladder, tmp_path / "good", scaled, not_worth_above=0.5)
    assert good.readiness == "not worth it"
    assert good.reason.startswith(f"the mean score is {mean:.3f} of {low} to {high} already, above 0.5 of the range")
    hard = tiny_recipe.rescale(teachable(tmp_path / "hard"), low, high, f"0.5 * ({HALF})")
    poor = measured(ladder, tmp_path / "poor", hard, not_worth_above=1.0, not_yet_below=0.6)
    assert poor.readiness == "not yet"
    assert f" of {low} to {high}, below 0.6 of the range: warm-start first" in poor.reason
    assert "Raise policy.warm_start.steps" in poor.reason
    assert "train.when_not_ready: warm_start" in poor.reason


@pytest.mark.slow
def test_one_example_of_many_that_ever_scores_is_no_sign_of_readiness(ladder: Path, tmp_path: Path):
    made, twelve = teachable(tmp_path / "recipe"), {"validation": 12}
    more = again(ladder, tmp_path / "more", made, "examples", examples=twelve)
    with inside(more):
        targets = [row.target for row in stage_files.load_examples("validation")]
    for number, readiness in ((1, "not yet"), (2, "ready")):
        rescaled = tiny_recipe.rescale(made, 0, 1, f'float(item["target"] in {targets[:number]})')
        again(more, tmp_path / str(number), rescaled, "baseline", baseline={"examples": 12}, examples=twelve)
        report = reports.read(reports.BaselineReport, tmp_path / str(number) / "data/baseline/report.json")
        assert report.readiness == readiness, report.reason
        single = report.reason.startswith("of 12 examples a single one ever scored above the lowest, which may be luck")
        assert single == (number == 1)


@pytest.mark.slow
def test_few_examples_are_said_to_tell_little(ladder: Path, tmp_path: Path):
    few = measured(ladder, tmp_path / "few", teachable(tmp_path / "recipe"), examples=3)
    assert ". 3 examples tell little: measure 24 or more" in few.reason
    assert "tell little" not in reports.read(reports.BaselineReport, ladder / "data/baseline/report.json").reason


def test_a_template_that_no_row_fills_is_refused_before_anything_is_sampled(ladder: Path, tmp_path: Path):
    made = teachable(tmp_path / "recipe")
    grader = {"type": "string_check", "name": "same", "operation": "eq", "input": "{{sample.output_text}}"}
    (made / "grader.json").write_text(json.dumps(grader | {"reference": "{{item.targt}}"}))
    with pytest.raises(ConfigError, match=r"\{\{item\.targt\}\} names nothing: no row .* Did you mean 'target'\?"):
        measured(ladder, tmp_path / "run", made)
    assert not [*(tmp_path / "run").rglob("rollouts/*.jsonl")]


@pytest.mark.slow
@pytest.mark.parametrize(("grading", "score"), [("0.0", 0), ("1.0", 1)])
def test_one_score_for_everything_is_suspect_and_neither_hopeless_nor_perfect(
    ladder: Path, tmp_path: Path, grading: str, score: int
):
    blind = tiny_recipe.rescale(teachable(tmp_path / "recipe"), 0, 1, grading)
    report = measured(ladder, tmp_path / "run", blind, not_worth_above=0.95, not_yet_below=0.02)
    assert report.readiness == "suspect"
    assert report.reason.startswith(
        f"all 24 scores are {score}. First: example {report.sampled.rows[0].example_id} (rollout "
    )
    assert "said 'as declared'. Check examples.keys, the grader and its range before training" in report.reason


@pytest.mark.slow
def test_tools_that_always_refuse_are_suspect(ladder: Path, tmp_path: Path):
    made = tiny_recipe.rescale(teachable(tmp_path / "recipe"), 0, 1)
    tools = (made / "tools.py").read_text()
    assert "key = key.strip()" in tools
    (made / "tools.py").write_text(tools.replace("key = key.strip()", 'raise ToolError("no route to " + key)'))
    report = measured(ladder, tmp_path / "run", made)
    assert report.readiness == "suspect"
    assert " tool calls of " in report.reason
    assert "and was told 'no route to" in report.reason


@pytest.mark.slow
def test_rollouts_that_all_end_at_a_limit_are_suspect(ladder: Path, tmp_path: Path):
    made = tiny_recipe.rescale(teachable(tmp_path / "recipe"), 0, 1)
    again(ladder, tmp_path / "run", made, "baseline", rollout={"max_turn_tokens": 1})
    report = reports.read(reports.BaselineReport, tmp_path / "run/data/baseline/report.json")
    assert report.readiness == "suspect"
    assert report.reason.startswith("all 24 rollouts ended with max_tokens, none with an answer. First: example ")
    assert "Check rollout.max_turn_tokens" in report.reason
