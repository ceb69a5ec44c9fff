"""Prepares the assertions of a test, so that grader.py can play them.

It fills templates, reads files and translates expressions. What grader.py cannot play as Promptfoo
does is refused with its line and a remedy.

    played      equals, contains and its variants, starts-with, regex, levenshtein, word-count,
                is-json, python, each also with not-, and assert-set
    judged      llm-rubric, factuality, model-graded-closedqa: a judge of grader.json
    left out    latency, cost: a note, because a budget is not a score
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rft.bridges import foreign, packages
from rft.bridges.imported import Note
from rft.bridges.promptfoo import located_yaml, schemas
from rft.bridges.promptfoo.grader import BLANKS, CHECKS
from rft.bridges.promptfoo.located_yaml import LocatedObject, place, without_locations
from rft.bridges.promptfoo.nunjucks import fill, text_of
from rft.bridges.promptfoo.regex import Unlike, translated
from rft.errors import UserError, did_you_mean

JUDGED = {"llm-rubric", "factuality", "model-graded-factuality", "model-graded-closedqa"}
LEFT_OUT = {
    "latency": "is not a part of the score now, which is of the other assertions. Budget: rollout.budget.latency_s",
    "cost": "is not a part of the score now, which is of the other assertions. Budgets: rollout.budget",
}
_OTHER_NUMBERS = "counts words in Promptfoo's own way, which gives other numbers than our text_similarity"
_RULE = "Write the rule as a python assertion"
_OWN_JUDGE = "asks a judge in a form of its own. Ask with llm-rubric"
_OWN_FORM = f"knows a form that is not checked here. {_RULE}"
_REPLY = "looks at a part of a provider's reply that no rollout has. Leave it out"
REFUSED = {
    "javascript": f"is JavaScript, which does not run here. {_RULE}",
    "ruby": f"is Ruby, which does not run here. {_RULE}",
    "webhook": "asks an address in a form of its own. Name the address in a grader of type endpoint",
    "similar": "compares embeddings. Ask a judge (llm-rubric), or compare letters (levenshtein)",
    "select-best": "compares answers with one another, and a grade is of one answer. Leave it out",
    "max-score": "compares answers with one another, and a grade is of one answer. Leave it out",
    "human": "waits for a person. Leave it out",
    "rouge-n": f"{_OTHER_NUMBERS}. Leave it out, and add a text_similarity to grader.json",
    "bleu": f"{_OTHER_NUMBERS}. Leave it out, and add a text_similarity to grader.json",
    "gleu": f"{_OTHER_NUMBERS}. Leave it out, and add a text_similarity to grader.json",
    "meteor": f"{_OTHER_NUMBERS}. Leave it out, and add a text_similarity to grader.json",
    "contains-json": f"takes whatever stands in braces for YAML. Ask for JSON alone (is-json), or: {_RULE.lower()}",
    "perplexity": "needs the probabilities of a hosted model. Leave it out",
    "perplexity-score": "needs the probabilities of a hosted model. Leave it out",
    "classifier": "asks a hosted classifier. Ask a judge (llm-rubric)",
    "moderation": "asks a hosted classifier. Ask a judge (llm-rubric)",
    **dict.fromkeys(("g-eval", "answer-relevance", "conversation-relevance", "pi", "search-rubric"), _OWN_JUDGE),
    **dict.fromkeys(("context-faithfulness", "context-recall", "context-relevance"), _OWN_JUDGE),
    **dict.fromkeys(("is-sql", "is-xml", "is-html", "contains-sql", "contains-xml", "contains-html"), _OWN_FORM),
    **dict.fromkeys(("is-refusal", "is-valid-function-call", "is-valid-openai-function-call"), _OWN_FORM),
    **dict.fromkeys(("is-valid-openai-tools-call", "tool-call-f1"), _OWN_FORM),
    **dict.fromkeys(("finish-reason", "guardrails", "trace-span-count", "trace-span-duration"), _REPLY),
}
_KEYS = {"type", "value", "weight", "threshold", "metric", "config", "provider", "rubricPrompt"}
_TEXTS = {"contains", "icontains", "starts-with"}
_LISTS = {"contains-any", "contains-all", "icontains-any", "icontains-all"}


class Reader:
    """Reads the assertions of one test. `base`: the folder of the config. `variables`: the test's
    variables, resolved."""

    def __init__(self, base: Path, variables: Mapping[str, Any]) -> None:
        self.base, self.variables = base, variables
        self.judged: list[dict[str, Any]] = []
        self.notes: list[Note] = []

    def read(self, given: Any, inside: bool = False) -> list[dict[str, Any]]:
        """Return the assertions that grader.py plays, and put those for a judge into `judged`.
        `inside`: they belong to an assert-set.

        Raises UserError naming file, line, key and remedy.
        """
        found: list[dict[str, Any]] = []
        for number, assertion in enumerate(given):
            if not isinstance(assertion, LocatedObject) or not isinstance(assertion.get("type"), str):
                raise UserError(f"{place(given, number)}: assert[{number}] has no type. Write one, such as equals.")
            where, kind = place(assertion, "type"), assertion["type"]
            weight = _number(assertion, "weight", 1)
            if weight < 0:
                raise UserError(f"{place(assertion, 'weight')}: weight is {weight:g}. Write 0 or more.")
            if kind in LEFT_OUT:
                self.notes.append(Note(f"{where}: {kind}", LEFT_OUT[kind]))
            elif kind == "assert-set":
                if inside:
                    raise UserError(
                        f"{where}: an assert-set inside an assert-set. Write its assertions into the outer."
                    )
                found.append(self._set(assertion))
            else:
                self._check(assertion, kind)
                base = kind.removeprefix("not-")
                if base in JUDGED:
                    self._judge(assertion, base, inside)
                else:
                    converted = _CONVERTERS[base](self, assertion, f"{where}: {kind}")
                    found.append({key: each for key, each in _kept(assertion).items() if key != "value"} | converted)
        return found

    def _set(self, assertion: LocatedObject) -> dict[str, Any]:
        inner = assertion.get("assert")
        converted = self.read(inner, inside=True) if isinstance(inner, list) else []
        if sum(each.get("weight", 1) for each in converted) <= 0:
            raise UserError(
                f"{place(assertion)}: the assert-set grades nothing. Add an assertion with a weight above 0."
            )
        _number(assertion, "threshold", 0)
        return _kept(assertion) | {"assert": converted}

    def _check(self, assertion: LocatedObject, kind: str) -> None:
        where, base = place(assertion, "type"), kind.removeprefix("not-")
        value = assertion.get("value")
        if isinstance(value, str) and value.startswith("file://") and Path(value.split(":")[1]).suffix in _SCRIPTS:
            raise UserError(f"{place(assertion, 'value')}: the value {value!r} {REFUSED['javascript']}.")
        if base.partition(":")[0] in REFUSED:
            raise UserError(f"{where}: the assertion {kind} {REFUSED[base.partition(':')[0]]}.")
        if base not in CHECKS and base != "python" and base not in JUDGED:
            known = [*CHECKS, "python", *JUDGED, "assert-set"]
            raise UserError(f"{where}: the assertion {kind!r} is not known here. {did_you_mean(base, known)}")
        for key in assertion:
            if key in ("transform", "contextTransform"):
                raise UserError(f"{place(assertion, key)}: {key} changes what is graded. {_RULE}, which does both.")
            if key not in _KEYS:
                raise UserError(f"{place(assertion, key)}: {key!r} is not a key of an assertion. Remove it.")
        _number(assertion, "threshold", 0)

    def _judge(self, assertion: LocatedObject, base: str, inside: bool) -> None:
        where = place(assertion, "type")
        inverse = assertion["type"] != base
        if inside or (inverse and base != "llm-rubric"):
            why = "inside an assert-set" if inside else "with not-, which Promptfoo ignores there"
            raise UserError(f"{where}: {assertion['type']} {why}. Write it beside the others, without not-.")
        if "rubricPrompt" in assertion:
            raise UserError(f"{place(assertion, 'rubricPrompt')}: {_OWN_PROMPT}")
        value = self._value(assertion)
        if isinstance(value, dict | list) and base == "llm-rubric":
            value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        if not isinstance(value, str) or not value.strip():
            raise UserError(f"{where}: {base} has no value. Write what the judge looks for.")
        kind = "factuality" if base == "model-graded-factuality" else base
        provider = assertion.get("provider")
        self.judged.append(
            {"type": kind, "value": value, "weight": _number(assertion, "weight", 1), "inverse": inverse}
            | {"where": where, "provider": provider if isinstance(provider, str) else None}
        )

    # -- values ------------------------------------------------------------------------------------
    def _value(self, assertion: LocatedObject) -> Any:
        """Fill the value's templates as Promptfoo does, in a text or in each text of a list."""
        where, value = place(assertion, "value"), assertion.get("value")
        if isinstance(value, list):
            return [self._filled(each, where) if isinstance(each, str) else each for each in value]
        return self._filled(value, where) if isinstance(value, str) else without_locations(value)

    def _filled(self, value: str, where: str) -> Any:
        if value.startswith("package:"):
            raise UserError(f"{where}: the value {value!r} {REFUSED['javascript']}.")
        if not value.startswith("file://"):
            return fill(value, self.variables, f"{where}: value")
        path = self.base / value.removeprefix("file://")
        if path.suffix in (".json", ".yaml", ".yml"):
            return without_locations(located_yaml.load(path))
        if path.suffix == ".txt":
            return foreign.text(path).strip()
        raise UserError(f"{where}: value is {value!r}, and only .json, .yaml and .txt are read here. Write it out.")

    def equals(self, assertion: LocatedObject, where: str) -> dict[str, Any]:
        if "value" not in assertion:
            raise UserError(f"{where} has no value. Write what the answer must be.")
        value = self._value(assertion)
        return {"value": value if isinstance(value, dict | list | None) else text_of(value, where)}

    def text(self, assertion: LocatedObject, where: str) -> dict[str, Any]:
        value = self._value(assertion)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (isinstance(value, str) and value) and not (is_number and assertion["type"].endswith("contains")):
            raise UserError(f"{where} has the value {value!r}. Write a text that is not empty.")
        return {"value": text_of(value, where)}

    def texts(self, assertion: LocatedObject, where: str) -> dict[str, Any]:
        value = self._value(assertion)
        if isinstance(value, str):
            value = _by_commas(value, where)
        if not isinstance(value, list) or not value:
            raise UserError(f"{where} has the value {value!r}. Write a list of texts.")
        return {"value": [text_of(each, where) for each in value]}

    def regex(self, assertion: LocatedObject, where: str) -> dict[str, Any]:
        value = self.text(assertion, where)["value"]
        try:
            return {"value": value, "pattern": translated(value)}
        except Unlike as error:
            raise UserError(f"{where} {value[:60]!r} {error}. Write it in another way, or as python.") from None

    def levenshtein(self, assertion: LocatedObject, where: str) -> dict[str, Any]:
        value = self._value(assertion)
        if not isinstance(value, str):
            raise UserError(f"{where} has the value {value!r}. Write a text in quotes.")
        return {"value": value}

    def word_count(self, assertion: LocatedObject, where: str) -> dict[str, Any]:
        value = self._value(assertion)
        ends = [value.get(key, 0) for key in ("min", "max")] if isinstance(value, dict) else [value]
        if isinstance(value, str):
            ends = [_as_number(value)]
            value = ends[0]
        good = all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends)
        if not good or (isinstance(value, dict) and (not value or set(value) - {"min", "max"})):
            raise UserError(f"{where} has the value {value!r}. Write a number, or min and max.")
        if isinstance(value, dict) and len(value) == 2 and value["min"] > value["max"]:
            raise UserError(f"{where}: min is above max. Exchange them.")
        return {"value": value}

    def is_json(self, assertion: LocatedObject, where: str) -> dict[str, Any]:
        value = self._value(assertion)
        if isinstance(value, str) and value:
            value = without_locations(located_yaml.parse(value, f"{where}: value"))
        if value is None or value == "":
            return {}
        schemas.check(value, f"{place(assertion, 'value')}: value")
        return {"schema": value}

    def python(self, assertion: LocatedObject, where: str) -> dict[str, Any]:
        value = assertion.get("value")
        if not isinstance(value, str) or not value.strip():
            raise UserError(f"{where} has no source. Write an expression of output and context.")
        if not value.startswith("file://"):
            return {"source": _function(fill(value, self.variables, where)), "function": "main"}
        name, _, function = value.removeprefix("file://").partition(":")
        if Path(name).suffix != ".py":
            raise UserError(f"{where} names {name!r}. Name a file that ends in .py.")
        source = foreign.text(self.base / name)
        self.notes += [Note(where, message) for message in packages.missing(source, name)]
        return {"source": source, "function": function or "get_assert", "value": value}


