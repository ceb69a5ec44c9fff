"""A run on one page: what each stage found, with pictures, for the person who must approve it.

`render(root, run)` reads the stages' files under `root/data` and returns one HTML file. It has no
script and loads nothing (its Content-Security-Policy forbids both). It is light or dark by the
reader's setting, and readable on a phone and on paper. What a run did not reach is left out: a run
that stopped after drift has a short page. A value that a report has is not computed again here.

The page shows only sums, slices and counts of the test set. Dialogues, ids and rewards are those of
the validation examples that each arm plays for the page (rft/reports/shown.py). Only an entry in
the ledger opens the test set for reading. Where inputs nearly repeat each other, the page shows the
ids of test examples, but not their text.

    markup     HTML that escapes its input
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
    inputs     the reports that the run wrote

The pages of an audit (audit.py) and of `rft traffic drift` (drift.py) have the same style and the
same promises.

    lineage, sections            an audit as its page reads it, and a section for each of its nodes
    graph, lanes, folding        its picture: drawing, places of the boxes, and what is left out
    drift_comparisons            drift over time
    drift_pictures, drift_style  drift on its scale; the style sheet for it
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
    """Return the page of a run.

    `run` describes the run: `run`, `commit`, `recipe`, `dirty`, further facts in words, and
    `again`, the command that repeats it. `spent`: stage -> wall time. `opened`: the ledger's entry
    that opened the test set; then its dialogues are shown. `comparisons`: drift of the last runs
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
