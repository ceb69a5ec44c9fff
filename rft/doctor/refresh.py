"""Check whether the window could become training examples, if drift asks for a refresh.

Without this check the answer comes weeks later, in a scheduled run that nobody watches. So the
window is read now as a run would read it, and its graded conversations go through `from_traffic`.
The examples must not overlap with the validation and test examples, like any training example.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rft import rows
from rft.doctor.finding import Finding, fail, ok
from rft.doctor.setup import Setup
from rft.errors import RftError, UserError
from rft.recipe import Conversation
from rft.stages import examples
from rft.traffic import ingest, reading, sources
from rft.types import Example, Split

LARGEST = 64 * 2**20
"""Largest size of a log in bytes, as stored. A larger log is not read for a mere check."""


def check(setup: Setup) -> Finding:
    if not setup.recipe.makes_from_traffic:
        return ok("not possible: the recipe has no from_traffic, so drift can only stop or continue")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        graded = _graded(setup, Path(scratch))
        if isinstance(graded, str):
            return ok(f"not tried: {graded}")
        num_graded, made = 0, list[Example]()
        for conversation in graded:
            num_graded += 1
            if (example := _made(setup, conversation)) is not None:
                made.append(example)
    try:
        rows.check_named(made, setup.params.examples.keys, "from_traffic")
        splits: dict[Split, list[Example]] = {**setup.rows, "train": examples.once(made)}
        examples.check_leakage(splits, setup.params.examples.disjoint_targets)
    except UserError as error:
        remedy = "Let from_traffic in the recipe's examples.py return None for what must stay apart, or fix its rows."
        return fail(f"a refresh would end: {error}", remedy)
    description = f"{len(made)} of the window's {num_graded} graded conversations can become training examples"
    return ok(description, graded=num_graded, usable=len(made))


def _made(setup: Setup, conversation: Conversation) -> Example | None:
    """Call from_traffic. Raises UserError that names the conversation if from_traffic raises."""
    try:
        return setup.recipe.from_traffic(conversation)
    except RftError:
        raise
    except Exception as error:
        file, name = f"{setup.recipe.folder}/examples.py", conversation.conversation_id
        raise UserError(
            f"{file}: from_traffic of conversation {name!r} raised {type(error).__name__}: {error}. Fix it, or return "
            "None for what it cannot use."
        ) from error


def _graded(setup: Setup, scratch: Path) -> Iterator[Conversation] | str:
    """Read the window's graded conversations, or say why they cannot be read here."""
    section = setup.params.traffic
    with contextlib.suppress(RftError):  # a run reports at its start what is wrong with the log
        size = sum(log.num_bytes for log in sources.find(section.file, Path.cwd()))
        if size > LARGEST:
            return f"{section.file} has {size / 1e6:,.0f} MB; `rft traffic ingest` reads it, and a run tries a refresh"
        return reading.conversations(ingest.ingest(section.file, section, Path.cwd(), scratch), graded=True)
    return f"{section.file} cannot be read as a window"
