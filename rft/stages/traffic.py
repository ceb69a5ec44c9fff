"""Stage `traffic`: keeps and profiles a window of production conversations.

It also profiles what the window is compared with (rft/drift/references.py).

The flow has ingested the log (rft/traffic/). This stage reads only the snapshot, verifies its
hashes, and keeps it.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping

from rft import files, progress, recipe, reports, stage_files
from rft.config import Params
from rft.drift import profile, references
from rft.drift.engines import Engine
from rft.drift.features import plan_of
from rft.errors import UserError
from rft.recipe import Recipe
from rft.reports import Against, Manifest, Profile, TrafficReport
from rft.tools import signatures
from rft.traffic import feedback, reading
from rft.traffic.schema import MANIFEST


def run(params: Params) -> None:
    manifest = pinned(params)
    progress.print_line("traffic", f"{manifest.num_conversations} conversations; profiling them and the references")
    loaded = recipe.load(params.recipe, params.examples.keys)
    plan = plan_of(params, loaded, signatures.schemas(loaded))
    source = params.traffic.file
    current = profile.of_parts(reading.parts(stage_files.SNAPSHOT), plan, source, Engine.from_params(params))
    compared = references.from_params(params, loaded, plan)
    _tell_refused(loaded, params)
    report = TrafficReport(
        source=source,
        sha256=manifest.sha256,
        first=manifest.first,
        last=manifest.last,
        num_rows=manifest.num_rows,
        num_conversations=manifest.num_conversations,
        num_with_feedback=manifest.num_with_feedback,
        rejected=manifest.rejected,
        unread=manifest.unread,
        ignored_keys=manifest.ignored_keys,
        redacted=manifest.redacted,
        sources=manifest.sources,
        snapshot_sha256=files.sha256(stage_files.SNAPSHOT / MANIFEST),
        reference=compared["train"].source,
    )
    files.delete(stage_files.CONVERSATIONS)
    shutil.copytree(stage_files.SNAPSHOT, stage_files.CONVERSATIONS, copy_function=shutil.copyfile)
    write_references(compared)
    reports.write(current, stage_files.CURRENT_PROFILE)
    stage_files.write(report)
    found = f"{report.num_conversations} conversations from {report.first} to {report.last}"
    progress.print_line("traffic", f"{found}, {report.num_with_feedback} graded")


def pinned(params: Params) -> Manifest:
    """Read the manifest of the snapshot, and verify every part. Raises UserError."""
    manifest = reading.manifest(stage_files.SNAPSHOT, verify=True)
    wanted = params.traffic.sha256
    if wanted not in (None, manifest.sha256):
        what = f"{stage_files.SNAPSHOT} is of a log with sha256 {manifest.sha256}, but traffic.sha256 says {wanted}"
        raise UserError(f"{what}. Ingest the right log, or record the new hash if the change is meant.")
    if manifest.num_conversations < params.traffic.min_conversations:
        what = f"{stage_files.SNAPSHOT}: {manifest.num_conversations} conversations"
        asked = f"traffic.min_conversations asks for {params.traffic.min_conversations}"
        raise UserError(f"{what}, {asked}. Take a longer window.")
    return manifest


# -- the stage's files -----------------------------------------------------------------------------
def write_references(compared: Mapping[Against, Profile]) -> None:
    """Write the profiles of the references among the stage's files. The profile of the training
    examples has had its own place since version 0.1.0."""
    files.delete(stage_files.REFERENCES)
    stage_files.REFERENCES.mkdir(parents=True)
    for against, found in compared.items():
        reports.write(found, stage_files.reference_file(against))


# -- feedback --------------------------------------------------------------------------------------
def _tell_refused(loaded: Recipe, params: Params) -> None:
    with contextlib.suppress(UserError):  # a recipe without from_traffic: drift says so when it matters
        found = feedback.survey(reading.conversations(stage_files.SNAPSHOT, graded=True), loaded, params)
        text = found.describe(
            lambda one: (
                f"{reading.place(stage_files.SNAPSHOT, one.conversation_id)}, conversation {one.conversation_id}"
            )
        )
        if text:
            progress.print_line("traffic", text)
