"""The laws of the house (CONTRIBUTING.md), kept by machine: layers, one word everywhere,
packages, files, what may not be written.

Read from the sources, so that a law cannot be met by an import that no test happens to make.
"""

from __future__ import annotations

import ast
import email
import inspect
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from bench import house, prose
from flows.cli import table
from rft import config, reports

ROOT = Path(__file__).resolve().parents[1]
STAGES = ("traffic", "drift", "examples", "policy", "baseline", "prompt", "train", "challenger", "gate")
LAYERS = ("rft", "tasks", "flows", "service")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAX_LINES = 700


@cache
def tracked() -> list[Path]:
    """What git tracks or would: relative to the top."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return sorted(Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file())


def sources(*tops: str) -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py" and path.parts[0] in tops]


def text(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def imports(path: Path) -> Iterator[str]:
    """Every absolute import, wherever in the file, as the dotted name that it loads."""
    for node in ast.walk(ast.parse(text(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers(forbidden: set[str], *tops: str) -> list[str]:
    return [
        f"{path} imports {name}" for path in sources(*tops) for name in imports(path) if name.split(".")[0] in forbidden
    ]


# -- the layers ------------------------------------------------------------------------------------
def test_the_rooms_are_under_a_contract() -> None:
    """`lint-imports` keeps the order in `make check`. Here: a package that nobody thought of is in
    it too."""
    contract = PYPROJECT["tool"]["importlinter"]
    assert set(contract["root_packages"]) == {path.parts[0] for path in sources(*LAYERS, "bench")}
    assert {name for one in contract["contracts"] if one.get("exhaustive") for name in one["containers"]} == {
        "rft",
        "tasks",
    }
    assert "lint-imports" in text(Path("Makefile"))


def test_recipes_import_only_the_engine() -> None:
    """The one that `rft new` copies too."""
    forbidden = {"tasks", "flows", "service", "bench", "recipes", "prefect", "dvc", "mlflow"}
    assert importers(forbidden, "recipes") == []
    assert [line for line in importers(forbidden, "flows") if line.startswith("flows/template/")] == []


def test_recipes_are_loaded_in_one_place() -> None:
    ways = re.compile(r"spec_from_file_location|runpy|[\"']recipe_|import_module\([^)]*recipe")
    assert [
        str(path)
        for path in sources("rft", "tasks", "flows")
        if path != Path("rft/recipe.py") and ways.search(text(path))
    ] == []


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after the statement."""
    code = f"{statement}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
def test_a_decision_can_be_made_without_torch() -> None:
    assert "torch" not in loaded_by("import rft.stages.gate, rft.gate.decide, rft.stages.drift, rft.grading.grader")


@pytest.mark.slow
def test_no_verb_loads_at_its_top_what_takes_seconds() -> None:
    verbs = ", ".join(f"flows.cli.{name.replace(' ', '.')}" for name in table.PATHS)
    assert loaded_by(f"import {verbs}") & {"torch", "transformers", "prefect", "mlflow", "great_expectations"} == set()


def test_a_log_is_read_without_the_loop() -> None:
    """Nor what the loop stands on: tools, graders and their network."""
    assert (
        loaded_by("import rft.rollouts.transcript")
        & {"rft.rollouts.loop", "rft.tools.client", "rft.grading.grader", "rft.recipe", "aiohttp"}
        == set()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "spared"),
    [
        ("rft.sampling.remote", {"rft.rollouts.loop", "rft.tools.client", "rft.grading.grader"}),
        ("rft.grading.preflight", {"rft.rollouts.loop", "rft.rollouts.log", "torch"}),
        ("rft.wire.contract", {"rft.wire.client", "aiohttp"}),
    ],
)
def test_what_stands_below_the_loop_and_the_network_does_not_load_them(module: str, spared: set[str]) -> None:
    assert loaded_by(f"import {module}") & spared == set()


@pytest.mark.slow
def test_help_waits_for_nothing_heavy() -> None:
    heavy = {"torch", "transformers", "pandas", "great_expectations", "mlflow", "prefect", "dvc"}
    assert loaded_by("from flows.cli import parsing; parsing.parser([])") & heavy == set()


