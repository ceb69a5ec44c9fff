"""grader.json: a grader as data, in the published shape of OpenAI's seven types.

    string_check       compares two strings
    text_similarity    says how near two texts are, by one of eleven metrics
    score_model        a judge gives a number
    label_model        a judge chooses a label
    python             grade(sample, item) in a sandbox
    multi              a formula over several of the others
    endpoint           an address that is asked for each score

An object that is accepted elsewhere is accepted here. So `neq` may stand for ne, and `type: model`
with a `prompt` for score_model. `graders` of a multi may be an object, a list or a single grader,
and an endpoint needs no name. Our own keys (rft/config/scaled.py) may stand in any of them.

An unknown key is an error that names the nearest known one. A template, formula or source that
cannot be used is an error here, before anything is computed.

`read` makes the object from JSON. rft/grading has one module per type, which grades with it.
"""

from __future__ import annotations

import keyword
import re
from typing import Any, ClassVar, Literal

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from rft.config import reading
from rft.config.formula import FUNCTIONS, Formula
from rft.config.judges import LabelModel, ModelGrader, ScoreModel, as_score_model
from rft.config.scaled import Grader
from rft.config.source import check_source
from rft.config.templates import Template
from rft.errors import ConfigError, did_you_mean
from rft.types import ABSTAINED, OUTCOME

TOOL_SERVER = "{tool_server}"
"""In an endpoint's url: the server of the recipe's tools."""
METRICS = ("fuzzy_match", "bleu", "gleu", "meteor", "rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5", "rouge_l")
_COSINE = "compares embeddings, which the contract has in evaluations and not in RFT"


def _unseen(*texts: str) -> list[str]:
    """Return a remark if a comparison does not look at the answer."""
    if any(place.namespace == "sample" for text in texts for place in Template.read(text).places):
        return []
    return ["input and reference have no template of sample: all answers score alike. Write {{sample.output_text}}."]


class StringCheck(Grader):
    """Compares two strings: 1 or 0."""

    type: Literal["string_check"]
    input: str
    """The text that is checked, such as `{{sample.output_text}}`."""
    reference: str
    """The text that it is compared with, such as `{{item.answer}}`."""
    operation: Literal["eq", "ne", "like", "ilike"]
    """When the score is 1. eq: the two texts are the same, letter by letter. ne: they differ. like:
    input contains reference. ilike: like, but in upper or lower case."""

    scores: ClassVar[tuple[float, float] | None] = (0.0, 1.0)

    @property
    def texts(self) -> list[str]:
        return [self.input, self.reference]

    @property
    def remarks(self) -> list[str]:
        return [*super().remarks, *_unseen(self.input, self.reference)]

    @field_validator("operation", mode="before")
    @classmethod
    def _spelled(cls, value: Any) -> Any:
        return "ne" if value == "neq" else value

    @field_validator("input", "reference")
    @classmethod
    def _templates(cls, value: str) -> str:
        Template.read(value)
        return value


class TextSimilarity(Grader):
    """Says how near two texts are, from 0 to 1 (rft/grading/text_similarity.py)."""

    type: Literal["text_similarity"]
    input: str
    """The text that is compared, such as `{{sample.output_text}}`."""
    reference: str
    """The text that it should be like, such as `{{item.answer}}`."""
    evaluation_metric: str
    """The metric: fuzzy_match, bleu, gleu, meteor, rouge_1 to rouge_5, or rouge_l."""

    scores: ClassVar[tuple[float, float] | None] = (0.0, 1.0)

    @property
    def texts(self) -> list[str]:
        return [self.input, self.reference]

    @property
    def remarks(self) -> list[str]:
        return [*super().remarks, *_unseen(self.input, self.reference)]

    @field_validator("evaluation_metric")
    @classmethod
    def _known(cls, value: str) -> str:
        if value == "cosine":
            raise ValueError(f"{_COSINE}. Take one of {', '.join(METRICS)}")
        if value not in METRICS:
            raise ValueError(f"is not a metric. Take one of {', '.join(METRICS)}")
        return value

    @field_validator("input", "reference")
    @classmethod
    def _templates(cls, value: str) -> str:
        Template.read(value)
        return value


