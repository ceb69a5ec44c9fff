"""A run on one page: what each stage found, with pictures, for the person who must approve it.

`render(root, run)` reads the stages' files under `root/data` and returns one HTML file: no script,
no network (its own policy forbids both), light or dark by the reader's setting, readable on a phone
and on paper. What a run did not reach is left out: a run that stopped after drift has a short page.
Nothing is computed here that a report says already.

Of the test set the page shows sums, slices and counts. Dialogues, ids and rewards of examples are
those of the validation examples that each arm plays for the page (rft/reports/shown.py), unless
somebody opened the test set, by an entry in the ledger. Where inputs nearly repeat each other, the
ids of test examples are shown, and no text.

    markup     HTML that escapes what it is given
    charts     the pictures
    style      the one style sheet
    story      header, ladder, the three arms, how to approve
    checks     the gate's checks, for the person who signs
    detail     prompt, training, tool calls, best of k, stop reasons
    drift      what moved in production, and over the last runs
    learned    train reward beside test reward
    nearly     inputs of one split that nearly repeat those of another
    worse      the examples that got worse
    dialogues  rollouts side by side
    cost       wall time, rollouts, tokens, steps
    inputs     the reports, as far as the run came

The page of an audit (audit.py) and that of `rft traffic drift` (drift.py) have the same style and
the same promises.

    lineage, sections            an audit as its page reads it, and a section for each of its nodes
    graph, lanes, folding        its picture: drawn, where the boxes lie, and which are left out
    drift_comparisons            drift over time
    drift_pictures, drift_style  drift on its scale; the style sheet that it adds
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rft.page import checks, cost, detail, dialogues, drift, nearly, story, worse
from rft.page.cost import Spent
from rft.page.drift_comparisons import DriftComparison
from rft.page.drift_style import DRIFT
from rft.page.inputs import StageFiles
from rft.page.markup import h, page
from rft.page.style import STYLE


def render(
    root: Path,
    run: Mapping[str, str],
    spent: Mapping[str, Spent] | None = None,
    opened: int | None = None,
    comparisons: Sequence[DriftComparison] = (),
) -> str:
    """`run` describes the run: `run`, `commit`, `recipe`, `dirty`, further facts in words, and
    `again`, the command that repeats it. `spent`: stage -> wall time. `opened`: the ledger's entry
    that opened the test set, whose dialogues are shown then. `comparisons`: drift of the last runs
    and of this one.

    Raises UserError for a damaged report.
    """
    stage_files = StageFiles.read(root, opened)
    rollouts = dialogues.scored(stage_files)
    body = [
        story.header(stage_files, run),
        story.ladder(stage_files),
        story.arms(stage_files),
        checks.checks(stage_files),
        story.next_step(stage_files, run),
        dialogues.closed(stage_files, run),
        worse.worse(stage_files, run, rollouts),
        detail.untrained(stage_files),
        h("div", pictures, class_="grid") if (pictures := [*detail.pictures(stage_files)]) else None,
        *(drift.cards(stage_files.drift, comparisons) if stage_files.drift is not None else ()),
        nearly.card_of(stage_files),
        detail.candidates(stage_files),
        dialogues.side_by_side(stage_files, rollouts),
        detail.stop_reasons(stage_files),
        cost.cost(stage_files, spent or {}),
        story.footer(stage_files),
    ]
    return page(f"{story.verdict(stage_files)[0]}: run {run.get('run', '')}", STYLE + DRIFT, body)


__all__ = ["DriftComparison", "Spent", "render"]
