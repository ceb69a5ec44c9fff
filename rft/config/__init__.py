"""params.yaml, the one file that configures a run.

It has one section per stage, and the sections recipe, tools, rollout and run.

An unknown key is an error that names the nearest known one. A value that cannot be honored is an
error here, before any compute is spent. A stage reads the whole file once with `load`, and uses its
own section and the shared ones.

    section, shared, stages, train, run    the keys, each with its meaning
    warm_start                             the keys of a warm start, in policy and in train
    notify, openlineage                    the keys of run that say where messages go
    response_format                        the form of the final answer
    graders, scaled, judges, source        grader.json: a grader as data, of seven types
    abstention                             the score of an answer that says "I don't know"
    templates, formula                     the small languages in grader.json
    reading                                reads YAML into sections, and refuses what is wrong
    reference, pages                       write docs/params.md and a part of docs/graders.md from
                                           the keys' docstrings
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, model_validator

from rft.config import reading
from rft.config.notify import Mail, Notify, Webhook
from rft.config.openlineage import OpenLineage
from rft.config.reading import named, read_yaml, refuse_unset, secret, unique, yaml_value
from rft.config.run import Retention, Run
from rft.config.section import Section
from rft.config.shared import (
    CHAT_MAX_TURN_TOKENS,
    IN_PROCESS_MAX_TOKENS,
    Allowance,
    Budget,
    Endpoint,
    Lifecycle,
    McpServer,
    Recipe,
    Rollout,
    RolloutState,
    Tools,
    Traits,
)
from rft.config.stages import (
    Architecture,
    Baseline,
    Challenger,
    Drift,
    Effects,
    Examples,
    Gate,
    Keys,
    Policy,
    PolicyServer,
    Prices,
    Prompt,
    Serve,
    Traffic,
)
from rft.config.train import Clip, Curriculum, Dpo, Kl, Overlong, Ppo, Stop, Supervised, Train
from rft.config.warm_start import Lora, WarmStart
from rft.errors import ConfigError

AGENT_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"


class Params(Section):
    agent: str | None = Field(None, pattern=AGENT_NAME)
    """The agent's name in the ledger, MLflow and messages. No other agent of the workspace may have
    it. It stays the same when the folder moves. null: the name of the recipe's folder."""
    recipe: Recipe
    tools: Tools = Tools()
    rollout: Rollout = Rollout()
    traffic: Traffic = Traffic()
    drift: Drift = Drift()
    examples: Examples = Examples()
    policy: Policy = Policy()
    baseline: Baseline = Baseline()
    prompt: Prompt = Prompt()
    train: Train = Train()
    challenger: Challenger = Challenger()
    gate: Gate
    run: Run = Run()

    @property
    def agent_name(self) -> str:
        return self.agent or Path(self.recipe.path).name

    def identity(self) -> dict[str, Any]:
        """Return all settings but section `run`, with every default written out."""
        return self.model_dump(mode="json", by_alias=True, exclude={"run"} if self.agent else {"run", "agent"})

    @model_validator(mode="after")
    def _context(self) -> Params:
        """Set the default of rollout.max_tokens for a policy that is sampled in this process, and
        of max_turn_tokens for one behind a chat-completions server. Neither counts as set in the
        file."""
        rollout, server = self.rollout.model_copy(), self.policy.server
        if "max_turn_tokens" not in rollout.model_fields_set and server is not None and server.kind == "chat":
            object.__setattr__(rollout, "max_turn_tokens", CHAT_MAX_TURN_TOKENS)  # sections are frozen
        if rollout.max_tokens is None and server is None:
            object.__setattr__(rollout, "max_tokens", max(IN_PROCESS_MAX_TOKENS, 4 * rollout.max_turn_tokens))
        object.__setattr__(self, "rollout", rollout)
        return self

    @model_validator(mode="after")
    def _shown(self) -> Params:
        """Limit the default of challenger.shown to the validation examples that there are. A larger
        number in the file is an error."""
        shown, there = self.challenger.shown, self.examples.validation
        if shown <= there:
            return self
        if "shown" in self.challenger.model_fields_set:
            raise ValueError(
                f"challenger.shown = {shown} and examples.validation = {there}: no more examples can be shown than "
                "there are. Show fewer, or ask for more validation examples"
            )
        challenger = self.challenger.model_copy()
        object.__setattr__(challenger, "shown", there)  # sections are frozen
        object.__setattr__(self, "challenger", challenger)
        return self

    @model_validator(mode="after")
    def _decoding(self) -> Params:
        server, train = self.policy.server, self.train
        if train.decoding != "float32" and (server is not None or self.policy.dtype != "float32"):
            why = "policy.server samples" if server is not None else f"policy.dtype is {self.policy.dtype}"
            raise ValueError(f"train.decoding = {train.decoding} cannot be honored: {why}. Remove train.decoding")
        return self

    @model_validator(mode="after")
    def _temperatures(self) -> Params:
        server = self.policy.server
        if server is None or server.dialect != "openai_reasoning":
            return self
        given = {"baseline": self.baseline, "prompt": self.prompt, "challenger": self.challenger}
        other = [f"{name}.temperature = {x.temperature:g}" for name, x in given.items() if x.temperature != 1]
        if other:
            raise ValueError(
                f"{', '.join(other)} cannot be honored: policy.server.dialect = openai_reasoning sends no temperature, "
                "and its models sample at 1. Set it to 1, or set policy.server.dialect: openai"
            )
        return self


