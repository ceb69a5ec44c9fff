"""Stage `gate`: reads the reports, decides, and writes what a person is asked to approve.

rft/gate/decide.py decides. Nobody is asked about a comparison that the ledger does not know
(data/registration).

Equal inputs must give equal bytes, so the latency check is in `timing.json`, and in `decision.json`
only under `gate.latency_decides`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from rft import commands, config, reports, stage_files
from rft.errors import UserError
from rft.gate.checks import Timings, latency
from rft.gate.decide import decide, promotion_request
from rft.reports import wording


def run(params: config.Params) -> None:
    """Read the reports and write data/gate."""
    drift = stage_files.read(reports.DriftReport)
    baseline = stage_files.read(reports.BaselineReport)
    prompt = stage_files.read(reports.PromptReport)
    train = stage_files.read(reports.TrainReport)
    challenger = stage_files.read(reports.ChallengerReport)
    timings = _timings(stage_files.timing("challenger"))
    registration = stage_files.read(reports.Registration)
    decision = decide(params.gate, drift, baseline, prompt, train, challenger, timings, registration.level)
    apart = latency(params.gate, timings, decision.candidate)
    for done, check in enumerate(decision.checks, 1):
        print(f"[gate] {done}/{len(decision.checks)} {wording.describe(check)}", flush=True)
    if unprotected := wording.unprotected(decision.checks):
        print(unprotected, flush=True)
    if not apart.decides:
        print(f"not deciding: {wording.describe(apart)}", flush=True)
    stage_files.write(decision)
    request = promotion_request(decision, prompt, train, challenger) if registration.by_policy else None
    print(registration.description, flush=True)
    reports.write(request, stage_files.path(reports.PromotionRequest))
    reports.write_json({"latency": apart.model_dump(mode="json")}, stage_files.timing("gate"))
    print(f"{decision.decision}: {decision.reason}", flush=True)


def _timings(path: Path) -> Timings:
    command = commands.stage("challenger")
    try:
        timings: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: missing. Run the stage that writes it: {command}") from None
    except json.JSONDecodeError as error:
        what = f"{path}: line {error.lineno}: not JSON: {error.msg}"
        raise UserError(f"{what}. Run the stage again: {command}") from None
    if not isinstance(timings, dict):
        what = f"{path}: holds {type(timings).__name__}, expected an object"
        raise UserError(f"{what}. Run the stage again: {command}")
    return cast(Timings, timings)
