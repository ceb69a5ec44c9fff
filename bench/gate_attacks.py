"""The figure of attacks on the gate: what people try for a promotion, and what stops them.

Each attempt is made in a copy of one clone with real Git, DVC and ssh-keygen. Its owner signed the
thresholds, and one pair of prompt and weights was looked at (look 1). The attacker may write any
file of the clone, run any program, and append to the ledger with the clone's key. They have no
person's key. The files of their runs say "promote" whatever the thresholds are, as if the
challenger were good. A request lies there even if the gate stage would not write one. In the end
Ada approves the run, as she approves an honest one.

An attempt fails if the run is not registered, cannot be requested, or cannot be approved. It also
fails if it is registered as the look that it is, because `gate.looks` pays for that. Honest runs
are approved in between: a figure that says no to everything would prove nothing.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import promoting
from bench.measure import Figure, Part
from bench.promoting import MODEL, WHY, silent
from rft import config, reports, stage_files
from rft.errors import ConfigError, RftError
from tasks.runs.clone import Clone

Meddle = Callable[[Any], object]
PROMPTS = ("second", "third", "fourth", "fifth")
HIGHER: dict[str, dict[str, Any]] = {"gate": {"min_gain": 0.06}}
STRICTER = ("looks", "prompt_only_margin", "min_slice", "require_drift")
"""Keys of MORE that are not looser. With these the look is counted as the one that it is."""
MORE: dict[str, dict[str, Any]] = {
    "gate": {
        "alpha": 0.5, "looks": 500, "min_gain": -1.0, "max_greedy_loss": 1.0, "max_calls_p95_increase": 99.0,
        "max_tokens_increase": 99.0, "max_turns_p95_increase": 99.0, "max_unreadable_increase": 1.0,
        "max_unscored_increase": 1.0, "max_hack_rate": 1.0, "max_slice_loss": 1.0, "min_slice": 2,
        "max_unscored_share": 1.0, "max_latency_increase": 99.0, "require_drift": ["continue"],
        "prompt_only_margin": 0.9, "num_bootstrap": 200, "seed": 7, "prices": config.Prices(context=0.001, cached=0),
    },
    "challenger": {"k": 1, "temperature": 0.1, "seed": 7},
}  # fmt: skip
"""Thresholds that let more pass, and seeds that give a new draw."""


def row(text: str, id: str = "") -> str:
    return json.dumps({"id": id or text, "messages": [{"role": "user", "content": text}]})


ROWS = [row(f"example {n}") for n in range(6)]
FRESH = [row(f"another {n}") for n in range(6)]


@dataclass
class Try:
    """What somebody does, and which look the ledger may say it is."""

    name: str
    rows: list[str] = field(default_factory=lambda: ROWS)
    sections: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    prompt: str = "second"
    before: Callable[[Clone], object] | None = None
    """Done before the run."""
    opened: Meddle | None = None
    """Done to the run after its look was registered."""
    after: Callable[[Clone], object] | None = None
    """Done after the run, before anybody is asked to approve."""
    look: int = 0
    """An approval as this look is fine, because the look is counted and paid for. 0: no approval
    is."""


def gate_attacks(args: list[str]) -> Figure:
    """Attempts to fool the gate: edited thresholds, changed seeds, one example more, another look,
    opened tests. None leads to a promotion that can be approved unnoticed."""
    small = "--small" in args
    with tempfile.TemporaryDirectory(prefix="rft-gate-") as place, redirect_stdout(sys.stderr):
        return attempts(Path(place), small)


def attempts(place: Path, small: bool) -> Figure:
    promoting.enter(place)
    base = _base(place / "base")
    unnoticed, refused_honest, outcomes = list[str](), list[str](), dict[str, str]()
    tries = [*_honest(), *_attacks(small)]
    for number, each in enumerate(tries, 1):
        clone = Clone(Path(shutil.copytree(base.parent / base.name, place / f"try-{number}")) / "clone")
        look, refusal = _attempt(clone, place / f"try-{number}" / "script", each)
        alpha = config.load(clone.root / "params.yaml").gate.alpha
        good = refusal != "" or (each.look > 0 and look >= each.look and _spent(clone) <= alpha + 1e-9)
        if each.name.startswith("honest"):
            refused_honest += [f"{each.name}: {refusal or f'look {look}'}"] if refusal or look != each.look else []
        elif not good:
            unnoticed.append(each.name)
        outcomes[each.name] = refusal or f"approved, as look {look}"
        print(f"{number}/{len(tries)} {each.name}: {outcomes[each.name]}", file=sys.stderr)
        shutil.rmtree(clone.root.parent)
    honest = sum(each.name.startswith("honest") for each in tries)
    parts = (
        Part(
            "attempts that can be approved unnoticed",
            len(unnoticed),
            "attempts",
            at_most=0,
            n=len(tries) - honest,
            reason="; ".join(unnoticed),
        ),
        Part(
            "honest runs that cannot be approved",
            len(refused_honest),
            "runs",
            at_most=0,
            n=honest,
            reason="; ".join(refused_honest),
        ),
    )
    return Figure(parts, {"words": outcomes})


# -- a clone, and a run in it ----------------------------------------------------------------------
def _base(folder: Path) -> Path:
    """Make a clone whose owner is Ada, and in which the first prompt was looked at."""
    from tasks.ledger.policy import SetThresholds
    from tasks.promotion import acts, registration
    from tests import ladder_clone, people

    scripted = ladder_clone.make(folder)
    params = config.load(scripted.root / "params.yaml")
    wanted = SetThresholds(model=MODEL, settings=registration.settings_of(params))
    _run(scripted.clone, scripted.script, Try("the first look", prompt="first"))
    acts.change(scripted.clone, wanted, people.signer("ada"), WHY, silent)
    return folder


def _attempt(clone: Clone, script: Path, each: Try) -> tuple[int, str]:
    """Run, and ask Ada. Returns the look that the run's registration names, and why the run was
    refused ('': she approved it)."""
    from tasks.ledger import book
    from tasks.promotion import acts
    from tests import people

    try:
        if each.before:
            each.before(clone)
        run = _run(clone, script, each)
        if each.after:
            each.after(clone)
        outcome = acts.approve(clone, run.name, people.signer("ada"), WHY, report_line=silent)
        look = book.read(clone, reverify=True, report_line=silent).state.looks[outcome.request.act.registration]
    except ConfigError:
        raise  # this file is wrong, not the gate
    except RftError as error:
        return 0, str(error)
    return look.act.look, ""


def _spent(clone: Clone) -> float:
    """Return how much of alpha the looks at the test set have spent. Each look counts once."""
    from tasks.ledger import book

    looks = book.read(clone, report_line=silent).state.looks.values()
    sets: dict[str, dict[object, float]] = {}
    for look in looks:
        known = sets.setdefault(look.act.test_sha256, {})
        known[look.what] = max(look.price, known.get(look.what, 0.0))
    return max((sum(known.values()) for known in sets.values()), default=0.0)


def _run(clone: Clone, script: Path, each: Try) -> Any:
    """Make a recorded run whose stages' files say that the challenger is better."""
    from tasks.promotion import champions, registration
    from tasks.runs import repro
    from tasks.runs import run as runs
    from tests import ladder_clone

    params = config.load(clone.root / "params.yaml")
    changed = {name: getattr(params, name).model_copy(update=keys) for name, keys in each.sections.items()}
    params = params.model_copy(update=changed)
    with runs.start(clone, runs.plan(clone, params, champions.of_params(clone, params))) as run:
        data = run.tree / "data"
        shutil.copytree(script / "data", data, dirs_exist_ok=True)
        (run.tree / stage_files.examples_file("test")).write_text("".join(f"{line}\n" for line in each.rows))
        found = reports.read(reports.PromptReport, run.tree / stage_files.path(reports.PromptReport))
        winner = found.winner.model_copy(update={"system": f"The {each.prompt} prompt."})
        reports.write(found.model_copy(update={"winner": winner}), run.tree / stage_files.path(reports.PromptReport))
        ladder_clone.rehash(data, params.gate)
        made = registration.register(run, silent)
        ladder_clone.rehash(data, params.gate, made.level)
        _promises(data)
        if each.opened:
            each.opened(run)
        repro.dvc(run.tree, "commit", "--force", "--quiet")
        decision = reports.read(reports.Decision, run.stage_folder("gate") / "decision.json")
        run.update(decision=decision.decision, message=decision.reason)
    return run.record


