"""The figure `looks_history`: does an owner who changes the terms on the way promote noise?

A history is a test set and an owner who wants a promotion. At each turn, two candidates whose true
gain is exactly `gate.min_gain` are looked at. If none is promoted, the owner does something that
may help: takes new candidates, raises `gate.looks`, loosens a term, or adds fresh examples to those
that were seen. Or the owner has the same candidates drawn anew, or asks for the same again. The
history counts if any look ends in a promotion: at most `gate.alpha` may.

The product's own code decides. tasks/promotion/counting.py and tasks/ledger/spending.py say which
look it is and what it may spend. tasks/ledger/state.py keeps the registrations, and
rft/gate/levels.py gives the interval of the question. The guards are left out: they only make
promotions rarer. The lists of examples are in memory instead of DVC.

The same owners are also shown under the earlier rule, alpha / present looks whatever was spent. It
must promote too much, or the figure could not fail. And there are owners who change nothing: each
of their looks must have the level that it had before, so that the gate's power is unchanged.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from bench.measure import Figure, Part

ROOT = Path(__file__).resolve().parents[1]
HISTORIES = {"raises": 20_000, "redraws": 2000, "everything": 2000}
"""Owner -> histories. An owner who raises looks from one spends all of alpha in one exact test,
which promotes 4.9 % of noise. With 2,000 such histories the lower limit lies above 5 % one time in
25 by luck. That happened once."""
TURNS, BLOCK, K = 14, 64, 4
SPREAD, NOISE = 0.25, 0.5
"""Standard deviations: of a candidate's gain between examples, and of a rollout's reward."""


def looks_history(args: list[str]) -> Figure:
    """Histories of owners who raise looks, loosen terms, extend, redraw: noise promoted (alpha)."""
    gate = _gate()
    parts = list[Part]()
    for owner, whole in HISTORIES.items():
        num = 200 if "--small" in args else whole
        ours = [_history(gate, owner, seed) for seed in range(num)]
        parts += _rate(
            f"owner who {_DOES[owner]}: noise promoted", sum(one.promoted for one in ours), num, gate["alpha"]
        )
        parts += [
            Part(f"owner who {_DOES[owner]}: looks of a history", _mean(one.looks for one in ours), "looks", n=num),
            Part(
                f"owner who {_DOES[owner]}: most of alpha that a history spent", max(one.spent for one in ours), "share"
            ),
        ]
        fewer = min(num // 4, 500)
        before = sum(_history(gate, owner, seed, anew=True).promoted for seed in range(fewer))
        parts += _rate(f"owner who {_DOES[owner]}, under the rule of before", before, fewer)
    refused = sum(_history(gate, "everything", seed).loosened for seed in range(50 if "--small" in args else 500))
    parts.append(Part("looser terms that were let stand on examples that were looked at", refused, "looks", at_most=0))
    parts.append(Part("largest change of a look's level where nothing is changed", _power(gate), "share", at_most=1e-9))
    worst = max(part.value or 0 for part in parts if part.at_most == gate["alpha"])
    head = Part(
        "lower 95 % limit of the share that promotes noise, the largest", worst, "share", at_most=gate["alpha"], n=num
    )
    old = max(part.low or 0 for part in parts if "of before" in part.name)
    control = Part(
        "the rule of before promotes more than alpha: lower limit, the largest", old, "share", at_least=gate["alpha"]
    )
    return Figure((head, control, *parts))


FIGURES = {"looks_history": looks_history}
_DOES = {
    "raises": "raises looks by one at each look, from one",
    "redraws": "has the same candidates drawn anew",
    "everything": "does what comes to mind",
}


@dataclass
class Told:
    """The result of a history."""

    promoted: bool = False
    looks: int = 0
    spent: float = 0.0
    loosened: int = 0


@dataclass
class Owner:
    """A clone's ledger, its terms, and the candidate under way."""

    gate: dict[str, Any]
    rng: np.random.Generator
    state: Any
    lists: dict[int, set[str]] = field(default_factory=dict[int, set[str]])
    blocks: int = 1
    candidate: int = 0
    draw: int = 0
    gains_CE: Any = None
    """The true gains of the look's two candidates on each example."""

    def anew(self, true_gain: float) -> None:
        """Take new candidates. Their mean gain over all examples that could be drawn is exact."""
        self.candidate, self.draw, self.gains_CE = self.candidate + 1, self.draw + 1, np.empty((2, 0))
        self.grown(true_gain)

    def grown(self, true_gain: float) -> None:
        more = self.blocks * BLOCK - self.gains_CE.shape[1]
        self.gains_CE = np.concatenate([self.gains_CE, self.rng.normal(true_gain, SPREAD, (2, more))], axis=1)


def _history(gate: dict[str, Any], kind: str, seed: int, anew: bool = False) -> Told:
    """Play one history. `anew`: alpha is divided by the present looks, whatever was spent, and no
    terms are compared."""
    from tasks.ledger.state import State

    told, strict = Told(), dict(gate)
    owner = Owner(dict(gate), np.random.default_rng([[*HISTORIES].index(kind), seed]), State())
    owner.gate |= {"looks": 1} if kind == "raises" else {}
    owner.anew(gate["min_gain"])
    for _ in range(TURNS):
        level = _registered(owner, anew)
        if level is not None:
            told.looks += 1
            told.spent = _spent(owner)
            told.loosened += _is_looser(owner.gate, strict)
            told.promoted |= any(_gains(owner, level, gains_E) for gains_E in owner.gains_CE)
        if told.promoted:
            return told
        _next(owner, kind, gate["min_gain"])
    return told


