"""The figure of the wire: graders that other companies wrote give, through a baseline, the scores that they give when asked directly.

Seven servers of our own behave as published ones do (bench/foreign_servers.py). Each is the tools and the grader of a data set with keys of its
own, and a real baseline is run on it, over sockets, with an agent behind chat completions. Then every rollout of the log is graded once
more without us: the body is put together here, from the user's own line and the log's messages, as the contract says, and posted by another
HTTP client. A score that differs is a difference.

What keeps state by trace id is asked under a trace id of its own, after the rollout's calls were made again there; and it has its baseline
run twice, for a second run must not find what the first one left.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench import foreign_servers
from bench.measure import Figure, Part

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES, K = 12, 6
RANGES = {"zero_to_five": [0, 5], "below_zero": [-2, 2]}
SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}

EXAMPLES_PY = """
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from rft import rows


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")


def examples(options, split, count, seed):
    return rows.lines(Path(__file__).parent / f"{split}.jsonl")[:count]
"""
TOOLS_PY = '''
def search(query: str) -> str:
    """Look an item up."""
    return ""


TOOLS = [search] if {own} else []
'''


@dataclass(frozen=True, slots=True)
class Scored:
    """One rollout: what the baseline recorded, and what the grader says when it is asked directly."""

    case: str
    rollout_id: str
    through_us: float | None
    directly: float


def line(split: str, n: int) -> str:
    """A row with keys of its own, parts as content, and numbers that Python would write in another way."""
    number = {"train": 0, "validation": 300, "test": 600}[split] + n
    return (
        f'{{"weight": 1.00, "reference_answer": "{foreign_servers.answer_to(number)}",  "price": {n}.50, "case_id": {number}, '
        f'"messages":[{{"role":"user","content":[{{"type":"text","text":"Which is item "}},{{"type":"text","text":"{number}"}}]}}]}}'
    )


def write_recipe(folder: Path, case: str, url: str, examples: int) -> None:
    folder.mkdir()
    (folder / "examples.py").write_text(EXAMPLES_PY)
    (folder / "tools.py").write_text(TOOLS_PY.replace("{own}", str(case == "own_path")))
    grader: dict[str, Any] = {"type": "endpoint", "name": case, "url": f"{url}/grade/{case}"}
    grader |= {"range": RANGES[case]} if case in RANGES else {}
    (folder / "grader.json").write_text(json.dumps(grader))
    (folder / "exploits.jsonl").write_text("")
    for split in ("train", "validation", "test"):
        (folder / f"{split}.jsonl").write_text("".join(f"{line(split, n)}\n" for n in range(examples)))


def settings(case: str, url: str, examples: int, k: int) -> dict[str, Any]:
    """What the owner of such servers would write into params.yaml."""
    tools: dict[str, Any] = {"endpoints": [{"name": "search", "server_url": f"{url}/search", "parameters": SCHEMA}]}
    if case == "own_path":
        tools = {"server_url": url, "version": "theirs", "paths": {"search": "/search"}}
    if case == "see_other":
        tools["endpoints"][0]["server_url"] = f"{url}/slow/search"
    import yaml

    gate = yaml.safe_load((ROOT / "params.yaml").read_text())["gate"]
    return {
        "recipe": {"path": case},
        "tools": tools,
        "examples": {
            "train": examples,
            "validation": examples,
            "test": examples,
            "keys": {"id": "case_id", "target": "reference_answer"},
        },
        "policy": {"server": {"kind": "chat", "url": url, "model": foreign_servers.MODEL}},
        "baseline": {"examples": examples, "k": k},
        "gate": gate,
    }


def baseline(case: str, url: str, examples: int, k: int) -> Iterator[Scored]:
    """Run the stages in a folder of their own, then ask the grader once more about every rollout of the log."""
    from rft import baseline, config, rollout_log
    from rft import examples as examples_stage
    from rft import policy as policy_stage

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(sys.stderr):
        write_recipe(Path(case), case, url, examples)
        params = config.parse(settings(case, url, examples, k))
        for stage in (examples_stage, policy_stage, baseline):
            stage.run(params)
        lines = {str(json.loads(text)["case_id"]): text for text in Path(case, "validation.jsonl").read_text().splitlines()}
        for row in rollout_log.read(Path("data/baseline/rollouts.parquet")):
            messages = json.loads(row.messages)
            yield Scored(case, row.rollout_id, row.score, directly(case, url, lines[row.example_id], messages, row.stop_reason))


def directly(case: str, url: str, text: str, messages: list[dict[str, Any]], stop_reason: str) -> float:
    """The grader's own score of this dialogue over this line, under a trace id that it has not met."""
    trace_id = f"trace_{uuid.uuid4()}"
    said = messages[1:]  # behind the row's only message
    calls = [call for message in said for call in message.get("tool_calls") or []]
    for number, call in enumerate(calls):
        function = call["function"]
        head = {"type": "function_call", "id": f"fc_{number}", "call_id": call["id"], **function, "trace_id": trace_id}
        _post(f"{url}/search", head, text)
    last = said[-1] if said and said[-1]["role"] == "assistant" and not said[-1].get("tool_calls") else {"content": ""}
    sample = {
        "choices": [{"index": 0, "message": last, "finish_reason": "stop"}],
        "output_text": last["content"],
        "output_json": _json(last["content"]),
        "output_tools": calls,
        "trajectory": said,
        "stop_reason": stop_reason,
    }
    return _post(f"{url}/grade/{case}", {"sample": sample, "trace_id": trace_id}, text)["score"]


