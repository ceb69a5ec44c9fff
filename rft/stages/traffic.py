"""Stage `traffic`: pins a window of production conversations, and profiles it and its reference.

rft/windows/conversations.py reads the window; what cannot be read stops the stage before it writes
anything. The reference is what the window is compared with: the champion's profile, beside
`champion.json`; before the first promotion that of the recipe's training examples, which knows
nothing of what an agent does.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from rft import progress, recipe, reports, shelves
from rft.config import Params
from rft.errors import UserError
from rft.recipe import Recipe
from rft.reports import TrafficReport
from rft.windows import profile
from rft.windows.conversations import Window, read_window, refused_feedback


def run(params: Params) -> None:
    progress.say("traffic", f"reading {params.traffic.file}")
    window = read_window(Path(params.traffic.file), params.traffic.sha256, params.traffic.min_conversations)
    loaded = recipe.load(params.recipe, params.examples.keys)
    progress.say("traffic", f"{len(window.conversations)} conversations; profiling them and the reference")
    reference = profile.reference(params, loaded)
    current = profile.of_conversations(window.conversations, loaded, window.source)
    _tell_refused(window, loaded, params)
    report = TrafficReport(
        source=window.source,
        sha256=window.sha256,
        first=window.conversations[0].time,
        last=window.conversations[-1].time,
        num_rows=window.num_rows,
        num_conversations=len(window.conversations),
        num_with_feedback=sum(conversation.feedback is not None for conversation in window.conversations),
        rejected=window.rejected,
        ignored_keys=window.ignored_keys,
        reference=reference.source,
    )
    rows = (conversation.model_dump(mode="json") for conversation in window.conversations)
    reports.write_jsonl(rows, shelves.CONVERSATIONS)
    reports.write(reference, shelves.REFERENCE_PROFILE)
    reports.write(current, shelves.CURRENT_PROFILE)
    shelves.write(report)
    found = f"{report.num_conversations} conversations from {report.first} to {report.last}"
    progress.say("traffic", f"{found}, {report.num_with_feedback} graded")


def _tell_refused(window: Window, loaded: Recipe, params: Params) -> None:
    with contextlib.suppress(UserError):  # a recipe without from_traffic: drift says so when it matters
        found = refused_feedback(window.conversations, loaded, params)
        words = found.in_words(lambda one: f"{window.lines[one.conversation_id]}, conversation {one.conversation_id}")
        if words:
            progress.say("traffic", words)
