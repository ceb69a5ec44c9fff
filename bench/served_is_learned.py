"""The figure `served_is_learned`: does every copy of the policy have what was learned?

For each number format, kind of weights, learning rate and number of steps, the real learner takes
optimizer steps on random rollouts with random advantages. The change of its float32 weights is
compared with the change of five other copies, each made by the code that makes it in a run:

    sampled     the model that the in-process sampler decodes with, after the step's sync
    judged      base model and saved weights, loaded as baseline, challenger and smoke test load
                them
    exported    what `rft export` writes by default: an adapter as it was trained, on its base; or
                full weights as a model
    served      that adapter as a server keeps it: in the model's format, `up` scaled
    merged      `rft export --merge` in policy.dtype: it must be refused, or have the same bound

A change is that of the weights, adapters included (rft/models/effect.py says why it is not that of
the logits). The cosine is taken over all weights. A combination that must be accepted and is
refused fails. The worst of the first four is the part's value. `merged` is in the notes, with the
cosine that its refusal names. One part of the figure counts merges that were neither refused nor
faithful.

The models are random: a Llama with SmolLM2's layer shapes, and a Qwen3, which our own code decodes.
SmolLM2 itself is measured, too, if it is there (`make model`). The random weights have the scale of
trained ones, because rounding loses a change relative to the weight that it is added to.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bench.measure import Figure, Part

if TYPE_CHECKING:
    import torch

    from rft import config
    from rft.models.effect import Change

ROOT = Path(__file__).resolve().parents[1]
SMOLLM2 = ROOT / ".rft" / "models" / "smollm2-135m-instruct"
DTYPES: tuple[Literal["float32", "bfloat16"], ...] = ("float32", "bfloat16")
WEIGHTS: tuple[Literal["lora", "full"], ...] = ("lora", "full")
RATES = (1e-5, 1e-4)
STEPS = (1, 5, 20)
ROLLOUTS, LENGTH, PROMPT = 4, 48, 16
SEED = 5


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of one trained policy, except the number of steps."""

    model: str
    dtype: Literal["float32", "bfloat16"]
    weights: Literal["lora", "full"]
    lr: float

    @property
    def name(self) -> str:
        return f"{self.model}, {self.dtype}, {self.weights}, lr {self.lr:g}"


@dataclass(slots=True)
class Found:
    """Cosines by place. `refused`: why the merge was refused, if it was."""

    cosines: dict[str, float]
    merged: float | None
    refused: str = ""


def served_is_learned(args: list[str]) -> Figure:
    """Cosine between what was learned and what is sampled, judged, exported and served (>= 0.99 for
    each accepted combination); arguments: models, of llama, qwen3, smollm2."""
    import torch

    from rft import config
    from rft.errors import UserError
    from rft.models import weights
    from rft.models.effect import AT_LEAST

    weights.prepare_process(config.Policy(device="cpu", threads=1))
    parts: list[Part] = []
    notes: dict[str, Any] = {}
    lies = merges = 0
    with tempfile.TemporaryDirectory() as scratch:
        sources = _sources(Path(scratch), args)
        for model, dtype, kind, lr in itertools.product(sources, DTYPES, WEIGHTS, RATES):
            setting = Setting(model, dtype, kind, lr)
            done = 0
            try:
                for steps, found in _measured(setting, sources[model], Path(scratch)):
                    name = f"{setting.name}, {steps} steps"
                    worst = min(found.cosines.values())
                    parts.append(Part(name, worst, at_least=AT_LEAST, n=len(found.cosines)))
                    notes[name] = {place: _digits(value) for place, value in found.cosines.items()}
                    notes[name] |= {"merged": found.refused or _digits(found.merged)}
                    merges += 1
                    lies += not found.refused and (found.merged is None or found.merged < AT_LEAST)
                    print(f"{name}: {notes[name]}", file=sys.stderr, flush=True)
                    done += 1
            except UserError as error:
                missing = [f"{setting.name}, {steps} steps" for steps in STEPS[done:]]
                parts += [Part(name, None, n=0, reason=f"refused: {error}", failed=True) for name in missing]
    accepted = [part.value for part in parts if part.value is not None]
    head = Part("smallest cosine of an accepted combination", min(accepted, default=None), at_least=AT_LEAST)
    merged = Part("merged exports below 0.99 that were not refused", float(lies), at_most=0, n=merges)
    notes["measured"] = {"models": sorted(sources), "torch": torch.__version__, "steps": STEPS, "rollouts": ROLLOUTS}
    return Figure((head, merged, *parts), notes)


FIGURES = {"served_is_learned": served_is_learned}


# -- one policy ------------------------------------------------------------------------------------
def _measured(setting: Setting, source: Path, scratch: Path) -> Iterator[tuple[int, Found]]:
    """Train, and compare after some of the steps."""
    import torch

    from rft import config
    from rft.models import effect, weights
    from rft.sampling.engine import Engine
    from rft.trainer.learner import Learner

    cpu = torch.device("cpu")
    policy = config.Policy(model=str(source), dtype=setting.dtype, device="cpu")
    train = config.Train(weights=setting.weights, lr=setting.lr, seed=SEED)
    base = weights.load(str(source), policy, cpu)[0]
    learner = Learner(weights.load(str(source), policy, cpu)[0], train, LENGTH, cpu)
    sampler = Engine(weights.sampler_copy(learner.model), _Chat(), cpu)  # type: ignore[arg-type]
    for step in range(1, max(STEPS) + 1):
        given, counted = _rollouts(base.config.vocab_size, step)
        learner.update(given, counted)
        weights.sync(learner.model, sampler.model)
        if step not in STEPS:
            continue
        is_lora = setting.weights == "lora"
        learned = dict(effect.by_adapter(learner.model) if is_lora else effect.between(learner.model, base))
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            saved = Path(folder) / "weights"
            weights.save(learner.model, saved)
            judged = weights.with_weights(weights.load(str(source), policy, cpu)[0], setting.weights, saved, cpu)
            changes = {
                "sampled": effect.between(sampler.model, base),
                "judged": effect.between(judged, base),
            }
            found = Found({place: _cosine(learned, there) for place, there in changes.items()}, None)
            found.cosines |= _exported(learned, policy, train, source, saved, Path(folder), base)
            found.merged, found.refused = _merged(learned, policy, train, source, saved, Path(folder), base)
        yield step, found


