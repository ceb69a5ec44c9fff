"""Turns messages into tokens, with the model's own chat template, and reads tokens as messages.

A rollout only ever appends. `Chat.prompt_ids` renders the opening messages. The policy samples its
own tokens, which are kept. `Chat.tool_result_ids` renders what comes between the end of an
assistant turn and the start of the next: the tool results. Nothing that was sampled is rendered or
encoded a second time.

Results, messages, tools and names are text: none of it becomes a control token
(rft/chat/control.py).

The template itself writes what comes between two turns: a dummy assistant turn is rendered with the
real results after it, and the text is cut after the dummy's end. So a template may quote or trim a
result, and write the tool's name or the call's id; it only has to write turns one after another. If
it cannot write two calls in one turn, it is asked for one call at a time. `prefix_problems` finds
where a template would not have written what the rollout holds. The rollout keeps its own tokens
anyway.

rft/chat/formats.py reads the policy's text: a call with a broken wrapper or broken JSON is a
problem, never a final answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any

from rft.chat import formats
from rft.chat.control import Control
from rft.config import response_format
from rft.errors import UserError
from rft.types import Message, Opening, Reading, ToolCall

KEPT_TOOL_RESULTS = 4096
_HALF = re.compile(r"[\ud800-\udfff]")


class ParseError(ValueError):
    """The policy wrote a tool call that cannot be read."""


def parse_calls(text: str, turn: int = 0) -> list[ToolCall]:
    """Return the Hermes tool calls in an assistant message, in order; none if it is a final answer.
    Raises ParseError."""
    reading = formats.HERMES.read(text, turn)
    if problem := reading.problem or next((call.problem for call in reading.calls if call.problem), ""):
        raise ParseError(problem)
    return list(reading.calls)


def assistant_text(message: Message) -> str:
    """Write an assistant message as a Hermes policy does."""
    return formats.HERMES.write(message)


class Chat:
    """A tokenizer with its template and one set of tools. Ids in and out are plain lists of int."""

    def __init__(self, tokenizer: Any, tools: list[dict[str, Any]], tool_format: str = "auto"):
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(
                f"the tokenizer of {tokenizer.name_or_path!r} has no chat template. Use an instruction-tuned model, "
                "or add chat_template.jinja."
            )
        self.tokenizer = tokenizer
        self.tools = tools
        self.format = formats.from_tokenizer(tokenizer, tool_format)
        markup = (*self.format.markup, *self.format.ends, *self.format.closes, *self.format.tags)
        self._control = Control(tokenizer, markup)
        added = tokenizer.added_tokens_encoder
        ends = {tokenizer.eos_token_id: tokenizer.eos_token}
        ends |= {added[end]: end for end in self.format.ends if end in added}
        spelled = {token: entry.content for token, entry in tokenizer.added_tokens_decoder.items()}
        model_ends: Sequence[int] = getattr(tokenizer, "model_ends", ())
        ends |= {token: spelled[token] for token in model_ends if token in spelled}
        self.end_ids: tuple[int, ...] = tuple(dict.fromkeys((*ends, *model_ends)))
        """Any of these ends a turn: the tokenizer's, the format's, or one that the model's own
        generation_config.json names."""
        self.end_id: int = self.end_ids[0]
        self._ends = {text: token for token, text in ends.items()}
        self._cached_tool_result_ids = lru_cache(KEPT_TOOL_RESULTS)(self._encode_tool_results)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None = None,
        start: bool = True,
        answer_format: dict[str, Any] | None = None,
    ) -> str:
        """Render messages as text. `start`: add the start of the next assistant turn.
        `answer_format`: a response_format that the prompt states, in the template's own way if it
        has one, else as an instruction."""
        return self._rendered([self._normalize_message(message) for message in messages], tools, start, answer_format)

    def _rendered(
        self,
        template_messages: list[Message],
        tools: Sequence[dict[str, Any]] | None = None,
        start: bool = True,
        answer_format: dict[str, Any] | None = None,
    ) -> str:
        """Render messages that `_normalize_message` made. They are final: nothing else in them can
        become a token."""
        tools = self.tools if tools is None else list(tools)

        def text(template_messages: list[Message], **more: Any) -> str:
            return self.tokenizer.apply_chat_template(
                template_messages, tools=tools or None, tokenize=False, add_generation_prompt=start, **more
            )

        if answer_format is None:
            return text(template_messages)
        plain = text(template_messages)
        try:
            stated = text(template_messages, response_format=answer_format)
        except Exception:  # a template's own refusal
            stated = plain
        before, now = plain.casefold(), stated.casefold()
        words = [word.casefold() for word in response_format.words(answer_format)]
        if all(now.count(word) > before.count(word) for word in words):
            return stated
        return text(response_format.with_instruction(template_messages, answer_format))

    def prompt_ids(
        self,
        messages: list[Message],
        tools: Sequence[dict[str, Any]] | None = None,
        answer_format: dict[str, Any] | None = None,
    ) -> list[int]:
        """Encode the opening messages and the assistant's start. `tools`: the row's own; None:
        those of this chat."""
        tools = self.tools if tools is None else list(tools)
        opening = [self._normalize_message(message) for message in messages]
        untrusted = {"messages": opening, "tools": tools, "answer_format": answer_format}

        def texts(untrusted: dict[str, Any]) -> list[str]:
            return [self._rendered(untrusted["messages"], untrusted["tools"], answer_format=untrusted["answer_format"])]

        return self._encoded(untrusted, texts(untrusted), texts)[0]

    def opening_ids(self, openings: Sequence[Opening], max_context_tokens: int) -> list[list[int]]:
        """Encode each prompt. Raises UserError for an example whose prompt leaves no room for an
        answer in `max_context_tokens`."""
        known: dict[str, list[int]] = {}
        for opening in openings:
            if (text := repr(opening)) not in known:
                known[text] = self.prompt_ids(list(opening.messages), opening.tools, opening.response_format)
                if (length := len(known[text])) >= max_context_tokens:
                    raise no_room(opening, length, max_context_tokens)
        return [list(known[repr(opening)]) for opening in openings]

    def read(self, ids: Sequence[int], turn: int) -> tuple[str, Reading]:
        """Return sampled ids as text, and as a Reading."""
        text = self.text(ids)
        return text, self.format.read(self._assistant_prefix + text, turn)

    def tool_result_ids(self, calls: Sequence[ToolCall], outputs: Sequence[str]) -> list[int]:
        """Encode the results of these calls, from after the assistant's end token to the start of
        its next turn."""
        bare = tuple(replace(call, arguments="{}") for call in calls)  # arguments stand before the end token
        return list(self._cached_tool_result_ids(bare, tuple(outputs)))

    def _encode_tool_results(self, calls: tuple[ToolCall, ...], outputs: tuple[str, ...]) -> tuple[int, ...]:
        """Do the work of `tool_result_ids`. Cached: rollouts of a group get the same results, and a
        template takes as long as a decoding step."""
        untrusted = [(call.name, output) for call, output in zip(calls, outputs, strict=True)]

        def texts(untrusted: Sequence[tuple[str, str]]) -> list[str]:
            named = [replace(call, name=name) for call, (name, _) in zip(calls, untrusted, strict=True)]
            answered = [
                self._normalize_message(tool_message(call, output))
                for call, (_, output) in zip(named, untrusted, strict=True)
            ]
            return [self._between(named, answered)]

        return tuple(self._encoded(untrusted, texts(untrusted), texts)[0])

    def _encoded(self, untrusted: Any, texts: Sequence[str], render: Callable[[Any], Sequence[str]]) -> list[list[int]]:
        """Encode `texts`, which `render` makes from `untrusted`. Nothing in `untrusted` becomes a
        control token (rft/chat/control.py)."""
        if not self._control.suspects(untrusted):
            return [self.encode(text) for text in texts]
        hidden = self._control.hide(untrusted, "".join(texts))
        pairs = zip(texts, render(hidden.value), strict=True)
        return [self._control.encode(text, hidden_text, hidden) for text, hidden_text in pairs]

    def encode(self, text: str) -> list[int]:
        """Encode a string of our own: what looks like a control token becomes one."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def text(self, ids: Sequence[int]) -> str:
        """Decode sampled ids, without the end token. Wrapper tokens stay."""
        ids = list(ids)
        if ids and ids[-1] in self.end_ids:
            ids.pop()
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def dialogue_ids(self, messages: list[Message]) -> tuple[list[int], list[bool]]:
        """Encode a whole recorded dialogue exactly as a rollout would build it; also return which
        tokens are the assistant's."""
        ids: list[int] = []
        loss_mask: list[bool] = []
        untrusted: dict[str, Any] = {"messages": self._recorded(messages), "tools": self.tools}
        pieces = self._pieces(**untrusted)

        def texts(untrusted: dict[str, Any]) -> list[str]:
            return [text for _, text in self._pieces(**untrusted)]

        encoded = self._encoded(untrusted, [text for _, text in pieces], texts)
        for (turn_kind, _), piece in zip(pieces, encoded, strict=True):
            piece = [*piece, self._end_of[turn_kind]] if turn_kind else piece
            ids, loss_mask = ids + piece, loss_mask + [bool(turn_kind)] * len(piece)
        return ids, loss_mask

    def dialogue_text(self, messages: list[Message]) -> str:
        """Return the text of what `dialogue_ids` encodes."""
        text_of = {token: text for text, token in self._ends.items()}
        end_of = {turn_kind: text_of[token] for turn_kind, token in self._end_of.items() if token in text_of}
        pieces = self._pieces(self._recorded(messages), self.tools)
        return "".join(text + end_of.get(turn_kind, "") for turn_kind, text in pieces)

    def _between(self, calls: Sequence[ToolCall], template_messages: Sequence[Message], start: bool = True) -> str:
        """Return the template's text between two assistant turns: from the end of a turn with these
        calls, through these messages, to the start of the next turn."""
        if len(calls) > 1 and not self._parallel:
            first = self._between(calls[:1], template_messages[:1], start=False)
            return first + self._between(calls[1:], template_messages[1:], start)
        marks = [f"{formats.MARK[:-1]}{n}" for n in range(len(calls))] or [formats.MARK]
        assistant_message: Message = {"role": "assistant", "content": "" if calls else marks[0]}
        if calls:
            assistant_message["tool_calls"] = [
                _function(call, {"q": mark}) for call, mark in zip(calls, marks, strict=True)
            ]
        text = self._rendered(
            [{"role": "user", "content": "u"}, self._normalize_message(assistant_message), *template_messages],
            start=start,
        )
        _, marked, behind = text.partition(marks[-1])
        found = [(behind.index(end), end) for end in (*self._ends, *self.format.closes) if end in behind]
        if not marked or not found:
            raise UserError(
                f"{self.tokenizer.name_or_path}: the chat template does not end assistant turns with its end token "
                f"({', '.join(self._ends)}): it cannot be continued token by token. Use a chat template that does."
            )
        place, end = min(found)
        return behind[place + len(end) :]

    def _recorded(self, messages: Sequence[Message]) -> list[Message]:
        """Prepare messages for `_pieces`: the assistant's calls are written as they were sampled,
        with their arguments as JSON text."""
        return [self._normalize_message(message, decoded=message["role"] != "assistant") for message in messages]

    def _pieces(self, messages: list[Message], tools: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
        """Split a dialogue into (who speaks, text): "calls" or "answer" for the assistant, else
        ""."""
        places = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
        pieces = [("", self._rendered(messages[: places[0]], tools))]
        for place, following in zip(places, [*places[1:], len(messages)], strict=True):
            calls = calls_of(messages[place])
            pieces.append(("calls" if calls else "answer", self._render_assistant(messages[place])))
            if place + 1 < len(messages):
                pieces.append(("", self._between(calls, messages[place + 1 : following])))
        return pieces

    def _render_assistant(self, message: Message) -> str:
        """Write a recorded message as the policy would, after what the template itself writes. If
        the template opened a thought and the message has none, close it. If the template closed the
        thought as well (thinking is off), leave out a recorded thought: a second one would read as
        an error."""
        start, end = self.format.tags
        if end in self._assistant_prefix:
            message = {key: value for key, value in message.items() if key != "reasoning_content"}
        text = self.format.write(message)
        closed = (
            start not in self._assistant_prefix
            or end in self._assistant_prefix
            or text.startswith(self._assistant_prefix)
        )
        return text.removeprefix(self._assistant_prefix) if closed else f"\n{end}\n\n{text}"

    @cached_property
    def _end_of(self) -> dict[str, int]:
        """Find the tokens that end a turn with calls, and a final answer."""
        call = _function(ToolCall("call_0_0", "f", ""), {"q": formats.MARK})
        last = {
            "calls": {"role": "assistant", "content": "", "tool_calls": [call]},
            "answer": {"role": "assistant", "content": formats.MARK},
        }
        ends = {}
        for turn_kind, message in last.items():
            behind = self.render([{"role": "user", "content": "u"}, message], start=False).partition(formats.MARK)[2]
            found = [(behind.index(end), token) for end, token in self._ends.items() if end in behind]
            ends[turn_kind] = min(found)[1] if found else self.end_id
        return ends

    @cached_property
    def _assistant_prefix(self) -> str:
        """Return what the template itself writes of the assistant's message."""
        return self.format.assistant_prefix(
            self.render([{"role": "user", "content": formats.MARK}]).rpartition(formats.MARK)[2]
        )

    @cached_property
    def _parallel(self) -> bool:
        """Whether the template writes several calls of one turn."""
        calls = [_function(ToolCall(f"call_0_{n}", "f", ""), {"q": f"{formats.MARK}{n}"}) for n in range(2)]
        assistant_message: Message = {"role": "assistant", "content": "", "tool_calls": calls}
        try:
            text = self.render([{"role": "user", "content": "u"}, assistant_message], start=False)
        except Exception:  # a template's own refusal
            return False
        return f"{formats.MARK}1" in text

    @cached_property
    def _objects(self) -> bool:
        """Whether the template wants arguments as objects. A template that takes the JSON string
        gets it byte for byte as sampled."""
        arguments = f'{{"q":"{formats.MARK}"}}'
        call = _function(ToolCall(self.format.call_id("call_0_0"), "f", ""), arguments)
        messages = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        try:
            text = self.tokenizer.apply_chat_template(messages, tools=self.tools or None, tokenize=False)
        except Exception:  # a template's own refusal
            return True
        return arguments not in text

    def _normalize_message(self, message: Message, decoded: bool = True) -> Message:
        """Write a message as this template wants it. Without `decoded` the arguments of its calls
        stay as they are."""
        if "tool_call_id" in message:
            message = {**message, "tool_call_id": self.format.call_id(message["tool_call_id"])}
        if calls := message.get("tool_calls"):
            message = {**message, "tool_calls": [self._normalize_call(call, decoded) for call in calls]}
        return message

    def _normalize_call(self, call: dict[str, Any], decoded: bool) -> dict[str, Any]:
        arguments = call["function"]["arguments"]
        if decoded and isinstance(arguments, str) and self._objects:
            arguments = _value(arguments)
        call = {**call, "id": self.format.call_id(call["id"])} if "id" in call else call
        return {**call, "function": {**call["function"], "arguments": arguments}}


def no_room(opening: Opening, length: int, limit: int) -> UserError:
    """Make the error. `limit`: that of a whole context, from params.yaml or the policy's server."""
    return UserError(
        f"example {opening.example_id!r}: its opening alone has {length} tokens, and rollout.max_tokens is "
        f"{limit} (if params.yaml does not set it: at least 512 in this process, the server's own limit at a "
        "policy.server). Raise it, or shorten the prompt, the row's messages or its tools."
    )


def calls_of(message: Message) -> list[ToolCall]:
    """Return the calls of a recorded message, without their arguments."""
    calls = message.get("tool_calls") or []
    return [ToolCall(call.get("id", ""), call["function"]["name"], "") for call in calls]


def tool_message(call: ToolCall, output: str) -> Message:
    return {"role": "tool", "tool_call_id": call.call_id, "name": call.name or "unknown", "content": output}


def _function(call: ToolCall, arguments: Any) -> dict[str, Any]:
    """Write a call for a template. A call that could not be read may have no name, but the template
    still has to write that it was answered."""
    function = {"name": call.name or "unknown", "arguments": arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _value(arguments: str) -> Any:
    """Read arguments as an object; what is not JSON stays text. Half a surrogate pair, which no
    text can hold, stays an escape."""
    try:
        value = json.loads(arguments)
        if "\\u" not in arguments:
            return value
        return json.loads(_HALF.sub(lambda found: f"\\\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False)))
    except (ValueError, RecursionError):
        return arguments


# -- does a template keep its prefix? --------------------------------------------------------------
def prefix_problems(chat: Chat) -> list[str]:
    """Find where the template, rendering a dialogue turn by turn, does not write what the rollout
    holds.

    The rollout's tokens are append-only whatever this finds. But an endpoint that renders all
    messages each turn would there show the policy something else than training did.
    """
    problems: dict[str, str] = {}
    for name, messages in _probes().items():
        for what, difference in _differences(chat, messages):
            problems.setdefault(f"{what}: {difference}", f"{name}: {what}: {difference}")
    return [*problems.values(), *_dated(chat)]


def _differences(chat: Chat, messages: list[Message]) -> Iterator[tuple[str, str]]:
    """Compare each turn's context with the rollout's, and with the context before. Yields the first
    difference of each kind."""
    places = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
    seen: set[str] = set()
    try:
        before = chat.render(messages[: places[0]])
        for following in places[1:]:
            theirs, ours = chat.render(messages[:following]), chat.dialogue_text(messages[:following])
            expected = {"earlier turns are written differently later": before, "a turn is not written as sampled": ours}
            for what, text in expected.items():
                if not theirs.startswith(text) and what not in seen:
                    seen.add(what)
                    yield what, _difference(text, theirs)
            before = theirs
    except UserError:
        raise
    except Exception as error:  # a template's own refusal
        yield "the template refuses", str(error)


def _difference(ours: str, theirs: str) -> str:
    pairs = zip(ours, theirs, strict=False)
    place = next((n for n, (our, their) in enumerate(pairs) if our != their), min(len(ours), len(theirs)))
    begin = max(0, place - 20)
    return f"the rollout has {ours[begin : place + 40]!r}, the template writes {theirs[begin : place + 40]!r}"


def _dated(chat: Chat) -> list[str]:
    text = chat.render([{"role": "user", "content": "u"}])
    days = map(datetime.now().strftime, ("%Y-%m-%d", "%d %b %Y", "%B %d, %Y", "%d %B %Y"))
    found = [day for day in days if day in text][:1]
    return [f"the template writes today's date ({day}): the same run on another day has other prompts" for day in found]


def _probes() -> dict[str, list[Message]]:
    """Make small dialogues, each with one thing that templates are known to treat differently."""

    def turn(number: int, query: str, output: str, content: str = "", calls: int = 1, **more: str) -> list[Message]:
        ids = [f"call_{number}_{n}" for n in range(calls)]
        arguments = json.dumps({"query": query, "n": number}, ensure_ascii=False)
        made = [_function(ToolCall(call_id, "search", ""), arguments) for call_id in ids]
        assistant_message: Message = {"role": "assistant", "content": content, "tool_calls": made, **more}
        results: list[Message] = [
            {"role": "tool", "tool_call_id": call_id, "name": "search", "content": output} for call_id in ids
        ]
        return [assistant_message, *results]

    asked: list[Message] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Which code is angina?"},
    ]
    answer: Message = {"role": "assistant", "content": "I20.9"}
    again: list[Message] = [{"role": "user", "content": "And asthma?"}, {"role": "assistant", "content": "J45"}]
    plain = [message for number in range(3) for message in turn(number, "angina", "I20")]
    odd = turn(0, " é漢字🙂\n\t", '\n  {"x": "\\u00e9"}\n\n') + turn(1, "\u2028 ", "")
    thought = turn(0, "angina", "I20", reasoning_content="Look it up.") + turn(1, "I20", "x", reasoning_content="More.")
    return {
        "tool calls": [*asked, *plain, answer],
        "odd whitespace and unicode": [*asked, *odd, {"role": "assistant", "content": " é\n\n"}, *again],
        "two calls in a turn": [*asked, *turn(0, "angina", "I20", calls=2), answer],
        "text beside a call": [*asked, *turn(0, "angina", "I20", content="I look it up."), answer],
        "reasoning": [*asked, *thought, answer],
        "reasoning before a later question": [*asked, *thought, {**answer, "reasoning_content": "I know it."}, *again],
    }


__all__ = [
    "Chat",
    "ParseError",
    "assistant_text",
    "calls_of",
    "no_room",
    "parse_calls",
    "prefix_problems",
    "tool_message",
]
