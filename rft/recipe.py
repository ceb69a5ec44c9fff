"""Load a recipe: one example agent in a folder, which users copy to bring their own.

    examples.py         Options, a pydantic model, and
                        examples(options, split, count, seed) -> a list of rows: `Example`s, dicts,
                            or the lines of your own JSONL file (`lines(path)`)
                        optional:
                        examples(..., block=0): the recipe offers blocks. Block 1 of the test split
                            holds other examples than block 0, and shares nothing with it that an
                            agent must generalize over; train and validation have block 0 only
                        from_traffic(options, conversation) -> Example | None, for graded traffic
                        features(messages) -> dict[str, str | list[str]], categories that are
                            watched for drift, such as the mix of chapters
                        answer(target) -> str | None, a target as a final answer; None where a
                            target is not an answer, such as a number to reach. Such a target is
                            not graded
                        turns(options, example, target) -> list[str], the assistant messages that
                            reach a target, with their calls. It is for work that is done by calls,
                            where a final answer alone earns nothing: a game, a mailbox, a
                            repository
                        exploit_values(options, example) -> dict, for exploits.jsonl
    tools.py            TOOLS, a list of typed Python functions; optionally grade(sample, item) ->
                        dict. `rft.tools.server` serves both over HTTP in a process of its own.
                        Optionally setup(rollout) and teardown(rollout), which make and end the
                        state of a rollout, for tools and a grade that take `rollout`
                        (rft/tools/states.py). Optionally verify(messages, sample) -> float, which
                        chooses the best of several rollouts to serve (policy.serve); it does not
                        get the target
    grader.json         one grader, of any type (rft/config/graders.py); {tool_server} in an
                        endpoint's url is the server that the stage started
    prompts.json        optional: the seed prompt, and instructions and settings for the prompt
                        stage to try
    exploits.jsonl      optional: scripted cheats that the grader must refuse. Without it only the
                        engine's own are played (rft/grading/preflight.py)
    smoke.jsonl         optional: rows that the agent must be able to play before it is promoted
                        (rft/smoke.py); without it, the first validation examples
    demonstrations.py   only for a warm start, which the embedded policy always has:
                        demonstrations(options, count, seed) -> Iterator[list[Message]]; optionally
                        vocabulary(options) -> list[str], strings that become single tokens of the
                        embedded policy
    simulator.py        optional: write_window(...), invented traffic for a demonstration
    params.yaml         the template of a run's configuration

The folder is imported as a package, `recipe_<name>`. Its files may import one another
(`from .codes import ...`), what `recipe.sources` names (rft/sources.py), and otherwise only `rft`.
What recipes need can be imported from here: `Conversation`, `Example`, `Line`, `lines`, `Message`,
`Rollout` and `ToolError`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import reprlib
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from rft import config, reports, rows, sources
from rft.config import graders
from rft.config.graders import Grader as Grader
from rft.errors import ConfigError, InfrastructureError, RftError, UserError
from rft.errors import ToolError as ToolError
from rft.reports import Conversation as Conversation
from rft.rows import Line as Line
from rft.rows import lines as lines
from rft.types import Example as Example
from rft.types import Message as Message
from rft.types import Rollout as Rollout
from rft.types import Split


class Prompts(config.Section):
    """prompts.json: the seed prompt, and what the search may change about it."""

    seed: reports.PromptSettings
    instructions: dict[str, str] = {}
    tool_defaults: dict[str, dict[str, list[Any]]] = {}
    """Tool -> argument -> values to try."""
    block_repeated_calls: list[bool] = []
    max_turns: list[Annotated[int, Field(ge=1)]] = []


class Exploit(config.Section):
    """One cheat. `turns` are assistant messages, whose placeholders rft/grading/preflight.py
    fills in."""

    name: str
    kind: str
    turns: list[str]
    starts_from: Literal["nothing", "hit"] = "nothing"


@dataclass(frozen=True)
class Recipe:
    folder: Path
    options: BaseModel
    keys: config.Keys = field(default_factory=config.Keys)
    """The keys of a row's id, target and slice."""
    python: str | None = None
    """The interpreter under which tools.py runs; None: this one (rft/tools/interpreter.py)."""
    sources: tuple[str, ...] = ()
    """What it imports from outside its folder (rft/sources.py)."""

    @property
    def name(self) -> str:
        return name_of(self.folder)

    @property
    def offers_blocks(self) -> bool:
        """Whether it can make fresh test examples: its `examples` takes a parameter `block`."""
        return "block" in inspect.signature(self._module("examples").examples).parameters

    def examples(self, split: Split, count: int, seed: int, block: int = 0) -> list[Example]:
        """Make the examples of a split; of the test split, those of one block. Raises UserError
        naming the place of a bad row."""
        more = {"block": block} if self.offers_blocks else {}
        given = self._module("examples").examples(self.options, split, count, seed, **more)
        where = f"{self.folder}/examples.py: {split} example"
        return [self._read(row, f"{where} {n}", "Fix examples().") for n, row in enumerate(given, 1)]

    @property
    def makes_from_traffic(self) -> bool:
        """Whether graded conversations can become training examples."""
        return hasattr(self._module("examples"), "from_traffic")

    def from_traffic(self, conversation: reports.Conversation) -> Example | None:
        """Make a training example of a conversation, or None where that is not possible. Raises
        UserError when the recipe has no such function."""
        function = getattr(self._module("examples"), "from_traffic", None)
        if function is None:
            missing = "has no from_traffic(options, conversation). Write it: a refresh from traffic needs it."
            raise UserError(f"{self.folder}/examples.py: {missing}")
        row = function(self.options, conversation)
        where = f"{self.folder}/examples.py: from_traffic of conversation {conversation.conversation_id!r}"
        return None if row is None else self._read(row, where, "Fix from_traffic().")

    def _read(self, row: rows.Given, where: str, remedy: str) -> Example:
        return rows.read(rows.line_of(row, where, self.keys), self.keys, remedy)

    @property
    def names_features(self) -> bool:
        """Whether it names categories of its own: its examples.py has a function `features`."""
        return hasattr(self._module("examples"), "features")

    def features(self, messages: list[Message]) -> dict[str, Any]:
        function = getattr(self._module("examples"), "features", None)
        return function(messages) if function else {}

    @property
    def has_demonstrations(self) -> bool:
        return (self.folder / "demonstrations.py").exists()

    def demonstrations(self, count: int, seed: int) -> Iterator[list[Message]]:
        if not self.has_demonstrations:
            raise UserError(
                f"{self.folder}/demonstrations.py: missing, and a warm start learns from it, as the embedded policy "
                "always does. Write it, or name a model or a server: policy.model, policy.server (docs/models.md)."
            )
        return self._module("demonstrations").demonstrations(self.options, count, seed)

    def exploit_values(self, example: Example) -> dict[str, Any]:
        """Return the values of the placeholders in exploits.jsonl for this example."""
        function = getattr(self._module("examples"), "exploit_values", None)
        return function(self.options, example) if function else {}

    def answer(self, target: Any) -> str | None:
        """Write a target as a final answer. None: it is not an answer, and none is known."""
        function = getattr(self._module("examples"), "answer", None)
        if function is not None:
            return function(target)
        return target if isinstance(target, str) else json.dumps(target, ensure_ascii=False)

    @property
    def reaches_targets_by_calls(self) -> bool:
        """Whether a final answer alone is worth nothing: its examples.py has a function `turns`."""
        return hasattr(self._module("examples"), "turns")

    def turns(self, example: Example, target: Any) -> list[str] | None:
        """Write the assistant messages that reach a target: by default the final answer alone.
        None: no answer is known."""
        if not self.reaches_targets_by_calls:
            answer = self.answer(target)
            return None if answer is None else [answer]
        return self._module("examples").turns(self.options, example, target)

    def vocabulary(self) -> list[str]:
        """List strings that become single tokens of the embedded policy: the fixed pieces of the
        recipe's answers, its code categories."""
        function = getattr(self._module("demonstrations"), "vocabulary", None)
        return list(function(self.options)) if function else []

    @property
    def can_simulate(self) -> bool:
        return (self.folder / "simulator.py").exists()

    def simulate(self, path: Path, **window: Any) -> None:
        """Write a window of invented traffic, by simulator.py's write_window(options, path, start,
        days, conversations, drifted, seed)."""
        self._module("simulator").write_window(self.options, path, **window)

    @cached_property
    def tools(self) -> list[Callable[..., Any]]:
        """Return the functions that the policy may call. Raises UserError where the file does not
        list them."""
        found = getattr(self._module("tools"), "TOOLS", None)
        if not isinstance(found, list | tuple) or not all(map(callable, found)):
            has = "has no TOOLS" if found is None else f"TOOLS is {reprlib.repr(found)}"
            remedy = "Write TOOLS = [function, ...]; TOOLS = [] where all tools are elsewhere."
            raise UserError(f"{self.folder}/tools.py: {has}, the list of functions that the policy may call. {remedy}")
        return list(found)

    @property
    def grade(self) -> Callable[..., Any] | None:
        """Return the recipe's own grading function, which is served beside its tools."""
        return getattr(self._module("tools"), "grade", None)

    @property
    def verify(self) -> Callable[..., Any] | None:
        """Return the recipe's own function that chooses which of several rollouts to serve."""
        return getattr(self._module("tools"), "verify", None)

    @property
    def setup(self) -> Callable[[Rollout], Any] | None:
        """Return the recipe's own function that prepares the state of a rollout."""
        return getattr(self._module("tools"), "setup", None)

    @property
    def teardown(self) -> Callable[[Rollout], Any] | None:
        return getattr(self._module("tools"), "teardown", None)

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
        if not path.exists():
            return []
        lines = enumerate(path.read_text().splitlines(), 1)
        return [config.parse(_value(line, f"{path}: line {n}"), f"{path}:{n}", Exploit) for n, line in lines if line]

    def _module(self, stem: str) -> types.ModuleType:
        path = self.folder / f"{stem}.py"
        if not path.exists():
            raise UserError(f"{path}: missing. A recipe needs it; `rft new` writes one to start from.")
        return _imported(self.folder, stem)


