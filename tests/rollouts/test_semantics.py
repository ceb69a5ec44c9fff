"""What a rollout is: numbered behaviors whose whole record is a golden.

Training data, rewards and every comparison rest on these rules, so after a change of one, new
numbers cannot be compared with old ones: changing the golden needs an explicit decision. It is
`tests/golden/rollout_semantics.json`, and holds each record as the rollout log has it after a trip
through its file. When this test fails, decide whether the change of behavior is meant. If it is:
`RECORD=1`, read the diff line by line, and say in the commit and in CHANGELOG.md which behavior
changed and why. If it is not, fix the code.

     1  An answer without a call completes the rollout. Graded. Prompt masked out, answer not.
     2  All calls of a turn are made. Results follow in the order of the calls, masked out.
     3  A tool's refusal (4xx) is shown to the policy, is not retried, and the rollout goes on.
     4  A tool's failure (5xx) is retried under the same call id. The policy sees only the result.
     5  A tool that fails after its retries leaves the rollout unscored. No result is sampled from.
     6  A call that cannot be read is answered with the error. Good calls beside it are made.
     7  One unreadable call more than allowed ends the rollout: parse_error. Graded.
     8  A message that cannot be read ends the rollout: parse_error. Graded.
     9  A turn with more calls than are left ends the rollout: max_tool_calls. None is sent. Graded.
    10  The last turn's calls are made, then the rollout ends: max_turns. Graded without an answer.
    11  A turn that the token limit cuts ends the rollout: max_tokens. Graded as it stands.
    12  Results that do not fit into the context give way to the news of it, the longest first.
    13  A turn that spends its deadline on its own sampling: timeout. Its tokens are kept. Graded.
    14  A policy that gives no turn leaves the rollout unscored, whatever was said before.
    15  A deadline spent waiting for a tool leaves the rollout unscored. The call is on record.
    16  A straggler is cancelled at its batch's deadline and left unscored.
    17  A grader that fails after its retries leaves the rollout unscored: infra_error.
    18  A verdict that cannot be read leaves the rollout unscored: grader_bad_reply. It is no zero.
    19  A grader's hack verdict has the lowest score, whatever score came with it.
    20  A response_format is stated in the prompt. The grader gets the answer as text, and parsed.
    21  A terminal tool's call ends the rollout once it is taken. Its arguments are the answer.
    22  Reasoning is kept and not masked out, and is no part of the answer.
    23  A repeated call is answered without being sent, where the prompt says so.
    24  A prompt's defaults fill in what a call leaves out. The log keeps what the policy wrote.
    25  A call over the budget costs a share of what was earned.
    26  A failure has earned nothing and loses nothing, whatever it used.
    27  A context that does not continue ours is a fork: counted, graded, kept as sampled from.

The policy is a real tokenizer, template and sampler whose network is a script; tools and grader
are a real server. Tokens are recorded as text with their number, because ids differ between
versions of the tokenizer; log-probabilities as sums of known values, one for each place in a turn,
so that a mask that is one token off shows.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import web

from rft import config, recipe
from rft.chat.renderer import Chat
from rft.grading.endpoint import EndpointGrader
from rft.reports import PromptSettings
from rft.rollouts import log as rollout_log
from rft.rollouts.log import LogRow
from rft.rollouts.loop import Conditions, Request, run_rollouts
from rft.rollouts.policy import Policy, PolicyFailed
from rft.sampling.engine import Engine
from rft.sampling.kv_cache import Feed, Slots
from rft.tools.client import ToolClient
from rft.tools.signatures import schemas
from rft.types import Example, Trajectory
from tests import small_policy, tiny_recipe
from tests.scripted_policy import CALL, ScriptedTurn, scripted
from tests.scripted_server import Scripted
from tests.scripted_server import scripted as serve

TITLES = re.findall(r"^ {4,5}(\d+)  (.+)$", __doc__ or "", re.M)
VALUE = "9153"
EXAMPLE = {
    "id": "n-0001",
    "messages": [{"role": "user", "content": "value of k0001"}],
    "target": VALUE,
    "metadata": {"slice": "odd"},
}
JSON_ANSWER = {
    "type": "json_schema",
    "json_schema": {"name": "value", "schema": {"type": "object", "required": ["value"]}},
}
UNREADABLE = '<tool_call>\n{"name": "lookup", "arguments": [1]}\n</tool_call>'
SLOW_S, HANGS_S = 1.0, 30.0


@dataclass(frozen=True)
class Turn:
    """One assistant turn. `ends`: with the end token. `slow_from`: the token that is slow to
    come."""

    text: str
    ends: bool = True
    slow_from: int | None = None
    fails: str = ""


@dataclass(frozen=True)
class Behavior:
    """What the policy says, and under which settings."""

    turns: Sequence[str | Turn]
    rollout: Mapping[str, Any] = field(default_factory=dict)
    tools: Mapping[str, Any] = field(default_factory=dict)
    prompt: Mapping[str, Any] = field(default_factory=dict)
    row: Mapping[str, Any] = field(default_factory=dict)
    grades: Callable[[Mapping[str, Any]], tuple[int, Any]] | None = None
    """The grader's HTTP status and reply; None: 1.0 for the right answer."""
    policy: Callable[[], Policy] | None = None
    """Another one than the scripted network."""


