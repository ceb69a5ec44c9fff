"""Who is champion: MLflow's alias `@champion`, moved by one function, under a lock, only on
verified hashes.

A version of the registered model holds no weights, only where they are (run, revision, DVC hash).
`@previous` is what a rollback returns to. The first promotion also registers the beginning (the
base policy with the seed prompt), so that a rollback can return to it.

Promotion is a compare-and-set: under the lock the champion is read again, and must be the one that
the run was judged against. MLflow has no compare-and-set and the lock covers this clone only, so
two clones on one MLflow server should not promote at once. Each step can be repeated: versions are
found by their run before they are made, aliases are set, the ledger takes an id once. `repair`
finishes what was cut off.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rft import commands, config
from rft.errors import UserError, did_you_mean
from rft.reports import Decision, PromotionRequest, TrainReport
from tasks.display import tracking
from tasks.promotion import ledger
from tasks.promotion.ledger import Act
from tasks.runs import champion, records
from tasks.runs.artifacts import WEIGHTS, Revision
from tasks.runs.champion import BEGINNING, Served
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord

CHAMPION, PREVIOUS = "champion", "previous"
_BEGINNING = "the beginning"


def model_name(params: config.Params) -> str:
    return Path(params.recipe.path).name


def lock(clone: Clone) -> Path:
    """Held while the champion is read or moved."""
    return clone.state / "registry.lock"


def revisions(clone: Clone) -> set[str]:
    """The revisions of every registered version of every model: a rollback may return to each."""
    if _is_empty(clone):
        return set()
    client, found, token = tracking.client(clone), set[str](), None
    while token != "":
        page = client.search_model_versions(page_token=token)
        found |= {version.tags.get("revision", "") for version in page}
        token = page.token or ""
    return found - {""}


def served(clone: Clone, params: config.Params) -> Served:
    """What is served now, after finishing a promotion that was cut off."""
    if _is_empty(clone):
        return BEGINNING
    with _lock(clone):
        repair(clone)
        return Registry(clone, model_name(params)).served()


def models(clone: Clone) -> list[str]:
    """The names of all models of which a version was promoted."""
    if _is_empty(clone):
        return []
    with _lock(clone):
        repair(clone)
        return sorted(model.name for model in tracking.client(clone).search_registered_models(max_results=1000))


def find(clone: Clone, model: str, which: str) -> Version | None:
    """Find a version by number, by alias, or by the run that made it. None when there is none."""
    if _is_empty(clone):
        return None
    with _lock(clone):
        repair(clone)
        versions = Registry(clone, model).versions()
        return next((one for one in versions if which in (str(one.number), one.run, *one.aliases)), None)


def first_promoted(clone: Clone, model: str) -> Version | None:
    """The first version that replaced the beginning. Takes no lock, repairs nothing."""
    if _is_empty(clone):
        return None
    every = Registry(clone, model).versions()
    first = {str(one.number) for one in every if one.is_beginning}  # not 1, where other hands had registered a version
    replaced = (one for one in every if one.run.strip() and one.tags.get("replaced") in first)
    return min(replaced, key=lambda one: one.number, default=None)


def _is_empty(clone: Clone) -> bool:
    """Whether nothing was ever registered; does not load MLflow."""
    store = tracking.address(clone)
    return store.startswith("sqlite:///") and not Path(store.removeprefix("sqlite:///")).exists()


def approve(clone: Clone, record: RunRecord, who: str, why: str, override_dirty: bool = False) -> Act:
    """Promote a run. For the champion itself, return its act unchanged.

    Raises UserError when the gate did not decide `promote`, a person rejected the run, its code is
    in no branch, or another champion is served by now.
    """
    with _lock(clone):
        repair(clone)
        revision = _revision(record)
        at = Revision(clone, revision)
        decision, request = verified(at, record)
        registry = Registry(clone, at.model)
        last = ledger.decided(clone, record.name)
        if last is not None and last.action == "promote" and registry.served().champion.run == record.name:
            return last
        _assert_may_promote(registry, record, last, override_dirty)
        act = Act(
            id=_id("promote", record.name, who),
            action="promote",
            when=records.now(),
            who=who,
            why=why,
            model=registry.name,
            run=record.name,
            revision=revision,
            decision_sha256=request.decision_sha256,
            before=registry.version_at(CHAMPION),
            overrides=["dirty"] if record.dirty else [],
            own_run=who.casefold() == record.started_by.casefold(),
        )
        assert decision.decision == "promote"
        return _carry_out(clone, act)


def reject(clone: Clone, record: RunRecord, who: str, why: str) -> Act:
    """Record a person's no to what the gate would promote. Raises UserError when there is none."""
    with _lock(clone):
        repair(clone)
        at = Revision(clone, _revision(record))
        _, request = verified(at, record)
        if (last := ledger.decided(clone, record.name)) is not None:
            what = f"run {record.name} was decided already: {last.action} by {last.who} on {last.when}"
            raise UserError(f"{what}. To undo a promotion: {undo(at.model)}")
        act = Act(
            id=_id("reject", record.name, who),
            action="reject",
            when=records.now(),
            who=who,
            why=why,
            model=at.model,
            run=record.name,
            revision=at.commit,
            decision_sha256=request.decision_sha256,
        )
        ledger.append(clone, act)
        return act


