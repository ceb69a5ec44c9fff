"""Between messages and tokens: the model folder's own chat template, and the tool-call format of
its family.

A rollout only ever appends. `Chat.prompt_ids` renders the opening messages; the policy then samples
its own tokens, which are kept as they are; `Chat.reply_ids` renders what stands between the end of
an assistant turn and the start of the next: the tool results. Nothing that was sampled is rendered
or encoded a second time.

Whatever the world wrote, in results, messages, tools or names, is text: none of it becomes a
control token (rft/chat/control.py).

What stands between is the template's own: a dummy assistant turn is rendered with the real results
behind it, and the text is cut behind the dummy's end. So a template may quote or trim a result,
name the tool or the call's id; it only has to write turns one after another. A template that writes
no two calls in one turn is asked for one call at a time. `prefix_problems` says where a template
would not have written what the rollout holds; the rollout keeps its own tokens all the same.

How the policy's words are read is `rft/chat/formats.py`: a call whose wrapper or JSON is broken is
a problem, never a final answer.
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

KEPT_REPLIES = 4096
_HALF = re.compile(r"[\ud800-\udfff]")


class ParseError(ValueError):
    """The policy wrote a tool call that cannot be read."""


def parse_calls(text: str, turn: int = 0) -> list[ToolCall]:
    """The Hermes tool calls in an assistant message, in order; empty when it is a final answer.
    Raises ParseError."""
    reading = formats.HERMES.read(text, turn)
    if problem := reading.problem or next((call.problem for call in reading.calls if call.problem), ""):
        raise ParseError(problem)
    return list(reading.calls)


def assistant_text(message: Message) -> str:
    """An assistant message as a Hermes policy writes it."""
    return formats.HERMES.write(message)


class Chat:
    """A tokenizer with its template and one set of tools. Ids in and out are plain lists of int."""

    def __init__(self, tokenizer: Any, tools: list[dict[str, Any]], tool_format: str = "auto"):
        if not getattr(tokenizer, "chat_template", None):
            where = tokenizer.name_or_path
            raise UserError(
                f"the tokenizer of {where!r} has no chat template. Use an instruction-tuned model, or add "
                "chat_template.jinja."
            )
        self.tokenizer = tokenizer
        self.tools = tools
        self.format = formats.of(tokenizer, tool_format)
        self._control = Control(
            tokenizer, (*self.format.markup, *self.format.ends, *self.format.closes, *self.format.tags)
        )
        added = tokenizer.added_tokens_encoder
        ends = {tokenizer.eos_token_id: tokenizer.eos_token} | {
            added[end]: end for end in self.format.ends if end in added
        }
        self.end_ids: tuple[int, ...] = tuple(ends)
        """Any of these ends a turn."""
        self.end_id: int = self.end_ids[0]
        self._ends = {text: token for token, text in ends.items()}
        self._replies = lru_cache(KEPT_REPLIES)(self._reply_ids)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None = None,
        start: bool = True,
        answer_format: dict[str, Any] | None = None,
    ) -> str:
        """`start`: with the next assistant turn's start. `answer_format`: a response_format that
        the prompt states, in the template's own way where it has one, else as an instruction."""
        return self._rendered([self._told(message) for message in messages], tools, start, answer_format)

    def _rendered(
        self,
        told: list[Message],
        tools: Sequence[dict[str, Any]] | None = None,
        start: bool = True,
        answer_format: dict[str, Any] | None = None,
    ) -> str:
        """`told`: messages as this template wants them. Nothing in them is decoded any more, so
        they hold all that can become a token."""
        tools = self.tools if tools is None else list(tools)

        def text(told: list[Message], **more: Any) -> str:
            return self.tokenizer.apply_chat_template(
                told, tools=tools or None, tokenize=False, add_generation_prompt=start, **more
            )

        if answer_format is None:
            return text(told)
        plain = text(told)
        try:
            stated = text(told, response_format=answer_format)
        except Exception:  # a template's own refusal
            stated = plain
        before, now = plain.casefold(), stated.casefold()
        if all(
            now.count(word.casefold()) > before.count(word.casefold()) for word in response_format.words(answer_format)
        ):
            return stated
        return text(response_format.with_instruction(told, answer_format))

    def prompt_ids(
        self,
        messages: list[Message],
        tools: Sequence[dict[str, Any]] | None = None,
        answer_format: dict[str, Any] | None = None,
    ) -> list[int]:
        """The opening messages and the assistant's start. `tools`: the row's own; None: those of
        this chat."""
        tools = self.tools if tools is None else list(tools)
        told = {
            "messages": [self._told(message) for message in messages],
            "tools": tools,
            "answer_format": answer_format,
        }

        def texts(told: dict[str, Any]) -> list[str]:
            return [self._rendered(told["messages"], told["tools"], answer_format=told["answer_format"])]

        return self._encoded(told, texts(told), texts)[0]

    def opening_ids(self, openings: Sequence[Opening], max_tokens: int) -> list[list[int]]:
        """The prompt of each. Raises UserError naming the example whose prompt leaves no room for
        an answer in `max_tokens`."""
        known: dict[str, list[int]] = {}
        for one in openings:
            if (text := repr(one)) not in known:
                known[text] = self.prompt_ids(list(one.messages), one.tools, one.response_format)
                if (length := len(known[text])) >= max_tokens:
                    raise no_room(one, length, max_tokens)
        return [list(known[repr(one)]) for one in openings]

    def read(self, ids: Sequence[int], turn: int) -> tuple[str, Reading]:
        """Sampled ids as text, and what it says."""
        text = self.text(ids)
        return text, self.format.read(self._opened + text, turn)

    def reply_ids(self, calls: Sequence[ToolCall], outputs: Sequence[str]) -> list[int]:
        """The results of these calls, from behind the assistant's end token to the next assistant's
        start."""
        bare = tuple(replace(call, arguments="{}") for call in calls)  # arguments stand before the end token
        return list(self._replies(bare, tuple(outputs)))

    def _reply_ids(self, calls: tuple[ToolCall, ...], outputs: tuple[str, ...]) -> tuple[int, ...]:
        """Kept: the rollouts of a group ask for the same things, and a template takes as long as a
        decoding step."""
        told = [(call.name, output) for call, output in zip(calls, outputs, strict=True)]

        def texts(told: Sequence[tuple[str, str]]) -> list[str]:
            named = [replace(call, name=name) for call, (name, _) in zip(calls, told, strict=True)]
            answered = [self._told(tool_message(call, output)) for call, (_, output) in zip(named, told, strict=True)]
            return [self._between(named, answered)]

        return tuple(self._encoded(told, texts(told), texts)[0])

    def _encoded(self, told: Any, texts: Sequence[str], render: Callable[[Any], Sequence[str]]) -> list[list[int]]:
        """`texts`, which is what `render` makes of what is told, as tokens. Nothing that is told
        becomes a control token (rft/chat/control.py)."""
        if not self._control.suspects(told):
            return [self.encode(text) for text in texts]
        hidden = self._control.hide(told, "".join(texts))
        return [
            self._control.encode(text, other, hidden) for text, other in zip(texts, render(hidden.value), strict=True)
        ]

    def encode(self, text: str) -> list[int]:
        """A string that is ours alone: its control tokens become such."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def text(self, ids: Sequence[int]) -> str:
        """Sampled ids as text, without the end token. Wrapper tokens stay."""
        ids = list(ids)
        if ids and ids[-1] in self.end_ids:
            ids.pop()
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def dialogue_ids(self, messages: list[Message]) -> tuple[list[int], list[bool]]:
        """A whole recorded dialogue, tokenized exactly as a rollout would build it, and which
        tokens are the assistant's."""
        ids: list[int] = []
        loss_mask: list[bool] = []
        told: dict[str, Any] = {"messages": self._recorded(messages), "tools": self.tools}
        pieces = self._pieces(**told)
        encoded = self._encoded(
            told, [text for _, text in pieces], lambda told: [text for _, text in self._pieces(**told)]
        )
        for (spoken, _), piece in zip(pieces, encoded, strict=True):
            piece = [*piece, self._end_of[spoken]] if spoken else piece
            ids, loss_mask = ids + piece, loss_mask + [bool(spoken)] * len(piece)
        return ids, loss_mask

    def dialogue_text(self, messages: list[Message]) -> str:
        """The same as text."""
        end_of = {
            spoken: text for spoken, token in self._end_of.items() for text, one in self._ends.items() if one == token
        }
        return "".join(
            text + end_of.get(spoken, "") for spoken, text in self._pieces(self._recorded(messages), self.tools)
        )

    def _between(self, calls: Sequence[ToolCall], told: Sequence[Message], start: bool = True) -> str:
        """The template's text from behind the end of an assistant turn with these calls, over these
        messages, to the next assistant's start."""
        if len(calls) > 1 and not self._parallel:
            first = self._between(calls[:1], told[:1], start=False)
            return first + self._between(calls[1:], told[1:], start)
        marks = [f"{formats.MARK[:-1]}{n}" for n in range(len(calls))] or [formats.MARK]
        spoken: Message = {"role": "assistant", "content": "" if calls else marks[0]}
        if calls:
            spoken["tool_calls"] = [_function(call, {"q": mark}) for call, mark in zip(calls, marks, strict=True)]
        text = self._rendered([{"role": "user", "content": "u"}, self._told(spoken), *told], start=start)
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
        """Messages for `_pieces`: the assistant's calls are written as they were sampled, with
        their arguments as JSON text."""
        return [self._told(message, decoded=message["role"] != "assistant") for message in messages]

    def _pieces(self, messages: list[Message], tools: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
        """(who speaks, text): "calls" or "answer" for the assistant, "" for all that is not it."""
        places = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
        pieces = [("", self._rendered(messages[: places[0]], tools))]
        for place, following in zip(places, [*places[1:], len(messages)], strict=True):
            calls = calls_of(messages[place])
            pieces.append(("calls" if calls else "answer", self._spoken(messages[place])))
            if place + 1 < len(messages):
                pieces.append(("", self._between(calls, messages[place + 1 : following])))
        return pieces

    def _spoken(self, message: Message) -> str:
        """A recorded message as the policy goes on from what the template opened: thoughts that
        there are none of are closed."""
        text, (start, end) = self.format.write(message), self.format.tags
        closed = start not in self._opened or end in self._opened or text.startswith(self._opened)
        return text.removeprefix(self._opened) if closed else f"\n{end}\n\n{text}"

    @cached_property
    def _end_of(self) -> dict[str, int]:
        """The tokens that end a turn with calls, and a final answer."""
        call = _function(ToolCall("call_0_0", "f", ""), {"q": formats.MARK})
        last = {
            "calls": {"role": "assistant", "content": "", "tool_calls": [call]},
            "answer": {"role": "assistant", "content": formats.MARK},
        }
        ends = {}
        for spoken, message in last.items():
            behind = self.render([{"role": "user", "content": "u"}, message], start=False).partition(formats.MARK)[2]
            ends[spoken] = min(
                ((behind.index(end), token) for end, token in self._ends.items() if end in behind),
                default=(0, self.end_id),
            )[1]
        return ends

    @cached_property
    def _opened(self) -> str:
        """What the template writes of the assistant's message itself."""
        return self.format.opened(self.render([{"role": "user", "content": formats.MARK}]).rpartition(formats.MARK)[2])

    @cached_property
    def _parallel(self) -> bool:
        """Whether the template writes several calls of one turn."""
        calls = [_function(ToolCall(f"call_0_{n}", "f", ""), {"q": f"{formats.MARK}{n}"}) for n in range(2)]
        try:
            text = self.render(
                [{"role": "user", "content": "u"}, {"role": "assistant", "content": "", "tool_calls": calls}],
                start=False,
            )
        except Exception:  # a template's own refusal
            return False
        return f"{formats.MARK}1" in text

    @cached_property
    def _objects(self) -> bool:
        """Whether the template wants arguments as objects. One that takes the JSON string as it is
        gets it, byte for byte as sampled."""
        call = {
            "id": self.format.call_id("call_0_0"),
            "type": "function",
            "function": {"name": "f", "arguments": f'{{"q":"{formats.MARK}"}}'},
        }
        messages = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        try:
            text = self.tokenizer.apply_chat_template(messages, tools=self.tools or None, tokenize=False)
        except Exception:  # a template's own refusal
            return True
        return f'{{"q":"{formats.MARK}"}}' not in text

    def _told(self, message: Message, decoded: bool = True) -> Message:
        """A message as this template wants it; not `decoded`: but for the arguments of its calls,
        which stay as they are."""
        if "tool_call_id" in message:
            message = {**message, "tool_call_id": self.format.call_id(message["tool_call_id"])}
        if calls := message.get("tool_calls"):
            message = {**message, "tool_calls": [self._told_call(call, decoded) for call in calls]}
        return message

    def _told_call(self, call: dict[str, Any], decoded: bool) -> dict[str, Any]:
        arguments = call["function"]["arguments"]
        if decoded and isinstance(arguments, str) and self._objects:
            arguments = _value(arguments)
        call = {**call, "id": self.format.call_id(call["id"])} if "id" in call else call
        return {**call, "function": {**call["function"], "arguments": arguments}}


def no_room(opening: Opening, length: int, max_tokens: int) -> UserError:
    """`max_tokens`: of the whole context, as params.yaml or the policy's server has it."""
    return UserError(
        f"example {opening.example_id!r}: its opening alone has {length} tokens, and rollout.max_tokens is "
        f"{max_tokens} (if params.yaml does not "
        "set it: 512 here, at a policy.server what that takes). Raise it, or shorten the prompt, the row's messages "
        "or its tools."
    )


def calls_of(message: Message) -> list[ToolCall]:
    """The calls of a recorded message."""
    calls = message.get("tool_calls") or []
    return [ToolCall(call.get("id", ""), call["function"]["name"], "") for call in calls]


def tool_message(call: ToolCall, output: str) -> Message:
    return {"role": "tool", "tool_call_id": call.call_id, "name": call.name or "unknown", "content": output}


def _function(call: ToolCall, arguments: Any) -> dict[str, Any]:
    """A call that could not be read may have no name; a template still has to write that it was
    answered."""
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name or "unknown", "arguments": arguments},
    }


