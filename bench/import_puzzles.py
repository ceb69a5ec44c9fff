"""Two more files for the figure `import_formats`, whose answers earn parts of the score.

They are Azure's demonstration of countdown, and a Lambda over the package reasoning-gym, which has
its own environment (bench/peer.py). What each answer is worth is written down here. For countdown
it is the rule of the demonstration when its scores went from 0 to 5; later they went from 0 to 1.
For reasoning-gym it is what the package says in its own environment. The figure asks it again.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

from bench import peer
from bench.import_files import ROWS, Case, Row, bedrock, job, lines

# -- Azure -----------------------------------------------------------------------------------------
PUZZLE = {"target": 47, "nums": [86, 22, 88, 72]}
COUNTDOWN = """
import re

def grade(sample, item):
    said = sample.get("output_json")
    if not isinstance(said, dict):
        return 0
    expression, claimed = said["expression"], int(said["result"])
    if not re.fullmatch("[0-9+*/() -]+", expression):
        return 0
    if sorted(map(int, re.findall("-?[0-9]+", expression))) != sorted(item["nums"]):
        return 0
    if eval(expression) != claimed:
        return 1
    off = abs(claimed - item["target"])
    return 5 if off == 0 else 4 if off == 1 else 3 if off <= 5 else 2
"""


def claim(expression: str, result: int) -> str:
    return json.dumps({"expression": expression, "result": str(result)})


WORTH = {
    claim("(72 + 22) / (88 - 86)", 47): 5.0,
    claim("72 + 22 - 88 + 86", 92): 2.0,
    claim("72+22-88+86", 92): 0.0,
    claim("72 + 22 - 88 + 86", 47): 1.0,
    "47": 0.0,
    "": 0.0,
}
"""An answer -> its score. Without blanks a minus is a sign, and -88 is not one of the numbers."""


def puzzles(first: int) -> list[Row]:
    told = "Reach 47 with each of 86, 22, 88 and 72 once. This is puzzle {}."
    messages = ([{"role": "user", "content": told.format(first + n)}] for n in range(ROWS))
    return [{"messages": each, **PUZZLE} for each in messages]


def countdown(folder: Path) -> str:
    schema = {"type": "object", "properties": {key: {"type": "string"} for key in ("expression", "result")}}
    form = {"type": "json_schema", "json_schema": {"name": "expression", "strict": True, "schema": schema}}
    grader = {"type": "python", "name": "countdown", "source": COUNTDOWN, "pass_threshold": 5.0, "range": [0, 5]}
    automatic = {"batch_size": -1, "n_epochs": -1, "compute_multiplier": 1.0}
    name = job(grader, {"trainingType": "standard"}, response_format=form, hyperparameters=automatic)(folder)
    (folder / "file-train.jsonl").write_text(lines(puzzles(0)))
    (folder / "file-valid.jsonl").write_text(lines(puzzles(500)))
    return name


# -- Bedrock ---------------------------------------------------------------------------------------
GYM = """
import sys

sys.path.append({site!r})
import reasoning_gym

PUZZLES = reasoning_gym.create_dataset("countdown", size=3, seed=42)

def lambda_handler(event, context):
    return [{{"id": one["id"], "aggregate_reward_score": score(one)}} for one in event]

def score(one):
    puzzle = PUZZLES[one["metadata"]["reference_answer"]["puzzle"]]
    return PUZZLES.score_answer(one["messages"][-1]["content"], puzzle)
"""
GYM_WORTH = {"15 - 4 + 95 + 36 - 32 + 29": 1.0, "15 + 4": 0.05, "I am sorry .": 0.01, "": 0.01}
"""An answer to puzzle 0, whose target is 139 -> the score that reasoning-gym 0.1.25 gives."""


def gym_source() -> str:
    """Return the function's source, with the place of the package in its own environment."""
    [site] = (peer.python("reasoning-gym").parents[1] / "lib").glob("python*/site-packages")
    return GYM.format(site=str(site))


def gym(folder: Path) -> str:
    name = bedrock(folder)
    told = "Reach 139 with some of 36, 29, 95, 32, 4 and 15. This is puzzle {}."
    asked = ([{"role": "user", "content": told.format(n)}] for n in range(ROWS))
    (folder / "train.jsonl").write_text(lines({"messages": one, "reference_answer": {"puzzle": 0}} for one in asked))
    (folder / "theirs.py").write_text(gym_source())
    return name


@functools.cache
def gym_scores() -> dict[str, float]:
    """Grade all answers by the function in the package's own environment. Raises AssertionError if
    a score is not the one that is written here."""
    ask = """
import json
for answer in json.loads(sys.argv[1]):
    told = {"id": "1", "messages": [{"content": answer}], "metadata": {"reference_answer": {"puzzle": 0}}}
    print(json.dumps([answer, lambda_handler([told], None)[0]["aggregate_reward_score"]]))
"""
    log = peer.WORK / "reasoning-gym.log"
    peer.run("reasoning-gym", ["-c", gym_source() + ask, json.dumps(list(GYM_WORTH))], log, timeout_s=120)
    found = dict(json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("["))
    assert found == GYM_WORTH, found
    return found


CASES = [
    Case("countdown from 0 to 5", "azure", countdown, lambda answer, item: WORTH[answer], answers=tuple(WORTH)),
    Case("a Lambda over reasoning-gym", "bedrock", gym, lambda answer, item: gym_scores()[answer],
         answers=tuple(GYM_WORTH)),
]  # fmt: skip