def _promises(data: Path) -> None:
    """Make the files of stage gate say "promote", whatever the thresholds are."""
    from rft.gate import decide

    decision = reports.read(reports.Decision, data / "gate/decision.json")
    if decision.decision != "promote":
        arms = reports.read(reports.ChallengerReport, data / "challenger/report.json").arms
        arm = next(arm for arm in arms if arm.name == "challenger")
        hashes = decision.hashes | {"prompt": arm.prompt_sha256, "weights": arm.weights_sha256}
        better = {"decision": "promote", "candidate": "challenger", "hashes": hashes}
        decision = decision.model_copy(update=better)
        reports.write(decision, data / "gate/decision.json")
    prompt = reports.read(reports.PromptReport, data / "prompt/report.json")
    train = reports.read(reports.TrainReport, data / "train/report.json")
    challenger = reports.read(reports.ChallengerReport, data / "challenger/report.json")
    reports.write(decide.promotion_request(decision, prompt, train, challenger), data / "gate/request.json")


# -- honest runs -----------------------------------------------------------------------------------
def _honest() -> Iterator[Try]:
    yield Try("honest: the first look, again", prompt="first", look=1)
    yield Try("honest: another prompt", look=2)
    yield Try("honest: another prompt on fresh examples", rows=FRESH, look=1)
    yield Try("honest: another prompt on some fresh examples", rows=[*FRESH, ROWS[0]], look=2)
    yield Try("honest: lower thresholds that the owner signed", FRESH, _lower(), before=_signing(_lower()), look=1)
    yield Try("honest: stricter thresholds that the owner signed", sections=HIGHER, before=_signing(HIGHER), look=2)


