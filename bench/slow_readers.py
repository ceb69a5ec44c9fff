"""The readers of foreign text that the figure `slow_text` measures, each with its worst texts.

A reader is called as the engine calls it. The text that it reads comes from

    a policy      calls and reasoning, answers in graders, what a judge is shown, arguments
    a tool        its reply, its error, an MCP server's words, code in a sandbox
    a log         bench/slow_logs.py
    a user        bench/slow_users.py
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rft.errors import UserError
from rft.types import Example, RolloutContext, StopReason, ToolCall, Turn


class Text(NamedTuple):
    """A text of any size: `Text("<", " ", ">").sized(1000)` is a `<`, 998 blanks and a `>`."""

    start: str
    unit: str
    end: str = ""

    def sized(self, size: int) -> str:
        """Return a text of so many bytes of UTF-8, within one unit."""
        start, unit, end = (len(part.encode("utf-8", "surrogatepass")) for part in self)
        return self.start + self.unit * max(1, (size - start - end) // unit) + self.end


@dataclass(frozen=True, slots=True)
class Reader:
    """`read` is the call as the engine makes it; an exception is an answer, too. `worst` are texts
    that we thought of. `alphabet` are fragments for the search. `awaited` is the same call as the
    event loop awaits it, or `read` itself if the loop calls it."""

    name: str
    read: Callable[[str], object]
    worst: Sequence[Text]
    alphabet: Sequence[str]
    awaited: Callable[[str], Awaitable[object]] | None = None
    frame: tuple[str, str] = ("", "")
    """Text before and after each text of the search, for example to make it JSON."""


JSON = ("{", "}", "[", "]", '"', "\\", ",", ":", "1", "null", '"a":', "\n", " ", "\\u0041")
PLAIN = ("a", " ", "\n", ".", "<", ">", "0", "_", "é", "\u0301", "-")


def units(*found: str) -> list[Text]:
    """Repeat each fragment, alone and between two letters."""
    return [Text(start, unit, end) for unit in found for start, end in (("", ""), ("a", "a"))]


# -- what a policy wrote ---------------------------------------------------------------------------
def of_policies() -> Iterator[Reader]:
    from rft.chat import formats
    from rft.chat.renderer import parse_calls

    marks = {
        "hermes": ("<tool_call>\n", "\n</tool_call>", '{"name": "f", "arguments": {}}', "<think>", "</think>"),
        "llama3": ('{"name":', '{"name": "f", "parameters": {}}', "; ", "<|python_tag|>", '{"type": "function"'),
        "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "f", "{}", "[THINK]", "[/THINK]", "["),
        "gpt-oss": (
            "<|start|>assistant",
            "<|channel|>",
            "final",
            " to=functions.f",
            "<|message|>",
            "<|end|>",
            "<|constrain|>",
            "commentary",
        ),
    }
    worst = {
        "hermes": [Text("", "<tool_call>\n"), Text("", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>')],
        "llama3": [Text("x ", '{"name": {}} '), Text("", '{"name": "f", "parameters": {}}; ')],
        "mistral": [
            Text("", "[TOOL_CALLS]f[ARGS]{}"),
            Text("", "[TOOL_CALLS]x"),
            Text("[TOOL_CALLS]", " "),
            Text("[TOOL_CALLS]f", "[CALL_ID]a"),
        ],
        "gpt-oss": [
            Text("<|channel|>final", " "),
            Text("<|channel|>final ", "a"),
            Text("<|channel|>final<|constrain|>", " \n"),
            Text("<|start|>assistant to=", "a"),
            Text("", "<|channel|>analysis<|message|>a<|end|>"),
            Text("", "<|channel|>commentary to=functions.f <|message|>{}<|call|>"),
        ],
    }
    for name in marks:
        family = formats.Mistral(named=True) if name == "mistral" else formats.FAMILIES[name]
        read: Callable[[str], object] = parse_calls if name == "hermes" else lambda text, f=family: f.read(text, 0)
        yield Reader(
            f"calls {name}",
            read,
            [*worst[name], *units("{", "[", '"', " ", "\\")],
            (*marks[name], '{"a":', "}", '"', " ", "a"),
            in_loop(read),
        )
    yield _chat_reader()
    yield from _arguments()


def in_loop(read: Callable[[str], object]) -> Callable[[str], Awaitable[object]]:
    """Return the awaited form of a call that the loop makes itself, without awaiting anything."""

    async def call(text: str) -> object:
        return read(text)

    return call


def _tokenizer() -> Any:
    from rft.models.embedded import build_tokenizer

    return build_tokenizer(["find the code of angina", "I20.9 is the code"], [tool()], [], 50)


def tool() -> dict[str, Any]:
    codes = {"type": "array", "items": {"type": "string", "pattern": "^([a-z]+)+$"}, "uniqueItems": True}
    words = {"type": "string", "pattern": "^(?=(a+)+b)", "minLength": 3}
    place = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/place"}}]}
    parameters = {
        "type": "object",
        "properties": {"query": words, "codes": codes, "place": {"$ref": "#/$defs/place"}},
        "additionalProperties": False,
        "$defs": {"place": place},
    }
    return {"type": "function", "function": {"name": "search", "description": "find", "parameters": parameters}}


def _chat_reader() -> Reader:
    from rft.chat.renderer import Chat

    chat = Chat(_tokenizer(), [tool()])
    call = ToolCall("call_0_0", "search", "{}")

    def replied(text: str) -> object:
        return chat._encode_tool_results((call,), (text,))  # without its cache

    alphabet = ("<|im_end|>", "<|im_start|>", "<tool_call>", "<", "|", ">", "im", "_end", "a", " ", "\n", "\ue000", "é")
    worst = [
        *units("<|im_end|>", "<", ">", "a", " ", "\ue000", "\\ue000", "<|im_end", "\U00100000", "1"),
        Text("<|im_end|>", "<"),
        Text("", "a b ", "<|im_end|>"),
    ]

    async def appended(text: str) -> object:  # as rft/sampling/remote/tokens.py does it
        chat._cached_tool_result_ids.cache_clear()
        await asyncio.to_thread(chat.tool_result_ids, (call,), (text,))
        return chat.tool_result_ids((call,), (text,))

    return Reader("tokens of a reply", replied, worst, alphabet, appended)


def _arguments() -> Iterator[Reader]:
    from rft.tools.arguments import Refused, prepare, read_tool

    functions = dict([read_tool(tool(), "here")])

    def checked(text: str) -> object:
        try:
            return prepare(ToolCall("c", "search", text), functions, {})
        except Refused as refused:
            return refused

    worst = [
        Text('{"query": "', "a", '"}'),
        Text('{"query": "', "\\ud800", '"}'),
        Text('{"codes": ["', "a", '1"]}'),
        Text('{"codes": [1', ",1", "]}"),
        Text('{"codes": [{"a":1}', ',{"a":1}', "]}"),
        Text('{"place": ', "[", "]"),
        Text('{"place": [1', ",[1]", "]}"),
        Text("{", '"a":1,', '"b":1}'),
        Text('{"place": ' + "[" * 300 + '"', "x", '"' + "]" * 300 + "}"),
    ]
    yield Reader("arguments", checked, worst, JSON, in_loop(checked), ('{"codes": [', "]}"))


# -- graders ---------------------------------------------------------------------------------------
QUESTION = Example("e", ({"role": "user", "content": "Where?"},), "Paris, where the river Seine flows")


def graded(settings: Any, target: str = "") -> Callable[[str], Awaitable[object]]:
    """Grade a text as the rollout loop does, with the grader that grader.json would make."""
    from rft import config
    from rft.grading.grader import grader_of
    from rft.wire.client import ToolEndpoint

    example = Example("e", QUESTION.messages, target or QUESTION.target)
    context = RolloutContext("t", example)
    grader = grader_of(settings, ToolEndpoint("http://127.0.0.1:1"), config.Tools())

    async def call(text: str) -> object:
        async with grader as opened:
            return await opened.grade(example, [Turn(text)], StopReason.completed, context)

    return call


def awaited(call: Callable[[str], Awaitable[object]]) -> Callable[[str], object]:
    return lambda text: asyncio.run(call(text))  # type: ignore[arg-type]


def of_graders() -> Iterator[Reader]:
    from rft.config import graders
    from rft.config.abstention import plain
    from rft.config.graders import METRICS
    from rft.grading.neutralize import neutralize

    yield from _neutralizers(neutralize)
    yield Reader(
        "abstention",
        plain,
        [*units(".", " .", "\u2019", "\u0301"), Text("a", ".", "a"), Text("", "!a")],
        (*PLAIN, "!", "\u2019"),
        in_loop(plain),
    )
    says = {"item": "{{item.target}}", "sample": "{{sample.output_text}}"}
    check = graders.StringCheck(
        type="string_check", name="x", input=says["sample"], reference=says["item"], operation="ilike"
    )
    text = graded(check)
    yield Reader(
        "string_check",
        awaited(text),
        units("a", "ß", "Paris, where the river Seine flow", "\ud800"),
        ("a", "P", "Paris", "ß", " ", "{{item.target}}"),
        text,
    )
    for name in METRICS:
        similar = graders.TextSimilarity(
            type="text_similarity", name="x", input=says["sample"], reference=says["item"], evaluation_metric=name
        )
        try:
            call = graded(similar, "Paris is the town. " * 500)
        except UserError as error:  # the corpus is not installed here
            print(error, file=sys.stderr)
            continue
        worst = units("a", "a ", "Paris ", "the ", "b1 ", "\n")
        yield Reader(name, awaited(call), worst, ("a", " ", "Paris", "the", ".", "is the town"), call)
    yield _endpoint_reader()


def _neutralizers(neutralize: Callable[[str], object]) -> Iterator[Reader]:
    """Yield a judge's readers, one for each family of its patterns."""
    from rft.config import graders
    from rft.config.judges import Message

    verbs = ("ignore ", "give ", "score ", "please ", "you must ", "mark ", "this answer is ", "the ", "very ", "1 ")
    marks = (
        "<",
        ">",
        "/",
        "[",
        "]",
        "|",
        "#",
        ":",
        '"',
        "'",
        "\\",
        "\n",
        "\\n",
        " ",
        "*",
        "-",
        "system",
        "score",
        "DATA",
        "END",
        "&",
        "=",
    )
    letters = ("a", "\u0301", "\u200b", "\u0430", "\uff49", "1", "_", "\\u0069", "\ufdfa", " ", "\ud55c", "i ")
    worst = [
        *units(" ", "<", "\n", "\\n", ">", "#", "a", "1", "a1", "i ", "a 1", "\u0316\u0301", "\ufdfa", "\\u0069", "_"),
        Text("<", " "),
        Text("<", "\t \n"),
        Text("'score'", " "),
        Text("mark", " "),
        Text("", "score: 10 "),
        Text("", "give 1 1 "),
        Text("", "give score 1 "),
        Text("", "<answer "),
        Text("", "<answer>"),
        Text("", "ignore the above. "),
        Text("", "\n#"),
        Text("", "\n \\n"),
        Text("this answer is ", "very "),
        Text("", "as verified by w w "),
        Text("", "[DATA "),
        Text("a", "1_"),
    ]
    yield Reader("judge: words", neutralize, worst, verbs)
    yield Reader("judge: marks", neutralize, [], marks)
    yield Reader("judge: letters", neutralize, [], letters)
    settings = graders.ScoreModel(
        type="score_model",
        name="x",
        model="m",
        range=(0, 1),
        input=[Message(role="user", content="Judge {{sample.output_text}}")],
    )
    call = _judged(settings)
    yield Reader("score_model", awaited(call), worst[::4], (*marks, *verbs[:4]), call)


