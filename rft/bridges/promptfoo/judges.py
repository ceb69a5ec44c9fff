"""Makes a judge for grader.json from an assertion that a model decides.

    llm-rubric              score_model, from 0 to 1
    factuality              label_model, the five labels of Promptfoo; only a contradiction fails
    model-graded-closedqa   label_model, Y or N

All rows share one formula, so each test must have one such assertion, of the same type and weight.
The weights of its other assertions must add up to the same sum. We ask the judge in our own words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rft.bridges.promptfoo.cases import Test
from rft.errors import UserError

_VALUE, _ANSWER = "{{item.judged[0].value}}", "{{sample.output_text}}"
_QUESTION = "The task was:\n{{item.messages}}\n\nThe answer is:\n" + _ANSWER + "\n\n"
_INPUTS = {
    "llm-rubric": "Grade the answer by the rubric: 1 if it meets it in full, 0 if not at all.\n\n"
    f"The answer is:\n{_ANSWER}\n\nThe rubric is:\n{_VALUE}",
    "factuality": _QUESTION + f"An expert's answer is:\n{_VALUE}\n\nCompare the facts of both, not style and grammar. "
    "A: the answer's are a subset of the expert's. B: they are a superset, and consistent. C: they are the same. "
    "D: they contradict. E: they differ, in what does not matter for the facts.",
    "model-graded-closedqa": _QUESTION + f"The criterion is:\n{_VALUE}\n\nDoes the answer meet it? Y: yes. N: no.",
}
_LABELS = {
    "factuality": (["A", "B", "C", "D", "E"], ["A", "B", "C", "E"]),
    "model-graded-closedqa": (["Y", "N"], ["Y"]),
}
_NO_NAME = "JUDGE"


@dataclass(frozen=True)
class Judged:
    """What one test asks a judge. `asked` is empty if it asks no judge."""

    where: str
    asked: Mapping[str, Any]
    beside: float
    """The total weight of the assertions that are played."""

    @property
    def shape(self) -> tuple[Any, ...]:
        keys = ("type", "weight", "inverse", "provider")
        return (*(self.asked[key] for key in keys), self.beside) if self.asked else ()

    @property
    def description(self) -> str:
        if not self.asked:
            return "asks no judge"
        negated = "not-" if self.asked["inverse"] else ""
        kind, weight, model = (self.asked[key] for key in ("type", "weight", "provider"))
        model = f" of {model}" if model else ""
        return f"asks a judge{model} ({negated}{kind}, weight {weight:g}, beside {self.beside:g} of others)"

    @property
    def model(self) -> str:
        """Return the name after `openai:` or `openai:chat:`, or a placeholder."""
        provider = str(self.asked.get("provider") or "")
        return provider.rpartition(":")[2] if provider.startswith("openai:") else _NO_NAME

    def grader(self, checks: dict[str, Any]) -> dict[str, Any]:
        """Join the judge and the played assertions by their weights."""
        kind = self.asked["type"]
        judge: dict[str, Any] = {"type": "score_model", "name": kind, "model": self.model, "range": [0, 1]}
        if kind in _LABELS:
            labels, passing = _LABELS[kind]
            judge = {"type": "label_model", "name": kind, "model": self.model}
            judge |= {"labels": labels, "passing_labels": passing}
        judge["input"] = [{"role": "user", "content": _INPUTS[kind]}]
        score = "(1 - judge)" if self.asked["inverse"] else "judge"
        if not self.beside:
            return {"type": "multi", "graders": {"judge": judge}, "calculate_output": score, "range": [0, 1]}
        total = self.beside + self.asked["weight"]
        return {
            "type": "multi",
            "graders": {"assertions": checks, "judge": judge},
            "calculate_output": f"({self.beside!r} * assertions + {self.asked['weight']!r} * {score}) / {total!r}",
        } | ({"range": [0, 1]} if "range" in checks else {})


def judged(converted: Sequence[Mapping[str, Any]], asked: Sequence[dict[str, Any]], test: Test) -> Judged:
    """Return what a test asks a judge. Raises UserError for a test that nothing grades, or that
    asks twice."""
    beside = sum(one.get("weight", 1) for one in converted)
    if not converted and not asked:
        raise UserError(f"{test.where}: assert is missing or empty, so nothing grades the test. Add an assertion.")
    if len(asked) > 1:
        raise UserError(f"{asked[1]['where']}: a second judged assertion. Write what both look for into one.")
    if not beside and not (asked and asked[0]["weight"]):
        raise UserError(f"{test.where}: every assertion has the weight 0, so every score is 0. Give one a weight.")
    if not asked:
        return Judged(test.where, {}, beside)
    if asked[0]["weight"] == 0:
        raise UserError(f"{asked[0]['where']}: a judge of weight 0 costs, and decides nothing. Leave it out.")
    one = asked[0] | {"provider": asked[0]["provider"] or _provider(test)}
    return Judged(asked[0]["where"], one, beside)


def _provider(test: Test) -> str | None:
    given = test.options.get("provider")
    given = given.get("id") if isinstance(given, dict) else given
    return given if isinstance(given, str) else None


def to_fill(first: Judged) -> tuple[str, ...]:
    """Say what a person must write before the judge can be asked."""
    if not first.asked:
        return ()
    name = "" if first.model != _NO_NAME else "grader.json: model: replace JUDGE with the judge's name. "
    return (
        f"{name}export OPENAI_BASE_URL=... OPENAI_API_KEY=... (where the judge is)",
        f"grader.json: the judge of {first.asked['type']} is asked in our words; compare its scores with yours",
    )
