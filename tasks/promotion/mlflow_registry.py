"""The champion in MLflow's registry: @champion and @previous of a registered model and its prompt.

A version of the registered model stands for one promotion. It holds no weights, only their place:
the run, the revision, DVC's hash, and the number of the promotion's entry. Its description says so
in words, with the command that audits it. It is linked to the MLflow run, if this store has that
run. Tags of the model say which act its aliases follow. `rft.following` is written before the
aliases move, and `rft.act` after. So a process that died in between does not look like a change by
hand.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rft import secrets
from rft.errors import RftError, UserError
from rft.reports import Decision, PromptReport
from tasks.display import markdown, tracking
from tasks.ledger.facts import BEGINNING
from tasks.ledger.state import State
from tasks.promotion import champions
from tasks.promotion.targets import Shown, Target
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone

CHAMPION, PREVIOUS = "champion", "previous"
_LEDGER, _ACT, _FOLLOWING, _NUMBER = "rft.ledger", "rft.act", "rft.following", "rft.champion"


@dataclass
class MLflowRegistry:
    clone: Clone
    name: str = "MLflow registry"
    _opened: Any = field(default=None, repr=False)

    @property
    def client(self) -> Any:
        self._opened = self._opened or tracking.client(self.clone)
        return self._opened

    def shown(self, model: str) -> Shown | None:
        found = self._model(model)
        if found is None:
            return None
        tags, aliases = found.tags, found.aliases
        numbers = {alias: self._number(model, version) for alias, version in aliases.items()}
        if CHAMPION not in aliases and _ACT not in tags and _FOLLOWING not in tags:
            return None  # others registered it, or a process was cut off before it showed anything
        description = (
            f"@champion on version {aliases.get(CHAMPION, 'none')}, @previous on {aliases.get(PREVIOUS, 'none')}"
        )
        return Shown(
            tags.get(_LEDGER),
            int(tags[_ACT]) if _ACT in tags else None,
            numbers.get(CHAMPION),
            numbers.get(PREVIOUS),
            begun=int(tags[_FOLLOWING]) if _FOLLOWING in tags else None,
            description=description,
        )

    def show(self, target: Target, state: State) -> None:
        name, client = target.model, self.client
        if self._model(name) is None:
            client.create_registered_model(name)
        client.set_registered_model_tag(name, _LEDGER, target.ledger)
        client.set_registered_model_tag(name, _FOLLOWING, str(target.act))
        for alias, number in ((PREVIOUS, target.previous), (CHAMPION, target.champion)):
            self._point(name, alias, None if number is None else self._version_of(name, state, number))
        client.set_registered_model_tag(name, _ACT, str(target.act))
        client.delete_registered_model_tag(name, _FOLLOWING)

    def _point(self, model: str, alias: str, version: Any) -> None:
        """Set an alias of the model, and of its prompt; None removes both."""
        client, prompt = self.client, prompt_name(model)
        if version is None:
            if alias in self._model(model).aliases:
                client.delete_registered_model_alias(model, alias)
            if client.get_prompt(prompt) is not None:
                client.delete_prompt_alias(prompt, alias)
            return
        if number := version.tags.get("prompt_version"):
            client.set_prompt_alias(prompt, alias, int(number))
        client.set_registered_model_alias(model, alias, version.version)

    def _number(self, model: str, version: Any) -> int | None:
        tags = self.client.get_model_version(model, version).tags
        return int(tags[_NUMBER]) if tags.get(_NUMBER, "").isdigit() else None

    def _model(self, name: str) -> Any:
        from mlflow.exceptions import MlflowException

        try:
            return self.client.get_registered_model(name)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise

    # -- one version per promotion -----------------------------------------------------------------
    def _version_of(self, model: str, state: State, number: int) -> Any:
        """Return the version that stands for a promotion. Registers it if it is missing."""
        for known in self.client.search_model_versions(f"name = '{model}'"):
            if known.tags.get(_NUMBER) == str(number) and known.tags.get(_LEDGER) in state.geneses:
                return known
        run_id = self._run_id(model, state, number)
        tags = {_LEDGER: state.genesis, _NUMBER: str(number), **self._tags(model, state, number)}
        tags |= _links(model, state, number, run_id)
        made = _external_model(self.clone, model, _name(model, number), tags, run_id)
        return self.client.create_model_version(
            model,
            source=f"models:/{made.model_id}",
            run_id=run_id,
            model_id=made.model_id,
            tags=tags,
            description=self._describe(model, state, number, tags),
        )

    def _run_id(self, model: str, state: State, number: int) -> str | None:
        made = state.promotions.get(number)
        return tracking.run_of(self.client, model, made.run) if made else None

    def _describe(self, model: str, state: State, number: int, tags: Mapping[str, str]) -> str:
        if number == BEGINNING:
            return markdown.of_beginning(model)
        made = state.promotions[number]
        decision = None
        with contextlib.suppress(RftError):  # a version is shown even if this clone lacks its bytes
            decision = Revision(self.clone, made.revision).report(Decision)
        digest = f", SHA-256 `{tags['weights_sha256']}`" if tags.get("weights_sha256") else ""
        weights = f"weights `{tags['dvc.path']}`{digest}" if "dvc.path" in tags else "no weights of its own"
        served = f"{weights}; prompt `{tags.get('prompt', '')}`, SHA-256 `{tags.get('prompt_sha256', '')}`"
        return secrets.redact(markdown.of_promotion(made, decision, served))

    def _tags(self, model: str, state: State, number: int) -> dict[str, str]:
        """Return tags: who approved it, where the bytes are, and its prompt in the prompt
        registry."""
        if number == BEGINNING:
            return {"run": "", **self._prompt(model, number, *_seed(self.clone, state, model))}
        promotion, served = state.promotions[number], champions.at(self.clone, state, number)
        made, at = served.champion, Revision(self.clone, promotion.revision)
        assert made.prompt is not None
        tags = {
            "run": promotion.run,
            "revision": promotion.revision,
            "entry": promotion.id,
            "approved_by": promotion.who,
            "reason": promotion.why[:4000],
            "prompt_sha256": made.prompt.digest(),
            "weights": made.weights,
            "dvc.lock_sha256": at.lock_sha256 or "",
        }
        if not made.serve.is_single:
            tags["serve"] = made.serve.description
        if served.weights is not None:
            tags |= {
                "weights_sha256": made.weights_sha256 or "",
                "dvc.path": served.weights.path,
                "dvc.md5": served.weights.md5,
            }
        return tags | self._prompt(model, number, made.prompt, promotion.run)

    def _prompt(self, model: str, number: int, prompt: Any, run: str) -> dict[str, str]:
        """Register the text of a prompt. Returns tags for the model's version. MLflow does not take
        an empty text, so an empty prompt has no alias."""
        if prompt is None or not prompt.system:
            return {"prompt": prompt.name} if prompt is not None else {}
        name = prompt_name(model)
        for version in self.client.search_prompt_versions(name) if self.client.get_prompt(name) else ():
            if version.tags.get(_NUMBER) == str(number) and version.template == prompt.system:
                return {"prompt": prompt.name, "prompt_version": str(version.version)}
        registered = self.client.register_prompt(
            name,
            prompt.system,
            commit_message=f"run {run}",
            tags={"run": run, _NUMBER: str(number), "settings": prompt.model_dump_json()[:4000]},
        )
        return {"prompt": prompt.name, "prompt_version": str(registered.version)}


def _name(model: str, number: int) -> str:
    return f"{model}-{number}" if number else f"{model}-the-beginning"


def _links(model: str, state: State, number: int, run_id: str | None) -> dict[str, str]:
    """Return links from a version: its audit, and its run's page in MLflow."""
    links = {"audit": markdown.audit(model, number)}
    if run_id is not None:
        links["report"] = f"runs:/{run_id}/{state.promotions[number].run}.html"
    return links


