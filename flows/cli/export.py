"""Export what is needed to serve an agent elsewhere.

  rft export champion exports/today              the adapter, and its base model or its name
  rft export 12 exports/12 --merge               one whole model
  rft export RUN exports/look --merge --dtype float32

The first word is champion, previous, a number that `rft champion` names, or a RUN: what its gate
judged, approved or not. FOLDER must not exist yet. With --merge a rounding that would lose what was
learned is refused.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from flows.screen import print_line, warn
from tasks.promotion import agents
from tasks.runs import clone

if TYPE_CHECKING:
    from rft.export import Manifest


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("which", metavar="CHAMPION|RUN")
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument(
        "--model", metavar="NAME", help="the recipe, if the clone has run several (default: its only one)"
    )
    parser.add_argument(
        "--merge",
        action="store_true",
        help="one whole model instead of adapter and base: merged in float32, cast once at the end",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="dtype of the whole model (default: float32 for full weights, else policy.dtype of its run)",
    )


def run(options: argparse.Namespace) -> int:
    from tasks import export as exporting

    here = clone.enter()
    target = Path(options.folder).resolve()
    exporting.check_place(here, target)
    agent = agents.find(here, options.which, options.model)
    manifest = exporting.write(agent, target, options.merge, options.dtype)
    if not manifest.approved:
        warn(f"not approved: {agent.standing}. Its README says so too.")
    if manifest.not_compared:
        warn(f"no recorded opening was compared: {manifest.not_compared}. Its README says so too.")
    print_line(f"{agent.description} ({agent.standing})")
    print_line(f"  {_what(manifest)}")
    if manifest.openings_compared:
        openings = f"{manifest.openings_compared} recorded openings"
        print_line(f"  checked: prompt, tools and template give {openings} token by token; every hash holds")
    if moved := manifest.weights.moved:
        kept = "" if moved.kept is None else f", cosine of learned and exported change {moved.kept:.4f}"
        print_line(f"  the cast to {manifest.weights.dtype} moved a weight by {moved.by_cast:.3g} at most{kept}")
    print_line(f"Exported to {target}: README.md there has the command that starts vLLM with it.")
    return 0


def _what(manifest: Manifest) -> str:
    base, weights = manifest.base, manifest.weights
    if base.kind == "served":
        return f"the prompt alone: the weights of {base.name} lie at its endpoint"
    if weights.path == "adapter":
        where = f"in {base.path}/" if base.path else f"{base.name}, named and not copied"
        return f"adapter of rank {weights.rank}; base model {where}"
    if weights.path == "model":
        return "one whole model in model/" + (f", {weights.dtype}" if weights.dtype else "")
    return f"no weights of its own: base model {base.name}, named and not copied"
