"""A look at the test set, registered before the set is opened.

With repeated looks at one test set, one finds a challenger that seems better. 26 challengers that
were not better, judged at a margin of 0, gave a promotion in a quarter of all histories. So looks
are counted, and each costs its share of `gate.alpha`. The run names in the ledger what it will
compare, on which examples, under which thresholds. Only then are the examples opened. Only what was
registered under the policy's thresholds can be promoted.

    look     Champion x candidates x test set, measured in one way. The same again is the same look,
             and free: a run that is resumed, or started again. The two candidates of a run are one
             look. Another recipe or another setting of sampling draws new rollouts: a new look.
    level    What earlier looks took of gate.alpha is spent. A look gets its share of what is left
             (tasks/ledger/spending.py). Terms are refused if they are looser than the policy's were
             at an earlier look at these examples.
    count    Looks are counted by example (counting.py): one more example does not make a fresh set.
             A set that was opened, or whose list was erased, is retired: no look at its examples
             counts (retiring.py).
    policy   A model's first registration makes its run's thresholds the model's. `rft ledger policy
             sign` changes them. A run with other thresholds registers too, because it looks too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rft import commands, config, files, needs, reports, stage_files
from rft.errors import UserError
from tasks.ledger import authorise, book, spending
from tasks.ledger.book import Ledger
from tasks.ledger.entry import Registration
from tasks.ledger.facts import Look
from tasks.ledger.state import State
from tasks.ledger.statement import Content
from tasks.promotion import champions, counting
from tasks.promotion.content import prompt_sha256
from tasks.runs import champion
from tasks.runs.artifacts import Revision
from tasks.runs.run import Run

ReportLine = Callable[[str], None]


def settings_of(params: config.Params) -> str:
    """Return the thresholds in the form in which the ledger holds them. The number of examples that
    people are shown is not a threshold."""
    return _thresholds(params.model_dump(mode="json", by_alias=True))


def _thresholds(params: dict[str, Any]) -> str:
    return files.canonical({name: _told(params, name) for name in ("gate", "challenger")}).decode()


def _measured(params: dict[str, Any]) -> str:
    """Hash all settings of stage `challenger`. With other settings it plays the test examples
    again. With a server, a judge or live tools, that draws new rollouts."""
    return files.digest({name: _section(params, name) for name in needs.NEEDS["challenger"].sections})


def _told(params: dict[str, Any], name: str) -> Any:
    return {key: value for key, value in params[name].items() if (name, key) != ("challenger", "shown")}


def _section(params: dict[str, Any], name: str) -> Any:
    section, _, key = name.partition(".")
    return params[section][key] if key else params[section]


def register(run: Run, report_line: ReportLine = print) -> reports.Registration:
    """Register this run's look, and write beside its stages' files which one it is.

    Raises UserError when all looks at these examples are spent, and InfrastructureError when the
    ledger or an earlier list of examples cannot be reached. Then the test set stays closed.
    """
    candidates = _candidates(run, config.load(run.tree / "params.yaml").policy.serve)
    nothing = reports.Registration(), reports.NOTHING_NEW
    made, look = _registered(run, candidates, report_line) if candidates else nothing
    run.update(by_policy=made.by_policy if made.registered else None)
    test = files.sha256(run.tree / stage_files.examples_file("test"))
    for report in (made, reports.Opening(look=look, test_sha256=test)):
        reports.write(report, run.tree / stage_files.path(type(report)))
    report_line(
        f"[ledger] {made.description}" if candidates else "[ledger] nothing new to judge: no look is registered"
    )
    return made


def _registered(
    run: Run, candidates: list[tuple[str, str]], report_line: ReportLine
) -> tuple[reports.Registration, str]:
    """Return the registration, and the entry that registered this look first."""
    clone, params = run.clone, config.load(run.tree / "params.yaml")
    model, examples = champions.model_name(params), run.tree / stage_files.examples_file("test")
    offers_blocks = reports.read(
        reports.ExamplesReport, run.tree / stage_files.path(reports.ExamplesReport)
    ).offers_blocks
    names = counting.lines(book.acting(clone, counting.key, report_line), examples.read_bytes())
    listed = counting.listed(names)
    if not book.read(clone, report_line=report_line).state.erasure_of(files.sha256(examples), listed):
        counting.keep(clone, names)

    def act(ledger: Ledger) -> tuple[Look, str]:
        wanted = Registration(
            model=model,
            run=run.name,
            champion=champion.number(run.record.champion_version),
            candidates=candidates,
            test_sha256=files.sha256(examples),
            grader_sha256=files.tree_sha256(run.tree / params.recipe.path),
            measured_sha256=_measured(params.model_dump(mode="json", by_alias=True)),
            settings=settings_of(params),
            look=1,
            examples=listed,
        )
        state = ledger.state
        authorise.assert_not_retired(state, wanted)
        counting.assert_not_retired(clone, state, names)
        if (known := state.registered(wanted)) is not None:
            return known, _first(state, known)
        past = counting.past(clone, state, wanted, names)
        assert_looks_left(past.look, params, offers_blocks)
        wanted = wanted.model_copy(update={"look": past.look, "level": spending.level(wanted, past)})
        if model not in state.policy.thresholds:
            theirs = f"the thresholds of this run are those of {model} from now on"
            report_line(f"[ledger] {theirs}. To change them: {_policy_command()}")
        made = ledger.state.looks[ledger.append(wanted).number]
        return made, _first(ledger.state, made)

    look, first = book.acting(clone, act, report_line)
    found = reports.Registration(
        registered=True,
        entry=look.number,
        look=look.act.look,
        looks=params.gate.looks,
        level=look.act.level,
        by_policy=look.by_policy,
    )
    return found, first


def _first(state: State, look: Look) -> str:
    """Return the id of the entry that registered this look first, under any terms."""
    return state.ids[next(each.number for each in state.looks.values() if each.what == look.what)]


def _candidates(run: Run, serve: config.Serve) -> list[tuple[str, str]]:
    """Return what may be promoted, as pairs of prompt and weights: the new prompt alone, and the
    trained weights. With another way of serving they are other candidates."""
    prompt = reports.read(reports.PromptReport, run.tree / stage_files.path(reports.PromptReport))
    train = reports.read(reports.TrainReport, run.tree / stage_files.path(reports.TrainReport))
    policy = reports.read(reports.PolicyReport, run.tree / stage_files.path(reports.PolicyReport))
    champion = reports.read(reports.Champion, run.tree / stage_files.path(reports.Champion))
    pairs: list[tuple[str, str]] = []
    if prompt.found:
        pairs.append(_pair(prompt.winner, serve, champion.weights_sha256, champion.base_sha256 or policy.sha256))
    if train.trained:
        pairs.append(_pair(prompt.winner, serve, train.sha256, policy.sha256))
    return pairs


def _pair(prompt: reports.PromptSettings, serve: config.Serve, weights: str | None, base: str) -> tuple[str, str]:
    none = "0" * 64
    content = Content(
        decision_sha256=none,
        prompt_sha256=prompt_sha256(prompt, serve),
        weights_sha256=weights,
        base_sha256=base,
        test_sha256=none,
    )
    return content.pair


def assert_looks_left(look: int, params: config.Params, offers_blocks: bool) -> None:
    """Raise UserError when this would be one look too many."""
    if look <= params.gate.looks:
        return
    section = params.examples
    fresh = "another examples.seed, or new ones"
    if offers_blocks:
        fresh = f"the next block, examples.block: {section.block + section.blocks}"
    raise UserError(
        f"gate.looks = {params.gate.looks}, and this would be look {look} at its test examples: a set that is looked "
        f"at again and again promotes noise. Take fresh test examples ({fresh}; none of them used before). To look "
        "more often at those, raise gate.looks before the last look is taken: they share what is left of gate.alpha"
    )


def _policy_command() -> str:
    return commands.command("ledger policy", "sign", "--params", "FILE", *commands.WHY)


# -- what rests on it ------------------------------------------------------------------------------
def entry_number(at: Revision, run: str) -> int:
    """Return the registration that a run's revision names. Raises UserError for a run without
    one."""
    found = named(at, run)
    if not found.registered:
        again = commands.command("run")
        why = f"run {run} looked at its test set without registering that in the ledger"
        raise UserError(f"{why}. Start a new run: {again}")
    if not found.by_policy:
        why = f"run {run} had other thresholds than the policy of {at.model}, so nobody is asked to promote it"
        raise UserError(
            f"{why}. To see the policy's: {commands.command('ledger policy', 'show')}. "
            f"To change them: {_policy_command()}"
        )
    return found.entry


def named(at: Revision, run: str) -> reports.Registration:
    """Return what a run's revision says about its look."""
    path = str(stage_files.path(reports.Registration))
    return reports.parse(reports.Registration, at.file(path) or b"{}", f"{path} of run {run}")


