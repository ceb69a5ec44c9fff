"""Findings N16: every key of params.yaml has a sentence, docs/params.md holds them, and `rft doctor
--show-resolved` says them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from rft import config
from rft.config import pages, reference
from rft.config.section import Section
from rft.doctor import configuration
from rft.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


def every_section(kind: Any = config.Params) -> Iterator[type[Section]]:
    """All classes behind params.yaml, found apart from the reference's own walk."""
    if isinstance(kind, type) and issubclass(kind, Section):
        yield kind
        kind = tuple(info.annotation for info in kind.model_fields.values())
        for inner in kind:
            yield from every_section(inner)
    for part in get_args(kind):
        yield from every_section(part)


def test_n16_every_key_has_a_sentence() -> None:
    found = [key for _, _, keys in reference.sections() for key in keys]
    assert [key.name for key in found if not key.meaning.endswith((".", ")"))] == [], (
        "write a docstring under the key, in rft/config"
    )
    assert [name for name, meaning, _ in reference.sections() if not meaning] == [], (
        "write a docstring for the section's class"
    )
    fields = sum(len(kind.model_fields) for kind in every_section() if kind is not config.Params)
    assert len(found) == fields > 150  # none is left out


def test_n16_the_reference_is_what_the_source_says() -> None:
    """With RECORD=1 it is written anew."""
    if os.environ.get("RECORD") == "1":
        assert pages.main(["--write"]) == 0
    for name in pages.PAGES:
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert text == pages.renewed(name), f"docs/{name} is old: python -m rft.config.pages --write"


def test_a_page_is_old_or_lacks_its_marks_and_nothing_of_it_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    for name in pages.PAGES:
        (tmp_path / name).write_text(f"before\n{pages.BEGIN}old\n{pages.END}after\n", encoding="utf-8")
    assert pages.main([]) == 1
    assert capsys.readouterr().out == "docs/params.md is old\ndocs/graders.md is old\n"
    assert (pages.main(["--write"]), pages.main([])) == (0, 0)
    assert (tmp_path / "params.md").read_text(encoding="utf-8").endswith(f"{pages.END}after\n")
    cut = f"before\n{pages.BEGIN}old\nafter\n"
    (tmp_path / "graders.md").write_text(cut, encoding="utf-8")
    with pytest.raises(UserError, match=r"docs/graders\.md: the marks .* are not there"):
        pages.main(["--write"])
    assert (tmp_path / "graders.md").read_text(encoding="utf-8") == cut


def test_a_key_says_its_type_bounds_default_and_choices() -> None:
    found = {key.name: key for _, _, keys in reference.sections() for key in keys}
    assert (found["train.group_size"].type, found["train.group_size"].default) == (
        "whole number, at least 2, at most 64",
        "8",
    )
    assert found["train.from"].type == "`policy`, `champion`"  # the name in the file, not Python's
    assert found["gate.min_gain"].default == "required"
    assert found["rollout.budget.tokens.free"].type == "number, above 0"
    assert found["tools.traits.NAME.probe"].default == "true"
    assert found["tools.endpoints[].name"].default == "required"


SETTINGS: dict[str, dict[str, Any]] = {
    "params.yaml": {},
    "flows/template/params.yaml": {},
    "nested": {
        "tools": {
            "endpoints": [{"name": "find", "server_url": "https://a.example/find", "headers": {"X-Note": "a # b: 'c'"}}]
        },
        "rollout": {"budget": {"tokens": {"free": 100, "weight": 0.5}}},
        "recipe": {"path": "recipes/icd10", "options": {"lines": "one\ntwo: # three", "no": "no"}},
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_n16_settings_with_their_words_read_back_as_the_same_settings(name: str) -> None:
    file = ROOT / (name if name.endswith(".yaml") else "params.yaml")
    raw = yaml.safe_load(file.read_text(encoding="utf-8").replace("RECIPE_FOLDER", "recipes/icd10"))
    params = config.parse({**raw, **SETTINGS[name]})
    text = reference.commented(params, configuration.written(params))
    assert yaml.safe_load(text) == configuration.resolved(params)
    assert "\n  lr: " in text
    assert [line for line in text.splitlines() if line.split("  # ")[-1] in ("", "set. ", "default. ")] == []
