"""What shows the champion elsewhere, kept in line with the ledger.

    MLflow          The registered model's aliases @champion and @previous, and those of its prompt.
    champion file   .rft/champion/MODEL.json, for the program that serves the agent.

They are projections: a promotion is its entry in the ledger, and nothing is read back from here.
Each carries the number of the promotion that it shows, and of the act that it last followed.
`reconcile` brings all in line. It can be repeated, and cut off at any point. A projection that
names an entry unknown to the ledger is left alone and reported, because then the ledger was cut. If
somebody moved one by hand, that is first recorded ("found X, set to Y"), and then it is set. A
projection that fails is reported, and tried again at the next start. It never undoes an act.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rft.errors import InfrastructureError, RftError, UserError
from tasks.ledger import book
from tasks.ledger.authorise import describe
from tasks.ledger.book import Ledger
from tasks.ledger.entry import Reconcile
from tasks.ledger.remote import AppendConflict
from tasks.ledger.state import State
from tasks.promotion.champion_file import ChampionFile
from tasks.promotion.mlflow_registry import MLflowRegistry
from tasks.promotion.targets import Projection, Shown, Target, target_of, targets
from tasks.runs.clone import Clone


def reconcile(clone: Clone, report_line: Callable[[str], None] = print) -> list[str]:
    """Bring every projection in line. Returns in words what could not be."""

    def act(ledger: Ledger) -> list[str]:
        problems: list[str] = []
        for projection in _all(clone) if ledger.state.moves else ():
            for target in targets(ledger.state):
                try:
                    _bring(ledger, projection, target, report_line)
                except AppendConflict:
                    raise
                except Exception as error:
                    problems.append(f"{projection.name} of {target.model}: {_why(error)}")
        return problems

    try:
        return book.acting(clone, act, report_line)
    except InfrastructureError as error:  # without the ledger's remote, nothing newer is known than is shown
        return [str(error)]


def _bring(ledger: Ledger, projection: Projection, target: Target, report_line: Callable[[str], None]) -> None:
    state = ledger.state
    shown = projection.shown(target.model)
    if shown is not None:
        _assert_known(state, shown, projection, target)
        if _shows(shown, target) and shown.begun is None:
            return
        followed = {move.number: move for move in state.moves[target.model]}.get(shown.act or 0)
        is_behind = followed is not None and _shows(shown, target_of(state, followed))
        if not is_behind and shown.begun not in _numbers(state, target.model):
            found, to = shown.description, describe(target.champion)
            record = Reconcile(model=target.model, projection=projection.name, found=found, set=to)
            ledger.append(record)
            report_line(f"[ledger] {projection.name} of {target.model}: found {found}, set to {to}")
    projection.show(target, state)


def _numbers(state: State, model: str) -> set[int]:
    return {move.number for move in state.moves[model]}


def _shows(shown: Shown, target: Target) -> bool:
    return (shown.ledger, shown.act, shown.champion, shown.previous) == (
        target.ledger,
        target.act,
        target.champion,
        target.previous,
    )


def _assert_known(state: State, shown: Shown, projection: Projection, target: Target) -> None:
    """Raise UserError for a projection that names another ledger, or an entry that it lacks."""
    unknown = [number for number in (shown.act, shown.begun) if number is not None and number > state.number]
    if shown.champion and shown.champion not in state.promotions:
        unknown.append(shown.champion)
    if shown.ledger is not None and shown.ledger not in state.geneses:
        what = f"it belongs to ledger {shown.ledger[:16]}, and this clone has {state.genesis[:16]}"
    elif unknown:
        what = f"it names entry {max(unknown)}, and the ledger here ends with {state.number}"
    else:
        return
    raise UserError(
        f"{what}. It is left as it is. Either this clone's ledger was cut (rft ledger verify), or another ledger "
        f"shares this {projection.name}: keep one of the two"
    )


def _all(clone: Clone) -> Iterable[Projection]:
    return (ChampionFile(clone), MLflowRegistry(clone))


def _why(error: Exception) -> str:
    if isinstance(error, RftError):
        return str(error)
    return str(InfrastructureError(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"))
