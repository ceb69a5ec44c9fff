"""What a run may set about the questions: `recipe.options` of params.yaml.

The defaults are what the embedded policy of a million parameters can learn. Each subject has one
fact and is named in words that search knows, and search shows the values. For a real model set
`snippets: false` (search names places, and the values must be read) and `describe: true` (a
function is known only by its docstring). It can also have more facts for a subject, and call sites.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, Field, model_validator

AskedKind = Literal["default", "constant", "base", "raises", "calls"]
MAX_SUBJECTS, MAX_FACTS = 6, 6


class Options(BaseModel, frozen=True, extra="forbid"):
    """The keys, and what is refused."""

    packages: tuple[str, ...] = Field(("aiohttp", "fsspec", "jinja2", "rich"), min_length=1)
    """Installed packages that questions are about. The defaults are dependencies of agent-rft."""
    worlds: int = Field(3, ge=1, le=100)
    """Mutated copies of each package for training, with names and values of their own."""
    kinds: tuple[AskedKind, ...] = Field(("default", "constant", "base", "raises"), min_length=1)
    min_subjects: int = Field(2, ge=1, le=MAX_SUBJECTS)
    max_subjects: int = Field(3, ge=1, le=MAX_SUBJECTS)
    min_facts: int = Field(1, ge=1, le=MAX_FACTS)
    max_facts: int = Field(1, ge=1, le=MAX_FACTS)
    """Subjects with fewer or more facts are not asked about."""
    describe: bool = False
    """Ask for the defaults of functions that are described by their docstring, not named."""
    snippets: bool = True
    """Search and symbols show values. False: they only show where the values are."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min_subjects > self.max_subjects:
            raise ValueError(f"min_subjects is {self.min_subjects}, above max_subjects = {self.max_subjects}")
        if self.min_facts > self.max_facts:
            raise ValueError(f"min_facts is {self.min_facts}, above max_facts = {self.max_facts}")
        if len(set(self.packages)) < len(self.packages):
            raise ValueError(f"packages names one twice: {', '.join(self.packages)}")
        return self
