"""What a request is about, by hash, and whether the bytes still have these hashes.

Everything is read from the run's revision: the reports by their hash in DVC's cache, the weights
file by file. So it works in any clone that has the revision. Every change after the gate's decision
is named.
"""

from __future__ import annotations

from rft import config, files
from rft.errors import UserError
from rft.reports import Decision, PolicyReport, PromotionRequest, PromptSettings, TrainReport
from tasks.ledger.statement import Content
from tasks.runs import champion
from tasks.runs.artifacts import WEIGHTS, Revision


def from_revision(at: Revision, run: str) -> tuple[PromotionRequest, Content]:
    """Read the request in a run's revision, and compare every hash in it with the bytes it names.

    Raises UserError when the gate did not decide `promote`, or a hash does not fit.
    """
    decision = at.report(Decision)
    if decision is None:
        raise UserError(f"run {run} came to no decision. There is nothing to decide on.")
    if decision.decision != "promote":
        gate = f"the gate itself decided {decision.decision}: {decision.reason}"
        raise UserError(f"run {run} cannot be approved or rejected: {gate}")
    request, train, policy = at.report(PromotionRequest), at.report(TrainReport), at.report(PolicyReport)
    if request is None or train is None or policy is None:
        missing = "the promotion request, the train report or the policy's"
        raise UserError(f"run {run}: its revision {at.commit[:10]} lacks {missing}. Start a new run.")
    before = champion.began_with(at)
    compared = {
        "the decision": (decision.digest(), request.decision_sha256),
        "the prompt": (request.prompt.digest(), decision.hashes.get("prompt")),
        "the train report": (train.digest(), decision.hashes.get("train")),
        "the test examples": (request.test_sha256, decision.hashes.get("test")),
        "how it is served": (_serve_sha256(request.serve), decision.hashes.get("serve")),
    }
    if request.weights_path is not None:
        weights, base = train.sha256, policy.sha256
        compared["the trained weights"] = (request.weights_sha256, weights)
        compared["the bytes of the trained weights"] = (at.tree_sha256(request.weights_path), weights)
    else:
        weights, base = before.weights_sha256, before.base_sha256 or policy.sha256
        if WEIGHTS in at.outs:
            compared["the champion's weights"] = (at.tree_sha256(WEIGHTS), weights)
    for what, (found, named) in compared.items():
        if found != named:
            changed = f"{what} has hash {found}, but {named} was judged: it was changed after the decision"
            raise UserError(f"run {run}: {changed}. Start a new run.")
    return request, Content(
        decision_sha256=request.decision_sha256,
        prompt_sha256=prompt_sha256(request.prompt, request.serve),
        weights_sha256=weights,
        base_sha256=base,
        test_sha256=request.test_sha256,
    )


def prompt_sha256(prompt: PromptSettings, serve: config.Serve) -> str:
    """Hash a prompt together with how its answers are made of rollouts. With another way of serving
    it is another candidate: another look, with a rejection or an approval of its own. For single
    rollouts it is the hash of the prompt alone."""
    served = _serve_sha256(serve)
    return prompt.digest() if served is None else files.digest({"prompt": prompt.digest(), "serve": served})


def _serve_sha256(serve: config.Serve) -> str | None:
    return None if serve.is_single else files.digest(serve.model_dump(mode="json"))
