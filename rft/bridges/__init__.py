"""Reads what people export from other services, and writes it as an ordinary agent folder.

The folder has rows, grader, tools and settings. It runs without a line of Python being written.

    rft new agents/mine --from openai:job.json --files exported

Each format has a module of its own, which returns an `Imported`. What has no counterpart here
becomes a note with its place and consequence. What would change a score is refused. Nothing is
dropped silently, and a score of 0 that another service wrote for an error is not imported.

    imported.py    the result of reading: rows by split, grader, settings, notes, logged traffic
    foreign.py     reading foreign files: whole JSON, or an error that names line and remedy
    openai.py      a fine-tuning job of OpenAI or Azure with its files
    bedrock.py     a customization job of Amazon Bedrock with its files
    lambda_grader.py
                   the Lambda function that grades a job of Bedrock, and the tools.py that calls it
    evals/         an eval of OpenAI with its runs and output items
    grader.py      a grader.json alone
    promptfoo/     a config of Promptfoo: prompts x tests, and assertions with Promptfoo's scores
    headers.py     replaces secret header values with environment variables
    places.py      what the templates of a grader find in rows and rollouts
    packages.py    finds packages that a source imports and that are not installed
    splits.py      cuts a missing test split from training rows by a hash of their inputs
    scales.py      range and chance of a grader, where they follow from it
    agent.py       writes the folder

No other package imports this one. Once written, the folder is like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rft.bridges import bedrock, evals, grader, openai, promptfoo
from rft.bridges.agent import write_agent
from rft.bridges.imported import Imported, Note
from rft.errors import UserError, did_you_mean

KINDS: dict[str, Callable[[Path, Path | None], Imported]] = {
    "openai": openai.read,
    "azure": openai.read,
    "bedrock": bedrock.read,
    "evals": evals.read,
    "grader": grader.read,
    "promptfoo": promptfoo.read,
}
"""The word before the colon of --from -> the function that reads the file named after it. The
function also gets the folder of --files."""


def read(source: str, files: Path | None) -> Imported:
    """Read `KIND:PATH`. Raises UserError or ConfigError naming file, line, key and remedy."""
    kind, colon, place = source.partition(":")
    if not colon or kind not in KINDS:
        raise UserError(f"--from {source}: begin with the format, such as openai:job.json. {did_you_mean(kind, KINDS)}")
    if not place:
        raise UserError(f"--from {source}: names no file. Write {kind}:FILE.")
    return KINDS[kind](Path(place), files)


__all__ = ["KINDS", "Imported", "Note", "read", "write_agent"]
