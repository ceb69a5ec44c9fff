"""Weights: load a base model and its tokenizer, put an adapter on it, save, merge, hash.

A policy's weights are a base model (the embedded one, a folder, or a hub id) and perhaps an adapter
or a whole set of trained weights on top. `load` gives the base; `with_weights` applies what a
champion or a train stage left; `trainable` prepares for learning: LoRA through peft, or all
weights. `merged_copy` and `sync` keep the plain copy that the sampler decodes with.
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from rft import config
from rft.errors import ConfigError, UserError

Weights = Literal["lora", "full", "none"]


def prepare_process(section: config.Policy) -> torch.device:
    """Set threads, deterministic kernels and quiet libraries; return the device. Raises UserError
    for a device that is not there.

    Higher mmap and trim thresholds of glibc keep freed buffers in the process: 4.1 -> 5.5 thousand
    training tokens/s.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD
    except OSError:
        pass  # another C library: slower, not wrong
    _quiet()
    if section.threads:
        torch.set_num_threads(section.threads)
    torch.use_deterministic_algorithms(True)
    # It costs 4 % of a step, and finds reads before writes that we do not make.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_flush_denormal(True)  # softmax tails and Adam's moments go denormal, which CPUs compute many times slower
    if section.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if section.device == "cuda" and not torch.cuda.is_available():
        remedy = "Install a CUDA build (RFT_TORCH, see README) or set policy.device: cpu."
        raise UserError(f"params.yaml: policy.device = 'cuda': PyTorch sees no GPU. {remedy}")
    return torch.device(section.device)


def load(source: str, section: config.Policy, device: torch.device) -> tuple[Any, Any]:
    """Load model and tokenizer of a folder or hub id. Raises UserError naming what is missing."""
    from transformers import AutoModelForCausalLM

    _quiet()
    ours = tokenizer(source)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=getattr(torch, section.dtype), attn_implementation="sdpa"
        )
    except (OSError, ValueError) as error:
        raise _unreachable(source, error) from error
    return model.to(device).eval(), ours


def _quiet() -> None:
    """Silence transformers, which draws progress bars for files that take a second."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def tokenizer(source: str) -> Any:
    """Load the tokenizer of a folder or hub id. Raises UserError if there is none."""
    from transformers import AutoTokenizer

    folder = Path(source)
    if folder.is_dir() or source.startswith((".", "/")):
        for needed, remedy in (
            ("config.json", "is it a model folder?"),
            ("tokenizer_config.json", "save the tokenizer beside the model"),
        ):
            if not (folder / needed).exists():
                raise UserError(f"policy.model: {folder} holds no {needed}; {remedy}.")
    try:
        return AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise _unreachable(source, error) from error


def _unreachable(source: str, error: Exception) -> UserError:
    what = f"policy.model = {source!r} cannot be loaded: {str(error).splitlines()[0]}"
    return UserError(f"{what} Name a folder, or a hub id that this machine reaches.")


def with_weights(model: Any, kind: Weights, folder: Path | None, device: torch.device) -> Any:
    """Merge an adapter into the model, or load trained full weights. Raises UserError for those of
    another base model."""
    if kind == "none" or folder is None:
        return model
    if kind == "full":
        from safetensors.torch import load_file

        state = load_file(folder / "model.safetensors", device=str(device))
        missing, unexpected = model.load_state_dict(state, strict=False)
        if unexpected or set(missing) - _tied(model):
            odd = (unexpected or list(missing))[0]
            raise UserError(f"{folder}: these weights belong to another base model ({odd} does not fit).")
        return model
    from peft import PeftModel

    try:
        with _quiet_peft():
            return PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
    except (RuntimeError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise UserError(f"{folder}: this adapter belongs to another base model: {why}") from error


def adapter_changes(model: Any, folder: Path) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield base and adapter's delta of each weight that it changes. Afterwards the model is as
    before."""
    from peft import PeftModel

    with _quiet_peft():
        adapted: Any = PeftModel.from_pretrained(model, str(folder))
    for module in adapted.modules():
        if hasattr(module, "lora_A") and "default" in module.lora_A:
            yield module.get_base_layer().weight, module.get_delta_weight("default")
    adapted.unload()


def trainable(model: Any, section: config.Train) -> Any:
    """Prepare the model to learn, in float32 accumulators. LoRA starts exactly at the base model's
    function (B = 0). Raises ConfigError for settings that this architecture cannot honor."""
    _check_honored(model, section)
    torch.manual_seed(section.seed)
    if section.weights == "full":
        return model.requires_grad_(True).train()
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(
        r=section.lora.r,
        lora_alpha=section.lora.alpha,
        target_modules=section.lora.targets,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with _quiet_peft():
        return get_peft_model(model, lora).train()


def _check_honored(model: Any, section: config.Train) -> None:
    text = model.config.get_text_config()
    other = sorted(set(getattr(text, "layer_types", None) or ()) - {"full_attention"})
    if section.packing and other:
        why = f"this model has layers of kind {', '.join(other)}, whose masks packing replaces"
        raise ConfigError(f"params.yaml: 'train.packing' = true: {why}. Set it to false.")
    if getattr(text, "final_logit_softcapping", None):
        what = "policy.model: its logits are capped (final_logit_softcapping), which the trainer's head does not do"
        raise ConfigError(f"{what}. Choose another model.")


def merged_copy(model: Any) -> Any:
    """Make a plain model for the sampler. With full weights it is the model itself."""
    if not hasattr(model, "merge_and_unload"):
        return model
    return copy.deepcopy(model).merge_and_unload().requires_grad_(False).eval()


def merged(model: Any) -> Any:
    """Merge an adapter into its own model, in float32; a plain model is only cast."""
    model = model.float()
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model


@torch.no_grad()
def sync(learner: Any, sampler: Any) -> None:
    """Copy the learner's weights to the sampler: with LoRA base + scaled B A, layer by layer."""
    if learner is sampler:
        return
    if not hasattr(learner, "merge_and_unload"):
        for theirs, mine in zip(sampler.parameters(), learner.parameters(), strict=True):
            theirs.copy_(mine)
        return
    plain = dict(sampler.named_modules())
    for name, module in learner.base_model.model.named_modules():
        if hasattr(module, "lora_A") and "default" in module.lora_A:
            target = plain[name].weight
            target.copy_(module.base_layer.weight + module.get_delta_weight("default").to(target.dtype))


def save(model: Any, folder: Path) -> None:
    """Save an adapter (peft) or weights to `folder`, which must not exist yet."""
    folder.mkdir(parents=True)
    if hasattr(model, "merge_and_unload"):
        model.save_pretrained(str(folder))
        (folder / "README.md").unlink(missing_ok=True)  # peft's model card: empty headings
        _sort_targets(folder / "adapter_config.json")
        return
    from safetensors.torch import save_file

    tied = _tied(model)
    state = {
        name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items() if name not in tied
    }
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def _sort_targets(path: Path) -> None:
    """Sort target modules, so that equal adapters are equal bytes: peft's order is a set's."""
    settings = json.loads(path.read_text())
    if isinstance(settings["target_modules"], list):
        settings["target_modules"].sort()
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def weights_sha256(model: Any) -> str:
    """Hash names and bytes of all parameters, in order of name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def _quiet_peft() -> Iterator[None]:
    """Silence a warning that no user can fix: peft 0.21 uses an old name of transformers 5."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
        yield


def _tied(model: Any) -> set[str]:
    return set(getattr(model, "_tied_weights_keys", None) or ()) if model.config.tie_word_embeddings else set()
