"""What a candidate costs: a better reward does not pay for a longer prompt, lost rollouts or calls
that cannot be read."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rft import config, recipe, reports
from rft.errors import ConfigError
from rft.gate import checks
from rft.gate.checks import Case
from rft.grading.endpoint import EndpointGrader
from rft.reports import Arm, Check, Evaluation, Row, wording
from rft.rollouts import evaluate
from rft.rollouts import log as rollout_log
from rft.rollouts.loop import Conditions, Request, run_rollouts
from rft.rollouts.policy import Policy
from rft.sampling.remote import ChatPolicy
from rft.tools.client import ToolClient
from rft.tools.lifetime import running
from rft.tools.signatures import schemas
from rft.types import Example
from tests import sample_reports
from tests.ladder import inside, params, run
from tests.scripted_policy import CALL, Scripted
from tests.scripted_server import says, scripted

pytestmark = pytest.mark.usefixtures("ready_server")

PROMPT = reports.PromptSettings(name="seed", system=" look it up", max_turns=4)
BAD = '<tool_call>\n{"name": "lookup", "arguments": [1]}\n</tool_call>'


def judge(new: Arm, old: Arm, **thresholds: Any) -> dict[str, Check]:
    section = config.parse({**sample_reports.GATE.model_dump(), **thresholds}, "params.yaml", config.Gate)
    case = Case(section, new, old, 0.025, reports.HackSource(declared=True, flagged=[], tried=0))
    return {check.name: check for check in checks.checks(case)}


# -- real rollouts ---------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory, ladder_recipe: Path) -> recipe.Recipe:
    return recipe.load(config.Recipe(path=str(ladder_recipe)))


@pytest.fixture(scope="module")
def endpoint(ours: recipe.Recipe):
    with running(ours, config.Tools()) as endpoint:
        yield endpoint


def arm(ours: recipe.Recipe, endpoint: Any, policy: Policy, examples: int = 6, k: int = 2) -> Arm:
    """What the policy does on a few examples, measured as stage `challenger` does."""
    rows = ours.examples("test", examples, 0)
    log = rollouts(ours, endpoint, rows, policy, k)
    sampled = evaluate.evaluation("sampled", log, rows, 1.0, k, 0)
    greedy = evaluate.evaluation("greedy", [row for row in log if row.sample == 0], rows, 0.0, 1, 0)
    return Arm(name="challenger", prompt_sha256="", weights_sha256="", sampled=sampled, greedy=greedy)


def rollouts(
    ours: recipe.Recipe, endpoint: Any, rows: Sequence[Example], policy: Policy, k: int = 1
) -> list[rollout_log.LogRow]:
    requests = [Request(row, sample) for row in rows for sample in range(k)]

    async def play() -> list[rollout_log.LogRow]:
        async with (
            ToolClient(endpoint, config.Tools(), schemas(ours)) as client,
            EndpointGrader(ours.grader, endpoint, config.Tools()) as grader,
        ):
            conditions = Conditions(PROMPT, 1.0, (0,), config.Rollout())
            played = await run_rollouts(policy, client, grader, requests, conditions, {})
        return [
            rollout_log.row(one, asked.example, asked.sample, PROMPT, "challenger", "champion")
            for one, asked in zip(played, requests, strict=True)
        ]

    return asyncio.run(play())


@pytest.fixture(scope="module")
def long_prompt(
    ladder: Path, ladder_recipe: Path, tmp_path_factory: pytest.TempPathFactory
) -> reports.ChallengerReport:
    """The ladder's embedded policy, with a system prompt ten times as long in both new arms."""
    folder = tmp_path_factory.mktemp("long")
    mine = folder / "recipe"
    shutil.copytree(ladder_recipe, mine)
    prompt = {"name": "seed", "system": " look it up", "max_turns": 3}
    (mine / "prompts.json").write_text(json.dumps({"seed": prompt}))
    shutil.copytree(ladder / "data", folder / "data")
    shutil.rmtree(folder / "data/challenger")
    winner = folder / "data/prompt/prompt.json"
    winner.write_text(json.dumps(json.loads(winner.read_text()) | prompt | {"system": " look it up" * 10}))
    with inside(folder):
        run("challenger", params(mine, rollout={"max_tokens": 256}))
    return reports.read(reports.ChallengerReport, folder / "data/challenger/report.json")