def lookup(*keys: str) -> str:
    return "\n".join(CALL % key for key in keys)


def forked() -> Policy:
    """A server's policy, which in its second turn samples from something else than we told it."""
    call = ScriptedTurn(lookup("k0001"), ids=(3, 4), logprobs=(-1.0, -2.0), context_ids=(1, 2))
    return scripted(call, ScriptedTurn(VALUE, ids=(9,), logprobs=(-3.0,), context_ids=(1, 2, 3, 7, 5)))


def _exact(sample: Mapping[str, Any]) -> tuple[int, Any]:
    score = float(sample["output_text"].strip() == VALUE)
    return 200, {"score": score, "reason": "exact" if score else "another value"}


BEHAVIORS = [
    Behavior([VALUE]),
    Behavior([lookup("slow-0.1", "k0002"), VALUE]),
    Behavior([lookup("refused"), VALUE]),
    Behavior([lookup("fails-once"), VALUE]),
    Behavior([lookup("k0001", "fails"), VALUE]),
    Behavior([f"{UNREADABLE}\n{lookup('k0001')}", VALUE]),
    Behavior([UNREADABLE, UNREADABLE, VALUE], {"max_unreadable_calls": 1}),
    Behavior(["<tool_call>\n{oops", VALUE]),
    Behavior([lookup("k0001", "k0002"), lookup("k0003"), VALUE], {"max_tool_calls": 2}),
    Behavior([lookup("k0001"), lookup("k0002"), VALUE], {"max_turns": 2}),
    Behavior([Turn(VALUE * 9, ends=False)], {"max_turn_tokens": 6}),
    Behavior([lookup("long"), VALUE]),
    Behavior([Turn(VALUE * 9, slow_from=3)], {"turn_deadline_s": SLOW_S / 2}),
    Behavior([lookup("k0001"), Turn("", fails="the server said 500")]),
    Behavior([lookup("k0001", f"slow-{HANGS_S}"), VALUE], {"deadline_s": SLOW_S}),
    Behavior([lookup(f"slow-{HANGS_S}"), VALUE], {"group_deadline_s": SLOW_S}),
    Behavior([VALUE], grades=lambda sample: (503, {"error": "down"})),
    Behavior([VALUE], grades=lambda sample: (200, {"score": "good"})),
    Behavior([VALUE], grades=lambda sample: (200, {"score": 1.0, "hack": "it read the answer's file"})),
    Behavior(
        [f'{{"value": "{VALUE}"}}'],
        row={"response_format": JSON_ANSWER},
        grades=lambda sample: (
            200,
            {"score": 0.5, "sub_scores": {"parsed": float(sample["output_json"] == {"value": VALUE})}},
        ),
    ),
    Behavior(
        [lookup("refused"), f"I am done.\n{lookup('k0001', 'k0002')}", "never said"],
        tools={"traits": {"lookup": {"terminal": True}}},
    ),
    Behavior([f"<think>\nk0001, so\n</think>\n\n{VALUE}"]),
    Behavior([lookup("k0001"), lookup("k0001"), VALUE], prompt={"block_repeated_calls": True}),
    Behavior([lookup("k0001"), VALUE], prompt={"tool_defaults": {"lookup": {"spaces": 3}}}),
    Behavior([lookup("k0001", "k0002"), lookup("k0003"), VALUE], {"budget": {"tool_calls": 2, "weight": 0.5}}),
    Behavior([lookup("k0001", "k0002"), lookup("k0003"), "0000"], {"budget": {"tool_calls": 2, "weight": 0.5}}),
    Behavior([], policy=forked),
]


