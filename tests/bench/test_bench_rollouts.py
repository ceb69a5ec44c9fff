"""The faulty server breaks as it is told, and the figures of the rollouts see what they claim to
see."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from bench import faulty_server, outage, rollouts
from bench.faulty_server import Faults, serving, tell
from rft.grading import alarm
from rft.types import GradeStatus, Scored, StopReason, Unscored
from tests import tiny_recipe


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tiny_recipe.make(tmp_path_factory.mktemp("recipe"))) as address:
        yield address


def body(trace_id: str = "t", call_id: str = "call_0_0", key: str = "k0001") -> dict[str, Any]:
    return {
        "call_id": call_id,
        "name": "lookup",
        "arguments": json.dumps({"key": key}),
        "trace_id": trace_id,
        "item": {},
    }


def post(url: str, path: str = "/tools/lookup", step: int = 0, **more: Any) -> httpx.Response:
    return httpx.post(url + path, json=body(**more), headers={"X-RFT-Step": str(step)}, timeout=0.5, trust_env=False)


# -- the server ------------------------------------------------------------------------------------
def test_without_faults_it_is_the_recipes_server(url: str):
    tell(url, Faults())
    assert post(url).json()["output"] == "9153"
    assert tell(url, Faults()) == {"fine": 1}


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("error", 500),
        ("hang", httpx.ReadTimeout),
        ("reset", (httpx.ReadError, httpx.RemoteProtocolError)),
        ("oversized", 200),
    ],
)
def test_each_fault_is_what_it_says(url: str, fault: str, seen: Any):
    tell(url, Faults.model_validate({fault: 1.0, "oversized_bytes": 70_000}))
    if isinstance(seen, int):
        reply = post(url)
        assert (reply.status_code, fault != "oversized" or len(reply.content) > 70_000) == (seen, True)
    else:
        with pytest.raises(seen):
            post(url)
    assert tell(url, Faults()) == {fault: 1}


def test_a_reset_is_a_reset(url: str):
    tell(url, Faults(reset=1.0))

    async def meet() -> None:
        async with aiohttp.ClientSession() as session, session.post(f"{url}/tools/lookup", json=body()):
            pass

    with pytest.raises(aiohttp.ClientOSError, match="reset by peer"):
        asyncio.run(meet())


def test_a_truncated_reply_ends_early_or_holds_half_a_value(url: str):
    tell(url, Faults(truncated=1.0))
    kinds = set()
    for n in range(12):
        try:
            json.loads(post(url, trace_id=f"t{n}").content)
        except httpx.RemoteProtocolError:
            kinds.add("framing")
        except ValueError:
            kinds.add("value")
    assert kinds == {"framing", "value"}


def test_faults_are_a_function_of_seed_rollout_call_and_try():
    faults = Faults(seed=3, error=0.3)
    drawn = [faults.strikes(f"t{n}", "call_0_0", number) for n in range(200) for number in (0, 1)]
    assert drawn == [faults.strikes(f"t{n}", "call_0_0", number) for n in range(200) for number in (0, 1)]
    assert drawn != [
        faults.model_copy(update={"seed": 4}).strikes(f"t{n}", "call_0_0", number)
        for n in range(200)
        for number in (0, 1)
    ]
    assert {(first, second) for first, second in zip(drawn[::2], drawn[1::2], strict=True)} == {
        ("", ""),
        ("", "error"),
        ("error", ""),
        ("error",) * 2,
    }
    assert 0.2 < drawn.count("error") / len(drawn) < 0.4


@pytest.mark.slow
def test_an_outage_strikes_whole_rollouts_from_its_step_on(url: str):
    tell(url, Faults(outage=0.5, outage_from_step=3))
    assert {post(url, trace_id=f"t{n}", step=2).status_code for n in range(8)} == {200}
    struck = [post(url, trace_id=f"t{n}", step=3).status_code for n in range(8)]
    assert set(struck) == {200, 503}
    assert [post(url, trace_id=f"t{n}", call_id="call_1_0", step=4).status_code for n in range(8)] == struck
    assert post(url, path="/grade", trace_id=f"t{struck.index(503)}", step=3).status_code == 503


def test_an_argument_can_be_what_breaks_it(url: str):
    tell(url, Faults(breaks_on={"key": "k0002"}))
    assert [post(url, key=key).status_code for key in ("k0001", "k0002", "k0001")] == [200, 500, 200]


# -- the figures -----------------------------------------------------------------------------------
@pytest.mark.slow
def test_concurrency_compares_the_same_calls():
    figure = rollouts.concurrency(examples=3, group_size=4, repeats=2)
    parts = {part.name: part for part in figure.parts}
    assert figure.notes is not None
    assert (figure.notes["calls"], parts["ideal critical path"].value) == (12 * 4, pytest.approx(0.15))
    assert (parts["wall time"].value or 0) >= 0.15, "three calls of 50 ms, one after the other"
    assert (figure.parts[1].at_most, figure.parts[1].value) == (1.35, figure.parts[0].high)


def test_the_limits_of_a_median_hold_as_often_as_they_say():
    draw = random.Random(0)
    held = 0
    for _ in range(2000):
        low, high = rollouts.median_limits([draw.expovariate(1.0) for _ in range(31)])
        held += low <= math.log(2) <= high
    assert 0.945 <= held / 2000 <= 0.98  # 31 values: ranks 10 and 22, 97.1 %


@pytest.mark.slow
def test_faults_mark_rollouts_and_change_no_mean():
    figure = rollouts.faults(examples=3, group_size=4, seeds=1, bare_seeds=2)
    values = {part.name: part.value for part in figure.parts}
    assert [part.name for part in figure.parts if part.holds is False] == []
    assert (values["unscored (marked), no retries"] or 0) > (values["unscored (marked)"] or 0)


@pytest.mark.slow
def test_a_failure_scored_zero_would_show():
    """The tally against an engine that scores an outage as zero, or loses a rollout."""
    with rollouts.world(2, 4) as place:
        calm, _ = asyncio.run(place.play(concurrency=8))
    assert {one.reward for one in calm} == {0.0, 1.0}
    solved = next(n for n, one in enumerate(calm) if one.reward == 1.0)
    tally = rollouts.Tally()
    tally.add(
        [replace(one, reward=0.0, grade=Scored(0.0)) if n == solved else one for n, one in enumerate(calm)], calm, 4
    )
    assert (tally.false_zeros, tally.changed_groups) == (1, 1)
    marked = replace(
        calm[solved],
        reward=None,
        grade=Unscored(GradeStatus.infra_error, "HTTP 500"),
        stop_reason=StopReason.tool_error,
    )
    tally = rollouts.Tally()
    tally.add([marked if n == solved else one for n, one in enumerate(calm)], calm, 4)
    assert (tally.false_zeros, tally.changed_groups, tally.unscored, tally.unexplained) == (0, 0, 1, 0)


@pytest.mark.slow
def test_a_broken_argument_alarms_through_the_whole_engine():
    """16 rollouts of four keys over real sockets; one key breaks the tool."""
    with rollouts.world(4, 4) as place:
        key = str(place.requests[0].example.messages[-1]["content"]).split()[-1]
        tell(place.url, Faults(breaks_on={"key": key}))
        done, _ = asyncio.run(place.play(retries=0))
    (found,) = alarm.find(alarm.calls_of(done))
    assert found.text.startswith(f'lookup: key = "{key}" fails 4 of 4, without it 0 of 12')


def test_an_outage_that_changed_an_adapter_would_show(tmp_path: Path):
    trainings = []
    for name, content in (("calm", b"same"), ("same", b"same"), ("other", b"else")):
        weights = tmp_path / name / "data/train/weights"
        weights.mkdir(parents=True)
        (weights / "adapter.safetensors").write_bytes(content)
        (weights.parent / "metrics.jsonl").write_text(
            "".join(json.dumps({"step": n, "loss": len(name)}) + "\n" for n in range(outage.STEPS))
        )
        trainings.append(outage.Training(tmp_path / name))
    calm, same, other = trainings
    assert [outage.differing(calm, one) for one in (same, other, outage.Training(tmp_path / "absent"))] == [0, 1, 1]
    assert [outage.unlike(calm, one) for one in (same, other)] == [0, outage.STEPS]


@pytest.mark.slow
def test_the_server_ends_with_its_owner(tmp_path: Path):
    with serving(tiny_recipe.make(tmp_path)) as address:
        assert httpx.get(f"{address}/health", trust_env=False).json()["status"] == "ok"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/health", trust_env=False)
    assert faulty_server.HANG_S > 2 * rollouts.TIMEOUT_S