def test_a_ten_times_longer_prompt_fails_the_guard(long_prompt: reports.ChallengerReport):
    """R16: only what was sampled was counted, so it was free."""
    champion, longer, _ = long_prompt.arms
    found = judge(longer, champion)[wording.COST]
    assert found.passed is False
    assert found.low is not None
    assert found.low > 0.25
    read, was = (arm.sampled.metrics["context_tokens/mean"].value for arm in (longer, champion))
    assert f"a rollout reads {read:,.0f} tokens, " in found.detail
    assert f"champion {was:,.0f}, " in found.detail


def test_every_turn_reads_the_prompt_again(long_prompt: reports.ChallengerReport):
    for arm in long_prompt.arms:
        for row in arm.sampled.rows:
            for read, cached, turns in zip(row.context_tokens, row.cached_tokens, row.turns, strict=True):
                assert read is not None
                assert cached is not None
                assert (turns > 1) == (cached > 0), "what the first turn reads was in no cache"
                assert cached < read


def test_prices_weigh_what_is_read_cached_and_sampled(long_prompt: reports.ChallengerReport):
    champion, longer, _ = long_prompt.arms
    nothing = {"context": 1e-9, "cached": 0}
    found = judge(longer, champion, prices={**nothing, "sampled": 5}, max_tokens_increase=9)[wording.COST]
    tokens = [arm.sampled.metrics["tokens/mean"].value for arm in (longer, champion)]
    assert found.value == pytest.approx(tokens[0] / tokens[1] - 1, abs=1e-6)
    assert found.detail.endswith("; priced 1e-09, 0 and 5")
    plain, cheap = (judge(longer, champion, prices={"cached": price})[wording.COST].value for price in (1, 0))
    assert plain != cheap


@pytest.mark.parametrize("prices", [{"context": 0}, {"cached": -1}, {"sampled": -0.1}, {"output": 5}])
def test_a_price_that_cannot_be_is_an_error(prices: dict[str, float]):
    with pytest.raises(ConfigError, match=r"prices"):
        config.parse({"recipe": {}, "gate": {**sample_reports.GATE.model_dump(), "prices": prices}})


def chat(ours: recipe.Recipe, endpoint: Any, usage: Sequence[Any]) -> Arm:
    """An endpoint that answers at once; the n-th reply has the n-th `usage`, the last one all
    others."""
    message = {"role": "assistant", "content": "0000"}
    replies = [{"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": one} for one in usage]

    async def url() -> Arm:
        async with scripted(*map(says, replies)) as server:
            section = {"kind": "chat", "url": server.endpoint.url, "model": "m", "concurrency": 1}
            policy = ChatPolicy(config.PolicyServer.model_validate(section), schemas(ours))
            return await asyncio.to_thread(arm, ours, endpoint, policy)

    return asyncio.run(url())


def test_an_endpoints_usage_is_the_cost(ours: recipe.Recipe, endpoint: Any):
    def usage(prompt: int, cached: int) -> dict[str, Any]:
        details = {"cached_tokens": cached}
        return {"prompt_tokens": prompt, "completion_tokens": 4, "prompt_tokens_details": details}

    short, long = chat(ours, endpoint, [usage(40, 0)]), chat(ours, endpoint, [usage(400, 384)])
    found = judge(long, short)[wording.COST]
    assert (found.passed, found.value) == (False, pytest.approx(404 / 44 - 1))
    assert found.detail == "a rollout reads 400 tokens, 384 of them cached, and samples 4; champion 40, 0 and 4"
    at_prices = judge(long, short, prices={"context": 1, "cached": 0.1, "sampled": 5}, max_tokens_increase=0.5)
    assert at_prices[wording.COST].value == pytest.approx((16 + 38.4 + 20) / 60 - 1)
    assert at_prices[wording.COST].passed


def test_an_endpoint_that_counts_nothing_is_not_measured_and_has_no_vote(ours: recipe.Recipe, endpoint: Any):
    silent = chat(ours, endpoint, [None])
    found = judge(silent, silent)[wording.COST]
    assert (wording.verdict(found), found.decides) == ("not measured", False)
    assert "hold no usage" in found.detail
    assert not [name for name in silent.sampled.metrics if name.startswith(("context", "cached"))]


