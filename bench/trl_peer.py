"""The peer's side of `speed_trl`: TRL's GRPOTrainer trains the embedded policy on ICD-10.

It runs in TRL's own environment.

    python bench/trl_peer.py JOB.json      reads `Job`; writes result.json (`Result`) and weights/
                                           beside it

TRL's environment interface gets the recipe's own functions in this process. That favors TRL: it
needs no server and no HTTP bodies. The reward is the recipe's grader under our budget. Before
anything is timed, our openings and tool results are compared token by token with what TRL will feed
the policy. `DIFFERENCES` lists what TRL has no setting for.

TRL gets what makes it fast. The process is set up like ours (allocator, denormals): 7.8 s per step
without, 5.5 s with, on two busy cores. TRL's own settings were tried on the same four steps.
Forward and backward over 64, 16 or 8 episodes at a time are equal within the noise (5.5, 5.6, 6.3 s
per step), and so is a static cache. Eager attention takes 8.9 s instead of 7.8 s, and transformers'
continuous batching 48 s. So it uses 64, SDPA and a dynamic cache.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

DIFFERENCES = (
    "an episode goes on after its last allowed call; what it earns is as if it had ended there",
    "a call that cannot be read counts as the final answer, and takes the good calls beside it along",
    "a turn that was cut goes on if a whole call is in it",
    "the opening is not counted into an episode's length, so the limit is set for the mean opening",
    "the loss is divided by that length, not by a turn's; Adam's step does not depend on it",
)


@dataclass(frozen=True)
class Job:
    """What is trained, on what, and how long. bench/speed_trl.py writes it."""

    model: str
    recipe: dict[str, Any]
    prompt: dict[str, Any]
    rollout: dict[str, Any]
    rows: str
    """A JSON file: [{"prompt": messages, "item": the example's row, "prompt_ids": what our chat
    makes of it}]."""
    reply: dict[str, Any]
    """{"contents": tool results, "ids": what our chat makes of them}."""
    tools: list[dict[str, Any]]
    group_size: int
    examples_per_step: int
    lr: float
    schedule: str
    """The schedule's name in transformers: constant, linear, cosine."""
    warmup_steps: int
    clip_grad: float
    temperature: float
    seed: int
    steps: int
    threads: int
    microbatch: int = 64
    """Episodes in one forward and backward."""
    options: dict[str, Any] = field(default_factory=dict)
    """More arguments of GRPOConfig, for trials."""


@dataclass(frozen=True)
class Result:
    """One number per step, and the seconds of each phase over all steps."""

    steps_s: list[float]
    phases: dict[str, float]
    rewards: list[float]
    tool_calls: list[float]
    tokens: list[float]
    """Tokens that the policy sampled, per episode."""


def main(path: Path) -> None:
    job = Job(**json.loads(path.read_text(encoding="utf-8")))
    os.environ |= {
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "WANDB_DISABLED": "true",
    }
    _prepare_process(job)
    trainer, clock = _trainer(job, path.parent)
    _compare(trainer, job)
    trainer.train()
    trainer.model.save_pretrained(path.parent / "weights")
    result = Result(
        clock.steps_s,
        clock.phases,
        clock.seen["reward"],
        clock.seen["tools/call_frequency"],
        clock.seen["completions/mean_length"],
    )
    part = path.parent / "result.part"
    part.write_text(json.dumps(asdict(result)), encoding="utf-8")
    part.rename(path.parent / "result.json")


def _prepare_process(job: Job) -> None:
    """Set up the process as our own: threads, freed memory kept, denormals flushed."""
    from rft import config
    from rft.models import weights as model

    model.prepare_process(config.Policy(device="cpu", threads=job.threads))
    import torch

    torch.use_deterministic_algorithms(False)  # only ours runs in this mode; TRL has none