def undo(model: str) -> str:
    """The command that takes a promotion of this model back."""
    return commands.command("rollback", "--model", model, *commands.WHO_AND_WHY)


def only_model(clone: Clone) -> str:
    """The only model promoted here. Raises UserError when there are several, or none."""
    with _lock(clone):
        repair(clone)
        promoted = sorted({act.model for act in ledger.acts(clone) if act.action == "promote"})
    if len(promoted) == 1:
        return promoted[0]
    if not promoted:
        remedy = "If another clone promoted it, name the model: --model NAME"
        raise UserError(f"nothing was promoted in this clone, so there is nothing to return to. {remedy}")
    names = ", ".join(promoted)
    raise UserError(f"several models were promoted here: {names}. Name the one to roll back: {undo('MODEL')}")


def rollback(clone: Clone, model: str, who: str, why: str) -> Act:
    """Return to @previous. Raises UserError when there is none, or no such model."""
    with _lock(clone):
        repair(clone)
        registry = Registry(clone, model)
        if not registry.is_registered:
            what = f"of model {model!r} nothing was ever promoted: there is nothing to return to"
            raise UserError(f"{what}. {did_you_mean(model, registry.known())}")
        to = registry.version_at(PREVIOUS)
        if to is None:
            why = "nothing was promoted yet, or every promotion was rolled back"
            raise UserError(f"model {registry.name} has no @{PREVIOUS} version to return to: {why}.")
        tags = registry.tags(to)
        act = Act(
            id=_id("rollback", to, who),
            action="rollback",
            when=records.now(),
            who=who,
            why=why,
            model=registry.name,
            run=tags.get("run") or None,
            revision=tags.get("revision") or None,
            before=registry.version_at(CHAMPION),
            after=to,
        )
        return _carry_out(clone, act)


def repair(clone: Clone) -> Act | None:
    """Finish an act that was announced and cut off. Call with the lock held."""
    act = ledger.announced(clone)
    return None if act is None else _carry_out(clone, act)


