"""Gives a chat template its arguments.

Some templates read more than messages and tools: Qwen3's reads `enable_thinking`. The arguments of
`policy.template_arguments` are written into the template as its first lines. So a stage, the doctor
and a server that got the template by `rft export` all render the same text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rft.errors import ConfigError, did_you_mean

_OURS = {"messages", "tools", "documents", "add_generation_prompt", "response_format"}
_ITS_OWN = {"raise_exception", "strftime_now", "bos_token", "eos_token", "pad_token", "unk_token"}


def with_arguments(template: Any, arguments: Mapping[str, Any]) -> Any:
    """Write arguments into a template, or into each of several. Raises ConfigError for an argument
    that the template does not read."""
    if isinstance(template, dict):
        return {name: with_arguments(text, arguments) for name, text in template.items()}
    reads = _reads(template or "")
    for name in arguments:
        if name not in reads:
            known = did_you_mean(name, sorted(reads)) if reads else "The template reads none. Remove the key."
            raise ConfigError(f"params.yaml: 'policy.template_arguments.{name}': the chat template does not read it. "
                              f"{known}")  # fmt: skip
    lines = (f"{{%- set {name} = {_literal(value)} -%}}\n" for name, value in arguments.items())
    return "".join(lines) + template


def _reads(template: str) -> set[str]:
    """Find the names that a template reads and does not set: an argument can set them."""
    import jinja2
    from jinja2 import meta, nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        """Reads `{% generation %}`, by which transformers marks assistant turns."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols", Generation])
    try:
        found = meta.find_undeclared_variables(environment.parse(template))
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(
            f"policy.chat_template: line {error.lineno}: {error.message}. Correct it, or name another template."
        ) from None
    return found - _OURS - _ITS_OWN


def _literal(value: Any) -> str:
    """Write a JSON value as Jinja does. In Jinja, null is none."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {_literal(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return "none" if value is None else json.dumps(value)


__all__ = ["with_arguments"]
