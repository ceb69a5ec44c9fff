"""The figure `parity_trl`: our losses and gradients, and TRL's, on the same batches and weights.

There is a small network with random weights, and random dialogues of different lengths with tool
results in the middle. The log-probabilities of the old policy, the sampler and the reference are
near the present ones (a strictly on-policy step has ratio 1), or so far away that clips apply.
TRL's trainers compute the loss by their own code in their own environment
(bench/parity_peer.py). Ours is computed as in the learner: samples are laid out in microbatches,
packed or side by side, and scored, and the shares of `rft.algorithms` are added up. The loss and
the gradient of every weight are compared. TRL's advantages are compared on rollouts that it
generates itself, with unscored ones among them, and a group where all scores are the same.

Four differences are matters of definition. The batches show that there are no others (the fourth
does not occur in them):

- KL: TRL's default multiplies k3 by the ratio (`use_bias_correction_kl`, DeepSeek-V3.2, arXiv
  2512.02556). GRPO's paper (arXiv 2402.03300, eq. 4) does not, and neither do we. With it switched
  off, losses and gradients with k3 are compared. With it on, TRL's gradient is r k3' + r' k3 = r d
  grad log policy (rft/algorithms/kl.py), the gradient of our k1. These are compared, too, without
  the losses.
- CISPO: TRL's `epsilon_high` is the largest weight. The paper's is the distance of that weight from
  1 (arXiv 2506.13585, eq. 5): 5 in TRL is 4 in `train.clip.high`.
- RLOO with KL: TRL, like the paper, subtracts the rollout's sum of k1 from its reward. Ours is a
  term of the loss (rft/algorithms/kl.py says why). So TRL's loss with KL is compared with ours
  without KL, on the rewards after that subtraction.
- What a mean runs over: here over all rollouts, as in TRL, including those without an advantage.
  The trainer's loop (rft/trainer/collect.py) counts no unscored ones, and for DAPO no groups
  without variance, as in its eq. 8.

A comparison that could not fail would show nothing. So the last part is how far the two most
similar of our algorithms are from each other here.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bench import peer
from bench.measure import Figure, Part, failed
from rft import config

if TYPE_CHECKING:
    import torch

    from rft.trainer.packing import TrainingSample

BOUND = 1e-5
GROUPS, GROUP = 3, 4
VOCABULARY = 40
MAX_LENGTH = 64
MAX_GENERATED = 12
CAP = 2.0
KL = 0.04
SEEDS = 5
TERMS = ((0.0, "k3", None), (KL, "k3", None), (KL, "k3", CAP), (KL, "k1", None))
"""KL, its estimator, and the cap of the importance weights, for trainers whose loss has them. For
k1 see above."""
DISTANCES = (0.0, 5e-4, 0.05, 0.6, 1.5)
"""Standard deviation of a token's log ratio, by seed: from a first update to one with ratios above
CISPO's 5."""
RLOO_DISTANCE = 0.6
"""The largest distance for RLOO. Its ratio is a whole rollout's, and a ratio of e^8 leaves no
digits for a difference of 1e-5."""
TEMPERATURES = (1.0, 0.7)

GROUP_SIZED = {
    "num_generations": GROUP,
    "per_device_train_batch_size": GROUPS * GROUP,
    "max_completion_length": MAX_LENGTH,
}
PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("GRPO", {"loss_type": "grpo", "epsilon": 0.2}),
    "dr_grpo": ("GRPO", {"loss_type": "dr_grpo", "scale_rewards": "none", "epsilon": 0.2}),
    "dapo": ("GRPO", {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28}),
    "gspo": (
        "GRPO",
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    ),
    "cispo": ("GRPO", {"loss_type": "cispo", "epsilon_high": 5.0}),
    "rloo": ("RLOO", {"epsilon": 0.2}),
    "dpo": ("DPO", {"beta": 0.1}),
}
ROLLED_OUT = ("grpo", "dr_grpo", "rloo")
"""The algorithms whose advantages are compared."""