_SCRIPTS = {".js", ".cjs", ".mjs", ".ts", ".cts", ".mts", ".rb"}
_OWN_PROMPT = "rubricPrompt is not taken over. Remove it, and put its words into grader.json afterwards."
_CONVERTERS: dict[str, Callable[[Reader, LocatedObject, str], dict[str, Any]]] = {
    "equals": Reader.equals,
    **dict.fromkeys(_TEXTS, Reader.text),
    **dict.fromkeys(_LISTS, Reader.texts),
    "regex": Reader.regex,
    "levenshtein": Reader.levenshtein,
    "word-count": Reader.word_count,
    "is-json": Reader.is_json,
    "python": Reader.python,
}


def _kept(assertion: LocatedObject) -> dict[str, Any]:
    return {
        key: without_locations(assertion[key])
        for key in ("type", "value", "weight", "threshold", "config")
        if key in assertion
    }


def _number(assertion: LocatedObject, key: str, default: float) -> float:
    value = assertion.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{place(assertion, key)}: {key} is {value!r}. Write a number.")
    return value


def _as_number(text: str) -> float | None:
    try:
        return float(BLANKS.sub("", text)) if not set(text) & set("_nN") else None
    except ValueError:
        return None


def _function(body: str) -> str:
    """Wrap an expression or a body as Promptfoo does."""
    if "\n" not in body:
        return f"import json\n\ndef main(output, context):\n    return {body}\n"
    indents = [line[: len(line) - len(line.lstrip())] for line in body.split("\n") if line.strip()]
    indent = next((each for each in indents if each), "    ")
    return (
        "import json\n\ndef main(output, context):\n" + "\n".join(f"{indent}{each}" for each in body.split("\n")) + "\n"
    )


def _by_commas(text: str, where: str) -> list[str]:
    """Split a list that is written as one text, at commas. Texts with commas are in quotes."""
    found, rest = list[str](), text
    while rest := rest.lstrip(_BLANK + ","):
        if not rest.startswith('"'):
            field, _, rest = rest.partition(",")
            found.append(field.strip(_BLANK))
            continue
        field, position = "", 1
        while position < len(rest) and (rest[position] != '"' or rest[position : position + 2] == '""'):
            position += rest[position] == '"' or (rest[position] == "\\" and rest[position + 1 : position + 2] in '"\\')
            field += rest[position : position + 1]
            position += 1
        after = rest[position + 1 :].lstrip(_BLANK)
        if position >= len(rest) or (after and not after.startswith(",")):
            raise UserError(f"{where}: the quotes of {text[:60]!r} do not match. Write a list.")
        found.append(field)
        rest = after
    return found


_BLANK = "".join(chr(n) for n in range(2**16) if BLANKS.match(chr(n)))
