"""Readers for the figure `slow_text` of texts by users, their programs and their files.

These are templates, rows, other people's entries in the ledger, and mailboxes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.slow_readers import JSON, PLAIN, Reader, Text, units


def of_users() -> Iterator[Reader]:
    from rft.config.templates import Template, names_a_place
    from rft.page.markup import h
    from tasks.ledger.anchors import _TRAILER
    from tasks.ledger.keys import signer

    def template(text: str) -> object:
        return names_a_place(text), Template.read(text)

    worst = [
        *units("{{", "{{ ", "}}", "{{ item", "{{item.a}}", "{"),
        Text("{{item", ".a", "}}"),
        Text("{{item", " ", "}}"),
        Text('{{item["', "\\", '"]}}'),
        Text("{{a", " ", "}}"),
        Text("{{", " "),
        Text("{{item", "[0]", "}}"),
        Text("{{ ", " ", "x }}"),
        Text("{{item.a.", "-", "}}"),
    ]
    yield Reader("template", template, worst, ("{{", "}}", "item", "sample", ".", "[0]", " ", "a", '["', '"]', "\\"))
    yield Reader(
        "page", lambda text: h("p", text, title=text), units("<", "&", '"', "a"), ("<", ">", "&", "'", '"', "a")
    )
    begin, end = "-----BEGIN SSH SIGNATURE-----\n", "-----END SSH SIGNATURE-----"
    yield Reader(
        "signature",
        signer,
        [
            Text(begin, "-", end),
            Text(begin, "-"),
            Text(begin, "-----END SSH SIGNATURE"),
            Text("", "-"),
            Text("", " "),
            Text(begin, "AAAA\n", end),
            Text(begin, " ", end + "x"),
            Text(begin + end, " ", "x"),
        ],
        ("-", begin, end, "-----END", " SSH SIGNATURE-----", "\n", " ", "A", "="),
    )
    yield Reader(
        "anchor", lambda text: _TRAILER.findall(text), units("\n", "1", "Ledger: 1 "), ("\n", "1", " ", "a", ": ")
    )
    yield from _of_processes()
    yield from _recipes()


def _of_processes() -> Iterator[Reader]:
    """Yield readers of what foreign programs, servers and files say."""
    from rft import config, rows
    from rft.errors import did_you_mean
    from rft.lines import COUNTED, METRICS
    from rft.page.lineage import _HASH
    from rft.sampling.remote.connection import _OTHER_DIALECT, MAX_SHOWN_CHARS
    from tasks.audit.lock import declared
    from tasks.runs.repro import DVC_SAYS

    keys = config.Keys()

    def row(text: str) -> object:
        lines = rows.split(Path("train.jsonl"), text.encode("utf-8", "replace"), "Fix it.")
        return [rows.read(line, keys, "Fix it.") for line in lines]

    start = '{"messages": [{"role": "user", "content": "'
    yield Reader(
        "rows",
        row,
        [
            Text(start, "a", '"}]}'),
            Text("", start + 'a"}]}\n'),
            Text("{", '"a":1,', '"b":1}'),
            Text("", "\n"),
            Text("", "["),
            Text(start + 'a"}], "tools": [', "{},", "{}]}"),
        ],
        JSON,
        frame=(start, '"}]}'),
    )
    marks = ("[train] ", "1", "/", "metrics ", " ", "WARNING: '", "' is empty", "Stage '", "> ", "\n")
    yield Reader(
        "a stage's lines",
        lambda text: (COUNTED.match(text), METRICS.match(text), DVC_SAYS.match(text)),
        [*units("1", " ", "WARNING: Process '"), Text("[train] ", "1"), Text("WARNING: '", "'")],
        marks,
    )
    yield Reader(
        "a model server's refusal",
        lambda text: _OTHER_DIALECT.search(text[:MAX_SHOWN_CHARS]),
        units("max_tokens ", "unsupported "),
        ("max_tokens", " ", "unsupported", "temperature"),
    )
    yield Reader(
        "an audit's hashes",
        lambda text: _HASH.sub("", text),
        units("a", "SHA256:", "0", "a" * 33 + " "),
        ("a", "0", "SHA256:", ".dir", " ", "z"),
    )
    stages = ("stages:\n  a:\n    cmd: '", "'\n")
    yield Reader(
        "dvc.yaml",
        lambda text: declared(text.encode("utf-8", "replace"), {"a": 1}),
        [
            Text(stages[0], "${", stages[1]),
            Text(stages[0], "${a}", stages[1]),
            Text("", "["),
            Text("", "- "),
            Text("", "? "),
            Text("", "-\n"),
            Text("", "a: "),
        ],
        ("${", "}", "a", ".", "[", "]", "\n", " ", "- ", ": ", "&a ", "*a "),
        frame=stages,
    )
    yield Reader(
        "an unknown name", lambda text: did_you_mean(text, ["tools", "a" * 60]), units("a", "ab", "tools"), PLAIN
    )


def _recipes() -> Iterator[Reader]:
    from recipes.code_research.recipe import facts
    from recipes.code_research.recipe import hacks as research
    from recipes.filings.recipe import arithmetic
    from recipes.filings.recipe import hacks as filings
    from recipes.icd10 import codes
    from recipes.mail_search.recipe import changelogs, hacks, judge, mails
    from recipes.mail_search.recipe.letters import _REPLY, without_tags
    from recipes.wordle.recipe import tools as wordle

    def sample(text: str) -> dict[str, Any]:
        return {
            "output_text": text,
            "trajectory": [{"role": "assistant", "content": text}, {"role": "tool", "content": text}],
        }

    own = ("score", '"score"', " ", ":", "grader", "m123456 ", "{", "}", '"value":', "1,", "[", "]", "\n")
    yield Reader(
        "mail_search: hacks",
        lambda text: hacks.found_in(sample(text), None),
        [*units("score ", "m123456 ", "ignore ", "m"), Text("score", " "), Text('{"sources": ["a"', ',"a"', "]}")],
        own,
    )
    yield Reader(
        "filings: hacks",
        lambda text: filings.found_in(sample(text)),
        [*units('"score"'), Text('{"value": [1', ",1", "]}"), Text("{", '"value":1,', '"value":2}')],
        own,
    )
    yield Reader(
        "code_research: hacks", lambda text: research.found_in(sample(text), [], 9), units('"score"', "/"), own
    )
    yield Reader("code_research: facts", facts.read, [Text("[", '{"symbol":"a"},', "{}]")], JSON)
    yield Reader(
        "filings: calculate",
        lambda text: arithmetic.evaluate(text),
        units("a ", "(", "1+", "-", " "),
        ("a", " ", "1", "(", ")", "+", "-", "."),
    )
    yield Reader(
        "wordle: clues",
        wordle.clues_in,
        units("crane ", "crane", " ", "gxyxy ", "crane xyxyx "),
        ("crane", " ", "gyxxy", "a", ";"),
    )
    yield Reader("icd10: words", codes.words, units("a ", "\ufdfa", "\u0301", "'"), PLAIN)
    yield Reader(
        "mail_search: fold", mails.fold, units(".", "a.", "\u0301", "_", "\ufdfa"), (*PLAIN, "~", "+", "@", ":")
    )
    yield Reader("mail_search: answer", lambda text: judge.is_right(text, "2019-05-28", "date"), units("1", "-"), PLAIN)
    yield Reader(
        "mail_search: a mail's HTML",
        without_tags,
        [*units("<", "<style", "<script>", "<a", "&"), Text("<style>", "</"), Text("<", "script")],
        ("<", ">", "style", "script", "/", "a", " ", "</style>", "<style>"),
    )
    yield Reader(
        "mail_search: a subject",
        lambda text: _REPLY.sub("", text),
        [*units("re:", "re: ", "re[1]:"), Text("re[", "1")],
        ("re", "[1]", ":", " ", "fw", "aw"),
    )
    yield Reader(
        "mail_search: a changelog",
        lambda text: list(changelogs.entries(text)),
        [
            Text(" -- ", " "),
            Text(" -- ", "<"),
            Text(" -- a", " <>"),
            Text(" -- a <b>", " "),
            Text(" -- a <b> c", " "),
            Text("a (1)", "a"),
            Text("a (1) u; x\n", " closes: 1,"),
            Text("a (1) u;\n closes:", " ", "\n -- a <b>  Tue, 28 May 2019 16:37:45 +0200"),
        ],
        (" -- ", "<", ">", " ", "a", "  ", "a (1) u;", "\n", "closes: ", "#1", ","),
    )
