"""From a finished rollout to a grade: a score, or the reason why there is none.

A missing score is not a zero. A zero is a statement about the policy, and training on it would
blame the policy for an outage. So a grade is `Scored` or `Unscored` (rft/types.py), and the status
of an unscored grade says why:

    grader_bad_reply    the reply is not a verdict
    grader_timeout      the reply did not come in time
    infra_error         there was no reply after the retries

The loop, the stages and the replay know a grader only by the protocol `Grader`. `grader_of` makes
the grader that grader.json asks for. A new kind needs a module like rft/grading/endpoint.py, and a
line in `grader_of`.
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
    "Fix the grader: an answer in a wrong form gets its lowest score, because the policy wrote it. Rollouts without a "
    "score are sampled again, and too many of them stop the stage."
)


def grader_of(
    settings: graders.Grader, server: ToolEndpoint, section: config.Tools
) -> AbstractAsyncContextManager[Grader]:
    """Make the grader that grader.json asks for; enter it to grade. `server`: the tools' server,
    which may also serve the grader. Raises ConfigError for an unusable address or header, and for a
    judge without an address; UserError for what is not installed."""
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
    """Check, before a run computes anything, that its grader can be made. Raises the error that
    making it would raise: a judge without an address, a package that is not installed, no sandbox.
    `root`: the folder to which recipe.path is relative."""
    folder = root / params.recipe.path
    if not (folder / "grader.json").exists():  # the code that needs the file reports this
        return
    settings = recipe.grader_of(folder)
    grader_of(settings, ToolEndpoint("http://127.0.0.1:1"), params.tools)
    if settings.needs_sandbox:
        asyncio.run(python_grader.check(params.tools))


def usage_of(grader: Grader) -> dict[str, TokenUsage]:
    """Return the tokens that a grader's judges have used, by model; empty for a grader without
    judges."""
    match grader:
        case Abstaining():
            return usage_of(grader.inner)
        case ModelGrader() | MultiGrader():
            return grader.usage
        case _:
            return {}


@dataclass(frozen=True, slots=True)
class Ungraded:
    """Stands in for a grader when nobody judges the rollout."""

    scale: Scale

    async def grade(
        self, example: Example, turns: Sequence[Turn], stop_reason: StopReason, context: RolloutContext
    ) -> Grade:
        return Unscored(GradeStatus.infra_error, "nobody judged it")