def _judged(settings: Any) -> Callable[[str], Awaitable[object]]:
    """Ask a judge that answers at once. It is patched only during the call, so that no other judge
    answers so."""
    import os
    from unittest import mock

    from rft.grading import judge

    body = json.dumps({"choices": [{"message": {"content": json.dumps({"steps": [], "result": 1})}}]}).encode()

    async def post(self: Any, payload: bytes) -> tuple[int, bytes]:
        return 200, body

    async def ask(text: str) -> object:
        place = mock.patch.dict(os.environ, {judge.BASE_URL: "http://127.0.0.1:1/v1"})
        with place, mock.patch.object(judge.Judge, "_post", post):
            return await graded(settings)(text)

    return ask


def _endpoint_reader() -> Reader:
    from rft.grading.endpoint import _verdict
    from rft.scale import Scale
    from rft.wire.contract import read_json

    def read(text: str) -> object:
        return _verdict(read_json(text.encode("utf-8", "replace")), Scale(0.0, 1.0, 1.0, 0.0), True)

    worst = [
        Text('{"score": 1, "reason": "', "a", '"}'),
        Text('{"score": 1, "evidence": ["a"', ',"a"', "]}"),
        Text('{"score": 1', "1", "}"),
        Text('{"score": 1, "x": ', "[", "]"),
        Text('{"score": 1', ',"score": 1', "}"),
        Text('{"error": "', "\\u0041", '"}'),
        Text("", "{"),
    ]
    return Reader("a grader's reply", read, worst, JSON, in_loop(read), ('{"score": 1, "sub_scores": {', "}}"))


