"""The policy of a stage: which weights sample, and where.

    load_policy(runner, "champion", device)         what is served now (rft/stage_files.py)
    load_policy(runner, "policy", device, trained)  the base model with trained weights
    following(runner, learner, ...)                 the learner's present weights, step by step
    base_model(params, "policy", device)          the model itself, without a sampler

The policy runs in this process, or on the server that `policy.server` names. A server gets weights
as LoRA adapters; a chat endpoint has the weights that its owner gave it. Each policy comes with the
hash of its weights, which the reports keep.
"""

from __future__ import annotations

import copy
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rft import commands, config, files, recipe, stage_files
from rft.chat.renderer import Chat
from rft.errors import ConfigError, UserError
from rft.models import source, weights
from rft.models.weights import Weights
from rft.reports import Champion, PolicyReport
from rft.rollouts.policy import Policy
from rft.rollouts.runner import RolloutRunner
from rft.sampling import remote
from rft.sampling.engine import Engine
from rft.tools.signatures import schemas


@dataclass(frozen=True, slots=True)
class Sampling:
    """A policy and the hash of its weights."""

    policy: Policy
    weights_sha256: str


Trained = tuple[Weights, Path]
"""Kind and folder of a train stage's weights."""


def load_policy(
    runner: RolloutRunner,
    which: Literal["policy", "champion"],
    device: Any,
    trained: Trained | None = None,
    name: str = "agent-rft",
) -> Sampling:
    """Make a policy. `name`: the adapter's name at a server; two arms that share a server need two
    names."""
    if runner.params.policy.server is not None:
        return _served(runner, which, trained, name)
    # trained weights belong on the base model, even if training started from the champion's
    network, chat = base_model(runner.params, "policy" if trained else which, device, runner.schemas)
    if trained is not None:
        network = weights.with_weights(network, *trained, device)
    return Sampling(Engine(network, chat, device, runner.params.rollout.deterministic), weights.weights_sha256(network))


def _served(
    runner: RolloutRunner, which: Literal["policy", "champion"], trained: Trained | None, name: str
) -> Sampling:
    params, pointer, served = runner.params, stage_files.read(PolicyReport), stage_files.champion()
    assert params.policy.server is not None
    policy = remote.policy_for(params.policy.server, runner.schemas, lambda: chat_of(runner))
    runner.wait(policy.fetch_context_limit(params.rollout.max_tokens))
    kind: Weights = "none"
    folder = None
    if which == "champion" and served.weights_path:
        kind, folder = served.weights, stage_files.folder("champion") / served.weights_path
    if trained is not None:
        kind, folder = trained
    if folder is None:
        return Sampling(policy, pointer.sha256)
    if kind != "lora" or not isinstance(policy, remote.TokenPolicy):
        raise ConfigError(
            f"{folder}: these are {kind} weights, but policy.server (kind {params.policy.server.kind}) can only take "
            "LoRA adapters, by token routes. Serve the weights there yourself and set policy.model to them, or sample "
            "in this process: policy.server: null."
        )
    runner.wait(policy.update(folder, 0, name))
    return Sampling(policy, files.tree_sha256(folder))


def base_model(
    params: config.Params, which: Literal["policy", "champion"], device: Any, tools: list[dict[str, Any]] | None = None
) -> tuple[Any, Chat]:
    """Load the model that a stage starts from, with the champion's weights on it, and its chat.
    `tools`: None for the recipe's."""
    pointer = stage_files.read(PolicyReport)
    network, tokenizer = weights.load(source.base(pointer, params.policy), params.policy, device)
    served = stage_files.champion()
    if which == "champion" and served.weights_path:
        if served.base_sha256 not in (None, pointer.sha256):
            raise UserError(
                f"{stage_files.path(Champion)}: the champion's weights (run {served.run}) were trained on another base "
                f"model than data/policy holds now ({served.base_sha256[:12]}, not {pointer.sha256[:12]}). Restore the "
                "policy's settings in params.yaml, or go back to a champion without weights of its own: "
                f"{commands.rollback(params.agent_name)}"
            )
        folder = stage_files.folder("champion") / served.weights_path
        network = weights.with_weights(network, served.weights, folder, device)
    if tools is None:
        tools = schemas(recipe.load(params.recipe))
    return network, Chat(tokenizer, tools, params.policy.tool_format)


def chat_of(runner: RolloutRunner) -> Chat:
    """Load the tokenizer and template of the base model, without its weights."""
    section = runner.params.policy
    return Chat(
        weights.tokenizer(source.base(stage_files.read(PolicyReport), section)), runner.schemas, section.tool_format
    )


class InProcess:
    """Samples in this process, with a twin of the learner that has the adapter. With full weights
    the twin is the learner itself, unless sampling runs ahead. `policy` is the sampler that is
    judged, and `behavior` samples what is learned from. They differ if `train.decoding` says so."""

    def __init__(self, runner: RolloutRunner, learner: Any, chat: Chat, device: Any) -> None:
        self._learner = learner
        twin = weights.sampler_copy(learner)
        if twin is learner and runner.params.train.lag:
            twin = copy.deepcopy(learner).requires_grad_(False)
        self.policy = Engine(twin, chat, device, runner.params.rollout.deterministic)
        self.policy.model.eval()
        self.behavior = self.policy.decoding_in(runner.params.train.decoding)

    def sync_weights(self, step: int) -> None:
        weights.sync(self._learner, self.policy.model)
        self.policy.model.eval()


class AtServer:
    """A server that gets the learner's adapter after each step, in a folder that both can read."""

    def __init__(self, runner: RolloutRunner, learner: Any, policy: remote.TokenPolicy, work: Path) -> None:
        self._runner, self._learner, self._work = runner, learner, work
        self.policy = self.behavior = policy
        self.sync_weights(0)

    def sync_weights(self, step: int) -> None:
        folder = self._work / "served" / str(step)
        shutil.rmtree(folder, ignore_errors=True)
        weights.save(self._learner, folder)
        self._runner.wait(self.policy.update(folder, step, "learner"))
        for old in folder.parent.iterdir():
            if old != folder:
                shutil.rmtree(old)


def following(runner: RolloutRunner, learner: Any, chat: Chat, device: Any, work: Path) -> InProcess | AtServer:
    """Make the sampler of a learner, which always has the learner's present weights: on-policy."""
    server, train = runner.params.policy.server, runner.params.train
    if server is None:
        return InProcess(runner, learner, chat, device)
    policy = remote.policy_for(server, runner.schemas, lambda: chat)
    has_base = train.from_ != "champion" or stage_files.champion().weights == "none"
    if train.weights != "lora" or not has_base or not isinstance(policy, remote.TokenPolicy):
        raise ConfigError(
            f"params.yaml: policy.server (kind {server.kind}) samples with LoRA adapters on the model that it was "
            "started with. Set train.weights: lora and train.from: policy, or sample in this process: "
            "policy.server: null."
        )
    runner.wait(policy.check(runner.params.rollout.max_tokens, train.temperature))
    return AtServer(runner, learner, policy, work)


__all__ = ["AtServer", "InProcess", "Sampling", "base_model", "chat_of", "following", "load_policy"]