class Python(Grader):
    """Python source with a function `grade(sample, item)` that returns a number."""

    type: Literal["python"]
    name: str = "python"
    source: str
    """The source, below 256 kB. It holds no templates: the function gets the row and the sample."""
    image_tag: str | None = None
    """The published set of packages that the source was written for. Here it gets the packages of
    this installation."""

    @property
    def needs_sandbox(self) -> bool:
        return True

    @property
    def remarks(self) -> list[str]:
        if self.image_tag is None:
            return super().remarks
        remark = f"image_tag = {self.image_tag}: the source gets this installation's packages. Compare their versions."
        return [*super().remarks, remark]

    @field_validator("source")
    @classmethod
    def _can_run(cls, value: str) -> str:
        check_source(value)
        return value


class Endpoint(Grader):
    """An address that is asked for each score (rft/grading/endpoint.py)."""

    type: Literal["endpoint"]
    name: str = "endpoint"
    url: str
    """The address. `{tool_server}` stands for the server of the recipe's tools."""
    headers: dict[str, str] = {}
    """Headers that are sent with each request. `env:NAME` is a secret from the environment."""
    rate_limit: float | None = Field(default=None, gt=0)
    """Requests per second. None: no limit, because tools.rate_limit is for tools only."""

    marks_only: ClassVar[bool] = False

    @property
    def needs_tool_server(self) -> bool:
        return self.url.startswith(TOOL_SERVER)


