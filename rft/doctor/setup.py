"""What the checks look at: the settings, the recipe, its examples, and the policy's model, each
read once and only when a check asks."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from rft import commands, config, recipe, reports, secrets, shelves
from rft.chat.renderer import Chat
from rft.doctor.finding import Skip
from rft.errors import UserError
from rft.recipe import Recipe, Split
from rft.stages import examples
from rft.tools import signatures
from rft.types import SPLITS, Example
from rft.wire.trace import Traces


class Setup:
    """`load` reads params.yaml; `announce` is told what is about to be sent to tools and grader;
    `find_policy`: see `examine`."""

    def __init__(
        self,
        load: Callable[[], config.Params],
        announce: Callable[[str], None] = lambda words: None,
        find_policy: Callable[[config.Params], Path | None] = lambda params: None,
    ):
        self._load = load
        self._find_policy = find_policy
        self.announce = announce
        self.traces = Traces()
        """New for each visit: a server may still hold what an earlier one left there."""
        self.offered: list[dict[str, Any]] | None = None

    @cached_property
    def params(self) -> config.Params:
        return self._load()

    @cached_property
    def recipe(self) -> Recipe:
        return recipe.load(self.params.recipe, self.params.examples.keys)

    @cached_property
    def rows(self) -> dict[Split, list[Example]]:
        """The examples that the stage `examples` would take, by split."""
        section = self.params.examples
        found: dict[Split, list[Example]] = {}
        for split in SPLITS[:-1]:
            found[split] = self.recipe.examples(split, getattr(section, split), section.seed)
        blocks = examples.asked(self.recipe, section)
        tested = (self.recipe.examples("test", section.test, section.seed, block) for block in blocks)
        found["test"] = [row for some in tested for row in some]
        return found

    # -- secrets -----------------------------------------------------------------------------------
    def variables(self) -> list[str]:
        """The environment variables that params.yaml and grader.json name by `env:`."""
        said: list[Any] = [self.params.model_dump(by_alias=True)]
        if (grader := Path(self.params.recipe.path) / "grader.json").exists():
            said.append(_json_or_none(grader))
        return sorted({*secrets.variables(said)})

    # -- the model ---------------------------------------------------------------------------------
    @cached_property
    def model_source(self) -> str:
        """Folder or hub id of the base model: of one that is yet to be warm-started the given one.
        Raises Skip when there is none yet."""
        given = self.params.policy.model
        if given and not self.params.policy.is_warm_started:
            return given
        if kept := self._find_policy(self.params):
            return str(kept / "model")
        pointer = shelves.path(reports.PolicyReport)
        if given:
            made = shelves.read(reports.PolicyReport) if pointer.exists() else None
            return made.model if made is not None and made.base == given else given
        if not pointer.exists():
            raise Skip(
                f"no model yet: {pointer} is missing and policy.model is null",
                f"Build it: {commands.stage('policy')}; or set policy.model.",
            )
        report = shelves.read(reports.PolicyReport)
        if report.kind != "embedded":
            raise Skip(
                f"{pointer.parent} points to {report.model}, but policy.model is null now",
                f"Bring it up to date: {commands.stage('policy')}",
            )
        return report.model

    def model_config(self) -> Any:
        """The model's configuration, without weights. Raises UserError."""
        from transformers import AutoConfig

        try:
            return AutoConfig.from_pretrained(self.model_source)
        except (OSError, ValueError) as error:
            why = str(error).splitlines()[0]
            raise UserError(
                f"policy.model = {self.model_source!r} cannot be loaded: {why} Name a folder, or a hub id that this "
                "machine reaches."
            ) from None

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools that the policy may call: what an open client said, else the recipe's own."""
        return signatures.schemas(self.recipe) if self.offered is None else self.offered

    def chat(self) -> Any:
        """Tokenizer, template and tools, without weights. Raises UserError."""
        from rft.models import weights

        return Chat(weights.tokenizer(self.model_source), self.schemas, self.params.policy.tool_format)

    def network(self, device: Any) -> tuple[Any, Any]:
        """The model and chat that `train` would start from, in memory."""
        from rft.models import weights
        from rft.sampling import policies

        pointer = shelves.path(reports.PolicyReport)
        if pointer.exists() and shelves.read(reports.PolicyReport).model == self.model_source:
            return policies.base_model(self.params, self.params.train.from_, device, self.schemas)
        return weights.load(self.model_source, self.params.policy, device)[0], self.chat()


def _json_or_none(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # the recipe's check says what is wrong with it
