"""Write the README of an export: what it is, how to start vLLM, a request, and what is left to do.

vLLM has one parser of tool calls per family of models, and a fixed list of limits for an adapter's
rank. It was measured that the line for an embedded policy with its adapter starts vLLM 0.32 on a
CPU. That server renders the request to the engine's own tokens, and parses the call in the reply.
"""

from __future__ import annotations

import shlex
from typing import Any

from rft import config
from rft.chat.formats import Declared, Format
from rft.export.manifest import Manifest
from rft.reports import PromptSettings
from rft.rollouts.prompting import num_turns

PARSERS = {"hermes": "hermes", "llama3": "llama3_json", "mistral": "mistral", "gpt-oss": "openai"}
"""rft/chat/formats.py's name -> vLLM's --tool-call-parser."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values that --max-lora-rank may have."""


def family(form: Format) -> str:
    """Return the format's name. For a tokenizer's own response template, return its family's."""
    return form.family_name if isinstance(form, Declared) else form.name


def line(manifest: Manifest, dtype: str) -> str:
    """Return `vllm serve ...`, with one setting per line. It is started in the export's folder."""
    weights, base, name = manifest.weights, manifest.base, manifest.origin.served_name
    source = f"./{base.path}" if base.path else base.name
    if weights.path == "model":
        source = "./model"
    parts: list[tuple[str, ...]] = [("vllm", "serve", source)]
    if weights.path == "adapter":
        assert weights.rank is not None
        rank = next((limit for limit in RANKS if limit >= weights.rank), weights.rank)
        parts += [
            ("--served-model-name", f"{name}-base"),
            ("--enable-lora", "--max-lora-rank", str(rank)),
            ("--lora-modules", f"{name}=./adapter"),
        ]
    else:
        parts.append(("--served-model-name", name))
    if weights.path != "model" and base.path is None:
        parts.append(("--tokenizer", "./tokenizer"))
    parts += [("--dtype", weights.dtype or dtype)]
    if manifest.max_tokens is not None:
        parts.append(("--max-model-len", str(manifest.max_tokens)))
    parts += [("--chat-template", "./chat_template.jinja"), ("--generation-config", ".")]
    if parser := PARSERS.get(manifest.tool_format or ""):
        parts.append(("--enable-auto-tool-choice", "--tool-call-parser", parser))
    return " \\\n    ".join(shlex.join(part) for part in parts)