def name_of(folder: Path) -> str:
    """Name a recipe after its folder, or after its agent's: `agents/refunds/recipe` is refunds."""
    return folder.parent.name if folder.name == "recipe" else folder.name


def grader_of(folder: Path) -> Grader:
    """Read the grader that a recipe's folder declares, without running any of its code."""
    return grader_at(folder / "grader.json")


def grader_at(path: Path) -> Grader:
    """Read a grader from a file of its own."""
    return graders.read(_json(path), str(path))


def load(section: config.Recipe, keys: config.Keys | None = None) -> Recipe:
    """Load a recipe. `keys`: `examples.keys` of params.yaml, for callers that read targets, ids or
    slices.

    Raises UserError for a folder that is not a recipe, and ConfigError for options that it does not
    know.
    """
    folder = Path(section.path).resolve()
    if not (folder / "examples.py").exists():
        remedy = "Name a recipe's folder; `rft new` makes one."
        raise UserError(f"recipe.path = {section.path!r}: no examples.py in {folder}. {remedy}")
    sources.place(section.sources, sources.top(folder))
    try:
        module = _imported(folder, "examples")
    except UserError as error:
        if section.python is None:
            raise
        what = "examples.py is loaded here too, not under recipe.python alone"
        raise UserError(f"{error} ({what}: it must import neither tools.py nor packages missing here.)") from None
    model = getattr(module, "Options", None)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        remedy = "Write `class Options(BaseModel)` with extra='forbid'."
        raise UserError(f"{folder}/examples.py: defines no pydantic model `Options`. {remedy}")
    if model.model_config.get("extra") != "forbid":
        remedy = "Add model_config = ConfigDict(extra='forbid')."
        raise ConfigError(f"{folder}/examples.py: Options must forbid unknown keys. {remedy}")
    return Recipe(
        folder,
        config.parse(section.options, "params.yaml: recipe.options", model),
        keys or config.Keys(),
        section.python,
        tuple(section.sources),
    )