# -- what must be true -----------------------------------------------------------------------------
def verified(at: Revision, record: RunRecord) -> tuple[Decision, PromotionRequest]:
    """Read decision and request from the run's revision, and compare every hash in them with the
    bytes it names."""
    decision = at.report(Decision)
    if decision is None:
        why = f"{record.state}{': ' + record.message if record.message else ''}"
        raise UserError(f"run {record.name} came to no decision ({why}). There is nothing to decide on.")
    if decision.decision != "promote":
        gate = f"the gate itself decided {decision.decision}: {decision.reason}"
        raise UserError(f"run {record.name} cannot be approved or rejected: {gate}")
    request = at.report(PromotionRequest)
    train = at.report(TrainReport)
    if request is None or train is None:
        missing = "the promotion request or the train report"
        raise UserError(f"run {record.name}: its revision {at.commit[:10]} lacks {missing}. Start a new run.")
    compared = {
        "the decision": (decision.digest(), request.decision_sha256),
        "the prompt": (request.prompt.digest(), decision.hashes.get("prompt")),
        "the train report": (train.digest(), decision.hashes.get("train")),
        "the test examples": (request.test_sha256, decision.hashes.get("test")),
    }
    if request.weights_path is not None:
        compared["the trained weights"] = (request.weights_sha256, train.sha256)
        compared["the bytes of the trained weights"] = (at.tree_sha256(request.weights_path), train.sha256)
    elif WEIGHTS in at.outs:
        before = champion.of(at, record.name, 0).champion
        compared["the champion's weights"] = (at.tree_sha256(WEIGHTS), before.weights_sha256)
    for what, (found, named) in compared.items():
        if found != named:
            changed = f"{what} has hash {found}, but {named} was judged: it was changed after the decision"
            raise UserError(f"run {record.name}: {changed}. Start a new run.")
    return decision, request


def _assert_may_promote(registry: Registry, record: RunRecord, last: Act | None, override_dirty: bool) -> None:
    now = registry.served().champion
    if last is not None and last.action == "reject":
        no = f"was rejected by {last.who} on {last.when}: {last.why}"
        raise UserError(f"run {record.name} {no}. Start a new run to change that.")
    # 0 was the beginning in runs that were recorded long ago
    judged_against = max(record.champion_version, BEGINNING.champion.version)
    if now.version != judged_against:
        raise UserError(
            f"run {record.name} was judged against champion {champion.in_words(judged_against)}, but "
            f"{champion.in_words(now.version)} is served now. Its gain over that one is unknown: start a new run."
        )
    if record.dirty and not override_dirty:
        files = ", ".join(record.edited[:5])
        raise UserError(
            f"run {record.name} ran uncommitted code ({files}), which no branch holds. Commit and run again (finished "
            "stages are kept), or take the responsibility: --override-dirty"
        )


@dataclass(frozen=True)
class Version:
    """One version of a registered model."""

    number: int
    run: str
    """Empty for the beginning."""
    aliases: tuple[str, ...]
    tags: dict[str, str]

    @property
    def is_beginning(self) -> bool:
        return not self.run


# -- moving the champion, by steps that can be repeated --------------------------------------------
def _carry_out(clone: Clone, act: Act) -> Act:
    ledger.announce(clone, act)
    registry = Registry(clone, act.model)
    if act.action == "promote":
        assert act.run
        assert act.revision
        before = act.before or registry.version_of("", None, replaced=None)
        after = registry.version_of(act.run, act.revision, replaced=before)
        act = act.model_copy(update={"before": before, "after": after})
        registry.point(PREVIOUS, before)
        registry.point(CHAMPION, act.after)
    else:
        assert act.after
        registry.point(CHAMPION, act.after)
        registry.point(PREVIOUS, registry.tags(act.after).get("replaced") or None)
    ledger.append(clone, act)
    ledger.pending(clone).unlink()
    return act


