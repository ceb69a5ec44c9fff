"""What a version says of itself in the formats of others, each read back by somebody else's code:
CycloneDX's schemas and classes, huggingface_hub, openlineage-python, securesystemslib, in-toto."""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import jsonschema
import ladder_clone
import people
import pytest
import yaml

from rft import files, secrets, stage_files
from rft.errors import UserError
from tasks import provenance
from tasks.ledger import book, keys
from tasks.ledger.state import State
from tasks.promotion import signing
from tasks.provenance import openlineage, subject
from tasks.provenance.bom import purl
from tasks.provenance.subject import Subject
from tasks.runs.artifacts import Out, Revision, path_of
from tasks.runs.clone import Clone
from tasks.runs.git import git
from tasks.runs.records import RunRecord

EVENT = {
    "type": "object",
    "required": ["eventTime", "producer", "schemaURL", "run", "job"],
    "additionalProperties": False,
    "properties": {
        "eventTime": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$"},
        "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
        "producer": {"type": "string", "pattern": "^[a-z]+:"},
        "schemaURL": {"type": "string", "pattern": "^https://openlineage.io/spec/2-"},
        "run": {
            "type": "object",
            "required": ["runId"],
            "properties": {
                "runId": {"type": "string", "pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"},
                "facets": {"$ref": "#/$defs/facets"},
            },
        },
        "job": {
            "type": "object",
            "required": ["namespace", "name"],
            "properties": {
                "namespace": {"type": "string", "minLength": 1},
                "name": {"type": "string", "minLength": 1},
                "facets": {"$ref": "#/$defs/facets"},
            },
        },
        "inputs": {"type": "array", "items": {"$ref": "#/$defs/dataset"}},
        "outputs": {"type": "array", "items": {"$ref": "#/$defs/dataset"}},
    },
    "$defs": {
        "facets": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["_producer", "_schemaURL"],
                "properties": {"_schemaURL": {"type": "string", "pattern": "^https?://"}},
            },
        },
        "dataset": {
            "type": "object",
            "required": ["namespace", "name"],
            "additionalProperties": False,
            "properties": {
                "namespace": {"type": "string", "minLength": 1},
                "name": {"type": "string", "minLength": 1},
                "facets": {"$ref": "#/$defs/facets"},
                "inputFacets": {"$ref": "#/$defs/facets"},
                "outputFacets": {"$ref": "#/$defs/facets"},
            },
        },
    },
}
"""What OpenLineage's specification (2-0-2) asks of a RunEvent, in its core. The package has classes
and no schema, and the schema itself is only in the net."""


def promoted(clone: Clone) -> int:
    return book.read(clone).state.champion("tiny")


def state_of(clone: Clone) -> State:
    return book.read(clone).state


