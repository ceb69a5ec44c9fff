"""Files of reports: they say their schema, a later one is refused, and those of an old revision are
read and shown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rft import files, page, reports
from rft.errors import UserError
from rft.reports import wording
from rft.stages import gate
from tasks import dependencies
from tasks.runs import records
from tasks.runs.clone import Clone

STORED = Path(__file__).parents[1] / "golden" / "stored-0.1.0"
GATE_SHA256 = "5b88eeca1e53d2f0b8561d683cd5c54e6875dfdba8b6f91e8ac5d38c38e18035"
"""Of the settings that the stored decision was made with: those of tests/sample_reports.py with
wider margins."""
KINDS: dict[str, type[reports.Report]] = {
    "champion/champion.json": reports.Champion,
    "traffic/report.json": reports.TrafficReport,
    "traffic/current_profile.json": reports.Profile,
    "drift/report.json": reports.DriftReport,
    "examples/report.json": reports.ExamplesReport,
    "policy/report.json": reports.PolicyReport,
    "baseline/report.json": reports.BaselineReport,
    "prompt/report.json": reports.PromptReport,
    "prompt/prompt.json": reports.PromptSettings,
    "train/report.json": reports.TrainReport,
    "challenger/report.json": reports.ChallengerReport,
    "gate/decision.json": reports.Decision,
    "gate/request.json": reports.PromotionRequest,
}
TRAIN = reports.TrainReport(trained=False, reason="naïve", weights="none")
PROMPT = reports.PromptReport(
    winner=reports.PromptSettings(name="seed", system="Be brief."),
    found=False,
    reason="none",
    candidates=[],
    confirmation=reports.Metric(value=0.0, n=3),
    num_rollouts=12,
)


# -- the schema of a file --------------------------------------------------------------------------
def test_a_file_begins_with_its_schema_and_no_report_inside_it_has_one(tmp_path: Path) -> None:
    path = tmp_path / "prompt/report.json"
    reports.write(PROMPT, path)
    written = json.loads(path.read_text())
    assert list(written)[:2] == ["schema", "winner"]
    assert written.pop("schema") == reports.SCHEMA == "agent-rft/2"
    assert "schema" not in json.dumps(written)
    assert reports.read(reports.PromptReport, path) == PROMPT


def test_the_schema_is_in_no_digest() -> None:
    """This digest is that of version 0.1.0. Its canonical JSON holds the ï of the reason as it
    is."""
    assert "schema" not in PROMPT.model_dump()
    assert '"reason":"naïve"'.encode() in files.canonical(TRAIN.model_dump(mode="json"))
    assert TRAIN.digest() == "e28795b5ef24a9a06a732e2da6341b239cfd8761d5cf9725c2b8b133b3e67c10"


def test_the_digest_of_a_report_does_not_tell_1_from_1_0() -> None:
    """A float that JSON wrote without its `.0` is the same number."""
    whole = TRAIN.model_copy(update={"weight_change": 1})
    assert whole.digest() == TRAIN.model_copy(update={"weight_change": 1.0}).digest() != TRAIN.digest()


def test_no_report_is_a_file_that_says_so(tmp_path: Path) -> None:
    reports.write(None, tmp_path / "request.json")
    assert (tmp_path / "request.json").read_text() == "null\n"


def test_a_file_without_a_schema_is_one_of_before(tmp_path: Path) -> None:
    path = tmp_path / "train/report.json"
    reports.write_json(TRAIN.model_dump(mode="json"), path)
    assert reports.read(reports.TrainReport, path) == TRAIN


@pytest.mark.parametrize("schema", ["agent-rft/3", "agent-rft/10", "agent-rft/", "agent-rft/1.5", "another/1", 1, None])
def test_a_schema_that_is_not_known_is_refused_by_name(tmp_path: Path, schema: object) -> None:
    path = tmp_path / "train/report.json"
    reports.write_json({"schema": schema, "what nobody knows yet": 1}, path)
    with pytest.raises(UserError) as caught:
        reports.read(reports.TrainReport, path)
    assert str(caught.value) == (
        f"{path}: written in schema {schema!r}, but this version of agent-rft reads schemas up to 'agent-rft/2'. "
        "Read it with the version that wrote it, or with a later one."
    )


def test_the_record_of_a_run_is_refused_likewise(tmp_path: Path) -> None:
    path = records.path(Clone(tmp_path), "r-1")
    reports.write_json({"schema": "agent-rft/3"}, path)
    with pytest.raises(UserError, match=r"r-1\.json: written in schema 'agent-rft/3'"):
        records.load_all(Clone(tmp_path))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ('{"schema": "agent-rft/1", "trained": tr', "the file: Invalid JSON: "),
        ('["schema"]', "the file: Input should be an object"),
        ('{"schema": "agent-rft/1", "trained": false, "reason": "", "weights": "none", "curve": {}}', "curve: "),
        ('{"trained": false, "reason": "", "weights": "none", "curve": {}}', "curve: Input should be a valid array"),
        ('{"schema": "agent-rft/1", "trained": false, "reason": "", "weights": "none", "new": 1}', "new: Extra inputs"),
    ],
)
def test_a_damaged_file_is_one_error_that_says_where(tmp_path: Path, content: str, what: str) -> None:
    path = tmp_path / "train/report.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        reports.read(reports.TrainReport, path)
    assert str(caught.value).startswith(f"{path}: {what}")
    assert str(caught.value).endswith("Not a whole TrainReport; run the stage again: rft stage run train")


def test_a_sentence_that_changed_repeats_no_stage_but_the_gate() -> None:
    """Every stage depends on what `rft.reports` loads (rft/reports/__init__.py)."""
    root = Path(gate.__file__).parents[2]
    loads = [stage for stage in dependencies.STAGES if "rft/reports/wording.py" in dependencies.modules(root, stage)]
    assert loads == ["gate"]


# -- a revision of version 0.1.0 -------------------------------------------------------------------
@pytest.mark.parametrize("name", KINDS)
def test_a_stored_report_is_read_and_written_back_to_the_same_bytes_but_for_its_schema(
    tmp_path: Path, name: str
) -> None:
    reports.write(reports.read(KINDS[name], STORED / "data" / name), tmp_path / "again.json")
    now = (STORED / "data" / name).read_bytes().replace(b'"schema": "agent-rft/1"', b'"schema": "agent-rft/2"')
    assert (tmp_path / "again.json").read_bytes() == now


def test_every_stored_file_is_read_by_a_test() -> None:
    others = {"data/challenger/timing.json", "data/gate/timing.json", "README.md"}
    others.add("runs/2026-04-06-brave-otter.json")
    found = {path.relative_to(STORED).as_posix() for path in STORED.rglob("*") if path.is_file()}
    assert found == {f"data/{name}" for name in KINDS} | others


def test_the_hashes_of_a_stored_decision_still_hold() -> None:
    """An approval of then can be checked: what it names by hash is what lies there."""
    found = {name: reports.read(kind, STORED / "data" / name) for name, kind in KINDS.items()}
    decision, request, prompt = (found[f"{name}.json"] for name in ("gate/decision", "gate/request", "prompt/prompt"))
    assert isinstance(decision, reports.Decision)
    assert isinstance(request, reports.PromotionRequest)
    stages = {
        "drift": "drift",
        "baseline": "baseline",
        "prompt": "prompt_report",
        "train": "train",
        "challenger": "challenger",
    }
    named = {key: found[f"{stage}/report.json"].digest() for stage, key in stages.items()}
    challenger = found["challenger/report.json"]
    assert isinstance(challenger, reports.ChallengerReport)
    arms = {arm.name: arm for arm in challenger.arms}
    named |= {"prompt": prompt.digest(), "test": challenger.test_sha256, "weights": arms["challenger"].weights_sha256}
    assert {arms[name].prompt_sha256 for name in ("champion_new_prompt", "challenger")} == {prompt.digest()}
    assert decision.hashes == named | {"gate": GATE_SHA256}
    assert request.decision_sha256 == decision.digest()
    assert request.prompt == prompt
    assert not prompt.model_dump_json().isascii(), "a digest could go wrong there"


def test_the_page_of_a_stored_run_and_its_gate_can_be_shown() -> None:
    decision = reports.read(reports.Decision, STORED / "data/gate/decision.json")
    shown = page.render(STORED, {"run": "2026-04-06-brave-otter"})
    assert "Promote" in shown
    assert decision.reason[1:] in shown
    for check in decision.checks:
        assert wording.describe(check).startswith(f"{check.name}: {wording.verdict(check)}")
        assert f"<b>{check.name}</b>" in shown
        assert wording.measured(check) in shown


def test_the_record_of_a_stored_run_is_read(tmp_path: Path) -> None:
    clone = Clone(tmp_path)
    clone.runs.mkdir(parents=True)
    shutil.copy(STORED / "runs/2026-04-06-brave-otter.json", clone.runs)
    (record,) = records.load_all(clone)
    decision = reports.read(reports.Decision, STORED / "data/gate/decision.json")
    assert (record.state, record.decision) == ("finished", decision.decision)
