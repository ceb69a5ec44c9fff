"""The graders that ask a judge: another model, behind any OpenAI-compatible address.

`model` names the judge, and `input` holds the chat messages that it gets, with templates. The
environment gives its address and key, as for the stock client: OPENAI_BASE_URL and OPENAI_API_KEY.
`prices` is our own key. With it, the cost of a run's judge is shown in money.

The older spelling `type: model` has a `prompt` with names in single braces, and a `response_format`
of its own. It is read as a score_model: {final_answer} is the answer, and any other name is a key
of the row. The judge is asked in our form.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from rft.config.scaled import Grader
from rft.config.section import Section
from rft.config.templates import Template
from rft.errors import ConfigError

Name = Annotated[str, StringConstraints(min_length=1)]
_TEXT_PARTS = ("input_text", "output_text", "text")
_ANSWER = "final_answer"


class Message(Section):
    """A message to the judge. Its content is a text, or parts that are joined to one."""

    role: Literal["user", "assistant", "system", "developer"]
    """Who speaks. `developer` is sent unchanged, but not every server knows it."""
    content: str
    """A text with templates, or a list of parts that are texts."""
    type: Literal["message"] = "message"
    """The published key. It may be left out."""

    @field_validator("content", mode="before")
    @classmethod
    def _joined(cls, value: Any) -> Any:
        return "".join(_text(part) for part in value) if isinstance(value, list) else _text(value)

    @field_validator("content")
    @classmethod
    def _templates(cls, value: str) -> str:
        Template.read(value)
        return value


def _text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str):
        return part["text"]
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise ValueError(
        f"holds a part of type {kind!r}, and judges here read text. Write a string, or parts of input_text"
    )


class SamplingParams(Section):
    """How the judge samples. The server chooses every value that is left out."""

    seed: int | None = None
    """Seed of the sampling. With a fixed seed the same answer gets the same verdict, if the server
    supports that."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """The judge samples from the likeliest tokens that together have this probability."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature. 0: the likeliest verdict, and no noise in the scores. Reasoning models
    refuse this key."""
    max_completions_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of a verdict. The published key has this spelling."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    """How much the judge reasons. Only for models that reason."""


class JudgePrices(Section):
    """Prices of a million of the judge's tokens, in a currency of your choice."""

    input: float = Field(ge=0)
    """Price of tokens that the judge reads."""
    output: float = Field(ge=0)
    """Price of tokens that the judge writes."""
    cached_input: float | None = Field(default=None, ge=0)
    """Price of tokens that come from a cache. None: the same as `input`."""


class ModelGrader(Grader):
    """What both graders with a judge have in common."""

    model: Name
    """The judge's model, by the name that its server uses."""
    input: list[Message] = Field(min_length=1)
    """The messages that the judge gets."""
    sampling_params: SamplingParams = SamplingParams()
    prices: JudgePrices | None = None
    """What the judge's tokens cost. None: they are only counted."""

    @property
    def texts(self) -> list[str]:
        return [message.content for message in self.input]

    @property
    def remarks(self) -> list[str]:
        places = [place for text in self.texts for place in Template.read(text).places]
        if any(place.namespace == "sample" for place in places):
            return super().remarks
        unseen = "input has no template of sample: the judge never sees the answer. Write {{sample.output_text}}."
        return [*super().remarks, unseen]


class ScoreModel(ModelGrader):
    """A judge gives a number, which is clipped to `range`."""

    type: Literal["score_model"]
    response_format: dict[str, Any] | None = None
    """A key of the older spelling. It is not sent, because the judge is asked in our form."""

    @property
    def remarks(self) -> list[str]:
        asked = "response_format is not sent: the judge is asked for steps and a result. Remove it."
        return super().remarks if self.response_format is None else [*super().remarks, asked]


class LabelModel(ModelGrader):
    """A judge chooses a label: 1 if it is one of `passing_labels`, else 0."""

    type: Literal["label_model"]
    labels: list[Name] = Field(min_length=2)
    """Labels from which the judge chooses."""
    passing_labels: list[str] = Field(min_length=1)
    """Labels that score 1."""

    scores: ClassVar[tuple[float, float] | None] = (0.0, 1.0)

    @field_validator("labels")
    @classmethod
    def _once(cls, value: list[str]) -> list[str]:
        if twice := [label for label in value if value.count(label) > 1]:
            raise ValueError(f"holds {twice[0]!r} twice. Remove one")
        return value

    @model_validator(mode="after")
    def _pass(self) -> LabelModel:
        if unknown := [label for label in self.passing_labels if label not in self.labels]:
            raise ValueError(f"passing_labels names {unknown[0]!r}, which is not in labels. Add it there, or remove it")
        if set(self.passing_labels) == set(self.labels):
            raise ValueError("passing_labels holds all of labels, so every answer passes. Remove one there")
        return self


def as_score_model(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """Translate the older spelling, `type: model`."""
    found = {"name": "model", **raw, "type": "score_model"}
    prompt = found.pop("prompt", None)
    if prompt is None:
        return found
    if "input" in found or not isinstance(prompt, str):
        raise ConfigError(f"{where}: 'prompt' must be a text, and stand without 'input'. Keep one of the two.")
    text = re.sub(r"(?<!\{)\{([A-Za-z_]\w*)\}(?!\})", lambda name: _place(name[1]), prompt)
    return found | {"input": [{"role": "user", "content": text}]}


def _place(name: str) -> str:
    return "{{sample.output_text}}" if name == _ANSWER else f"{{{{item.{name}}}}}"