@pytest.fixture(scope="module")
def approved(clone_with_run: Clone, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """With one champion. Copy it before changing it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        clone = Clone(Path(shutil.copytree(clone_with_run.root, tmp_path_factory.mktemp("provenance") / "clone")))
        name = next(path.stem for path in clone.runs.glob("*.json"))
        people.approve(clone, name, why="half the <calls> | fewer\n# Not a heading")
    return clone


@pytest.fixture(scope="module")
def facts(approved: Clone) -> Subject:
    return subject.gather(approved, state_of(approved), "tiny", promoted(approved))


@pytest.fixture(scope="module")
def written(approved: Clone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "tiny"
    lines: list[str] = []
    found = provenance.write(approved, state_of(approved), "tiny", promoted(approved), folder, lines.append)
    assert found == [folder / name for name in provenance.NAMES]
    assert sorted(path.name for path in folder.iterdir()) == sorted(provenance.NAMES)
    assert len(lines) == 1
    return folder


def the_bom(folder: Path) -> dict[str, Any]:
    return json.loads((folder / provenance.BOM).read_text(encoding="utf-8"))


def the_events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / provenance.LINEAGE).read_text(encoding="utf-8").splitlines()]


def machine_key(clone: Clone) -> Any:
    from securesystemslib.signer import SSlibKey

    machine = keys.machine(clone)
    pem = signing.public_pem(machine.public).decode()
    return SSlibKey(machine.fingerprint, "ecdsa", "ecdsa-sha2-nistp256", {"public": pem})


def the_statement(folder: Path, clone: Clone) -> dict[str, Any]:
    from securesystemslib.dsse import Envelope

    found = Envelope.from_dict(json.loads((folder / provenance.PROVENANCE).read_text()))
    found.verify([machine_key(clone)], 1)
    return json.loads(found.payload)


# -- the facts -------------------------------------------------------------------------------------
def test_facts_are_those_of_the_ledger_and_of_the_revision(approved: Clone, facts: Subject) -> None:
    state = state_of(approved)
    made = state.promotions[promoted(approved)]
    request = state.requests[made.request]
    assert (facts.id, facts.time, facts.run, facts.revision) == (made.id, made.time, made.run, made.revision)
    assert facts.entries == {
        "promotion": made.number,
        "request": made.request,
        "registration": request.act.registration,
    }
    assert all(state.ids[number] == found for number, found in facts.ids.items())
    assert [(approval.person, approval.entry) for approval in facts.approvals] == [("ada", made.approvals[0].number)]
    assert facts.machine == keys.machine(approved).fingerprint
    assert facts.machine_name == state.policy.machine_of(facts.machine)
    assert facts.weights is not None
    assert facts.weights.sha256 == request.act.content.weights_sha256
    assert facts.base.sha256 == request.act.content.base_sha256
    assert [stage.name for stage in facts.stages] == list(ladder_clone.STAGES)
    at = Revision(approved, made.revision)
    for file in facts.weights.files:
        content = at.read(f"{facts.weights.path}/{file.path}") or b""
        assert (file.sha256, file.size) == (hashlib.sha256(content).hexdigest(), len(content))
    assert facts.code == approved.git("rev-parse", f"{made.revision}^")


def test_the_same_version_has_the_same_bytes_in_another_clone(
    approved: Clone, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of this clone's own notes is in it: no record, no path, no wall time."""
    other = Clone(Path(shutil.copytree(approved.root, tmp_path / "elsewhere")))
    for record in other.runs.glob("*.json"):
        record.unlink()
    provenance.write(other, state_of(other), "tiny", promoted(other), tmp_path / "out", lambda _: None)
    for name in (provenance.BOM, provenance.CARD, provenance.LINEAGE):
        assert (tmp_path / "out" / name).read_bytes() == (written / name).read_bytes(), name
    assert the_statement(tmp_path / "out", other) == the_statement(written, approved)
    for name in provenance.NAMES:
        assert str(approved.root).encode() not in (written / name).read_bytes()


def test_no_text_of_a_conversation_is_in_it(approved: Clone, written: Path, facts: Subject) -> None:
    at = Revision(approved, facts.revision)
    texts = [json.loads(line) for line in (at.read(stage_files.examples_file("test")) or b"").decode().splitlines()]
    contents = [message["content"] for row in texts for message in row["messages"]]
    assert contents
    assert facts.prompt is not None
    for path in written.iterdir():
        content = path.read_text(encoding="utf-8")
        if path.name == provenance.PROVENANCE:
            content = base64.b64decode(json.loads(content)["payload"]).decode()
        assert not any(text in content for text in contents)


def test_a_version_that_is_not_there(approved: Clone, tmp_path: Path) -> None:
    state = state_of(approved)
    with pytest.raises(UserError, match=r"tiny has no champion 99\. Promotions of it in the ledger: \d+"):
        subject.gather(approved, state, "tiny", 99)
    with pytest.raises(UserError, match="other has no champion"):
        subject.gather(approved, state, "other", promoted(approved))
    with pytest.raises(UserError, match="other: no run"):
        subject.gather(approved, state, "other", 0)
    assert not (tmp_path / "out").exists()


def test_bytes_that_were_changed_are_not_exported(approved: Clone, facts: Subject, tmp_path: Path) -> None:
    here = Clone(Path(shutil.copytree(approved.root, tmp_path / "clone")))
    assert facts.weights is not None
    at = Revision(here, facts.revision)
    out = at.outs[facts.weights.path]
    [(_, md5), *_] = at.files(out.path)
    file = here.dvc_cache / "files/md5" / md5[:2] / md5[2:]
    file.chmod(0o644)
    file.write_bytes(b"other weights")
    with pytest.raises(Exception, match="was changed"):
        provenance.write(here, state_of(here), "tiny", promoted(here), tmp_path / "out", lambda _: None)
    assert not (tmp_path / "out").exists()
    assert path_of(here, out).exists()


def test_the_beginning(approved: Clone, tmp_path: Path) -> None:
    provenance.write(approved, state_of(approved), "tiny", 0, tmp_path / "zero", lambda _: None)
    card = (tmp_path / "zero" / provenance.CARD).read_text()
    assert "# tiny the beginning" in card
    assert "Nobody approved it" in card
    found = the_bom(tmp_path / "zero")
    assert found["metadata"]["component"]["version"] == "0"
    assert found["metadata"]["component"]["components"] == []
    jobs = [event["job"]["name"] for event in the_events(tmp_path / "zero")]
    assert "tiny.baseline" in jobs
    assert "tiny.train" not in jobs, "what was trained is another version"
    names = [one["name"] for one in the_statement(tmp_path / "zero", approved)["subject"]]
    assert names == ["prompt", "tiny-base"]


def test_packages_are_those_that_the_run_recorded(facts: Subject, written: Path) -> None:
    from importlib import metadata

    assert facts.packages["numpy"] == metadata.version("numpy")
    assert facts.python == platform.python_version()
    assert facts.packages_from.startswith("installed when the run started at 2")
    found = {part["purl"] for part in the_bom(written)["components"] if "purl" in part}
    assert found == {purl(name, version) for name, version in facts.packages.items()}
    assert purl("B_b.c", "1+cpu") == "pkg:pypi/b-b-c@1%2Bcpu"


def test_a_revision_with_another_record_of_its_packages_is_refused(approved: Clone, facts: Subject) -> None:
    for content in (None, b'{"starts": []}'):
        at = Revision(approved, rewritten(approved, facts.revision, content))
        with pytest.raises(UserError, match="is not the one that its run recorded"):
            subject._environment(at, subject._record(at))


def rewritten(clone: Clone, revision: str, environment: bytes | None) -> str:
    """The revision with another record of its packages, or with none."""
    index = clone.state / "rewritten.index"
    git(clone.root, "read-tree", revision, index=index)
    if environment is None:
        git(clone.root, "rm", "--cached", "--quiet", "--", subject.ENVIRONMENT, index=index)
    else:
        blob = git(clone.root, "hash-object", "-w", "--stdin", given=environment)
        git(clone.root, "update-index", "--cacheinfo", f"100644,{blob},{subject.ENVIRONMENT}", index=index)
    message = clone.git("log", "-1", "--format=%B", revision)
    tree = git(clone.root, "write-tree", index=index)
    return git(clone.root, "commit-tree", tree, "-p", f"{revision}^", given=message.encode())


# -- where it is written ---------------------------------------------------------------------------
@pytest.mark.slow
def test_only_an_export_of_ours_is_replaced(approved: Clone, written: Path, tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        provenance.write(approved, state_of(approved), "tiny", promoted(approved), folder, lambda _: None)

    ours = Path(shutil.copytree(written, tmp_path / "ours"))
    (ours / provenance.BOM).write_text("older")
    write(ours)
    assert (ours / provenance.BOM).read_bytes() == (written / provenance.BOM).read_bytes()
    empty = tmp_path / "empty"
    empty.mkdir()
    write(empty)
    assert sorted(path.name for path in empty.iterdir()) == sorted(provenance.NAMES)
    for name in ("README.md", "thesis.tex"):
        foreign = tmp_path / name.lower()
        foreign.mkdir()
        (foreign / name).write_text("mine")
        with pytest.raises(UserError, match=f"holds other files .{name}"):
            write(foreign)
        assert (foreign / name).read_text() == "mine"
    beside = Path(shutil.copytree(written, tmp_path / "beside"))
    (beside / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds other files \(notes\.txt\)"):
        write(beside)
    (tmp_path / "link").symlink_to(ours)
    with pytest.raises(UserError, match="is a link"):
        write(tmp_path / "link")
    with pytest.raises(UserError, match="lies in data/"):
        write(approved.root / "data/inbox/x")
    with pytest.raises(UserError, match="Git does not ignore it"):
        write(approved.root / "published")
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".part"]


# -- CycloneDX -------------------------------------------------------------------------------------
def test_the_bom_is_valid_and_another_library_reads_it(approved: Clone, written: Path, facts: Subject) -> None:
    from cyclonedx.model.bom import Bom
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = (written / provenance.BOM).read_text(encoding="utf-8")
    strict = JsonStrictValidator(SchemaVersion.V1_6)
    assert strict.validate_str(text) is None
    assert strict.validate_str(text.replace('"lowerBound"', '"lower"')) is not None, "it looks into the model card"
    found = json.loads(text)
    assert found["serialNumber"] == f"urn:uuid:{facts.uuid}"
    assert found["metadata"]["timestamp"] == facts.time
    read = Bom.from_json(found)  # type: ignore[attr-defined]
    assert read.metadata.component is not None
    assert (read.metadata.component.name, read.metadata.component.version) == ("tiny", str(facts.number))
    assert {part.purl.name for part in read.components if part.purl} >= {"dvc", "numpy"}
    refs = [part["bom-ref"] for part in found["components"]]
    assert len({*refs}) == len(refs)
    assert found["dependencies"][0]["dependsOn"] == refs

    card = found["metadata"]["component"]["modelCard"]
    [reward] = [one for one in card["quantitativeAnalysis"]["performanceMetrics"] if one["type"] == "reward/mean"]
    assert facts.measured is not None
    metric = facts.measured.metrics["reward/mean"]
    assert float(reward["value"]) == pytest.approx(metric.value, abs=1e-5)
    assert float(reward["confidenceInterval"]["lowerBound"]) == pytest.approx(metric.low, abs=1e-5)
    data = {part["bom-ref"]: part for part in found["components"] if part["bom-ref"].startswith("data:")}
    assert {each["ref"] for each in card["modelParameters"]["datasets"]} == {*data}
    test = Revision(approved, facts.revision).read(stage_files.examples_file("test")) or b""
    md5 = hashlib.md5(test, usedforsecurity=False).hexdigest()
    assert {"alg": "MD5", "content": md5} in data["data:test"]["hashes"]
    weights = found["metadata"]["component"]["components"]
    assert facts.weights is not None
    assert [one["hashes"][0]["content"] for one in weights] == [file.sha256 for file in facts.weights.files]


# -- the model card --------------------------------------------------------------------------------
def test_the_card_is_read_back(written: Path, facts: Subject) -> None:
    from huggingface_hub import ModelCard

    card = ModelCard.load(written / provenance.CARD)
    data = card.data
    assert data.model_name == facts.name
    assert data.base_model == "tiny-base"
    assert data.library_name == "peft"
    assert {"agent-rft", "lora", "reinforcement-fine-tuning"} <= {*data.tags}
    assert data.datasets == ["tiny-train", "tiny-validation", "tiny-test"]
    assert facts.measured is not None
    results = {one.metric_type: one for one in data.eval_results or []}
    assert [*results] == data.metrics
    reward = facts.measured.metrics["reward/mean"]
    assert results["reward/mean"].metric_value == round(reward.value, 6)
    assert results["reward/mean"].metric_name == f"reward/mean [{reward.low:.3f}, {reward.high:.3f}]"
    assert results["reward/mean"].dataset_revision == facts.measured.examples_sha256
    headings = [line for line in card.text.splitlines() if line.startswith("#")]
    assert headings == [
        f"# tiny champion {facts.number}",
        "## How it was trained",
        "## How it was judged",
        "## Who approved it",
        "## Limits",
        "## Lineage",
        "## How to verify it",
    ], "a reason makes no heading"
    assert "half the &lt;calls> \\| fewer # Not a heading" in card.text
    assert facts.decision is not None
    assert facts.decision.reason in card.text
    assert f"registered in entry {facts.entries['registration']}" in card.text
    assert f"rft audit {facts.number}" in card.text
    assert facts.weights is not None
    for sha256 in (facts.id, facts.weights.sha256, facts.revision, facts.base.sha256):
        assert f"`{sha256}`" in card.text


@pytest.mark.slow
def test_a_version_that_was_rolled_back_says_so(approved: Clone, tmp_path: Path, monkeypatch: Any) -> None:
    from tasks.promotion import acts

    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    here = Clone(Path(shutil.copytree(approved.root, tmp_path / "clone")))
    number = promoted(here)
    acts.rollback(here, "tiny", people.signer("Ada"), "complaints", lambda _: None)
    provenance.write(here, state_of(here), "tiny", number, tmp_path / "out", lambda _: None)
    assert "It was rolled back by ada on" in (tmp_path / "out" / provenance.CARD).read_text()


@pytest.mark.slow
def test_a_new_prompt_alone(clone_with_run: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run trained weights that lost: they are not what is served."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = ladder_clone.make(tmp_path / "p", "prompt_only")
    record: RunRecord = ladder_clone.run_ladder(scripted)
    made = people.approve(scripted.clone, record.name).promoted
    assert made is not None
    found = subject.gather(scripted.clone, state_of(scripted.clone), "tiny", made.number)
    assert found.weights is None
    assert found.train is None
    provenance.write(scripted.clone, state_of(scripted.clone), "tiny", made.number, tmp_path / "o", lambda _: None)
    assert "its weights are the base model's" in (tmp_path / "o" / provenance.CARD).read_text()
    names = [one["name"] for one in the_statement(tmp_path / "o", scripted.clone)["subject"]]
    assert names == ["prompt", f"tiny champion {made.number}"]


# -- OpenLineage -----------------------------------------------------------------------------------
def test_events_have_the_form_that_openlineage_asks_for(written: Path) -> None:
    found = the_events(written)
    for event in found:
        jsonschema.validate(event, EVENT, format_checker=jsonschema.FormatChecker())
    broken = json.loads(json.dumps(found[0]))
    del broken["run"]["runId"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, EVENT)


def test_events_tell_the_run_stage_by_stage(approved: Clone, written: Path, facts: Subject) -> None:
    found = the_events(written)
    whole, *stages, last = found
    assert (whole["eventType"], last["eventType"]) == ("START", "COMPLETE")
    assert whole["run"]["runId"] == last["run"]["runId"]
    names = [event["job"]["name"] for event in stages]
    assert names == [f"tiny.{stage}" for stage in ladder_clone.STAGES for _ in "12"]
    assert [event["eventType"] for event in stages] == ["START", "COMPLETE"] * len(ladder_clone.STAGES)
    assert {event["run"]["facets"]["parent"]["run"]["runId"] for event in stages} == {whole["run"]["runId"]}
    times = [datetime.fromisoformat(event["eventTime"]) for event in found]
    assert times == sorted(times)
    assert len({event["run"]["runId"] for event in found}) == len(ladder_clone.STAGES) + 1

    lock = yaml.safe_load(Revision(approved, facts.revision).file("dvc.lock") or b"")
    [train] = [event for event in stages if event["job"]["name"] == "tiny.train" and event["eventType"] == "COMPLETE"]
    outs = {f"tiny/{out['path']}": out["md5"] for out in lock["stages"]["train"]["outs"]}
    assert {one["name"]: one["facets"]["version"]["datasetVersion"] for one in train["outputs"]} == outs
    read = {(one["namespace"], one["name"]): one["facets"]["version"]["datasetVersion"] for one in train["inputs"]}
    assert read["git", "tiny/code"] == facts.code
    deps = {dep["path"] for dep in lock["stages"]["train"]["deps"]}
    assert {name for space, name in read if space == "dvc"} == {
        f"tiny/{path}" for path in deps if not path.startswith("rft/")
    }


def _without_links(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_links(each) for key, each in value.items() if not key.startswith("_")}
    return [_without_links(each) for each in value] if isinstance(value, list) else value


def test_the_event_on_the_page_is_the_one_that_is_made() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/exports.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- event -->\n```json\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    report = Out("data/challenger/report.json", "7b1ac28ee8718e588d235c49c7cdb623", 159629, None)
    decision = Out("data/gate/decision.json", "427db77e63b2d91f9546cb88ac623f5a", 6141, None)
    done = subject.Stage("gate", "exec python -m rft gate", (report,), (decision,), {}, "ran", 2.5)
    job = openlineage.Job("icd10", "20261122-2339-6c03", "gate")
    code = "8f9bfce576d6ed856d4ebd727734b74324d91bd1"
    made = openlineage.event("COMPLETE", job, "2026-11-22T23:52:09.200Z", "0.1.0", code, done)
    assert _without_links(made) == json.loads(shown[1])


def test_the_way_to_verify_it_on_the_page_works(approved: Clone, written: Path, tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/exports.md").read_text(encoding="utf-8")
    shown = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    shutil.copy(written / provenance.PROVENANCE, tmp_path)
    (tmp_path / "machine.pub").write_text(keys.machine(approved).public + "\n")
    script = [sys.executable, "-c", shown[1] + "print(statement['predicateType'])"]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "https://slsa.dev/provenance/v1\n", done.stderr
    keys._make_machine(tmp_path / "machine")
    assert "VerificationError" in subprocess.run(script, cwd=tmp_path, capture_output=True, text=True).stderr


def test_no_secret_is_in_an_event() -> None:
    secrets.add("TOOL_KEY", "canary-value")
    job = openlineage.Job("m", "r", "train")
    made = openlineage.event("FAIL", job, "2026-03-01T00:00:00Z", "1", failure="it said canary-value")
    assert "canary" not in json.dumps(made)
    assert "[secret TOOL_KEY]" in json.dumps(made)


# -- SLSA ------------------------------------------------------------------------------------------
def test_others_verify_the_envelope(approved: Clone, written: Path, facts: Subject) -> None:
    from google.protobuf import json_format
    from in_toto_attestation.v1.statement import Statement
    from in_toto_attestation.v1.statement_pb2 import Statement as Message
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import VerificationError

    machine, key = keys.machine(approved), machine_key(approved)
    raw = json.loads((written / provenance.PROVENANCE).read_text())
    envelope = Envelope.from_dict(json.loads(json.dumps(raw)))
    assert [*envelope.verify([key], 1)] == [machine.fingerprint]
    assert envelope.payload_type == "application/vnd.in-toto+json"
    other = base64.b64encode(envelope.payload.replace(b"tiny", b"huge")).decode()
    for changed in ({"payload": other}, {"payloadType": "application/json"}):
        with pytest.raises(VerificationError):
            Envelope.from_dict(json.loads(json.dumps(raw)) | changed).verify([key], 1)

    found = json.loads(envelope.payload)
    Statement.copy_from_pb(json_format.ParseDict(found, Message())).validate()
    assert found["predicateType"] == "https://slsa.dev/provenance/v1"
    assert files.canonical(found) == envelope.payload
    build, run = found["predicate"]["buildDefinition"], found["predicate"]["runDetails"]
    assert facts.weights is not None
    assert [one["digest"]["sha256"] for one in found["subject"]] == [
        *(file.sha256 for file in facts.weights.files),
        subject.prompt_sha256(facts.prompt) if facts.prompt else "",
        facts.id,
    ]
    assert build["externalParameters"]["settings"] == facts.params
    used = {one.get("name", one.get("uri")): one.get("digest") for one in build["resolvedDependencies"]}
    assert used["code"] == {"gitCommit": facts.code}
    assert used["base model tiny-base"] == {"sha256": facts.base.sha256}
    assert run["metadata"]["invocationId"] == facts.run
    assert machine.fingerprint.replace("+", "%2B").replace("/", "%2F") in run["builder"]["id"]
