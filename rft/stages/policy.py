"""Stage `policy`: builds or names the base model from which everything starts.

    policy.model   policy.warm_start.weights   the base model
    null           any                         the embedded policy, built here and warm-started
    a model        null                        that model: a pointer to it (data/model/model.json)
    a model        full or lora                made from it here: warm-started, an adapter merged in

A warm start imitates the recipe's demonstrations (rft/trainer/supervised.py). It depends only on
these, the model, the seed and this section, never on examples or traffic. So the base model does
not change from week to week, and adapters that were trained on it still fit.

A model that was made here is in the stage's folder whole, in float32, with its tokenizer. The
report names the hash of its bytes, and the given model that it was made from.

PyTorch and Transformers take seconds to load, and an agent behind a chat endpoint needs neither. So
modules that need them are imported where they are used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rft import config, files, progress, recipe, reports, stage_files, threads
from rft.chat.renderer import Chat, assistant_text
from rft.errors import UserError
from rft.models import source
from rft.models.shape import num_positions
from rft.tools.signatures import schemas
from rft.types import Message

if TYPE_CHECKING:
    import torch

    from rft.trainer import supervised
    from rft.trainer.sft_samples import SftSample

_KEYS = "policy.warm_start"


def run(params: config.Params) -> None:
    section = params.policy
    if section.is_warm_started:
        progress.once("policy", params, partial(_build, params))
        return
    if section.model:
        if section.warm_start != config.WarmStart():
            progress.print_line(
                "policy", f"{_KEYS} is not read: a given model is warm-started where {_KEYS}.weights is set"
            )
        stage_files.write(_pointer(section))
        return
    assert section.server is not None  # a chat endpoint: config requires policy.model for all others
    sha256 = hashlib.sha256(f"{section.server.url} {section.server.model}".encode()).hexdigest()
    stage_files.write(reports.PolicyReport(kind="served", model=section.server.model, sha256=sha256, num_parameters=0))


def _build(params: config.Params, work: Path, stage_folder: Path) -> None:
    from rft.models import embedded, weights
    from rft.trainer.sft_samples import check_template, sft_samples

    section, warm = params.policy, params.policy.warm_start
    device = weights.prepare_process(section)
    ours = recipe.load(params.recipe)
    demonstrations = list(islice(ours.demonstrations(warm.demonstrations, section.seed), warm.demonstrations))
    tools = schemas(ours)
    of: dict[str, str] = {}
    if section.model is None:
        vocabulary, merges = ours.vocabulary(), section.architecture.merges
        tokenizer = embedded.build_tokenizer(texts(demonstrations), tools, vocabulary, merges)
        chat = Chat(tokenizer, tools)
        network = embedded.build_model(section.architecture, tokenizer, section.seed).to(device)
        threads.use(network, section.threads)
    else:
        network, tokenizer = weights.load(source.given(section), section, device)
        chat = Chat(tokenizer, tools, section.tool_format)
        check_template(chat, demonstrations, f"policy.model = {section.model}")
        told = stage_files.model()
        of = {"base": section.model, "base_sha256": told.sha256 or "", "weights": str(warm.weights)}
        of |= {"revision": told.revision} if told.revision else {}
    given, num_left_out = sft_samples(chat, demonstrations, warm.longest)
    if len(given) < warm.batch:
        raise _too_few(chat, demonstrations, warm)
    _check(given, warm, num_positions(network.config))
    training = warm_start(network, given, section, work, device)
    network = weights.merged(training.learner.model).eval()
    network.save_pretrained(stage_folder / "model")
    tokenizer.save_pretrained(stage_folder / "model")
    (stage_folder / "metrics.jsonl").write_text(training.metrics.text())
    losses = training.losses()
    report = reports.PolicyReport(
        kind="warm_started" if of else "embedded",
        model=str(stage_files.MODEL),
        sha256=files.tree_sha256(stage_folder / "model"),
        num_parameters=sum(parameter.numel() for parameter in network.parameters()),
        demonstrations=len(given),
        left_out=num_left_out,
        steps=warm.steps,
        final_loss=losses[-1][1],
        losses=losses,
        threads=threads.used(),
        **of,
    )
    reports.write(report, stage_folder / "report.json")


def warm_start(
    network: Any, given: list[SftSample], section: config.Policy, work: Path, device: torch.device
) -> supervised.WarmStart:
    """Train on SFT samples, and return the training."""
    from rft.trainer import supervised
    from rft.trainer.learner import Learner

    settings = supervised.settings(section.warm_start, section.warm_start.weights or "full", section.seed)
    learner = Learner(network, settings, norm_length=1, device=device, keys=_KEYS)
    training = supervised.WarmStart(learner, given, "policy", work, work.name, short_first=section.model is None)
    training.fit()
    return training


def _check(given: list[SftSample], warm: config.WarmStart, positions: int | None) -> None:
    """Raise UserError when a demonstration is too long for the model."""
    longest = max(len(sft_sample.ids) for sft_sample in given)
    if positions is not None and longest > positions:
        raise UserError(
            f"params.yaml: {_KEYS}.longest = {warm.longest}: the longest demonstration has {longest} tokens, and the "
            f"model has {positions} positions. Lower longest to {positions}: longer ones are then left out."
        )


def _too_few(chat: Chat, demonstrations: list[list[Message]], warm: config.WarmStart) -> UserError:
    """Make the error for too few demonstrations within the limit; it says how long they are."""
    from rft.trainer.sft_samples import sft_samples

    lengths = [len(sft_sample.ids) for sft_sample in sft_samples(chat, demonstrations, None)[0]]
    left = f"leaves {sum(length <= warm.longest for length in lengths)} of {len(lengths)} demonstrations"
    spread = f", which have {min(lengths)} to {max(lengths)} tokens" if lengths else ""
    return UserError(
        f"params.yaml: {_KEYS}.longest = {warm.longest} {left}{spread}: fewer than {_KEYS}.batch = {warm.batch}. Raise "
        "longest, lower batch, or have the recipe give more."
    )


def texts(demonstrations: list[list[Message]]) -> Iterator[str]:
    """Yield all texts of the demonstrations, from which the tokenizer learns."""
    for messages in demonstrations:
        for message in messages:
            yield assistant_text(message) if message["role"] == "assistant" else message["content"]


def _pointer(section: config.Policy) -> reports.PolicyReport:
    """Point to a given model, with the bytes with which the run began."""
    from rft.models import weights

    given, told = source.given(section), stage_files.model()
    assert told.model is not None
    assert told.sha256 is not None
    weights.tokenizer(given)
    return reports.PolicyReport(
        kind="given",
        model=told.model,
        sha256=told.sha256,
        num_parameters=weights.num_parameters(given),
        revision=told.revision,
    )
