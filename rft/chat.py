"""Between messages and tokens: the model folder's own chat template, and Hermes tool calls.

A rollout only ever appends. `Chat.prompt_ids` renders the opening messages; the policy then samples its own tokens, which are
kept as they are; `Chat.reply_ids` renders what stands between the end of an assistant turn and the start of the next: the tool
results. Nothing that was sampled is rendered or encoded a second time.

The delta is found by rendering a dummy assistant message with the tool messages after it and cutting behind the dummy, so any
template works that writes turns one after another. Text in the policy's output is parsed strictly: a call whose wrapper or JSON
is broken is a `ParseError`, never a final answer.
"""

from __future__ import annotations

import json
import re
from typing import Any

from rft.errors import UserError
from rft.types import Message, ToolCall

_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
_MARK = "\u241emark\u241e"


class ParseError(ValueError):
    """The policy wrote a tool call that cannot be read."""


def parse_calls(text: str, turn: int = 0) -> list[ToolCall]:
    """The tool calls in an assistant message, in order; empty when it is a final answer. Raises ParseError."""
    rest = _CALL.sub("", text)
    if "<tool_call>" in rest or "</tool_call>" in rest:
        raise ParseError("a <tool_call> without its end, or an end without its start")
    return [_call(body, f"call_{turn}_{n}") for n, body in enumerate(_CALL.findall(text))]


def _call(body: str, call_id: str) -> ToolCall:
    try:
        call = json.loads(body)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, or brackets nested as deep
        raise ParseError(f"tool call is not JSON: {error}") from None
    if not isinstance(call, dict) or set(call) != {"name", "arguments"} or not isinstance(call["name"], str):
        raise ParseError('tool call needs exactly "name" and "arguments"')
    if not isinstance(call["arguments"], dict):
        raise ParseError('"arguments" is not an object')
    return ToolCall(call_id, call["name"], json.dumps(call["arguments"], ensure_ascii=False))


def assistant_text(message: Message) -> str:
    """An assistant message as the policy writes it: content, then Hermes calls."""
    parts = [message["content"]] if message.get("content") else []
    for call in message.get("tool_calls") or []:
        function = call["function"]
        parts.append(f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": {function["arguments"]}}}\n</tool_call>')
    return "\n".join(parts)


def assistant_message(text: str, calls: list[ToolCall] | tuple[ToolCall, ...]) -> Message:
    """The inverse, for records and graders."""
    message: Message = {"role": "assistant", "content": _CALL.sub("", text).strip() if calls else text}
    if calls:
        message["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in calls
        ]
    return message


class Chat:
    """A tokenizer with its template and one set of tools. Ids in and out are plain lists of int."""

    def __init__(self, tokenizer: Any, tools: list[dict[str, Any]]):
        if not getattr(tokenizer, "chat_template", None):
            where = tokenizer.name_or_path
            raise UserError(f"the tokenizer of {where!r} has no chat template. Use an instruction-tuned model, or add chat_template.jinja.")
        self.tokenizer = tokenizer
        self.tools = tools
        self.end_id: int = tokenizer.eos_token_id
        self._end_text: str = tokenizer.eos_token
        self._deltas: dict[int, tuple[str, ...]] = {}

    def render(self, messages: list[Message]) -> str:
        return self.tokenizer.apply_chat_template(messages, tools=self.tools or None, tokenize=False, add_generation_prompt=True)

    def prompt_ids(self, messages: list[Message]) -> list[int]:
        """The opening messages and the assistant's start."""
        return self.encode(self.render(messages))

    def reply_ids(self, outputs: list[str]) -> list[int]:
        """Tool results, from behind the assistant's end token to the next assistant's start."""
        pieces = self._delta(len(outputs))
        text = pieces[0] + "".join(output + piece for output, piece in zip(outputs, pieces[1:], strict=True))
        return self.encode(text)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def text(self, ids: list[int] | tuple[int, ...]) -> str:
        """Sampled ids as text, without the end token. Wrapper tokens stay."""
        ids = list(ids)
        if ids and ids[-1] == self.end_id:
            ids.pop()
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def dialogue_ids(self, messages: list[Message]) -> tuple[list[int], list[bool]]:
        """A whole recorded dialogue, tokenized exactly as a rollout would build it, and which tokens are the assistant's."""
        first = next(n for n, message in enumerate(messages) if message["role"] == "assistant")
        ids = self.prompt_ids(messages[:first])
        mine = [False] * len(ids)
        outputs: list[str] = []
        for message in messages[first:]:
            if message["role"] == "tool":
                outputs.append(message["content"])
                continue
            if outputs:
                reply = self.reply_ids(outputs)
                ids, mine, outputs = ids + reply, mine + [False] * len(reply), []
            spoken = [*self.encode(assistant_text(message)), self.end_id]
            ids, mine = ids + spoken, mine + [True] * len(spoken)
        return ids, mine

    def _delta(self, n: int) -> tuple[str, ...]:
        """The template's text around n tool results: n + 1 pieces."""
        if n not in self._deltas:
            outputs = [f"{_MARK}{i}{_MARK}" for i in range(n)]
            calls = [{"type": "function", "function": {"name": "f", "arguments": {}}}] * n
            messages: list[Message] = [{"role": "user", "content": "u"}, {"role": "assistant", "content": _MARK, "tool_calls": calls}]
            messages += [{"role": "tool", "content": output} for output in outputs]
            text = self.render(messages)
            tail = text[text.index(outputs[0]) :]
            head = text[: text.index(outputs[0])]
            behind = head[head.rindex(_MARK) + len(_MARK) :]
            if self._end_text not in behind:
                raise UserError("the chat template does not end assistant turns with its end token: it cannot be continued token by token.")
            start = behind[behind.index(self._end_text) + len(self._end_text) :]
            pieces = [start]
            for i, output in enumerate(outputs):
                rest = tail[tail.index(output) + len(output) :]
                pieces.append(rest[: rest.index(outputs[i + 1])] if i + 1 < n else rest)
            self._deltas[n] = tuple(pieces)
        return self._deltas[n]