def prompt_name(model: str) -> str:
    """Name the prompt of a model. Raises UserError for a name that MLflow refuses, because MLflow's
    own error does not show the name."""
    name = f"{model}-prompt"
    if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
        raise UserError(
            f"MLflow takes letters, digits, '.', '_' and '-' in the name of a prompt, and {name!r} has others. It "
            "shows no champion of this model until the recipe's folder is renamed"
        )
    return name


def _seed(clone: Clone, state: State, model: str) -> tuple[Any, str]:
    """Return the seed prompt, from the first run that replaced the beginning."""
    for promotion in state.promotions.values():
        if promotion.model == model and promotion.before == BEGINNING:
            report = Revision(clone, promotion.revision).report(PromptReport)
            if report is not None:
                seed = report.candidates[0].settings if report.candidates else report.winner
                return seed, promotion.run
    return None, ""


def _external_model(clone: Clone, model: str, name: str, tags: dict[str, str], run_id: str | None) -> Any:
    import mlflow

    mlflow.set_tracking_uri(tracking.address(clone))
    mlflow.set_registry_uri(tracking.address(clone))
    experiment = tracking.experiment(tracking.client(clone), clone, model)
    return mlflow.create_external_model(
        name=name, source_run_id=run_id, tags=tags, experiment_id=experiment, model_type="agent"
    )