def _exported(
    learned: dict[str, torch.Tensor],
    policy: config.Policy,
    train: config.Train,
    source: Path,
    saved: Path,
    scratch: Path,
    base: Any,
) -> dict[str, float]:
    """Compare the export's files, and the weights that a server makes of them."""
    if train.weights == "full":
        value, refused = _merged(learned, policy, train, source, saved, scratch, base, "float32")
        assert value is not None, refused
        return {"exported": value, "served": value}
    return {
        "exported": _cosine(learned, _adapter(saved, base, None)),
        "served": _cosine(learned, _adapter(saved, base, base.dtype)),
    }


def _adapter(folder: Path, base: Any, dtype: torch.dtype | None) -> Iterator[Change]:
    """Yield what an adapter's files add to each weight, read without peft. With `dtype` they are as
    a server keeps them."""
    import json

    from safetensors.torch import load_file

    settings = json.loads((folder / "adapter_config.json").read_text())
    state = load_file(folder / "adapter_model.safetensors")
    for name in base.state_dict():
        stem = "base_model.model." + name.removesuffix(".weight")
        if f"{stem}.lora_A.weight" in state:
            down, up = state.pop(f"{stem}.lora_A.weight"), state.pop(f"{stem}.lora_B.weight")
            up = up * (settings["lora_alpha"] / settings["r"])
            if dtype is not None:
                down, up = down.to(dtype), up.to(dtype)
            yield name, (up.double() @ down.double()).float()
    assert not state, f"these belong to no weight: {sorted(state)}"


def _merged(
    learned: dict[str, torch.Tensor],
    policy: config.Policy,
    train: config.Train,
    source: Path,
    saved: Path,
    scratch: Path,
    base: Any,
    dtype: str | None = None,
) -> tuple[float | None, str]:
    """Merge as `rft export --merge` does. Returns the cosine of the result, or why it refused."""
    import shutil

    import torch

    from rft import config
    from rft.errors import UserError
    from rft.export import merge
    from rft.models import effect, weights
    from rft.models.source import Source

    target = scratch / "merged"
    try:
        merge.write(Source(source), train.weights, saved, target, dtype or policy.dtype, policy.dtype)
    except UserError as error:
        return None, f"refused: {error}"
    loaded = config.Policy(model=str(target), dtype=dtype or policy.dtype, device="cpu")  # type: ignore[arg-type]
    network = weights.load(str(target), loaded, torch.device("cpu"))[0]
    value = _cosine(learned, effect.between(network, base))
    shutil.rmtree(target)
    return value, ""


def _cosine(learned: dict[str, torch.Tensor], there: Iterator[Change]) -> float:
    from rft.models import effect

    value = effect.kept(learned.items(), there)
    assert value is not None, "nothing was learned"
    return value


def _rollouts(vocabulary: int, step: int) -> tuple[list[Any], Any]:
    """Make rollouts of random tokens with random advantages: any gradient will do."""
    import numpy as np

    from rft.trainer.packing import Counted, TrainingSample

    draw = np.random.default_rng([SEED, step])
    given: list[TrainingSample] = []
    for _ in range(ROLLOUTS):
        ids = draw.integers(0, vocabulary, LENGTH).tolist()
        mask = [False] * PROMPT + [True] * (LENGTH - PROMPT)
        given.append(TrainingSample(ids, mask, [-8.0] * sum(mask), float(draw.normal()), 0.0))
    return given, Counted(ROLLOUTS, sum(one.num_own for one in given))


def _digits(value: float | None) -> float | None:
    """Round to six digits: 0.999998 is not 1."""
    return None if value is None else float(f"{value:.6g}")


# -- models ----------------------------------------------------------------------------------------
class _Chat:
    """Stands for an engine's chat: nothing is sampled."""

    end_ids: frozenset[int] = frozenset()


def _sources(scratch: Path, wanted: list[str]) -> dict[str, Path]:
    found = {name: scratch / name for name in ("llama", "qwen3") if not wanted or name in wanted}
    for name, folder in found.items():
        _write(name, folder)
    if SMOLLM2.exists() and (not wanted or "smollm2" in wanted):
        found["smollm2"] = SMOLLM2
    return found


def _write(name: str, folder: Path) -> None:
    """Save a random model of two layers, with a minimal tokenizer."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    shape: dict[str, Any] = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 2,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 512,
        "tie_word_embeddings": True,
        "initializer_range": 0.04,
        "max_position_embeddings": 256,
    }
    torch.manual_seed(SEED)
    network: Any = (
        LlamaForCausalLM(LlamaConfig(**shape))
        if name == "llama"
        else Qwen3ForCausalLM(Qwen3Config(head_dim=64, **shape))
    )
    network.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"t{n}": n for n in range(512)}, unk_token="t2"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="t0", eos_token="t1").save_pretrained(folder)