class Script:
    """Stands for a network: the script's next token is the likeliest, by a margin for its place."""

    def __init__(self, chat: Chat, turns: Sequence[str | Turn]):
        self._chat, self._size = chat, len(chat.tokenizer)
        self._turns = iter(Turn(one) if isinstance(one, str) else one for one in turns)

    def begun(self) -> Script:
        return self

    def prefill(self, slots: Slots, feeds: Sequence[Feed]) -> torch.Tensor:
        assert len(feeds) == 1
        self._turn, self._place = next(self._turns), 0
        if self._turn.fails:
            raise PolicyFailed(self._turn.fails)
        self._ids = self._chat.encode(self._turn.text) + [self._chat.end_id] * self._turn.ends
        return self._next()

    def step(self, slots: Slots, ids_B: torch.Tensor, positions_B: torch.Tensor, visible: int) -> torch.Tensor:
        assert ids_B.tolist() == [self._ids[self._place]], "the sampler feeds back what it drew"
        self._place += 1
        if self._place == self._turn.slow_from:
            time.sleep(SLOW_S)
        return self._next()

    def _next(self) -> torch.Tensor:
        logits_BV = torch.zeros(1, self._size)
        logits_BV[0, self._ids[self._place]] = 1 + self._place % 10
        return logits_BV


def server(behavior: Behavior) -> Callable[[web.Request, dict[str, Any]], Any]:
    """The tool `lookup`, which does what the key says, and the grader."""
    asked: list[str] = []

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if request.path == "/grade":
            status, value = (behavior.grades or _exact)(body["sample"])
            return web.json_response(value, status=status)
        given = json.loads(body["arguments"])
        key, spaces = given["key"], " " * given.get("spaces", 0)
        asked.append(key)
        if key.startswith("slow-"):
            await asyncio.sleep(float(key.removeprefix("slow-")))
        if key == "refused":
            return web.json_response({"output": f"no such key: {key}"}, status=422)
        if key == "fails" or (key == "fails-once" and asked.count(key) == 1):
            return web.json_response({"error": "out of order"}, status=500)
        if key == "long":
            return web.json_response({"output": VALUE * small_policy.ARCHITECTURE.max_positions})
        return web.json_response({"output": f"{spaces}{VALUE if key == 'k0001' else f'of {key}'}"})

    return answer


def play(ours: recipe.Recipe, parts: tuple[Any, Chat], behavior: Behavior) -> tuple[Trajectory, LogRow, list[str]]:
    """The trajectory, its row in the log, and what the server was asked."""
    example = Example(**{**EXAMPLE, **behavior.row})
    prompt = PromptSettings(name="seed", system=" look it up", max_turns=None, **behavior.prompt)
    limits = config.Rollout.model_validate({"max_tokens": small_policy.ARCHITECTURE.max_positions, **behavior.rollout})
    tools = config.Tools.model_validate({"retries": 1, **behavior.tools})

    async def all_of_it() -> tuple[Trajectory, Scripted]:
        engine = Engine(*parts, small_policy.device(), deterministic=True)
        engine.forward = Script(parts[1], behavior.turns)
        policy: Policy = engine if behavior.policy is None else behavior.policy()
        conditions = Conditions(prompt, 0.0, (0,), limits, "golden")
        async with (
            serve(server(behavior)) as there,
            ToolClient(there.endpoint, tools, schemas(ours)) as client,
            EndpointGrader(ours.grader, there.endpoint, tools) as grader,
        ):
            (done,) = await run_rollouts(policy, client, grader, [Request(example, 0)], conditions, {})
        return done, there

    done, there = asyncio.run(all_of_it())
    row = rollout_log.row(done, example, 0, prompt, "baseline", "champion", split="validation", temperature=0.0)
    return done, row, asked(there)


