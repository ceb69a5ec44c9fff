"""A recipe's files: what may be left out, and what is said of a file that is not as it must be."""

from __future__ import annotations

from pathlib import Path

import pytest

from rft import config, recipe
from rft.errors import InfrastructureError, UserError
from rft.grading import preflight
from tests import tiny_recipe
from tests.sick_agents import examine, settings


def loaded(folder: Path) -> recipe.Recipe:
    return recipe.load(config.Recipe(path=str(folder)))


def test_without_exploits_the_engine_s_own_probes_are_played_and_the_doctor_says_so(tmp_path: Path):
    made = tiny_recipe.make(tmp_path)
    (made / "exploits.jsonl").unlink()
    played = preflight.check(settings(made))
    assert [one.name for one in played.exploits] == ["no-op", "empty", "echo", "random"]
    found = examine(settings(made), "recipe")["recipe"]
    assert (found.status, "no exploits.jsonl" in found.words) == ("warn", True)
    assert "Write one line for each way" in found.remedy


@pytest.mark.parametrize(
    ("tools", "why"),
    [
        ("", "has no TOOLS, the list of functions"),
        ("TOOLS = None", "has no TOOLS"),
        ("TOOLS = 'lookup'", "TOOLS is 'lookup', the list of functions"),
        ("TOOLS = ['lookup']", "TOOLS is ['lookup']"),
    ],
)
def test_tools_that_are_not_listed_are_a_fault_of_the_file(tmp_path: Path, tools: str, why: str):
    made = tiny_recipe.make(tmp_path)
    text = (made / "tools.py").read_text(encoding="utf-8")
    (made / "tools.py").write_text(text.replace("TOOLS = [lookup]", tools), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        _ = loaded(made).tools
    assert f"{made}/tools.py: {why}" in str(caught.value)
    assert "Write TOOLS = [function, ...]" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("def lost(:", "line 1: invalid syntax. Fix that line."),
        ("import nothing_such", "line 1: raised ModuleNotFoundError: No module named 'nothing_such'"),
        ("from .nothing import such", "line 1: raised ModuleNotFoundError: No module named 'recipe_tiny.nothing'"),
        ("open('/nothing/such')", "line 1: raised FileNotFoundError: "),
        ("import json; json.loads('{')", "line 1: raised JSONDecodeError: "),
        ("raise ConnectionRefusedError('the database')", "line 1: raised ConnectionRefusedError: the database"),
    ],
)
def test_a_file_that_cannot_be_imported_is_named_with_its_line(tmp_path: Path, line: str, why: str):
    """It was a traceback of 35 lines."""
    made = tiny_recipe.make(tmp_path)
    (made / "tools.py").write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(InfrastructureError if "Connection" in line else UserError) as caught:
        loaded(made)
    assert f"{made}/tools.py: {why}" in str(caught.value)


@pytest.mark.parametrize("stem", ["examples", "tools"])
def test_a_package_that_is_not_installed_is_named_with_the_line_that_imports_it(tmp_path: Path, stem: str):
    made = tiny_recipe.make(tmp_path)
    (made / "helper.py").write_text("import math\nimport no_such_package\n", encoding="utf-8")
    text = (made / f"{stem}.py").read_text(encoding="utf-8")
    first = "from __future__ import annotations\n"
    assert text.count(first) == 1
    (made / f"{stem}.py").write_text(text.replace(first, f"{first}from . import helper\n"), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        _ = loaded(made).tools
    assert str(caught.value).startswith(f"{made}/helper.py: line 2: raised ModuleNotFoundError: ")
    assert str(caught.value).endswith("Install the package that has it.")


def test_a_file_that_is_no_text_is_told_at_the_line_that_imports_it(tmp_path: Path):
    made = tiny_recipe.make(tmp_path)
    (made / "tools.py").write_bytes(b"a = 1\0")
    with pytest.raises(UserError, match=r"examples\.py: line \d+: raised .*null bytes when it was imported\."):
        loaded(made)
