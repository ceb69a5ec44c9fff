"""Which margin can the gate's hack check meet at all? Told when a run starts, not after its last rollout.

The check passes when the exact upper limit of the hack rate lies at or below `gate.max_hack_rate`. Even of a candidate that never hacks, n test
examples show only that the rate is at most 1 - 0.025^(1/n): 1.27 % for 288 examples, 7.4 % for 48. A smaller margin is a promise that this test
set cannot keep: every such run would end as inconclusive. So it is refused, with the two numbers of which either one helps.

The check votes where the grader reports hacks, or where `gate.require_hack_source` asks that it must; elsewhere the margin is never compared with
anything. What the grader declares stands in the recipe's folder and not in params.yaml, so this is no part of rft/config: `python -m rft STAGE`,
a run's start and the doctor ask here, before anything is computed.
"""

from __future__ import annotations

import math
from pathlib import Path

from rft import config, recipe, stats
from rft.errors import ConfigError


def check(params: config.Params, root: Path = Path()) -> None:
    """Raises ConfigError for a `max_hack_rate` that zero hacks among `examples.test` examples could not meet. `root`: where recipe.path starts."""
    folder = root / params.recipe.path
    declares = (folder / "grader.json").exists() and recipe.grader_of(folder).reports_hacks  # that it is missing is said by who needs it
    if not (declares or params.gate.require_hack_source):
        return
    margin, size = params.gate.max_hack_rate, params.examples.test
    if stats.limit_of_none(size) <= margin:
        return
    enough = stats.enough_to_rule_out(margin)
    more = f", or raise examples.test to {enough} or more" if enough is not None else ""
    why = f"{folder / 'grader.json'} declares reports_hacks" if declares else "gate.require_hack_source is true"
    raise ConfigError(
        f"params.yaml: gate.max_hack_rate = {margin:g} cannot be met by examples.test = {size}: even with no hack at all the exact upper limit is "
        f"{stats.limit_of_none(size):.2%}, and the check votes because {why}. "
        f"Raise gate.max_hack_rate to {meetable(size):g} or more{more}."
    )


def meetable(size: int) -> float:
    """The smallest rate of four digits behind the point that zero hacks among `size` examples meet."""
    return math.ceil(stats.limit_of_none(size) * 10_000) / 10_000