def _lower() -> dict[str, dict[str, Any]]:
    return {"gate": {"min_gain": 0.01}}


def _signing(sections: dict[str, dict[str, Any]]) -> Callable[[Clone], object]:
    """Let the owner sign these thresholds."""

    def signed(clone: Clone) -> None:
        from tasks.promotion import acts
        from tests import people

        acts.change(clone, _thresholds(clone, sections), people.signer("ada"), WHY, silent)

    return signed


def _thresholds(clone: Clone, sections: dict[str, dict[str, Any]]) -> Any:
    from tasks.ledger.policy import SetThresholds
    from tasks.promotion import registration

    params = config.load(clone.root / "params.yaml")
    changed = {name: getattr(params, name).model_copy(update=keys) for name, keys in sections.items()}
    return SetThresholds(model=MODEL, settings=registration.settings_of(params.model_copy(update=changed)))


# -- attacks ---------------------------------------------------------------------------------------
def _attacks(small: bool) -> Iterator[Try]:
    for section, keys in MORE.items():
        for key, value in list(keys.items())[: 2 if small else None]:
            what = f"edited before the run: {section}.{key}"
            yield Try(what, sections={section: {key: value}})
            yield Try(f"{what}, and hidden", sections={section: {key: value}}, opened=_by_policy)
    yield from _edited_later()
    yield from _seeds()
    yield from _examples()
    yield from _again()
    yield from _policy()
    yield from _opened()
    yield from _looser(small)
    yield from _spending()
    yield from _by_hand()


def _by_policy(run: Any) -> None:
    """Let the run claim that its thresholds are the policy's."""
    path = run.tree / stage_files.path(reports.Registration)
    reports.write(reports.read(reports.Registration, path).model_copy(update={"by_policy": True}), path)


def _edited_later() -> Iterator[Try]:
    """Register the look under the policy's thresholds, and decide it under others."""

    def edit(section: str, key: str, value: object) -> Meddle:
        def meddle(run: Any) -> None:
            import yaml

            raw = yaml.safe_load((run.tree / "params.yaml").read_text())
            raw[section][key] = value
            (run.tree / "params.yaml").write_text(yaml.safe_dump(raw))

        return meddle

    def decide_by(key: str, value: object, hide: bool) -> Meddle:
        def meddle(run: Any) -> None:
            from tests import ladder_clone

            if not hide:
                edit("gate", key, value)(run)
            gate = config.load(run.clone.root / "params.yaml").gate.model_copy(update={key: value})
            ladder_clone.rehash(run.tree / "data", gate)
            _promises(run.tree / "data")

        return meddle

    yield Try("edited after the look: gate.min_gain, in params.yaml", opened=edit("gate", "min_gain", -1.0))
    yield Try("edited after the look: challenger.k, in params.yaml", opened=edit("challenger", "k", 1))
    yield Try("edited after the look: rollout.max_turns", opened=edit("rollout", "max_turns", 2))
    for key in ("min_gain", "max_slice_loss", "seed"):
        yield Try(f"decided by another gate.{key}", opened=decide_by(key, MORE["gate"][key], hide=False))
        yield Try(f"decided by another gate.{key}, and hidden", opened=decide_by(key, MORE["gate"][key], hide=True))
    yield Try("rollouts left out: another k in the report", opened=_fewer)


