"""docs/scale.md: its table is the figure's, and its configuration is one that this version
accepts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench import scale
from rft import config


def page(repository: Path) -> str:
    return (repository / "docs" / "scale.md").read_text(encoding="utf-8")


def table() -> list[str]:
    """The page's rows: one per name, a column per plan."""
    found = [scale.rows(plan) for plan in scale.PLANS]
    return [f"| {name} | {' | '.join(describe(*one[name]) for one in found)} |" for name in found[0]]


def describe(value: float, unit: str) -> str:
    if not unit:
        return f"{value:.0%}"
    return f"{value:.2g} {unit}" if value < 10 else f"{value:.0f} {unit}"


@pytest.mark.slow
def test_the_table_is_the_figures(repository: Path):
    lines = page(repository).splitlines()
    first = lines.index(f"| | {' | '.join(plan.name for plan in scale.PLANS)} |") + 2
    assert lines[first : first + len(table()) + 1] == [*table(), ""]
    parts = scale.scale_plan([]).parts
    assert len(parts) == 2 * len(table())
    assert all((part.value or 0) > 0 for part in parts)


def test_sums_are_those_of_their_parts():
    for plan in scale.PLANS:
        found = {name: value for name, (value, _) in scale.rows(plan).items()}
        sampling = found["reading prompts and tool results"] + found["saying"]
        learning = found["learning"] + found["bringing the adapter"]
        assert found["a step without overlap"] == pytest.approx(sampling + learning)
        assert found["a step with lag 1"] == pytest.approx(max(sampling, learning))
        assert found["sampler, memory of a GPU"] < 80


def test_the_configuration_is_accepted(repository: Path):
    """Over the example recipe's settings, as a user would write it."""
    blocks = re.findall(r"```yaml\n(.*?)```", page(repository), re.DOTALL)
    assert blocks
    for block in blocks:
        whole = config.load(repository / "params.yaml").model_dump(mode="json", by_alias=True)
        for name, section in yaml.safe_load(block).items():
            whole[name] = whole[name] | section
        found: Any = config.parse(whole, "docs/scale.md", config.Params)
        assert found.train.group * found.train.examples_per_step == scale.GROUP * scale.EXAMPLES
        assert found.train.processes == scale.PLANS[0].learners
        assert found.policy.server.concurrency == scale.PLANS[0].replicas * scale.PLANS[0].rows
