"""What the checks look at: the settings, the recipe, its examples and the policy's model.

Each is read once, and only when a check needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from rft import commands, config, recipe, reports, stage_files
from rft.chat.renderer import Chat
from rft.doctor.finding import Skip
from rft.models import source
from rft.models.source import Source
from rft.recipe import Recipe, Split
from rft.stages import examples
from rft.tools import signatures
from rft.types import SPLITS, Example
from rft.wire.trace import Traces


class Setup:
    """What the checks share. `load` reads params.yaml. `announce` is told what will be sent to
    tools and grader. `examine` explains `find_policy`."""

    def __init__(
        self,
        load: Callable[[], config.Params],
        announce: Callable[[str], None] = lambda message: None,
        find_policy: Callable[[config.Params], Path | None] = lambda params: None,
    ):
        self._load = load
        self._find_policy = find_policy
        self.announce = announce
        self.traces = Traces()
        """Trace ids, new for each visit, because a server may still hold what an earlier visit left
        there."""
        self.offered: list[dict[str, Any]] | None = None

    @cached_property
    def params(self) -> config.Params:
        return self._load()

    @cached_property
    def recipe(self) -> Recipe:
        return recipe.load(self.params.recipe, self.params.examples.keys)

    @cached_property
    def rows(self) -> dict[Split, list[Example]]:
        """The examples that stage `examples` would take, by split."""
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
        """List the environment variables that params.yaml and grader.json name with `env:`."""
        return config.named(self.params, Path(self.params.recipe.path))

    # -- the model ---------------------------------------------------------------------------------
    @property
    def is_behind_chat(self) -> bool:
        """Whether a chat-completions server holds the policy's model, so that nothing of it is
        here."""
        server = self.params.policy.server
        return server is not None and server.kind == "chat"

    @cached_property
    def model_source(self) -> Source:
        """Where the base model is. Before its warm start it is the given model. For a hub's model
        only the text files are fetched. Raises Skip if there is no model yet."""
        section = self.params.policy
        if section.model and not section.is_warm_started:
            return self._given(weights=False)
        if kept := self._find_policy(self.params):
            return Source(kept / "model")
        pointer = stage_files.path(reports.PolicyReport)
        if section.model:
            made = stage_files.read(reports.PolicyReport) if pointer.exists() else None
            was_made = made is not None and made.base == section.model
            return Source(Path(made.model), name=made.model) if made and was_made else self._given(weights=False)
        if not pointer.exists():
            raise Skip(
                f"no model yet: {pointer} is missing and policy.model is null",
                f"Build it: {commands.stage('policy')}; or set policy.model.",
            )
        report = stage_files.read(reports.PolicyReport)
        if report.kind != "embedded":
            raise Skip(
                f"{pointer.parent} points to {report.model}, but policy.model is null now",
                f"Bring it up to date: {commands.stage('policy')}",
            )
        return Source(Path(report.model), name=report.model)

    def _given(self, weights: bool) -> Source:
        section = self.params.policy
        assert section.model is not None
        kind, folder, _ = source.place(section, Path(), weights=weights)
        gguf = Path(section.model).name if kind == "gguf" else None
        template = source.read_template(section, Path())
        return Source(folder, gguf, section.model, template, section.template_arguments)

    def model_config(self) -> Any:
        """The model's configuration, without weights. Raises UserError."""
        from rft.models import weights

        return weights.model_config(self.model_source)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools that the policy may call: those that an open client listed, or else the
        recipe's own."""
        return signatures.schemas(self.recipe) if self.offered is None else self.offered

    def chat(self) -> Any:
        """Return tokenizer, template and tools, without weights. Raises UserError."""
        from rft.models import weights

        return Chat(weights.tokenizer(self.model_source), self.schemas, self.params.policy.tool_format)

    def network(self, device: Any) -> tuple[Any, Any]:
        """Load the model and chat from which `train` would start."""
        from rft.models import weights
        from rft.sampling import policies

        pointer = stage_files.path(reports.PolicyReport)
        if self.params.policy.is_warm_started and pointer.exists():
            return policies.base_model(self.params, self.params.train.from_, device, self.schemas)
        is_given = self.params.policy.model and not pointer.exists()
        found = self._given(weights=True) if is_given else self.model_source
        return weights.load(found, self.params.policy, device)[0], self.chat()
