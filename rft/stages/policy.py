"""Stage `policy`: the base model that everything starts from.

With `policy.model` it is a pointer to the given model, whose bytes data/model/model.json pins.
Without, the embedded policy is built here and warm-started on the recipe's demonstrations:
next-token loss, full weight on what the policy will write itself and a tenth on the rest (prompts
and tool results), which teaches copying too. Batches hold dialogues of one length, because at this
size the number of optimizer steps matters more than the number of tokens. The first quarter of the
steps sees the shortest third of the dialogues.

Everything is a function of seed and step, so a warm start that was cut off continues bit for bit
from its last checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rft import config, files, progress, recipe, reports, shelves, stopping
from rft.chat.renderer import Chat, assistant_text
from rft.errors import UserError
from rft.models import embedded, source, weights
from rft.tools.signatures import schemas
from rft.types import Message

STRIDE = 4


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One demonstration as tokens, and which of them the policy wrote."""

    ids: list[int]
    loss_mask: list[bool]


def run(params: config.Params) -> None:
    section = params.policy
    if section.model:
        shelves.write(_pointer(section))
        return
    if section.server is not None:  # a chat endpoint: config asks for policy.model with all others
        sha256 = hashlib.sha256(f"{section.server.url} {section.server.model}".encode()).hexdigest()
        shelves.write(reports.PolicyReport(kind="served", model=section.server.model, sha256=sha256, num_parameters=0))
        return
    progress.once("policy", params, partial(_build, params))


def _build(params: config.Params, work: Path, shelf: Path) -> None:
    section = params.policy
    device = weights.prepare_process(section)
    ours = recipe.load(params.recipe)
    count, longest = section.warm_start.demonstrations, section.warm_start.longest
    demonstrations = list(islice(ours.demonstrations(count, section.seed), count))
    tools = schemas(ours)
    tokenizer = embedded.build_tokenizer(texts(demonstrations), tools, ours.vocabulary(), section.architecture.merges)
    chat = Chat(tokenizer, tools)
    dialogues = [Dialogue(*chat.dialogue_ids(messages)) for messages in demonstrations]
    dialogues = [dialogue for dialogue in dialogues if len(dialogue.ids) <= longest]
    if len(dialogues) < section.warm_start.batch:
        left = f"leaves {len(dialogues)} of {len(demonstrations)} demonstrations"
        needed = f"fewer than policy.warm_start.batch = {section.warm_start.batch}"
        raise UserError(
            f"params.yaml: policy.warm_start.longest = {longest} {left}, {needed}. Raise longest or lower batch."
        )
    network = embedded.build_model(section.architecture, tokenizer, section.seed).to(device)
    losses = warm_start(network, dialogues, section, work)
    network.save_pretrained(shelf / "model")
    tokenizer.save_pretrained(shelf / "model")
    report = reports.PolicyReport(
        kind="embedded",
        model=str(shelves.MODEL),
        sha256=files.tree_sha256(shelf / "model"),
        num_parameters=sum(parameter.numel() for parameter in network.parameters()),
        demonstrations=len(dialogues),
        left_out=len(demonstrations) - len(dialogues),
        steps=section.warm_start.steps,
        final_loss=losses[-1][1],
        losses=losses,
    )
    reports.write(report, shelf / "report.json")


