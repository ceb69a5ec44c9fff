"""Weights: loads a base model and its tokenizer, puts an adapter on it, saves, merges, hashes.

A policy's weights are a base model (rft/models/source.py says where it is) and perhaps an adapter
or a whole set of trained weights on top. `load` gives the base; `with_weights` applies what a
champion or a train stage left; `trainable` prepares for learning: LoRA through peft, or all
weights. `sampler_copy` and `sync` keep the plain copy that the sampler decodes with.

What was learned must be what is sampled, judged and served (rft/models/effect.py). An adapter is
merged into float32 weights, and runs beside weights of other formats (rft/models/unmerged.py). Full
weights learn in float32, and stay in float32.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import os
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError

from rft import config, threads
from rft.errors import ConfigError, UserError
from rft.models import heap, shape, unmerged
from rft.models.source import Source
from rft.models.templates import with_arguments

Weights = Literal["lora", "full", "none"]
_SPOILED = (OSError, ValueError, KeyError, IndexError, struct.error, SafetensorError)
"""What the readers of model files raise for a file that is cut off, or of another format."""


def prepare_process(section: config.Policy) -> torch.device:
    """Set threads, deterministic kernels and quiet libraries; return the device. Raises UserError
    for a device that is not there."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    heap.keep()
    _quiet()
    if section.threads:
        torch.set_num_threads(section.threads)
    torch.use_deterministic_algorithms(True)
    # It would cost 4 % of a step, to find reads of unwritten memory, which we do not make.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_flush_denormal(True)  # softmax tails and Adam's moments go denormal, which CPUs compute many times slower
    if section.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if section.device == "cuda" and not torch.cuda.is_available():
        remedy = "Install a CUDA build (RFT_TORCH, see README) or set policy.device: cpu."
        raise UserError(f"params.yaml: policy.device = 'cuda': PyTorch sees no GPU. {remedy}")
    return torch.device(section.device)


def load(source: Source | str, section: config.Policy, device: torch.device) -> tuple[Any, Any]:
    """Load model and tokenizer. Raises UserError naming what is missing."""
    from transformers import AutoModelForCausalLM

    _quiet()
    source = _source(source)
    ours = tokenizer(source)
    more = {"gguf_file": source.gguf} if source.gguf else {}
    dtype = getattr(torch, section.dtype)
    bars = contextlib.redirect_stderr(io.StringIO()) if source.gguf else contextlib.nullcontext()
    try:
        with bars:  # hides the progress bars of the dequantization, which no setting switches off
            model: Any = AutoModelForCausalLM.from_pretrained(
                source.folder, dtype=dtype, attn_implementation="sdpa", local_files_only=True, **more
            )
    except _SPOILED as error:
        raise _unloadable(source, error) from error
    if source.gguf:
        _forget_quantization(model)
    threads.use(model, section.threads)
    return model.to(device).eval(), ours


def _forget_quantization(model: Any) -> None:
    """Make a plain model of one that was read from GGUF. Its weights were dequantized, but
    transformers goes on calling it quantized, and refuses to save it."""
    model.hf_quantizer, model.is_quantized = None, False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def model_config(source: Source | str) -> Any:
    """Read a model's configuration, without weights. Raises UserError."""
    from transformers import AutoConfig

    _quiet()
    source = _source(source)
    more = {"gguf_file": source.gguf} if source.gguf else {}
    try:
        return AutoConfig.from_pretrained(source.folder, local_files_only=True, **more)
    except _SPOILED as error:
        raise _unloadable(source, error) from None


def num_parameters(source: Source | str) -> int:
    """Count the parameters from the configuration alone. Tied weights count once."""
    return shape.num_parameters(model_config(source))


def _source(source: Source | str) -> Source:
    return source if isinstance(source, Source) else Source(Path(source), name=source)