# -- one word everywhere ---------------------------------------------------------------------------
def test_the_stages_are_the_same_everywhere() -> None:
    from rft.__main__ import STAGES as commands

    pipeline = yaml.safe_load(text(Path("dvc.yaml")))["stages"]
    assert tuple(commands) == STAGES
    assert tuple(pipeline) == STAGES
    assert [name for name in config.Params.model_fields if name in STAGES] == list(STAGES)
    assert {stage: pipeline[stage]["cmd"] for stage in STAGES} == {stage: f"exec rft-stage {stage}" for stage in STAGES}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_has_its_module_task_tests_and_folder(stage: str) -> None:
    assert [
        str(path)
        for path in (Path(f"rft/stages/{stage}.py"), Path(f"tasks/stages/{stage}.py"))
        if path not in tracked()
    ] == []
    assert Path(f"tests/stages/test_{stage}.py") in tracked()
    tree = ast.parse(text(Path(f"rft/stages/{stage}.py")))
    runs = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "run"]
    assert [[argument.arg for argument in run.args.args] for run in runs] == [["params"]]
    assert re.search(rf"^\W*`?{stage}/?`?\b", text(Path("data/README.md")), re.MULTILINE), (
        f"data/README.md has no line on {stage}"
    )


@pytest.mark.slow
def test_dvc_knows_what_each_stage_really_imports() -> None:
    from tasks import dependencies

    assert text(Path("dvc.yaml")) == dependencies.render(ROOT), "dvc.yaml is not what the imports say: make dvc"


def test_the_reading_order_names_every_module() -> None:
    for package in ("rft", "tasks", "flows"):
        plan = ast.get_docstring(ast.parse(text(Path(package, "__init__.py")))) or ""
        modules = {path.stem if len(path.parts) == 2 else path.parts[1] for path in sources(package)} - {
            "__init__",
            "__main__",
        }
        assert [name for name in sorted(modules) if not re.search(rf"\b{name}\b", plan)] == [], (
            f"{package}/__init__.py does not say where they are"
        )


def test_the_essay_of_a_package_names_its_modules_and_no_others() -> None:
    """Except where modules are alike: stages, the command line's verbs (their table lists them)."""
    wrong: list[str] = []
    for init in sorted(
        path for top in ("rft", "tasks", "flows") for path in sources(top) if path.name == "__init__.py"
    ):
        essay, here = ast.get_docstring(ast.parse(text(init))) or "", ROOT / init.parent
        modules = {path.stem for path in here.glob("*.py")} | {path.parent.name for path in here.glob("*/__init__.py")}
        modules -= {"__init__", "__main__"}
        rows = re.findall(r"^ *((?:\w+, )*\w+)(?:,?$|,?  +)(?!.*\S  )", essay, re.MULTILINE)  # of two columns
        named = {name for row in rows for name in row.split(", ")} | {*re.findall(r"(?<![\w/.])(\w+)\.py\b", essay)}
        named |= modules & {*re.findall(r"(?:^ *|`)(\w+)\b", essay, re.MULTILINE)}
        if str(init.parent) != "tasks/stages" and init.parts[:2] != ("flows", "cli"):
            wrong += [f"{init} leaves out {name}" for name in sorted(modules - named)]
        defined = "\n".join(text(path.relative_to(ROOT)) for path in here.glob("*.py"))
        wrong += [
            f"{init} names {name}"
            for name in sorted(named - modules)
            if not re.search(rf"\b(?:def|class) {name}\b|\b{name}\b.*=|\"{name}\"", defined)
        ]
    assert not wrong, "\n".join(wrong)


def test_the_surface_is_the_recorded_one(golden: Callable[[str, str], None]) -> None:
    """Every key of params.yaml and field of a report: an addition is a visible diff."""
    lines = [f"params {key}" for key in sorted(_keys(config.Params, ""))]
    for name, kind in sorted(inspect.getmembers(reports, inspect.isclass)):
        if issubclass(kind, config.BaseModel) and kind is not reports.Report:
            lines += [f"report {name}.{field}" for field in sorted(kind.model_fields)]
    golden("surface.txt", "\n".join(lines) + "\n")


