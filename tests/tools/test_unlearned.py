"""Settings that would show an embedded policy what it never learned to read are refused, by a stage
before any compute and by the doctor; for any other policy they are fine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rft import __main__ as stage
from rft import config
from rft.errors import ConfigError
from rft.tools import unlearned
from tasks.runs import engine
from tests import tiny_recipe
from tests.sick_agents import examine

MCP = {"tools": {"mcp": [{"name": "desk", "url": "http://127.0.0.1:1/mcp"}]}}
WEIGH = {"name": "weigh", "server_url": "http://127.0.0.1:1/weigh"}
SCHEMA = {"type": "object", "properties": {}}
OTHERS = [
    MCP,
    {"tools": {"endpoints": [WEIGH | {"parameters": SCHEMA}]}},
    {"rollout": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}},
]
SERVER = {"server": {"kind": "chat", "url": "http://127.0.0.1:1", "model": "m"}}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_recipe.make(tmp_path_factory.mktemp("unlearned"))


@pytest.mark.parametrize("other", OTHERS)
def test_an_embedded_policy_is_not_shown_it(recipe: Path, other: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"params\.yaml: .*: the embedded policy would be shown text") as refused:
        unlearned.check(tiny_recipe.params(recipe, **other))
    assert "Name a policy.model or a policy.server" in str(refused.value)


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("policy", [SERVER, {"model": "some/model"}])
def test_any_other_policy_may_be(recipe: Path, other: dict[str, Any], policy: dict[str, Any]) -> None:
    unlearned.check(tiny_recipe.params(recipe, policy=policy, **other))


def test_an_endpoint_of_one_of_the_recipes_tools_shows_nothing_new(recipe: Path) -> None:
    unlearned.check(tiny_recipe.params(recipe, tools={"endpoints": [WEIGH | {"name": "lookup"}]}))


def test_a_stage_ends_before_the_warm_start(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    raw = tiny_recipe.params(recipe, **MCP).model_dump(mode="json", by_alias=True)
    Path("params.yaml").write_text(yaml.safe_dump(raw))
    engine.write(tmp_path, config.Recipe(path=str(recipe)), tmp_path / "state")
    assert stage.main(["policy"]) == ConfigError.exit_code
    assert "tools.mcp = desk: the embedded policy would be shown" in capsys.readouterr().err
    assert not Path("data/policy").exists()


def test_the_doctor_says_so_and_looks_at_the_rest(recipe: Path) -> None:
    params: config.Params = tiny_recipe.params(recipe, **OTHERS[2], traffic={"file": str(recipe)})
    found = examine(params, "prompt", "recipe")
    assert (found["prompt"].status, found["recipe"].status) == ("fail", "ok")
    assert "rollout.response_format is set" in found["prompt"].words