def readme(manifest: Manifest, params: config.Params, prompt: PromptSettings, tools: list[dict[str, Any]]) -> str:
    parts = [
        _head(manifest),
        _weights(manifest),
        _serve(manifest, params.policy),
        _ask(manifest, params.policy, prompt),
        _loop(params, prompt, tools),
        _answer(manifest.serve),
        _files(),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _head(manifest: Manifest) -> str:
    origin = manifest.origin
    standing = f"Standing: {origin.standing}."
    what = f"champion {origin.version}" if origin.version else "the beginning"
    if origin.version is None:
        what = f"run {origin.run}"
        standing = f"**Not approved: {origin.standing}.** Nobody has agreed that this agent may be served."
    elif origin.withdrawn:
        standing = f"**Not approved any more: {origin.standing}.** Do not serve it without asking why."
    if manifest.not_compared:
        standing += f"\n**No recorded opening was compared: {manifest.not_compared}.** Prompt, tools and "
        standing += "template are unproven; section Weights says which hashes were checked."
    return f"# {origin.model}, {what}\n\n{standing}\nFrom run {origin.run}, revision {origin.revision}, by agent-rft."


def _weights(manifest: Manifest) -> str:
    base, weights = manifest.base, manifest.weights
    if base.kind == "served":
        return f"## Weights\nThere are none here: the policy is the model `{base.name}` of a chat endpoint."
    kinds = {"lora": "LoRA weights", "full": "full weights", "none": "no weights of its own: the base model as it is"}
    hashed = f", SHA-256 {weights.sha256} (as rft/files.py hashes a folder)" if weights.sha256 else ""
    held = "verified by its bytes" if base.verified else "not verified: it is fetched by its name when it is served"
    place = f" It is in `{base.path}/`." if base.path else ""
    lines = [
        f"Trained: {kinds[weights.kind]}{hashed}.",
        f"Base model: `{base.name}`, SHA-256 {base.sha256}, {held}.{place}",
    ]
    if weights.path == "adapter" and base.path is None:
        lines.append("It is not part of this export.")
    if (moved := weights.moved) is not None:
        cast = f"The cast moved a weight by {moved.by_cast:.3g} at most."
        lines.append(f"`model/` was merged in float32 and cast once, to {weights.dtype}. {cast}")
        if moved.kept is not None:
            cosine = f"Cosine of the learned change and the change in these files: {moved.kept:.4f}."
            lines.append(f"Training had moved a weight by {moved.by_training:.3g} at most. {cosine}")
    return "## Weights\n" + "\n".join(lines)


def _serve(manifest: Manifest, policy: config.Policy) -> str:
    if manifest.base.kind == "served":
        assert policy.server is not None
        where = f"model `{policy.server.model}` at {policy.server.url}"
        return f"## Serve\nIt is already served: {where}. Only the prompt changes."
    lines = ["## Serve", "In this folder, with vLLM:", "", "```bash", line(manifest, policy.dtype), "```"]
    if manifest.tool_format not in PARSERS:
        lines += [
            "",
            "No parser of vLLM is known to read this model's tool calls: choose one with --tool-call-parser.",
        ]
    if manifest.template_problems:
        lines += [
            "",
            "A server renders the whole dialogue again each turn. With this template the result is not always "
            "what the rollouts were given:",
            "",
            *(f"- {problem}" for problem in manifest.template_problems),
        ]
    return "\n".join(lines)


def _ask(manifest: Manifest, policy: config.Policy, prompt: PromptSettings) -> str:
    served = policy.server if manifest.base.kind == "served" else None
    url = served.url.rstrip("/").removesuffix("/v1") if served else "http://localhost:8000"
    system = (
        "The system prompt is `system_prompt.txt`"
        if prompt.system
        else "There is no system prompt: a row's own, if it has one, is the first message"
    )
    return "\n".join(
        [
            "## Ask",
            "`request.json` is a first request, with the system prompt, the tools and the sampling settings. "
            f"{system}.",
            "",
            "```bash",
            f'curl -s {url}/v1/chat/completions -H "Content-Type: application/json" -d @request.json',
            "```",
            *(["", "Add the headers that this endpoint asks for: its key."] if served and served.headers else []),
        ]
    )


def _loop(params: config.Params, prompt: PromptSettings, tools: list[dict[str, Any]]) -> str:
    limits = params.rollout
    lines = [
        "## What your agent does beside the server",
        "It was judged under these limits and settings (`sampling.json`). The server applies the temperature and the "
        "token limits. The rest is yours:",
        "",
        f"- Call the tools ({', '.join(tool['function']['name'] for tool in tools) or 'none'}), and send each result "
        "back as a `tool` message.",
        "- The server renders the chat template itself: a control token spelled in a tool's result or in a user's "
        "text (such as `<|im_end|>`) may become a real one there, and forge a turn. Check or escape such text before "
        "you send it.",
        f"- At most {num_turns(prompt, limits)} assistant turns and {limits.max_tool_calls} tool calls, "
        f"{limits.max_turn_tokens} tokens per turn.",
    ]
    for tool, values in prompt.tool_defaults.items():
        defaults = ", ".join(f"{key} = {value}" for key, value in values.items())
        lines.append(f"- Fill in what a call of `{tool}` leaves out: {defaults}.")
    if prompt.block_repeated_calls:
        lines.append(
            "- Answer a call that was made before, word for word, without making it again: `this call was made "
            "before; its result stands above`."
        )
    if limits.response_format is not None:
        lines.append(
            "- The prompt states the final answer's format. A `response_format` in the request would bind turns with "
            "tool calls too."
        )
    return "\n".join(lines)


def _answer(serve: config.Serve) -> str | None:
    """Explain how to make an answer from several rollouts, which no server does by itself."""
    if serve.is_single:
        return None
    ways = {
        "majority": "Answer with the most frequent final answer. Compare "
        + (
            "texts without the whitespace around them; an empty one does not count."
            if serve.over == "output_text"
            else "JSON without regard to the order of its keys (RFC 8785); a text that is not JSON does not count."
        ),
        "best_of_n": "Answer with the one to which `verify(messages, sample)`, in tools.py of the run's recipe, gives "
        "the highest number.",
    }
    return (
        f"## Answer\nEach judged answer was {serve.description} (`serve` in `sampling.json`). "
        "The server samples "
        f"rollouts, and the rest is yours: for each question, play {serve.k} dialogues side by side, each from the "
        "first request to its own final answer, at the temperature in `sampling.json`. (`n` in a request is enough "
        f"only where no tools are called.) {ways[serve.method]} Among equals, take the one that was started first."
    )


def _files() -> str:
    manifest = "`manifest.json` has the SHA-256 of each file, and where it all comes from."
    return f"## Files\n{manifest} `prompt.json` is the prompt as the gate judged it."


__all__ = ["PARSERS", "family", "line", "readme"]
