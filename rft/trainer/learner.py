"""The learner: samples in, changed weights out.

    update   the samples of one step -> `train.updates` optimizer updates -> metrics
    state    all that a continued run needs (weights, optimizer); `load` refuses that of another
             configuration

An update scores the completion tokens of each microbatch under the present weights, asks the
algorithm (rft/algorithms) for the microbatch's share of the loss, goes backward, and adds up.
Shares are divided by the totals of the whole step, rollouts without a gradient included
(rft/trainer/collect.py). So the result does not depend on the microbatches, on the number of
processes (rft/trainer/distributed.py), or on which forward passes were left out. What must not
change while a step learns is prepared before its first update: the reference policy's
log-probabilities, the critic's values and the advantages from them. The old log-probabilities are
those of the first update.

An update is an error if its gradient is not finite, or if it changed no weight despite a gradient.
Healthy curves over weights that do not change are the worst thing that a trainer can show.

Shapes: N completion tokens of B samples in a microbatch.
"""

from __future__ import annotations

import copy
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from rft import algorithms, commands, config, progress
from rft.algorithms.ratio import ratio_minus_1
from rft.algorithms.tokens import Tokens, Totals
from rft.errors import RftError, UserError
from rft.models import heap, weights
from rft.models.shape import num_positions
from rft.trainer import activations, forward, rates, sharding
from rft.trainer.critic import Critic
from rft.trainer.logprobs import Scored, own_logprobs
from rft.trainer.packing import Counted, Layout, TrainingSample, bundles, layout, microbatches, num_sharing, share
from rft.trainer.processes import Processes

FIRST = ("loss", "grad_norm", "logprob_mismatch", "mismatch_kl", "entropy")
"""Metrics that come from a step's first update, under the weights that sampled. The others come
from its last, where the ratio has moved farthest."""

NUM_COMPARED = 2**16
"""How many values of a weight are compared before and after an update. A copy of all would be as
large as the model."""


class Diverged(RftError):
    """A gradient or a weight is not finite."""


@dataclass(slots=True)
class _Micro:
    """A microbatch, and what is known of it before and after the first update."""

    layout: Layout
    idle: bool
    """It has no weight, and is run because other processes need this one to take part in the
    pass."""
    sampled_logprobs_N: torch.Tensor | None
    """None: no sampler of ours wrote it, so there is nothing to compare."""
    advantage_N: torch.Tensor
    old_logprobs_N: torch.Tensor | None = None
    reference_logprobs_N: torch.Tensor | None = None
    old_values_N: torch.Tensor | None = None
    returns_N: torch.Tensor | None = None


