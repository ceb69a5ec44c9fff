"""The clone of the repository, and the agent that a verb works on.

The clone keeps its own files under `.rft/`, which Git ignores:

    .rft/runs/         One record per run, and the lock that its driver holds while it lives.
    .rft/worktrees/    The folders of runs that are not over.
    .rft/logs/         What the stages of a run printed.
    .rft/reports/      The HTML page of each run.
    .rft/progress/     Work of stages whose files are not safe yet (see rft/progress.py).
    .rft/keys/         The machine key of this clone.
    .rft/ledger/       What this clone has seen of the ledger.
    .rft/openlineage/  Lineage events that their receiver has not taken yet, a file per run.
    .rft/mlflow/       What MLflow was not told yet, a file per run.
    .rft/champion/     What is served, one file per model.
    .rft/engine/       The modules that each stage of an engine can load.
    .rft/prefect/      Prefect's home.
    .rft/dvc/          DVC's scratch files.

`enter` also sets the environment of this process and all its children: no telemetry, all tools'
files inside the clone, and no messages of theirs on the terminal. It must run before Prefect or
MLflow is imported.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import signal
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rft import commands, secrets
from rft.errors import UserError
from tasks.runs import workspace
from tasks.runs.git import GitError, git

TELEMETRY_OFF = {
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DVC_NO_ANALYTICS": "1",
    "GX_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


_PATIENCE_S = 20.0
SERVED_BY = "RFT_SERVED_BY"
"""The process id of `rft up`, in the environment of the flow runs that it starts."""


_NAMED = re.compile(r" --agent (?:'[^']*'|\S+)$")
_ELSEWHERE = "Name a place below exports/, or outside of the clone."


@dataclass(frozen=True)
class Clone:
    root: Path
    """The top of the Git repository."""
    agent_folder: str | None = ""
    """The agent's folder, from the top; empty: the top itself. None: several are possible."""

    @property
    def folder(self) -> str:
        """The agent's folder. Raises UserError where several are possible."""
        if self.agent_folder is not None:
            return self.agent_folder
        every = ", ".join(agent.shown for agent in workspace.agents(self.root)) or "none yet"
        raise UserError(f"which agent? There are: {every}. Change into its folder, or name it: rft --agent NAME ...")

    @property
    def home(self) -> Path:
        """The path of the agent's folder, which holds params.yaml, dvc.yaml, its recipe and
        data."""
        return self.root / self.folder

    def model(self, known: Collection[str]) -> str | None:
        """Return the name of the workspace's chosen agent, under which its models are known. None
        where several are possible. For an agent at the top, whose settings name the recipe, None
        also where the name is not `known`."""
        if self.agent_folder is None or workspace.read(self.root) is None:
            return None
        name = workspace.name(self.root, self.agent_folder)
        return name if self.agent_folder or name in known else None

    @property
    def is_guest(self) -> bool:
        """Whether no agent is at the top: then the repository belongs to another program."""
        return "" not in workspace.folders(self.root)

    @property
    def homes(self) -> list[Path]:
        """The folders of all agents of the workspace."""
        return [self.root / folder for folder in workspace.folders(self.root)]

    def from_the_top(self, path: str | Path) -> str:
        """Name a file of the agent's folder as Git does, from the top."""
        return (PurePosixPath(self.folder) / path).as_posix()

    @property
    def state(self) -> Path:
        return self.root / ".rft"

    @property
    def runs(self) -> Path:
        return self.state / "runs"

    @property
    def worktrees(self) -> Path:
        return self.state / "worktrees"

    def page(self, run: str) -> Path:
        return self.state / "reports" / f"{run}.html"

    def log(self, run: str, stage: str) -> Path:
        return self.state / "logs" / run / f"{stage}.log"

    def git(self, *arguments: str) -> str:
        return git(self.root, *arguments)

    @property
    def mlruns(self) -> Path:
        """The folder of MLflow's store. If no agent is at the top, `mlruns/` there may be the
        user's."""
        return (self.state if self.is_guest else self.root) / "mlruns"

    @property
    def dvc_cache(self) -> Path:
        """The folder where this clone's DVC keeps bytes: `.dvc/cache`, or what its settings say."""
        folder = self.root / ".dvc"
        found = folder / "cache"
        for file in (folder / "config", folder / "config.local"):
            settings = configparser.ConfigParser(interpolation=None)
            try:
                settings.read(file, encoding="utf-8")
            except (configparser.Error, UnicodeDecodeError) as error:
                why = " ".join(str(error).split())
                raise UserError(f"{file}: not as DVC writes it ({why}). Restore it: git checkout .dvc") from None
            if settings.has_option("cache", "dir"):
                found = folder / settings.get("cache", "dir").strip("\"'")
        return found.resolve()

    def refuse_taken_along(self, path: Path) -> None:
        """Raise UserError for a place in the clone where the ladder writes, or whose files later
        runs would carry along as edits."""
        if not path.is_relative_to(self.root):
            return
        for home in (self.root, *self.homes):
            inside = path.relative_to(home) if path.is_relative_to(home) else PurePosixPath()
            if inside.parts[:1] and inside.parts[0] in ("data", "mlruns", ".rft", ".git", ".dvc"):
                raise UserError(f"{path} lies in {inside.parts[0]}/, where the ladder writes. {_ELSEWHERE}")
        try:
            self.git("check-ignore", "--quiet", "--no-index", "--", str(path / "README.md"))
        except GitError:
            why = "Git does not ignore it: every later run would take it along, and record it"
            raise UserError(f"{path} lies in the clone, and {why}. {_ELSEWHERE}") from None


