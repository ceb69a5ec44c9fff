"""Every command that is printed can be pasted: in any folder of the clone, with the settings that
were given, on the agent that was meant (N1)."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import ladder_clone
import people
import pytest
import yaml
from at_hand import AtHand

from flows import cli, settings
from flows.cli import parsing, table
from flows.cli.doctor import check
from rft import commands
from rft.errors import UserError
from tasks.ledger import book
from tasks.ledger.facts import Move
from tasks.ledger.state import State
from tasks.promotion import acts
from tasks.runs import records

PROGRAM = shlex.join([sys.executable, "-m", "flows.cli"])


def test_settings_go_along_quoted_and_only_where_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file inside the clone is named from its top; a path with a space survives the shell."""
    (tmp_path / "recipes" / "my agent").mkdir(parents=True)
    (tmp_path / "recipes" / "my agent" / "params.yaml").touch()
    monkeypatch.chdir(tmp_path / "recipes" / "my agent")
    commands.remember("rft", commands.options(tmp_path, "params.yaml", ["recipe.options.note=two words"]))
    line = commands.command("run", "--window", "FILE")
    wanted = [
        "rft",
        "run",
        "--window",
        "FILE",
        "--params",
        "recipes/my agent/params.yaml",
        "--set",
        "recipe.options.note=two words",
    ]
    assert shlex.split(line) == wanted
    assert commands.command("approve", "a-run", *commands.WHY) == "rft approve a-run --reason TEXT"
    assert commands.from_the_top(tmp_path, "/elsewhere/params.yaml") == "/elsewhere/params.yaml"


def test_a_tool_server_of_a_worktree_is_named_in_the_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worktree is gone when the message is read."""
    monkeypatch.setenv("RFT_STATE", str(tmp_path / ".rft"))
    commands.remember("rft")
    told = commands.toolserver(tmp_path / ".rft" / "worktrees" / "a-run" / "recipes" / "mine")
    assert shlex.split(told) == ["rft", "stage", "tools", str(tmp_path / "recipes" / "mine")]


def test_the_verbs_that_need_settings_take_them() -> None:
    for name in commands.NEEDS_SETTINGS:
        found = parsing.parser()
        for word in table.understood(name.split()):
            found = next(one for one in found._actions if isinstance(one, argparse._SubParsersAction)).choices[word]
        assert {"--params", "--set"} <= set(found._option_string_actions), name


@pytest.mark.story
def test_a_session_of_pasted_commands(tmp_path: Path, at_hand: AtHand, monkeypatch: pytest.MonkeyPatch) -> None:
    """N1: the clone's own params.yaml is another agent's. Started once with --params, each next
    command is pasted as it was printed, elsewhere."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = ladder_clone.make(tmp_path / "my work")
    home = scripted.root / "recipes" / "tiny"
    (home / "my params.yaml").write_text((scripted.root / "params.yaml").read_text())
    shutil.copytree(home, scripted.root / "recipes" / "other")
    scripted.set_params(recipe={"path": "recipes/other"}, traffic={"file": "data/inbox/nowhere.jsonl"})
    scripted.git("add", "--all")
    scripted.git("commit", "--quiet", "--message", "two agents")
    for name, value in people.signing("Ada").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", [str(Path(cli.__file__).with_name("__main__.py"))])
    done: list[str] = []

    def paste(line: str, folder: Path = scripted.root / "recipes" / "other") -> str:
        """What bash makes of the line, done by hand."""
        told = subprocess.run(
            ["bash", "-c", line.replace(PROGRAM, "printf '%s\\0'", 1)], capture_output=True, text=True, check=True
        )
        ended = at_hand(folder, *told.stdout.split("\0")[:-1])
        assert ended.returncode == 0, f"{line}\n{ended.stdout}\n{ended.stderr}"
        done.append(line)
        return ended.stdout

    def printed(text: str, verb: str) -> str:
        [line] = {found.strip() for found in re.findall(rf"{re.escape(PROGRAM)} {verb}\b[^\n]*", text)}
        return line

    checked = paste(f"{PROGRAM} doctor --no-model --params 'my params.yaml' --set train.steps=20", home)
    run = printed(checked, "run")
    assert shlex.split(run)[-4:] == ["--params", "recipes/tiny/my params.yaml", "--set", "train.steps=20"]
    ended = paste(run)
    [record] = records.load_all(scripted.clone)
    assert yaml.safe_load(scripted.git("show", f"{record.revision}:params.yaml"))["recipe"]["path"] == "recipes/tiny"
    assert settings.of_run(scripted.clone, record).recipe.path == "recipes/tiny", "what replay grades with"
    assert record.again == commands.command("run", settings=shlex.split(run)[-4:])
    assert printed(paste(f"{PROGRAM} runs"), "approve") == printed(ended, "approve")
    paste(f"{PROGRAM} runs report {record.name}")
    undo = printed(paste(printed(ended, "approve")), "rollback")
    [made] = book.read(scripted.clone).state.promotions.values()
    assert (made.model, made.run) == ("tiny", record.name)
    paste(undo)
    assert book.read(scripted.clone).state.champion("tiny") == 0
    again = f"{PROGRAM} rollback --reason TEXT"
    refused = subprocess.run(
        ["bash", "-c", again],
        cwd=scripted.root,
        env=scripted.command()["env"],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert "tiny is at its beginning" in refused.stderr, (
        "the only model that was ever promoted, not the one of params.yaml"
    )
    assert len(done) == 6


def test_a_rollback_names_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N1: without a name the only one promoted here; with several, an error that lists them."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    here = ladder_clone.make(tmp_path / "a").clone
    with pytest.raises(UserError, match="nothing was promoted yet"):
        acts.only_model(book.read(here).state)
    moves = {model: [Move(9, "2026-03-02T00:00:00Z", model, 9)] for model in ("parcels", "coder")}
    assert acts.only_model(State(moves={"parcels": moves["parcels"]})) == "parcels"
    with pytest.raises(UserError, match=r"several models were promoted: coder, parcels\. Name one: --model NAME"):
        acts.only_model(State(moves=moves))
    with pytest.raises(UserError, match="nothing of model 'parcel' was ever promoted"):
        acts.rollback(here, "parcel", people.signer("Ada"), "why")


@pytest.mark.slow
def test_the_doctor_takes_the_policy_of_the_last_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N8: of the same recipe, byte for byte, and the same settings; whole, from the cache, by
    hash."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = ladder_clone.make(tmp_path / "a")
    here, params = scripted.clone, settings.resolve(scripted.clone)
    assert check.policy_of_a_run(here, params, tmp_path / "none") is None
    ladder_clone.run_ladder(scripted)
    found = check.policy_of_a_run(here, params, tmp_path / "kept")
    assert found is not None
    assert (found / "model.bin").read_bytes() == b"weights of policy"
    other = settings.resolve(here, overrides=("policy.seed=3",))
    assert check.policy_of_a_run(here, other, tmp_path / "other") is None
    prompts = scripted.root / "recipes" / "tiny" / "tools.py"
    prompts.write_text(prompts.read_text() + "# changed\n")
    assert check.policy_of_a_run(here, params, tmp_path / "changed") is None
