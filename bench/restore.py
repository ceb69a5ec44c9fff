"""The figure of back-ups: what is known about every run and version, before and after a restore.

A clone with a history (runs that were promoted, rejected, rolled back, and one that waits) is
backed up, goes on, and is backed up again into the same folder. Then it is moved away, so that no
address can lead back to it, and the back-up is restored elsewhere. Both clones answer the same
questions, and the answers are compared line by line. These are the audits of all runs and versions,
the ledger, MLflow with the bytes of its artifacts, and every output of every revision, hashed
again.

In the end one byte of the restored cache is changed, and the comparison must notice it.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

from bench import promoting
from bench.measure import Figure, Part
from bench.promoting import MODEL, ROOT, WHY
from tasks.runs.clone import Clone

RUNS, SMALL = 12, 4


def restore(args: list[str]) -> Figure:
    """Back-up, restore elsewhere, audit: lines that differ over every run and version (0)."""
    with tempfile.TemporaryDirectory(prefix="rft-restore-") as place, redirect_stdout(sys.stderr):
        return _measure(Path(place), SMALL if "--small" in args else RUNS)


def _measure(place: Path, num_runs: int) -> Figure:
    from tasks import backup
    from tasks.promotion import acts
    from tests import people

    promoting.enter(place)
    clone = promoting.make(place / "ours", shared=False)
    for number in range(1, num_runs):
        _grow(clone, place / "ours" / "script", number)
        if number == num_runs // 2:
            backup.save(clone, place / "saved", _quiet)
    acts.rollback(clone, MODEL, people.signer("ada"), WHY)
    before = [*_seen(clone)]
    began = time.monotonic()
    saved = backup.save(clone, place / "saved", _quiet)
    backup_s = time.monotonic() - began
    clone.root.rename(place / "away")
    began = time.monotonic()
    backup.restore(place / "saved", place / "elsewhere" / "clone", _quiet)
    restore_s = time.monotonic() - began
    there = Clone((place / "elsewhere" / "clone").resolve())
    after = [*_seen(there)]
    differing = [*_differing(before, after)]
    _flip(there)
    noticed = [*_differing(after, [*_seen(there)])]
    print("\n".join(differing), file=sys.stderr)
    return Figure(
        (
            Part("lines that differ after a restore", len(differing), "lines", at_most=0, n=len(before)),
            Part("lines that differ after one byte was changed", len(noticed), "lines", at_least=1),
            Part("audits that find a broken link", sum(": BROKEN" in line for line in before), "audits", at_most=0),
            Part("runs", len(saved.made.runs), "runs", at_least=num_runs),
            Part("entries of the ledger", saved.made.num_entries, "entries"),
            Part("files in the back-up", len(saved.made.files), "files"),
            Part("copied by the second back-up", saved.num_copied, "files"),
            Part("back up", backup_s, "s"),
            Part("verify and restore", restore_s, "s"),
        ),
    )


def _grow(clone: Clone, script: Path, number: int) -> None:
    """Add one more run with its own bytes, shown in MLflow and with a page. The last one waits."""
    from rft import config
    from tasks.display import tracking
    from tasks.promotion import acts
    from tasks.runs import records
    from tests import ladder_clone, people

    waiting = [record for record in records.load_all(clone) if record.revision]
    newest = max(waiting, key=lambda record: (record.started, record.name))
    ada = people.signer("ada")
    if number % 4 == 0:
        acts.reject(clone, newest.name, ada, "not this one")
    else:
        people.approve(clone, newest.name, "ada", WHY)
    rows = (ladder_clone.small(number * ladder_clone.WINDOW + n) for n in range(ladder_clone.WINDOW))
    ladder_clone.write_window(clone.root, rows)
    (script / "data/policy/model.bin").write_text(f"policy {number}")
    (script / "data/train/weights/model.bin").write_text(f"weights {number}")
    params = config.load(clone.root / "params.yaml")
    ladder_clone.rehash(script / "data", params.gate)
    train = params.train.model_copy(update={"steps": 1 + number})
    record = ladder_clone.run_ladder(ladder_clone.Scripted(clone, script), train=train)
    page = clone.page(record.name)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f"<p>run {number}</p>")
    client = tracking.client(clone)
    made = client.create_run(tracking.experiment(client, clone, MODEL), run_name=record.name)
    client.log_metric(made.info.run_id, "reward", number / RUNS)
    client.log_artifact(made.info.run_id, str(page))
    records.save(clone, record.model_copy(update={"mlflow_run_id": made.info.run_id}))


# -- what a clone says -----------------------------------------------------------------------------
def _seen(clone: Clone) -> Iterator[str]:
    """Yield all that a clone can answer, as lines without its path."""
    os.environ.pop("MLFLOW_TRACKING_URI", None)  # MLflow sets it to the store that it opened last
    questions = (
        ["ledger", "--json"],
        ["ledger", "verify"],
        ["runs", "--all"],
        ["champion"],
        ["ledger", "people", "list"],
    )
    answers = [*(_rft(clone, *asked) for asked in questions), *_audits(clone), *_bytes(clone), *_mlflow(clone)]
    for answer in answers:
        yield from answer.replace(str(clone.root), "CLONE").split("\n")


def _audits(clone: Clone) -> Iterator[str]:
    """Yield the full audits of everything, of each version, and of each run."""
    from flows import audit as audit_text
    from tasks import audit
    from tasks.ledger import book
    from tasks.runs import records

    names = sorted(record.name for record in records.load_all(clone))
    versions = [f"{MODEL}@{number}" for number in book.read(clone).state.promotions]
    for question in (audit.Question(every=True), *map(audit.Question, [*versions, *names])):
        found = audit.ask(clone, question, report_line=_quiet)
        yield "\n".join(f"{found.question}: {line}" for line in audit_text.lines(found, full=True))


def _rft(clone: Clone, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "flows.cli", *arguments],
        cwd=clone.root,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200", "RFT_PROGRAM": "rft"},
        capture_output=True,
        text=True,
        check=False,
    )
    return f"{done.stdout}{done.stderr}exit code {done.returncode}"


def _bytes(clone: Clone) -> Iterator[str]:
    """Yield every output of every revision, hashed again."""
    from rft.errors import RftError
    from tasks.runs.artifacts import Revision

    for line in clone.git("for-each-ref", "--format=%(objectname) %(refname)", "refs/exps").splitlines():
        commit, _, name = line.partition(" ")
        at = Revision(clone, commit)
        for out in at.outs.values():
            try:
                found = (
                    at.tree_sha256(out.path) if out.is_folder else hashlib.sha256(at.read(out.path) or b"").hexdigest()
                )
            except RftError as error:
                found = str(error)
            yield f"{name}: {out.path}: {found}"


def _mlflow(clone: Clone) -> Iterator[str]:
    from mlflow.artifacts import download_artifacts

    from tasks.display import tracking

    client = tracking.client(clone)
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id]):
            told = f"MLflow: {experiment.name}: {run.info.run_name}"
            yield f"{told}: {sorted(run.data.metrics.items())} {sorted(run.data.params.items())}"
            # by address: the client remembers where it found a run's artifacts
            with tempfile.TemporaryDirectory() as place:
                folder = Path(download_artifacts(run.info.artifact_uri, dst_path=place))
                for file in sorted(path for path in folder.rglob("*") if path.is_file()):
                    yield f"{told}: {file.name}: {hashlib.sha256(file.read_bytes()).hexdigest()}"
    for model in client.search_registered_models():
        yield f"MLflow: {model.name}: {sorted(model.aliases.items())}"
        for version in client.search_model_versions(f"name = '{model.name}'"):
            yield f"MLflow: {model.name} {version.version}: {sorted(version.tags.items())}"


def _differing(a: list[str], b: list[str]) -> Iterator[str]:
    return (line for line in difflib.unified_diff(a, b, lineterm="", n=0) if line[:3] not in ("---", "+++", "@@ "))


def _flip(clone: Clone) -> None:
    """Change one byte of one output of one revision."""
    from tasks.runs.artifacts import Revision, path_of

    commit = clone.git("for-each-ref", "--format=%(objectname)", "refs/exps").split()[0]
    path = path_of(clone, Revision(clone, commit).outs["data/gate/decision.json"])
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


def _quiet(*_: object) -> None:
    """Drop the progress of a back-up."""


FIGURES = {"restore": restore}
