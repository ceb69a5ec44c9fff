"""The harness of the figures: what holds, what is printed and kept, and the watch over a real tree
of processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import demo, figure, stale, watch
from bench.measure import Figure, Part, failed, unmeasured


def test_a_part_holds_within_its_bound_and_not_beyond() -> None:
    assert Part("demo", 900.0, at_most=900).holds is True
    assert Part("demo", 900.1, at_most=900).holds is False
    assert Part("gain", 0.24, at_least=0.25).holds is False
    assert Part("gain", None, at_least=0.25, reason="no GPU").holds is None
    assert Part("shown", 3.0).holds is True
    assert Part("range", 5.0, at_least=1, at_most=4).bound == "<= 4 and >= 1"


def test_a_figure_fails_with_any_part_and_is_unknown_with_any_unknown() -> None:
    good, bad, unknown = Part("a", 1, at_most=1), Part("b", 2, at_most=1), Part("c", None, reason="no GPU")
    assert [Figure(parts).holds for parts in ((good, good), (good, bad), (good, unknown), (bad, unknown))] == [
        True,
        False,
        None,
        False,
    ]


def test_the_line_has_the_headline_and_the_parts() -> None:
    line = Figure(
        (Part("gain", 0.30004, at_least=0.25, low=0.2, high=0.4, n=288), Part("low end", 0.1, at_least=0.125))
    ).line("icd10_rft")
    assert [line[key] for key in ("name", "value", "low", "high", "n", "bound", "holds")] == [
        "icd10_rft",
        0.3,
        0.2,
        0.4,
        288,
        ">= 0.25",
        False,
    ]
    assert [part["name"] for part in line["parts"]] == ["gain", "low end"]
    lone = unmeasured("x", "no GPU").line("x")
    assert (lone["value"], lone["holds"], lone["reason"]) == (None, None, "no GPU")
    assert "parts" not in lone
    assert failed("x", "the demo broke").line("x")["holds"] is False


def test_only_a_measured_value_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(figure, "RESULTS", tmp_path)
    measured = {"good": Figure((Part("v", 1, at_most=1),)), "bad": Figure((Part("v", 2, at_most=1),))}
    measured |= {"broken": failed("v", "it broke"), "absent": unmeasured("v", "no GPU")}
    monkeypatch.setattr(
        figure, "figures", lambda: {name: lambda args, found=found: found for name, found in measured.items()}
    )
    assert [figure.main([name]) for name in measured] == [0, 1, 1, 0]
    assert {path.stem for path in tmp_path.iterdir()} == {"good", "bad"}
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["holds"] is None


@pytest.mark.slow
def test_without_a_name_the_figures_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert figure.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"demo_time", "demo_again", "demo_kill", "test_time", "icd10_exploits"} <= {
        line.split()[0] for line in lines
    }
    assert all(len(line.split()) > 3 for line in lines), "each figure says what it measures"


def test_a_record_that_is_older_than_its_code_is_marked(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        return subprocess.run(
            ["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    code, other, record = (tmp_path / name for name in ("rft/gate/levels.py", "flows/x.py", "bench/results/a.json"))
    for path in (code, other, record):
        path.parent.mkdir(parents=True)
        path.write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "1")
    assert stale.mark(tmp_path, "b", "bench.gate_null") == "no record"
    record.write_text(json.dumps({"commit": git("rev-parse", "--short", "HEAD").strip()}))
    other.write_text("2")
    assert stale.mark(tmp_path, "a", "bench.gate_null") == ""
    code.write_text("2")
    assert re.fullmatch(r"older than 1 of its \d\d files", stale.mark(tmp_path, "a", "bench.gate_null"))
    record.write_text(json.dumps({"commit": "0123456789ab+edits"}))
    assert "0123456789ab, which is not in this clone" in stale.mark(tmp_path, "a", "bench.gate_null")


def test_an_unknown_name_is_told_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert figure.main(["demo_tme"]) == 2
    assert "demo_time" in capsys.readouterr().err


def test_a_record_names_the_machine_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure, "RESULTS", tmp_path)
    figure.record(Figure((Part("x", 1),)).line("x"), ["--small"])
    kept = json.loads((tmp_path / "x.json").read_text())
    assert kept["args"] == ["--small"]
    assert set(kept["machine"]) - {"gpu"} == {"cores", "memory_gib", "system", "python", "torch"}


STAGE = (
    "import sys, time\nblock = bytearray(64 << 20)\nblock[::4096] = b'x' * "
    "len(block[::4096])\ntime.sleep(float(sys.argv[2]))\n"
)
DRIVER = """import subprocess, sys
for stage, seconds in (pair.split("=") for pair in sys.argv[1:]):
    subprocess.run([sys.executable, "rft-stage", stage, seconds], check=True, start_new_session=True)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder whose `rft-stage` takes 64 MiB and sleeps, and a driver that runs stages in sessions
    of their own."""
    (tmp_path / "rft-stage").write_text(STAGE)
    (tmp_path / "driver.py").write_text(DRIVER)
    return tmp_path


def test_the_watch_sees_stages_and_their_memory(place: Path) -> None:
    seen = watch.watch([sys.executable, "driver.py", "drift=0.6", "gate=0.3"], place, place / "log")
    assert (seen.rc, list(seen.stages), seen.outlived) == (0, ["drift", "gate"], [])
    assert seen.stages["drift"] > seen.stages["gate"] > 0.2
    assert seen.peak_gib > 64 / 1024


def test_the_watch_kills_the_driver_and_reports_a_stage_that_outlives_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "GRACE_S", 0.3)
    seen = watch.watch([sys.executable, "driver.py", "drift=30"], place, place / "log", kill=watch.Kill("drift", 0.1))
    assert (seen.killed, seen.rc, seen.outlived) == (True, -9, ["drift"])
    assert seen.wall_s < 10


def test_the_watch_ends_what_takes_too_long(place: Path) -> None:
    seen = watch.watch([sys.executable, "driver.py", "drift=30"], place, place / "log", limit_s=0.5)
    assert (seen.rc, seen.killed) == (124, False)


def git(where: Path, *args: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    return subprocess.run(
        ["git", *identity, *args], cwd=where, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_published_files_are_those_of_whole_runs_without_wall_times(tmp_path: Path) -> None:
    """Over real git refs and a cache laid out as DVC does."""
    git(tmp_path, "init", "-q")
    listing = [{"relpath": "report.json", "md5": "a" * 32}, {"relpath": "timing.json", "md5": "b" * 32}]
    cache = tmp_path / ".dvc/cache/files/md5/cd"
    cache.mkdir(parents=True)
    (cache / f"{'e' * 30}.dir").write_text(json.dumps(listing))
    baseline = "  baseline: {cmd: x, outs: [{path: data/baseline, md5: cd" + "e" * 30 + ".dir}]}\n"
    gate = "  gate: {cmd: x, outs: [{path: data/gate/decision.json, md5: " + "f" * 32 + "}]}\n"
    for name, stages in (("stopped", baseline), ("whole", baseline + gate)):
        (tmp_path / "dvc.lock").write_text(f"schema: '2.0'\nstages:\n{stages}")
        git(tmp_path, "add", "dvc.lock")
        git(tmp_path, "commit", "-qm", name)
        git(tmp_path, "update-ref", f"refs/exps/aa/bb/{name}", "HEAD")
    assert demo._runs(tmp_path) == ["refs/exps/aa/bb/whole"]
    assert demo.published(tmp_path) == {"data/baseline/report.json": "a" * 32, "data/gate/decision.json": "f" * 32}
