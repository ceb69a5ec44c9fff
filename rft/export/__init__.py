"""Write an agent into a folder, to be served elsewhere.

    write(params, target, origin, ...) -> Manifest

is called in a folder that holds the agent as a stage finds it: data/policy, data/champion and the
recipe. It writes these files:

    README.md               how to serve it with vLLM, and how to send a request
    manifest.json           where it comes from, and the SHA-256 of each file
    adapter/                LoRA weights in peft's format, byte for byte as trained; base/ is the
                            base model, if it exists nowhere else
    model/                  or one whole model: merged in float32 and cast once, trained full
                            weights, or a base model without trained weights
    tokenizer/              the tokenizer of a base model that is named and not copied
    chat_template.jinja     the template that rendered the rollouts
    system_prompt.txt, prompt.json, tools.json, sampling.json, generation_config.json, request.json

These are the modules:

    manifest    what manifest.json says: which agent, and every file
    merge       makes one model from base and adapter, and measures how far the cast moved it
    vllm        the README, with the line that starts vLLM for each family of models

Everything is verified. Weights and base model must have the hashes that their reports name. A given
base model must have the hash that the run pinned. The exported prompt, tools, tokenizer and
template must render recorded openings to exactly the tokens that the policy was given.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rft import config, files, recipe, reports, rows, stage_files
from rft.chat.dialogue import opening_of
from rft.chat.renderer import Chat, prefix_problems
from rft.config import response_format
from rft.errors import UserError
from rft.export import merge as merging
from rft.export import vllm
from rft.export.manifest import Base, Dtype, File, Manifest, Origin, Weights
from rft.models import source as sources
from rft.models import weights as model
from rft.recipe import Recipe
from rft.reports import Champion, PolicyReport, PromptSettings
from rft.rollouts.log import LogRow
from rft.rollouts.prompting import champion_prompt, num_turns
from rft.tools.client import ToolClient
from rft.tools.signatures import schemas
from rft.types import Example, Message
from rft.wire.client import ToolEndpoint

QUESTION = "Put here what a user says."
OPENINGS = 64
"""How many recorded openings are rendered again and compared."""


def write(
    params: config.Params,
    target: Path,
    origin: Origin,
    merge: bool = False,
    dtype: Dtype | None = None,
    seen: Sequence[LogRow] = (),
) -> Manifest:
    """Write the export. `seen`: recorded rollouts of this agent. Raises UserError if the export
    would differ from them, or if a hash is wrong."""
    ours, made, pointer = recipe.load(params.recipe), stage_files.champion(), stage_files.read(PolicyReport)
    prompt = champion_prompt(ours)
    if pointer.kind == "served" and (merge or dtype):
        what = f"the weights of {pointer.model!r} are at its endpoint, so there is nothing to merge or to cast"
        raise UserError(f"{what}. Leave --merge and --dtype out.")
    tools = _tools(ours, params.tools)
    source = None if pointer.kind == "served" else sources.base(pointer, params.policy)
    chat = None if source is None else Chat(model.tokenizer(source), tools, params.policy.tool_format)
    compared = _assert_seen(chat, seen, prompt, params)
    base, weights = _weights(params, made, pointer, source, target, merge, dtype)
    if chat is not None and base.path is None and weights.path != "model":
        chat.tokenizer.save_pretrained(target / "tokenizer")
    request = _request(params, prompt, chat, tools, origin)
    system = next((message["content"] for message in request["messages"] if message["role"] == "system"), "")
    (target / "system_prompt.txt").write_text(system, encoding="utf-8")
    reports.write(prompt, target / "prompt.json")
    for name, value in (("tools", tools), ("request", request), ("sampling", _sampling(params, prompt, made))):
        reports.write_json(value, target / f"{name}.json")
    if chat is not None:
        template = chat.tokenizer.get_chat_template(tools=tools or None)
        (target / "chat_template.jinja").write_text(template, encoding="utf-8")
        settings = _generation(params, chat)
        for folder in (target, *([target / "model"] if weights.path == "model" else [])):
            reports.write_json(settings, folder / "generation_config.json")
    manifest = Manifest(
        origin=origin,
        approved=origin.approved,
        base=base,
        weights=weights,
        prompt_sha256=prompt.digest(),
        tool_format=vllm.family(chat.format) if chat else None,
        max_tokens=params.rollout.max_tokens,
        openings_compared=compared,
        not_compared=None if compared else _not_compared(chat, origin),
        template_problems=prefix_problems(chat) if chat else [],
        serve=made.serve,
    )
    (target / "README.md").write_text(vllm.readme(manifest, params, prompt, tools), encoding="utf-8")
    written = {
        path.relative_to(target).as_posix(): File(sha256=files.sha256(path), num_bytes=path.stat().st_size)
        for path in sorted(target.rglob("*"))
        if path.is_file()
    }
    manifest = manifest.model_copy(update={"files": written})
    reports.write(manifest, target / "manifest.json")
    return manifest


# -- weights ---------------------------------------------------------------------------------------
def _weights(
    params: config.Params,
    made: Champion,
    pointer: PolicyReport,
    source: sources.Source | None,
    target: Path,
    merge: bool,
    dtype: Dtype | None,
) -> tuple[Base, Weights]:
    base = Base(kind=pointer.kind, name=pointer.model, sha256=pointer.sha256)
    if source is None:
        return base, Weights(kind="none", sha256=None, path=None)
    if pointer.kind == "embedded":
        _assert_hash("the base model", files.tree_sha256(source.folder), pointer.sha256)
    # a given model was verified when its source was found, if the run pinned it
    is_pinned = stage_files.model().sha256 is not None or Path(pointer.model).exists()
    base = base.model_copy(update={"verified": is_pinned})
    folder = stage_files.folder("champion") / made.weights_path if made.weights_path else None
    if folder is not None:
        if made.base_sha256 not in (None, pointer.sha256):
            raise UserError(
                f"these weights were trained on base model {made.base_sha256}, and data/policy holds "
                f"{pointer.sha256}. Start a new run."
            )
        _assert_hash("the trained weights", files.tree_sha256(folder), made.weights_sha256)
    rank = None
    if folder is not None and made.weights == "lora":
        rank = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["r"]
    if merge or made.weights == "full" or (dtype and made.weights == "none"):
        # full weights were trained and judged in float32
        as_dtype: Dtype = dtype or ("float32" if made.weights == "full" else params.policy.dtype)
        moved = merging.write(source, made.weights, folder, target / "model", as_dtype, params.policy.dtype)
        weights = Weights(kind=made.weights, sha256=made.weights_sha256, path="model", rank=rank)
        return base, weights.model_copy(update={"dtype": as_dtype, "moved": moved})
    if dtype:
        why = "an adapter is exported byte for byte as it was trained"
        raise UserError(f"--dtype {dtype} needs --merge: {why}. Add --merge, or leave --dtype out.")
    path = None
    if made.weights == "lora":
        assert folder is not None
        shutil.copytree(folder, target / "adapter")
        path = "adapter"
    if pointer.is_made_here:
        name = "base" if path else "model"
        shutil.copytree(pointer.model, target / name)
        base, path = base.model_copy(update={"path": name}), path or name
    return base, Weights(kind=made.weights, sha256=made.weights_sha256, path=path, rank=rank)


def _assert_hash(what: str, found: str, named: str | None) -> None:
    if found != named:
        changed = f"{what} has hash {found}, and its report says {named}: it was changed since"
        raise UserError(f"{changed}. Restore it, or start a new run.")


# -- what the policy is told -----------------------------------------------------------------------
def _tools(ours: Recipe, section: config.Tools) -> list[dict[str, Any]]:
    """Return the schemas that a stage offers. Only MCP servers are asked, and only their secrets
    are read."""
    bare = {"where": "http", "headers": {}, "lifecycle": config.Lifecycle()}
    bare |= dict.fromkeys(("signing_secret", "server_url", "version"))
    bare["endpoints"] = [endpoint.model_copy(update={"headers": {}}) for endpoint in section.endpoints]
    client = ToolClient(ToolEndpoint("http://127.0.0.1"), section.model_copy(update=bare), schemas(ours))

    async def listed() -> list[dict[str, Any]]:
        async with client:
            return client.schemas

    return asyncio.run(listed())


def _assert_seen(chat: Chat | None, seen: Sequence[LogRow], prompt: PromptSettings, params: config.Params) -> int:
    """Render recorded openings again, and compare them with the tokens that the policy was given.
    Return how many were compared."""
    told: dict[str, LogRow] = {}
    for row in seen:
        if row.ids:
            told.setdefault(row.example_id, row)
    for row in list(told.values())[:OPENINGS] if chat else ():
        assert chat is not None
        line = rows.Line(row.item, f"rollout {row.rollout_id} of {row.stage}, column `item`")
        one = opening_of(rows.read(line, params.examples.keys, "Start a new run."), prompt, params.rollout)
        given = row.ids[: row.loss_mask.index(True)] if True in row.loss_mask else row.ids
        if (now := chat.prompt_ids(list(one.messages), one.tools, one.response_format)) != given:
            difference = _difference(chat.tokenizer.decode(given), chat.tokenizer.decode(now))
            raise UserError(
                f"rollout {row.rollout_id}: {difference}: what would be exported is not what was judged. Did an MCP "
                "server, a tool's schema or the engine change since? Restore it, or start a new run."
            )
    return min(len(told), OPENINGS) if chat else 0


def _not_compared(chat: Chat | None, origin: Origin) -> str:
    if chat is None:
        return "a chat endpoint renders its openings itself"
    return f"run {origin.run} recorded no tokens of a rollout with it"


def _difference(told: str, now: str) -> str:
    if told == now:
        return "the opening is the same text, but has other tokens now"
    equal = (a == b for a, b in zip(told, now, strict=False))
    place = next((n for n, same in enumerate(equal) if not same), min(len(told), len(now)))
    part = slice(max(0, place - 20), place + 40)
    return f"the policy was told {told[part]!r}, and prompt, tools and template now say {now[part]!r}"


def _request(
    params: config.Params, prompt: PromptSettings, chat: Chat | None, tools: list[dict[str, Any]], origin: Origin
) -> dict[str, Any]:
    """Return a first request in OpenAI's form, with all that the rollouts had."""
    limits = params.rollout
    opening = opening_of(Example("request", ({"role": "user", "content": QUESTION},)), prompt, limits)
    messages: list[Message] = list(opening.messages)
    more: dict[str, Any] = {}
    if (answer := opening.response_format) is not None:
        stated = response_format.with_instruction(messages, answer)
        if chat is None:
            more = {"response_format": answer}
        elif chat.render(messages, answer_format=answer) == chat.render(stated):
            messages = stated
        else:
            more = {"chat_template_kwargs": {"response_format": answer}}
    sampling = {"temperature": params.challenger.temperature, "max_tokens": limits.max_turn_tokens}
    name, server = origin.served_name, params.policy.server
    if chat is None and server is not None:
        name = server.model
        if server.dialect == "openai_reasoning":
            sampling = {"max_completion_tokens": limits.max_turn_tokens}
    return {"model": name, "messages": messages, **({"tools": tools} if tools else {}), **sampling, **more}


