"""A grade in the contract's words: every error key, and reward 0 for what has no score."""

from __future__ import annotations

from typing import Any

import pytest

from bench.grader_cases import ENDPOINT, multi, score_model, string_check
from rft.config import graders
from rft.grading.judge import TokenUsage
from rft.grading.wire import response
from rft.types import Grade, GradeStatus, Scored, Unscored

CONTRACT = {
    "formula_parse_error": False,
    "sample_parse_error": False,
    "truncated_observation_error": False,
    "unresponsive_reward_error": False,
    "invalid_variable_error": False,
    "other_error": False,
    "python_grader_server_error": False,
    "python_grader_server_error_type": None,
    "python_grader_runtime_error": False,
    "python_grader_runtime_error_details": None,
    "model_grader_server_error": False,
    "model_grader_refusal_error": False,
    "model_grader_parse_error": False,
    "model_grader_server_error_details": None,
}
OURS = {"endpoint_grader_error": False, "endpoint_grader_error_details": None}


def answered(grade: Grade, raw: dict[str, Any], **more: Any) -> dict[str, Any]:
    return response(grade, graders.read(raw, "grader.json"), 0.12, **more)


def test_a_score():
    usage = {"m": TokenUsage(190, 134, 0, 1), "idle": TokenUsage()}
    tokens = {"prompt_tokens": 190, "total_tokens": 324, "completion_tokens": 134, "cached_tokens": 0}
    assert answered(Scored(0.8, components={"exact": 1.0}), score_model(), usage=usage) == {
        "reward": 0.8,
        "metadata": {
            "name": "judge",
            "type": "score_model",
            "execution_time": 0.12,
            "scores": {"exact": 1.0},
            "token_usage": 324,
            "sampled_model_name": "m",
            "errors": CONTRACT | OURS,
        },
        "sub_rewards": {"exact": 1.0},
        "model_grader_token_usage_per_model": {"m": tokens},
    }


@pytest.mark.parametrize(
    ("grade", "raw", "reward", "set_keys"),
    [
        (Unscored(GradeStatus.grader_timeout, "late"), string_check("eq"), 0.0, {"other_error": True}),
        (
            Unscored(GradeStatus.infra_error, "down", ("model_grader_server_error",)),
            score_model(),
            0.0,
            {"model_grader_server_error": True, "model_grader_server_error_details": "down"},
        ),
        (
            Unscored(GradeStatus.grader_bad_reply, "1/0", ("formula_parse_error",)),
            multi("exact", invalid_grade=-1),
            -1.0,
            {"formula_parse_error": True},
        ),
        (
            Unscored(GradeStatus.infra_error, "HTTP 500"),
            ENDPOINT,
            0.0,
            {"endpoint_grader_error": True, "endpoint_grader_error_details": "HTTP 500", "other_error": True},
        ),
        (
            Scored(0.0, GradeStatus.unjudgeable_answer, flags=("sample_parse_error", "invalid_variable_error")),
            string_check("eq"),
            0.0,
            {"sample_parse_error": True, "invalid_variable_error": True},
        ),
    ],
)
def test_a_failure_is_a_flag(grade: Grade, raw: dict[str, Any], reward: float, set_keys: dict[str, Any]):
    found = answered(grade, raw)
    assert found["reward"] == reward
    assert found["metadata"]["errors"] == CONTRACT | OURS | set_keys


def test_the_stock_client_reads_it():
    from openai.types.fine_tuning.alpha import GraderRunResponse

    grade = Unscored(GradeStatus.infra_error, "down", ("model_grader_server_error",))
    read = GraderRunResponse.model_validate(answered(grade, score_model()))
    assert read.reward == 0
    assert read.metadata.errors.api_model_grader_server_error_details == "down"


def test_a_flag_that_the_contract_does_not_have():
    with pytest.raises(ValueError, match="my_error: no error key"):
        answered(Scored(0.0, flags=("my_error",)), string_check("eq"))
