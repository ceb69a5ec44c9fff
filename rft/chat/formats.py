"""Formats: how each family of models writes reasoning and tool calls, and ends a turn.

    from_tokenizer(tokenizer, setting)    the format: by name, or by what the chat template renders
    Format.read(text, turn)               text as sampled -> Reading
    Format.write(message)                 a recorded message -> text as the policy would sample it

    hermes    <think>..</think>, then <tool_call>\\n{"name", "arguments"}\\n</tool_call>; Qwen too
    llama3    {"name", "parameters"}, perhaps after <|python_tag|>, several joined with "; "
    mistral   [TOOL_CALLS] [{"name", "arguments"}, ..], or since v11 [TOOL_CALLS]name[ARGS]{..} each
    gpt-oss   harmony channels: analysis, commentary to=functions.NAME, final

Reading is strict, because a broken call must never pass as an answer. An error that spoils a whole
message (a call or reasoning without its end, markup where text should be) is `Reading.problem`, and
the content is empty. An error in one call is that call's `problem`: the good calls beside it stay,
and the policy is told about the bad one. Reading never raises, whatever the text.

A template is recognized by what it renders for a call, never by its source: a copy with one more
comment is the same format. If the tokenizer has a `response_template`, transformers' own parser
reads the text, under the same rules.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from rft.errors import UserError
from rft.types import Message, Reading, ToolCall

MARK = "rft-mark-0"
"""Plain ASCII without markup, which every template writes unchanged."""
THINK = ("<think>", "</think>")


_SPACE, _SEPARATORS = re.compile(r"\s*"), re.compile(r"[; \t\r\n]*")


class Format(ABC):
    """One family. `name` is what `policy.tool_format` calls it."""

    name = ""
    ends: tuple[str, ...] = ()
    """Tokens beside the tokenizer's own that end an assistant turn."""
    closes: tuple[str, ...] = ()
    """What a template may write instead of `ends` when more messages follow."""
    tags = THINK
    """The tags around reasoning."""
    markup: tuple[str, ...] = ()
    """Markup that must not be left over in an answer."""

    @abstractmethod
    def read(self, text: str, turn: int) -> Reading:
        """Read a whole message: `assistant_prefix` and what was sampled, without its end token."""

    @abstractmethod
    def write(self, message: Message) -> str:
        """Write a message without its end token."""

    def call_id(self, call_id: str) -> str:
        """Return the id that the template gets for a call."""
        return call_id

    def inert(self, arguments: str) -> str:
        """Escape control tokens in JSON: the strings mean the same, and cannot end the turn."""
        for tag in (*self.markup, *self.ends, *self.closes):
            arguments = arguments.replace(tag, f"\\u{ord(tag[0]):04x}{tag[1:]}")
        return arguments

    def assistant_prefix(self, start: str) -> str:
        """Return the part of the assistant's start that belongs to the message: some templates
        write <think> themselves."""
        found = start.rfind(self.tags[0])
        return start[found:] if found >= 0 else ""


class Hermes(Format):
    name = "hermes"
    ends = ("<|im_end|>",)
    markup = ("<tool_call>", "</tool_call>", *THINK)

    def read(self, text: str, turn: int) -> Reading:
        reasoning, rest, problem = _reasoning(text, self.tags)
        content, bodies = _between(rest, "<tool_call>\n", "\n</tool_call>")
        if problem := problem or _left_over(content, self.markup):
            return Reading("", reasoning=reasoning, problem=problem)
        calls = tuple(_call(body, _id(turn, n), "arguments") for n, body in enumerate(bodies))
        return Reading(content.strip() if calls else content, calls, reasoning)

    def write(self, message: Message) -> str:
        parts = [message["content"]] if message.get("content") else []
        for name, arguments in _functions(message):
            quoted = json.dumps(name, ensure_ascii=False)
            parts.append(f'<tool_call>\n{{"name": {quoted}, "arguments": {arguments}}}\n</tool_call>')
        return _thought(message, "<think>\n", "\n</think>\n\n") + "\n".join(parts)


