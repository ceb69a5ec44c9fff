"""A recipe is one example agent in a folder: what a user copies to bring their own. This module
alone loads one, by path.

    examples.py         Options (a pydantic model); examples(options, split, count, seed) -> a list
                        of rows: `Example`s, dicts, or the lines of your own JSONL file as they are
                        (`rows.lines(path)`); optionally from_traffic(options, conversation) ->
                        Example | None, for graded production traffic, and features(messages) ->
                        dict[str, str | list[str]], categories that drift watches (say, the chapter
                        mix), answer(target) -> str, a target as a final answer, and
                        exploit_values(options, example) for exploits.jsonl
    tools.py            TOOLS, a list of typed Python functions; optionally grade(sample, item) ->
                        dict. `rft.tools.server` serves both over HTTP on the wire contract, in a
                        process of its own
    grader.json         one grader; {tool_server} in its url stands for the server that the stage
                        started
    prompts.json        optional: the seed prompt, instructions and settings that the prompt stage
                        may try
    exploits.jsonl      scripted cheats that the grader must refuse
    demonstrations.py   only without policy.model: demonstrations(options, count, seed) ->
                        Iterator[list[Message]]; optionally vocabulary(options) -> list[str],
                        strings that the embedded tokenizer takes whole
    simulator.py        optional: write_window(...), invented traffic for a demonstration of the
                        ladder
    params.yaml         the template of a run's configuration

The folder is imported as a package of its own, `recipe_<name>`, so its files may import one another
(`from .codes import ...`) and otherwise only `rft`. What most recipes need is importable from here:
`Conversation`, `Example`, `Message` and `ToolError`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import re
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from rft import config, reports, rows
from rft.errors import ConfigError, UserError
from rft.errors import ToolError as ToolError
from rft.reports import Conversation as Conversation
from rft.scale import MAX_EXPLOITED, Scale, from_to
from rft.types import Example as Example
from rft.types import Message as Message
from rft.types import Split

_ABOVE = f"an exploit may earn {MAX_EXPLOITED:.0%} of the range beyond chance, and must not pass by it."


class Grader(config.Section):
    """grader.json. Other types than `endpoint` are refused by name, not ignored."""

    type: Literal["endpoint"]
    name: str
    url: str
    headers: dict[str, str] = {}
    rate_limit: float | None = Field(default=None, gt=0)
    """Requests a second; None: no limit. tools.rate_limit is for tools."""
    range: tuple[float, float] = (0.0, 1.0)
    """The lowest and the highest score."""
    pass_threshold: float | None = Field(default=None, strict=True)
    """A score from here on has passed. None: the highest."""
    chance: float | None = Field(default=None, strict=True)
    """The mean score that answers without any work get by chance. None: the lowest."""
    reports_hacks: bool = Field(default=False, strict=True)
    """Whether its verdicts name hacks: {"score": ..., "hack": "reason"}. The gate believes it once
    it flagged one of the recipe's exploits."""

    @property
    def scale(self) -> Scale:
        low, high = self.range
        threshold = high if self.pass_threshold is None else self.pass_threshold
        return Scale(low, high, threshold, chance=low if self.chance is None else self.chance)

    @property
    def declares_range(self) -> bool:
        return "range" in self.model_fields_set

    @field_validator("range", mode="before")
    @classmethod
    def _two_numbers(cls, value: Any) -> Any:
        numbers = isinstance(value, list | tuple) and all(
            isinstance(x, int | float) and not isinstance(x, bool) for x in value
        )
        if not numbers or len(value) != 2 or not all(map(math.isfinite, value)):
            raise ValueError(
                f"{value!r} is not a range: write two finite numbers, the lowest and the highest score, such as [0, 5]"
            )
        if value[0] >= value[1]:
            raise ValueError(f"{value!r}: low must be below high. Write [low, high], such as [0, 5]")
        return value

    @field_validator("pass_threshold")
    @classmethod
    def _can_be_reached(cls, value: float | None, info: ValidationInfo) -> float | None:
        ends = info.data.get("range")
        if value is None or ends is None:  # no range: that it is wrong has been said
            return value
        low, high = ends
        if not low <= value <= high:
            raise ValueError(
                f"lies outside of range, {from_to(ends)}. Lower it, or declare the grader's range: [low, high]"
            )
        if value <= Scale(low, high, value, low).exploit_limit:
            raise ValueError(f"hardly lies above {low:g}, the lowest score: {_ABOVE} Raise it")
        return value

    @field_validator("chance")
    @classmethod
    def _leaves_room(cls, value: float | None, info: ValidationInfo) -> float | None:
        ends = info.data.get("range")
        if value is None or ends is None or "pass_threshold" not in info.data:
            return value
        low, high = ends
        if not low <= value <= high:
            raise ValueError(
                f"lies outside of range, {from_to(ends)}. Declare the mean score that answers without any work get"
            )
        threshold = high if info.data["pass_threshold"] is None else info.data["pass_threshold"]
        if value >= threshold:
            raise ValueError(
                f"must lie below pass_threshold, {threshold:g}: else answers without any work pass. Lower it, or "
                "raise pass_threshold"
            )
        if Scale(low, high, threshold, value).exploit_limit >= threshold:
            raise ValueError(
                f"hardly lies below pass_threshold, {threshold:g}: {_ABOVE} Lower it, or raise pass_threshold"
            )
        return value


