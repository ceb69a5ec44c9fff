"""The figure of the wire: does a foreign grader give the same score through a baseline as directly?

Seven servers of our own behave as published ones do (bench/foreign_servers.py). Each has the tools
and the grader of a data set with its own keys. A real baseline is run on it, over sockets, with an
agent behind chat completions. Then every rollout of the log is graded once more without our code.
The body is made here, as the contract says, from the user's own line and the log's messages, and
posted by another HTTP client. Each score or reward that differs is counted. The log alone does not
count as evidence, so agent and grader keep their own records. What the agent said must be what the
grader was told, and every `item` must be a line of the file, byte for byte.

A server that keeps state by trace id is asked under a new trace id, after the rollout's calls were
made again there. Its baseline is run twice, because a second run must not find what the first one
left.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench import foreign_servers
from bench.measure import Figure, Part

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES, K = 12, 6
PREAMBLE = "You answer for a warehouse. " * 120
"""Some 800 tokens. Rows of that length once ended at a context of 512 that nobody had set."""
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
    """One rollout: what the baseline recorded, and what the grader says if it is asked directly."""

    case: str
    rollout_id: str
    through_us: float | None
    reward: float | None
    directly: float


@dataclass(frozen=True, slots=True)
class Ran:
    """One baseline. `distorted` counts rows, answers and calls that reached the grader changed."""

    scored: list[Scored]
    distorted: int
    posts: int
    readiness: str


def line(split: str, n: int) -> str:
    """Write a row with its own keys, parts as content, and numbers that Python would write in
    another way."""
    number = {"train": 0, "validation": 300, "test": 600}[split] + n
    return (
        f'{{"weight": 1.00, "reference_answer": "{foreign_servers.answer_to(number)}",  "price": {n}.50, "case_id": '
        f"{number}, "
        f'"messages":[{{"role":"user","content":[{{"type":"text","text":"{PREAMBLE}Which is item '
        f'"}},{{"type":"text","text":"{number}"}}]}}]}}'
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
    """Return what the owner of such servers would write into params.yaml."""
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
        "rollout": {"max_turns": foreign_servers.LOOKUPS + 2},
        "baseline": {"examples": examples, "k": k},
        "gate": gate,
    }


def baseline(case: str, url: str, examples: int, k: int) -> Ran:
    """Run the stages in a new folder, then ask the grader once more about every rollout of the
    log."""
    from rft import config, reports
    from rft.rollouts import log as rollout_log
    from rft.stages import baseline
    from rft.stages import examples as examples_stage
    from rft.stages import policy as policy_stage

    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(sys.stderr),
        httpx.Client(base_url=url, timeout=30, follow_redirects=True) as client,
    ):
        write_recipe(Path(case), case, url, examples)
        params = config.parse(settings(case, url, examples, k))
        client.get("/record")
        for stage in (examples_stage, policy_stage, baseline):
            stage.run(params)
        record = client.get("/record").json()
        lines = {
            str(json.loads(text)["case_id"]): text for text in Path(case, "validation.jsonl").read_text().splitlines()
        }
        scored = []
        for row in rollout_log.read(Path("data/baseline/rollouts.parquet")):
            score = directly(case, client, lines[row.example_id], json.loads(row.messages), row.stop_reason)
            scored.append(Scored(case, row.rollout_id, row.score, row.reward, score))
        readiness = reports.read(reports.BaselineReport, Path("data/baseline/report.json")).readiness
    return Ran(scored, distorted(record, lines.values()), record["posts"][case], readiness)


def distorted(record: dict[str, Any], lines: Iterable[str]) -> int:
    """Count differences between the agent's record of what it said and the grader's record of what
    it was told. Rows that are not a line of the file count, too."""
    answered = Counter((question, text) for question, text in record["said"])
    known = {text: "".join(part["text"] for part in json.loads(text)["messages"][0]["content"]) for text in lines}
    told: Counter[tuple[str, str]] = Counter()
    for _, row, *texts in record["graded"]:
        told.update((known.get(row, "a row that is not a line of the file"), text) for text in texts)
    return (answered - told).total() + (told - answered).total()


def directly(case: str, client: httpx.Client, text: str, messages: list[dict[str, Any]], stop_reason: str) -> float:
    """Return the grader's own score of this dialogue for this line, under a trace id that it does
    not know."""
    trace_id = f"trace_{uuid.uuid4()}"
    replies = messages[1:]  # after the row's only message
    calls = [call for message in replies for call in message.get("tool_calls") or []]
    for number, call in enumerate(calls):
        function = call["function"]
        head = {"type": "function_call", "id": f"fc_{number}", "call_id": call["id"], **function, "trace_id": trace_id}
        _post(client, "/search", head, text)
    last = (
        replies[-1]
        if replies and replies[-1]["role"] == "assistant" and not replies[-1].get("tool_calls")
        else {"content": ""}
    )
    sample = {
        "choices": [{"index": 0, "message": last, "finish_reason": "stop"}],
        "output_text": last["content"],
        "output_json": _json(last["content"]),
        "output_tools": calls,
        "trajectory": replies,
        "stop_reason": stop_reason,
    }
    return _post(client, f"/grade/{case}", {"sample": sample, "trace_id": trace_id}, text)["score"]


def _post(client: httpx.Client, path: str, head: dict[str, Any], text: str) -> Any:
    body = json.dumps(head)[:-1] + f', "item": {text}}}'
    reply = client.post(path, content=body, headers={"Content-Type": "application/json"})
    return reply.raise_for_status().json()


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def differing(scored: list[Scored]) -> list[Scored]:
    """Return the rollouts whose scores and rewards are not all equal: there is no budget."""
    return [one for one in scored if not one.through_us == one.reward == one.directly]


def wire_real_graders(args: list[str]) -> Figure:
    """Rollouts whose score through a baseline differs from the grader's own, of at least 500, over
    seven servers as other companies wrote them."""
    return measure(EXAMPLES, K)


def measure(examples: int, k: int, cases: tuple[str, ...] = foreign_servers.CASES) -> Figure:
    ran: dict[str, list[Ran]] = {}
    with foreign_servers.serving() as url:
        for case in [*cases, *(case for case in cases if case == "stateful")]:
            one = baseline(case, url, examples, k)
            ran.setdefault(case, []).append(one)
            scores = sorted({each.directly for each in one.scored})
            print(
                f"{case}: {len(one.scored)} rollouts, {len(differing(one.scored))} differ, scores {scores}, "
                f"{one.readiness}",
                file=sys.stderr,
            )
    all_ran = [one for some in ran.values() for one in some]
    scored = [each for one in all_ran for each in one.scored]
    wrong = differing(scored)
    kinds = [len({each.directly for one in some for each in one.scored}) for some in ran.values()]
    parts: tuple[Part, ...] = (
        Part(
            "scores that differ",
            len(wrong),
            "rollouts",
            at_most=0,
            n=len(scored),
            reason=", ".join(sorted({one.case for one in wrong})),
        ),
        Part(
            "rows, answers and calls that arrived otherwise",
            sum(one.distorted for one in all_ran),
            "",
            at_most=0,
            n=len(scored),
        ),
        Part("rollouts", len(scored), "rollouts", at_least=500 if len(cases) == len(foreign_servers.CASES) else 1),
        Part("fewest different scores of one grader", min(kinds), "scores", at_least=2, n=len(cases)),
        Part(
            "baselines that are not ready",
            sum(one.readiness != "ready" for one in all_ran),
            "baselines",
            at_most=0,
            n=len(all_ran),
        ),
    )
    if "see_other" in cases:
        each = ran["see_other"][0].posts / (examples * (k + 1))
        parts = (*parts, Part("POSTs per grade behind 303", each, "", at_most=1, n=examples * (k + 1)))
    return Figure(parts, {"rollouts": {case: sum(len(one.scored) for one in some) for case, some in ran.items()}})


FIGURES = {"wire_real_graders": wire_real_graders}
