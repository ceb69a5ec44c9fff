"""A run as OpenLineage events, for the catalogs that read them: Marquez, DataHub and others.

A run of the ladder is a run of the job MODEL. Each stage is a run of the job MODEL.STAGE, whose
parent is the run of MODEL. Both have a START, and a COMPLETE, FAIL or ABORT. A stage's COMPLETE
names what it read and wrote, as dvc.lock has it:

    namespace dvc    MODEL/PATH, with DVC's md5 as the dataset's version.
    namespace git    MODEL/code, with the commit as its version. It stands for a hundred files.

Run ids are computed from the run's name and the stage. So events that were sent during the run
(live.py) and events exported later are about the same runs, and a receiver of both has each run
once. A run that was cut off and goes on sends RUNNING, and its stage START again, with the same
ids.

Exported events need times, and the revision's record has only each stage's seconds. So each stage
begins when the one before it ends, and never after the run's end. Live events have the times of the
clock.

No event quotes an error or a conversation: a stage's own error may hold what it read.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import metadata
from typing import Any, Literal

from rft import secrets
from tasks.ledger.facts import BEGINNING
from tasks.provenance.subject import Stage, Subject
from tasks.runs.artifacts import Out

Kind = Literal["START", "RUNNING", "COMPLETE", "FAIL", "ABORT"]
Event = dict[str, Any]
NAMESPACE = "agent-rft"
"""The namespace of our jobs."""
PRODUCER = "urn:agent-rft"
_IDS = uuid.uuid5(uuid.NAMESPACE_URL, "urn:agent-rft:openlineage")


@dataclass(frozen=True)
class Job:
    """What an event is about: a run of a model's ladder, or one stage of it."""

    model: str
    run: str
    stage: str | None = None

    @property
    def name(self) -> str:
        return self.model if self.stage is None else f"{self.model}.{self.stage}"

    @property
    def run_id(self) -> str:
        return str(uuid.uuid5(_IDS, self.run if self.stage is None else f"{self.run}/{self.stage}"))

    def for_stage(self, stage: str) -> Job:
        return Job(self.model, self.run, stage)


def event(
    kind: Kind, job: Job, time: str, tool: str, code: str = "", done: Stage | None = None, failure: str = ""
) -> Event:
    """Make an event, as JSON values. `done` holds what the stage read and wrote, and `code` is the
    commit that it ran."""
    from openlineage.client import event_v2 as lineage
    from openlineage.client import facet_v2 as facets
    from openlineage.client.serde import Serde

    lineage.set_producer(PRODUCER)
    about: dict[str, Any] = {
        "processing_engine": facets.processing_engine_run.ProcessingEngineRunFacet(
            version=tool or "unknown", name="agent-rft"
        )
    }
    if job.stage is not None:
        above = Job(job.model, job.run)
        about["parent"] = facets.parent_run.ParentRunFacet(
            run=facets.parent_run.Run(runId=above.run_id),
            job=facets.parent_run.Job(namespace=NAMESPACE, name=above.name),
        )
    if done is not None and done.how:
        how = facets.tags_run.TagsRunFacetFields(key="how", value=done.how, source="dvc")
        about["tags"] = facets.tags_run.TagsRunFacet(tags=[how])
    if failure:
        about["errorMessage"] = facets.error_message_run.ErrorMessageRunFacet(
            message=failure, programmingLanguage="PYTHON"
        )
    kind_of_job = facets.job_type_job.JobTypeJobFacet(
        processingType="BATCH",
        integration="AGENT-RFT",
        jobType="RUN" if job.stage is None else "STAGE",
    )
    made = lineage.RunEvent(
        eventTime=time,
        eventType=lineage.RunState(kind),
        run=lineage.Run(runId=job.run_id, facets=about),
        job=lineage.Job(namespace=NAMESPACE, name=job.name, facets={"jobType": kind_of_job}),
        inputs=[*_code(job.model, code), *(_read(job.model, dep) for dep in (done.deps if done else ()))],
        outputs=[_written(job.model, out) for out in (done.outs if done else ())],
    )
    return secrets.redact_json(Serde.to_dict(made))


def _code(model: str, commit: str) -> Iterator[Any]:
    from openlineage.client.event_v2 import InputDataset

    if commit:
        yield InputDataset(namespace="git", name=f"{model}/code", facets={"version": _version(commit)})


def _read(model: str, dep: Out) -> Any:
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.facet_v2 import input_statistics_input_dataset as statistics

    size = statistics.InputStatisticsInputDatasetFacet(size=dep.size, fileCount=dep.num_files or 1)
    facets = {"version": _version(dep.md5)}
    return InputDataset("dvc", f"{model}/{dep.path}", facets=facets, inputFacets={"inputStatistics": size})


def _written(model: str, out: Out) -> Any:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

    size = statistics.OutputStatisticsOutputDatasetFacet(size=out.size, fileCount=out.num_files or 1)
    facets = {"version": _version(out.md5)}
    return OutputDataset("dvc", f"{model}/{out.path}", facets=facets, outputFacets={"outputStatistics": size})


def _version(version: str) -> Any:
    from openlineage.client.facet_v2 import dataset_version_dataset

    return dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=version)


def line(found: Event) -> str:
    return json.dumps(found, sort_keys=True, ensure_ascii=False) + "\n"


# -- of a version ----------------------------------------------------------------------------------
def events(subject: Subject) -> list[Event]:
    """Return the events of the run that made the version, in order, as if it had run in one go."""
    return list(_events(subject))


def _events(subject: Subject) -> Iterator[Event]:
    job = Job(subject.model, subject.run)
    stages = [stage for stage in subject.stages if subject.number != BEGINNING or stage.name in _OF_THE_BEGINNING]
    times = _times(subject.started or subject.time, subject.ended, stages)
    yield event("START", job, times[0], subject.tool)
    for stage, begins, ends in zip(stages, times, times[1:], strict=False):
        yield event("START", job.for_stage(stage.name), begins, subject.tool)
        yield event("COMPLETE", job.for_stage(stage.name), ends, subject.tool, subject.code, stage)
    yield event("COMPLETE", job, subject.ended or times[-1], subject.tool)


_OF_THE_BEGINNING = ("traffic", "drift", "examples", "policy", "baseline")
"""The stages that concern the beginning. The later ones are about another version."""


def _times(started: str, ended: str, stages: Iterable[Stage]) -> list[str]:
    """Return the beginning of each stage, and the end of the last."""
    now = datetime.fromisoformat(started)
    last = datetime.fromisoformat(ended) if ended else None
    found = [now]
    for stage in stages:
        now += timedelta(seconds=stage.seconds)
        found.append(min(now, last) if last else now)
    return [time.isoformat(timespec="milliseconds").replace("+00:00", "Z") for time in found]


def tool_version() -> str:
    """Return the version of the agent-rft that runs here."""
    try:
        return metadata.version("agent-rft")
    except metadata.PackageNotFoundError:
        return ""
