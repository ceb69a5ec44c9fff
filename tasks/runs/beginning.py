"""`rft init`: make a Git repository a workspace.

Every file is written whole or not at all, and only where it is missing. So a second call, also
after a kill, writes only what is missing.
"""

from __future__ import annotations

from pathlib import Path

from rft import files
from rft.errors import UserError
from tasks.runs import workspace
from tasks.runs.git import GitError, git

IGNORED = ("/.rft/", "/exports/")
"""Lines of .gitignore: the state of this clone, and exported agents."""
_DVC = {
    ".dvc/config": "[core]\n    analytics = false\n    autostage = false\n",
    ".dvc/.gitignore": "/config.local\n/tmp\n/cache\n",
    ".dvcignore": "# what DVC must not walk into or hash\n.rft/\n",
}


def begin() -> tuple[Path, dict[str, str]]:
    """Make the repository around the current folder a workspace. Return its top, and what was
    written: file -> its purpose. Raises UserError where no run is possible."""
    root = _top(Path.cwd().resolve())
    written: dict[str, str] = {}
    if workspace.read(root) is None:
        whole = all((root / name).exists() for name in workspace.NEEDED)
        workspace.write(root, workspace.Workspace(agents=("",) if whole else ()))
        written[workspace.FILE] = "which folders are agents"
    if missing := [line for line in IGNORED if line not in _lines(root / ".gitignore")]:
        before = (root / ".gitignore").read_text(encoding="utf-8") if (root / ".gitignore").exists() else ""
        gap = "" if not before or before.endswith("\n") else "\n"
        text = f"{before}{gap}# of agent-rft: state of this clone, exported agents\n" + "\n".join(missing) + "\n"
        files.write_text(text, root / ".gitignore")
        written[".gitignore"] = f"lines for {' and '.join(missing)}"
    if not (root / ".dvc/config").exists():
        for name, text in _DVC.items():
            if not (root / name).exists():
                (root / name).parent.mkdir(exist_ok=True)
                files.write_text(text, root / name)
        written[".dvc"] = "DVC, which keeps the bytes of runs in .dvc/cache"
        written[".dvcignore"] = "what DVC leaves alone"
    return root, written


def _lines(path: Path) -> set[str]:
    return set(path.read_text(encoding="utf-8").splitlines()) if path.exists() else set()


def _top(start: Path) -> Path:
    try:
        told = git(start, "rev-parse", "--is-bare-repository", "--absolute-git-dir", "--git-common-dir").splitlines()
    except GitError as error:
        if "not a git repository" not in str(error):
            raise
        raise UserError(f"{start} is not inside a Git repository. Make one first: git init") from None
    bare, own, common = told[0] == "true", Path(told[1]), start / told[2]
    if bare:
        raise UserError(f"{start} is a bare repository, without files. Work in a clone of it: git clone {start}")
    if superior := git(start, "rev-parse", "--show-superproject-working-tree"):
        raise UserError(f"{start} is a submodule of {superior}. Make the workspace there, or in a clone of its own.")
    if own.resolve() != common.resolve():
        main = common.resolve().parent
        raise UserError(f"{start} is a linked worktree. Make the workspace where its repository is: cd {main}")
    root = Path(git(start, "rev-parse", "--show-toplevel"))
    try:
        git(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    except GitError:
        remedy = "Make it: git add -A && git commit -m start"
        raise UserError(f"{root} has no commit yet, and a run is recorded below one. {remedy}") from None
    return root