def _trainer(job: Job, folder: Path) -> tuple[Any, Any]:
    from datasets import Dataset  # pyright: ignore[reportMissingImports]
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

    from rft import config, recipe
    from rft.reports import PromptSettings

    rows = json.loads(Path(job.rows).read_text(encoding="utf-8"))
    limits, prompt = config.Rollout(**job.rollout), PromptSettings(**job.prompt)
    loaded = recipe.load(config.Recipe(**job.recipe))
    assert limits.max_tokens is not None
    opening = sum(len(row["prompt_ids"]) for row in rows) / len(rows)
    episodes = job.group_size * job.examples_per_step
    clock = _clock()
    arguments: dict[str, Any] = {
        "output_dir": str(folder / "trl"),
        "per_device_train_batch_size": job.microbatch,
        # TRL generates once per accumulation, so it is strictly on-policy
        "gradient_accumulation_steps": episodes // job.microbatch,
        "num_generations": job.group_size,
        "max_completion_length": limits.max_tokens - round(opening),
        "generation_kwargs": {"max_new_tokens": limits.max_turn_tokens},  # else the one length would also limit a turn
        "max_tool_calling_iterations": (prompt.max_turns or limits.max_turns) - 1,
        "temperature": job.temperature,
        "beta": 0.0,
        "loss_type": "dr_grpo",
        "scale_rewards": "none",
        "learning_rate": job.lr,
        "lr_scheduler_type": job.schedule,
        "warmup_steps": job.warmup_steps,
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "weight_decay": 0.0,
        "max_grad_norm": job.clip_grad,
        "max_steps": job.steps,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "seed": job.seed,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": job.steps,
        "disable_tqdm": True,
    }
    network = AutoModelForCausalLM.from_pretrained(job.model, dtype="float32", attn_implementation="sdpa")
    trainer = GRPOTrainer(
        model=network,
        args=GRPOConfig(**(arguments | job.options)),
        processing_class=_tokenizer(job),
        train_dataset=Dataset.from_list([{"prompt": row["prompt"], "item": json.dumps(row["item"])} for row in rows]),
        reward_funcs=reward(loaded, limits),
        environment_factory=environment(loaded, prompt, job.tools),
        callbacks=[clock],
    )
    clock.watch(trainer)
    return trainer, clock


# -- the agent -------------------------------------------------------------------------------------
def _tokenizer(job: Job) -> Any:
    """Load the tokenizer, with exactly our tools' schemas in the template. TRL would make others
    from the environment's methods."""
    from transformers import AutoTokenizer
    from trl.chat_template_utils import qwen3_template  # pyright: ignore[reportMissingImports]

    tokenizer: Any = AutoTokenizer.from_pretrained(job.model, padding_side="left")
    tokenizer.chat_template = template_for_trl(tokenizer.chat_template, job.tools)
    tokenizer.response_template = qwen3_template  # the same Hermes calls; TRL knows templates only by their exact text
    return tokenizer


def template_for_trl(template: str, tools: list[dict[str, Any]]) -> str:
    """Return the policy's template with the tools written in.

    A dialogue that ends with a message ends with the message's end token, without a line break. TRL
    requires that its tokens stay unchanged when a tool's results follow, but the line break is one
    token with the text after it.
    """
    old = "{{- '<|im_end|>\\n' }}\n    {%- endif %}\n{%- endfor %}"
    new = (
        "{{- '<|im_end|>' + ('' if loop.last and not add_generation_prompt else '\\n') }}\n    {%- endif %}\n{%- "
        "endfor %}"
    )
    if template.count(old) != 1:
        raise SystemExit("the policy's chat template is another than this script was written for")
    return f"{{%- if tools %}}{{%- set tools = {tools!r} %}}{{%- endif %}}" + template.replace(old, new)


def environment(loaded: Any, prompt: Any, tools: list[dict[str, Any]]) -> type:
    """Make a class whose public methods are the recipe's tools, with the same checks, defaults and
    refusals as on our side."""
    from rft.errors import ToolError
    from rft.tools import arguments, signatures
    from rft.tools import server as toolserver
    from rft.types import ToolCall

    functions = dict(arguments.read_tool(tool, "tools.py") for tool in tools)
    models = {function.__name__: (function, signatures.arguments_model(function)) for function in loaded.tools}

    class Coder:
        def reset(self, item: str, **_: Any) -> None:
            self._item = json.loads(item)

        def search(self, query: str, k: int | None = None, format: str | None = None) -> str:
            """Find billable ICD-10-CM codes by words. Best hit first, one a line.

            Args:
                query: words of one diagnosis
                k: number of hits
                format: of a line
            """
            return self._call("search", query=query, k=k, format=format)

        def lookup(self, code: str) -> str:
            """The description of a code.

            Args:
                code: the code
            """
            return self._call("lookup", code=code)

        def children(self, code: str) -> str:
            """The codes one level below a category or code.

            Args:
                code: the category or code
            """
            return self._call("children", code=code)

        def _call(self, name: str, **given: Any) -> str:
            call = ToolCall("", name, json.dumps({key: value for key, value in given.items() if value is not None}))
            try:
                sent = arguments.prepare(call, functions, prompt.tool_defaults.get(name, {}))
                function, model = models[name]
                values = toolserver.read_arguments(model, sent)
                return function(**values, **({"item": self._item} if name == "search" else {}))
            except arguments.Refused as problem:
                return f"Error: {problem}"
            except ToolError as problem:
                return str(problem)

    return Coder


