"""The command line with wrong input: one message with its remedy, an exit code, nothing
half-written. And the verbs that need no ladder."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import ladder_clone
import people
import pytest
from at_hand import AtHand

from flows import cli, settings
from flows.cli import page, table
from flows.cli.runs import list as listing
from flows.cli.table import PATHS
from rft.errors import ConfigError, UserError
from tasks.runs import records
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> ladder_clone.Scripted:
    return ladder_clone.make(tmp_path_factory.mktemp("cli"))


def helped(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit, match="0"):
        cli.main([*words.split(), "--help"])
    return capsys.readouterr().out


def test_help_is_one_screen_that_teaches_and_is_quick(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    began = time.process_time()
    text = helped("", capsys)
    assert time.process_time() - began < 0.5
    rows = re.findall(r"^  (\S+) +\S.*$", text.partition("options:")[0], re.MULTILINE)
    assert tuple(rows) == table.VERBS
    assert len(rows) <= 25
    assert len(text.splitlines()) <= 45
    assert [line for line in text.splitlines() if len(line) > 80] == []
    for words in PATHS:
        helped(words, capsys)
    assert "--override-dirty" in helped("approve", capsys)


@pytest.mark.parametrize("words", [*PATHS, *table.BELOW])
def test_help_wraps_its_paragraphs_to_the_terminal(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside usage, options and examples, which are indented."""
    monkeypatch.setenv("COLUMNS", "60")
    lines = helped(words, capsys).splitlines()
    assert len([line for line in lines if line[:1].isalpha()]) >= 3
    assert [line for line in lines if len(line) > 60 and not line.startswith("  ")] == []


