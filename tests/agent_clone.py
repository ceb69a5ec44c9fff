"""A clone with one recorded run that really learned: the tiny ladder's policy, a LoRA adapter on
it, and a gate that would promote.

For tests of what is done with an agent afterwards: exported, talked to. `make` takes some seconds:
share its clone, and copy it before changing it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import ladder_clone
import sample_reports

from rft import config, reports
from rft.gate import decide as the_gate
from tasks.runs import records
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone
from tests import tiny_recipe
from tests.ladder import SECTIONS, inside, run
from tests.tiny_recipe import params

LORA = {"weights": "lora", "steps": 3, "lr": 1e-2, "lora": {"r": 4, "alpha": 8}, "from": "policy"}
SYSTEM = "Look it up."
EASY = {
    "looks": 2,  # an interval of so few examples is drawn then, and stays above -1
    "min_gain": -1,
    "max_greedy_loss": 1,
    "max_calls_p95_increase": 9,
    "max_tokens_increase": 99,
    "max_turns_p95_increase": 9,
    "max_unreadable_increase": 1,
    "max_unscored_increase": 1,
    "max_hack_rate": 1,
    "max_slice_loss": 1,
}


def make(folder: Path, ladder: Path, full: bool = False) -> ladder_clone.Scripted:
    """The ladder's files up to the baseline are taken as they are; `full`: all of them, with the
    full weights that it trained."""
    scripted = ladder_clone.make(folder)
    tiny_recipe.teachable(scripted.root / "recipes/tiny")
    recipe, place = scripted.root / "recipes/tiny", folder / "stages"
    if not full:
        (recipe / "prompts.json").write_text(json.dumps({"seed": {"name": "seed", "system": SYSTEM}}))
    gated = sample_reports.GATE.model_copy(update=EASY)
    sections: dict[str, Any] = {
        **SECTIONS,
        "gate": gated.model_dump(),
        "train": SECTIONS["train"] | ({} if full else LORA),
    }
    scripted.set_params(**sections)
    scripted.git("add", "--all")
    scripted.git("commit", "--quiet", "--message", "tiny")
    shutil.copytree(ladder / "data", place / "data")
    settings = params(recipe, **sections)
    with inside(place):
        for stage in () if full else ("prompt", "train", "challenger"):
            shutil.rmtree(place / "data" / stage)
            run(stage, settings)
    shutil.copytree(place / "data", scripted.script / "data", dirs_exist_ok=True)
    for name in ("model.bin", "model/base.bin"):
        (scripted.script / "data/policy" / name).unlink(missing_ok=True)
    (scripted.script / "data/train/weights/model.bin").unlink(missing_ok=True)
    decide(scripted.script / "data", settings)
    return scripted


def run_again(clone: Clone, folder: Path) -> ladder_clone.Scripted:
    """The newest run's files once more, to be changed, and to make another run of."""
    at = Revision(clone, records.load_all(clone)[-1].revision or "")
    for out in at.outs:
        if not out.startswith("data/champion"):
            at.lay(out, folder / out)
    return ladder_clone.Scripted(clone, folder)


def decide(data: Path, settings: config.Params) -> reports.Decision:
    """The gate's own decision on these files."""
    drift = reports.read(reports.DriftReport, data / "drift/report.json")
    baseline = reports.read(reports.BaselineReport, data / "baseline/report.json")
    prompt = reports.read(reports.PromptReport, data / "prompt/report.json")
    train = reports.read(reports.TrainReport, data / "train/report.json")
    challenger = reports.read(reports.ChallengerReport, data / "challenger/report.json")
    timings = json.loads((data / "challenger/timing.json").read_text())
    decision = the_gate.decide(settings.gate, drift, baseline, prompt, train, challenger, timings)
    request = the_gate.promotion_request(decision, prompt, train, challenger)
    reports.write(decision, data / "gate/decision.json")
    reports.write(request, data / "gate/request.json")
    return decision