def _fewer(run: Any) -> None:
    from tests import ladder_clone

    path = run.tree / stage_files.path(reports.ChallengerReport)
    found = reports.read(reports.ChallengerReport, path)
    arms = [arm.model_copy(update={"sampled": arm.sampled.model_copy(update={"k": 1})}) for arm in found.arms]
    reports.write(found.model_copy(update={"arms": arms}), path)
    ladder_clone.rehash(run.tree / "data", config.load(run.clone.root / "params.yaml").gate)
    _promises(run.tree / "data")


def _seeds() -> Iterator[Try]:
    """Draw the same pair anew. This must count as a look: a second draw is not free."""
    for section, key, value in (
        ("rollout", "max_turns", 5),
        ("rollout", "max_tokens", 500),
        ("tools", "timeout_s", 31.0),
        ("examples", "seed", 3),
    ):
        what = f"drawn anew by {section}.{key}"
        yield Try(f"{what}: the same pair", sections={section: {key: value}}, prompt="first", look=2)
    yield Try("drawn anew by another recipe", before=_touch_recipe, prompt="first", look=2)


def _touch_recipe(clone: Clone) -> None:
    (clone.root / "recipes/tiny/more.txt").write_text("nothing")
    clone.git("add", "--all")
    clone.git("commit", "--quiet", "--message", "nothing")


def _examples() -> Iterator[Try]:
    """Change the test set that was looked at, so that it seems to be another."""
    told = {
        "one example more": [*ROWS, FRESH[0]],
        "one example fewer": ROWS[1:],
        "another order": ROWS[::-1],
        "other ids": [row(f"example {n}", f"renamed-{n}") for n in range(6)],
        "other spaces and case": [row(f"  EXAMPLE   {n} ") for n in range(6)],
        "another target": [json.dumps(json.loads(each) | {"target": "new"}) for each in ROWS],
        "each example twice": [row(f"example {n}", f"{n}-{i}") for n in range(6) for i in range(2)],
    }
    for name, rows in told.items():
        yield Try(f"a test set with {name}", rows=rows, look=2)
    yield Try("an earlier list of examples is gone", rows=[*ROWS, FRESH[0]], before=_lose_list, look=2)
    yield Try("the clone says look 1", rows=[*ROWS, FRESH[0]], before=_lie, prompt="second")
    yield Try("the clone lists other examples", rows=[*ROWS, FRESH[0]], before=_lie_about_list)
    yield Try("other examples after the look", opened=_swap_examples)


def _lose_list(clone: Clone) -> None:
    from tasks.ledger import book

    for look in book.read(clone, report_line=silent).state.looks.values():
        md5 = look.act.examples.md5
        (clone.dvc_cache / "files/md5" / md5[:2] / md5[2:]).unlink()


def _lie(clone: Clone) -> None:
    from tasks.ledger.spending import Past
    from tasks.promotion import counting

    counting.past = _once(counting.past, lambda *_: Past(1, 0.0, None, ()))


def _lie_about_list(clone: Clone) -> None:
    from tasks.promotion import counting

    right = counting.lines
    counting.lines = _once(right, lambda key, _: right(key, "\n".join(FRESH).encode()))


def _once(right: Callable[..., Any], wrong: Callable[..., Any]) -> Callable[..., Any]:
    """Lie when the look is registered, and be honest when Ada's clone counts."""
    from tasks.promotion import counting

    def answer(*args: Any) -> Any:
        setattr(counting, right.__name__, right)
        return wrong(*args)

    return answer