class Llama3(Format):
    """An answer that is a JSON object stays an answer. But if it has `parameters`, it is a call, or
    a broken one."""

    name = "llama3"
    ends = ("<|eot_id|>", "<|eom_id|>")
    markup = ("<|python_tag|>", "<|eot_id|>", "<|eom_id|>", "<|start_header_id|>", "<|end_header_id|>")
    _begun = re.compile(r'\{\s*"(?:name"\s*:|parameters"\s*:|type"\s*:\s*"function")')

    def read(self, text: str, turn: int) -> Reading:
        before, tag, behind = ("", "", text) if text.lstrip().startswith("{") else text.partition(self.markup[0])
        if not tag and not behind.lstrip().startswith("{"):
            return self._answer(text)
        if problem := _left_over(before, self.markup) or self._misplaced(before):
            return Reading("", problem=problem)
        values, end = _values(behind)
        if not tag and not any(_is_call(value) for value, _ in values):
            return self._answer(text)
        calls = [_checked(value, source, _id(turn, n), "parameters") for n, (value, source) in enumerate(values)]
        rest = behind[end:]
        if rest and not rest.startswith("{") and calls:
            return Reading("", problem=f"text behind a call: {rest[:40]!r}")
        if rest or not calls:
            calls.append(_call(rest, _id(turn, len(calls)), "parameters"))
        return Reading(before.strip(), tuple(calls))

    def write(self, message: Message) -> str:
        content = message.get("content") or ""
        calls = [
            f'{{"name": {json.dumps(name, ensure_ascii=False)}, "parameters": {self.inert(arguments)}}}'
            for name, arguments in _functions(message)
        ]
        return content + (self.markup[0] if content and calls else "") + "; ".join(calls)

    def _answer(self, text: str) -> Reading:
        problem = _left_over(text, self.markup) or self._misplaced(text)
        return Reading("", problem=problem) if problem else Reading(text)

    def _misplaced(self, text: str) -> str:
        """Return a problem if a call, or a broken one, begins somewhere in the text."""
        for found in self._begun.finditer(text):
            values, _ = _values(text, found.start(), most=1)
            if not values or _is_call(values[0][0]):
                return "a tool call that is broken, or does not stand alone"
        return ""


class Mistral(Format):
    """`named`: write calls one by one with their names in front, as since tokenizer v11. Both forms
    are read.

    Results name their call by nine alphanumeric characters, which we make from the call's id. An id
    that the policy wrote itself is not used: it need not be unique.
    """

    name = "mistral"
    ends = ("</s>",)
    tags = ("[THINK]", "[/THINK]")
    markup = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[INST]", "[/INST]", *tags)
    _head = re.compile(r"\s*+([^\s\[\]{}]++)(?:\[CALL_ID\][^\[\]{}]*+)?\[ARGS\]\s*+")

    def __init__(self, named: bool = False):
        self.named = named

    def read(self, text: str, turn: int) -> Reading:
        reasoning, rest, problem = _reasoning(text, self.tags)
        content, tag, behind = rest.partition("[TOOL_CALLS]")
        if problem := problem or _left_over(content, self.markup):
            return Reading("", reasoning=reasoning, problem=problem)
        if not tag:
            return Reading(rest, reasoning=reasoning)
        calls, problem = self._list(behind, turn) if behind.lstrip().startswith("[") else self._named(behind, turn)
        if problem:
            return Reading("", reasoning=reasoning, problem=problem)
        return Reading(content.strip(), tuple(calls), reasoning)

    def write(self, message: Message) -> str:
        calls = [
            (json.dumps(name, ensure_ascii=False), name, self.inert(arguments))
            for name, arguments in _functions(message)
        ]
        text = _thought(message, *self.tags) + (message.get("content") or "")
        if self.named:
            return text + "".join(f"[TOOL_CALLS]{name}[ARGS]{arguments}" for _, name, arguments in calls)
        objects = [f'{{"name": {quoted}, "arguments": {arguments}}}' for quoted, _, arguments in calls]
        return text + (f"[TOOL_CALLS] [{', '.join(objects)}]" if calls else "")

    def call_id(self, call_id: str) -> str:
        fits = len(call_id) == 9 and call_id.isascii() and call_id.isalnum()
        return call_id if fits else hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]

    def _list(self, text: str, turn: int) -> tuple[list[ToolCall], str]:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            return [], f"the list of tool calls is not JSON: {error}"
        if not isinstance(found, list) or not found:
            return [], "[TOOL_CALLS] without calls"
        values = [
            {key: part for key, part in value.items() if key != "id"} if isinstance(value, dict) else value
            for value in found
        ]
        return [_checked(value, str(value), _id(turn, n), "arguments") for n, value in enumerate(values)], ""

    def _named(self, text: str, turn: int) -> tuple[list[ToolCall], str]:
        calls, at, mark = list[ToolCall](), 0, self.markup[0]
        while True:
            head, call_id = self._head.match(text, at), _id(turn, len(calls))
            values, end = _values(text, head.end(), most=1) if head else ([], at)
            if head and values and (end == len(text) or text.startswith(mark, end)):
                calls.append(_checked({"name": head[1], "arguments": values[0][0]}, values[0][1], call_id, "arguments"))
            else:
                found = text.find(mark, at)
                end = len(text) if found < 0 else found
                name, arguments = (head[1], text[head.end() : end]) if head else ("", text[at:end])
                calls.append(ToolCall(call_id, name, arguments, "not name[ARGS]{...} with a JSON object"))
            if end == len(text):
                return calls, ""
            at = end + len(mark)