@dataclass
class Registry:
    """MLflow's registered model of one recipe, and its prompt."""

    clone: Clone
    name: str

    def __post_init__(self) -> None:
        self._client = tracking.client(self.clone)

    @property
    def prompt_name(self) -> str:
        return f"{self.name}-prompt"

    @property
    def is_registered(self) -> bool:
        return self._model() is not None

    def known(self) -> list[str]:
        """The names of all registered models."""
        return [model.name for model in self._client.search_registered_models()]

    def version_at(self, alias: str) -> str | None:
        model = self._model()
        return str(model.aliases[alias]) if model is not None and alias in model.aliases else None

    def tags(self, version: str) -> dict[str, str]:
        return dict(self._client.get_model_version(self.name, version).tags)

    def versions(self) -> list[Version]:
        """Newest first. `run` is a blank for a version that others registered."""
        model = self._model()
        if model is None:
            return []
        found = self._client.search_model_versions(f"name = '{self.name}'")
        aliases = {
            str(number): tuple(alias for alias, of in model.aliases.items() if str(of) == str(number))
            for number in model.aliases.values()
        }
        made = [
            Version(int(one.version), one.tags.get("run", " "), aliases.get(str(one.version), ()), dict(one.tags))
            for one in found
        ]
        return sorted(made, key=lambda one: -one.number)

    def served(self) -> Served:
        version = self.version_at(CHAMPION)
        tags = self.tags(version) if version else {}
        if version is None or not tags.get("run"):
            return BEGINNING
        return champion.of(Revision(self.clone, tags["revision"]), tags["run"], int(version))

    def version_of(self, run: str, revision: str | None, replaced: str | None) -> str:
        """The version made from a run ("" is the beginning); registers it if need be."""
        if self._model() is None:
            self._client.create_registered_model(self.name)
        for known in self._client.search_model_versions(f"name = '{self.name}'"):
            if known.tags.get("run") == run:
                if replaced is not None and known.tags.get("replaced") != replaced:
                    self._client.set_model_version_tag(self.name, known.version, "replaced", replaced)
                return str(known.version)
        tags = {"run": run, "revision": revision or "", "replaced": replaced or ""}
        if revision is not None:
            tags |= self._description(Revision(self.clone, revision), run)
        model = _external_model(self.clone, self.name, run or _BEGINNING, tags)
        made = self._client.create_model_version(
            self.name,
            source=f"models:/{model.model_id}",
            model_id=model.model_id,
            tags=tags,
            description=run or _BEGINNING,
        )
        return str(made.version)

    def point(self, alias: str, version: str | None) -> None:
        """Set the model's alias, and the prompt's of the same name; None removes the model's."""
        if version is None:
            if self.version_at(alias) is not None:
                self._client.delete_registered_model_alias(self.name, alias)
            return
        self._client.set_registered_model_alias(self.name, alias, version)
        if prompt := self.tags(version).get("prompt_version"):
            self._client.set_prompt_alias(self.prompt_name, alias, int(prompt))

    def _model(self) -> Any:
        from mlflow.exceptions import MlflowException

        try:
            return self._client.get_registered_model(self.name)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise

    def _description(self, at: Revision, run: str) -> dict[str, str]:
        """Where the bytes are, and the prompt, which goes to MLflow's prompt registry."""
        made = champion.of(at, run, 0)
        assert made.champion.prompt is not None
        tags = {
            "prompt": made.champion.prompt.name,
            "prompt_sha256": made.champion.prompt.digest(),
            "weights": made.champion.weights,
            "dvc.lock_sha256": at.lock_sha256 or "",
        }
        if made.weights is not None:
            tags |= {
                "weights_sha256": made.champion.weights_sha256 or "",
                "dvc.path": made.weights.path,
                "dvc.md5": made.weights.md5,
            }
        if made.champion.prompt.system:
            registered = self._client.register_prompt(
                self.prompt_name,
                made.champion.prompt.system,
                commit_message=f"run {run}",
                tags={"run": run, "settings": made.champion.prompt.model_dump_json()[:4000]},
            )
            tags["prompt_version"] = str(registered.version)
        return tags


def _external_model(clone: Clone, name: str, run: str, tags: dict[str, str]) -> Any:
    import mlflow

    mlflow.set_tracking_uri(tracking.address(clone))
    mlflow.set_registry_uri(tracking.address(clone))
    experiment = tracking.experiment(tracking.client(clone), clone, name)
    name = run.replace(" ", "-")
    return mlflow.create_external_model(name=name, tags=tags, experiment_id=experiment, model_type="agent")


def _revision(record: RunRecord) -> str:
    if record.revision is None:
        remedy = "Go on with it" if record.state == "paused" else "Wait for it, or start it again"
        raise UserError(f"run {record.name} is not over: it is {record.state}. {remedy}: {record.again}")
    return record.revision


def _id(*parts: str) -> str:
    return hashlib.sha256("\0".join([*parts, records.now()]).encode()).hexdigest()[:16]


def _lock(clone: Clone):
    return records.held(lock(clone), wait=True)


__all__ = [
    "Version",
    "approve",
    "find",
    "model_name",
    "models",
    "reject",
    "repair",
    "rollback",
    "served",
    "verified",
]