def _swap_examples(run: Any) -> None:
    from tests import ladder_clone

    (run.tree / stage_files.examples_file("test")).write_text("".join(f"{line}\n" for line in FRESH))
    ladder_clone.rehash(run.tree / "data", config.load(run.clone.root / "params.yaml").gate)
    _promises(run.tree / "data")


def _again() -> Iterator[Try]:
    """Ask again for what was refused."""
    yield Try("a rejected pair, run again", prompt="first", before=_reject_first)
    changed = {"rollout": {"max_turns": 5}}
    yield Try("a rejected pair, run again with other settings", sections=changed, prompt="first", before=_reject_first)
    yield Try("a rejected pair on fresh examples", prompt="first", rows=FRESH, before=_reject_first)
    yield Try("a sixth look", prompt="sixth", before=_spend)
    yield Try("a run without a registration", opened=_unregistered)
    yield Try("the registration of another run", opened=_other_entry)
    yield Try("a registration that is not there", opened=_no_entry)


def _reject_first(clone: Clone) -> None:
    from tasks.promotion import acts
    from tasks.runs import records
    from tests import people

    acts.reject(clone, records.load_all(clone)[-1].name, people.signer("ada"), WHY, silent)


def _spend(clone: Clone) -> None:
    for name in PROMPTS:
        _run(clone, clone.root.parent / "script", Try("a look", prompt=name))


def _unregistered(run: Any) -> None:
    reports.write(reports.Registration(), run.tree / stage_files.path(reports.Registration))


def _other_entry(run: Any) -> None:
    from tasks.ledger import book

    _names(run, min(book.read(run.clone, report_line=silent).state.looks))


def _no_entry(run: Any) -> None:
    _names(run, 99)


def _names(run: Any, entry: int) -> None:
    made = reports.Registration(registered=True, entry=entry, look=1, looks=5, by_policy=True)
    reports.write(made, run.tree / stage_files.path(reports.Registration))


def _policy() -> Iterator[Try]:
    """Change the thresholds first, without the owner's signature."""
    yield Try("a policy without a signature", sections=_lower(), before=_unsigned)
    yield Try("a policy signed by somebody else", sections=_lower(), before=_by_mallory)
    yield Try("a policy without a signature, written past the rules", sections=_lower(), before=_forced)
    yield Try("policy.yaml edited in a registration", sections=_lower(), before=_smuggled)


def _unsigned(clone: Clone) -> None:
    from tasks.ledger import book
    from tasks.ledger.entry import PolicyChange

    with book.opened(clone, report_line=silent) as ledger:
        ledger.append(PolicyChange(change=_thresholds(clone, _lower())))


def _by_mallory(clone: Clone) -> None:
    from tasks.promotion import acts
    from tests import people

    acts.change(clone, _thresholds(clone, _lower()), people.signer("mallory"), WHY, silent)


def _forced(clone: Clone) -> None:
    """Change the clone's software so that it checks nothing."""
    from tasks.ledger import book, verify

    right = book.authorise
    book.authorise = verify.authorise = lambda *_: None
    try:
        _unsigned(clone)
    finally:
        book.authorise = verify.authorise = right


def _smuggled(clone: Clone) -> None:
    """Put a policy.yaml with other thresholds into a registration's commit."""
    from tasks.ledger.state import State

    right = State.first_thresholds

    def wrong(self: State, act: Any) -> None:
        self.change(_thresholds(clone, _lower()))

    State.first_thresholds = wrong
    try:
        _run(clone, clone.root.parent / "script", Try("smuggling", prompt="third"))
    finally:
        State.first_thresholds = right


# -- opened tests ----------------------------------------------------------------------------------
def _opened() -> Iterator[Try]:
    """Read the test set, and choose the next prompt by it."""
    some = [*FRESH, ROWS[0]]
    yield Try("an opened test set", before=_open)
    yield Try("an opened test set, for what was looked at before", prompt="first", before=_open)
    yield Try("fresh examples and one that was opened", rows=some, before=_open)
    yield Try("fresh examples and one that was opened, and the clone says nothing", rows=some, before=_open_and_lie)
    yield Try(
        "an opened test set with other ids", rows=[row(f"example {n}", f"renamed-{n}") for n in range(6)], before=_open
    )
    yield Try("opened between the look and the request", after=_open)
    yield Try("a list that was erased without the owner", rows=[*ROWS, FRESH[0]], before=_erase)


