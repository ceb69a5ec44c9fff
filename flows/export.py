"""`rft export`: what is needed to serve an agent elsewhere, in a folder of its own."""

from __future__ import annotations

from pathlib import Path

from flows.screen import say, warn
from rft.export import Dtype, Manifest
from tasks import agents, clone
from tasks import export as exporting


def write(which: str, folder: str, model: str | None, merge: bool, dtype: Dtype | None) -> int:
    here = clone.enter()
    target = Path(folder).resolve()
    exporting.check_place(here, target)
    agent = agents.find(here, which, model)
    manifest = exporting.write(agent, target, merge, dtype)
    if not manifest.approved:
        warn(f"not approved: {agent.standing}. Its README says so too.")
    if manifest.not_compared:
        warn(f"no recorded opening was compared: {manifest.not_compared}. Its README says so too.")
    say(f"{agent.words} ({agent.standing})")
    say(f"  {_what(manifest)}")
    if manifest.openings_compared:
        say(f"  checked: prompt, tools and template give {manifest.openings_compared} recorded openings token by token; every hash holds")
    if moved := manifest.weights.moved:
        kept = "" if moved.kept is None else f", cosine of learned and exported change {moved.kept:.4f}"
        say(f"  the cast to {manifest.weights.dtype} moved a weight by {moved.by_cast:.3g} at most{kept}")
    say(f"Exported to {target}: README.md there has the line that starts vLLM with it.")
    return 0


def _what(manifest: Manifest) -> str:
    base, weights = manifest.base, manifest.weights
    if base.kind == "served":
        return f"the prompt alone: the weights of {base.name} lie at its endpoint"
    if weights.path == "adapter":
        return f"adapter of rank {weights.rank}; base model {f'in {base.path}/' if base.path else f'{base.name}, named and not copied'}"
    if weights.path == "model":
        return f"one whole model in model/{f', {weights.dtype}' if weights.dtype else ''}"
    return f"no weights of its own: base model {base.name}, named and not copied"
