"""What a run may set about its filings: `recipe.options` of params.yaml.

The defaults are what the embedded policy of a million parameters can learn. Most questions ask for
one figure, and a page holds lines that can be copied into the answer. Harder options are for a real
model (README.md). The options travel with each example, because tools and grader make the same
filings from them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Program = Literal["lookup", "difference", "ratio", "growth"]


class Options(BaseModel):
    """`recipe.options` of params.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: str | None = None
    """Folder of your own CSV files, with the columns company, period, item, value, unit and perhaps
    page. null: invented filings."""
    companies: int = Field(3000, ge=60, le=50_000)
    """How many companies are invented."""
    years: int = Field(3, ge=2, le=7)
    """Fiscal years that an invented company has filed."""
    lookup_share: float = Field(0.85, ge=0, le=1)
    """Share of the answerable questions that ask for one figure. The others compute."""
    programs: tuple[Program, ...] = Field(("difference",), min_length=1)
    """What the other questions compute."""
    unanswerable_share: float = Field(0.125, ge=0, le=0.5)
    """Share of the questions that the filings do not answer."""
    statements: Literal["short", "full"] = "short"
    """short: 16 lines in all, and numbers of about three digits. full: 35 lines, and numbers of up
    to seven digits."""
    mixed_order: bool = False
    """Each company has its own order of the statements in its filings."""
    layout: Literal["lines", "table"] = "lines"
    """lines: each line has item, number and unit. table: the unit stands in the heading, numbers
    have commas, and negative ones parentheses."""
    comparatives: bool = False
    """Each statement also shows the year before."""
    notes: bool = False
    """Each filing also has a page of notes, with segments and budgets that look like answers."""
    restated_share: float = Field(0.0, ge=0, le=1)
    """Share of the companies that restated a year, in an amended filing. Questions about that year
    say which figure they mean."""
    unit_switch_share: float = Field(0.0, ge=0, le=1)
    """Share of the companies that report their last year in another unit than the years before."""
    near_duplicate_share: float = Field(0.0, ge=0, le=0.5)
    """Share of the companies whose name is another company's name and one word more."""

    @model_validator(mode="after")
    def _of_invented_filings(self) -> Options:
        if self.folder is None:
            return self
        theirs = {"folder", "lookup_share", "programs", "unanswerable_share", "layout"}
        if useless := sorted(set(self.model_dump(exclude_defaults=True)) - theirs):
            raise ValueError(
                f"{useless[0]} is about invented filings, and has no effect on those of folder. Remove one of the two"
            )
        return self

    def of_filings(self) -> dict[str, Any]:
        """Return the options that change how the filings look, if they differ from the defaults. An
        example carries them."""
        asked = {"lookup_share", "programs", "unanswerable_share"}
        return self.model_dump(mode="json", exclude_defaults=True, exclude=asked)
