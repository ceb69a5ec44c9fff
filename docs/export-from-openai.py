"""Take out of OpenAI what a retraining needs: fine-tuning jobs, the files that they name, Evals
with their runs and output items, and stored completions.

    pip install openai
    OPENAI_API_KEY=... python export-from-openai.py exported

It only reads. Rows, items and completions that are there already are not fetched again, so the same
command goes on after an interruption. Each failure is said and the rest goes on; the exit code is
then 1.

    exported/jobs/ftjob-1.json         a job
    exported/files/file-abc.jsonl      its training and validation rows, and those of an eval's runs
    exported/evals/eval_1/             eval.json, runs.json, items-RUN.jsonl
    exported/stored_completions.jsonl  logged traffic

What to do with each: docs/from_openai.md.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

try:
    from openai import OpenAI, OpenAIError
except ModuleNotFoundError:
    sys.exit("The client of OpenAI is not installed: pip install openai")

warnings.filterwarnings("ignore", "Pydantic serializer warnings")  # of graders in graders: they come out whole
FAILED: list[str] = []


def main(folder: Path) -> int:
    try:
        client = OpenAI()
    except OpenAIError as error:
        sys.exit(f"{error} Write the key into OPENAI_API_KEY.")
    attempt("fine-tuning jobs", lambda: jobs(client, folder))
    attempt("Evals", lambda: evals(client, folder))
    attempt("stored completions", lambda: stored(client, folder))
    print(f"{len(FAILED)} failed" if FAILED else "all is in", folder)
    return 1 if FAILED else 0


def jobs(client: OpenAI, folder: Path) -> None:
    for job in client.fine_tuning.jobs.list():
        write(folder / "jobs" / f"{job.id}.json", [json.dumps(job.to_dict(), indent=2)])
        for named in (job.training_file, job.validation_file):
            if named:
                attempt(f"file {named}", lambda named=named: content(client, folder, named))


def content(client: OpenAI, folder: Path, named: str) -> None:
    target = folder / "files" / f"{named}.jsonl"
    if not target.exists():
        publish(target, client.files.content(named).content)


def evals(client: OpenAI, folder: Path) -> None:
    for one in client.evals.list():
        inside = folder / "evals" / one.id
        write(inside / "eval.json", [json.dumps(one.to_dict(), indent=2)])
        runs = list(client.evals.runs.list(one.id))
        write(inside / "runs.json", [json.dumps([run.to_dict() for run in runs], indent=2)])
        for run in runs:
            for named in files_of(run.to_dict()):
                attempt(f"file {named}", lambda named=named: content(client, folder, named))
            attempt(f"run {run.id}", lambda one=one, run=run, inside=inside: items(client, inside, one.id, run.id))


def files_of(run: Any) -> list[str]:
    """Find the files that a run's data source names."""
    if isinstance(run, dict):
        named = [run["id"]] if run.get("type") == "file_id" and isinstance(run.get("id"), str) else []
        return named + [name for inner in run.values() for name in files_of(inner)]
    return [name for inner in run for name in files_of(inner)] if isinstance(run, list) else []


def items(client: OpenAI, inside: Path, named: str, run: str) -> None:
    target = inside / f"items-{run}.jsonl"
    if not target.exists():
        listed = client.evals.runs.output_items.list(run, eval_id=named)
        write(target, (json.dumps(item.to_dict()) for item in listed))


def stored(client: OpenAI, folder: Path) -> None:
    target = folder / "stored_completions.jsonl"
    if not target.exists():
        write(target, (with_messages(client, completion) for completion in client.chat.completions.list()))


def with_messages(client: OpenAI, completion: Any) -> str:
    messages = client.chat.completions.messages.list(completion.id)
    return json.dumps(completion.to_dict() | {"messages": [message.to_dict() for message in messages]})


def attempt(what: str, act: Callable[[], None]) -> None:
    """Go on where one thing cannot be had: a file that was deleted, a service that has ended."""
    try:
        act()
    except OpenAIError as error:
        FAILED.append(what)
        print(f"{what}: {error}", file=sys.stderr)


def write(target: Path, lines: Iterable[str]) -> None:
    publish(target, "".join(f"{line}\n" for line in lines).encode())


def publish(target: Path, content: bytes) -> None:
    """Write a file that is whole or not there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    part.write_bytes(content)
    os.replace(part, target)
    print(target)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
