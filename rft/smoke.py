"""The smoke test of an agent that is about to be promoted: does it work at all, here and now?

    python -m rft.smoke RESULT --start-s S      in a folder that holds the agent as a stage finds it

The gate judged how good the agent is. Weeks may have passed since: a tool server moved, a judge's
key expired, the policy's server is another one. So the agent plays the first validation examples,
or those of the recipe's `smoke.jsonl`, one rollout each, with its real tools and its real grader.
It passes when each example got a grade, however low, and at least one turn could be read. It does
not wait for an outage to end: a person waits for the answer and can ask again. Where an answer is
chosen from several rollouts (policy.serve), it still plays one: whether the agent works does not
depend on their number.

Each rollout has the deadlines of its settings. Other work has none, such as the import of a recipe.
So the kernel ends this process when loading takes longer than `--start-s`, or when the rollouts
take longer than all their deadlines together. RESULT is a file, a `Smoke`.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from rft import config, progress, recipe, reports, secrets, stage_files
from rft.errors import InfrastructureError, RftError, UserError
from rft.formatting import counted
from rft.process import die_with
from rft.recipe import Recipe
from rft.reports import Report
from rft.types import Example, StopReason, Trajectory

if TYPE_CHECKING:
    from rft.rollouts.policy import Policy
    from rft.rollouts.runner import RolloutRunner

FIRST = 4
"""So many validation examples are played if the recipe has no `smoke.jsonl`."""
OWN = "smoke.jsonl"
ADAPTER = "agent-rft-smoke"
"""The adapter's name at a policy's server, which may serve the champion under another."""
_STOP_S = 30.0
_A_MONTH_S = 30 * 86400.0  # the kernel takes no number above 2**32
_DAMAGED = "If it happens again, the weights are damaged: see how the training went, and start a new run."


class Smoke(Report):
    """What a passed smoke test has seen."""

    source: str
    """The file of the examples."""
    examples: int
    solved: int
    mean_reward: float
    stop_reasons: dict[str, int]
    seconds: float

    @property
    def description(self) -> str:
        played = f"{counted(self.examples, 'example')} of {self.source}, played and graded"
        return f"{played}: {self.solved} solved, mean reward {self.mean_reward:.3f}, {self.seconds:.1f} s"


def play(start_s: float) -> Smoke:
    """Play the smoke test in this folder. Raises InfrastructureError for a rollout without a grade,
    UserError for an agent none of whose turns can be read."""
    _alarm(start_s)
    try:
        return _play()
    finally:
        signal.alarm(0)


def _play() -> Smoke:
    from rft.rollouts.runner import rollout_runner

    began = time.monotonic()
    params = config.load("params.yaml", recorded=True)
    ours = recipe.load(params.recipe)
    source, examples = chosen(params)
    progress.print_line("smoke", f"{counted(len(examples), 'example')} of {source}, one rollout each")
    with rollout_runner(params, ours) as runner:
        progress.print_line("smoke", "its tools are up; loading its policy")
        played = _played(runner, _policy(runner), ours, examples)
    rewards = [one.reward for one in played if one.reward is not None]
    return Smoke(
        source=source,
        examples=len(played),
        solved=sum(one.grade.solved for one in played),
        mean_reward=sum(rewards) / len(rewards),
        stop_reasons=dict(sorted(Counter(str(one.stop_reason) for one in played).items())),
        seconds=round(time.monotonic() - began, 3),
    )


def chosen(params: config.Params) -> tuple[str, list[Example]]:
    """Name the file of the examples, and read them. Raises UserError naming the file and line of a
    bad row."""
    if (own := of_recipe(params)) is not None:
        return str(Path(params.recipe.path) / OWN), own
    return str(stage_files.examples_file("validation")), stage_files.load_examples("validation")[:FIRST]


def of_recipe(params: config.Params) -> list[Example] | None:
    """Read the examples that the recipe brings for this test; None if it brings none."""
    path = Path(params.recipe.path) / OWN
    if not path.exists():
        return None
    remedy = f"A row of {OWN} is written like one of data/examples. Fix it and start a new run."
    return stage_files.load_examples("validation", path, params.examples.keys, remedy)


def _policy(runner: RolloutRunner) -> Policy:
    """Load the policy. It comes after the tool server, which is quicker to say what is wrong."""
    from rft.models import weights
    from rft.sampling import policies

    try:
        device = weights.prepare_process(runner.params.policy)
    except UserError as error:  # the settings are those of the run: only the place can change
        raise InfrastructureError(f"{error} Or promote from a clone on a machine like that of the run.") from None
    try:
        return policies.load_policy(runner, "champion", device, name=ADAPTER).policy
    except InfrastructureError as error:
        raise InfrastructureError(f"{error}{_reach(runner)}") from None
    except RftError:
        raise
    except Exception as error:  # whatever torch, peft or safetensors make of a damaged file
        why = f"{type(error).__name__}: {error}"
        raise InfrastructureError(f"its weights cannot be loaded ({why}). {_DAMAGED}") from error


def _reach(runner: RolloutRunner) -> str:
    """End a message about a policy on a server, which this clone may not reach."""
    server = runner.params.policy.server
    if server is None:
        return ""
    url = f"policy.server.url = {server.url!r}"
    return f" This agent is sampled at {url}: start that server, or promote from a clone that reaches it."


def _played(runner: RolloutRunner, policy: Policy, ours: Recipe, examples: list[Example]) -> list[Trajectory]:
    from rft.rollouts.loop import Conditions, Request
    from rft.rollouts.prompting import champion_prompt

    section, limits, prompt = runner.params.challenger, runner.params.rollout, champion_prompt(ours)
    runner.check_rows(examples)
    runner.check_openings(policy, examples, prompt)
    _alarm(len(examples) * (limits.deadline_s + limits.turn_deadline_s + limits.grader_deadline_s) + _STOP_S)
    conditions = Conditions(
        prompt, section.temperature, (section.seed,), limits, "smoke", "validation", traces=runner.traces
    )
    told, played = progress.Reporter("smoke", len(examples)), []
    for example in examples:
        try:
            trajectory = runner.converse(policy, Request(example, 0), conditions, graded=True)
        except (ArithmeticError, LookupError, RuntimeError, ValueError) as error:  # torch's, for weights of NaN
            why = f"{type(error).__name__}: {error}"
            raise InfrastructureError(f"example {example.id} could not be played ({why}). {_DAMAGED}") from error
        if trajectory.grade.score is None:
            raise InfrastructureError(_ungraded(trajectory, runner))
        played.append(trajectory)
        told(len(played), f"examples, {example.id}: {trajectory.stop_reason}, reward {trajectory.reward:.3f}")
    if all(one.stop_reason == StopReason.parse_error for one in played):
        asked, first = counted(len(played), "example"), played[0]
        end = f"Example {first.example_id} ended with {first.stop_reason} on {first.turns[-1].text[:80]!r}."
        raise UserError(
            f"none of its turns on {asked} could be read. {end} Set policy.tool_format to how this model writes its "
            "calls, see that its training did not diverge, and start a new run."
        )
    return played


def _ungraded(trajectory: Trajectory, runner: RolloutRunner) -> str:
    remedies = {
        StopReason.tool_error: "Fix the tool server and try again.",
        StopReason.sampler_error: f"Try again once the policy answers.{_reach(runner)}",
        StopReason.cancelled: "Try again, or with a longer rollout.group_deadline_s in a new run.",
    }
    remedy = remedies.get(trajectory.stop_reason, "Fix the grader and try again.")
    what = f"example {trajectory.example_id} ended with {trajectory.stop_reason} and got no grade"
    return f"{what}: {trajectory.grade.explanation.rstrip('. ')}. {remedy}"


def _alarm(seconds: float) -> None:
    """End this process after so many seconds, whatever it is doing then."""
    signal.alarm(math.ceil(min(seconds, _A_MONTH_S)))


def main(argv: list[str] | None = None) -> int:
    secrets.guard()
    die_with()
    parser = argparse.ArgumentParser(prog="python -m rft.smoke", description="Play an agent's smoke test.")
    parser.add_argument("result", type=Path, help="the file to write")
    parser.add_argument("--start-s", type=float, default=900.0, help="seconds until it can play")
    options = parser.parse_args(argv)
    try:
        reports.write(play(options.start_s), options.result)
    except RftError as error:
        sys.stdout.flush()
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