def _quiet() -> None:
    """Silence transformers, which draws progress bars for files that take a second."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def tokenizer(source: Source | str) -> Any:
    """Load the tokenizer with its chat template. Raises UserError if there is none.

    Its attribute `model_ends` has the model's end tokens, at which rft/chat/renderer.py ends turns.
    """
    from transformers import AutoTokenizer

    source = _source(source)
    if source.gguf is None:
        for needed, remedy in (
            ("config.json", "is it a model folder?"),
            ("tokenizer_config.json", "save the tokenizer beside the model"),
        ):
            if not (source.folder / needed).exists():
                raise UserError(f"policy.model: {source.folder} holds no {needed}; {remedy}.")
    more = {"gguf_file": source.gguf} if source.gguf else {}
    try:
        found = AutoTokenizer.from_pretrained(source.folder, local_files_only=True, **more)
        found.model_ends = _model_ends(source)
    except _SPOILED as error:
        raise _unloadable(source, error) from error
    if source.template is not None:
        found.chat_template = source.template
    if source.template is not None or source.arguments:
        found.chat_template = with_arguments(found.chat_template, source.arguments)
    return found


def _model_ends(source: Source) -> tuple[int, ...]:
    """Read the tokens at which the model itself stops: often more than the tokenizer's own end
    token, such as <|endoftext|> beside <|im_end|>. A GGUF file names only the tokenizer's."""
    for name in ("generation_config.json", "config.json"):
        path = source.folder / name
        if source.gguf is None and path.exists():
            found = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            if found is not None:
                return tuple(found) if isinstance(found, list) else (found,)
    return ()


def _unloadable(source: Source, error: Exception) -> UserError:
    why = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
    what = f"policy.model = {source.description!r} cannot be loaded: {why}"
    if source.gguf:
        remedy = "Name a whole GGUF file of an architecture that transformers reads, or a folder of safetensors."
    else:
        remedy = "Name a whole model folder, a GGUF file or a hub id, of an architecture that transformers knows."
    return UserError(f"{what}. {remedy}")


