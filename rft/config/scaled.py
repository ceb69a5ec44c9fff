"""What a grader of any type declares in grader.json: a name, and the scale of its scores.

    range             the lowest and the highest score; [0, 1] if it names none
    pass_threshold    scores from here on have passed; the highest if it names none
    chance            the mean score of answers without any work; the lowest if it names none
    reports_hacks     its verdicts name hacks
    abstention        what "I don't know" is worth (rft/config/abstention.py)

`range` is ours, except for score_model; the published objects know only `pass_threshold`, and use
it to mark, not to train. So one above the range is refused where the object is of our own kind
(endpoint), and in the others it is taken as the highest score, with a remark in words.
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
    """A grader of any type. rft/config/graders.py has the types, and `read` makes one of JSON."""

    type: str
    name: str = Field(min_length=1)
    """For people. python, multi and endpoint may do without, and a part of a multi has its key."""
    range: tuple[float, float] = (0.0, 1.0)
    """The lowest and the highest score."""
    pass_threshold: float | None = Field(default=None, strict=True)
    """Scores from here on have passed. None: the highest."""
    chance: float | None = Field(default=None, strict=True)
    """The mean score that answers without any work get by chance. None: the lowest."""
    reports_hacks: bool = Field(default=False, strict=True)
    """Whether its verdicts name hacks: {"score": ..., "hack": "reason"}. The gate relies on that
    once it flagged one of the recipe's exploits."""
    abstention: Abstention | None = None
    """What an answer is worth that says "I don't know". None: as the grader says."""

    marks_only: ClassVar[bool] = True
    """Whether the type's published `pass_threshold` may lie above its scores."""
    scores: ClassVar[tuple[float, float] | None] = None
    """The only range that the type has; None: any."""

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
        """List its strings with templates, those of its parts included."""
        return []

    @property
    def needs_tool_server(self) -> bool:
        """Whether it lives on the server that serves the recipe's tools."""
        return False

    @property
    def needs_sandbox(self) -> bool:
        """Whether it is source, which runs in a sandbox only."""
        return False

    @property
    def remarks(self) -> list[str]:
        """List, in words, where the object is accepted and our rules differ from the published
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
        if value is None or ends is None:  # without ends, the range has an error of its own
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