@dataclass(frozen=True)
class Batch:
    """One entry per rollout. `own` says which tokens of `completion` the policy sampled. The others
    are a tool's."""

    prompt: list[list[int]]
    completion: list[list[int]]
    own: list[list[int]]
    advantages: list[float]
    old: list[list[float]]
    sampled: list[list[float]]
    reference: list[list[float]]

    def samples(self) -> list[TrainingSample]:
        from rft.trainer.packing import TrainingSample

        found: list[TrainingSample] = []
        for n, prompt in enumerate(self.prompt):
            loss_mask = [bool(one) for one in self.own[n]]
            logprobs = list(itertools.compress(self.sampled[n], loss_mask))
            pair = n // 2 if set(self.advantages) == {1.0, -1.0} else -1
            found.append(
                TrainingSample(
                    prompt + self.completion[n],
                    [False] * len(prompt) + loss_mask,
                    logprobs,
                    self.advantages[n],
                    pair=pair,
                )
            )
        return found


@dataclass(frozen=True)
class Case:
    """One loss and its gradient, computed twice."""

    name: str
    algorithm: str
    batch: Batch
    beta: float = 0.0
    estimator: str = "k3"
    cap: float | None = None
    temperature: float = 1.0
    packing: bool = False

    @property
    def section(self) -> config.Train:
        terms = (
            {}
            if self.algorithm == "dpo"
            else {"kl": {"beta": self.beta, "estimator": self.estimator}, "importance_cap": self.cap}
        )
        return config.Train.model_validate({"algorithm": self.algorithm, "temperature": self.temperature} | terms)

    def job(self) -> dict[str, Any]:
        trainer, settings = PEERS[self.algorithm]
        args = (
            settings
            if trainer == "DPO"
            else settings | GROUP_SIZED | {"beta": self.beta, "temperature": self.temperature}
        )
        if trainer == "GRPO":
            args |= {"use_bias_correction_kl": self.estimator == "k1"}
        job = {
            name: getattr(self.batch, name)
            for name in ("prompt", "completion", "own", "advantages", "old", "reference")
        }
        job |= {"name": self.name, "trainer": trainer, "args": args}
        if self.cap is not None:
            pairs = zip(self.batch.old, self.batch.sampled, strict=True)
            job["importance"] = [
                [min(self.cap, math.exp(old - sampled)) for old, sampled in zip(*rows, strict=True)] for rows in pairs
            ]
        return job


@dataclass(frozen=True)
class Answer:
    loss: float
    gradient: NDArray[np.float32]
    """The gradient of all weights, one after another by name."""

    def distance(self, other: Answer, losses: bool = True) -> float:
        """Return the larger of two differences: that of the losses (of a loss above 1 relative to
        it), and that of any weight's gradient in units of the largest gradient."""
        gap = float(np.abs(self.gradient - other.gradient).max()) / max(float(np.abs(other.gradient).max()), 1e-12)
        return max(abs(self.loss - other.loss) / max(1.0, abs(other.loss)) if losses else 0.0, gap)


# -- the figure ------------------------------------------------------------------------------------
def parity_trl(args: list[str]) -> Figure:
    """Losses and gradients of seven algorithms, and advantages, against TRL's own code on the same
    batches in float32 (<= 1e-5)."""
    from bench.figure import ROOT

    folder = ROOT / ".rft" / "bench" / "parity"
    return compare(folder)