class Prompts(config.Section):
    """prompts.json: the seed prompt and what the search may change about it, one list a knob."""

    seed: reports.PromptSettings
    instructions: dict[str, str] = {}
    tool_defaults: dict[str, dict[str, list[Any]]] = {}
    """Tool -> argument -> values to try."""
    block_repeated_calls: list[bool] = []
    max_turns: list[Annotated[int, Field(ge=1)]] = []


class Exploit(config.Section):
    """One cheat. `turns` are assistant messages; their placeholders are filled by the preflight
    (see rft/grading/preflight.py)."""

    name: str
    kind: str
    turns: list[str]
    starts_from: Literal["nothing", "hit"] = "nothing"


@dataclass(frozen=True)
class Recipe:
    folder: Path
    options: BaseModel
    keys: config.Keys = field(default_factory=config.Keys)
    """Where a row keeps its id, target and slice."""

    @property
    def name(self) -> str:
        return self.folder.name

    def examples(self, split: Split, count: int, seed: int) -> list[Example]:
        """Raises UserError for a row that is none, naming its place."""
        given = self._module("examples").examples(self.options, split, count, seed)
        where = f"{self.folder}/examples.py: {split} example"
        return [self._read(row, f"{where} {n}", "Fix examples().") for n, row in enumerate(given, 1)]

    def from_traffic(self, conversation: reports.Conversation) -> Example | None:
        """None when the conversation cannot become a training example. Raises UserError when the
        recipe has no such function."""
        function = getattr(self._module("examples"), "from_traffic", None)
        if function is None:
            raise UserError(
                f"{self.folder}/examples.py: has no from_traffic(options, conversation), which a refresh from "
                "traffic needs."
            )
        row = function(self.options, conversation)
        where = f"{self.folder}/examples.py: from_traffic of conversation {conversation.conversation_id!r}"
        return None if row is None else self._read(row, where, "Fix from_traffic().")

    def _read(self, row: rows.Given, where: str, remedy: str) -> Example:
        return rows.read(rows.line_of(row, where), self.keys, remedy)

    def features(self, messages: list[Message]) -> dict[str, Any]:
        function = getattr(self._module("examples"), "features", None)
        return function(messages) if function else {}

    def demonstrations(self, count: int, seed: int) -> Iterator[list[Message]]:
        return self._module("demonstrations").demonstrations(self.options, count, seed)

    def exploit_values(self, example: Example) -> dict[str, Any]:
        """What fills the placeholders of exploits.jsonl for this example."""
        function = getattr(self._module("examples"), "exploit_values", None)
        return function(self.options, example) if function else {}

    def answer(self, target: Any) -> str:
        """A target in the form of a final answer."""
        function = getattr(self._module("examples"), "answer", None)
        if function is not None:
            return function(target)
        return target if isinstance(target, str) else json.dumps(target, ensure_ascii=False)

    def vocabulary(self) -> list[str]:
        """Strings that an embedded policy's tokenizer takes whole: the fixed pieces of the recipe's
        answers, its code categories."""
        function = getattr(self._module("demonstrations"), "vocabulary", None)
        return list(function(self.options)) if function else []

    def simulate(self, path: Path, **window: Any) -> None:
        """Write a window of invented traffic: simulator.py's write_window(options, path, start,
        days, conversations, drifted, seed)."""
        self._module("simulator").write_window(self.options, path, **window)

    @cached_property
    def tools(self) -> list[Callable[..., Any]]:
        return list(self._module("tools").TOOLS)

    @property
    def grade(self) -> Callable[..., Any] | None:
        """The recipe's own grading function, served as an endpoint beside its tools."""
        return getattr(self._module("tools"), "grade", None)

    @cached_property
    def grader(self) -> Grader:
        return grader_of(self.folder)

    @cached_property
    def prompts(self) -> Prompts:
        path = self.folder / "prompts.json"
        if not path.exists():
            return Prompts(seed=reports.PromptSettings(name="seed", system=""))
        return config.parse(_json(path), str(path), Prompts)

    @cached_property
    def exploits(self) -> list[Exploit]:
        path = self.folder / "exploits.jsonl"
        lines = enumerate(path.read_text().splitlines(), 1)
        return [config.parse(_value(line, f"{path}: line {n}"), f"{path}:{n}", Exploit) for n, line in lines if line]

    def sha256(self) -> str:
        """Over the names and bytes of all its files."""
        digest = hashlib.sha256()
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(
                    f"{path.relative_to(self.folder)}\0".encode() + hashlib.sha256(path.read_bytes()).digest()
                )
        return digest.hexdigest()

    def _module(self, stem: str) -> types.ModuleType:
        path = self.folder / f"{stem}.py"
        if not path.exists():
            raise UserError(f"{path}: missing. A recipe needs it; `rft new` writes one to start from.")
        return importlib.import_module(f"{_package(self.folder)}.{stem}")


