"""The loop, with scripted policies against a real tool server: every way to end, and what each is worth."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from rft import config, recipe
from rft.graders import EndpointGrader
from rft.reports import PromptSettings
from rft.rollout import Conditions, Request, messages_of, opening, run_rollouts
from rft.server import running
from rft.tools import ToolClient, schemas
from rft.types import Example, StopReason, Trajectory
from tests import tiny_recipe

CALL = '<tool_call>\n{"name": "lookup", "arguments": {"key": "%s"}}\n</tool_call>'
PROMPT = PromptSettings(name="seed", system=" look it up", max_turns=4)


@dataclass(frozen=True)
class Said:
    text: str
    ended: bool = True
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


class Scripted:
    """Says the given turns to every example; `{key}` is the key that was asked for."""

    def __init__(self, *turns: str | Said, room: int = 100):
        self.turns, self.room, self.heard = turns, room, []

    def open(self, prompts: Sequence, seeds: Sequence, temperature: float, max_tokens: int) -> Scripted:
        self.pending: list[list[int]] = [[] for _ in prompts]
        self._keys = [messages[-1]["content"].split()[-1].rstrip("?") for messages in prompts]
        self._turn = 0
        return self

    def sample(self, rows: list[int], max_new: int) -> list[Said]:
        said = self.turns[min(self._turn, len(self.turns) - 1)]
        self._turn += 1
        one = said if isinstance(said, Said) else Said(said)
        return [Said(one.text.replace("{key}", self._keys[row]), one.ended) for row in rows]

    def append(self, row: int, outputs: list[str]) -> tuple[int, ...] | None:
        self.heard.append(outputs)
        return () if len(self.heard) <= self.room else None


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> recipe.Recipe:
    return recipe.load(config.Recipe(path=str(tiny_recipe.make(tmp_path_factory.mktemp("recipe")))))


@pytest.fixture(scope="module")
def endpoint(ours: recipe.Recipe):
    with running(ours, config.Tools()) as endpoint:
        yield endpoint


def play(ours, endpoint, policy: Scripted, prompt: PromptSettings = PROMPT, examples: Sequence[Example] | None = None, **limits) -> list[Trajectory]:
    rows = examples or ours.examples("train", 2, 0)

    async def all_of_it() -> list[Trajectory]:
        conditions = Conditions(prompt, 1.0, (0,), config.Rollout(**limits))
        async with ToolClient(endpoint, config.Tools(), schemas(ours)) as client, EndpointGrader(ours.grader, endpoint, config.Tools()) as grader:
            return await run_rollouts(policy, client, grader, [Request(row, 0) for row in rows], conditions, {})

    return asyncio.run(all_of_it())


def test_looks_up_answers_and_is_graded(ours, endpoint):
    one = ours.examples("train", 1, 0)
    (done,) = play(ours, endpoint, Scripted(CALL % " {key}", one[0].target), examples=one)
    assert (done.stop_reason, done.reward, done.grade.solved) == (StopReason.completed, 1.0, True)
    assert done.turns[0].results[0].output == one[0].target
    roles = [message["role"] for message in messages_of(done, one[0], PROMPT)]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    ("policy", "limits", "reason"),
    [
        (Scripted(Said("cut", ended=False)), {}, StopReason.max_tokens),
        (Scripted("<tool_call>\n{oops"), {}, StopReason.parse_error),
        (Scripted("0000"), {}, StopReason.completed),
        (Scripted(f"{CALL % ' k0001'}\n{CALL % ' k0002'}"), {"max_tool_calls": 1}, StopReason.max_tool_calls),
        (Scripted(CALL % " k0001"), {}, StopReason.max_turns),
        (Scripted(CALL % " k0001"), {"max_turns": 2}, StopReason.max_turns),
        (Scripted(CALL % " k0001", room=0), {}, StopReason.max_tokens),
    ],
)
def test_what_the_policy_caused_is_graded(ours, endpoint, policy, limits, reason):
    for done in play(ours, endpoint, policy, **limits):
        assert done.stop_reason == reason
        assert done.reward == 0.0


def test_a_dead_tool_is_never_a_zero(ours):
    from dataclasses import replace

    with running(ours, config.Tools()) as endpoint:
        broken = replace(endpoint, url=endpoint.url + "/nowhere")
        done = play(ours, endpoint, Scripted(CALL % " k0001", "0000"))
        assert all(one.reward is not None for one in done)

        async def with_broken_tools() -> list[Trajectory]:
            tools = config.Tools(server_url="http://127.0.0.1:9", version="1", retries=0, timeout_s=2)
            dead = replace(broken, url="http://127.0.0.1:9", raise_if_dead=lambda: None)
            conditions = Conditions(PROMPT, 1.0, (0,), config.Rollout())
            async with ToolClient(dead, tools, schemas(ours)) as client, EndpointGrader(ours.grader, endpoint, tools) as grader:
                rows = [Request(row, 0) for row in ours.examples("train", 2, 0)]
                return await run_rollouts(Scripted(CALL % " k0001", "0000"), client, grader, rows, conditions, {})

        for one in asyncio.run(with_broken_tools()):
            assert (one.stop_reason, one.reward, one.grade.score) == (StopReason.tool_error, None, None)


def test_a_repeated_call_can_be_answered_without_being_sent(ours, endpoint):
    policy = Scripted(CALL % " k0001", CALL % " k0001", "0000")
    done = play(ours, endpoint, policy, PROMPT.model_copy(update={"block_repeated_calls": True}))
    assert not done[0].turns[0].results[0].is_error
    assert done[0].turns[1].results[0].is_error
    assert "made before" in done[0].turns[1].results[0].output


def test_the_prompt_replaces_the_rows_own_system_message():
    example = Example("n", ({"role": "system", "content": "old"}, {"role": "user", "content": "q"}), "t")
    assert opening(example, PROMPT)[0]["content"] == " look it up"
    assert opening(example, PROMPT.model_copy(update={"system": ""}))[0]["content"] == "old"


def test_trace_ids_are_a_function_of_the_seed(ours, endpoint):
    first, again = (play(ours, endpoint, Scripted("0000")) for _ in range(2))
    assert [one.trace_id for one in first] == [one.trace_id for one in again]
    assert len({one.trace_id for one in first}) == len(first)


def test_defaults_of_the_prompt_reach_the_tool(ours, endpoint):
    prompt = PROMPT.model_copy(update={"tool_defaults": {"lookup": {"spaces": 3}}})
    assert play(ours, endpoint, Scripted(CALL % " k0001", "0000"), prompt)[0].turns[0].results[0].output.startswith("   ")