@pytest.mark.parametrize("silent", [1, 12])
def test_a_candidate_that_does_not_count_everything_is_not_measured_and_not_passed(
    ours: recipe.Recipe, endpoint: Any, silent: int
):
    """The rollouts that are missing could be the expensive ones."""
    counted = {"prompt_tokens": 40, "completion_tokens": 4}
    new, old = (chat(ours, endpoint, usage) for usage in ([*[None] * silent, counted], [counted]))
    found = judge(new, old)[wording.COST]
    assert (wording.verdict(found), found.decides) == ("not measured", True)
    assert found.detail == f"{silent} of 24 scored rollouts did not count the tokens that they read"


def test_a_cost_of_nothing_is_not_on_record(ours: recipe.Recipe, endpoint: Any):
    """And no division by it."""
    counted = chat(ours, endpoint, [{"prompt_tokens": 40, "completion_tokens": 4}])
    rows = [row.model_copy(update={"context_tokens": [0, 0], "tokens": [0, 0]}) for row in counted.sampled.rows]
    free = counted.model_copy(update={"sampled": counted.sampled.model_copy(update={"rows": rows})})
    assert wording.verdict(judge(counted, free)[wording.COST]) == "not measured"


# -- turns, unreadable calls, lost rollouts --------------------------------------------------------
def test_unreadable_calls_are_compared(ours: recipe.Recipe, endpoint: Any):
    """In one rollout of two; the last of them is read, so the reward says nothing of it."""
    answers = CALL % " {key}", "0000"
    good = arm(ours, endpoint, Scripted(answers))
    bad = arm(ours, endpoint, Scripted((), choose=lambda n: (BAD, *answers) if n % 2 else answers))
    found = judge(bad, good)[wording.UNREADABLE]
    assert (found.passed, found.value) == (False, pytest.approx(0.5))
    assert found.detail == "50.0 % of the rollouts wrote one, champion 0.0 %"
    assert judge(good, bad)[wording.UNREADABLE].passed
    assert judge(good, good)[wording.UNREADABLE].passed


def test_a_message_that_cannot_be_read_counts_too(ours: recipe.Recipe, endpoint: Any):
    broken = arm(ours, endpoint, Scripted(("<tool_call>\n{oops",)))
    assert broken.sampled.stop_reasons == {"parse_error": 12}
    assert judge(broken, arm(ours, endpoint, Scripted(("0000",))))[wording.UNREADABLE].value == 1.0


def test_more_turns_at_p95_fail(ours: recipe.Recipe, endpoint: Any):
    short = arm(ours, endpoint, Scripted(("0000",)))
    long = arm(ours, endpoint, Scripted((), choose=lambda n: (CALL % "k0001", "0000") if n % 4 == 0 else ("0000",)))
    found = judge(long, short)[wording.TURNS]
    assert (found.value, found.detail) == (1, "2 turns, champion 1")
    assert not found.passed
    assert judge(long, short, max_turns_p95_increase=1)[wording.TURNS].passed
    assert wording.describe(found).startswith("P95 turns: ")


def lost(one: Arm, num: int) -> Arm:
    """The same with the first sample of some examples unscored."""

    def rows(evaluation: Evaluation) -> list[Row]:
        def change(row: Row) -> dict[str, Any]:
            return {name: [None, *getattr(row, name)[1:]] for name in ("rewards", "scores", "solved")}

        return [row.model_copy(update=change(row)) if n < num else row for n, row in enumerate(evaluation.rows)]

    return one.model_copy(update={"sampled": one.sampled.model_copy(update={"rows": rows(one.sampled)})})


def test_lost_rollouts_are_compared_not_only_bounded(ours: recipe.Recipe, endpoint: Any):
    whole = arm(ours, endpoint, Scripted(("0000",)))
    found = judge(lost(whole, 3), whole, max_unscored_share=0.5)
    assert found["unscored share"].passed
    assert found[wording.UNSCORED].passed is not True
    assert found[wording.UNSCORED].value == pytest.approx(3 / 18)
    assert judge(lost(whole, 3), lost(whole, 3), max_unscored_share=0.5)[wording.UNSCORED].value == 0
    assert judge(whole, lost(whole, 6), max_unscored_share=0.5)[wording.UNSCORED].passed