def find(agent: str | None = None) -> Clone:
    """Find the clone around the current folder, and choose an agent in it: `agent`, or the one that
    the command line named, or the one of the folder. Raises UserError where no run is possible."""
    start = Path.cwd().resolve()
    try:
        root = Path(git(start, "rev-parse", "--show-toplevel"))
    except GitError as error:
        if "not a git repository" not in str(error):
            raise
        why = "A run is a Git worktree and is recorded as a revision: work in a workspace (rft init)"
        raise UserError(f"{start} is not inside a Git repository. {why}, or in a clone of agent-rft.") from None
    for needed in (".dvc/config",) if (root / workspace.FILE).exists() else ("dvc.yaml", "params.yaml", ".dvc/config"):
        if not (root / needed).exists():
            if git(root, "ls-files", "--", needed):  # as in a sparse checkout
                add = f"git sparse-checkout add {PurePosixPath(needed).parts[0]}, or git checkout -- {needed}"
                raise UserError(f"{root}: {needed} is in Git and is not checked out. Check it out: {add}")
            if branches := _branches_not_checked_out(root):
                out = f"git -C {root} checkout {branches[0]}"
                raise UserError(f"{root} is empty: the remote's HEAD names a branch that does not exist. Run: {out}")
            raise UserError(
                f"{root} has no {needed}: it is neither a workspace nor a clone of agent-rft. Make it one: rft init"
            )
    try:
        git(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    except GitError:
        raise UserError(
            f"{root} has no commit yet, and a run is recorded below one. Make it: git add -A && git commit -m start"
        ) from None
    clone = Clone(root, workspace.choose(root, start, agent or os.environ.get(commands.AGENT)))
    _name_agent(clone)
    return clone


def _branches_not_checked_out(root: Path) -> list[str]:
    """Name the remote's branches where nothing is checked out, as after a clone of a repository
    whose HEAD names another branch than was pushed. `main` comes first."""
    try:
        git(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    except GitError:
        names = git(root, "for-each-ref", "--format=%(refname:lstrip=3)", "refs/remotes").split()
        return sorted((name for name in names if name != "HEAD"), key=lambda name: (name != "main", name))
    return []


def enter(agent: str | None = None) -> Clone:
    """Do `find`, and set the environment of everything that follows."""
    secrets.guard()
    clone = find(agent)
    os.environ.update(TELEMETRY_OFF)
    defaults = {
        "PREFECT_HOME": str(clone.state / "prefect"),
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        # our command line says what happens; `rft up` and PREFECT_LOGGING_LEVEL=INFO say more
        "PREFECT_LOGGING_LEVEL": "CRITICAL",
        "MLFLOW_LOGGING_LEVEL": "ERROR",
        # a server that is down: seconds, not the minutes of MLflow's own seven tries
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
        "DVC_SITE_CACHE_DIR": str(clone.state / "dvc"),
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    if os.getppid() == int(os.environ.get(SERVED_BY, "0")):
        threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    for name in ("no_proxy", "NO_PROXY"):  # our own servers on loopback are not behind anyone's proxy
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1", "localhost"]))
    return clone


def _name_agent(clone: Clone) -> None:
    """Make every printed command name the agent, so that it works in any folder. That is not needed
    for an only agent, and for the agent at the top while we are in no other agent's folder."""
    folder, at_the_top = clone.agent_folder, workspace.choose(clone.root, Path.cwd(), None) == ""
    if folder is None or len(workspace.folders(clone.root)) < 2 or (folder == "" and at_the_top):
        return
    name = next(agent.name for agent in workspace.agents(clone.root) if agent.folder == folder)
    program = _NAMED.sub("", os.environ.get(commands.PROGRAM, "rft"))
    commands.remember(program=f"{program} --agent {shlex.quote(name)}")


def _end_with_parent(parent: int) -> None:
    """Interrupt a scheduled run whose server was killed; it is recorded as interrupted."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGINT)
    # the stage ends and the run is recorded; after that Prefect would ask a dead server for minutes
    time.sleep(_PATIENCE_S)
    os._exit(1)
