"""What MLflow and the champion's file show, to be compared with the ledger.

They are projections: nothing that is audited rests on them, but people and servers look there. A
clone without MLflow's database is not given one, and a server that does not answer is asked once.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rft import reports
from rft.errors import RftError
from rft.reports import Champion
from tasks.audit.graph import altered, fits, missing, unverifiable
from tasks.display import tracking
from tasks.ledger.authorise import in_words
from tasks.ledger.state import BEGINNING, State
from tasks.promotion import projections
from tasks.promotion.champion_file import ChampionFile, Written
from tasks.promotion.content import prompt_sha256
from tasks.promotion.mlflow_registry import CHAMPION, PREVIOUS, prompt_name
from tasks.runs import champion
from tasks.runs.clone import Clone

if TYPE_CHECKING:
    from tasks.audit.context import Context

_NUMBER, _LEDGER, _ACT = "rft.champion", "rft.ledger", "rft.act"


@dataclass
class Shown:
    clone: Clone
    _why: str = ""
    """Why MLflow is not reachable, once it was found out."""
    _versions: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    _models: dict[str, Any] = field(default_factory=dict[str, Any])

    @cached_property
    def _client(self) -> Any:
        address = tracking.address(self.clone)
        if address.startswith("sqlite:") and not (self.clone.root / "mlruns/mlflow.db").exists():
            self._why = "MLflow is not reachable: this clone has no mlruns/mlflow.db"
            return None
        try:
            return tracking.client(self.clone)
        except RftError as error:
            self._why = f"MLflow is not reachable: {error}"
            return None

    def _asked(self, ask: Any) -> Any:
        """Ask MLflow. None where it has no such thing. Raises Broken where it cannot be reached."""
        if self._why or self._client is None:
            raise unverifiable(self._why)
        from mlflow.exceptions import MlflowException

        try:
            return ask(self._client)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            self._why = f"MLflow is not reachable: {' '.join(str(error).split())[:200]}"
        except Exception as error:  # of its database driver, or of its HTTP client
            self._why = f"MLflow is not reachable: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise unverifiable(self._why)

    def model(self, name: str) -> Any:
        if name not in self._models:
            self._models[name] = self._asked(lambda client: client.get_registered_model(name))
        return self._models[name]

    def version(self, model: str, number: int, state: State) -> Any:
        """The registered version that stands for a promotion."""
        if model not in self._versions:
            found = self._asked(lambda client: [*client.search_model_versions(f"name = '{model}'")])
            self._versions[model] = found or []
        return next(
            (
                each
                for each in self._versions[model]
                if each.tags.get(_NUMBER) == str(number) and each.tags.get(_LEDGER) in state.geneses
            ),
            None,
        )

    def number(self, model: str, version: str) -> int | None:
        """The promotion that a version says it stands for."""
        found = next((each for each in self._versions[model] if str(each.version) == version), None)
        told = found.tags.get(_NUMBER, "") if found is not None else ""
        return int(told) if told.isdigit() else None

    def stray(self, model: str, entry: str) -> Any:
        """A registered version that names the entry of a promotion, whatever else it says."""
        return next((each for each in self._versions.get(model, ()) if each.tags.get("entry") == entry), None)

    def prompt(self, model: str, version: str) -> str | None:
        """The text of a registered prompt."""
        found = self._asked(lambda client: client.get_prompt_version(prompt_name(model), version))
        return None if found is None else str(found.template)

    def prompt_alias(self, model: str, alias: str) -> str | None:
        found = self._asked(lambda client: client.get_prompt_version_by_alias(prompt_name(model), alias))
        return None if found is None else str(found.version)

    def run(self, run_id: str) -> Any:
        return self._asked(lambda client: client.get_run(run_id))

    def file(self, model: str) -> Written | None:
        """Raises Broken for a file that is none of ours."""
        path = ChampionFile(self.clone).path(model)
        try:
            return reports.parse(Written, path.read_bytes(), str(path))
        except FileNotFoundError:
            return None
        except (ValidationError, OSError) as error:
            where = path.relative_to(self.clone.root)
            raise altered(f"{where} is not as agent-rft writes it: {_first(error)}") from None


def link(ctx: Context, model: str, number: int, version: str) -> None:
    """Link what shows a version to it: aliases of what is served, and its registered version."""
    served, previous = ctx.state.champion(model), ctx.state.previous(model)
    if model in ctx.state.moves and number in (served, previous):
        alias = CHAMPION if number == served else PREVIOUS
        shown = ctx.graph.add("alias", f"mlflow/{model}@{alias}", f"MLflow registry, {model}@{alias}")
        ctx.graph.link(shown, "shows", version, lambda: _alias(ctx, model, alias, number))
    if model in ctx.state.moves and number == served:
        shown = ctx.graph.add("alias", f"file/{model}", f"champion file, {model}.json")
        ctx.graph.link(shown, "shows", version, lambda: _file(ctx, model, number))
    if number != BEGINNING and ctx.state.promotions[number].unsigned is None:
        shown = ctx.graph.add("alias", f"mlflow/{model}/{number}", f"MLflow registry, version of {in_words(number)}")
        ctx.graph.link(shown, "describes", version, lambda: _version(ctx, model, number))


def _alias(ctx: Context, model: str, alias: str, number: int) -> str:
    found = ctx.shown.model(model)
    if found is None:
        raise unverifiable(f"this MLflow has no registered model {model}: it was never promoted from here")
    if alias not in found.aliases:
        raise missing(f"MLflow shows no @{alias} of {model}, and the ledger has {in_words(number)}")
    stands = ctx.shown.version(model, number, ctx.state)
    at = str(found.aliases[alias])
    if stands is None or str(stands.version) != at:
        _refuse_behind(ctx, model, found.tags.get(_ACT), alias, ctx.shown.number(model, at), f"@{alias}")
        other = ctx.shown.number(model, at)
        shows = "none of ours" if other is None else in_words(other)
        raise altered(
            f"@{alias} is on version {at}, which is {shows}; the ledger has {in_words(number)}: somebody moved it"
        )
    if named := stands.tags.get("prompt_version"):
        prompt = ctx.shown.prompt_alias(model, alias)
        if prompt != named:
            raise altered(
                f"@{alias} of prompt {prompt_name(model)} is on version {prompt or 'none'}, and on {named} by the "
                f"model's version {at}: somebody moved it"
            )
    return f"@{alias} is on version {at}, which the ledger's {in_words(number)} is"


def _file(ctx: Context, model: str, number: int) -> str:
    found = ctx.shown.file(model)
    path = f".rft/champion/{model}.json"
    if found is None:
        raise unverifiable(f"this clone has no {path}: nobody reconciled here, so nothing is served from it")
    _refuse_behind(ctx, model, str(found.act), CHAMPION, found.champion.version, path)
    fits(found.champion.version, number, f"the number in {path}")
    if number != BEGINNING:
        made = ctx.state.promotions[number]
        fits(found.revision, made.revision, f"the revision in {path}")
        if (asked := ctx.state.requested(number)) is not None:
            fits(found.champion.weights_sha256, asked.content.weights_sha256, f"the weights in {path}")
            assert found.champion.prompt is not None
            prompt = prompt_sha256(found.champion.prompt, found.champion.serve)
            fits(prompt, asked.content.prompt_sha256, f"the prompt in {path}")
    if found.ledger not in ctx.state.geneses:
        raise altered(f"{path} belongs to ledger {found.ledger[:16]}, and this one is {ctx.state.genesis[:16]}")
    wanted = next(each for each in projections.targets(ctx.state) if each.model == model)
    fits(found.act, wanted.act, f"the act that {path} follows")
    fits(found.previous, wanted.previous, f"the champion before, in {path}")
    with suppress(RftError):  # a link of its own says what is wrong with the run's bytes
        made = ctx.state.promotions.get(number)
        served = champion.of(ctx.at(made.revision), made.run, number) if made else champion.BEGINNING
        for name in Champion.model_fields:
            fits(getattr(found.champion, name), getattr(served.champion, name), f"champion.{name} in {path}")
    return "all that it says of the champion is what the ledger and the run's revision say"


def _refuse_behind(ctx: Context, model: str, act: str | None, alias: str, shown: int | None, what: str) -> None:
    """What follows an earlier act, and shows what that led to, was not moved: it is behind, as
    where another clone promoted. Raises Broken for it."""
    moves = ctx.state.moves[model]
    followed = next((move for move in moves[:-1] if str(move.number) == act), None)
    if followed is None:
        return
    then = projections.target_of(ctx.state, followed)
    if shown == (then.champion if alias == CHAMPION else then.previous):
        raise unverifiable(
            f"{what} is behind: it follows entry {act}, and the ledger has gone on to entry {moves[-1].number}. The "
            "next start of a run or an approval here brings it in line"
        )


def _version(ctx: Context, model: str, number: int) -> str:
    found = ctx.shown.version(model, number, ctx.state)
    made, asked = ctx.state.promotions[number], ctx.state.requested(number)
    if found is None and (stray := ctx.shown.stray(model, made.id)) is not None:
        raise altered(
            f"version {stray.version} names entry {number}, but its tags {_NUMBER} and {_LEDGER} say "
            f"{stray.tags.get(_NUMBER)!r} of ledger {str(stray.tags.get(_LEDGER))[:16]!r}: somebody changed them"
        )
    if found is None:
        raise unverifiable(f"this MLflow has no version of {in_words(number)}: it was never served from here")
    at = ctx.at(made.revision)
    expected = {
        "entry": made.id,
        "revision": made.revision,
        "run": made.run,
        "approved_by": made.who,
        "reason": made.why[:4000],
        "dvc.lock_sha256": at.lock_sha256 or "",
    }
    if asked is not None and asked.content.weights_sha256 is not None:
        expected["weights_sha256"] = asked.content.weights_sha256
    prompt = None
    with suppress(RftError):  # a link of its own says what is wrong with the run's bytes
        served = champion.of(at, made.run, number)
        prompt = served.champion.prompt
        expected |= {"prompt_sha256": prompt.digest() if prompt else "", "weights": served.champion.weights}
        expected |= {"prompt": prompt.name} if prompt else {}
        if served.weights is not None:
            expected |= {"dvc.path": served.weights.path, "dvc.md5": served.weights.md5}
    wrong = [name for name, value in expected.items() if found.tags.get(name) != value]
    if wrong:
        name = wrong[0]
        raise altered(
            f"tag {name} of version {found.version} is {found.tags.get(name, 'missing')!r}, and the ledger and the "
            f"run's revision say {expected[name]!r}: somebody changed it"
        )
    registered = found.tags.get("prompt_version")
    if prompt is not None and registered and ctx.shown.prompt(model, registered) != prompt.system:
        raise altered(f"its tag prompt_version is {registered}, and that prompt has another text")
    return f"{', '.join(expected)} of version {found.version} are those of the ledger"


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(getattr(error, "strerror", error))