class Harmony(Format):
    """A message is a chain of channel messages; the template writes the first one's
    `<|start|>assistant`."""

    name = "gpt-oss"
    ends = ("<|return|>", "<|call|>")
    closes = ("<|end|>",)
    markup = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>")
    _message = re.compile(
        r"(?:<\|start\|>assistant)?(?: to=(?P<to>[^\s<]++))?<\|channel\|>(?P<channel>\w++)"
        r"(?: to=(?P<to_behind>[^\s<]++))?\s*+(?:<\|constrain\|>\s*+)?(?:\w++\s*+)?<\|message\|>"
        r"(?P<body>.*?)(?:<\|end\|>|<\|call\|>|<\|return\|>|\Z)",
        re.DOTALL,
    )
    """Possessive quantifiers (`++`, `*+`) try nothing twice. Without them, 10,000 blanks before a
    message took ten seconds."""

    def assistant_prefix(self, start: str) -> str:
        return ""

    def read(self, text: str, turn: int) -> Reading:
        bodies: dict[str, list[str]] = {"analysis": [], "commentary": [], "final": []}
        calls: list[ToolCall] = []
        at = 0
        while at < len(text):
            found = self._message.match(text, at)
            if found is None or found["channel"] not in bodies or _left_over(found["body"], self.markup):
                return Reading(
                    "",
                    reasoning="\n".join(bodies["analysis"]),
                    problem=f"not a channel message: {text[at : at + 60]!r}",
                )
            to = found["to"] or found["to_behind"]
            if to is None:
                bodies[found["channel"]].append(found["body"])
            else:
                calls.append(self._call(to, found["body"], _id(turn, len(calls))))
            at = found.end()
        reasoning = "\n".join(bodies["analysis"])
        if calls and bodies["final"]:
            return Reading("", reasoning=reasoning, problem="a final answer and a call in one message")
        if not calls and not bodies["final"]:
            return Reading("", reasoning=reasoning, problem="a message without a final channel or a call")
        return Reading("\n".join(bodies["final"] or bodies["commentary"]), tuple(calls), reasoning)

    def write(self, message: Message) -> str:
        calls, content = _functions(message), message.get("content") or ""
        thought = _thought(message, "<|channel|>analysis<|message|>", "<|end|>")
        parts = [thought] if thought else []
        if content or not calls:
            parts.append(f"<|channel|>{'commentary' if calls else 'final'}<|message|>{content}<|end|>")
        parts += [
            f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{self.inert(text)}<|call|>"
            for name, text in calls
        ]
        return "<|start|>assistant".join(parts).removesuffix("<|call|>" if calls else "<|end|>")

    def _call(self, to: str, body: str, call_id: str) -> ToolCall:
        space, _, name = to.partition(".")
        if space != "functions" or not name:
            return ToolCall(call_id, to, body, f"{to!r} is not functions.NAME")
        values, end = _values(body)
        if len(values) != 1 or end < len(body):
            return ToolCall(call_id, name, body, "the call's message is not one JSON object")
        return _checked({"name": name, "arguments": values[0][0]}, body, call_id, "arguments")