def warm_start(network: Any, dialogues: list[Dialogue], section: config.Policy, work: Path) -> list[tuple[int, float]]:
    """Train in place; return about a hundred pairs of step and mean loss on completion tokens."""
    warm = section.warm_start
    optimizer = torch.optim.AdamW(network.parameters(), lr=warm.lr, betas=(0.9, 0.98), weight_decay=0.01)
    start, losses, running = _resume(work, network, optimizer)
    every = max(1, warm.steps // 100)
    report = progress.Reporter("policy", warm.steps)
    if start:
        progress.say("policy", f"continues the warm start at step {start}")
    network.train()
    for step, batch in enumerate(islice(_batches(dialogues, warm, section.seed), start, warm.steps), start):
        for group in optimizer.param_groups:
            group["lr"] = warm.lr * _schedule(step, warm.steps)
        loss, own = _loss(network, batch, warm.other_weight, step)
        if not math.isfinite(own):
            raise UserError(
                f"params.yaml: policy.warm_start.lr = {warm.lr:g}: the loss is {own} at step {step + 1}. Lower it."
            )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        running.append(own)
        if (step + 1) % every == 0 or step + 1 == warm.steps:
            losses.append((step + 1, round(sum(running) / len(running), 6)))
            running.clear()
        report(step + 1, f"steps of warm start, loss {own:.3f}")
        keep = partial(_checkpoint, work, step + 1, network, optimizer, losses, running)
        if kept := (step + 1) % warm.checkpoint_every == 0 or step + 1 == warm.steps:
            keep()
        if step + 1 < warm.steps:
            stopping.check(f"after step {step + 1} of {warm.steps} of the warm start", None if kept else keep)
    network.eval()
    return losses


def _schedule(step: int, steps: int, warm_up: int = 20) -> float:
    """Scale the learning rate: linear up, then linear down to a tenth."""
    return min((step + 1) / warm_up, 1.0 - 0.9 * step / steps)


def _loss(network: Any, batch: list[Dialogue], other_weight: float, step: int) -> tuple[torch.Tensor, float]:
    """Return the weighted next-token loss, and its mean over completion tokens alone.

    Of the other tokens every fourth counts, a different fourth each step, with four times the
    weight: the head is 40 % of a step's arithmetic, and three of four tokens are not the policy's.
    """
    device = next(network.parameters()).device
    width = max(len(dialogue.ids) for dialogue in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    loss_mask = torch.zeros(len(batch), width, dtype=torch.bool)
    weight = torch.zeros(len(batch), width)
    looked_at = torch.arange(width) % STRIDE == step % STRIDE
    for row, dialogue in enumerate(batch):
        length = len(dialogue.ids)
        ids[row, :length] = torch.tensor(dialogue.ids)
        loss_mask[row, :length] = torch.tensor(dialogue.loss_mask)
        weight[row, :length] = torch.where(loss_mask[row, :length], 1.0, looked_at[:length] * other_weight * STRIDE)
    ids, loss_mask, weight = ids.to(device), loss_mask[:, 1:].to(device), weight[:, 1:].to(device)
    # right padding: causal, no mask needed
    hidden = network.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    keep = weight > 0
    nll = torch.nn.functional.cross_entropy(network.lm_head(hidden[keep]).float(), ids[:, 1:][keep], reduction="none")
    return (nll * weight[keep]).sum() / weight.sum(), nll[loss_mask[keep]].mean().item()


def _batches(dialogues: list[Dialogue], warm: config.WarmStart, seed: int) -> Iterator[list[Dialogue]]:
    """Yield endless batches of about equal length: shuffled, sorted within pools of 16 batches,
    shortest third first."""
    by_length = sorted(range(len(dialogues)), key=lambda n: (len(dialogues[n].ids), n))
    short = by_length[: max(warm.batch, len(by_length) // 3)]
    step, epoch = 0, 0
    while True:
        pool = short if step < warm.steps // 4 else by_length
        rng = np.random.default_rng([seed, 7, epoch])
        order = [pool[n] for n in rng.permutation(len(pool))]
        chunk = warm.batch * 16
        batches = []
        for n in range(0, len(order), chunk):
            near = sorted(order[n : n + chunk], key=lambda i: len(dialogues[i].ids))
            batches += [near[m : m + warm.batch] for m in range(0, len(near), warm.batch)]
        for n in rng.permutation(len(batches)):
            if pool is short and step >= warm.steps // 4:
                break
            yield [dialogues[i] for i in batches[n]]
            step += 1
        epoch += 1


def texts(demonstrations: list[list[Message]]) -> Iterator[str]:
    """Yield what the tokenizer learns from: all that is said in the demonstrations."""
    for messages in demonstrations:
        for message in messages:
            yield assistant_text(message) if message["role"] == "assistant" else message["content"]


def _pointer(section: config.Policy) -> reports.PolicyReport:
    """Point to a given model, whose bytes are those that the run began with."""
    given, told = source.given(section), shelves.model()
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


def _checkpoint(
    work: Path, step: int, network: Any, optimizer: Any, losses: list[tuple[int, float]], running: list[float]
) -> None:
    part = work / "checkpoint.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    torch.save({"network": network.state_dict(), "optimizer": optimizer.state_dict()}, part / "state.pt")
    (part / "state.json").write_text(json.dumps({"step": step, "losses": losses, "running": running}))
    files.publish(part, work / "checkpoint")


def _resume(work: Path, network: Any, optimizer: Any) -> tuple[int, list[tuple[int, float]], list[float]]:
    """Return the step, the reported losses, and the losses since the last report."""
    folder = work / "checkpoint"
    if not folder.exists():
        return 0, [], []
    state = torch.load(folder / "state.pt", weights_only=True)
    network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    said = json.loads((folder / "state.json").read_text())
    return said["step"], [(step, loss) for step, loss in said["losses"]], said["running"]