def with_weights(model: Any, kind: Weights, folder: Path | None, device: torch.device) -> Any:
    """Put an adapter on the model, merged into it if the model is float32. Or load trained full
    weights; if they are float32, the model becomes float32. Raises UserError for weights of another
    base model."""
    if kind == "none" or folder is None:
        return model
    if kind == "full":
        from safetensors.torch import load_file

        state = load_file(folder / "model.safetensors", device=str(device))
        if any(tensor.dtype == torch.float32 for tensor in state.values()):
            model = model.float()  # else the loaded weights would be rounded to its format
        missing, unexpected = model.load_state_dict(state, strict=False)
        if unexpected or set(missing) - _tied(model):
            odd = (unexpected or list(missing))[0]
            raise UserError(f"{folder}: these weights belong to another base model ({odd} does not fit).")
        return model
    from peft import PeftModel

    try:
        with _quiet_peft():
            adapted: Any = PeftModel.from_pretrained(model, str(folder))
        return adapted.merge_and_unload() if _merges(model) else unmerged.beside(adapted.base_model.model)
    except (RuntimeError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise UserError(f"{folder}: this adapter belongs to another base model: {why}") from error


def adapter_changes(model: Any, folder: Path) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield each weight that the adapter changes, with the adapter's delta. Afterwards the model is
    as before."""
    from peft import PeftModel

    with _quiet_peft():
        adapted: Any = PeftModel.from_pretrained(model, str(folder))
    for module in adapted.modules():
        if hasattr(module, "lora_A") and "default" in module.lora_A:
            yield module.get_base_layer().weight, module.get_delta_weight("default")
    adapted.unload()


def trainable(model: Any, section: config.Train) -> Any:
    """Prepare the model to learn, in float32 accumulators. LoRA starts with exactly the base
    model's function (B = 0). Raises ConfigError for settings that this architecture cannot
    honor."""
    _check_honored(model, section)
    torch.manual_seed(section.seed)
    if section.weights == "full":
        return model.requires_grad_(True).train()
    from peft import LoraConfig, get_peft_model

    if section.lora.targets != "all-linear":
        _check_targets(model, section.lora.targets)
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


def _check_targets(model: Any, targets: list[str]) -> None:
    """Refuse a layer whose adapter could be learned, but would not be sampled with as it was
    learned."""
    embedding = model.get_input_embeddings().weight
    for name, layer in model.named_modules():
        if not any(name == target or name.endswith(f".{target}") for target in targets):
            continue
        why = ""
        if not isinstance(layer, torch.nn.Linear):
            why = f"is a layer of kind {type(layer).__name__}"
        elif layer.weight is embedding:
            why = "shares its weight with the token embedding, which an adapter would not change"
        if why:
            what = f"params.yaml: train.lora.targets names {name}, which {why}"
            raise ConfigError(f"{what}. Name linear layers of their own, or set it to all-linear.")


def _check_honored(model: Any, section: config.Train) -> None:
    text = model.config.get_text_config()
    other = sorted(set(getattr(text, "layer_types", None) or ()) - {"full_attention"})
    if section.packing and other:
        why = f"this model has layers of kind {', '.join(other)}, whose masks packing replaces"
        raise ConfigError(f"params.yaml: 'train.packing' = true: {why}. Set it to false.")
    if getattr(text, "final_logit_softcapping", None):
        what = "policy.model: its logits are capped (final_logit_softcapping), which the trainer's head does not do"
        raise ConfigError(f"{what}. Choose another model.")


def sampler_copy(model: Any) -> Any:
    """Make what the sampler decodes with: the adapter merged into a copy, or beside the learner's
    own base weights. With full weights it is the model itself."""
    if not hasattr(model, "merge_and_unload"):
        return model
    return merged_copy(model) if _merges(model) else unmerged.twin(model)


def merged_copy(model: Any) -> Any:
    """Make a plain model with the adapter in its weights, which must be float32. It shares the
    embeddings, and a head that LoRA leaves alone: a quarter of a model of 0.6 B. A model without an
    adapter is returned itself."""
    if not hasattr(model, "merge_and_unload"):
        return model
    shared = {id(weight): weight for weight in _unwrapped(model)}
    return copy.deepcopy(model, shared).merge_and_unload().requires_grad_(False).eval()


def _unwrapped(model: Any) -> list[torch.nn.Parameter]:
    """List the weights of embeddings and head, where they are plain and frozen."""
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    plain = (end for end in ends if type(end) in (torch.nn.Embedding, torch.nn.Linear))
    return [end.weight for end in plain if not end.weight.requires_grad]


def _merges(model: Any) -> bool:
    """Tell whether an adapter's change survives in the weights. In bfloat16 it does not."""
    return model.get_input_embeddings().weight.dtype == torch.float32


def merged(model: Any) -> Any:
    """Merge an adapter into its own model, in float32; a plain model is only cast."""
    model = model.float()
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model


@torch.no_grad()
def sync(learner: Any, sampler: Any) -> None:
    """Copy the learner's weights to the sampler: with LoRA base + scaled B A, layer by layer, or
    the adapter alone."""
    if learner is sampler:
        return
    if unmerged.holds(sampler):
        unmerged.follow(learner, sampler)
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
    """Save an adapter (peft) or weights to `folder`, which must not exist yet. An adapter is saved
    as one of the base model, even if it learned on top of another."""
    folder.mkdir(parents=True)
    if hasattr(model, "merge_and_unload"):
        model.save_pretrained(str(folder))
        (folder / "README.md").unlink(missing_ok=True)  # peft's model card: empty headings
        _sort_targets(folder / "adapter_config.json")
        if unmerged.is_stacked(model):
            unmerged.save_stacked(model, folder)
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
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy())  # in place: no copy of it
    return digest.hexdigest()


@contextmanager
def _quiet_peft() -> Iterator[None]:
    """Silence a warning that no user can fix: peft 0.21 uses an old name of transformers 5."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
        yield


def _tied(model: Any) -> set[str]:
    return set(getattr(model, "_tied_weights_keys", None) or ()) if model.config.tie_word_embeddings else set()
