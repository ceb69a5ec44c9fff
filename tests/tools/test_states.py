"""State per rollout on the recipe's own server: who sets it up, who may use it, when it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from rft import config, recipe
from rft.errors import ConfigError, UserError
from rft.grading.endpoint import EndpointGrader
from rft.reports import PromptSettings
from rft.rollouts.loop import Conditions, Request, run_rollouts
from rft.tools import server as toolserver
from rft.tools.client import ToolClient
from rft.tools.lifetime import running
from rft.tools.signatures import schemas
from rft.types import RolloutContext, ToolCall
from tests import tiny_recipe
from tests.scripted_policy import scripted

BOXES = '''
from __future__ import annotations
import asyncio, time
from pathlib import Path
from rft.recipe import Rollout

def value(key):
    return key[1:]

DIARY = Path(__file__).with_name("diary")

def wrote(word, rollout):
    with DIARY.open("a") as diary:
        diary.write(f"{word} {rollout.trace_id}\\n")

def setup(rollout: Rollout):
    wrote("setup", rollout)
    rollout.state = [rollout.item["target"]]
SETUP

def teardown(rollout: Rollout):
    assert rollout.state, "it is there until the end"
    wrote("teardown", rollout)
TEARDOWN

def put(text: str, rollout: Rollout) -> str:
    """Put a text into the box."""
    rollout.state.append(text)
    return f"{len(rollout.state)} texts"

async def slow(seconds: float, rollout: Rollout) -> str:
    """Use the box for a while."""
    await asyncio.sleep(seconds)
    return str(len(rollout.state))

async def late(text: str, seconds: float, call_id: str, rollout: Rollout) -> str:
    """Put a text into the box after a while, once per call."""
    await asyncio.sleep(seconds)
    if call_id not in rollout.state:
        rollout.state += [call_id, text]
    return str(rollout.state[1:])

def ping() -> str:
    """Needs no box."""
    return "pong"

def grade(sample, item, rollout):
    return {"score": float(rollout.state[1:] == [item["target"]]), "reason": f"{rollout.state}"}

TOOLS = [put, slow, late, ping]
'''
ITEM = {"id": "n-1", "messages": [{"role": "user", "content": "?"}], "target": "0042"}
CALL = '<tool_call>\n{"name": "put", "arguments": {"text": "%s"}}\n</tool_call>'
Post = Callable[..., Awaitable[tuple[int, dict[str, Any]]]]


def made(folder: Path, setup: str = "", teardown: str = "") -> recipe.Recipe:
    """The tiny recipe with a box for each rollout, and more lines in both functions."""
    path = tiny_recipe.make(folder)
    own = BOXES.lstrip().replace("SETUP", setup).replace("TEARDOWN", teardown)
    (path / "tools.py").write_text(own)
    return recipe.load(config.Recipe(path=str(path)))


def diary(loaded: recipe.Recipe) -> list[str]:
    path = loaded.folder / "diary"
    return path.read_text().splitlines() if path.exists() else []


def served(loaded: recipe.Recipe, act: Callable[[Post], Awaitable[None]], **limits: float) -> None:
    """Let `act` post to the recipe's server."""

    async def run() -> None:
        app = toolserver.app(loaded, config.RolloutState(**limits))
        async with TestClient(TestServer(app)) as client:

            async def post(path: str, trace_id: str = "trace_1", **more: Any) -> tuple[int, dict[str, Any]]:
                body = {"call_id": "c", "trace_id": trace_id, "item": ITEM} | more
                reply = await client.post(path, data=json.dumps(body))
                return reply.status, await reply.json()

            await act(post)

    asyncio.run(run())


def text(word: str) -> dict[str, str]:
    return {"arguments": json.dumps({"text": word})}