class Multi(Grader):
    """Several graders, and a formula over their scores."""

    type: Literal["multi"]
    name: str = "multi"
    graders: dict[str, SerializeAsAny[Grader]]
    """The graders by key. In a list, or for a single grader, a grader's name is its key."""
    calculate_output: str
    """The formula, such as `0.7 * exact + 0.3 * near` (rft/config/formula.py)."""
    gate: list[str] = []
    """Keys of graders that must pass first. If one does not, the whole gets the lowest score, and
    the other graders are not asked. A single key needs no list. This key is ours."""
    invalid_grade: float = 0.0
    """The number that the API returns for a grade without a score. Training does not use it."""

    @property
    def texts(self) -> list[str]:
        return [text for grader in self.graders.values() for text in grader.texts]

    @property
    def formula(self) -> Formula:
        return Formula.read(self.calculate_output)

    @property
    def needs_tool_server(self) -> bool:
        return any(grader.needs_tool_server for grader in self.graders.values())

    @property
    def needs_sandbox(self) -> bool:
        return any(grader.needs_sandbox for grader in self.graders.values())

    @property
    def remarks(self) -> list[str]:
        inner = [f"graders.{key}: {remark}" for key, grader in self.graders.items() for remark in grader.remarks]
        idle = [key for key in self.graders if key not in self.formula.names]
        idle = [key for key in idle if key not in self.gate]
        unused = f"calculate_output does not use {', '.join(idle)}, graded all the same. Remove it, or use it."
        return [*super().remarks, *inner, *([unused] if idle else [])]

    @field_validator("graders", mode="before")
    @classmethod
    def _each(cls, value: Any) -> Any:
        return {key: each if isinstance(each, Grader) else read(each, key) for key, each in by_key(value).items()}

    @field_validator("gate", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("calculate_output")
    @classmethod
    def _reads(cls, value: str) -> str:
        Formula.read(value)
        return value

    @model_validator(mode="after")
    def _knows_its_names(self) -> Multi:
        if unknown := sorted(self.formula.names - set(self.graders)):
            raise ValueError(
                f"calculate_output names {unknown[0]!r}, which is not a key of graders: {', '.join(self.graders)}. Add "
                "it there, or name another"
            )
        for key in self.gate:
            if key not in self.graders:
                raise ValueError(f"gate names {key!r}, which is not a key of graders: {', '.join(self.graders)}")
            if self.gate.count(key) > 1:
                raise ValueError(f"gate names {key!r} twice. Remove one")
        if OUTCOME in self.graders and self.gate:
            raise ValueError(f"a part is called {OUTCOME!r}, which with a gate is what the gate says. Rename it")
        if ABSTAINED in self.graders and self.abstention is not None:
            raise ValueError(f"a part is called {ABSTAINED!r}, which is what abstention counts. Rename it")
        return self


TYPES: dict[str, type[Grader]] = {
    "string_check": StringCheck,
    "text_similarity": TextSimilarity,
    "score_model": ScoreModel,
    "label_model": LabelModel,
    "python": Python,
    "multi": Multi,
    "endpoint": Endpoint,
}


def read(raw: Any, where: str) -> Grader:
    """Make the grader from a JSON value. Raises ConfigError that names `where`, every key that is
    wrong, and the remedy."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: holds {type(raw).__name__}, expected a grader: an object with a type.")
    if raw.get("type") == "model":
        raw = as_score_model(raw, where)
    model = TYPES.get(raw["type"]) if isinstance(raw.get("type"), str) else None
    if model is None:
        if "type" not in raw:
            raise ConfigError(f"{where}: 'type' is missing. It is one of {', '.join(TYPES)}.")
        raise ConfigError(f"{where}: 'type' = {raw['type']!r} is not a grader. {did_you_mean(str(raw['type']), TYPES)}")
    if model is Multi:
        raw = _with_children(raw, where)
    return reading.parse(raw, where, model)


def _with_children(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """Read the graders of a multi, so that an error in one names its key."""
    if "graders" not in raw:
        return raw
    found: dict[str, Grader] = {}
    problems: list[str] = []
    try:
        given = by_key(raw["graders"])
    except ValueError as error:
        raise ConfigError(f"{where}: 'graders': {error}.") from None
    for key, child in given.items():
        inside = f"{where}: graders.{key}"
        try:
            found[key] = _child(child, key, inside)
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))
    return raw | {"graders": found}


def _child(raw: Any, key: str, where: str) -> Grader:
    if isinstance(raw, dict) and raw.get("type") == "multi":
        raise ConfigError(f"{where}: a multi inside a multi. Put its graders and its formula into the outer one.")
    if not key.isidentifier() or keyword.iskeyword(key) or key in FUNCTIONS:
        raise ConfigError(f"{where}: {key!r} cannot stand in a formula. Name it with letters, digits and _.")
    child = read({"name": key, **raw} if isinstance(raw, dict) else raw, where)
    if child.abstention is not None:
        raise ConfigError(f"{where}: abstention stands in a part of a multi, and is of the whole. Move it there.")
    return child


def by_key(value: Any) -> dict[str, Any]:
    """Read all published forms of `graders`: an object of graders, a list, or a single grader."""
    if isinstance(value, dict) and not isinstance(value.get("type"), str):
        if not value:
            raise ValueError("is empty. Write at least one grader")
        return {str(key): each for key, each in value.items()}
    single = value if isinstance(value, list) else [value]
    if not single or not all(isinstance(each, dict) for each in single):
        raise ValueError("is neither an object of graders nor a list of them. Write {KEY: GRADER, ...}")
    found: dict[str, Any] = {}
    for number, each in enumerate(single, 1):
        key = slug(str(each.get("name", ""))) or f"grader_{number}"
        if key in found:
            raise ValueError(f"has two graders with the name {key!r}. Rename one")
        found[key] = each
    return found


def slug(name: str) -> str:
    """`slug("Exact match")` is "exact_match"."""
    found = re.sub(r"\W+", "_", name.strip().lower()).strip("_")
    return f"_{found}" if found[:1].isdigit() else found


__all__ = [
    "METRICS", "TOOL_SERVER", "TYPES", "Endpoint", "Grader", "LabelModel", "ModelGrader", "Multi", "Python",
    "ScoreModel", "StringCheck", "TextSimilarity", "by_key", "read", "slug",
]  # fmt: skip