def _keys(section: type[config.BaseModel], prefix: str) -> Iterator[str]:
    for name, info in section.model_fields.items():
        key = f"{prefix}{info.alias or name}"
        if isinstance(info.annotation, type) and issubclass(info.annotation, config.BaseModel):
            yield from _keys(info.annotation, f"{key}.")
        else:
            yield f"{key} = {'required' if info.is_required() else repr(info.default)}"


# -- packages --------------------------------------------------------------------------------------
def test_the_package_list_is_complete() -> None:
    inits = [
        path
        for path in sources("rft", "tasks", "flows", "service")
        if path.name == "__init__.py" and "template" not in path.parts
    ]
    assert sorted(PYPROJECT["tool"]["setuptools"]["packages"]) == sorted(".".join(path.parent.parts) for path in inits)
    with_code = {path.parent for path in sources("rft", "tasks", "flows", "service") if "template" not in path.parts}
    assert with_code == {path.parent for path in inits}, "a folder with modules has no __init__.py"


def test_data_of_the_packages_is_shipped() -> None:
    declared = PYPROJECT["tool"]["setuptools"]["package-data"]
    for path in tracked():
        if path.parts[0] in LAYERS and (path.suffix != ".py" or "template" in path.parts):
            inside = Path(*path.parts[1:])
            patterns = declared.get(path.parts[0], [])
            assert any(
                inside in {p.relative_to(ROOT / path.parts[0]) for p in (ROOT / path.parts[0]).glob(pattern)}
                for pattern in patterns
            ), path


@pytest.mark.slow
def test_a_wheel_holds_every_module_the_licence_and_who_we_are(tmp_path: Path) -> None:
    """Item 7: built by the backend that pyproject.toml names, from what Git tracks."""
    for path in tracked():
        if path.parts[0] in LAYERS or str(path) in ("pyproject.toml", "README.md", "LICENSE"):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, tmp_path / path)
    code = "from setuptools import build_meta; build_meta.build_wheel('out')"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = (tmp_path / "out").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        about = email.message_from_bytes(archive.read(f"{info}/METADATA"))
        licence = archive.read(f"{info}/licenses/LICENSE").decode()
    assert {name for name in names if not name.startswith(info)} == {
        str(path) for path in tracked() if path.parts[0] in LAYERS
    }
    assert (about["Name"], about["License-Expression"], about["License-File"]) == ("agent-rft", "Apache-2.0", "LICENSE")
    assert about["Author"] == "The agent-rft authors"
    assert about["Summary"]
    assert about["Keywords"]
    assert about.get_all("Classifier")
    assert str(about.get_payload()).startswith("# agent-rft")
    assert "Version 2.0, January 2004" in licence
    assert "END OF TERMS AND CONDITIONS" in licence
    assert "Copyright 2026 The agent-rft authors" in licence


def test_the_packages_are_those_of_this_repository() -> None:
    import flows
    import rft
    import tasks

    assert [Path(package.__file__ or "").parent for package in (rft, tasks, flows)] == [
        ROOT / "rft",
        ROOT / "tasks",
        ROOT / "flows",
    ]