def grader_of(folder: Path) -> Grader:
    """The grader that a recipe's folder declares, without running any of its code."""
    path = folder / "grader.json"
    return config.parse(_json(path), str(path), Grader)


def load(section: config.Recipe, keys: config.Keys | None = None) -> Recipe:
    """`keys`: `examples.keys` of params.yaml, for whoever looks at targets, ids or slices.

    Raises UserError for a folder that is no recipe, ConfigError for options that it does not know.
    """
    folder = Path(section.path).resolve()
    if not (folder / "examples.py").exists():
        raise UserError(
            f"recipe.path = {section.path!r}: no examples.py in {folder}. Name a recipe's folder; `rft new` makes one."
        )
    module = importlib.import_module(f"{_package(folder)}.examples")
    model = getattr(module, "Options", None)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise UserError(
            f"{folder}/examples.py: defines no pydantic model `Options`. Write `class Options(BaseModel)` with "
            "extra='forbid'."
        )
    if model.model_config.get("extra") != "forbid":
        raise ConfigError(
            f"{folder}/examples.py: Options must forbid unknown keys: model_config = ConfigDict(extra='forbid')."
        )
    return Recipe(folder, config.parse(section.options, "params.yaml: recipe.options", model), keys or config.Keys())


def _package(folder: Path) -> str:
    """A package whose files are the recipe's; one name a folder, so that two recipes of one name do
    not mix."""
    name = "recipe_" + re.sub(r"\W", "_", folder.name)
    package = sys.modules.get(name)
    if package is None or list(package.__path__) != [str(folder)]:
        for stale in [module for module in sys.modules if module == name or module.startswith(name + ".")]:
            del sys.modules[stale]
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    return name


def _json(path: Path) -> dict[str, Any]:
    try:
        return _value(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise UserError(f"{path}: missing. A recipe needs it; `rft new` writes one to start from.") from None


def _value(text: str, where: str) -> dict[str, Any]:
    try:
        return json.loads(text, object_pairs_hook=config.unique)
    except json.JSONDecodeError as error:
        line = f" line {error.lineno}:" if "\n" in text else ""
        raise UserError(f"{where}:{line} not JSON: {error.msg}.") from None
    except ValueError as error:
        raise UserError(f"{where}: {error}.") from None
