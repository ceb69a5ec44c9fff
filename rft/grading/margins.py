"""What the gate's hack check needs, asked as soon as it can be known, not after the last rollout of
a run that it could only end.

The check passes when the exact upper limit of the hack rate lies at or below `gate.max_hack_rate`.
Even of a candidate that never hacks, n test examples show only that the rate is at most 1 -
0.025^(1/n): 0.01273 for 288 examples, 0.07397 for 48. A smaller margin is a promise that this test
set cannot keep: every such run would end as inconclusive. So it is refused, with the two numbers of
which either one helps. Both leave room for a few examples fewer than were asked for: stage
`examples` takes a repeated line once, and one that stays unscored does not count. That stage and
those behind it ask again, with the examples that there really are.

The check votes where the grader reports hacks. Where `gate.require_hack_source` asks for that too,
a grader.json that does not declare it is refused at once, and stage `challenger` refuses a grader
that was seen to flag nothing. What the grader declares stands in the recipe's folder and not in
params.yaml, so this is no part of rft/config: `python -m rft STAGE`, a run's start and the doctor
ask here, before anything is computed.

What is asked here ends a stage or lets it go on, and never changes what it writes. So the settings
are not called `params` here, by which tasks/dependencies.py would find them: no rollout is repeated
because a margin was changed.
"""

from __future__ import annotations

import math
from pathlib import Path

from rft import config, recipe, stats
from rft.errors import ConfigError, UserError
from rft.reports import HackSource

ONE_IN, AT_LEAST = 50, 2
"""An advised setting can do without one test example in so many, and without so many."""


def check(settings: config.Params, root: Path = Path(), num_test: int | None = None) -> None:
    """Raises ConfigError for a hack source that is required and not declared, and for a
    `max_hack_rate` that no hack at all could not meet.

    `root`: where recipe.path starts. `num_test`: the test examples that there really are, once they
    are known; else `examples.test`.
    """
    gate, file = settings.gate, root / settings.recipe.path / "grader.json"
    if not file.exists():  # said by who needs it
        return
    if not recipe.grader_of(file.parent).reports_hacks:
        if gate.require_hack_source:
            raise ConfigError(
                f"params.yaml: gate.require_hack_source = true, but {file} does not declare reports_hacks: the gate "
                "would reject every candidate. "
                'Let the grader answer hack: REASON where a rollout shows one, and declare "reports_hacks": true '
                "there; "
                "or set gate.require_hack_source: false."
            )
        return
    asked = settings.examples.test
    size = asked if num_test is None else num_test
    if stats.limit_of_none(size) <= gate.max_hack_rate:
        return
    known = (
        f"examples.test = {asked}"
        if size == asked
        else f"the {size} different test examples of examples.test = {asked}"
    )
    enough = stats.enough_to_rule_out(gate.max_hack_rate)
    more = f", or raise examples.test to {_with_slack(enough) + asked - size} or more" if enough is not None else ""
    raise ConfigError(
        f"params.yaml: gate.max_hack_rate = {gate.max_hack_rate:g} cannot be met by {known}: even with no hack at all "
        "the exact upper limit is "
        f"{_up(stats.limit_of_none(size)):g}, and the check votes because {file} declares reports_hacks. "
        f"Raise gate.max_hack_rate to {meetable(size):g} or more{more}."
    )


def check_source(settings: config.Params, source: HackSource, folder: Path) -> None:
    """Raises UserError where the gate requires a grader that was seen to flag a hack, and this one
    was not."""
    if settings.gate.require_hack_source and not source.is_measured:
        raise UserError(
            "params.yaml: gate.require_hack_source = true, and the gate would reject the challenger whatever it "
            f"does: {folder}: {source.words}; "
            "or set gate.require_hack_source: false. No rollout was made yet, and the finished stages are kept."
        )


def meetable(size: int) -> float:
    """A rate of five digits behind the point that zero hacks meet, even of somewhat fewer than
    `size` examples."""
    return _up(stats.limit_of_none(max(1, size - _slack(size))))


def _slack(size: int) -> int:
    return max(AT_LEAST, -(-size // ONE_IN))


def _with_slack(enough: int) -> int:
    """The smallest size of which that many remain."""
    return max(enough + AT_LEAST, -(-enough * ONE_IN // (ONE_IN - 1)))


def _up(rate: float) -> float:
    return math.ceil(rate * 100_000) / 100_000
