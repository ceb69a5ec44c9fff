"""Link what MLflow and the champion's file show to versions, and check it against the ledger."""

from __future__ import annotations

from contextlib import suppress

from rft.errors import RftError
from rft.reports import Champion
from tasks.audit.context import Context
from tasks.audit.graph import altered, fits, missing, unverifiable
from tasks.audit.shown import ACT, LEDGER, NUMBER
from tasks.ledger.authorise import describe
from tasks.ledger.facts import BEGINNING
from tasks.promotion import targets
from tasks.promotion.content import prompt_sha256
from tasks.promotion.mlflow_registry import CHAMPION, PREVIOUS, prompt_name
from tasks.runs import champion


def link(ctx: Context, model: str, number: int, version: str) -> None:
    """Link a version to what shows it: aliases of what is served, and its registered version."""
    served, previous = ctx.state.champion(model), ctx.state.previous(model)
    if model in ctx.state.moves and number in (served, previous):
        alias = CHAMPION if number == served else PREVIOUS
        shown = ctx.graph.add("alias", f"mlflow/{model}@{alias}", f"MLflow registry, {model}@{alias}")
        ctx.graph.link(shown, "shows", version, lambda: _alias(ctx, model, alias, number))
    if model in ctx.state.moves and number == served:
        shown = ctx.graph.add("alias", f"file/{model}", f"champion file, {model}.json")
        ctx.graph.link(shown, "shows", version, lambda: _file(ctx, model, number))
    if number != BEGINNING:
        shown = ctx.graph.add("alias", f"mlflow/{model}/{number}", f"MLflow registry, version of {describe(number)}")
        ctx.graph.link(shown, "describes", version, lambda: _version(ctx, model, number))


def _alias(ctx: Context, model: str, alias: str, number: int) -> str:
    found = ctx.shown.model(model)
    if found is None:
        raise unverifiable(f"this MLflow has no registered model {model}: it was never promoted from here")
    if alias not in found.aliases:
        raise missing(f"MLflow shows no @{alias} of {model}, and the ledger has {describe(number)}")
    stands = ctx.shown.version(model, number, ctx.state)
    at = str(found.aliases[alias])
    if stands is None or str(stands.version) != at:
        _refuse_behind(ctx, model, found.tags.get(ACT), alias, ctx.shown.number(model, at), f"@{alias}")
        other = ctx.shown.number(model, at)
        shows = "none of ours" if other is None else describe(other)
        raise altered(
            f"@{alias} is on version {at}, which is {shows}, and the ledger has {describe(number)}: somebody moved it"
        )
    if named := stands.tags.get("prompt_version"):
        prompt = ctx.shown.prompt_alias(model, alias)
        if prompt != named:
            raise altered(
                f"@{alias} of prompt {prompt_name(model)} is on version {prompt or 'none'}, and on {named} "
                f"according to the model's version {at}: somebody moved it"
            )
    return f"@{alias} is on version {at}, which is the ledger's {describe(number)}"


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
    wanted = next(each for each in targets.targets(ctx.state) if each.model == model)
    fits(found.act, wanted.act, f"the act that {path} follows")
    fits(found.previous, wanted.previous, f"the champion before, in {path}")
    with suppress(RftError):  # a link of its own says what is wrong with the run's bytes
        made = ctx.state.promotions.get(number)
        served = champion.from_revision(ctx.at(made.revision), made.run, number) if made else champion.BEGINNING
        for name in Champion.model_fields:
            fits(getattr(found.champion, name), getattr(served.champion, name), f"champion.{name} in {path}")
    return "all that it says of the champion is what the ledger and the run's revision say"


def _refuse_behind(ctx: Context, model: str, act: str | None, alias: str, shown: int | None, what: str) -> None:
    """Raise Broken for what is only behind: it follows an earlier act, and shows what that act led
    to. Nobody moved it. That happens when another clone promoted since."""
    moves = ctx.state.moves[model]
    followed = next((move for move in moves[:-1] if str(move.number) == act), None)
    if followed is None:
        return
    then = targets.target_of(ctx.state, followed)
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
            f"version {stray.version} names entry {number}, but its tags {NUMBER} and {LEDGER} say "
            f"{stray.tags.get(NUMBER)!r} of ledger {str(stray.tags.get(LEDGER))[:16]!r}: somebody changed them"
        )
    if found is None:
        raise unverifiable(f"this MLflow has no version of {describe(number)}: it was never served from here")
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
        served = champion.from_revision(at, made.run, number)
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