def compare(folder: Path, seeds: int = SEEDS) -> Figure:
    networks = make_networks(folder)
    cases = [case for seed in range(seeds) for case in cases_of(seed, networks)]
    rolled_out = [_rollout_job(name) for name in ROLLED_OUT]
    (folder / "jobs.json").write_text(json.dumps([*(case.job() for case in cases), *rolled_out]), encoding="utf-8")
    try:
        peer.run("trl", ["bench/parity_peer.py", folder], folder / "peer.log", timeout_s=1200)
    except peer.PeerFailed as error:
        return failed("largest difference", str(error))
    mine = {case.name: ours(case, networks) for case in cases}
    gaps = {
        case.name: mine[case.name].distance(_theirs(folder, case.name), losses=case.estimator == "k3") for case in cases
    }
    parts = [
        _part(f"{name}: losses and gradients", gaps, [case for case in cases if case.algorithm == name])
        for name in PEERS
    ]
    parts += [part for job in rolled_out for part in _rolled_out(folder, job, networks)]
    worst = max(part.value for part in parts if part.value is not None)
    for name, gap in sorted(gaps.items(), key=lambda one: -one[1])[:5]:
        print(f"{name}: {gap:.2g}", file=sys.stderr)
    head = Part(
        "largest difference of a loss, gradient or advantage", worst, at_most=BOUND, n=len(cases) + len(rolled_out)
    )
    return Figure((head, *parts, _apart(cases, mine)), {"peer": peer.PEERS["trl"][0], "terms": TERMS})


def _part(name: str, gaps: dict[str, float], cases: Sequence[Case]) -> Part:
    return Part(name, max(gaps[case.name] for case in cases), at_most=BOUND, n=len(cases))


def _apart(cases: Sequence[Case], mine: dict[str, Answer]) -> Part:
    """Return how far apart the two most similar algorithms are. Each pair is compared on the batch
    where it differs most."""
    plain = [case for case in cases if not case.beta and case.cap is None and case.algorithm != "dpo"]
    far: dict[tuple[str, str], float] = {}
    for one, other in itertools.combinations(plain, 2):
        if one.name.split()[1:] == other.name.split()[1:]:
            key, gap = (one.algorithm, other.algorithm), mine[one.name].distance(mine[other.name])
            far[key] = max(far.get(key, 0.0), gap)
    return Part("the two most alike algorithms differ by", min(far.values()), at_least=100 * BOUND, n=len(far))