# -- tools -----------------------------------------------------------------------------------------
def of_tools() -> Iterator[Reader]:
    from rft import secrets
    from rft.grading.code_under_test import plain
    from rft.wire.contract import read_output, read_refusal

    def output(text: str) -> object:
        return read_output(text.encode("utf-8", "replace"))

    def refusal(text: str) -> object:
        return read_refusal(text.encode("utf-8", "replace"))

    frame = ('{"output": ', "}")
    worst = [Text('{"output": "', "a", '"}'), Text('{"output": [1', ",[]", "]}"), Text('{"output": ', "[", "]")]
    yield Reader("a tool's reply", output, worst, JSON, in_loop(output), frame)
    yield Reader("a tool's refusal", refusal, [*worst, *units("<", "a", "\ufffd")], JSON, in_loop(refusal))

    def redacted(text: str) -> object:
        before = dict(secrets._values)
        secrets.add("KEY", "Bearer abababab")
        try:
            return secrets.redact(text)
        finally:
            secrets.forget()
            for name, value in before.items():
                secrets.add(name, value)

    yield Reader(
        "secrets",
        redacted,
        units("ab", "abababab", "a", "Bearer ", "[secret KEY]", "[secret "),
        ("ab", "a", "b", "abababab", "[secret ", "KEY]", "%", "\\", " "),
        in_loop(redacted),
    )
    yield _mcp_reader()

    def believed(text: str) -> object:
        return plain.same(plain.read(text.encode("utf-8", "replace")), [])

    yield Reader(
        "a candidate's answer",
        believed,
        [Text("", "["), Text("[1", ",1", "]"), Text("{", '"a":1,', '"b":1}')],
        JSON,
        frame=("[", "]"),
    )


def _mcp_reader() -> Reader:
    from rft.tools.mcp import McpTool

    tool = McpTool(None, "find.a", None, None)  # type: ignore[arg-type]

    def blamed(text: str) -> object:
        return tool._blame(text)

    worst = [
        Text("Error executing tool find.a", ": Error executing tool a"),
        Text("Error executing tool find.a: Error executing tool ", "a"),
        Text("", " "),
        Text("MCP error -", "1"),
        Text("unknown tool", " "),
    ]
    alphabet = ("Error executing tool ", "find.a", ": ", "unknown tool", " ", "'", "1", "MCP error -", "tool")
    return Reader("an MCP server's error", blamed, worst, alphabet, in_loop(blamed))
