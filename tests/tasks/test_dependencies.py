"""What dvc.yaml says a stage depends on, computed from imports in a small engine of our own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from rft import needs, stage_files
from rft.needs import NEEDS, leaves
from rft.types import SPLITS
from tasks import dependencies
from tasks.dependencies import STAGES, modules, sections

ENGINE = {
    "__init__.py": "",
    "__main__.py": "import rft.stages.gate",  # names every stage; counts for none
    "config.py": "",
    "errors.py": "",
    "lazy.py": "from rft import errors",
    "losses/__init__.py": "from .grpo import loss",
    "losses/grpo.py": "from ..errors import RftError\ndef loss(): ...",
    "server.py": 'COMMAND = ["python", "-m", "rft.served"]',
    "served.py": "",
    "shared.py": "def helper(params):\n    return params.rollout\n\nclass Bench:\n    def __init__(self):\n"
    "        self.params = None\n"
    "    def limits(self):\n        return self.params.tools\n\ndef unused(params):\n    return params.gate\n",
    "stages/traffic.py": "def run(params):\n    return params.traffic\n\ndef load():\n    return 1\n",
    "stages/drift.py": "from rft.stages import traffic\n\ndef run(params):\n"
    "    traffic.load()\n    return params.drift\n",
    "stages/train.py": "from rft.shared import Bench, helper as assist\nimport rft.losses\n\n"
    "def run(params):\n    from rft import lazy\n    assist(params)\n"
    "    Bench()\n    return params.train.from_\n",
    "stages/gate.py": "def run(params):\n    return params.gate\n",
    "recipe.py": "",
    "types.py": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in ENGINE.items():
        path = tmp_path / "rft" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "recipes" / "mine").mkdir(parents=True)
    (tmp_path / "recipes" / "mine" / "examples.py").write_text("from rft.types import Example\n")
    return tmp_path


def named(root: Path, stage: str) -> set[str]:
    return {
        path.removeprefix("rft/").removeprefix("stages/") for path in modules(root, stage, root / "recipes/mine")
    } - {
        "__init__.py",
        "__main__.py",
    }


def test_every_way_to_come_to_a_module_counts(root: Path) -> None:
    assert named(root, "gate") == {"gate.py"}
    assert named(root, "drift") == {"drift.py", "traffic.py", "types.py"}, "its own imports, and those of its recipe"
    assert named(root, "train") == {
        "train.py",
        "shared.py",
        "losses/__init__.py",
        "losses/grpo.py",
        "errors.py",
        "lazy.py",
        "types.py",
    }
    (root / "rft/stages/gate.py").write_text("from rft import server")
    assert named(root, "gate") == {"gate.py", "server.py", "served.py"}, "a process of its own is named by a text"


def test_sections_are_those_that_run_can_reach(root: Path) -> None:
    assert sections(root, "gate") == ["gate"]
    assert sections(root, "drift") == ["drift"], "it reads traffic's files, not traffic's settings"
    assert sections(root, "train") == ["tools", "rollout", "train"], (
        "through an alias and a class, and not what is never called"
    )


@pytest.mark.parametrize(
    ("reads", "found"),
    [
        ("params.examples.seed, params.gate.looks", ["examples.seed", "gate"]),
        ("params.examples.seed + params.examples.keys", ["examples.keys", "examples.seed"]),
        ("params.examples.seed, params.examples", ["examples"]),
    ],
)
def test_of_the_data_set_the_keys_count_so_that_more_test_examples_repeat_no_training(
    root: Path, reads: str, found: list[str]
) -> None:
    (root / "rft/stages/gate.py").write_text(f"def run(params):\n    return {reads}\n")
    assert sections(root, "gate") == found


@pytest.mark.slow
def test_only_the_stage_that_makes_them_depends_on_the_number_of_test_examples(repository: Path) -> None:
    stages = {
        stage for stage in STAGES if {"examples", "examples.blocks", "examples.test"} & {*sections(repository, stage)}
    }
    assert stages == {"traffic", "examples"}, "the first compares their inputs with production"


@pytest.mark.slow
def test_a_change_in_a_module_reaches_exactly_its_stages(repository: Path) -> None:
    using = {
        module: {stage for stage in STAGES if f"rft/{module}.py" in modules(repository, stage)}
        for module in ("stages/train", "stages/gate", "models/embedded", "errors")
    }
    assert using["stages/train"] == {"train"}
    assert using["stages/gate"] == {"gate"}
    assert "policy" in using["models/embedded"]
    assert "gate" not in using["models/embedded"]
    assert using["errors"] == set(STAGES)


def test_what_a_stage_opens_by_name_is_among_what_it_reads(repository: Path) -> None:
    """The table of stages is written by hand; the code speaks of paths such as
    "data/prompt/prompt.json"."""
    known = {f"data/{stage}" for stage in STAGES} | {"data/champion", "data/model"}
    for stage in STAGES:
        text = (repository / "rft/stages" / f"{stage}.py").read_text(encoding="utf-8")
        for path in set(re.findall(r'Path\("(data/[\w./]+)"\)', text)):
            other = path.split("/")[1]
            if path not in known and other != stage:
                assert any(path == read or path.startswith(f"{read}/") for read in NEEDS[stage].files), (
                    f"{stage} opens {path}"
                )


@pytest.mark.slow
def test_the_pipeline_is_in_order_and_test_examples_have_one_reader(repository: Path) -> None:
    pipeline = yaml.safe_load(dependencies.render(repository))["stages"]
    registered = {"data/registration/opening.json", "data/registration/registration.json"}
    engine = {path for stage in pipeline for path in needs.engine(stage)}
    made: set[str] = {"data/champion", "data/model", "data/window", *engine, *registered}  # the flow's
    for stage, row in pipeline.items():
        stage_files = {path for path in row["deps"] if path.startswith("data/")}
        assert stage_files <= made | {out for out in made if out.endswith("/")}, (
            f"{stage} reads what no stage before it leaves"
        )
        made |= set(row["outs"])
    assert [stage for stage, row in pipeline.items() if "data/examples/test.jsonl" in row["deps"]] == ["challenger"]
    assert all("data/examples" not in path for path in pipeline["policy"]["deps"])


def test_a_stage_leaves_every_file_that_the_engine_looks_for() -> None:
    """Module and table name a file each on its own; the flow leaves the champion's, the
    registration and the packages."""
    left = {path.removesuffix("/") for stage, outputs in STAGES.items() for path in leaves(stage, *outputs.leaves)}
    single = [path for path in vars(stage_files).values() if isinstance(path, Path) and path != stage_files.DATA]
    asked = {str(path) for path in (*stage_files.REPORTS.values(), *single, *map(stage_files.examples_file, SPLITS))}
    known = {path for path in asked if path in left or any(path.startswith(f"{folder}/") for folder in left)}
    flows = {
        "data/champion/champion.json",
        "data/model/model.json",
        "data/registration/opening.json",
        "data/registration/registration.json",
        "data/environment.json",
        "data/window",
    }
    assert asked - known == flows
    assert len(single) == 13
    read = {path for needed in NEEDS.values() for path in needed.files if path.startswith("data/")}
    others = {path for path in read if path not in left and f"{path}/" not in left}
    assert others == {
        "data/champion",
        "data/model",
        "data/window",
        "data/registration/opening.json",
        "data/registration/registration.json",
    }


def test_the_command_compares_and_writes(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    assert dependencies.main([]) == 1
    assert "--write" in capsys.readouterr().out
    assert dependencies.main(["--write"]) == 0
    assert dependencies.main([]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_the_engine_knows_the_sections_that_the_code_reads(repository: Path, stage: str) -> None:
    """R13. The work key is made of rft/needs.py, dvc.yaml of the code: if they differ, unfinished
    work goes on under other settings."""
    assert list(NEEDS[stage].sections) == sections(repository, stage), (
        f"write them into NEEDS[{stage!r}] of rft/needs.py"
    )