class Declared(Format):
    """The tokenizer's own format: transformers' parser with its `response_template`.

    That parser closes everything that is open at the end of the text, and puts what it does not
    know into `content`. So it gets the end token too, which spoils a call that was left open. And
    content that holds the mark of a call is a problem.
    """

    name = "response_template"

    def __init__(self, tokenizer: Any, family: Format | None):
        self._tokenizer, self._family = tokenizer, family
        self.family_name = family.name if family else self.name
        self.ends = family.ends if family else ()
        self.closes = family.closes if family else ()
        self.markup = tuple(token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
        spec = tokenizer.response_template
        self._start = _anchor(spec, "start_anchor")
        calls = spec["fields"].get("tool_calls", {})
        self._marks = re.compile(f"{_anchor(calls, 'open').pattern}|{_anchor(calls, 'close').pattern}", re.DOTALL)

    def assistant_prefix(self, start: str) -> str:
        return start[max((found.end() for found in self._start.finditer(start)), default=len(start)) :]

    def call_id(self, call_id: str) -> str:
        return self._family.call_id(call_id) if self._family else call_id

    def read(self, text: str, turn: int) -> Reading:
        end = self._tokenizer.eos_token
        try:
            parsed = self._tokenizer.parse_response(text + end, prefix="")
        except Exception as error:  # somebody else's parser, over any text
            return Reading("", problem=str(error))
        content = str(parsed.get("content") or "").removesuffix(end)
        reasoning = str(parsed.get("reasoning_content") or parsed.get("thinking") or "")
        found = parsed.get("tool_calls") or []
        problem = "the mark of a tool call in the answer" if self._marks.search(content) else ""
        problem = problem or _left_over(content, self.markup)
        if problem := problem or ("" if content or found else "neither an answer nor a call"):
            return Reading("", reasoning=reasoning, problem=problem)
        found = found if isinstance(found, list) else [found]
        values = [call.get("function") if isinstance(call, dict) else call for call in found]
        calls = [_checked(value, str(value), _id(turn, n), "arguments") for n, value in enumerate(values)]
        return Reading(content, tuple(calls), reasoning)

    def write(self, message: Message) -> str:
        if self._family is None:
            raise UserError(
                f"{self._tokenizer.name_or_path}: its response_template says how to read a message, not how to write "
                f"one. Set policy.tool_format to one of {', '.join(FAMILIES)}."
            )
        return self._family.write(message)


def _anchor(spec: dict[str, Any], name: str) -> re.Pattern[str]:
    """Compile one literal, several literals or a pattern. Without any, the result matches
    nothing."""
    literals = [spec[name]] if isinstance(spec.get(name), str) else spec.get(name, [])
    return re.compile("|".join(map(re.escape, literals)) or spec.get(f"{name}_pattern", "(?!)"), re.DOTALL)


FAMILIES: dict[str, Format] = {family.name: family for family in (Hermes(), Llama3(), Mistral(), Harmony())}
HERMES = FAMILIES["hermes"]


# -- which -----------------------------------------------------------------------------------------
def from_tokenizer(tokenizer: Any, setting: str = "auto") -> Format:
    """Find the format of a tokenizer. `setting` is policy.tool_format."""
    written = _written(tokenizer)
    seen = _recognized(written)
    if setting != "auto":
        return seen if seen and seen.name == setting else FAMILIES[setting]
    if getattr(tokenizer, "response_template", None):
        return Declared(tokenizer, seen)
    if seen is None:
        found = f"a call is written as {written[:120]!r}" if written else "it writes no tool calls"
        raise UserError(
            f"{tokenizer.name_or_path or 'the tokenizer'}: its chat template has no known format: {found}. Set "
            f"policy.tool_format to one of {', '.join(FAMILIES)}, or give it a chat template that has tools by "
            "policy.chat_template, such as rft/chat/templates/chatml-hermes.jinja."
        )
    return seen


def _recognized(written: str) -> Format | None:
    if re.search(r'<tool_call>\s*\{\s*"name"', written):
        return HERMES
    if "[TOOL_CALLS]" in written:
        return Mistral(named="[ARGS]" in written)
    if "<|channel|>" in written and "functions." in written:
        return FAMILIES["gpt-oss"]
    if re.search(r'\{\s*"name"\s*:\s*"f"\s*,\s*"parameters"\s*:', written):
        return FAMILIES["llama3"]
    return None


def _written(tokenizer: Any) -> str:
    """Return how the template writes one call, from after the question to after the call's
    argument; empty if it writes none."""
    tool = {
        "name": "f",
        "description": "f",
        "parameters": {"type": "object", "properties": {"q": {"type": "string", "description": "q"}}},
    }
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"q": MARK}}}
    messages = [{"role": "user", "content": "question-0"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    tools = [{"type": "function", "function": tool}]
    try:
        text: str = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    except Exception:  # a template's own refusal: it knows no tools
        return ""
    return text[text.rindex("question-0") + len("question-0") : text.rindex(MARK) + len(MARK)] if MARK in text else ""


# -- the parts of a message ------------------------------------------------------------------------
def _id(turn: int, n: int) -> str:
    return f"call_{turn}_{n}"


def _functions(message: Message) -> list[tuple[str, str]]:
    """Return each call's name, and its arguments as JSON text."""
    functions = [call["function"] for call in message.get("tool_calls") or []]
    pairs = [(function["name"], function["arguments"]) for function in functions]
    return [(name, arguments if isinstance(arguments, str) else _dumped(arguments)) for name, arguments in pairs]


def _thought(message: Message, start: str, end: str) -> str:
    return f"{start}{message['reasoning_content']}{end}" if message.get("reasoning_content") else ""


def _reasoning(text: str, tags: tuple[str, str]) -> tuple[str, str, str]:
    """Split a text into reasoning, the rest, and a problem."""
    start, end = tags
    if not text.lstrip().startswith(start):
        return "", text, ""
    inside, found, rest = text.lstrip()[len(start) :].partition(end)
    return inside.strip("\n"), rest.lstrip("\n"), "" if found else f"{start} without its end"


def _between(text: str, opens: str, closes: str) -> tuple[str, list[str]]:
    """Split into the text outside and the bodies, in time proportional to its length. A pattern
    would look for the end again from each of a thousand beginnings: 80 kB took 4.6 s."""
    outside, bodies, at = list[str](), list[str](), 0
    while (start := text.find(opens, at)) >= 0 and (end := text.find(closes, start + len(opens))) >= 0:
        outside.append(text[at:start])
        bodies.append(text[start + len(opens) : end])
        at = end + len(closes)
    return "".join([*outside, text[at:]]), bodies


def _left_over(text: str, markup: Sequence[str]) -> str:
    found = next((tag for tag in markup if tag in text), None)
    return f"{found} where there should be text: a part without its start or end" if found else ""


def _is_call(value: Any) -> bool:
    return isinstance(value, dict) and (
        "parameters" in value or {"name", "arguments"} <= set(value) or value.get("type") == "function"
    )


_DECODER, _ENCODER = json.JSONDecoder(), json.JSONEncoder(ensure_ascii=False, allow_nan=False)
"""Made once: a text can hold thousands of calls."""


def _values(text: str, at: int = 0, most: int = -1) -> tuple[list[tuple[Any, str]], int]:
    """Read the JSON objects at a place of the text, each with its source; also return where the
    rest begins."""
    values = list[tuple[Any, str]]()
    at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    while text.startswith("{", at) and len(values) != most:
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        values.append((value, text[at:end]))
        at = (_SPACE if most == 1 else _SEPARATORS).match(text, end).end()  # type: ignore[union-attr]
    return values, at


def _call(body: str, call_id: str, key: str) -> ToolCall:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:  # also for thousands of digits, or of nested brackets
        return ToolCall(call_id, "", body, f"tool call is not JSON: {error}")
    return _checked(value, body, call_id, key)


def _checked(value: Any, source: str, call_id: str, key: str) -> ToolCall:
    """Make a call from a JSON value, which need not be a call; `key` holds its arguments."""
    if isinstance(value, dict) and key == "parameters" and value.get("type") == "function":
        value = {name: part for name, part in value.items() if name != "type"}
    name = value.get("name") if isinstance(value, dict) else None
    name = name if isinstance(name, str) else ""
    if not isinstance(value, dict) or set(value) != {"name", key} or not isinstance(value["name"], str):
        return ToolCall(call_id, name, source, f'tool call needs exactly "name" and "{key}"')
    if not isinstance(value[key], dict):
        return ToolCall(call_id, name, source, f'"{key}" is not an object')
    try:
        arguments = _dumped(value[key])
        name.encode()
    except (ValueError, RecursionError) as error:
        # NaN, a number beyond floats, half a surrogate pair: they cannot be JSON, or text, on the
        # wire
        return ToolCall(call_id, "", "", f"tool call cannot be sent: {error}")
    return ToolCall(call_id, name, arguments)


def _dumped(arguments: Any) -> str:
    text = _ENCODER.encode(arguments)
    text.encode()
    return text
