"""Check before a run, not after its last rollout, that the gate's hack check can pass at all.

The hack check passes if the exact upper limit of the hack rate is at most `gate.max_hack_rate`.
Even for a candidate that never hacks, n test examples show only that the rate is at most 1 -
0.025^(1/n): 0.01273 for 288 examples, 0.07397 for 48. With a smaller `max_hack_rate` every run
would end as inconclusive. So it is refused, and the message names a rate and a number of examples,
each of which would be enough. Both leave room for a few missing examples, because stage `examples`
keeps a repeated line once and an unscored example does not count. That stage and the later ones
check again, with the real number of examples.

The hack check votes if the grader reports hacks. With `gate.require_hack_source`, a grader.json
that does not declare `reports_hacks` is refused at once, and stage `challenger` refuses a grader
that flagged nothing. This declaration is in the recipe's folder and not in params.yaml, so these
checks are not in rft/config. `python -m rft STAGE`, a run's start and the doctor call them before
anything is computed. They also check abstentions, which grader.json declares and
gate.max_abstention_increase guards.

These checks stop a stage or let it go on. They never change what it writes, so a changed margin
must not repeat a rollout. That is why the settings are not called `params` here:
tasks/dependencies.py finds settings by that name.
"""

from __future__ import annotations

import math
from pathlib import Path

from rft import config, recipe, stats
from rft.config.graders import Endpoint, Grader, Multi
from rft.errors import ConfigError, UserError
from rft.reports import HackSource
from rft.types import ABSTAINED

ONE_IN, AT_LEAST = 50, 2
"""An advised number still holds if 1 in 50 test examples is missing, or 2 if that is more."""


def check(settings: config.Params, root: Path = Path(), num_test: int | None = None) -> None:
    """Raises ConfigError for a hack source that is required and not declared, and for a
    `max_hack_rate` that even a candidate without hacks could not meet.

    `root`: the folder to which recipe.path is relative. `num_test`: the real number of test
    examples, once it is known. None: the number that the settings ask for.
    """
    gate, file = settings.gate, root / settings.recipe.path / "grader.json"
    if not file.exists():  # the code that needs the file reports this
        return
    grader = recipe.grader_of(file.parent)
    _check_abstentions(settings, grader, file)
    if not grader.reports_hacks:
        if gate.require_hack_source:
            raise ConfigError(
                f"params.yaml: gate.require_hack_source = true, but {file} does not declare reports_hacks: the gate "
                "would reject every candidate. Let the grader answer hack: REASON where a rollout shows one, and "
                'declare "reports_hacks": true there; or set gate.require_hack_source: false.'
            )
        return
    asked, blocks = settings.examples.num_test, settings.examples.blocks
    size = asked if num_test is None else num_test
    if stats.limit_of_none(size) <= gate.max_hack_rate:
        return
    known = f"examples.test = {settings.examples.test}" + (f" in {blocks} blocks" if blocks > 1 else "")
    if size != asked:
        known = f"the {size} different test examples of {known}"
    enough = stats.enough_to_rule_out(gate.max_hack_rate)
    wanted = None if enough is None else -(-(_with_slack(enough) + asked - size) // blocks)
    more = f", or raise examples.test to {wanted} or more" if wanted is not None else ""
    raise ConfigError(
        f"params.yaml: gate.max_hack_rate = {gate.max_hack_rate:g} cannot be met by {known}: even with no hack at all "
        f"the exact upper limit is {_up(stats.limit_of_none(size)):g}, and the check votes because {file} declares "
        f"reports_hacks. Raise gate.max_hack_rate to {meetable(size):g} or more{more}."
    )


def _check_abstentions(settings: config.Params, grader: Grader, file: Path) -> None:
    """Raises ConfigError for abstentions without a margin, and for a margin without abstentions."""
    margin = settings.gate.max_abstention_increase
    if grader.abstention is not None and margin is None:
        raise ConfigError(
            f"params.yaml: gate.max_abstention_increase is missing, and {file} declares abstention: a candidate could "
            "learn to answer nothing. Set by how much the share of abstentions may grow where there is an answer, "
            "such as 0.05."
        )
    if margin is not None and grader.abstention is None and not _may_tell(grader):
        raise ConfigError(
            f"params.yaml: gate.max_abstention_increase = {margin:g} cannot be honored: {file} declares no abstention. "
            "Declare there what an abstention is, or remove the margin."
        )


def _may_tell(grader: Grader) -> bool:
    """Tell whether the grade's components may hold `abstained`: in a reply from an address, or as
    the name of a part."""
    return isinstance(grader, Endpoint) or (isinstance(grader, Multi) and ABSTAINED in grader.graders)


def check_source(settings: config.Params, source: HackSource, folder: Path) -> None:
    """Raises UserError if the gate requires a grader that has flagged a hack, and this one has
    not."""
    if settings.gate.require_hack_source and not source.is_measured:
        raise UserError(
            "params.yaml: gate.require_hack_source = true, and the gate would reject the challenger whatever it "
            f"does: {folder}: {source.description}; or set gate.require_hack_source: false. "
            "No rollout was made yet, and the "
            "finished stages are kept."
        )


def meetable(size: int) -> float:
    """Return a rate, with five decimals, that a candidate without hacks meets, even if a few of
    `size` examples are missing."""
    return _up(stats.limit_of_none(max(1, size - _slack(size))))


def _slack(size: int) -> int:
    return max(AT_LEAST, -(-size // ONE_IN))


def _with_slack(enough: int) -> int:
    """Return the smallest size that leaves `enough` examples if a few are missing."""
    return max(enough + AT_LEAST, -(-enough * ONE_IN // (ONE_IN - 1)))


def _up(rate: float) -> float:
    return math.ceil(rate * 100_000) / 100_000