# -- one server ------------------------------------------------------------------------------------
def test_the_first_call_sets_up_and_every_rollout_has_its_own(tmp_path: Path):
    loaded = made(tmp_path)

    async def act(post: Post) -> None:
        calls = [post("/tools/put", f"trace_{number % 2}", **text("a")) for number in range(6)]
        outputs = sorted(reply["output"] for _, reply in await asyncio.gather(*calls))
        assert outputs == ["2 texts", "2 texts", "3 texts", "3 texts", "4 texts", "4 texts"]
        assert sorted(diary(loaded)) == ["setup trace_0", "setup trace_1"]
        assert (await post("/tools/ping", "trace_2"))[1]["output"] == "pong"
        assert len(diary(loaded)) == 2, "a tool that does not ask for it needs none"

    served(loaded, act)
    assert sorted(diary(loaded))[2:] == ["teardown trace_0", "teardown trace_1"], "at the server's end"


def test_a_grade_sees_the_state_also_twice_and_the_end_is_posted(tmp_path: Path):
    loaded = made(tmp_path)

    async def act(post: Post) -> None:
        await post("/tools/put", **text("0042"))
        for _ in range(2):  # a grade whose reply was lost is asked for again
            assert (await post("/grade", sample={}))[1] == {"score": 1.0, "reason": "['0042', '0042']"}
        assert await post("/end") == (200, {"ended": True})
        assert diary(loaded) == ["setup trace_1", "teardown trace_1"]
        assert await post("/end") == (200, {"ended": False})
        status, reply = await post("/tools/put", **text("late"))
        assert (status, reply) == (500, {"error": "StateError: rollout trace_1 is over: its end was posted"})
        assert (await post("/tools/put", "", **text("a")))[0] == 500

    served(loaded, act)
    assert len(diary(loaded)) == 2


def test_a_state_in_use_is_not_torn_down(tmp_path: Path):
    loaded = made(tmp_path)

    async def act(post: Post) -> None:
        call = asyncio.create_task(post("/tools/slow", arguments='{"seconds": 0.3}'))
        await asyncio.sleep(0.1)
        assert (await post("/end"))[1] == {"ended": True}
        assert diary(loaded) == ["setup trace_1"]
        assert (await call)[1]["output"] == "1"
        assert diary(loaded) == ["setup trace_1", "teardown trace_1"]

    served(loaded, act, ttl_s=0.04)


def test_what_is_idle_is_torn_down(tmp_path: Path):
    loaded = made(tmp_path)

    async def act(post: Post) -> None:
        await post("/tools/put", **text("a"))
        await asyncio.sleep(0.6)
        assert diary(loaded) == ["setup trace_1", "teardown trace_1"]
        assert "idle for tools.state.ttl_s = 0.2 s" in (await post("/tools/put", **text("a")))[1]["error"]

    served(loaded, act, ttl_s=0.2)


@pytest.mark.parametrize("trouble", ["time.sleep(0.5)", "raise OSError('no room')"])
def test_a_setup_that_fails_is_the_servers_fault_and_tried_again(tmp_path: Path, trouble: str):
    loaded = made(tmp_path, f"    if len(DIARY.read_text().splitlines()) == 1:\n        {trouble}")

    async def act(post: Post) -> None:
        status, reply = await post("/tools/put", **text("a"))
        assert status == 500
        assert "longer than tools.state.setup_s = 0.2 s" in reply["error"] or "no room" in reply["error"]
        assert (await post("/tools/put", **text("a")))[1] == {
            "type": "function_call_output", "call_id": "c", "id": None, "output": "2 texts",
        }  # fmt: skip
        await asyncio.sleep(0.6)

    served(loaded, act, setup_s=0.2)
    late = "sleep" in trouble  # it returned after its deadline, and what it made is torn down as well
    assert [line.split()[0] for line in diary(loaded)] == ["setup", "setup", *["teardown"] * (1 + late)]


