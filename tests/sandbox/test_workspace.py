"""Workspaces: what is copied, what counts as a change, as an overlay and as a copy."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import boxes
import pytest
from boxes import Box, sh

from rft.errors import UserError
from rft.sandbox.limits import Limits
from rft.sandbox.reading import Refusal
from rft.sandbox.sandbox import Spec, create
from rft.sandbox.workspace import Base, mode_of_this_process

pytestmark = boxes.needs_sandbox
MODES = [mode_of_this_process(overlay=True), mode_of_this_process(overlay=False)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("src/a.py", "src/b.py", "src/deep/c.py", "docs/d.md", "docs/e.md", "same", "link-target"):
        (tmp_path / "base" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "base" / name).write_text(f"# {name}\n")
    (tmp_path / "base" / "link").symlink_to("link-target")
    return tmp_path / "base"


CHANGES = {
    "nothing": ("true", []),
    "reading and touching": ("cat src/*.py; touch src/a.py; chmod o-r docs/d.md; mkdir x; rmdir x", []),
    "a new file in a new folder": ("mkdir new; echo > new/f", ["added folder new", "added file new/f"]),
    "a changed file": ("echo more >> src/a.py", ["modified file src/a.py"]),
    "a file written anew with the same bytes": ("cat src/a.py > x; mv x src/a.py", []),
    "a file that became a program": ("chmod +x src/a.py", ["modified file src/a.py"]),
    "a deleted file": ("rm src/a.py", ["deleted file src/a.py"]),
    "a deleted folder": (
        "rm -r src",
        [
            "deleted folder src",
            "deleted file src/a.py",
            "deleted file src/b.py",
            "deleted folder src/deep",
            "deleted file src/deep/c.py",
        ],
    ),
    "a folder replaced by another": (
        "rm -r docs; mkdir docs; echo '# docs/d.md' > docs/d.md; echo > docs/new",
        ["deleted file docs/e.md", "added file docs/new"],
    ),
    "a folder replaced by a file": (
        "rm -r docs; echo > docs",
        ["added file docs", "deleted folder docs", "deleted file docs/d.md", "deleted file docs/e.md"],
    ),
    "a file replaced by a folder": (
        "rm same; mkdir same; echo > same/inner",
        ["added folder same", "deleted file same", "added file same/inner"],
    ),
    "a moved folder": (
        "mv docs papers",
        [
            "deleted folder docs",
            "deleted file docs/d.md",
            "deleted file docs/e.md",
            "added folder papers",
            "added file papers/d.md",
            "added file papers/e.md",
        ],
    ),
    "a link that points elsewhere": ("ln -sf same link", ["modified link link"]),
    "a file replaced by a link": ("ln -sf link-target same", ["modified link same"]),
    "a pipe": ("mkfifo p", ["added other p"]),
}


@pytest.mark.parametrize("mode", MODES, ids=["overlay", "copy"])
@pytest.mark.parametrize("name", CHANGES)
def test_changes(folder: Path, name: str, mode: object) -> None:
    script, expected = CHANGES[name]

    async def play() -> None:
        async with Box(folder, mode=mode) as sandbox:  # pyright: ignore[reportArgumentType]
            outcome = await sandbox.exec(sh(script))
            assert outcome.returncode == 0, outcome.stderr
            assert [f"{change.how} {change.kind} {change.path}" for change in await sandbox.diff()] == expected
            # a snapshot holds the same changes
            (branch,) = await sandbox.branch(await sandbox.snapshot(), 1)
            assert await branch.diff() == await sandbox.diff()
            assert await branch.list_files() == await sandbox.list_files()
            await branch.close()

    boxes.run(play())


@pytest.mark.parametrize("mode", MODES, ids=["overlay", "copy"])
def test_the_disk_is_limited_beyond_what_the_base_holds(tmp_path: Path, mode: object) -> None:
    (tmp_path / "large").write_bytes(os.urandom(3 * boxes.MIB))
    limits = Limits(disk_bytes=2 * boxes.MIB)

    async def play() -> None:
        async with Box(tmp_path, limits, mode=mode) as sandbox:  # pyright: ignore[reportArgumentType]
            outcome = await sandbox.exec(sh("for i in 1 2 3 4 5 6; do head -c 500000 /dev/urandom > $i; done"))
            assert b"No space left" in outcome.stderr
            assert sum(entry.num_bytes for entry in await sandbox.list_files()) < 5.1 * boxes.MIB

    boxes.run(play())


def test_a_workspace_outlives_its_base_being_closed_and_its_folder_being_deleted(folder: Path) -> None:
    async def play() -> None:
        base = await Base.of_folder(folder)
        (folder / "same").unlink()
        async with create(Spec(base, allow_weaker=True)) as sandbox:
            base.close()
            base.close()
            assert (await sandbox.exec(["cat", "same"])).stdout == b"# same\n"

    boxes.run(play())


def test_a_base_may_lie_on_disk_and_leaves_nothing_there(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """For trees that are too large for memory. Links to the host's folders are copied as links."""
    disk, outside = tmp_path_factory.mktemp("disk"), tmp_path_factory.mktemp("outside")
    outside.chmod(0o755)
    (folder / "closed").mkdir()
    (folder / "closed" / "file").write_text("x")
    (folder / "closed").chmod(0o555)
    (folder / "out").symlink_to(outside)
    of_the_dead = disk / "rft-base-4194304-17-x"
    (of_the_dead / "files").mkdir(parents=True)

    async def play() -> None:
        base = await Base.of_folder(folder, disk=disk)
        (place,) = disk.iterdir()
        assert place.stat().st_mode & 0o077 == 0  # nobody else looks in
        assert (place / "files" / "same").read_text() == "# same\n"
        async with create(Spec(base, allow_weaker=True)) as sandbox:
            outcome = await sandbox.exec(sh("echo more >> same; rm -r closed/file 2>/dev/null || echo held; cat same"))
            assert outcome.stdout.endswith(b"# same\nmore\n")
            assert [change.path for change in await sandbox.diff() if change.how == "modified"] == ["same"]
        async with create(Spec(base, allow_weaker=True)) as other:
            assert await other.read_file("same") == b"# same\n"
        base.close()
        assert list(disk.iterdir()) == []
        assert outside.stat().st_mode & 0o777 == 0o755
        with pytest.raises(UserError, match="nowhere: the base of a workspace must be a folder"):
            await Base.of_folder(folder, disk=disk / "nowhere")

    boxes.run(play())
    (folder / "closed").chmod(0o755)


