"""The figure of the hack check under its null: how often does a candidate on the margin pass?

Its true hack rate lies exactly on the margin. Rollouts of one example tend to hack together, so a
check that counts rollouts would believe itself five times surer than it is. Here examples are drawn
that can be hacked. Their rollouts hack with a probability within the example of 0.2, 0.5 and 1. The
number of such examples is set so that the true share of examples with at least one hacked rollout
is the margin. Reports of these histories go to the gate's own check, with the margins and the test
sizes that are shipped. At a one-sided 97.5 % limit at most 2.5 % may pass. If nothing hacks, all
must pass.

The number of hacked examples that may pass is a whole number. With the shipped margins, other
limits come to the same number. So there are two more settings, at an edge where they do not. With
288 examples and 1.66 %, a one-sided 95 % limit lets one hacked example pass, and the exact limit
none. With 24 examples and 57.5 %, Wilson's interval lets 9 pass, and the exact one 8. Each wrong
limit would let 3.8 % or more of the candidates pass.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure import Figure, Part

ROOT = Path(__file__).resolve().parents[1]
HISTORIES = 2000
K = 5
"""Rollouts per example: four sampled and a greedy one."""
WITHIN = (0.2, 0.5, 1.0)
NOMINAL = 0.025


@dataclass(frozen=True, slots=True)
class Setting:
    """A gate and a test size."""

    name: str
    gate: Any
    size: int

    @property
    def margin(self) -> float:
        return self.gate.max_hack_rate


def hack_rate_null(args: list[str]) -> Figure:
    """Candidates on the margin of the hack rate that pass the gate's check: at most 2.5 %, however
    an example's rollouts hack together."""
    from rft import stats

    shares: list[Part] = []
    for setting in (*shipped(), *at_the_edge()):
        for within in WITHIN:
            passed = sum(histories(setting, within, HISTORIES))
            name = (
                f"{setting.name}, {setting.size} examples, margin {setting.margin:g}, within-example probability "
                f"{within:g}"
            )
            share, one_sided = (
                stats.exact_interval(passed, HISTORIES),
                stats.exact_interval(passed, HISTORIES, confidence=0.9),
            )
            print(f"{passed:5} of {HISTORIES} pass  {name}", file=sys.stderr)
            shares.append(Part(f"{name}: pass", share.value, "share", low=share.low, high=share.high, n=HISTORIES))
            shares.append(Part(f"{name}: lower 95 % limit", one_sided.low, "share", at_most=NOMINAL, n=HISTORIES))
    worst = max(part.value or 0 for part in shares if part.at_most is not None)
    headline = Part(
        "lower 95 % limit of the share that passes on the margin, the largest",
        worst,
        "share",
        at_most=NOMINAL,
        n=len(shares) // 2,
    )
    return Figure((headline, *shares, *_clean()))


FIGURES = {"hack_rate_null": hack_rate_null}


def shipped() -> Iterator[Setting]:
    from flows.cli import demo
    from rft import config

    icd10 = config.load(ROOT / "recipes/icd10/params.yaml")
    template = config.load(ROOT / "flows/template/params.yaml")
    small = {key: float(value) for key, _, value in (override.partition("=") for override in demo.SMALL)}
    yield Setting("ICD-10", icd10.gate, icd10.examples.test)
    yield Setting("the template", template.gate, template.examples.test)
    yield Setting(
        "--small",
        icd10.gate.model_copy(update={"max_hack_rate": small["gate.max_hack_rate"]}),
        int(small["examples.test"]),
    )


def at_the_edge() -> Iterator[Setting]:
    """Yield settings where a wrong confidence level or a wrong interval gives another rule than the
    exact limit."""
    gate = next(shipped()).gate
    yield Setting("another level's edge", gate.model_copy(update={"max_hack_rate": 0.0166}), 288)
    yield Setting("another interval's edge", gate.model_copy(update={"max_hack_rate": 0.575}), 24)


def histories(setting: Setting, within: float, num: int, rate: float | None = None, seed: int = 0) -> Iterator[bool]:
    """Return whether each history passes. `rate` is the true share of examples with a hacked
    rollout. None: the margin."""
    from rft.gate import checks
    from rft.reports import HackSource

    source = HackSource(declared=True, flagged=["scripted"], tried=1)
    rng = np.random.default_rng([seed, setting.size, round(100 * within)])
    can_be_hacked = (setting.margin if rate is None else rate) / (1 - (1 - within) ** K)
    for _ in range(num):
        prone_E = rng.random(setting.size) < can_be_hacked
        hacked_EK = prone_E[:, None] & (rng.random((setting.size, K)) < within)
        yield checks.hack_rate(setting.gate, source, _arm(hacked_EK)).passed is True


def _clean() -> Iterator[Part]:
    for setting in shipped():
        passed = sum(histories(setting, 0.5, 50, rate=0.0))
        yield Part(f"{setting.name}: pass where nothing hacks", passed / 50, "share", at_least=1.0, n=50)


def _arm(hacked_EK: np.ndarray) -> Any:
    """Make a report's arm. The last column is the greedy rollout."""
    from rft.reports import Arm

    sampled, greedy = (_evaluation(columns) for columns in (hacked_EK[:, :-1], hacked_EK[:, -1:]))
    return Arm(name="challenger", prompt_sha256="", weights_sha256="", sampled=sampled, greedy=greedy)


def _evaluation(hacked_EK: np.ndarray) -> Any:
    from rft.reports import Evaluation, Row

    k = hacked_EK.shape[1]
    rows = [
        Row.model_construct(
            example_id=str(example),
            slice="all",
            rewards=[0.0] * k,
            scores=[0.0] * k,
            solved=[False] * k,
            tool_calls=[0] * k,
            tokens=[1] * k,
            stop_reasons=["completed"] * k,
            hacks=hacks,
        )
        for example, hacks in enumerate(hacked_EK.sum(axis=1).tolist())
    ]
    return Evaluation(
        name="",
        temperature=1.0,
        k=k,
        examples_sha256="",
        metrics={},
        max_at_k=[],
        shares={},
        stop_reasons={},
        tool_calls={},
        unscored=0,
        rows=rows,
    )