@pytest.mark.slow
def test_every_third_party_import_is_declared() -> None:
    from importlib.metadata import packages_distributions

    def normal(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    words = [re.split(r"[<>=!~;\[ ]", requirement)[0] for requirement in PYPROJECT["project"]["dependencies"]]
    declared = {normal(word) for word in words}
    distributions = packages_distributions()
    used = {
        name.split(".")[0] for path in sources("rft", "tasks", "flows", "service", "recipes") for name in imports(path)
    }
    used -= {*sys.stdlib_module_names, *LAYERS, "__future__"}
    assert {name for name in used if not {normal(d) for d in distributions.get(name, [name])} & declared} == set()


def test_every_dependency_is_pinned() -> None:
    pins = {
        re.sub(r"[-_.]+", "-", line.split("==")[0]).lower()
        for line in text(Path("constraints.txt")).splitlines()
        if "==" in line
    }
    wanted = PYPROJECT["project"]["dependencies"] + PYPROJECT["project"]["optional-dependencies"]["test"]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[<>=!~;\[ ]", requirement)[0]).lower() for requirement in wanted}
    assert names - pins == {"torch"}  # its build is chosen at set-up


def test_hooks_and_workflow_run_what_make_runs() -> None:
    recipes = re.findall(r"^(?:lint|types):.*\n((?:\t.*\n)+)", text(Path("Makefile")), re.MULTILINE)
    assert len(recipes) == 2
    lines = "".join(recipes).replace("$(BIN)", ".venv/bin").splitlines()
    checks = [line.strip().removeprefix("@").split(" > ")[0] for line in lines]
    repos = yaml.safe_load(text(Path(".pre-commit-config.yaml")))["repos"]
    assert [hook["entry"] for repo in repos for hook in repo["hooks"]] == checks
    workflow = yaml.safe_load(text(Path(".github/workflows/ci.yml")))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]


# -- files -----------------------------------------------------------------------------------------
@pytest.mark.slow
def test_no_imports_go_in_a_circle() -> None:
    """Of files, wherever in the file: a circle by imports in functions is one, too."""
    assert house.circle(ROOT) == ()


def test_every_module_opens_with_its_essay() -> None:
    tops = ("rft", "tasks", "flows", "recipes", "bench", "tests", "infra")
    assert [
        str(path) for path in sources(*tops) if text(path).strip() and not ast.get_docstring(ast.parse(text(path)))
    ] == []


def test_no_file_outgrows_reading() -> None:
    assert [
        f"{path}: {n} lines" for path in tracked() if path.suffix == ".py" and (n := text(path).count("\n")) > MAX_LINES
    ] == []


def test_no_file_is_named_after_nothing() -> None:
    empty = re.compile(r"(^|_)(utils?|helpers?|managers?|misc|common)(_|$)")
    assert [str(path) for path in tracked() if any(empty.search(Path(part).stem) for part in path.parts)] == []


PROSE = {".py", ".md", ".toml", ".yaml", ".yml", ".json", ".jsonl", ".txt", ".html", ".sh", ""}


def written(pattern: str) -> list[str]:
    """Places in tracked text files, this one left out."""
    found, me = [], Path(__file__).relative_to(ROOT)
    for path in tracked():
        if path != me and path.suffix in PROSE:
            for number, line in enumerate(text(path).splitlines(), 1):
                if re.search(pattern, line):
                    found.append(f"{path}:{number}: {line.strip()[:80]}")
    return found


@pytest.mark.slow
def test_no_path_or_index_of_one_machine_is_written_down() -> None:
    assert written(r"(?<![\w.])/(work|home/\w|root|opt/\w|tmp/\w)|\b[\w.-]*(pypi|pythonhosted|npmjs)\.org\b") == []


def test_nothing_is_left_for_later() -> None:
    assert written(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError|\bfor now\b(?!, \w+ in\b)") == []


def test_secrets_are_ignored_by_git() -> None:
    for name in (
        ".env",
        ".env.production",
        "infra/server.pem",
        "id.key",
        ".venv/pyvenv.cfg",
        ".rft/ledger.jsonl",
        "mlruns/mlflow.db",
    ):
        assert subprocess.run(["git", "check-ignore", "-q", "--no-index", name], cwd=ROOT).returncode == 0, (
            f"git does not ignore {name}"
        )


def test_the_papers_are_there() -> None:
    papers = ("README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", ".ci/run", "constraints.txt")
    pages = (
        "data/README.md",
        "mlruns/README.md",
        "docs/README.md",
        "docs/params.md",
        "docs/traffic.md",
        "docs/wire.md",
    )
    assert [name for name in papers + pages if Path(name) not in tracked()] == []


# -- English ---------------------------------------------------------------------------------------
@pytest.mark.slow
def test_no_sentence_is_long_and_no_phrase_is_one_that_readers_stumble_over() -> None:
    """Of docstrings and pages; bench/prose.py counts the same."""
    sentences = [*prose.of_pages(), *prose.of_code()]
    wrong = [f"{one.where}: {one.num_words} words: {one.text}" for one in sentences if one.num_words > prose.LONG]
    for name, pattern in prose.PATTERNS.items():
        wrong += [f"{one.where}: {name}: {one.text}" for one in sentences if re.search(pattern, one.text)]
    assert not wrong, "\n".join(wrong)


def test_readme_is_short() -> None:
    assert len(text(Path("README.md")).split()) <= 2500
