"""A tool that tells the target to whoever asks is refused: by the preflight, by `rft doctor
exploits` and by the doctor. One that answers what it is asked, or says the same to everybody, is
not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows import cli
from rft import recipe
from rft.errors import UserError
from rft.grading import preflight, target_leak
from tests import tiny_recipe
from tests.sick_agents import Agent, examine, serving_at, settings


class Teller(Agent):
    """Looks the target up in the row, and pretends to have found it."""

    def tool(self, body: dict[str, Any]) -> str:
        return f"1 hit: {body['item']['target']}"


class Sometimes(Agent):
    def tool(self, body: dict[str, Any]) -> str:
        number = int(body["item"]["id"].removeprefix("n-"))
        return f"1 hit: {body['item']['target']}" if number % 3 else "0 hits"


class Everybody(Agent):
    """Lists what any row might have as its target."""

    def tool(self, body: dict[str, Any]) -> str:
        return " ".join(f"{number:04d}" for number in range(10_000))


class Refusing(Agent):
    """Gives the target away in its complaint."""

    def tool(self, body: dict[str, Any]) -> str:
        return f"error: expected {body['item']['target']}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_recipe.make(tmp_path_factory.mktemp("giveaway"))


@pytest.mark.parametrize("agent", [Teller, Sometimes, Refusing])
def test_a_tool_that_tells_is_refused(made: Path, agent: type[Agent]) -> None:
    with serving_at(agent().answer) as tools:
        params = settings(made, tools=tools)
        with pytest.raises(UserError, match="tool 'lookup' gives the target away: asked ") as refused:
            preflight.check(params)
    assert "tools.traits.lookup.shows_target: true" in str(refused.value)


def test_a_tool_at_an_endpoint_is_told_to_say_so_in_its_own_entry(made: Path) -> None:
    """The remedy once named tools.traits, which refuses endpoints; followed, this one is taken."""
    with serving_at(Teller().answer) as tools:
        endpoint = {"name": "lookup", "server_url": f"{tools['server_url']}/tools/lookup"}

        def run(**traits: bool) -> None:
            preflight.check(settings(made, tools=tools | {"endpoints": [endpoint | traits]}))

        with pytest.raises(UserError, match=r"say so: shows_target: true in the entry of lookup in tools\.endpoints\."):
            run()
        run(shows_target=True)


@pytest.mark.parametrize("agent", [Agent, Everybody])
def test_a_tool_that_answers_what_it_is_asked_is_not(made: Path, agent: type[Agent]) -> None:
    with serving_at(agent().answer) as tools:
        assert preflight.check(settings(made, tools=tools)).target_leaks == ()


@pytest.mark.parametrize("trait", ["shows_target", "terminal"])
def test_a_tool_that_is_meant_to_show_it_is_not_asked(made: Path, trait: str) -> None:
    with serving_at(Teller().answer) as tools:
        params = settings(made, tools=tools | {"traits": {"lookup": {trait: True}}})
        loaded = recipe.load(params.recipe)
        assert preflight.preflight(params, loaded).target_leaks == ()


def test_the_doctor_and_the_verb_say_so(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving_at(Teller().answer) as tools:
        found = examine(settings(made, tools=tools), "tools")["tools"]
        monkeypatch.chdir(Path(__file__).parents[2])
        overrides = {"recipe.path": str(made), "tools.server_url": tools["server_url"], "tools.version": "one"}
        named = [part for key, value in overrides.items() for part in ("--set", f"{key}={value}")]
        code = cli.main(["doctor", "exploits", *named])
    assert found.status == "fail"
    assert not found.infrastructure
    assert "it replied with the target of just that one 12 times" in found.words
    assert code == 2
    assert "tool 'lookup' gives the target away" in capsys.readouterr().out


# -- what a target is, and what chance is ----------------------------------------------------------
@pytest.mark.parametrize(
    ("reply", "target", "told"),
    [
        ("Lyon | day 1", "lyon", True),
        ("Lyons", "Lyon", False),
        ("E11.9", "E11", True),
        ("codes: I10", ["E11.9", "I10"], True),
        ("17", 17, True),
        ("117", 17, False),
        ("true", True, False),
        ("null", None, False),
        ('{"a": {"b": "x y"}}', {"a": {"b": "x y"}}, True),
        ("", "", False),
    ],
)
def test_a_reply_holds_a_target(reply: str, target: Any, told: bool) -> None:
    assert target_leak.holds(reply, target) is told


@hypothesis.settings(max_examples=50)
@given(st.text(min_size=1), st.text(), st.text())
def test_a_text_between_blanks_is_found_whatever_it_is(target: str, before: str, after: str) -> None:
    assert target_leak.holds(f"{before} {target} {after}", target) is bool(target.strip())


def test_chance_is_that_of_a_fair_coin() -> None:
    assert target_leak.chance_of(7, 7) == 1 / 128 <= target_leak.LEVEL < target_leak.chance_of(6, 6)
    assert math.isclose(target_leak.chance_of(0, 12), 1)
    assert math.isclose(target_leak.chance_of(9, 12), 299 / 4096)
