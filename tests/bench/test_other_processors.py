"""The figure `other_processors`: its variants, and that it counts what fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import other_processors as here
from bench.other_processors import Outcome


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


def test_each_number_of_threads_meets_each_set_of_instructions() -> None:
    seen = {(one["RFT_TEST_THREADS"], one.get("ATEN_CPU_CAPABILITY")) for one in here.VARIANTS.values()}
    assert seen == {(threads, name) for threads in ("1", "2", "4") for name in (None, "avx2", "default")}
    assert [one["RFT_TEST_DISTURB"] for one in here.VARIANTS.values()] == [str(n) for n in range(1, 11)]


def test_noise_is_added_once_however_it_is_loaded(repository: Path) -> None:
    """A worker of pytest-xdist finds it by its path, and loads conftest.py, too."""
    code = "import sys; sys.path.insert(0, 'tests'); import disturbed.sitecustomize as here; "
    code += "print([type(one) for one in sys.meta_path].count(here._Disturbed), 'sitecustomize' in sys.modules, end='')"
    for path, expected in (("tests/disturbed", "0 True"), ("", "1 False")):
        environment = {**os.environ, "PYTHONPATH": path, "RFT_TEST_DISTURB": "1"}
        told = subprocess.run(
            [sys.executable, "-c", code], cwd=repository, env=environment, capture_output=True, text=True, check=True
        )
        assert told.stdout == expected


@pytest.mark.slow
def test_a_test_that_fails_is_counted_and_one_that_is_skipped_did_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import os, pytest\ndef test_it():\n    assert os.environ.get('RFT_TEST_DISTURB') is None\n"
    text += "@pytest.fixture\ndef broken():\n    raise OSError\ndef test_set_up(broken): ...\n"
    text += "@pytest.mark.skip\ndef test_skipped(): ...\n"
    write(tmp_path, {"tests/test_a.py": text, "tests/test_b.py": "def test_other(): ...\n", "pytest.ini": "[pytest]\n"})
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take seconds to load
    options = ("-o", "markers=gpu\nstory")
    found = here.run(tmp_path, here.VARIANTS["seed-3"], tmp_path / "log/seed-3", options)
    assert found == Outcome(3, ("tests.test_a::test_it", "tests.test_a::test_set_up"))
    assert "1 failed, 1 passed, 1 skipped, 1 error" in (tmp_path / "log/seed-3.txt").read_text()
    assert here.read(tmp_path / "log/seed-3.xml", 0).broke, "the report and the exit code say different things"
    assert here.read(tmp_path / "missing.xml", 1).broke == "pytest ended with 1"


def test_the_figure_fails_with_any_test_and_has_no_headline_before_all_ran() -> None:
    good = dict.fromkeys(here.VARIANTS, Outcome(7, ()))
    assert here.figure(good).holds is True
    assert here.figure(good).parts[0].n == 7 * 10
    bad = here.figure(good | {"seed-2": Outcome(7, ("tests.test_a::test_it",))})
    assert (bad.holds, bad.parts[0].value) == (False, 1)
    assert bad.notes == {"failed": {"seed-2": ["tests.test_a::test_it"]}}
    some = here.figure({"seed-3": Outcome(7, ())})
    assert (some.holds, some.parts[0].value) == (None, None)
    assert {part.reason for part in some.parts if part.name == "seed-4"} == {"seed-4 was not asked for"}
    assert here.figure({"seed-3": Outcome(0, (), "pytest ended with 3")}).holds is False


def test_what_is_kept_is_not_run_again_until_the_code_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"rft/a.py": "", "bench/results/x.json": "{}", "docs/a.md": ""})
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    ran: list[str] = []

    def run(root: Path, variant: dict[str, str], log: Path) -> Outcome:
        ran.append(log.name)
        return Outcome(1, (), "pytest ended with 2" if log.name == "seed-2" else "")

    monkeypatch.setattr(here, "ROOT", tmp_path)
    monkeypatch.setattr(here, "PLACE", tmp_path / ".rft")
    monkeypatch.setattr(here, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(here, "run", run)
    for _ in range(2):
        here.other_processors(["seed-3", "seed-2"])
    assert ran == ["seed-2", "seed-3", "seed-2"], "what broke is measured again"
    write(tmp_path, {"bench/results/x.json": "{1}", "docs/a.md": "more"})
    here.other_processors(["seed-3"])
    assert len(ran) == 3
    write(tmp_path, {"rft/a.py": "A = 1"})
    here.other_processors(["seed-3"])
    assert ran[3:] == ["seed-3"]
    with pytest.raises(SystemExit, match="no variant is named seed-11"):
        here.other_processors(["seed-11"])