def test_a_teardown_that_hangs_or_fails_holds_nobody_up(tmp_path: Path):
    loaded = made(tmp_path, teardown="    time.sleep(0.5) if rollout.trace_id == 'trace_1' else 1 / 0")

    async def act(post: Post) -> None:
        for trace_id in ("trace_1", "trace_2"):
            await post("/tools/put", trace_id, **text("a"))
            began = asyncio.get_running_loop().time()
            assert (await post("/end", trace_id))[1] == {"ended": True}
            assert asyncio.get_running_loop().time() - began < 0.4

    served(loaded, act, teardown_s=0.1)


def test_a_call_that_is_sent_again_is_known_by_its_id(tmp_path: Path):
    """The tool's own arguments do not show it, and the policy cannot give another."""
    loaded = made(tmp_path)
    late = next(one["function"] for one in schemas(loaded) if one["function"]["name"] == "late")
    assert list(late["parameters"]["properties"]) == ["text", "seconds"]

    async def act(post: Post) -> None:
        given = {"arguments": '{"text": "a", "seconds": 0}'}
        for call_id, box in (("c_1", ["c_1", "a"]), ("c_1", ["c_1", "a"]), ("c_2", ["c_1", "a", "c_2", "a"])):
            assert (await post("/tools/late", call_id=call_id, **given))[1]["output"] == str(box)

    served(loaded, act)


# -- a stage's server ------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_batch_of_rollouts_is_graded_on_its_states_and_leaves_none(tmp_path: Path):
    loaded = made(tmp_path)
    rows = loaded.examples("train", 4, 0)
    policy = scripted(CALL % "{value}", "done")
    section = config.Tools()

    async def play(endpoint: Any) -> list[Any]:
        conditions = Conditions(PromptSettings(name="seed", system="put it"), 1.0, (0,), config.Rollout(max_turns=3))
        async with (
            ToolClient(endpoint, section, schemas(loaded)) as client,
            EndpointGrader(loaded.grader, endpoint, section) as grader,
        ):
            done = await run_rollouts(policy, client, grader, [Request(row, 0) for row in rows], conditions, {})
            assert sorted(line.split()[0] for line in diary(loaded)) == ["setup"] * 4 + ["teardown"] * 4
            return done

    with running(loaded, section) as endpoint:
        done = asyncio.run(play(endpoint))
    assert [one.grade.score for one in done] == [0.0] * 4
    assert [one.grade.explanation for one in done] == [f"['{row.target}', '{{value}}']" for row in rows]
    assert len(diary(loaded)) == 8


@pytest.mark.slow
def test_the_calls_of_a_turn_are_made_one_after_another(tmp_path: Path):
    """What one does may change what the next finds. Otherwise the quick one would come first."""
    loaded = made(tmp_path)
    waits = {"a": 0.1, "b": 0.0}
    calls = [
        ToolCall(f"call_0_{word}", "late", json.dumps({"text": word, "seconds": wait})) for word, wait in waits.items()
    ]

    async def play(endpoint: Any) -> list[str]:
        async with ToolClient(endpoint, config.Tools(), schemas(loaded)) as client:
            context = RolloutContext("trace_1", loaded.examples("train", 1, 0)[0])
            return [result.output for result in await client.call_all(calls, context)]

    with running(loaded, config.Tools()) as endpoint:
        first, then = asyncio.run(play(endpoint))
    assert first == "['call_0_a', 'a']"
    assert then == "['call_0_a', 'a', 'call_0_b', 'b']"


def test_state_that_nobody_would_keep_is_refused(tmp_path: Path):
    loaded = made(tmp_path / "with")
    without = recipe.load(config.Recipe(path=str(tiny_recipe.make(tmp_path / "without"))))
    with (
        pytest.raises(ConfigError, match=r"tools.where = 'local': .*keeps state for each rollout"),
        running(loaded, config.Tools(where="local")),
    ):
        pass
    path = without.folder / "tools.py"
    path.write_text(path.read_text().replace("def grade(sample, item)", "def grade(sample, item, rollout)"))
    with pytest.raises(UserError, match=r"grade takes `rollout`, which needs setup\(rollout\)"):
        toolserver.app(recipe.load(config.Recipe(path=str(without.folder))))
