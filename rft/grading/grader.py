"""From a finished rollout to a grade: a score, or the reason why there is none.

A missing score is not a zero: zero is a statement about the policy, and training on it teaches that
an outage is the policy's fault. So a grade is `Scored` or `Unscored` (rft/types.py), and its status
says why: a reply that is not a verdict is `grader_bad_reply`, one that does not come in time is
`grader_timeout`, and no reply after the retries is `infra_error`.

`Grader` is all that the loop, the stages and the replay know of a grader. `grader_of` makes the one
that grader.json asks for: a new kind is a module like rft/grading/endpoint.py and a line there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rft import config, recipe
from rft.config import graders
from rft.grading import python_grader
from rft.grading.abstaining import Abstaining
from rft.grading.endpoint import EndpointGrader
from rft.grading.judge import TokenUsage
from rft.grading.model_graders import ModelGrader
from rft.grading.multi import MultiGrader
from rft.grading.protocol import Grader
from rft.grading.python_grader import PythonGrader
from rft.grading.string_check import StringChecker
from rft.grading.text_similarity import TextComparer
from rft.scale import Scale
from rft.types import Example, Grade, GradeStatus, RolloutContext, StopReason, Turn, Unscored
from rft.wire.client import ToolEndpoint

FORM_REMEDY = (
    "Fix the grader: an answer in a wrong form gets its lowest score, because the policy wrote it. What has no score "
    "is sampled again, and too much of it stops the stage."
)


def grader_of(
    settings: graders.Grader, server: ToolEndpoint, section: config.Tools
) -> AbstractAsyncContextManager[Grader]:
    """Make the grader that grader.json asks for; enter it to grade. `server`: the tools' server,
    where it may live. Raises ConfigError for what cannot be used: an address, a header, a judge
    without one; and UserError for what is not installed."""
    inner = _judging(settings, server, section)
    return inner if settings.abstention is None else Abstaining(settings, inner)


def _judging(
    settings: graders.Grader, server: ToolEndpoint, section: config.Tools
) -> AbstractAsyncContextManager[Grader]:
    match settings:
        case graders.StringCheck():
            return nullcontext(StringChecker(settings))
        case graders.TextSimilarity():
            return nullcontext(TextComparer(settings))
        case graders.ScoreModel() | graders.LabelModel():
            return ModelGrader(settings, section)
        case graders.Multi():
            return MultiGrader(
                settings, {key: grader_of(part, server, section) for key, part in settings.graders.items()}
            )
        case graders.Endpoint():
            return EndpointGrader(settings, server, section)
        case graders.Python():
            return PythonGrader(settings, section)
        case _:
            raise AssertionError(f"no grader is made of {type(settings).__name__}")


def check(params: config.Params, root: Path = Path()) -> None:
    """Raise, before a run computes anything, what making its grader would raise: a judge without an
    address, a package that is not installed, no sandbox. `root`: where recipe.path starts."""
    folder = root / params.recipe.path
    if not (folder / "grader.json").exists():  # whoever needs it reports that
        return
    settings = recipe.grader_of(folder)
    grader_of(settings, ToolEndpoint("http://127.0.0.1:1"), params.tools)
    if settings.needs_sandbox:
        asyncio.run(python_grader.check(params.tools))


def usage_of(grader: Grader) -> dict[str, TokenUsage]:
    """Return what its judges have cost, by model; empty for a grader that asks none."""
    match grader:
        case Abstaining():
            return usage_of(grader.inner)
        case ModelGrader() | MultiGrader():
            return grader.usage
        case _:
            return {}


@dataclass(frozen=True, slots=True)
class Ungraded:
    """Stands in for a grader where nobody judges the rollout."""

    scale: Scale

    async def grade(
        self, example: Example, turns: Sequence[Turn], stop_reason: StopReason, context: RolloutContext
    ) -> Grade:
        return Unscored(GradeStatus.infra_error, "nobody judged it")
