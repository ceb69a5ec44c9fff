"""What a grader of any type declares in grader.json: a name, and the scale of its scores.

    range             the lowest and the highest score; by default [0, 1]
    pass_threshold    the lowest score that passes; by default the highest of the range
    chance            the mean score of answers without any work; by default the lowest
    reports_hacks     whether its verdicts name hacks
    abstention        the score of "I don't know" (rft/config/abstention.py)

`range` is our key, except for score_model. The published objects know only `pass_threshold`, and
use it to mark answers, not to train. A threshold above the range is refused for our own type,
endpoint. For the other types it counts as the highest score, with a remark.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from rft.config.abstention import Abstention
from rft.config.section import Section
from rft.scale import MAX_EXPLOITED, Scale, from_to

_ABOVE = f"an exploit may earn {MAX_EXPLOITED:.0%} of the range above chance, and must not pass with that."


class Grader(Section):
    """A grader of any type. rft/config/graders.py has the types, and its `read` makes one from
    JSON."""

    type: str
    name: str = Field(min_length=1)
    """Name for readers. python, multi and endpoint need none. The name of a part of a multi is its
    key, unless it sets another."""
    range: tuple[float, float] = (0.0, 1.0)
    """The lowest and the highest score."""
    pass_threshold: float | None = Field(default=None, strict=True)
    """The lowest score that passes. None: the highest score."""
    chance: float | None = Field(default=None, strict=True)
    """The mean score that answers without any work get by chance. None: the lowest score."""
    reports_hacks: bool = Field(default=False, strict=True)
    """Whether the grader's verdicts name hacks: {"score": ..., "hack": "reason"}. The gate relies
    on them once the grader has flagged one of the recipe's exploits."""
    abstention: Abstention | None = None
    """The score of an answer that says "I don't know". None: the grader scores it like any
    other."""

    marks_only: ClassVar[bool] = True
    """Whether the type's published `pass_threshold` may lie above its scores."""
    scores: ClassVar[tuple[float, float] | None] = None
    """The only range that the type allows. None: any range."""

    @property
    def scale(self) -> Scale:
        low, high = self.range
        threshold = high if self.pass_threshold is None else min(self.pass_threshold, high)
        return Scale(low, high, threshold, chance=low if self.chance is None else self.chance)

    @property
    def declares_range(self) -> bool:
        return "range" in self.model_fields_set

    @property
    def texts(self) -> list[str]:
        """List the grader's strings with templates, and those of its parts."""
        return []

    @property
    def needs_tool_server(self) -> bool:
        """Whether the grader runs on the server of the recipe's tools."""
        return False

    @property
    def needs_sandbox(self) -> bool:
        """Whether the grader is source, which runs only in a sandbox."""
        return False

    @property
    def remarks(self) -> list[str]:
        """List remarks on an accepted object, such as where our rules differ from the published
        ones."""
        low, high = self.range
        if self.pass_threshold is None or self.pass_threshold <= high:
            return []
        remedy = "Declare the range of its scores" if not self.declares_range else "Lower it"
        return [
            f"pass_threshold = {self.pass_threshold:g} lies above the range, {from_to((low, high))}: what reaches "
            f"{high:g} passes. {remedy}."
        ]

    @field_validator("range", mode="before")
    @classmethod
    def _two_numbers(cls, value: Any) -> Any:
        pair = isinstance(value, list | tuple) and len(value) == 2
        if not pair or not all(type(x) in (int, float) and math.isfinite(x) for x in value):
            remedy = "write two finite numbers, the lowest and the highest score, such as [0, 5]"
            raise ValueError(f"{value!r} is not a range: {remedy}")
        if value[0] >= value[1]:
            raise ValueError(f"{value!r}: low must be below high. Write [low, high], such as [0, 5]")
        if cls.scores is not None and tuple(value) != cls.scores:
            raise ValueError(f"{value!r}: the scores of this type are {from_to(cls.scores)}. Remove it")
        return value

    @field_validator("pass_threshold")
    @classmethod
    def _can_be_reached(cls, value: float | None, info: ValidationInfo) -> float | None:
        ends = info.data.get("range")
        if value is None or ends is None:  # without ends, the range is already an error
            return value
        low, high = ends
        if value < low or not (value <= high or cls.marks_only):
            raise ValueError(f"is outside range, {from_to(ends)}. Lower it, or declare the grader's range: [low, high]")
        if value <= Scale(low, high, value, low).exploit_limit:
            raise ValueError(f"is too close to the lowest score, {low:g}: {_ABOVE} Raise it")
        return value

    @field_validator("chance")
    @classmethod
    def _leaves_room(cls, value: float | None, info: ValidationInfo) -> float | None:
        ends = info.data.get("range")
        if value is None or ends is None or "pass_threshold" not in info.data:
            return value
        low, high = ends
        if not low <= value <= high:
            remedy = "Declare the mean score that answers without any work get"
            raise ValueError(f"is outside range, {from_to(ends)}. {remedy}")
        threshold = high if info.data["pass_threshold"] is None else min(info.data["pass_threshold"], high)
        remedy = "Lower it, or raise pass_threshold"
        if value >= threshold:
            why = "otherwise answers without any work pass."
            raise ValueError(f"must be below pass_threshold, {threshold:g}: {why} {remedy}")
        if Scale(low, high, threshold, value).exploit_limit >= threshold:
            raise ValueError(f"is too close to pass_threshold, {threshold:g}: {_ABOVE} {remedy}")
        return value

    @field_validator("abstention")
    @classmethod
    def _pays_between(cls, value: Abstention | None, info: ValidationInfo) -> Abstention | None:
        if value is None or not {"range", "pass_threshold"} <= info.data.keys():
            return value
        low, high = info.data["range"]
        threshold = high if info.data["pass_threshold"] is None else min(info.data["pass_threshold"], high)
        if not low <= value.pays < threshold:
            raise ValueError(
                f"pays {value.pays:g}, and must pay at least the lowest score, {low:g}, and less than pass_threshold, "
                f"{threshold:g}: an abstention is not a solution. Change it"
            )
        return value