def assert_fits(state: State, entry: int, at: Revision, run: str) -> None:
    """Raise UserError when the run was not measured or decided as the entry says, or the entry is
    not the look that it claims to be. Every request and every approval checks this."""
    look, decision, compared = state.looks.get(entry), at.report(reports.Decision), at.report(reports.ChallengerReport)
    if look is None or decision is None or compared is None:
        return  # `authorise` says what is wrong
    counting.assert_counted(at.clone, state, look, at, run)
    # compared as written: the run wrote every value out, and a later version may know more keys
    params = at.settings
    settings = json.loads(look.act.settings)
    told = settings["challenger"]
    sampled = {(arm.sampled.k, arm.sampled.temperature) for arm in compared.arms}
    if at.told(reports.Opening) != reports.Opening(look=_first(state, look), test_sha256=look.act.test_sha256):
        raise UserError(
            f"run {run} was not measured for the look that entry {look.number} registered, so its rollouts may be "
            f"older, or chosen. Nobody can promote it. Start it again: {commands.command('run')}"
        )
    same = {
        "thresholds": decision.hashes.get("gate") == files.digest(settings["gate"]),
        "thresholds in params.yaml": _thresholds(params) == look.act.settings,
        "settings in params.yaml": _measured(params) == look.act.measured_sha256,
        "numbers of rollouts": sampled == {(told["k"], told["temperature"])},
        "level": {check.level for check in decision.checks if check.kind == "superiority" and check.decides}
        <= {look.act.level},
    }
    for what in (name for name, is_same in same.items() if not is_same):
        raise UserError(
            f"run {run} was decided under other {what} than entry {look.number} registered for it. Nobody can "
            f"promote it. Start it again: {commands.command('run')}"
        )