def test_where_none_is_lost_nothing_is_open(ours: recipe.Recipe, endpoint: Any):
    whole = arm(ours, endpoint, Scripted(("0000",)), examples=2, k=1)
    assert judge(whole, whole, max_unscored_increase=0)[wording.UNSCORED].passed


def test_an_arm_without_any_score_passes_nothing_but_says_why(ours: recipe.Recipe, endpoint: Any):
    whole = arm(ours, endpoint, Scripted(("0000",)), k=1)
    found = judge(lost(whole, 6), whole)
    assert [check.name for check in found.values() if check.passed] == ["greedy score"], "whose rollouts were not lost"
    assert found[wording.TURNS].detail == "no example has a score in both arms"


@pytest.mark.parametrize("key", ["max_turns_p95_increase", "max_unreadable_increase", "max_unscored_increase"])
def test_a_missing_threshold_is_an_error_that_names_it(key: str):
    section = sample_reports.GATE.model_dump()
    del section[key]
    with pytest.raises(ConfigError, match=rf"'gate\.{key}' is missing, and has no default"):
        config.parse({"recipe": {}, "gate": section})


# -- abstentions -----------------------------------------------------------------------------------
def abstaining(arm: Arm, marks: Sequence[bool | None]) -> Arm:
    """The same arm, in which each example's rollouts have these marks."""
    rows = [row.model_copy(update={"abstained": list(marks)}) for row in arm.sampled.rows]
    return arm.model_copy(update={"sampled": arm.sampled.model_copy(update={"rows": rows})})


def test_abstaining_more_where_there_is_an_answer_fails(ours: recipe.Recipe, endpoint: Any):
    whole = arm(ours, endpoint, Scripted(("0000",)))
    never, half, none = (abstaining(whole, marks) for marks in ([False, False], [True, False], [None, None]))
    found = judge(half, never, max_abstention_increase=0.1)[wording.ABSTENTIONS]
    assert (found.passed, found.value) == (False, pytest.approx(0.5))
    assert found.detail == "50.0 % of the rollouts with an answer to give abstained, champion 0.0 %"
    assert judge(never, half, max_abstention_increase=0)[wording.ABSTENTIONS].passed
    assert judge(half, half, max_abstention_increase=0.5)[wording.ABSTENTIONS].passed
    # no example has an answer, or no grade tells: not measured, and so not passed
    for arms in ((none, none), (whole, whole)):
        unknown = judge(*arms, max_abstention_increase=0.1)[wording.ABSTENTIONS]
        assert (wording.verdict(unknown), unknown.is_unsettled) == ("not measured", True)
        assert unknown.detail == "no grade tells whether a rollout abstained"


def test_without_a_margin_abstentions_are_shown_and_decide_nothing(ours: recipe.Recipe, endpoint: Any):
    whole = arm(ours, endpoint, Scripted(("0000",)))
    assert wording.ABSTENTIONS not in judge(whole, whole)
    found = judge(abstaining(whole, [True, True]), abstaining(whole, [False, False]))[wording.ABSTENTIONS]
    assert (found.decides, found.passed, found.value, found.margin) == (False, None, 1.0, None)
    assert found.detail.startswith("gate.max_abstention_increase is not set; 100.0 % of the rollouts")


def test_abstentions_are_counted_from_the_grades(ours: recipe.Recipe, endpoint: Any):
    """As a log holds them: 1, 0, and nothing where the example has no answer."""
    (example,) = ours.examples("test", 1, 0)
    (row, *_) = rollouts(ours, endpoint, [example], Scripted(("0000",)))
    rows = [replace(row, components=json.dumps(parts)) for parts in ({"abstained": 1.0}, {"abstained": 0}, {"a": 1})]
    (table,) = evaluate.rows_of(rows, [example])
    assert table.abstained == [True, False, None]
    assert "abstained" not in evaluate.rows_of([row], [example])[0].model_dump()
    measured = evaluate.evaluation("x", rows, [example], 1.0, 3, 0)
    assert measured.metrics["abstained/share"].value == 0.5
    assert "abstained/share" not in evaluate.evaluation("x", [row], [example], 1.0, 1, 0).metrics
