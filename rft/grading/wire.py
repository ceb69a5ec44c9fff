"""A grade in the form of the published contract: the reply of `graders/run`.

In this contract a failed grade is HTTP 200 with reward 0 and a flag. Every error key is sent,
because the stock client shows None for a missing one. This zero is only for the wire: inside, such
a grade has no score, and nothing is trained on it.

Flags have the contract's own names (`Scored.flags`, `Unscored.flags`). A grade without a score and
without flags sets `other_error`. Two keys are our own, for a grader behind an address.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rft.config.graders import Endpoint, Grader, ModelGrader, Multi
from rft.grading.judge import TokenUsage
from rft.types import Grade

OTHER, ENDPOINT = "other_error", "endpoint_grader_error"
DETAILS = {
    "python_grader_server_error": "python_grader_server_error_type",
    "python_grader_runtime_error": "python_grader_runtime_error_details",
    "model_grader_server_error": "model_grader_server_error_details",
    ENDPOINT: "endpoint_grader_error_details",
}
"""Flag -> the key that holds its explanation."""
FLAGS = (
    "formula_parse_error", "sample_parse_error", "truncated_observation_error", "unresponsive_reward_error",
    "invalid_variable_error", OTHER, "python_grader_server_error", "python_grader_runtime_error",
    "model_grader_server_error", "model_grader_refusal_error", "model_grader_parse_error", ENDPOINT,
)  # fmt: skip
"""All flags that a grade may set."""


def response(
    grade: Grade, settings: Grader, execution_time_s: float, usage: Mapping[str, TokenUsage] | None = None
) -> dict[str, Any]:
    """Make the reply. `usage`: the tokens of this grade, by model."""
    spent = {model: _counted(tokens) for model, tokens in (usage or {}).items() if tokens.calls}
    scored = grade.score is not None
    return {
        "reward": grade.score if scored else settings.invalid_grade if isinstance(settings, Multi) else 0.0,
        "metadata": {
            "name": settings.name,
            "type": settings.type,
            "execution_time": execution_time_s,
            "scores": dict(grade.components),
            "token_usage": sum(tokens["total_tokens"] for tokens in spent.values()) if spent else None,
            "sampled_model_name": settings.model if isinstance(settings, ModelGrader) else None,
            "errors": errors(grade, settings),
        },
        "sub_rewards": dict(grade.components),
        "model_grader_token_usage_per_model": spent,
    }


def errors(grade: Grade, settings: Grader) -> dict[str, Any]:
    """Return every error key: each flag as true or false, and the explanation where a flag has
    one."""
    flags = set(grade.flags)
    if unknown := flags - set(FLAGS):
        raise ValueError(f"{', '.join(sorted(unknown))}: no error key of the contract")
    if grade.score is None and isinstance(settings, Endpoint):
        flags |= {ENDPOINT, OTHER}
    if grade.score is None and not flags:
        flags.add(OTHER)
    found: dict[str, Any] = {}
    for flag in FLAGS:
        found[flag] = flag in flags
        if flag in DETAILS:
            found[DETAILS[flag]] = grade.explanation if flag in flags else None
    return found


def _counted(tokens: TokenUsage) -> dict[str, int]:
    return {
        "prompt_tokens": tokens.prompt,
        "total_tokens": tokens.prompt + tokens.completion,
        "completion_tokens": tokens.completion,
        "cached_tokens": tokens.cached,
    }
