"""From what is served down to the conversations behind it.

    version -> entry, with who signed it -> request -> registration
            -> run -> revision -> stages -> bytes, window, conversations
            -> weights -> the run that trained them, or the version that they were taken from

A version's weights may come from an earlier champion, because only the prompt is new or because
training went on from there. Then that version is audited as well, and so on down to the base model.
A champion with which a run was only compared is named, but not followed.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from rft.errors import RftError, UserError
from rft.reports import Champion
from tasks.audit import aliases, entries, revisions
from tasks.audit.context import Context
from tasks.audit.graph import SHORT, Broken, altered, fits, missing, unverifiable
from tasks.ledger import chain, keys
from tasks.ledger.authorise import describe
from tasks.ledger.entry import Promotion, Registration, Request
from tasks.ledger.facts import BEGINNING, RequestState
from tasks.promotion import agents, registration, signing
from tasks.promotion import content as contents
from tasks.runs import champion
from tasks.runs.artifacts import WEIGHTS, Revision

_JUDGED = ("data/gate/decision.json", "data/gate/request.json", "data/train/report.json", "data/policy", WEIGHTS)
_LOOKED = ("data/challenger/report.json", "data/gate/decision.json", "data/examples/test.jsonl")


def version(ctx: Context, model: str, number: int) -> str:
    """Add a version and all that it rests on. Returns its id."""
    key = f"version:{model}@{number}"
    todo = [number]
    while todo:  # no recursion: a year of weekly champions is a long chain
        todo += _version(ctx, model, todo.pop(0))
    return key


def _version(ctx: Context, model: str, number: int) -> list[int]:
    """Add one version. Returns the versions that its weights come from."""
    state = ctx.state
    key = _name(ctx, model, number)
    if key in ctx.audited:
        return []
    ctx.audited.add(key)
    aliases.link(ctx, model, number, key)
    if number == BEGINNING:
        return []
    made = state.promotions[number]
    entries.link(ctx, key, "was made by", number)
    request = state.requests[made.request]
    run = link_request(ctx, request)
    return _weights(ctx, key, number, request, run)


def _name(ctx: Context, model: str, number: int) -> str:
    state = ctx.state
    if number == BEGINNING:
        about = {"what": "the base model with the recipe's seed prompt, before any promotion"}
        return ctx.graph.add("version", f"{model}@0", f"{model}, {describe(0)}", **about)
    made = state.promotions[number]
    served = "now" if state.champion(model) == number else None
    return ctx.graph.add(
        "version",
        f"{model}@{number}",
        f"{model}, {describe(number)}",
        promoted=made.time,
        approved_by=made.who,
        why=made.why,
        run=made.run,
        served=served,
    )


def link_request(ctx: Context, request: RequestState) -> str:
    """Link a request to its run, and to what it asks for. Returns the run's id."""
    act = request.act
    source = f"entry:{request.number}"
    run = revisions.link(ctx, source, "asks for the promotion of", act.run, act.revision, act)
    at = ctx.at(act.revision)
    revision = f"revision:{act.revision}"
    if revision in ctx.graph.nodes:
        ctx.graph.link(source, "names, by hash, what is in", revision, lambda: _same_content(ctx, request, at))
        looked(ctx, act.registration, act.run, at)
    _judged_against(ctx, run, act, at)
    return run


def _same_content(ctx: Context, request: RequestState, at: Revision) -> str:
    _whole(ctx, at, _JUDGED)
    asked, _ = contents.from_revision(at, request.act.run)
    _whole(ctx, at, (asked.weights_path or "",))
    agents.assert_same(at, request)
    return "decision, prompt, weights, base model and test examples hashed again, as the request names them"


def looked(ctx: Context, number: int, run: str, at: Revision) -> None:
    """Link a registration to the run that took the look."""
    check = partial(_same_look, ctx, number, run, at)
    ctx.graph.link(f"entry:{number}", "was taken as registered by", f"run:{run}", check)
    look, path = ctx.ledger.stored[number - 1].entry.act, None
    with suppress(RftError):  # the link to the revision says what is wrong with its params.yaml
        path = at.recipe
    if path is not None and isinstance(look, Registration):
        sha256 = look.grader_sha256
        key = ctx.graph.add("recipe", f"{at.commit}/{path}", path, sha256=sha256)
        ctx.graph.link(f"entry:{number}", "named the grader in", key, partial(_same_grader, ctx, at, path, sha256))


def _same_grader(ctx: Context, at: Revision, path: str, sha256: str) -> str:
    """Compare the recipe's folder with the hash in the registration, which covers all its files."""
    found = ctx.store.folder_sha256_of(at.commit, at.from_the_top(path))
    told = next(
        (dep for stage in revisions.stages_of(ctx, at).values() for dep in stage.deps if dep.path == path), None
    )
    count = len(ctx.store.folder_of(at.commit, at.from_the_top(path)))
    if found != sha256 and told is not None and (told.num_files or 0) > count:
        raise unverifiable(f"it held {told.num_files} files, and Git has {count}: Git ignored the others")
    fits(found, sha256, path)
    return f"SHA-256 of {count} files recomputed, as it was registered"


def _same_look(ctx: Context, number: int, run: str, at: Revision) -> str:
    _whole(ctx, at, _LOOKED)
    if not {*_LOOKED} <= at.outs.keys():
        raise unverifiable("the run reached no decision, so what it looked at is not known")
    fits(registration.named(at, run).entry, number, "the registration that the run names")
    registration.assert_fits(ctx.state, number, at, run)
    look = ctx.ledger.stored[number - 1].entry.act
    assert isinstance(look, Registration)
    return f"thresholds, settings and test examples are those registered; counted again, it is look {look.look}"