def asked(there: Scripted) -> list[str]:
    """The calls in order of their ids, because a turn's are sent side by side; then the grade."""
    found: list[tuple[str, str]] = []
    for path, body in zip(there.paths, there.bodies, strict=True):
        if path == "/grade":
            sample = body["sample"]
            seen = f"{sample['stop_reason']}, {sample['num_tool_calls']} calls"
            found.append(("grade", f"grade {seen}: {sample['output_text']}"))
        else:
            found.append((body["call_id"], f"{body['call_id']} {body['name']} {body['arguments']}"))
    return [text for _, text in sorted(found, key=lambda one: one[0])]


def readable(done: Trajectory, row: LogRow, requests: Sequence[str], chat: Chat) -> dict[str, Any]:
    """The row and what only the trajectory knows, without wall times."""
    columns = rollout_log.cells(row)
    own_logprobs, tokens = iter(columns.pop("logprobs")), []
    for own, run in groupby(zip(columns.pop("loss_mask"), columns.pop("ids"), strict=True), key=lambda pair: pair[0]):
        ids = [token for _, token in run]
        text = chat.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        logprobs = {"logprobs": round(sum(next(own_logprobs) for _ in ids), 3)} if own else {}
        tokens.append({"sampled" if own else "given": text, "tokens": len(ids), **logprobs})
    assert not list(own_logprobs), "one log-probability per sampled token"
    return columns | {
        "item": json.loads(row.item),
        "components": json.loads(row.components),
        "explanation": re.sub(r"took [0-9.]+ s", "took ... s", row.explanation),
        "messages": json.loads(row.messages),
        "tokens": tokens,
        "results": [{"failed": one.failed, "retries": one.retries} for turn in done.turns for one in turn.results],
        "requests": requests,
    }


def written(records: Mapping[str, dict[str, Any]]) -> str:
    """JSON with a line per fact: the first behavior whole, of the others what is different."""
    first = next(iter(records.values()))
    opening = first["tokens"][0]["given"]
    behaviors: list[str] = []
    for title, record in records.items():
        facts = []
        for name, value in record.items():
            if record is first or value != first[name]:
                text = json.dumps(value, ensure_ascii=False)
                if isinstance(value, list) and value:
                    text = "[\n   " + ",\n   ".join(json.dumps(one, ensure_ascii=False) for one in value) + "\n  ]"
                if record is not first:
                    text = text.replace(json.dumps(opening), '"as above"')
                facts.append(f"  {json.dumps(name)}: {text}")
        behaviors.append(f" {json.dumps(title)}: {{\n" + ",\n".join(facts) + "\n }")
    text = "{\n" + ",\n".join(behaviors) + "\n}\n"
    assert json.loads(text).keys() == records.keys()
    return text


@pytest.mark.slow
def test_rollouts_mean_what_they_meant(golden: Callable[[str, str], None], tmp_path: Path):
    ours = recipe.load(config.Recipe(path=str(tiny_recipe.make(tmp_path))))
    parts = small_policy.build(ours.folder, structured=False)
    played = [play(ours, parts, behavior) for behavior in BEHAVIORS]
    rollout_log.write((row for _, row, _ in played), tmp_path / "rollouts.parquet")
    rows = rollout_log.read(tmp_path / "rollouts.parquet")
    records = {
        f"{number} {says}": readable(done, row, requests, parts[1])
        for (number, says), (done, _, requests), row in zip(TITLES, played, rows, strict=True)
    }
    golden("rollout_semantics.json", written(records))


def test_the_behaviors_are_numbered_one_by_one():
    assert [int(number) for number, _ in TITLES] == list(range(1, len(BEHAVIORS) + 1))
