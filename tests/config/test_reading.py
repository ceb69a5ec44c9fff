"""R21: in no file that people write can a key stand twice, and the first be dropped without a
word."""

from __future__ import annotations

import json
from pathlib import Path

import ladder_clone
import pytest
import sample_reports
import tiny_recipe

from flows import deploy, settings
from rft import config, recipe
from rft.errors import ConfigError, UserError
from rft.rollouts import replay

WHOLE = """\
recipe: {path: recipes/tiny}
train:
  steps: 40
gate: {}
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (WHOLE + "train:\n  lr: 0.1\n", "'train' is written twice, in lines 2 and 5"),
        (
            WHOLE.replace("  steps: 40\n", "  steps: 40\n  lr: 0.1\n  steps: 20\n"),
            "'train.steps' is written twice, in lines 3 and 5",
        ),
        (
            WHOLE.replace("gate: {}", "gate: {margin: 1, 'margin': 2}"),
            "'gate.margin' is written twice, in lines 4 and 4",
        ),
        (
            WHOLE + "tools:\n  mcp:\n    - name: a\n      url: x\n      name: b\n",
            "'tools.mcp.0.name' is written twice, in lines 7 and 9",
        ),
        (WHOLE + "a: &a {b: 1}\nc:\n  <<: *a\n  <<: *a\n", "'c.<<' is written twice, in lines 7 and 8"),
        (WHOLE + "a: {true: 1, yes: 2}\n", "'a.yes' is written twice, in lines 5 and 5"),
    ],
)
def test_r21_a_key_written_twice_is_refused_with_both_lines(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "params.yaml", text)
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    assert str(caught.value) == f"{path}: {message}, and only one can count. Merge them, or remove one."


def test_r21_all_of_them_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(write(tmp_path / "params.yaml", WHOLE + "gate: {}\ntrain: {}\n"))
    assert [line.split("'")[1] for line in str(caught.value).splitlines()] == ["gate", "train"]


def test_r21_the_same_key_in_two_places_and_an_override_of_what_is_merged_are_no_such_thing(tmp_path: Path) -> None:
    text = "a: &a {x: 1}\nb: {<<: *a, x: 2}\nc: [*a, *a]\n'1': 1\n1: 2\n"
    assert config.read_yaml(write(tmp_path / "x.yaml", text), "x") == {
        "a": {"x": 1},
        "b": {"x": 2},
        "c": [{"x": 1}, {"x": 1}],
        "1": 1,
        1: 2,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"train: {\n", "not YAML: line 2"),
        (b"train: \xff\n", "not UTF-8: the byte at 7. Save it as UTF-8."),
        (b"train: \x00\n", "not YAML"),
        (b"train: " + b"[" * 5000, "not YAML"),
        (b"train: 2026-13-45\n", "not YAML: month must be in 1..12. Put that text in quotes."),
        (b"? [a, {b: 1}]\n: 1\n", "not YAML: line 1"),
        (b"- train\n", "holds list, expected sections"),
        (b"", "holds NoneType, expected sections"),
        (b"a: 1\n---\nb: 2\n", "not YAML: line 2"),
    ],
)
def test_what_is_no_file_of_sections_is_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_many_aliases_are_looked_into_once(tmp_path: Path) -> None:
    """Eight levels of ten aliases each stand for a hundred million values."""
    levels = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))
    assert len(config.read_yaml(write(tmp_path / "x.yaml", f"a0: &a0 {{x: 1}}\n{levels}"), "x")["a8"]) == 10


@pytest.mark.slow
def test_r21_the_command_line_and_the_schedule_too(tmp_path: Path) -> None:
    made = ladder_clone.make(tmp_path)
    with pytest.raises(
        ConfigError, match=r"^--set train\.kl={weight: 1, weight: 2}: 'weight' is written twice, in lines 1 and 1"
    ):
        settings.resolve(made.clone, overrides=["train.kl={weight: 1, weight: 2}"])
    with pytest.raises(ConfigError, match=r"^--set train\.steps\.x=1: 'steps' is not a section, it holds int"):
        settings.resolve(made.clone, overrides=["train.steps=1", "train.steps.x=1"])
    params = made.root / "params.yaml"
    write(params, params.read_text() + "recipe: {}\n")
    with pytest.raises(ConfigError, match=r"^params\.yaml: 'recipe' is written twice"):
        settings.resolve(made.clone)

    for text, message in (
        ("name: a\nname: b\ncron: '0 3 * * 1'\n", "'name' is written twice, in lines 1 and 2"),
        ("- a\n", "holds list"),
        ("{", "not YAML"),
    ):
        write(made.root / deploy.SCHEDULE, text)
        with pytest.raises(ConfigError, match=rf"^infra/schedule\.yaml: {message}"):
            deploy.schedule(made.root)


@pytest.mark.parametrize("name", ["grader.json", "prompts.json", "exploits.jsonl"])
def test_r21_the_recipes_json_too(tmp_path: Path, name: str) -> None:
    place = tiny_recipe.make(tmp_path)
    write(place / name, '{"name": "seed", "type": {"url": "a", "url": "b"}}\n')
    loaded = recipe.load(config.Recipe(path=str(place)))
    with pytest.raises(UserError, match=rf"{name}.*'url' is written twice in one object"):
        getattr(loaded, name.partition(".")[0])
    if name == "grader.json":
        with pytest.raises(UserError, match="'url' is written twice in one object"):
            replay.load_grader(place / name)


def test_the_recipes_own_json_is_read_as_ever(tmp_path: Path) -> None:
    loaded = recipe.load(config.Recipe(path=str(tiny_recipe.make(tmp_path))))
    raw = json.loads((loaded.folder / "grader.json").read_text(encoding="utf-8"))
    assert loaded.grader.url == raw["url"]


def test_a_number_that_no_digest_can_hold_is_refused_by_key_and_limit() -> None:
    section = sample_reports.GATE.model_dump(mode="json") | {"seed": 2**53, "min_gain": float("inf")}
    with pytest.raises(ConfigError) as caught:
        config.parse({"recipe": {"options": {"sizes": [1, -(2**53)]}}, "gate": section})
    limit = "JSON keeps integers exact only up to 9007199254740991. Write a smaller one."
    assert str(caught.value).splitlines() == [
        f"params.yaml: 'recipe.options.sizes.1' = -9007199254740992: {limit}",
        "params.yaml: 'gate.min_gain' = inf: not a JSON number. Write a finite one.",
        f"params.yaml: 'gate.seed' = 9007199254740992: {limit}",
    ]
    config.parse({"recipe": {}, "gate": section | {"seed": 2**53 - 1, "min_gain": 0.05}})


def test_a_tool_default_that_no_digest_can_hold_is_refused_where_the_recipe_is_read(tmp_path: Path) -> None:
    place = tiny_recipe.make(tmp_path)
    prompts = {"seed": {"name": "seed", "system": "", "tool_defaults": {"search": {"k": 2**53}}}}
    write(place / "prompts.json", json.dumps(prompts))
    with pytest.raises(
        UserError, match=r"prompts\.json: 'seed\.tool_defaults\.search\.k' = 9007199254740992: JSON keeps"
    ):
        _ = recipe.load(config.Recipe(path=str(place))).prompts


def test_a_value_of_any_type_is_refused_as_it_is_written() -> None:
    section, options = sample_reports.GATE.model_dump(mode="json"), {"a": [float("nan")], "b\ud800": 1}
    with pytest.raises(ConfigError) as caught:
        config.parse({"recipe": {"options": options}, "gate": section | {"min_gain": "inf"}})
    assert str(caught.value).splitlines() == [
        "params.yaml: 'recipe.options.a.0' = nan: not a JSON number. Write a finite one.",
        "params.yaml: 'recipe.options.b\\ud800' is a key that holds half of a surrogate pair (\\ud800 to \\udfff), "
        "which no file can hold. Remove it.",
        "params.yaml: 'gate.min_gain' = inf: not a JSON number. Write a finite one.",
    ]


@pytest.mark.parametrize("options", ["&a {x: *a}", "{x: " + "[" * 400 + "]" * 400 + "}", "{x: !!binary /////w==}"])
def test_options_that_are_no_json_are_an_error_with_their_file(tmp_path: Path, options: str) -> None:
    file = tmp_path / "params.yaml"
    text = "".join(f"  {key}: {value}\n" for key, value in tiny_recipe.gate().items())
    write(file, f"recipe: {{options: {options}}}\ngate:\n{text}")
    with pytest.raises(ConfigError, match=r"params\.yaml: cannot be written as JSON: "):
        config.load(file)


def test_a_recipes_own_options_may_hold_what_is_no_json(tmp_path: Path) -> None:
    """No digest is made of them: only of what params.yaml says."""
    place = tiny_recipe.make(tmp_path)
    text = (place / "examples.py").read_text(encoding="utf-8")
    field = "    polite: bool = False\n"
    assert field in text
    write(
        place / "examples.py",
        text.replace(field, f"{field}    limit: float = float('inf')\n    of: object = object()\n"),
    )
    assert recipe.load(config.Recipe(path=str(place))).options.model_dump()["limit"] == float("inf")
