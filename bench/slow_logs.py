"""Readers of logs for the figure `slow_text`: lines, documents, shapes of arguments, words."""

from __future__ import annotations

import io
from collections.abc import Iterator

from bench.slow_readers import JSON, PLAIN, Reader, Text, tool, units


def of_logs() -> Iterator[Reader]:
    import pyarrow as pa

    from rft.drift.arguments import outcome
    from rft.traffic import leakage, lines, redact, shapes, words
    from rft.traffic.addresses import _message
    from rft.traffic.formats import recognize
    from rft.traffic.formats.format import documents
    from rft.traffic.normal import conversation, parse
    from rft.traffic.texts import bucket_words

    def known(text: str) -> object:
        return recognize(text.encode("utf-8", "replace"), "log")

    def streamed(text: str) -> object:
        return sum(1 for _ in documents(io.BytesIO(text.encode("utf-8", "replace"))))

    def row(text: str) -> object:
        return conversation(parse(text.encode("utf-8", "replace")))

    def taken(text: str) -> object:
        return lines.take([line for line in text.encode("utf-8", "replace").split(b"\n") if line], [])

    broken = [
        Text("", "["),
        Text("", "{"),
        Text("", "{\n"),
        Text("", "[\n"),
        Text("", '{"a":\n'),
        Text("", '{"a": [\n'),
        Text("", '"'),
        Text("", '{"a": "\n'),
        Text("[1", ",1"),
        Text("", "[1,"),
        Text("", "{}\n"),
        Text("", "1 "),
        Text("", '{"a\\'),
        Text("", '"\\"'),
        Text("[", "[1],"),
        Text("", '{"messages": [\n'),
        Text("", "{]\n"),
    ]
    yield Reader("format of a log", known, broken, JSON)
    yield Reader("documents of a log", streamed, broken, (*JSON, "{\n", "[\n", "{}\n"))
    start = '{"conversation_id": "c", "time": "2026-03-02T08:14:05Z", "messages": ['
    message = '{"role": "user", "content": "a"}'
    rows = [
        Text(start + message, "," + message, "]}"),
        Text(start, "[", "]}"),
        Text("{", '"a": 1,', '"b": 1}'),
        Text(start + '{"role": "user", "content": [', '{"text": "a"},', '{"text": ""}]}]}'),
    ]
    yield Reader("a row of a log", row, [*broken, *rows], JSON, frame=(start, "]}"))
    yield Reader(
        "lines of a log", taken, [*broken, *rows, Text("", f"{start}{message}]}}\n")], JSON, frame=(start, "]}")
    )

    def shaped(text: str) -> object:
        return shapes.of_replies([text]), shapes.of_calls(pa.array(["f"]), [text])

    nested = [
        Text("[" * 101, '"\\'),
        Text("[" * 101, '\\"'),
        Text("[" * 101, '"\\"'),
        Text("", '{"a":'),
        Text("{", '"a":1,', '"b":1}'),
        Text("[1", ',{"a":1}', "]"),
        Text("[", "[],", "[]]"),
    ]
    yield Reader("shape of a reply", shaped, [*broken, *nested], JSON, frame=("[" * 101, ""))
    yield Reader("shape of arguments", shaped, nested, JSON, frame=("{", "}"))

    tools = {"f": tool()["function"]["parameters"]}
    yield Reader(
        "arguments of a log",
        lambda text: outcome(f"f{text}", tools),
        [*units("{", "!", "... "), *nested],
        (*JSON, "!too deep", "... 0123456789ab"),
        frame=("{", "}"),
    )
    yield Reader(
        "words of a log",
        lambda text: words.count(pa.array([text])),
        units("a", "a ", "\u0130", "1", "_"),
        (*PLAIN, "\u0130"),
    )
    yield Reader("vocabulary", lambda text: bucket_words([text]), units("a", "a ", "1 ", "\u0130"), PLAIN)
    rule = {"email": r"[^ ]+@[^ ]+\.[a-z]+", "card": r"(\d+[ -]?)+x"}

    def cleared(text: str) -> object:
        return redact.quotable({"role": "user", "content": text}, rule)

    yield Reader(
        "redaction", cleared, units("a", "@", "a@", "1 ", "1", "a@a."), ("a", "@", ".", "1", " ", "-", '"', "[")
    )
    yield Reader(
        "an object store's error",
        lambda text: _message(OSError(text)),
        units("?", "//", "//a", "a@", "?'"),
        ("?", "/", "//", "@", "a", " ", "'"),
    )
    base = [leakage.Text("a", "how do I return the parcel that I got yesterday")]
    yield Reader(
        "near duplicates",
        lambda text: leakage.repeating(base, [leakage.Text("b", text)], 0.6, 0),
        units("a ", "a", "漢", "1", " ", "return the parcel "),
        (*PLAIN, "漢", "parcel"),
    )
