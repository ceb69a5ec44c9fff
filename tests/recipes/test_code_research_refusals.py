"""recipes/code_research: packages and options that cannot be used are clear errors."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from rft import config, recipe
from rft.errors import ConfigError, UserError


def refused(package: str) -> str:
    loaded = recipe.load(
        config.Recipe(path="recipes/code_research/recipe", options={"packages": [package], "worlds": 1})
    )
    with pytest.raises(UserError) as refusal:
        loaded.examples("train", 4, 0)
    return str(refusal.value)


def test_a_package_without_sources_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("only_compiled", "nothing_in_it", "blank_inside"):
        (tmp_path / name).mkdir()
    (tmp_path / "only_compiled" / "core.so").write_bytes(b"\x7fELF")
    (tmp_path / "blank_inside" / "__init__.py").write_text("\n")
    (tmp_path / "lonely_module.py").write_text("LIMIT = 3\n")
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as file:
        file.writestr("in_a_zip/__init__.py", "LIMIT = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "packed.zip"))
    for package, why in {
        "only_compiled": "has no Python sources",
        "nothing_in_it": "has no Python sources",
        "blank_inside": "has no Python sources",
        "lonely_module": "is a single module",
        "in_a_zip": "is in an archive",
        "math": "is a compiled or built-in module",
        "no_such_package": "is not installed",
        "os.path": "is not the name of a package",
        "../aiohttp": "is not the name of a package",
    }.items():
        message = refused(package)
        assert message.startswith(f"params.yaml: recipe.options.packages: {package!r} {why}"), message
        assert message.endswith("or install it.")


def test_a_package_with_too_little_to_ask_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny_package").mkdir()
    (tmp_path / "tiny_package" / "__init__.py").write_text("LIMIT = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RFT_STATE", str(tmp_path / "state"))
    message = refused("tiny_package")
    assert "no module of tiny_package gives questions for the train split. Name more packages" in message


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"packages": []}, "packages"),
        ({"packages": ["rich", "rich"]}, "names one twice"),
        ({"min_subjects": 3, "max_subjects": 2}, "min_subjects is 3, above max_subjects = 2"),
        ({"min_facts": 3, "max_facts": 2}, "min_facts is 3, above max_facts = 2"),
        ({"worlds": 0}, "worlds"),
        ({"kinds": ["docstring"]}, "kinds"),
        ({"package": "rich"}, "package"),
    ],
)
def test_options_that_cannot_be_honored(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        recipe.load(config.Recipe(path="recipes/code_research/recipe", options=options))
