"""SLSA provenance (v1) of a version, in an in-toto statement (v1), in a signed DSSE envelope.

The statement's subjects are what is served: each file of the weights, the prompt, and the agent.
The agent is the promotion's entry in the ledger, because that entry binds prompt and weights. The
predicate describes the build that made them: the code commit, the settings, the data and models
that were used, each by its digest, and the times.

The exporting clone signs with its machine key (ECDSA P-256), which an owner enrolled in the ledger.
It has recomputed the hashes, so it vouches for them. `builder.id` names the machine that asked for
the version, according to the ledger; it may be another one. The signature covers the bytes of
DSSE's PAE, so other tools can verify it, such as securesystemslib in the tests.

    {"payloadType": "application/vnd.in-toto+json", "payload": BASE64,
     "signatures": [{"keyid": "SHA256:...", "sig": BASE64 of DER}]}

ECDSA draws a random number for each signature. So two exports of a version have equal payloads, but
the files differ.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rft import files, secrets
from tasks.ledger.facts import BEGINNING
from tasks.ledger.keys import Key
from tasks.promotion import signing
from tasks.provenance.bom import purl
from tasks.provenance.subject import Subject, prompt_sha256

PAYLOAD = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD = "urn:agent-rft:ladder:1"
"""The build type. It says what externalParameters mean: `settings` is the run's params.yaml."""
Described = dict[str, Any]


def statement(subject: Subject) -> dict[str, Any]:
    return secrets.redact_json(
        {
            "_type": STATEMENT,
            "subject": list(_subjects(subject)),
            "predicateType": PREDICATE,
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD,
                    "externalParameters": {"model": subject.model, "settings": subject.params},
                    "internalParameters": {"stages": [stage.name for stage in subject.stages]},
                    "resolvedDependencies": list(_dependencies(subject)),
                },
                "runDetails": {
                    "builder": {"id": builder(subject), "version": {"agent-rft": subject.tool or "unknown"}},
                    "metadata": {
                        "invocationId": subject.run,
                        **({"startedOn": subject.started} if subject.started else {}),
                        **({"finishedOn": subject.ended} if subject.ended else {}),
                    },
                    "byproducts": list(_byproducts(subject)),
                },
            },
        }
    )


def builder(subject: Subject) -> str:
    """Name the machine by the fingerprint of its key, and by the name under which it is
    enrolled."""
    if not subject.machine:
        return "urn:agent-rft:machine:unknown"
    name = f"?name={quote(subject.machine_name, safe='')}" if subject.machine_name else ""
    return f"urn:agent-rft:machine:{quote(subject.machine, safe=':')}{name}"


def envelope(subject: Subject, key: Key) -> str:
    """Sign the statement. Returns one line of JSON. Raises UserError for a key that cannot sign
    it."""
    payload = files.canonical(statement(subject))
    signed = {"keyid": key.fingerprint, "sig": _encoded(sign(pae(PAYLOAD, payload), key.file))}
    return json.dumps({"payloadType": PAYLOAD, "payload": _encoded(payload), "signatures": [signed]}) + "\n"


def pae(kind: str, payload: bytes) -> bytes:
    """Return the bytes that are signed: DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(payload), payload)


def sign(data: bytes, private_key: Path) -> bytes:
    """Sign with ECDSA over SHA-256. Returns the signature in DER."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = serialization.load_pem_private_key(signing.private_pem(private_key), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


# -- what it says ----------------------------------------------------------------------------------
def _subjects(subject: Subject) -> Iterator[Described]:
    for file in subject.weights.files if subject.weights else ():
        yield {"name": f"weights/{file.path}", "digest": {"sha256": file.sha256}}
    if subject.prompt is not None:
        about = "its JSON in the form of RFC 8785"
        yield {"name": "prompt", "digest": {"sha256": prompt_sha256(subject.prompt)}, "annotations": {"of": about}}
    if subject.number != BEGINNING:
        about = f"entry {subject.number} of the ledger, by which prompt and weights are served"
        yield {"name": subject.name, "digest": {"sha256": subject.id}, "annotations": {"of": about}}
    else:
        yield {"name": subject.base_name, "digest": {"sha256": subject.base.sha256}}


def _dependencies(subject: Subject) -> Iterator[Described]:
    yield {"name": "code", "digest": {"gitCommit": subject.code}}
    if subject.edits_sha256 is not None:
        yield {"name": "uncommitted edits", "digest": {"sha256": subject.edits_sha256}}
    if subject.grader_sha256 is not None:
        about = "rft.files.tree_sha256 of the folder"
        digest = {"sha256": subject.grader_sha256}
        yield {"name": f"recipe {subject.recipe}", "digest": digest, "annotations": {"of": about}}
    if (window := subject.traffic) is not None:
        yield {"name": "window of traffic", "digest": {"sha256": window.sha256}}
    for split, sha256 in (subject.examples.sha256 if subject.examples else {}).items():
        yield {"name": f"{split} examples", "digest": {"sha256": sha256}}
    about = {"kind": subject.base.kind, "of": "the folder"}
    yield {"name": f"base model {subject.base_name}", "digest": {"sha256": subject.base.sha256}, "annotations": about}
    if subject.before_weights is not None:
        digest = {"sha256": subject.before_weights}
        yield {"name": f"weights of champion {subject.before}", "digest": digest, "annotations": {"of": "the folder"}}
    for name, version in subject.packages.items():
        yield {"uri": purl(name, version)}


def _byproducts(subject: Subject) -> Iterator[Described]:
    yield {"name": "revision", "digest": {"gitCommit": subject.revision}}
    if subject.lock_sha256 is not None:
        yield {"name": "dvc.lock", "digest": {"sha256": subject.lock_sha256}}
    if subject.decision is not None:
        yield {"name": "decision of the gate", "digest": {"sha256": subject.decision.digest()}}
    for name, number in subject.entries.items():
        if name != "promotion" and number in subject.ids:
            yield {"name": f"{name}, entry {number} of the ledger", "digest": {"sha256": subject.ids[number]}}
    for voiced in (*subject.approvals, *subject.overrides):
        about = {"by": voiced.person, "on": voiced.time, "reason": voiced.reason}
        yield {
            "name": f"approval, entry {voiced.entry} of the ledger",
            "digest": {"sha256": subject.ids[voiced.entry]},
            "annotations": about,
        }