@pytest.mark.parametrize("word", table.BELOW)
def test_the_help_of_a_word_shows_each_verb_below_it(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = helped(word, capsys)
    alone = [table.ALONE[word]] if f"  rft {word}  " in text else []
    assert [verb for verb in table.BELOW[word] if f"  rft {word} {verb}" not in text and verb not in alone] == []


def test_each_verb_is_a_module_of_its_name(repository: Path) -> None:
    place = repository / "flows/cli"
    found = {" ".join(path.relative_to(place).with_suffix("").parts) for path in place.rglob("*.py")}
    found = {name for name in found if not name.endswith(("__init__", "__main__"))}
    assert found == {*PATHS, "completion", "options", "page", "parsing", "table"}


@pytest.mark.slow
def test_the_page_of_commands_is_what_the_help_says() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.render(), "docs/cli.md is old: make docs"


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("cancel RUN", "`rft cancel` is now: rft runs cancel"),
        ("serve-tools recipes/icd10", "`rft serve-tools` is now: rft stage tools"),
        ("ledger --verify", "`rft ledger --verify` is now: rft ledger verify"),
        ("rollouts RUN --show=3f2a", "`rft rollouts --show` is now: rft rollouts show ROLLOUT"),
        ("backup /mnt/disk", "Did you mean `rft backup make /mnt/disk`?"),
        ("stage baseline", "Did you mean `rft stage run baseline`?"),
        ("rollouts 1a2b", "Did you mean `rft rollouts list 1a2b`?"),
        ("backup", "`rft backup` needs a verb. The verbs below it: make, verify, restore"),
        ("compare A B", "`rft compare` is not a verb. Did you mean `rft runs compare`?"),
        ("aproove RUN", "`rft aproove` is not a verb. Did you mean 'approve'?"),
        ("serve", "`rft serve` is not in this version. It will serve the champion"),
    ],
)
def test_a_spelling_of_before_or_a_wrong_one_is_told_todays(
    typed: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(typed.split()) == 2
    assert told in capsys.readouterr().err


def test_what_the_table_advises_is_there() -> None:
    for today in [*table.MOVED.values(), *(one.partition(" --")[0] for one in table.MOVED_OPTIONS.values())]:
        assert " ".join(word for word in today.split() if word.islower()) in PATHS
    assert {verb: word for word, verb in table.ALONE.items() if verb not in table.BELOW[word]} == {}
    assert not {*table.MOVED, *table.COMING} & {*table.VERBS}


@pytest.mark.parametrize("word", sorted(table.ALONE))
def test_a_word_alone_does_what_is_asked_for_most(word: str) -> None:
    assert table.understood([word]) == [word, table.ALONE[word]]
    assert table.understood([word, "--json"]) == [word, table.ALONE[word], "--json"]
    assert table.understood([word, "--help"]) == [word, "--help"]


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_every_verb(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--completion", shell])
    script = capsys.readouterr().out
    assert [word for path in PATHS for word in path.split() if word not in script] == []


@pytest.mark.slow
def test_bash_completes_words_options_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a real bash, with a verb, a verb below a word, an option and a folder."""
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--completion", "bash"])
    script = tmp_path / "rft.bash"
    script.write_text(capsys.readouterr().out, encoding="utf-8")
    (tmp_path / "a-folder").mkdir()

    def completed(*words: str) -> set[str]:
        line = " ".join(words)
        code = (
            f"source {script}; COMP_WORDS=({line} ''); COMP_CWORD={len(words)}; COMP_LINE='{line} '; "
            f'COMP_POINT=${{#COMP_LINE}}; _shtab_rft; printf "%s\\n" "${{COMPREPLY[@]}}"'
        )
        done = subprocess.run(["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
        return set(done.stdout.split())

    assert {"run", "runs", "approve", "traffic"} <= completed("rft")
    assert {"list", "compare", "cancel"} <= completed("rft", "runs")
    assert "a-folder" in completed("rft", "backup", "make")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--set", "train.stepz=3"], "params.yaml: unknown key 'train.stepz'. Did you mean 'steps'?"),
        (["run", "--set", "train.steps=0"], "params.yaml: 'train.steps' = 0:"),
        (["run", "--set", "train"], "write it as section.key=value"),
        (["run", "--params", "missing.yaml"], "missing.yaml: missing"),
        # N12: not "stages before it have not run"
        (["run", "--set", "recipe.path=recipes/gone"], "recipe.path = 'recipes/gone': no examples.py in"),
        (
            ["stage", "run", "policy", "--set", "recipe.path=recipes/gone"],
            "recipe.path = 'recipes/gone': no examples.py in",
        ),
        (["run", "--until", "gate"], "--until gate: comes after the look at the test set"),
        (["run", "--until", "examples"], "--until examples: is soon done by itself: "),
        (
            ["run", "--until", "trian"],
            "--until trian: names no stage where a run can end. Name one of policy, baseline",
        ),
        (["runs", "extend", "nothing"], "no run named 'nothing'"),
        (["rollback", "--reason", "why"], "nothing was promoted yet"),
        (
            ["rollback", "--reason", "why", "--model", "a", "--params", "b"],
            "--model names the model, and so do --params and --set",
        ),
        (["stage", "run", "drfit"], "no stage 'drfit'. The stages: traffic, drift,"),
        (["runs", "report", "nothing"], "no run named 'nothing'"),
        (["runs", "cancel", "nothing"], "no run named 'nothing'"),
        (["runs", "gc", "--set", "run.retention.work_days=-1"], "params.yaml: 'run.retention.work_days' = -1:"),
        (["run", "--set", "run.max_hours=0"], "params.yaml: 'run.max_hours' = 0:"),
        (["approve", "nothing", "--reason", "why", *people.by("Ada")], "no run named 'nothing'"),
        # before a key is missed
        (["approve", "nothing", "--reason", "why", "--key", "none"], "no run named 'nothing'"),
        (["reject", "nothing", "--reason", "why", "--key", "none"], "no run named 'nothing'"),
        (
            ["traffic", "drift", "missing.jsonl"],
            "missing.jsonl: there is no such file. Set traffic.file to a file, a folder",
        ),
        (["new", "agents/mine"], "is not a workspace yet: agents are listed in rft.yaml. Make it one: rft init"),
        (["up"], "infra/schedule.yaml: missing"),
    ],
)
def test_wrong_input_is_one_message(
    scripted: ladder_clone.Scripted,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(scripted.root)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    # no server is started for what fails before it is needed
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert scripted.git("status", "--porcelain") == ""


def test_attempts_at_one_thing_are_one_row(scripted: ladder_clone.Scripted) -> None:
    """N19: after two interruptions and a finish there is one row, and the same twice finished is
    two."""
    common = {
        "commit": "c" * 40,
        "edits_sha256": None,
        "champion_version": 0,
        "window": "w",
        "inputs": [],
        "started_by": "Ada",
    }
    states = (
        ("a", "interrupted"),
        ("a", "killed"),
        ("b", "interrupted"),
        ("a", "finished"),
        ("a", "finished"),
        ("a", "failed"),
    )
    oldest_first = [
        RunRecord(name=f"run-{n}", key=key, state=state, started=f"2026-03-0{n}T00:00:00Z", **common)  # type: ignore[arg-type]
        for n, (key, state) in enumerate(states, 1)
    ]
    rows = [(record.name, count) for record, count in listing.attempts(oldest_first[::-1])]
    assert rows == [("run-6", 1), ("run-5", 1), ("run-4", 3), ("run-3", 1)]


def test_outside_of_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (
        ["run"],
        ["runs"],
        ["stage", "run", "policy"],
        ["new", "x"],
        ["demo", "--small"],
        ["doctor"],
        ["rollouts"],
        ["play"],
        ["export", "1", "x"],
    ):
        assert cli.main(arguments) == 2
        assert "is not inside a Git repository" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_full_disk_is_said(scripted: ladder_clone.Scripted) -> None:
    """/dev/full is a disk that is always full."""
    scripted.set_params(policy={"seed": 6})
    stage = scripted.root / "rft/stages/policy.py"
    text = stage.read_text()
    stage.write_text(text.replace("    work(params)\n", '    Path("/dev/full").write_text("x")\n'))
    done = scripted.rft("stage", "run", "policy")
    stage.write_text(text)
    scripted.git("checkout", "params.yaml")
    assert done.returncode == 3
    assert re.search(r"^error: stage policy: .*the disk is full.*Free some space", done.stderr)


@pytest.mark.story
def test_one_stage_by_hand_with_any_settings(scripted: ladder_clone.Scripted) -> None:
    """N20: with --params and --set; a section that the file leaves out is not an error; what was
    made before comes from the cache."""
    others = scripted.root / "recipes" / "tiny" / "params.yaml"
    others.write_text((scripted.root / "params.yaml").read_text())
    before = scripted.ran().count("policy")
    done = scripted.rft("stage", "run", "policy", "--params", "recipes/tiny/params.yaml", "--set", "policy.seed=5")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Its files: data/policy, made with the settings of recipes/tiny/params.yaml and of --set" in done.stdout
    assert (scripted.root / "data/policy/report.json").stat().st_mode & 0o200, "a plain file, no link into the cache"
    assert "unchanged, skipped" in scripted.rft("stage", "run", "policy", "--set", "policy.seed=5").stdout
    assert scripted.ran().count("policy") == before + 1
    assert "unchanged" not in scripted.rft("stage", "run", "policy").stdout, (
        "its sections are not in params.yaml, and its seed is another"
    )
    missing = scripted.rft("stage", "run", "baseline", "--params", "recipes/tiny/params.yaml")
    assert missing.returncode == 2
    assert re.search(
        r"reads data/examples/keys.json, which is missing.*stage run examples --params recipes/tiny/params.yaml$",
        missing.stderr,
    )
    others.unlink()
    assert scripted.git("status", "--porcelain") == ""
    assert scripted.git("worktree", "list").count("\n") == 0


@pytest.mark.story
def test_a_window_is_named_from_where_the_user_is(
    tmp_path: Path, at_hand: AtHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    made = ladder_clone.make(tmp_path / "a")
    ended = at_hand(made.root / "data/inbox", "run", "--window", "window.jsonl", "--until", "policy")
    assert ended.returncode == 0, ended.stderr
    [record] = records.load_all(made.clone)
    assert record.asked_window == "data/inbox/window.jsonl", "by which the run can be repeated anywhere"


def test_settings_and_windows(scripted: ladder_clone.Scripted) -> None:
    found = settings.resolve(
        scripted.clone,
        overrides=("train.steps=7", "train.from=policy", "drift.effects.psi=0.3", "recipe.options.polite=true"),
    )
    assert (found.train.steps, found.train.from_, found.drift.effects.psi) == (7, "policy", 0.3)
    assert found.recipe.options == {"polite": True}
    with pytest.raises(ConfigError, match=r"--set train.steps=\{: not YAML"):
        settings.resolve(scripted.clone, overrides=("train.steps={",))
    inbox = scripted.root / "data/inbox"
    for name in ("2026-W09.jsonl", "2026-W10.jsonl"):
        (inbox / name).touch()
    assert settings.newest(scripted.clone, "data/inbox/2026-*.jsonl", "recipes/tiny") == inbox / "2026-W10.jsonl"
    assert settings.newest(scripted.clone, "data/inbox/2026-W09.jsonl", "recipes/tiny") == inbox / "2026-W09.jsonl"
    with pytest.raises(UserError, match="no file matches the pattern"):
        settings.newest(scripted.clone, "data/inbox/*.csv", "recipes/tiny")
    # N11: a pattern never takes another agent's traffic
    (inbox / "tiny").mkdir()
    (inbox / "tiny" / "2026-W11.jsonl").touch()
    with pytest.raises(
        UserError,
        match=r"matches data/inbox/window.jsonl, which is in no recipe's folder; this recipe is tiny. "
        r"Use data/inbox/tiny/",
    ):
        settings.newest(scripted.clone, "data/inbox/*.jsonl", "recipes/tiny")
    with pytest.raises(UserError, match=r"which is traffic of recipe tiny; this recipe is other"):
        settings.newest(scripted.clone, "data/inbox/*/*.jsonl", "recipes/other")
    assert (
        settings.newest(scripted.clone, "data/inbox/tiny/*.jsonl", "recipes/tiny") == inbox / "tiny" / "2026-W11.jsonl"
    )


@pytest.mark.slow
def test_a_broken_pipe_is_silence(scripted: ladder_clone.Scripted) -> None:
    command = scripted.command("--help")
    with subprocess.Popen(**command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


def test_the_clone_keeps_its_tools_to_itself(scripted: ladder_clone.Scripted) -> None:
    """Every tool's files lie below .rft or mlruns, and Git ignores both."""
    assert Clone(scripted.root).state == scripted.root / ".rft"
    for name in (
        ".rft/prefect/prefect.db",
        "mlruns/mlflow.db",
        "data/inbox/w.jsonl",
        "data/train/weights/model.bin",
        "data/champion/weights/model.bin",
        ".env",
    ):
        scripted.git("check-ignore", "--quiet", "--no-index", name)
