"""Ingest a log: read what production wrote, once, into a snapshot that never changes.

    find      the files of the log, and hash them                        sources
    recognize each by its content                                        formats
    cut       them into blocks of whole lines                            blocks
    stage     a part for each block, in several processes                pool, worker, parts
    join      rows of one conversation, over all parts                   joins
    publish   the parts and the manifest as one folder                   here

A snapshot's folder is named by a hash of the log's bytes and of the settings on which its columns
depend. So the same log is ingested once. Parts are staged beside it under the same name. After a
kill, the next call makes only the missing blocks, and the bytes are those of a call that was never
interrupted.

Nothing is dropped silently. The rows of the log are the conversations plus those that the manifest
counts as rejected (`reading.num_rejected`). The first rows that could not be read are named.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rft import config, files, formatting, reports
from rft.errors import ConfigError, InfrastructureError, UserError
from rft.reports import Manifest, Part, Source, Unread
from rft.traffic import blocks, formats, joins, normal, parts, pool, reading, redact, schema, sources
from rft.traffic.arrow import pc
from rft.traffic.parts import Plan, Tally

VERSION = 2
"""Increased whenever the same log would give other bytes."""
_WORK = ".work"


@dataclass(frozen=True, slots=True)
class _Job:
    """A log, and where its snapshot goes."""

    logs: list[sources.Log]
    plan: Plan
    section: config.Traffic
    sha256: str
    folder: Path
    work: Path


def _quiet(_: str) -> None:
    """Say nothing."""


def ingest(
    spec: str, section: config.Traffic, root: Path, into: Path, report_line: Callable[[str], None] = _quiet
) -> Path:
    """Ingest a log into a folder below `into`, and return that folder. A log that was ingested
    before is not read again.

    `spec`: as `traffic.file`. `root`: what it is relative to. Raises UserError for a log that is
    empty, that is not the one in `traffic.sha256`, or whose format is not known; ConfigError for a
    rule, unit or column that cannot be honored; InfrastructureError when reading or writing fails.
    """
    redact.check(section.redact)
    with redact.quoting(section.redact):
        return _ingest(_job(spec, section, root, into), report_line)


def _ingest(job: _Job, report_line: Callable[[str], None]) -> Path:
    if (job.folder / schema.MANIFEST).exists():
        return job.folder
    job.work.mkdir(parents=True, exist_ok=True)
    with _alone(job.work, report_line), _disk(job.work):
        if not (job.folder / schema.MANIFEST).exists():
            tallies = _stage(job, report_line)
            manifest = _publish(job, tallies, report_line)
            found = formatting.counted(manifest.num_conversations, "conversation")
            report_line(f"{found} from {manifest.first} to {manifest.last}, {manifest.num_with_feedback} graded")
    shutil.rmtree(job.work, ignore_errors=True)
    return job.folder


def _job(spec: str, section: config.Traffic, root: Path, into: Path) -> _Job:
    logs = sources.find(spec, root)
    sha256 = _sha256(logs)
    if section.sha256 is not None and section.sha256 != sha256:
        remedy = "Restore the log, or record the new hash if the change is meant."
        raise UserError(f"{spec}: its sha256 is {sha256}, but traffic.sha256 says {section.sha256}. {remedy}")
    found = tuple(_format(log) for log in logs)
    names = [[log.name, log.sha256(), form.name] for log, form in zip(logs, found, strict=True)]
    shaping = section.model_dump(mode="json", include={"unit", "columns", "redact", "max_line_mb"})
    shaping["redact"] = list(section.redact.items())  # their order matters
    key = files.digest([VERSION, blocks.SIZE, pa.__version__, names, shaping])[:16]
    work = into / f"{_WORK}-{key}"
    plan = Plan(
        formats=found,
        names=tuple(log.name for log in logs),
        unit=section.unit,
        columns=dict(section.columns),
        redact=section.redact,
        largest=section.max_line_mb << 20,
        staged=work / "staged",
    )
    return _Job(logs, plan, section, sha256, into / key, work)


def _sha256(logs: Sequence[sources.Log]) -> str:
    """Name the log by its bytes."""
    if len(logs) == 1:
        return logs[0].sha256()
    return files.digest([[log.name, log.sha256()] for log in logs])


def _format(log: sources.Log) -> Any:
    with log.open() as stream:
        return formats.recognize(stream.read(formats.HEAD), log.name)


@contextlib.contextmanager
def _alone(work: Path, report_line: Callable[[str], None]) -> Iterator[None]:
    """Hold the folder, so that no other process ingests the same log meanwhile. If one does,
    for a run of another agent, wait for it: we use the same snapshot."""
    handle = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report_line("another process reads the same log: waiting for its snapshot")
            fcntl.flock(handle, fcntl.LOCK_EX)  # the kernel releases it when that process ends in any way
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _disk(work: Path) -> Iterator[None]:
    """Turn a failure of the disk into an InfrastructureError."""
    try:
        yield
    except OSError as error:
        why = getattr(error, "strerror", None) or str(error).splitlines()[0]
        where = getattr(error, "filename", None) or work
        what = "Lower traffic.max_line_mb" if "Out of Memory" in why else "Free the disk"
        remedy = f"{what}, and start again to continue; or delete {work} to start over."
        raise InfrastructureError(f"{where}: ingesting failed ({why}). {remedy}") from error


# -- staging ---------------------------------------------------------------------------------------
def _stage(job: _Job, report_line: Callable[[str], None]) -> list[Tally]:
    """Stage every block that is not staged yet. Returns what each held."""
    plan, count = job.plan, 0
    plan.staged.mkdir(parents=True, exist_ok=True)
    total = sum(log.num_bytes for log in job.logs)
    report_line(f"reading {formatting.counted(len(job.logs), 'file')}, {total / 1e6:,.0f} MB")

    def missing() -> Iterator[blocks.Block]:
        nonlocal count
        for block in blocks.cut(job.logs, plan.formats, plan.largest, blocks.SIZE):
            count += 1
            if not parts.staged(plan, block.number)[1].exists():
                yield block

    waiting = missing()
    first = list(itertools.islice(waiting, 2)) if job.section.processes > 1 else []
    if len(first) < 2:
        _stage_here(first, waiting, plan)
    else:
        for done, _ in enumerate(pool.stage(_chained(first, waiting), plan, job.section.processes), 1):
            report_line(f"{formatting.counted(done, 'block')} of {blocks.SIZE >> 20} MB read")
    return [_tally(parts.staged(plan, number)[1]) for number in range(count)]


def _chained(first: list[blocks.Block], rest: Iterator[blocks.Block]) -> Iterator[blocks.Block]:
    while first:
        yield first.pop(0)
    yield from rest


def _stage_here(first: list[blocks.Block], rest: Iterator[blocks.Block], plan: Plan) -> None:
    for block in _chained(first, rest):
        parts.make(plan, block)


def _tally(path: Path) -> Tally:
    return Tally(**json.loads(path.read_text(encoding="utf-8")))


# -- publishing ------------------------------------------------------------------------------------
def _publish(job: _Job, tallies: list[Tally], report_line: Callable[[str], None]) -> Manifest:
    """Join conversations, and give the finished folder its name."""
    plan = job.plan
    total = parts.summed(tallies)
    _check_keys(plan, total)
    staged = [parts.staged(plan, number)[0] for number in range(len(tallies))]
    scratch, out = job.work / "scratch", job.work / "out"
    for folder in (scratch, out):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    report_line("looking for conversations that are in several rows")
    changes = joins.find(staged, _fragments(tallies), plan.names, scratch)
    made: list[Part] = []
    span = _Span()
    for number, (path, tally) in enumerate(zip(staged, tallies, strict=True)):
        target = out / f"part-{len(made):05d}.parquet"
        num_rows = tally.num_conversations
        if number in changes.drop or number in changes.put:
            num_rows = joins.apply(path, number, changes, plan.own, target)
        elif num_rows:
            _linked(path, target)
        if num_rows:
            made.append(Part(name=target.name, sha256=files.sha256(target), num_rows=num_rows))
            span.add(target)
        else:
            target.unlink(missing_ok=True)
    manifest = _manifest(job, total, changes, made, span)
    if manifest.num_conversations < job.section.min_conversations:
        raise _too_few(job, manifest)
    reports.write(manifest, out / schema.MANIFEST)
    files.publish(out, job.folder)
    return manifest


def _linked(path: Path, target: Path) -> None:
    """Give a part a second name, or copy it where a file can have only one."""
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)


def _check_keys(plan: Plan, total: Tally) -> None:
    """Raise ConfigError for a declared key that no row has."""
    declared = [("traffic.unit", plan.unit)] if plan.unit is not None else []
    declared += [("traffic.columns", name) for name in sorted(plan.columns)]
    for setting, key in declared:
        if total.num_conversations and not total.met.get(str(key)):
            ignored = ", ".join(sorted(total.ignored_keys)[:10])
            known = f" Keys that were ignored: {ignored}." if ignored else ""
            raise ConfigError(f"{setting} = {key}: no row of the log has it. Name a key that rows have.{known}")


def _fragments(tallies: Sequence[Tally]) -> joins.Fragments:
    return joins.Fragments(
        continues={number: frozenset(tally.continues) for number, tally in enumerate(tallies) if tally.continues},
        roots=formats.roots((alias, identity) for tally in tallies for alias, identity in tally.aliases),
    )


@dataclass(slots=True)
class _Span:
    """First and last time over parts, and how many rows are graded."""

    first: Any = None
    last: Any = None
    graded: int = 0

    def add(self, path: Path) -> None:
        with pq.ParquetFile(path) as file:
            table = file.read(columns=["time", "feedback"], use_threads=False)
        ends = pc.min_max(table["time"]).as_py()
        self.first = ends["min"] if self.first is None else min(self.first, ends["min"])
        self.last = ends["max"] if self.last is None else max(self.last, ends["max"])
        self.graded += table.num_rows - table["feedback"].null_count


def _manifest(job: _Job, total: Tally, changes: joins.Changes, made: list[Part], span: _Span) -> Manifest:
    plan = job.plan
    unread = sorted([*total.unread, *changes.unread])[: parts.UNREAD]
    rejected = {**total.rejected, **total.kept}
    for reason, count in changes.counts.items():
        rejected[reason] = rejected.get(reason, 0) + count
    found = [
        Source(
            name=log.name,
            format=plan.formats[number].name,
            sha256=log.sha256(),
            num_bytes=log.num_bytes,
            num_rows=total.num_rows.get(str(number), 0),
        )
        for number, log in enumerate(job.logs)
    ]
    return Manifest(
        sources=found,
        parts=made,
        sha256=job.sha256,
        unit=plan.unit,
        columns=dict(plan.columns),
        first=normal.iso(span.first) if span.first else "",
        last=normal.iso(span.last) if span.last else "",
        num_rows=sum(source.num_rows for source in found),
        num_conversations=sum(part.num_rows for part in made),
        num_with_feedback=span.graded,
        rejected=dict(sorted(rejected.items())),
        unread=[Unread(source=plan.names[source], line=line, why=why) for source, line, why in unread],
        ignored_keys=total.ignored_keys,
        redacted={name: total.redacted.get(name, 0) for name in plan.redact},
    )


def _too_few(job: _Job, manifest: Manifest) -> UserError:
    number = formatting.counted(manifest.num_conversations, "conversation")
    what = f"{number}, traffic.min_conversations asks for {job.section.min_conversations}"
    lost = reading.num_rejected(manifest)
    why = f" {formatting.counted(lost, 'row')} of {manifest.num_rows} were rejected" if lost else ""
    first = (
        f"; the first: {manifest.unread[0].source}:{manifest.unread[0].line}: {manifest.unread[0].why}"
        if (manifest.unread)
        else ""
    )
    named = manifest.sources[0].name if len(manifest.sources) == 1 else f"{len(manifest.sources)} files"
    return UserError(f"{named}: {what}.{why}{first}{'. Fix these rows, or take' if why else ' Take'} a longer window.")