# -- batches ---------------------------------------------------------------------------------------
def make_networks(folder: Path) -> dict[str, Any]:
    """Make the policy and, near it, the reference. They are saved for the peer, with a tokenizer of
    words t0, t1, ..."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    words = Tokenizer(models.WordLevel({f"t{n}": n for n in range(VOCABULARY)}, unk_token="t2"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="t0", eos_token="t1", unk_token="t2")
    shape: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    architecture = Qwen3Config(
        vocab_size=VOCABULARY, head_dim=16, tie_word_embeddings=False, initializer_range=0.2, pad_token_id=0, **shape
    )
    torch.manual_seed(0)
    policy, reference = Qwen3ForCausalLM(architecture), Qwen3ForCausalLM(architecture)
    with torch.no_grad():
        for now, before in zip(policy.parameters(), reference.parameters(), strict=True):
            before.copy_(now + 0.02 * torch.randn_like(now))
    for name, network in (("policy", policy), ("reference", reference)):
        network.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return {"policy": policy, "reference": reference}


def cases_of(seed: int, networks: dict[str, Any]) -> list[Case]:
    """Yield each algorithm with and without KL and importance weights, if the loss of TRL's trainer
    has them."""
    temperature, packing = TEMPERATURES[seed % 2], bool(seed // 2 % 2)
    found: list[Case] = []
    for name, (trainer, _) in PEERS.items():
        # the ratio of k1 is a token's, and TRL's is that of GSPO
        terms = TERMS[: 1 if trainer != "GRPO" else 3 if name == "gspo" else 4]
        scale = 1.0 if trainer == "DPO" else temperature  # DPO's trainer knows no temperature
        batch = _batch(seed, name, networks["policy"], scale)
        for beta, estimator, cap in terms:
            called = f"{name} {estimator}={beta:g} cap={cap or 0:g} seed={seed}"
            found.append(Case(called, name, batch, beta, estimator, cap, scale, packing))
    return found


def _batch(seed: int, algorithm: str, policy: Any, temperature: float) -> Batch:
    """Make a batch. It has tool results only if TRL's loss supports them: RLOO's does not."""
    from rft import algorithms

    draw = np.random.default_rng([seed, 7])
    tools = algorithm != "rloo"
    prompts = [draw.integers(3, VOCABULARY, draw.integers(2, 9)).tolist() for _ in range(GROUPS)]
    completions = [draw.integers(3, VOCABULARY, draw.integers(1, 16)).tolist() for _ in range(GROUPS * GROUP)]
    own = [(draw.random(len(row)) < 0.7).astype(int).tolist() if tools else [1] * len(row) for row in completions]
    for row in own:
        row[0] = 1  # every rollout has a token of its own
    rewards = np.round(draw.random((GROUPS, GROUP)) * 8) / 8
    advantages = [1.0, -1.0] * (GROUPS * GROUP // 2)
    if algorithm != "dpo":
        section = config.Train.model_validate({"algorithm": algorithm})
        advantages = np.concatenate(algorithms.from_params(section).advantages(rewards.tolist())).tolist()
    prompt = [prompts[n // GROUP] for n in range(GROUPS * GROUP)]
    blank = [[0.0] * len(row) for row in completions]
    now = _logprobs(policy, Batch(prompt, completions, own, advantages, blank, blank, blank), temperature)

    def around(rows: list[list[float]], distance: float, digits: int = 6) -> list[list[float]]:
        noise = [draw.normal(0, 1, len(row)) * distance for row in rows]
        return [
            [round(v + e, digits) * flag for v, e, flag in zip(*one, strict=True)]
            for one in zip(rows, noise, own, strict=True)
        ]

    distance = min(DISTANCES[seed % len(DISTANCES)], RLOO_DISTANCE if algorithm == "rloo" else math.inf)
    old = around(now, distance) if distance else now
    return Batch(prompt, completions, own, advantages, old, around(old, 0.5), around(now, 0.3))


def _logprobs(network: Any, batch: Batch, temperature: float) -> list[list[float]]:
    """Return one entry per token of `completion`, 0 for a tool's. They are rounded to float32, so
    that both sides read the same."""
    import torch

    from rft.trainer.logprobs import own_logprobs
    from rft.trainer.packing import layout

    with torch.no_grad():
        values = iter(
            own_logprobs(
                network, layout([[one] for one in batch.samples()], torch.device("cpu")), temperature
            ).logprobs_N.tolist()
        )
    return [[next(values) if flag else 0.0 for flag in row] for row in batch.own]


# -- ours ------------------------------------------------------------------------------------------
def ours(case: Case, networks: dict[str, Any], max_length: int = MAX_LENGTH) -> Answer:
    """Compute as the learner does (rft/trainer/learner.py), with given log-probabilities of the old
    policy and the reference."""
    import torch

    from rft import algorithms
    from rft.algorithms import Tokens, Totals
    from rft.trainer.logprobs import own_logprobs
    from rft.trainer.packing import layout, microbatches

    policy, batch, samples = networks["policy"], case.batch, case.batch.samples()
    reference = (
        _logprobs(networks["reference"], batch, case.temperature) if case.algorithm == "dpo" else batch.reference
    )
    place = {id(sample): n for n, sample in enumerate(samples)}
    algorithm = algorithms.from_params(case.section)
    totals = Totals(len(samples), sum(one.num_own for one in samples), max_length, len(samples) // 2)
    policy.zero_grad()
    loss = 0.0
    for rows in microbatches(samples, 96, policy.config.hidden_size if case.packing else None):
        planned = layout(rows, torch.device("cpu"))
        mine = [place[id(sample)] for sample in planned.samples]

        def flat(of: Callable[[int], Sequence[float]], mine: list[int] = mine) -> torch.Tensor:
            return torch.tensor([value for n in mine for value, flag in zip(of(n), batch.own[n], strict=True) if flag])

        scored = own_logprobs(policy, planned, case.temperature)
        tokens = Tokens(
            logprobs_N=scored.logprobs_N,
            old_logprobs_N=flat(lambda n: batch.old[n]),
            sampled_logprobs_N=flat(lambda n: batch.sampled[n]),
            advantage_N=flat(lambda n: [batch.advantages[n]] * len(batch.own[n])),
            row_N=planned.row_N,
            entropy_N=scored.entropy_N,
            num_rows=len(planned.samples),
            reference_logprobs_N=flat(lambda n: reference[n]),
        )
        share = algorithm.loss(tokens, totals)
        share.backward()
        loss += share.item()
    return Answer(
        loss, _flat({name: one.grad.numpy() for name, one in policy.named_parameters() if one.grad is not None})
    )


def _theirs(folder: Path, name: str) -> Answer:
    from safetensors.numpy import load_file

    found = load_file(folder / f"{name}.safetensors")
    return Answer(
        float(found["loss"][0]),
        _flat({key.removeprefix("grad."): one for key, one in found.items() if key.startswith("grad.")}),
    )


def _flat(gradients: dict[str, NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.concatenate([gradients[name].ravel() for name in sorted(gradients)])


# -- TRL's own rollouts ----------------------------------------------------------------------------
def _rollout_job(algorithm: str) -> dict[str, Any]:
    """Make a job of rollouts. Two groups have unscored ones; all scores of the third are equal."""
    trainer, settings = PEERS[algorithm]
    rewards = [1.0, 0.0, None, 0.25, 0.7, None, None, 0.1, 0.5, 0.5, 0.5, 0.5]
    prompts = [prompt for prompt in ("t5 t6 t9", "t11", "t4 t30 t7 t8") for _ in range(GROUP)]
    args = settings | GROUP_SIZED | {"max_completion_length": MAX_GENERATED, "beta": KL, "num_iterations": 2}
    if trainer == "GRPO":
        args |= {"use_bias_correction_kl": False}
    return {"name": f"{algorithm} rollouts", "trainer": trainer, "args": args, "prompts": prompts, "rewards": rewards}


def _rolled_out(folder: Path, job: dict[str, Any], networks: dict[str, Any]) -> list[Part]:
    from safetensors.numpy import load_file

    from rft import algorithms

    found = load_file(folder / f"{job['name']}.safetensors")
    algorithm, rewards, beta = job["name"].split()[0], job["rewards"], KL
    prompt, completion = (_unpadded(found[f"{part}_ids"], found[f"{part}_mask"]) for part in ("prompt", "completion"))
    blank = [[0.0] * len(row) for row in completion]
    bare = Batch(prompt, completion, [[1] * len(row) for row in completion], [0.0] * len(prompt), blank, blank, blank)
    old, reference = (_logprobs(networks[name], bare, 1.0) for name in ("policy", "reference"))
    if algorithm == "rloo":
        sums = [sum(row) - sum(other) for row, other in zip(old, reference, strict=True)]
        rewards = [None if reward is None else reward - beta * gap for reward, gap in zip(rewards, sums, strict=True)]
        beta = 0.0
    rewards_PG = [rewards[start : start + GROUP] for start in range(0, len(rewards), GROUP)]
    advantages = np.nan_to_num(
        np.concatenate(algorithms.from_params(config.Train(algorithm=algorithm)).advantages(rewards_PG))
    )
    batch = replace(bare, advantages=advantages.tolist(), old=old, sampled=old, reference=reference)
    gap = ours(Case(job["name"], algorithm, batch, beta), networks, MAX_GENERATED).distance(
        _theirs(folder, job["name"])
    )
    return [
        Part(
            f"{algorithm}: advantages of TRL's rollouts",
            float(np.abs(advantages - found["advantages"]).max()),
            at_most=BOUND,
            n=len(rewards),
        ),
        Part(f"{algorithm}: loss and gradient of TRL's rollouts", gap, at_most=BOUND, n=1),
    ]


def _unpadded(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> list[list[int]]:
    return [row[kept.astype(bool)].tolist() for row, kept in zip(ids, mask, strict=True)]


FIGURES = {"parity_trl": parity_trl}