def _next(owner: Owner, kind: str, true_gain: float) -> None:
    """Do something that may help."""
    if kind == "raises":
        owner.gate["looks"] += 1
        owner.anew(true_gain)
        return
    if kind == "redraws":
        owner.draw += 1
        owner.gate["looks"] += int(owner.rng.integers(0, 2))
        return
    match int(owner.rng.integers(6)):
        case 0:
            owner.anew(true_gain)
        case 1:
            owner.gate["looks"] += int(owner.rng.integers(1, 6))
        case 2:
            owner.gate |= [{"alpha": 0.5}, {"min_gain": -1.0}, {"seed": owner.draw + 1}][owner.rng.integers(3)]
        case 3:
            owner.blocks += 1
            owner.grown(true_gain)
        case 4:
            owner.draw += 1
        case _:
            pass  # the same again


def _registered(owner: Owner, anew: bool) -> float | None:
    """Register the look as a run does, and return its level. None: refused, or the same again."""
    from rft import files
    from rft.errors import UserError
    from tasks.ledger import spending
    from tasks.ledger.entry import DvcFile, Registration
    from tasks.ledger.facts import Look
    from tasks.promotion import counting

    names = {f"{number}\n" for number in range(owner.blocks * BLOCK)}
    settings = files.canonical({"gate": owner.gate, "challenger": {}}).decode()
    wanted = Registration(
        model="m",
        run="r",
        champion=0,
        candidates=[(_sha(owner.candidate), _sha(0)), (_sha(owner.candidate), _sha(1))],
        test_sha256=_sha(("test", owner.blocks)),
        grader_sha256=_sha(0),
        measured_sha256=_sha(("draw", owner.draw)),
        settings=settings,
        look=1,
        examples=DvcFile(sha256=_sha(("list", owner.blocks)), md5="0" * 32, size=1),
    )
    state, number = owner.state, len(owner.state.looks) + 1
    if anew:
        level = owner.gate["alpha"] / owner.gate["looks"] / 2
        if state.registered(wanted.model_copy(update={"level": level})) is not None:
            return None
    else:
        if state.registered(wanted) is not None:
            return None
        with patch.object(counting, "_list_of", lambda clone, number, listed: owner.lists[number]):
            past = counting.past(None, state, wanted, names)  # type: ignore[arg-type]
        if past.look > owner.gate["looks"]:
            return _keep_terms(owner)
        try:
            level = spending.level(wanted, past)
        except UserError:
            return _keep_terms(owner)
        wanted = wanted.model_copy(update={"look": past.look})
    act = wanted.model_copy(update={"level": level})
    state.looks[number], owner.lists[number] = Look(number, "", act, True, act.settings), names
    return level


def _keep_terms(owner: Owner) -> None:
    """Go back to the terms of the last look, as the owner does after a refusal."""
    if owner.state.looks:
        last = owner.state.looks[len(owner.state.looks)].act.gate
        owner.gate = {**last, "looks": max(last["looks"], owner.gate["looks"])}


def _gains(owner: Owner, level: float, gains_E: Any) -> bool:
    """Ask the question at this level, as the gate does."""
    from rft.gate import levels

    size, rng = len(gains_E), owner.rng
    champion, noise = rng.normal(0, NOISE, (size, K)), rng.normal(0, NOISE, (size, K))
    new = {str(n): row.tolist() for n, row in enumerate(noise + gains_E[:, None])}
    old = {str(n): row.tolist() for n, row in enumerate(champion)}
    found = levels.interval(level)(new, old)
    return found.low is not None and found.low > owner.gate["min_gain"]


# -- small things ----------------------------------------------------------------------------------
def _spent(owner: Owner) -> float:
    first = {look.what: look.price for look in owner.state.looks.values()}
    return sum(first.values())


def _is_looser(gate: dict[str, Any], strict: dict[str, Any]) -> bool:
    from rft.gate import terms

    return bool(terms.loosened_keys(gate, strict))


def _power(gate: dict[str, Any]) -> float:
    """Measure how far the levels of looks under equal terms are from alpha / looks / 2."""
    from tasks.ledger.state import State

    usual = gate["alpha"] / gate["looks"] / 2
    owner = Owner(dict(gate), np.random.default_rng(0), State())
    found = list[float]()
    for _ in range(gate["looks"]):
        owner.anew(gate["min_gain"])
        level = _registered(owner, anew=False)
        assert level is not None
        found.append(abs(level / usual - 1))
    return max(found)


def _gate() -> dict[str, Any]:
    from rft import config

    return config.load(ROOT / "flows/template/params.yaml").gate.model_dump(mode="json")


def _sha(what: object) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()


def _mean(values: Any) -> float:
    found = list(values)
    return sum(found) / len(found)


def _rate(what: str, count: int, num: int, nominal: float | None = None) -> list[Part]:
    """Yield a share with its exact interval and, if one is promised, its bound."""
    from rft import stats

    print(f"{count:5} of {num}  {what}", file=sys.stderr)
    share = stats.exact_interval(count, num)
    parts = [Part(what, share.value, "share", low=share.low, high=share.high, n=num)]
    if nominal is not None:
        low = stats.exact_interval(count, num, confidence=0.9).low
        parts.append(Part(f"{what}: lower 95 % limit", low, "share", at_most=nominal, n=num))
    return parts