def _post(url: str, head: dict[str, Any], text: str) -> Any:
    body = json.dumps(head)[:-1] + f', "item": {text}}}'
    reply = httpx.post(url, content=body, headers={"Content-Type": "application/json"}, timeout=30)
    while reply.status_code == 303:
        reply = httpx.get(httpx.URL(url).join(reply.headers["Location"]), timeout=30)
    return reply.raise_for_status().json()


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def differing(scored: list[Scored]) -> list[Scored]:
    return [one for one in scored if one.through_us != one.directly]


def wire_real_graders(args: list[str]) -> Figure:
    """Rollouts whose score through a baseline differs from the grader's own, over seven servers as other companies wrote them, of at least 500."""
    return measure(EXAMPLES, K)


def measure(examples: int, k: int, cases: tuple[str, ...] = foreign_servers.CASES) -> Figure:
    scored: list[Scored] = []
    posts: dict[str, int] = {}
    with foreign_servers.serving() as url:
        for case in [*cases, *(case for case in cases if case == "stateful")]:
            before = httpx.get(f"{url}/posts").json().get(case, 0)
            found = list(baseline(case, url, examples, k))
            posts[case] = httpx.get(f"{url}/posts").json()[case] - before - len(found)  # less those that were asked directly
            print(f"{case}: {len(found)} rollouts, {len(differing(found))} differ, scores {sorted({one.directly for one in found})}", file=sys.stderr)
            scored += found
    wrong = differing(scored)
    per_case = [[one.directly for one in scored if one.case == case] for case in cases]
    parts: tuple[Part, ...] = (
        Part("scores that differ", len(wrong), "rollouts", at_most=0, n=len(scored), reason=", ".join(sorted({one.case for one in wrong}))),
        Part("rollouts", len(scored), "rollouts", at_least=500 if len(cases) == len(foreign_servers.CASES) else 1),
        Part("fewest different scores of one grader", min(len(set(scores)) for scores in per_case), "scores", at_least=2, n=len(cases)),
)
    if "see_other" in cases:
        each = posts["see_other"] / (examples * (k + 1))
        parts = (*parts, Part("POSTs per grade behind 303", each, "", at_most=1, n=examples * (k + 1)))
    return Figure(parts, {"rollouts": {case: sum(one.case == case for one in scored) for case in cases}})


FIGURES = {"wire_real_graders": wire_real_graders}