class Learner:
    """Learns. The plain `network` becomes `model`, with an adapter or with all its weights.

    `keys`: where its settings are in params.yaml, for errors.
    """

    def __init__(
        self,
        network: Any,
        section: config.Train,
        norm_length: int,
        device: torch.device,
        team: Processes | None = None,
        keys: str = "train",
    ):
        section = rates.resolved(section, rates.width_of(network.config))
        self.section, self.norm_length, self.device, self.keys = section, norm_length, device, keys
        self.team = team or Processes()
        self.algorithm = algorithms.from_params(section)
        if self.team.size > 1 and self.team.rank == 0:
            self.team.order("learner", copy.deepcopy(network).cpu(), section, norm_length, device.type)
        self.bfloat16 = device.type == "cuda" and next(network.parameters()).dtype == torch.bfloat16
        self.model = weights.trainable(network.float() if section.weights == "full" else network, section)
        self._largest = 0  # the largest microbatch that was checked, in tokens
        if section.gradient_checkpointing is True:
            self.model.activation_checkpointing_enable()
        self._trainable = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.team.same([parameter.detach() for parameter in self._trainable])
        self._network = sharding.sharded(self.model) if self.team.shards else self.model
        self.parameters = [parameter for parameter in self._network.parameters() if parameter.requires_grad]
        self._frozen = (
            self._copy() if "reference" in self.algorithm.requirements and section.weights == "full" else None
        )
        if self.team.shards and self.team.rank:
            self.model.cpu()  # it is only kept up to date
        self.packing_width = self._packing_width() if section.packing else None
        """The bound on rows (`packing.widest`); None: samples are laid side by side."""
        self.critic = (
            Critic(self.model, section.ppo.critic_lr, device) if "values" in self.algorithm.requirements else None
        )
        self.optimizer = torch.optim.AdamW(self.parameters, lr=section.peak_lr, betas=(0.9, 0.95), weight_decay=0.0)
        self.start = self._started()
        self._fresh_critic = None if self.critic is None else copy.deepcopy(self.critic.state())
        self._memory = heap.Steps(self.model)
        self.num_updates = 0
        phases = ("preparing", "forward", "backward", "optimizer", *(["exchange"] if self.team.size > 1 else []))
        self.seconds: dict[str, float] = dict.fromkeys(phases, 0.0)
        """Seconds spent so far, by phase."""

    def _packing_width(self) -> float:
        """Return the hidden size; infinite where attention is computed a branch at a time."""
        is_ours = forward.knows(self._network.get_decoder())
        return math.inf if is_ours else self.model.config.get_text_config().hidden_size

    # -- a step ------------------------------------------------------------------------------------
    def update(self, samples: Sequence[TrainingSample], counted: Counted, lr: float | None = None) -> dict[str, float]:
        """Learn from the samples of a step. `counted`: these, and what counts without a gradient.
        `lr`: the policy's rate; None: the peak. Without samples nothing changes.
        """
        if not samples:
            return {"samples/trained": 0}
        self._check(samples, counted)
        lr = self.section.peak_lr if lr is None else lr
        self.team.order("update", list(samples), counted, lr)
        return self.do_update(samples, counted, lr)

    def do_update(self, samples: Sequence[TrainingSample], counted: Counted, lr: float) -> dict[str, float]:
        """Do this process's share of `update`."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        num_pairs = len({sample.pair for sample in samples if sample.pair >= 0})
        weight = sum(sample.weight for sample in samples)
        totals = Totals(counted.num_rollouts, counted.num_tokens, self.norm_length, num_pairs, weight)
        num_own = sum(sample.num_own for sample in samples)
        learns = any(sample.advantage for sample in samples)
        self._network.train()
        with self.team.learning(), self._memory.one():
            with self._clock("preparing"):
                mine = share(samples, self.team.rank, self.team.size)
                cut = microbatches(mine, self.section.microbatch_tokens, self.packing_width)
                micros = [self._plan(rows) for rows in cut]
                if self.team.shards:
                    fill = self.team.most(len(micros)) - len(micros)
                    micros += [self._plan([[one] for one in bundles(samples)[0]], idle=True) for _ in range(fill)]
            self._checkpoint_activations(micros)
            self._prepare(micros)
            found: dict[str, float] = {}
            for _ in range(self.section.updates):
                with heap.told(*self._memory_hint(micros)):
                    facts = self._accumulate(micros, totals, num_own)
                with self._clock("optimizer"):
                    facts |= {"grad_norm": self._apply(learns)}
                found = facts | {name: found[name] for name in FIRST if name in found}
            self._gather()
        change = self.weight_change()
        if not math.isfinite(change):
            why = f"the weights have left all bounds at a learning rate of {lr:g}"
            raise Diverged(f"update {self.num_updates}: {why}. Lower {self.keys}.lr.")
        if any(other != change for other in self.team.gather(change)):
            raise RftError("the processes' weights differ. This is a bug: please report it with your params.yaml.")
        told: dict[str, float] = {"samples/trained": len(samples), "lr": lr, **found, "weights/change": change}
        if self.algorithm.has_kl_gradient:
            told["samples/kl_only"] = sum(sample.advantage == 0.0 for sample in samples)
        if self.section.packing:
            told["packing/shared_share"] = sum(self.team.gather(sum(map(num_sharing, cut)))) / len(samples)
        return told

    def _check(self, samples: Sequence[TrainingSample], counted: Counted) -> None:
        assert counted.num_rollouts >= len(samples), "what is learned from is counted"
        assert counted.num_tokens >= sum(sample.num_own for sample in samples), "what is learned from is counted"
        limit = num_positions(self.model.config)
        longest = max(len(sample.ids) for sample in samples)
        if limit is not None and longest > limit:
            what = f"a rollout of {longest} tokens cannot be learned from: the model has {limit} positions"
            raise UserError(f"{what}. Lower rollout.max_tokens in params.yaml.")

    def _checkpoint_activations(self, micros: list[_Micro]) -> None:
        """If this step's largest microbatch would not fit otherwise, compute activations again from
        now on. Only with train.gradient_checkpointing: auto."""
        is_asked = self.section.gradient_checkpointing == "auto" and self.team.size == 1
        if not is_asked or self.model.is_activation_checkpointing:
            return
        largest = max((micro.layout for micro in micros), key=lambda one: one.ids_RT.numel())
        if largest.ids_RT.numel() <= self._largest:
            return
        self._largest = largest.ids_RT.numel()
        rows, width = largest.ids_RT.shape
        micro = activations.Microbatch(rows, width, min(width - 1, -(-len(largest.ids_N) // rows)))
        first = not self.optimizer.state
        if (found := activations.shortage(self.model, self.section, micro, self.device, first)) is not None:
            self.model.activation_checkpointing_enable()
            need, free = (f"{size / 2**30:.1f} GiB" for size in found)
            what = f"a microbatch of {rows} x {width} tokens needs about {need}, and {free} are free"
            told = f"{what}: activations are computed again in the backward pass"
            progress.print_line("train", f"{told}. Lower {self.keys}.microbatch_tokens to be faster.")

    def _memory_hint(self, micros: list[_Micro]) -> tuple[str, str]:
        """Say what the largest microbatch is, and which setting makes it smaller."""
        shapes = [tuple(micro.layout.ids_RT.shape) for micro in micros]
        rows, wide = max(shapes, key=math.prod, default=(0, 0))
        now = self.section.microbatch_tokens
        longest = max((len(one.ids) for micro in micros for one in micro.layout.samples), default=0)
        what = f"learning from a microbatch of {rows} x {wide} tokens"
        again = "" if self.model.is_activation_checkpointing else f", or set {self.keys}.gradient_checkpointing: true"
        if rows * wide > longest:
            lower = max(64, longest, min(now, rows * wide) // 2)
            return what, f"Lower {self.keys}.microbatch_tokens from {now} to {lower}{again}."
        return what, f"It is one rollout. Lower rollout.max_tokens to {max(16, longest // 2)}{again}."

    def _plan(self, rows: list[list[TrainingSample]], idle: bool = False) -> _Micro:
        planned = layout(rows, self.device)
        logprobs = [value for sample in planned.samples for value in sample.logprobs]
        sampled_logprobs_N = torch.tensor(logprobs, device=self.device) if logprobs else None
        advantages = [sample.advantage for sample in planned.samples]
        advantage_B = torch.tensor(advantages, dtype=torch.float32, device=self.device)
        advantage_N = advantage_B[planned.row_N]
        if planned.weight_N is not None:
            advantage_N = advantage_N * planned.weight_N
        return _Micro(planned, idle, sampled_logprobs_N, advantage_N)

    @torch.no_grad()
    def _prepare(self, micros: list[_Micro]) -> None:
        """Compute what must not change while the step learns."""
        for micro in micros:
            if "reference" in self.algorithm.requirements:
                with self._clock("forward"), self._reference() as network:
                    micro.reference_logprobs_N = self._score(network, micro.layout).logprobs_N
            if self.critic is not None:
                with self._clock("forward"):
                    hidden_NE = self._score(self._network, micro.layout).hidden_NE
                    micro.old_values_N, micro.advantage_N, micro.returns_N = self.critic.judge(
                        hidden_NE, micro.layout, self.section.ppo
                    )

    @contextmanager
    def _reference(self) -> Iterator[Any]:
        """Yield the policy that training started from: the disabled adapter, or the frozen copy."""
        if self._frozen is not None:
            yield self._frozen
        else:
            with self._network.disable_adapter():
                yield self._network

    def _accumulate(self, micros: list[_Micro], totals: Totals, num_own: int) -> dict[str, float]:
        """Accumulate gradients of the step's loss; return the loss, and means over its `num_own`
        completion tokens."""
        owners = self._owners()
        for owner in owners:
            owner.optimizer.zero_grad(set_to_none=True)
        sums: Counter[str] = Counter()
        mismatch: float | None = None
        learned, rows = 0, sum(len(micro.layout.samples) for micro in micros)
        for micro in micros:
            progress.within("train", f"learning: {learned} of {rows} rollouts")
            learned += len(micro.layout.samples)
            with self._clock("forward"):
                tokens = self._tokens(micro)
                loss = self.algorithm.loss(tokens, totals)
            with self._clock("backward"):
                (loss * 0.0 if micro.idle else loss).backward()
            if micro.idle:
                continue
            with self._clock("forward"):
                sums.update(self.algorithm.facts(tokens))
                entropy_N = tokens.entropy_N if tokens.is_own_N is None else tokens.entropy_N[tokens.is_own_N]
                sums.update({"loss": loss.item(), "entropy": entropy_N.sum().item()})
                if micro.sampled_logprobs_N is not None:
                    gap_N = tokens.logprobs_N.detach() - micro.sampled_logprobs_N
                    mismatch = max(mismatch or 0.0, gap_N.abs().max().item())
                    sums.update({"mismatch_kl": (ratio_minus_1(gap_N) - gap_N).sum().item()})
        if self.team.size > 1:
            parameters = [parameter for owner in owners for parameter in owner.parameters]
            with self._clock("exchange"):
                self.team.sum([_gradient(one) for one in parameters if not hasattr(one, "full_tensor")])
                gathered = self.team.gather((sums, mismatch))
            sums = Counter()
            for theirs, largest in gathered:
                sums.update(theirs)
                mismatch = largest if mismatch is None else max(mismatch, largest or 0.0)
        loss_sum = sums.pop("loss", 0.0)
        means = {name: value / num_own for name, value in sums.items()}
        compared = {} if mismatch is None else {"logprob_mismatch": mismatch}
        return {"loss": loss_sum} | compared | means

    def _tokens(self, micro: _Micro) -> Tokens:
        scored = self._score(self._network, micro.layout)
        if micro.old_logprobs_N is None:
            micro.old_logprobs_N = scored.logprobs_N.detach()
        return Tokens(
            logprobs_N=scored.logprobs_N,
            old_logprobs_N=micro.old_logprobs_N,
            sampled_logprobs_N=micro.old_logprobs_N if micro.sampled_logprobs_N is None else micro.sampled_logprobs_N,
            advantage_N=micro.advantage_N,
            row_N=micro.layout.row_N,
            entropy_N=scored.entropy_N,
            num_rows=len(micro.layout.samples),
            reference_logprobs_N=micro.reference_logprobs_N,
            values_N=None if self.critic is None else self.critic(scored.hidden_NE),
            old_values_N=micro.old_values_N,
            returns_N=micro.returns_N,
            is_own_N=micro.layout.is_own_N,
        )

    def _score(self, network: Any, planned: Layout) -> Scored:
        with torch.autocast("cuda", torch.bfloat16) if self.bfloat16 else nullcontext():
            return (sharding.score if self.team.shards else own_logprobs)(network, planned, self.section.temperature)

    def _apply(self, learns: bool) -> float:
        """Do one optimizer update; return the gradient's norm before clipping. `learns`: there are
        advantages. A KL alone may be too small to change a weight."""
        self.num_updates += 1
        norm = sharding.whole(torch.nn.utils.clip_grad_norm_(self.parameters, self.section.clip_grad)).item()
        if not math.isfinite(norm):
            shown = commands.command("rollouts list", "--live", "--stage", "train")
            remedy = f", or look at its rollouts: {shown}" if self.keys == "train" else "."
            raise Diverged(f"update {self.num_updates}: the gradient is not finite. Lower {self.keys}.lr{remedy}")
        before = [_some(parameter) for parameter in self.parameters]
        self.optimizer.step()
        if self.critic is not None:
            self.critic.learn(self.section.clip_grad)
        still = all(torch.equal(_some(now), then) for now, then in zip(self.parameters, before, strict=True))
        if learns and norm > 0 and (self.team.most(0 if still else 1) == 0 if self.team.shards else still):
            dtype, lr = self.parameters[0].dtype, self.optimizer.param_groups[0]["lr"]
            why = f"A learning rate of {lr:.2g} is too small for {dtype}: raise {self.keys}.lr."
            raise RftError(f"update {self.num_updates}: the optimizer changed no weight. {why}")
        return norm

    @torch.no_grad()
    def weight_change(self) -> float:
        """Return the L2 distance from where training started."""
        pairs = zip(self._trainable, self.start, strict=True)
        return math.sqrt(sum((now - then).square().sum().item() for now, then in pairs))

    @torch.no_grad()
    def _gather(self) -> None:
        """Copy the weights that learned into the plain model."""
        if self.team.shards:
            for mine, theirs in zip(self._trainable, self.parameters, strict=True):
                mine.copy_(sharding.whole(theirs))

    def free_gradients(self) -> None:
        """Make room for the sampling that comes next. An update starts without gradients anyway."""
        for owner in self._owners():
            owner.optimizer.zero_grad(set_to_none=True)

    def _owners(self) -> list[Any]:
        """List the objects that have an optimizer."""
        return [self] if self.critic is None else [self, self.critic]

    def _started(self) -> list[torch.Tensor]:
        """Keep the weights that training starts from: those of the frozen copy, if there is one."""
        if self._frozen is not None and not self.team.shards:
            return [parameter.detach() for parameter in self._frozen.parameters()]
        return [parameter.detach().clone() for parameter in self._trainable]

    def _copy(self) -> Any:
        frozen = copy.deepcopy(self.model).requires_grad_(False)
        return sharding.sharded(frozen) if self.team.shards else frozen

    @contextmanager
    def _clock(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds[phase] += time.monotonic() - began

    # -- kill and go on ----------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """Return tensors and plain values, which torch.load reads with weights_only. They are not
        copies: write them down before the next update."""
        self.team.order("state")
        return self.do_state()

    def do_state(self) -> dict[str, Any]:
        """Do this process's share of `state`."""
        optimizer = self.optimizer.state_dict()
        state = {
            place: {name: sharding.whole(value) for name, value in values.items()}
            for place, values in optimizer["state"].items()
        }
        return {
            "parameters": {name: parameter.detach() for name, parameter in self._named()},
            "optimizer": optimizer | {"state": state},
            "critic": self.critic and self.critic.state(),
            "num_updates": self.num_updates,
        }

    def fresh(self) -> dict[str, Any]:
        """Return the state in which training started, for `load`."""
        return {
            "parameters": dict(zip((name for name, _ in self._named()), self.start, strict=True)),
            "optimizer": self.optimizer.state_dict() | {"state": {}},
            "critic": self._fresh_critic,
            "num_updates": 0,
        }

    def weights_state(self) -> dict[str, Any]:
        """Return only the weights, in the form of `state`, for a copy that does not learn
        further."""
        return {"parameters": {name: parameter.detach() for name, parameter in self._named()}}

    def load_weights(self, state: dict[str, Any]) -> None:
        """Restore the weights that `weights_state` returned, or those of a whole state. Raises
        UserError for weights of another configuration."""
        self._fits(state | {"critic": self.critic and self.critic.state()})
        self.team.order("load_parameters", state["parameters"])
        self.do_load_parameters(state["parameters"])

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state. Raises UserError for a state of another configuration."""
        self._fits(state)
        self.team.order("load", state)
        self.do_load(state)

    def _fits(self, state: dict[str, Any]) -> None:
        mine = {name: parameter.shape for name, parameter in self._named()}
        theirs = {name: tensor.shape for name, tensor in state["parameters"].items()}
        if mine != theirs or (self.critic is None) != (state["critic"] is None):
            odd = next((name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)), "the critic")
            what = f"this checkpoint belongs to another configuration: {odd} does not fit"
            raise UserError(f"{what}. Start over, or go back to its params.yaml.")

    @torch.no_grad()
    def do_load_parameters(self, parameters: dict[str, torch.Tensor]) -> None:
        """Do this process's share of `load_weights`."""
        for name, parameter in self._named():
            parameter.copy_(parameters[name])
        for theirs, mine in zip(self.parameters, self._trainable, strict=True):
            if theirs is not mine:
                theirs.copy_(sharding.part(mine.detach(), theirs))

    def do_load(self, state: dict[str, Any]) -> None:
        """Do this process's share of `load`."""
        self.do_load_parameters(state["parameters"])
        cut = {
            place: {name: sharding.part(value, self.parameters[place]) for name, value in values.items()}
            for place, values in state["optimizer"]["state"].items()
        }
        self.optimizer.load_state_dict(state["optimizer"] | {"state": cut})
        if self.critic is not None:
            self.critic.load(state["critic"])
        self.num_updates = state["num_updates"]

    def _named(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return ((name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad)


def _some(parameter: Any) -> torch.Tensor:
    """Copy some evenly spaced values of the part that this process holds; all values of a small
    part."""
    held = parameter.detach().to_local() if hasattr(parameter, "to_local") else parameter.detach()
    flat = held.reshape(-1)
    return flat[:: max(1, len(flat) // NUM_COMPARED)].clone()


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Return the gradient; zeros where this process's share had none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