def _whole(ctx: Context, at: Revision, paths: tuple[str, ...]) -> None:
    """Verify outputs before they are read. Raises Broken."""
    for path in paths:
        if path in at.outs:
            ctx.store.verify_out(at, at.outs[path])


# -- the champion before ---------------------------------------------------------------------------
def began_with(ctx: Context, at: Revision) -> Champion:
    """Return the champion that a run began with, from hashed objects. Raises Broken."""
    ctx.store.verify(at.commit)
    return champion.began_with(at)


def _judged_against(ctx: Context, run: str, act: Request, at: Revision) -> None:
    target = _name(ctx, act.model, act.champion) if _is_known(ctx, act.champion) else None
    if target is None:
        target = ctx.graph.add("version", f"{act.model}@{act.champion}", describe(act.champion))
    ctx.graph.link(run, "was judged against", target, lambda: _same_champion(ctx, act, at))


def _is_known(ctx: Context, number: int) -> bool:
    return number == BEGINNING or number in ctx.state.promotions


def _same_champion(ctx: Context, act: Request, at: Revision) -> str:
    if not _is_known(ctx, act.champion):
        raise missing(f"the ledger has no promotion {act.champion}")
    found = began_with(ctx, at)
    fits(champion.number(found.version), act.champion, "the champion in champion.json")
    if act.champion == BEGINNING:
        return "champion.json of the revision names the beginning"
    asked = ctx.state.requested(act.champion)
    assert asked is not None
    fits(found.weights_sha256, asked.content.weights_sha256, "its weights in champion.json")
    assert found.prompt is not None
    fits(contents.prompt_sha256(found.prompt, found.serve), asked.content.prompt_sha256, "its prompt in champion.json")
    return "champion.json of the revision has that version's number, prompt and weights"


# -- weights ---------------------------------------------------------------------------------------
def came_from(ctx: Context, act: Request, at: Revision) -> int | None:
    """Return the version from which a run's candidate took its weights, or on whose weights it
    trained; None: the base model. Raises Broken."""
    before = began_with(ctx, at)
    if before.weights == "none" or act.champion == BEGINNING:
        return None
    run = revisions.parsed(ctx, act.run, at.commit)
    is_trained_from = (run.params.get("train") or {}).get("from") == "champion"
    return act.champion if act.candidate == "champion_new_prompt" or is_trained_from else None


def _weights(ctx: Context, key: str, number: int, request: RequestState, run: str) -> list[int]:
    act, at = request.act, ctx.at(request.act.revision)
    sha256 = act.content.weights_sha256
    try:
        parent = came_from(ctx, act, at)
    except (Broken, UserError):
        parent = None  # the link to the revision says what is wrong with it
    trained = act.candidate == "challenger"
    source = key
    if sha256 is not None:
        source = ctx.graph.add("weights", sha256, f"weights {sha256[:SHORT]}", sha256=sha256)
        ctx.graph.link(key, "serves", source, lambda: _weights_bytes(ctx, act, at))
        promotion = ctx.ledger.stored[number - 1].entry.act
        if isinstance(promotion, Promotion) and promotion.weights_signature is not None:
            ctx.graph.link(f"entry:{number}", "signed", source, lambda: _signed(ctx, number, act, at))
    elif (base := act.content.base_sha256) is not None:
        ctx.graph.link(key, "serves", ctx.graph.add("base model", base), lambda: _base(ctx, act, at, base))
    if trained and sha256 is not None:
        ctx.graph.link(source, "were trained by", run, lambda: _trained_here(ctx, act, at))
    if parent is None or parent not in ctx.state.promotions:
        return []
    says = "were trained on those of" if trained else "are those of"
    ctx.graph.link(source, says, _name(ctx, act.model, parent), lambda: _same_champion(ctx, act, at))
    return [parent]


def _weights_bytes(ctx: Context, act: Request, at: Revision) -> str:
    _whole(ctx, at, _JUDGED)
    asked, _ = contents.from_revision(at, act.run)
    path = asked.weights_path or WEIGHTS
    if path not in at.outs:
        raise missing(f"the run's dvc.lock names no {path}")
    found = ctx.store.tree_sha256(at, at.outs[path])
    fits(found, act.content.weights_sha256, path)
    return "SHA-256 of the folder recomputed"


def _signed(ctx: Context, number: int, act: Request, at: Revision) -> str:
    """Verify the OpenSSF signature with which those who serve the weights verify them."""
    each = ctx.ledger.stored[number - 1]
    if chain.WEIGHTS not in each.files:
        raise altered("the promotion holds no signature of its weights")
    asked, _ = contents.from_revision(at, act.run)
    out = at.outs[asked.weights_path or WEIGHTS]
    ctx.store.verify_out(at, out)
    digests = {path: ctx.store.sha256(md5) for path, md5 in ctx.store.listing(out.md5)}
    public = keys.signer(each.commit.signature or "")
    signing.verify_digests(each.files[chain.WEIGHTS], digests, public)
    return f"signature of {len(digests)} files verified with the machine's key, without their bytes being laid out"


def _base(ctx: Context, act: Request, at: Revision, sha256: str) -> str:
    _whole(ctx, at, _JUDGED)
    fits(contents.from_revision(at, act.run)[1].base_sha256, sha256, "the base model of the run")
    return f"the request names SHA-256 {sha256[:SHORT]}, as the run does"


def _trained_here(ctx: Context, act: Request, at: Revision) -> str:
    if "data/train/weights" not in at.outs:
        raise altered("the run's dvc.lock names no weights that it trained")
    return "the request's candidate is what the run trained"