def _value(arguments: str) -> Any:
    """Arguments as an object; those that are no JSON as they are. Half a surrogate pair, which no
    text can hold, stays the escape that it was."""
    try:
        value = json.loads(arguments)
        if "\\u" not in arguments:
            return value
        return json.loads(_HALF.sub(lambda found: f"\\\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False)))
    except (ValueError, RecursionError):
        return arguments


# -- does a template keep its prefix? --------------------------------------------------------------
def prefix_problems(chat: Chat) -> list[str]:
    """Where the template, told of a dialogue turn by turn, does not write what the rollout holds;
    empty when it always does.

    The rollout's tokens are append-only whatever is found here. What is found is what an endpoint
    that renders the messages anew each turn would show a policy in another way than its training
    did.
    """
    problems: dict[str, str] = {}
    for name, messages in _probes().items():
        for what, difference in _differences(chat, messages):
            problems.setdefault(f"{what}: {difference}", f"{name}: {what}: {difference}")
    return [*problems.values(), *_dated(chat)]


def _differences(chat: Chat, messages: list[Message]) -> Iterator[tuple[str, str]]:
    """Told turn by turn: is each context the rollout's, and does it begin with the one before? The
    first of each kind."""
    places = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
    said: set[str] = set()
    try:
        before = chat.render(messages[: places[0]])
        for following in places[1:]:
            theirs, ours = chat.render(messages[:following]), chat.dialogue_text(messages[:following])
            for what, one in (
                ("earlier turns are written otherwise later", before),
                ("a turn is not written as sampled", ours),
            ):
                if not theirs.startswith(one) and what not in said:
                    said.add(what)
                    yield what, _difference(one, theirs)
            before = theirs
    except UserError:
        raise
    except Exception as error:  # a template's own refusal
        yield "the template refuses", str(error)


def _difference(ours: str, theirs: str) -> str:
    place = next(
        (n for n, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other),
        min(len(ours), len(theirs)),
    )
    begin = max(0, place - 20)
    return f"the rollout has {ours[begin : place + 40]!r}, the template writes {theirs[begin : place + 40]!r}"


def _dated(chat: Chat) -> list[str]:
    today = datetime.now()
    text = chat.render([{"role": "user", "content": "u"}])
    found = next(
        (day for shape in ("%Y-%m-%d", "%d %b %Y", "%B %d, %Y", "%d %B %Y") if (day := today.strftime(shape)) in text),
        None,
    )
    return (
        [f"the template writes today's date ({found}): the same run on another day has other prompts"] if found else []
    )


def _probes() -> dict[str, list[Message]]:
    """Small dialogues, each with one thing that templates are known to treat in their own way."""

    def turn(number: int, query: str, output: str, content: str = "", calls: int = 1, **more: str) -> list[Message]:
        ids = [f"call_{number}_{n}" for n in range(calls)]
        made = [
            _function(ToolCall(one, "search", ""), json.dumps({"query": query, "n": number}, ensure_ascii=False))
            for one in ids
        ]
        spoken: Message = {"role": "assistant", "content": content, "tool_calls": made, **more}
        return [spoken, *({"role": "tool", "tool_call_id": one, "name": "search", "content": output} for one in ids)]

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
