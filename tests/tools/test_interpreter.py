"""Tools and grades under the user's own interpreter, with packages that are not installed here, and
files of the repository that a recipe imports."""

from __future__ import annotations

import asyncio
import os
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
import tiny_recipe
import yaml
from scripted_tools import context

from rft import config, recipe, sources
from rft.errors import ConfigError, UserError
from rft.tools import interpreter
from rft.tools.client import ToolClient
from rft.tools.lifetime import running
from rft.tools.signatures import described, schemas
from rft.types import ToolCall

HERE = Path(sysconfig.get_paths()["purelib"])
TOOLS = '''
"""Imports what only the user has: a package of their interpreter, a file of their repository."""

import money
import their_package

print("loaded, as a library may say")


def price(cents: int) -> str:
    """Say a price.

    cents: how many
    """
    return their_package.mark(money.written(cents))


TOOLS = [price]


def grade(sample, item):
    return {"score": 1.0}
'''


EXAMPLES = """
import money
from pydantic import BaseModel, ConfigDict


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")
"""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of the user's. It has their package, and what the tool server needs."""
    place = tmp_path_factory.mktemp("their") / "env"
    venv.create(place, symlinks=True)
    (site,) = place.glob("lib/python*/site-packages")
    (site / "needed.pth").write_text(f"{HERE}\n")
    (site / "their_package.py").write_text("def mark(text):\n    return f'<{text}>'\n")
    return place / "bin/python"


@pytest.fixture
def agent(tmp_path: Path, theirs: Path, monkeypatch: pytest.MonkeyPatch) -> config.Recipe:
    """An agent in a repository whose lib/money.py its tools import."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/money.py").write_text("def written(cents):\n    return f'{cents / 100:.2f} EUR'\n")
    home = tiny_recipe.make(tmp_path / "agents/refunds")
    (home / "tools.py").write_text(TOOLS)
    (home / "examples.py").write_text(EXAMPLES)
    monkeypatch.chdir(tmp_path / "agents/refunds")
    return config.Recipe(path=str(home), python=str(theirs), sources=["lib/money.py"])


@pytest.mark.slow
def test_tools_run_where_their_packages_are(agent: config.Recipe) -> None:
    ours = recipe.load(agent)
    with pytest.raises(UserError, match="No module named 'their_package'"):
        _ = ours.tools
    assert [each["function"]["name"] for each in schemas(ours)] == ["price"]
    assert described(ours).asks == {"price": [], "grade": ["item"]}

    async def call() -> str:
        async with ToolClient(endpoint, config.Tools(), schemas(ours)) as client:
            return (await client.call(ToolCall("c", "price", '{"cents": 1250}'), context({"id": "n"}))).output

    with running(ours, config.Tools()) as endpoint:
        assert asyncio.run(call()) == "<12.50 EUR>"
    with pytest.raises(ConfigError, match=r"tools.where = 'local' calls functions here, and recipe.python = "):
        running(ours, config.Tools(where="local")).__enter__()


@pytest.mark.slow
def test_a_relative_interpreter_is_looked_for_from_the_top(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".venv").symlink_to(theirs.parents[1])
    (tmp_path / "agents/refunds").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "agents/refunds")
    assert interpreter.found(".venv/bin/python") == str(tmp_path / ".venv/bin/python")
    assert interpreter.facts(".venv/bin/python")["missing"] == []


@pytest.mark.slow
def test_examples_that_import_their_tools_are_told_why_that_fails(agent: config.Recipe) -> None:
    home = Path(agent.path)
    (home / "examples.py").write_text("from .tools import price\n" + EXAMPLES)
    with pytest.raises(UserError, match=r"their_package.*examples\.py is loaded here too, not under recipe\.python"):
        recipe.load(agent)


def _with(lines: str, place: Path) -> Path:
    place.write_text(f"#!/bin/sh\n{lines}\n")
    place.chmod(0o755)
    return place


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (None, "there is no such interpreter"),
        ("exit 3", "no output"),
        ("echo hello", "answered 'hello"),
        (
            'echo \'{"version": [3, 9, 1], "packages": [], "missing": []}\'',
            "is Python 3.9.1. The tool server needs 3.11",
        ),
        (
            'echo \'{"version": [3, 12, 1], "packages": [], "missing": ["aiohttp", "yaml"]}\'',
            "lacks aiohttp pyyaml, which the tool server needs there. Install it: ",
        ),
    ],
)
def test_an_interpreter_that_cannot_serve_is_named_with_what_it_lacks(
    lines: str | None, says: str, tmp_path: Path
) -> None:
    python = tmp_path / "python" if lines is None else _with(lines, tmp_path / "python")
    with pytest.raises(UserError, match=r"recipe\.python = ") as refused:
        interpreter.facts(str(python))
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("lib/gone.py", "there is none in"),
        ("../elsewhere", "is not a file or folder below the top"),
        (".", "is not a file or folder below the top"),
    ],
)
def test_sources_that_are_not_there(agent: config.Recipe, named: str, says: str) -> None:
    with pytest.raises(UserError, match=r"recipe\.sources: ") as refused:
        recipe.load(agent.model_copy(update={"sources": [named]}))
    assert says in str(refused.value)


def test_a_folder_of_modules_a_package_and_nothing_beside_them(tmp_path: Path) -> None:
    (tmp_path / "src/ledgerly").mkdir(parents=True)
    (tmp_path / "src/ledgerly/__init__.py").write_text("from ledgerly.inner import WORD\n")
    (tmp_path / "src/ledgerly/inner.py").write_text("WORD = 'package'\n")
    (tmp_path / "src/beside_it.py").write_text("WORD = 'beside'\n")
    (tmp_path / "json.py").write_text("raise SystemExit('it hides the standard library')\n")
    sources.place(["src/ledgerly"], tmp_path)
    try:
        import ledgerly  # pyright: ignore[reportMissingImports]

        assert ledgerly.WORD == "package"
        with pytest.raises(ModuleNotFoundError):
            import beside_it  # pyright: ignore[reportMissingImports]
        sources.place(["src"], tmp_path)
        import beside_it  # pyright: ignore[reportMissingImports]

        assert beside_it.WORD == "beside"
    finally:
        sources.place([], tmp_path)
    assert "beside_it" not in sys.modules
    assert os.path.basename(yaml.__file__) == "__init__.py"


@pytest.mark.parametrize("name", ["yaml", "json"])
def test_a_source_hides_no_module_of_ours(tmp_path: Path, name: str) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / f"src/{name}.py").write_text("")
    with pytest.raises(
        UserError, match=rf"recipe\.sources: a module '{name}' would hide that of Python or of agent-rft"
    ):
        sources.place(["src"], tmp_path)


def test_keys_that_came_later_are_written_only_where_they_are_set() -> None:
    """So no run of before runs again, and what is registered in a ledger still fits."""
    assert config.Recipe(path="a").model_dump() == {"path": "a", "options": {}}
    assert config.Recipe(path="a", sources=["b"]).model_dump(mode="json") == {
        "path": "a",
        "options": {},
        "sources": ["b"],
    }