def reward(loaded: Any, limits: Any) -> Callable[..., list[float]]:
    """Return the reward: the recipe's grader under the recipe's budget."""
    from rft.grading import budget
    from rft.types import GradeStatus, Scored, StopReason
    from rft.wire import contract as wire

    def rewards(completions: list[list[dict[str, Any]]], item: list[str], **_: Any) -> list[float]:
        earned = []
        for messages, row in zip(completions, item, strict=True):
            turns = turns_of(messages, limits.max_tool_calls)
            grade = loaded.grade(wire.sample(turns, StopReason.completed), json.loads(row))
            found = budget.reward(
                Scored(grade["score"], GradeStatus.ok, grade["solved"]),
                budget.Use.from_turns(turns, 0.0),
                limits.budget,
            )
            earned.append(float(found or 0.0))
        return earned

    return rewards


def turns_of(messages: list[dict[str, Any]], max_calls: int) -> list[Any]:
    """Return the assistant's turns, up to the one that makes too many calls, where our rollouts
    end."""
    from rft.types import ToolCall, Turn

    turns: list[Any] = []
    made = 0
    for message in messages:
        if message["role"] != "assistant":
            continue
        functions = [call["function"] for call in message.get("tool_calls") or []]
        calls = tuple(ToolCall("", function["name"], json.dumps(function["arguments"])) for function in functions)
        made += len(calls)
        content = message.get("content") or ""
        turns.append(Turn(content, calls, content=content))
        if made > max_calls:
            break
    return turns


def _compare(trainer: Any, job: Job) -> None:
    """Check that TRL feeds the policy exactly our tokens. Raises SystemExit if it does not."""
    rows = json.loads(Path(job.rows).read_text(encoding="utf-8"))[:64]
    trainer._batch_environments = [None] * len(rows)
    theirs, *_ = trainer._tokenize_prompts([row["prompt"] for row in rows])
    for row, ids in zip(rows, theirs, strict=True):
        if ids != row["prompt_ids"]:
            raise SystemExit(f"TRL's opening is {ids}, ours {row['prompt_ids']}")
    messages = [{"role": "tool", "name": "search", "content": content} for content in job.reply["contents"]]
    if (ids := trainer._get_tool_suffix_ids(messages)) != job.reply["ids"]:
        raise SystemExit(f"TRL's tool results are {ids}, ours {job.reply['ids']}")


# -- the clock -------------------------------------------------------------------------------------
def _clock() -> Any:
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        """Measures seconds from the end of one optimizer step to the end of the next: all of TRL's
        loop, and nothing of its set-up."""

        def __init__(self) -> None:
            self.steps_s: list[float] = []
            self.phases: dict[str, float] = {}
            self.seen: dict[str, list[float]] = {
                "reward": [],
                "tools/call_frequency": [],
                "completions/mean_length": [],
            }

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._last = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            now = time.perf_counter()
            self.steps_s.append(now - self._last)
            self._last = now
            for name, values in self.seen.items():
                values.append(self._trainer._metrics["train"][name][-1])
            print(f"step {len(self.steps_s)}: {self.steps_s[-1]:.2f} s", flush=True)

        def watch(self, trainer: Any) -> None:
            """Time TRL's own methods. A measured call costs a microsecond."""
            self._trainer = trainer
            for holder, method in (
                (trainer, "_generate"),
                (trainer, "_generate_single_turn"),
                (trainer, "_calculate_rewards"),
                (trainer, "compute_loss"),
                (trainer.accelerator, "backward"),
            ):
                setattr(holder, method, self._timed(method, getattr(holder, method)))

        def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
            def timed(*args: Any, **kwargs: Any) -> Any:
                began = time.perf_counter()
                try:
                    return method(*args, **kwargs)
                finally:
                    self.phases[name] = self.phases.get(name, 0.0) + time.perf_counter() - began

            return timed

    return Clock()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
