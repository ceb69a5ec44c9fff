"""`rft init`, `rft new` and `rft agents` in a repository of somebody else's program."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from flows import cli
from rft import config
from tasks.runs import beginning, workspace
from tasks.runs.git import git

OWN = {
    "tasks.py": "raise SystemExit('of the user')\n",
    "flows/main.py": "",
    ".gitignore": "*.log",
    "README.md": "Mine.\n",
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "program"
    root.mkdir()
    for name, text in OWN.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "a program")
    monkeypatch.chdir(root)
    return root


def test_init_writes_what_it_names_and_nothing_else_and_once(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init"]) == 0
    told = capsys.readouterr().out
    changed = {line[3:].rstrip("/") for line in git(own, "status", "--porcelain").splitlines()}
    assert changed == {"rft.yaml", ".gitignore", ".dvc", ".dvcignore"}
    assert all(name in told for name in changed)
    assert (own / ".gitignore").read_text().startswith("*.log\n# of agent-rft")
    before = {path: path.read_bytes() for path in own.rglob("*") if path.is_file() and ".git" not in path.parts}
    assert cli.main(["init"]) == 0
    assert "nothing to write" in capsys.readouterr().out
    assert before == {path: path.read_bytes() for path in own.rglob("*") if path.is_file() and ".git" not in path.parts}


@pytest.mark.parametrize("gone", ["rft.yaml", ".dvcignore", ".dvc/config"])
def test_init_after_a_kill_writes_what_is_missing(own: Path, gone: str) -> None:
    beginning.begin()
    (own / gone).unlink()
    shutil.rmtree(own / ".dvc") if gone == ".dvc/config" else None
    beginning.begin()
    assert (own / gone).exists() is (gone != ".dvcignore"), "with DVC in use, its own files are left alone"


def test_init_leaves_a_dvc_that_is_in_use_alone(own: Path) -> None:
    (own / ".dvc").mkdir()
    (own / ".dvc/config").write_text("[core]\n    remote = mine\n")
    _, written = beginning.begin()
    assert set(written) == {"rft.yaml", ".gitignore"}
    assert not (own / ".dvcignore").exists()


def _bare(root: Path) -> Path:
    git(root, "clone", "--quiet", "--bare", ".", "../bare.git")
    return root.parent / "bare.git"


def _linked(root: Path) -> Path:
    git(root, "worktree", "add", "--quiet", "../linked")
    return root.parent / "linked"


def _submodule(root: Path) -> Path:
    git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(root), "inner")
    return root / "inner"


def _empty(root: Path) -> Path:
    (root.parent / "empty").mkdir()
    git(root.parent / "empty", "init", "--quiet")
    return root.parent / "empty"


@pytest.mark.parametrize(
    ("where", "says"),
    [
        (lambda root: root.parent, "is not inside a Git repository. Make one first: git init"),
        (_bare, "is a bare repository, without files"),
        (_linked, "is a linked worktree. Make the workspace where its repository is: cd "),
        (_submodule, "is a submodule of "),
        (_empty, "has no commit yet"),
    ],
)
def test_where_no_run_could_live_init_says_why(
    own: Path, where, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = where(own)
    monkeypatch.chdir(place)
    assert cli.main(["init"]) == 2
    assert says in capsys.readouterr().err
    assert not (place / "rft.yaml").exists()


@pytest.fixture
def with_agent(own: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert cli.main(["init"]) == 0
    assert cli.main(["new", "agents/refunds"]) == 0
    assert "--agent refunds run" in capsys.readouterr().out
    return own


@pytest.mark.slow
def test_a_new_agent_is_whole_and_in_the_workspaces_list(with_agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = with_agent / "agents/refunds"
    params = config.load(home / "params.yaml")
    assert (params.agent_name, params.recipe.path) == ("refunds", "recipe")
    assert (home / params.traffic.file).exists()
    assert workspace.agents(with_agent) == [workspace.Agent("refunds", "agents/refunds")]
    assert git(with_agent, "check-ignore", "agents/refunds/data/train/report.json")
    assert cli.main(["agents"]) == 0
    assert "refunds  agents/refunds\n  champion   the beginning\n  last run   none yet" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["new", "agents/refunds"], "agents/refunds exists already"),
        (["new", "other/refunds"], "there is an agent named 'refunds' already, in agents/refunds"),
        (["new", "agents/a b"], "agents/a b: an agent is named after its folder"),
        (["new", "x.log"], "x.log: Git ignores it"),
        (["new", "../elsewhere"], "lies outside the repository"),
        (["--agent", "refund", "doctor"], "--agent refund: no agent of this workspace has that name. Did you mean"),
        (["-C", "nowhere", "agents"], "-C nowhere: No such file or directory"),
        (["demo"], "rft demo shows the agent at the top of a clone of agent-rft. Run this one: "),
        (["up"], "rft.yaml: no schedule yet. Write one"),
        (["new", "agents/b", "--range", "0", "5"], "--range is for an import. Add --from KIND:FILE."),
    ],
)
def test_a_mistake_is_one_message_and_writes_nothing(
    with_agent: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = git(with_agent, "status", "--porcelain", "--untracked-files=all")
    assert cli.main(arguments) == 2
    assert says in capsys.readouterr().err
    assert git(with_agent, "status", "--porcelain", "--untracked-files=all") == before


@pytest.mark.slow
def test_a_second_agent_is_added_and_what_people_wrote_stays(with_agent: Path) -> None:
    path = with_agent / "rft.yaml"
    path.write_text("# ours\n" + path.read_text() + "# the end\n")
    assert cli.main(["new", "agents/billing"]) == 0
    assert {agent.name for agent in workspace.agents(with_agent)} == {"refunds", "billing"}
    assert path.read_text().startswith("# ours\n")
    assert path.read_text().endswith("# the end\n")


@pytest.mark.parametrize(
    "text", ["", "agents: []\n", "agents: [a]\n", "agents:\n- a\n- b  # old\n", "# none yet\nagents:   # list\n  - a\n"]
)
def test_every_form_of_the_list_takes_one_more(tmp_path: Path, text: str) -> None:
    (tmp_path / "rft.yaml").write_text(text)
    before = (workspace.read(tmp_path) or workspace.Workspace()).agents
    if "- a" in text and "  - a" in text:
        with pytest.raises(Exception, match="by hand: agents/x"):
            workspace.add(tmp_path, "agents/x")
        assert (tmp_path / "rft.yaml").read_text() == text
    else:
        workspace.add(tmp_path, "agents/x")
        assert set(yaml.safe_load((tmp_path / "rft.yaml").read_text())["agents"]) == {"agents/x", *before}


@pytest.mark.slow
def test_printed_commands_name_the_agent_where_there_are_several(
    with_agent: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["new", "agents/billing"]) == 0
    capsys.readouterr()
    assert cli.main(["-C", "agents/billing", "runs"]) == 0
    assert "--agent billing run" in capsys.readouterr().out
    assert cli.main(["-C", str(with_agent), "doctor"]) == 2
    assert "which agent? There are: " in capsys.readouterr().err
    assert cli.main(["doctor", "--agent", "refunds", "--set", "train.stepps=1"]) == 2
    assert "stepps" in capsys.readouterr().out