_PACKAGE = "recipe_"


def _imported(folder: Path, stem: str) -> types.ModuleType:
    """Import one of the recipe's files. Raises UserError, with file and line, for what it raises
    while it is imported; InfrastructureError where a server does not answer it."""
    try:
        return importlib.import_module(f"{_package(folder)}.{stem}")
    except RftError:
        raise
    except Exception as error:
        if isinstance(error, SyntaxError) and error.lineno:  # a file with null bytes has no line
            raise UserError(f"{error.filename}: line {error.lineno}: {error.msg}. Fix that line.") from None
        theirs = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_theirs(frame.filename)]
        where = f"{theirs[-1].filename}: line {theirs[-1].lineno}" if theirs else str(folder / f"{stem}.py")
        what = f"{type(error).__name__}: {error}"
        lacks = isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith(_PACKAGE)
        remedy = "Install the package that has it." if lacks else "Fix it there."
        blame = InfrastructureError if isinstance(error, ConnectionError | TimeoutError) else UserError
        raise blame(f"{where}: raised {what} when it was imported. {remedy}") from error


def _is_theirs(file: str) -> bool:
    """Return whether code is the user's: not Python's, a package's or ours."""
    others = (sys.prefix, sys.base_prefix, str(Path(__file__).parent), "<frozen")
    return not file.startswith(others)


def _package(folder: Path) -> str:
    """Make a package of the recipe's files. It replaces that of another folder with the same name,
    so that the two do not mix."""
    name = _PACKAGE + re.sub(r"\W", "_", name_of(folder))
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
