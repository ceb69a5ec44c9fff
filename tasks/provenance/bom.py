"""A CycloneDX ML-BOM (1.6, JSON): the model with its model card, and each part that it was made of.

cyclonedx-python-lib has components but no class for a model card. So the JSON is written here, and
the tests validate it against the schemas that come with that library.

CycloneDX's `hashes` are those of a file's bytes, so only files have them: each file of the weights,
the window, each split. The hash of a folder or of a prompt is a property whose name begins with
`agent-rft:`, and so are the links to the ledger. The serial number is computed from the promotion's
entry, and the time is that of the promotion, so the same version gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from rft.formatting import counted
from rft.reports import wording
from tasks.provenance.limits import limits
from tasks.provenance.subject import Subject, prompt_sha256

SCHEMA = "http://cyclonedx.org/schema/bom-1.6.schema.json"
_OURS = "agent-rft:"
Component = dict[str, Any]


def bom(subject: Subject) -> dict[str, Any]:
    """Make the document, as JSON values."""
    model, parts = _model(subject), [*_data(subject), _base(subject), *_software(subject)]
    refs = [part["bom-ref"] for part in parts]
    return {
        "$schema": SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{subject.uuid}",
        "version": 1,
        "metadata": {
            **({"timestamp": subject.time} if subject.time else {}),
            "tools": {"components": [{"type": "application", "name": "agent-rft", "version": subject.tool}]},
            "component": model,
            "properties": _properties(_lineage(subject)),
        },
        "components": parts,
        "dependencies": [
            {"ref": model["bom-ref"], "dependsOn": refs},
            *({"ref": ref, "dependsOn": []} for ref in refs),
        ],
    }


def purl(name: str, version: str) -> str:
    """Return the package URL of a package of PyPI."""
    return f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{quote(version, safe='')}"


def _lineage(subject: Subject) -> Iterator[tuple[str, str | None]]:
    yield "ledger", subject.ledger
    for name, number in subject.entries.items():
        yield f"entry-{name}", f"{number} {subject.ids.get(number, '')}".strip()
    yield "run", subject.run
    yield "revision", subject.revision
    yield "dvc-lock-sha256", subject.lock_sha256
    yield "packages", subject.packages_from


def _properties(pairs: Iterator[tuple[str, str | None]]) -> list[dict[str, str]]:
    return [{"name": f"{_OURS}{name}", "value": value} for name, value in pairs if value]


# -- the model -------------------------------------------------------------------------------------
def _model(subject: Subject) -> Component:
    files = subject.weights.files if subject.weights else ()
    return {
        "type": "machine-learning-model",
        "bom-ref": f"model:{subject.model}@{subject.number}",
        "name": subject.model,
        "version": str(subject.number),
        "description": _described(subject),
        "modelCard": _card(subject),
        "properties": _properties(_identity(subject)),
        "components": [
            {
                "type": "file",
                "bom-ref": f"weights:{file.path}",
                "name": file.path,
                "hashes": [{"alg": "SHA-256", "content": file.sha256}],
                "properties": [{"name": f"{_OURS}bytes", "value": str(file.size)}],
            }
            for file in files
        ],
    }


def _described(subject: Subject) -> str:
    if subject.weights is None:
        return f"A prompt for {subject.base_name}, which is served without weights of its own."
    kind = "a LoRA adapter on" if subject.weights.kind == "lora" else "all weights, trained from"
    return f"A tool-using agent: {kind} {subject.base_name}, with its prompt."


def _identity(subject: Subject) -> Iterator[tuple[str, str | None]]:
    yield "weights-sha256", subject.weights.sha256 if subject.weights else None
    yield "prompt-sha256", prompt_sha256(subject.prompt) if subject.prompt else None
    yield "prompt", subject.prompt.name if subject.prompt else None
    for signed in subject.approvals:
        yield "approved", f"{signed.person} on {signed.time} (entry {signed.entry}): {signed.reason}"


def _card(subject: Subject) -> dict[str, Any]:
    trained = subject.train is not None and subject.train.trained
    parameters: dict[str, Any] = {
        "task": "text-generation",
        "architectureFamily": "transformer",
        "datasets": [{"ref": part["bom-ref"]} for part in _data(subject) if part["bom-ref"].startswith("data:")],
        "inputs": [{"format": "chat messages"}],
        "outputs": [{"format": "chat message, or tool calls"}],
    }
    if trained:
        parameters = {"approach": {"type": "reinforcement-learning"}} | parameters
    return {
        "modelParameters": parameters,
        "quantitativeAnalysis": {"performanceMetrics": list(_metrics(subject))},
        "considerations": {
            "useCases": [f"The task that recipe {subject.recipe} states, with the tools that it declares."],
            "technicalLimitations": limits(subject),
            "performanceTradeoffs": [
                wording.describe(check) for check in (subject.decision.checks if subject.decision else [])
            ],
        },
        "properties": _properties(_training(subject)),
    }


def _metrics(subject: Subject) -> Iterator[dict[str, Any]]:
    for name, metric in (subject.measured.metrics if subject.measured else {}).items():
        found: dict[str, Any] = {"type": name, "value": f"{metric.value:.6g}", "slice": subject.measured_on}
        if metric.low is not None and metric.high is not None:
            found["confidenceInterval"] = {"lowerBound": f"{metric.low:.6g}", "upperBound": f"{metric.high:.6g}"}
        yield found


def _training(subject: Subject) -> Iterator[tuple[str, str | None]]:
    if subject.train is not None:
        yield "training", subject.train.reason
        yield "algorithm", subject.train.algorithm
        yield "steps", str(subject.train.steps) if subject.train.trained else None
        yield "rollouts", str(subject.train.rollouts) if subject.train.trained else None
    if subject.decision is not None:
        yield "decision", f"{subject.decision.decision}: {subject.decision.reason}"


# -- its parts -------------------------------------------------------------------------------------
def _data(subject: Subject) -> Iterator[Component]:
    if (window := subject.traffic) is not None:
        about = f"{counted(window.num_conversations, 'logged conversation')} from {window.first} to {window.last}"
        yield _dataset("window", f"Traffic: {about}.", [{"alg": "SHA-256", "content": window.sha256}])
    outs = {out.path: out for stage in subject.stages for out in stage.outs}
    for split, count in (subject.examples.counts if subject.examples else {}).items():
        out = outs.get(f"data/examples/{split}.jsonl")
        sha256 = subject.examples.sha256.get(split) if subject.examples else None
        found = {"SHA-256": sha256, "MD5": out.md5 if out is not None else None}
        hashes = [{"alg": alg, "content": content} for alg, content in found.items() if content]
        yield _dataset(split, f"{counted(count, 'example')} of split {split}.", hashes)
    if subject.prompt is not None:
        yield _configuration("prompt", subject.prompt.name, prompt_sha256(subject.prompt))
    if subject.recipe:
        recipe = _configuration("recipe", subject.recipe, subject.grader_sha256)
        recipe["properties"] += _properties(iter([("dvc-md5", subject.recipe_md5)]))
        yield recipe


def _dataset(name: str, description: str, hashes: list[dict[str, str]]) -> Component:
    return {
        "type": "data",
        "bom-ref": f"data:{name}",
        "name": name,
        "description": description,
        "hashes": hashes,
        "data": [{"type": "dataset", "name": name, "description": description}],
    }


def _configuration(kind: str, name: str, sha256: str | None) -> Component:
    return {
        "type": "data",
        "bom-ref": f"{kind}:{name}",
        "name": name,
        "description": f"The {kind}.",
        "data": [{"type": "configuration", "name": name}],
        "properties": _properties(iter([("sha256", sha256)])),
    }


def _base(subject: Subject) -> Component:
    base = subject.base
    facts: Iterator[tuple[str, str | None]] = iter(
        [
            ("kind", base.kind),
            ("sha256", base.sha256),
            ("parameters", str(base.num_parameters)),
            *([("made-of", base.base), ("made-of-sha256", base.base_sha256)] if base.base else []),
        ]
    )
    return {
        "type": "machine-learning-model",
        "bom-ref": f"base:{subject.base_name}",
        "name": subject.base_name,
        "description": {
            "embedded": "The base model, built and warm-started by the run itself.",
            "warm_started": f"The base model, warm-started by the run itself from {base.base}.",
            "given": "The base model, as it was given.",
            "served": "The base model, served elsewhere: nobody can verify its bytes.",
        }[base.kind],
        "properties": _properties(facts),
    }


def _software(subject: Subject) -> Iterator[Component]:
    edits: Iterator[tuple[str, str | None]] = iter([("edits-sha256", subject.edits_sha256)])
    yield {
        "type": "application",
        "bom-ref": f"code:{subject.code}",
        "name": "the code and recipe of the run",
        "version": subject.code,
        "pedigree": {"commits": [{"uid": subject.code}]},
        "properties": _properties(edits),
    }
    if subject.python:
        yield {"type": "platform", "bom-ref": "python", "name": "Python", "version": subject.python}
    libraries = {purl(name, version): (name, version) for name, version in subject.packages.items()}
    for ref, (name, version) in sorted(libraries.items()):
        yield {"type": "library", "bom-ref": ref, "name": name, "version": version, "purl": ref}