def _open(clone: Clone) -> None:
    from tasks.promotion import retiring
    from tasks.runs import records

    for record in records.load_all(clone):
        retiring.open_test(clone, retiring.of_run(clone, record.name, record.revision or ""), "to read it", silent)


def _open_and_lie(clone: Clone) -> None:
    from tasks.promotion import counting

    _open(clone)
    counting.assert_not_retired = _once(counting.assert_not_retired, lambda *_: None)


def _erase(clone: Clone) -> None:
    from tasks.ledger import book
    from tasks.promotion import retiring

    look = min(book.read(clone, report_line=silent).state.looks)
    retiring.erase(clone, look, WHY, lambda _: None, silent)


# -- terms chosen after a result, looks beyond alpha, results from before the look -----------------
def _looser(small: bool) -> Iterator[Try]:
    """Let the owner sign other terms after the first look."""
    for key, value in list(MORE["gate"].items())[: 3 if small else None]:
        terms = {"gate": {key: value}}
        same, other = (1, 2) if key in STRICTER else (0, 0)
        what = f"signed after the look: gate.{key}"
        yield Try(f"{what}, for the same pair", sections=terms, prompt="first", before=_signing(terms), look=same)
        yield Try(f"{what}, for another pair", sections=terms, before=_signing(terms), look=other)
    terms = {"gate": {"min_gain": -1.0}}
    yield Try("looser terms with one example more", [*ROWS, FRESH[0]], terms, before=_signing(terms))
    yield Try("looser terms with one of the examples", [*FRESH, ROWS[0]], terms, before=_signing(terms))


def _spending() -> Iterator[Try]:
    """Ask for more looks than alpha pays for."""
    more = {"gate": {"looks": 50}}

    def then(*steps: Callable[[Clone], object]) -> Callable[[Clone], object]:
        return lambda clone: [step(clone) for step in steps]

    yield Try("looks raised when all are spent", sections=more, prompt="sixth", before=then(_spend, _signing(more)))
    some = [*ROWS, FRESH[0]]
    raised = then(_spend, _signing(more))
    yield Try("looks raised when all are spent, and one example more", some, more, prompt="sixth", before=raised)
    yield Try(
        "looks raised, and twenty of them", sections=more, prompt="last", before=then(_signing(more), _many), look=2
    )
    yield Try(
        "the software says that nothing is spent", sections=more, prompt="sixth", before=then(_spend, _spent_nothing)
    )


def _many(clone: Clone) -> None:
    for number in range(20):
        _run(clone, clone.root.parent / "script", Try("a look", sections={"gate": {"looks": 50}}, prompt=f"{number}th"))


def _spent_nothing(clone: Clone) -> None:
    """Make registration believe that a look costs nothing. The approver's clone counts again."""
    from tasks.ledger import spending

    _signing({"gate": {"looks": 50}})(clone)
    right = spending.price
    spending.price = lambda look, looks: 0.0

    def honest(*args: Any) -> Any:
        spending.price = right
        return asked(*args)

    from tasks.promotion import counting

    asked = counting.assert_counted
    counting.assert_counted = honest


def _by_hand() -> Iterator[Try]:
    """Open the test set before the look, or for another look."""
    yield Try("stage challenger by hand", before=_challenger_by_hand)
    for name, change in (
        ("another look", {"look": "a" * 64}),
        ("no look", {"look": ""}),
        ("other examples", {"test_sha256": "a" * 64}),
    ):
        yield Try(f"measured for {name}", opened=_opening(change))


def _challenger_by_hand(clone: Clone) -> None:
    from tasks.runs import by_hand

    shutil.copytree(clone.root.parent / "script/data", clone.root / "data", dirs_exist_ok=True)
    by_hand.run_stage(clone, config.load(clone.root / "params.yaml"), "challenger")


def _opening(change: dict[str, str]) -> Meddle:
    def meddle(run: Any) -> None:
        path = run.tree / stage_files.path(reports.Opening)
        reports.write(reports.read(reports.Opening, path).model_copy(update=change), path)

    return meddle


FIGURES = {"gate_attacks": gate_attacks}