def test_a_commit_brings_its_files_and_no_history(tmp_path: Path) -> None:
    def git(*argv: str) -> str:
        who = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
        return subprocess.check_output(["git", "-C", str(tmp_path), *who, *argv], text=True).strip()

    git("init", "-q")
    (tmp_path / "code.py").write_text("broken")
    git("add", ".")
    git("commit", "-qm", "the bug")
    commit = git("rev-parse", "HEAD")
    (tmp_path / "code.py").write_text("the answer")
    git("commit", "-qam", "the fix")

    async def play() -> None:
        base = await Base.of_commit(tmp_path, commit)
        async with create(Spec(base, allow_weaker=True)) as sandbox:
            assert await sandbox.read_file("code.py") == b"broken"
            assert [entry.path for entry in await sandbox.list_files()] == ["code.py"]
        base.close()
        with pytest.raises(UserError, match=r"the commit 'no-such' cannot be extracted"):
            await Base.of_commit(tmp_path, "no-such")
        with pytest.raises(UserError, match="nowhere: the base of a workspace must be a folder"):
            await Base.of_folder(tmp_path / "nowhere")

    boxes.run(play())


def test_a_tree_without_end_is_refused() -> None:
    async def play() -> None:
        async with Box() as sandbox:
            deep = "i=0; while [ $i -lt 80 ]; do mkdir d && cd d; i=$((i+1)); done"
            assert (await sandbox.exec(sh(deep))).returncode == 0
            for read in (sandbox.list_files, sandbox.diff):
                with pytest.raises(Refusal, match="deeper than 64 folders"):
                    await read()

    boxes.run(play())


def test_a_base_may_hold_links_pipes_and_programs(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/etc/shadow")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "run").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "run").chmod(0o4755)

    async def play() -> None:
        async with Box(tmp_path) as sandbox:
            assert (await sandbox.exec(["./run"])).stdout == b"ran\n"
            kinds = {entry.path: entry.kind for entry in await sandbox.list_files()}
            assert kinds == {"out": "link", "pipe": "other", "run": "file"}
            assert (await sandbox.exec(["stat", "-c", "%U", "run", "pipe", "out"])).stdout == b"sandbox\n" * 3

    boxes.run(play())