_BEFORE = {"alpha": 0.05, "looks": 1, "min_slice": 2}
_BEFORE |= {"max_turns_p95_increase": 1000.0, "max_unreadable_increase": 1.0, "max_unscored_increase": 1.0}
"""Keys of section gate that have no default and that version 0.1.0 did not have, with the values by
which it decided. It compared neither turns nor calls that cannot be read."""


def load(path: Path | str = "params.yaml", recorded: bool = False) -> Params:
    """Read the settings. `recorded`: those of an earlier run. Raises ConfigError naming the file,
    the key and the value."""
    path = Path(path)
    found = read_sections(path, str(path))
    return parse(of_then(found) if recorded else found, str(path))


def of_then(found: dict[str, Any]) -> dict[str, Any]:
    """Add the gate's keys that an earlier version did not write to the settings of a recorded run.
    So its agent can be exported, tried and graded again. A new run must set them itself."""
    gate = found.get("gate")
    return found | {"gate": _BEFORE | gate} if isinstance(gate, dict) else found


def read_sections(path: Path, where: str) -> dict[str, Any]:
    """Read the file's sections as written. Raises ConfigError, which begins with `where`."""
    try:
        found = reading.read_yaml(path, where)
    except FileNotFoundError:
        raise ConfigError(f"{where}: missing. This file configures a run; `rft new` writes one.") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: holds {type(found).__name__}, expected sections such as 'recipe:' and 'gate:'.")
    return found


def parse(found: dict[str, Any], where: str = "params.yaml", model: type[BaseModel] = Params) -> Any:
    """Make a `model` of what was `found`, and register the secrets that it names. One ConfigError
    names every problem."""
    return reading.parse(found, where, model)


__all__ = [
    "Allowance", "Architecture", "Baseline", "Budget", "Challenger", "Clip", "Curriculum", "Dpo", "Drift", "Effects",
    "Endpoint", "Examples", "Gate", "Keys", "Kl", "Lifecycle", "Lora", "Mail", "McpServer", "Notify", "OpenLineage",
    "Overlong", "Params", "Policy", "PolicyServer", "Ppo", "Prices", "Prompt", "Recipe", "Retention", "Rollout",
    "RolloutState", "Run", "Section", "Serve", "Stop", "Supervised", "Tools", "Traffic", "Train", "Traits",
    "WarmStart", "Webhook", "load", "named", "of_then", "parse", "read_sections", "read_yaml", "refuse_unset", "secret",
    "unique", "yaml_value",
]  # fmt: skip