def _sampling(params: config.Params, prompt: PromptSettings, made: Champion) -> dict[str, Any]:
    """Return the rollouts' limits. The server applies the first half, and the program that runs the
    tools applies the rest."""
    limits = params.rollout
    return {
        "temperature": params.challenger.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "max_tokens_per_turn": limits.max_turn_tokens,
        "max_tokens": limits.max_tokens,
        "response_format": limits.response_format,
        "max_turns": num_turns(prompt, limits),
        "max_tool_calls": limits.max_tool_calls,
        "max_unreadable_calls": limits.max_unreadable_calls,
        "tool_defaults": prompt.tool_defaults,
        "block_repeated_calls": prompt.block_repeated_calls,
        **({} if made.serve.is_single else {"serve": made.serve.model_dump(mode="json")}),
    }


def _generation(params: config.Params, chat: Chat) -> dict[str, Any]:
    """Return the sampling settings in transformers' form. Rollouts sample from the whole
    distribution, so nothing is filtered, even if the base model's own file says so."""
    pad = chat.tokenizer.pad_token_id
    ends = {"eos_token_id": list(chat.end_ids), **({} if pad is None else {"pad_token_id": pad})}
    return {"do_sample": True, "temperature": params.challenger.temperature, "top_k": 0, "top_p": 1.0, **ends}


__all__ = ["Dtype", "Manifest", "Origin", "write"]
