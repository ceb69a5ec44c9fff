"""The sandbox's interface: what a call returns, what persists, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import boxes
import psutil
import pytest
from boxes import MIB, SMALL, Box, sh

from rft.errors import InfrastructureError, UserError
from rft.sandbox import workspace
from rft.sandbox.reading import Refusal
from rft.sandbox.sandbox import Sandbox

pytestmark = boxes.needs_sandbox
SLEEP = ["sleep", f"60.{os.getpid()}"]
"""A process that other runs of these tests do not have."""


def test_a_call_has_its_input_its_output_and_its_exit_code() -> None:
    async def play() -> None:
        async with Box() as sandbox:
            outcome = await sandbox.exec(sh("cat; echo no >&2; exit 3"), b"to be read")
            assert (outcome.returncode, outcome.stdout, outcome.stderr) == (3, b"to be read", b"no\n")
            assert (outcome.timed_out, outcome.truncated, outcome.oom) == (False, False, False)

    boxes.run(play())


def test_a_program_that_reads_nothing_is_not_stopped_by_its_input() -> None:
    async def play() -> None:
        async with Box() as sandbox:
            outcome = await sandbox.exec(["true"], b"x" * 5 * MIB)
            assert (outcome.returncode, outcome.timed_out) == (0, False)

    boxes.run(play())


def test_a_signal_and_a_missing_program_are_the_programs_end() -> None:
    async def play() -> None:
        async with Box() as sandbox:
            assert (await sandbox.exec(sh("kill -SEGV $$"))).returncode == 128 + signal.SIGSEGV
            assert (await sandbox.exec(["no-such-program"])).returncode != 0

    boxes.run(play())


def test_files_persist_and_processes_do_not() -> None:
    async def play() -> None:
        async with Box() as sandbox:
            await sandbox.exec(sh("echo here > file; echo there > $HOME/file; sleep 60 >/dev/null 2>&1 & exit 0"))
            outcome = await sandbox.exec(sh("cat file $HOME/file; cat /proc/[0-9]*/comm | grep -c sleep"))
            assert outcome.stdout.split() == [b"here", b"there", b"0"]

    boxes.run(play())


def test_the_environment_is_ours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "of the host")

    async def play() -> None:
        async with Box() as sandbox:
            outcome = await sandbox.exec(["env"], env={"GREETING": "a=b c"}, cwd=".")
            names = {line.split(b"=")[0].decode() for line in outcome.stdout.splitlines()}
            assert b"GREETING=a=b c" in outcome.stdout
            assert names == {"PATH", "HOME", "LANG", "PWD", "PYTHONDONTWRITEBYTECODE", "GREETING"}

    boxes.run(play())


@pytest.mark.parametrize("name", ["ODD.NAME", "a-b", "1x", "\u00e9"])
def test_a_variable_may_have_a_name_that_no_shell_knows(name: str) -> None:
    async def play() -> None:
        async with Box() as sandbox:
            outcome = await sandbox.exec(["env"], env={name: "it's $HOME\nand more", "GREETING": "'"})
            assert f"{name}=it's $HOME\nand more\n".encode() in outcome.stdout
            assert b"GREETING='\n" in outcome.stdout

    boxes.run(play())


@pytest.mark.slow
def test_a_prepared_call_sees_what_was_written_and_restored_meanwhile() -> None:
    """From its second call on, a sandbox makes the next one ahead: what it shows is of the moment
    when it is called."""

    async def play() -> None:
        async with Box() as sandbox:
            before = await sandbox.snapshot()
            for word in ("one", "two", "three"):
                await sandbox.write_file("word", word.encode())
                outcome = await sandbox.exec(sh("cat word; echo more > left; mkdir -p inner; ls"))
                assert outcome.stdout.startswith(word.encode())
            await sandbox.restore(before)
            assert (await sandbox.exec(sh("ls; ls /tmp"))).stdout == b""
            assert (await sandbox.exec(["no-such-program"])).returncode == 127
            later = await sandbox.exec(["pwd"], cwd=".")
            assert (later.returncode, later.stdout) == (0, b"/ws\n")

    boxes.run(play())


def test_a_call_starts_in_the_folder_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "src" / "deep").mkdir(parents=True)

    async def play() -> None:
        async with Box(tmp_path) as sandbox:
            assert (await sandbox.exec(["pwd"], cwd="src/deep")).stdout == b"/ws/src/deep\n"
            with pytest.raises(Refusal, match="not a path inside the workspace"):
                await sandbox.exec(["pwd"], cwd="../etc")

    boxes.run(play())


def test_a_folder_that_is_not_there_is_the_callers_mistake() -> None:
    async def play() -> None:
        async with Box() as sandbox:
            with pytest.raises(Refusal, match="'src' does not exist"):
                await sandbox.exec(["pwd"], cwd="src")
            await sandbox.exec(["ln", "-s", "/usr", "src"])
            with pytest.raises(Refusal, match="link"):
                await sandbox.exec(["pwd"], cwd="src")

    boxes.run(play())


def test_output_beyond_the_limit_is_cut_and_marked() -> None:
    async def play() -> None:
        async with Box(limits=replace(SMALL, output_bytes=5000)) as sandbox:
            whole = await sandbox.exec(sh("head -c 5000 /dev/zero"))
            assert (len(whole.stdout), whole.truncated) == (5000, False)
            cut = await sandbox.exec(sh("head -c 20000000 /dev/zero; echo done >&2"))
            assert (len(cut.stdout), cut.truncated, cut.stderr, cut.returncode) == (5000, True, b"done\n", 0)

    boxes.run(play())


def test_the_deadline_ends_all_processes() -> None:
    async def play() -> None:
        async with Box() as sandbox:
            started = time.monotonic()
            script = f"trap '' TERM; echo begun; setsid {' '.join(SLEEP)} & {' '.join(SLEEP)}"
            outcome = await sandbox.exec(sh(script), timeout=0.4)
            assert (outcome.timed_out, outcome.returncode, outcome.stdout) == (True, 137, b"begun\n")
            assert time.monotonic() - started < 5
            assert not _running(*SLEEP)

    boxes.run(play())


def test_a_timeout_may_only_shorten_the_limit() -> None:
    async def play() -> None:
        async with Box(limits=replace(SMALL, wall_s=0.3)) as sandbox:
            assert (await sandbox.exec(["sleep", "5"], timeout=60)).timed_out

    boxes.run(play())


def test_a_cancelled_call_leaves_nothing_running() -> None:
    async def play() -> None:
        async with Box() as sandbox:
            call = asyncio.ensure_future(sandbox.exec(SLEEP))
            while not _running(*SLEEP):
                await asyncio.sleep(0.02)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert not _running(*SLEEP)
            assert (await sandbox.exec(["true"])).returncode == 0

    boxes.run(play())


def test_one_thing_at_a_time() -> None:
    async def play() -> None:
        async with Box() as sandbox:
            script = sh("[ ! -e busy ]; touch busy; sleep 0.05; rm busy")
            outcomes = await asyncio.gather(*(sandbox.exec(script) for _ in range(4)))
            assert [outcome.returncode for outcome in outcomes] == [0] * 4

    boxes.run(play())


@pytest.mark.slow
def test_memory_and_processor_time_end_a_program() -> None:
    async def play() -> None:
        async with Box(limits=replace(SMALL, cpu_s=1)) as sandbox:
            eater = "head -c 400000000 /dev/zero | tail | wc -c"  # tail keeps it all: one endless line
            eaten = await sandbox.exec(sh(eater))
            assert eaten.oom or eaten.stdout.strip() != b"400000000"
            spun = await sandbox.exec(["sh", "-c", "while :; do :; done"])
            assert (spun.returncode, spun.timed_out) == (128 + signal.SIGXCPU, False)

    boxes.run(play())


def test_snapshots_bring_files_back_and_empty_tmp(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "gone").write_text("gone")

    async def play() -> None:
        async with Box(tmp_path) as sandbox:
            await sandbox.exec(sh("rm gone; echo new > new; ln -s new link; mkfifo pipe"))
            first = await sandbox.snapshot("first")
            seen = await sandbox.list_files()
            await sandbox.exec(sh("echo changed > kept; rm new link pipe; echo x > later; touch $HOME/scratch"))
            second = await sandbox.snapshot()
            await sandbox.restore(first)
            assert await sandbox.list_files() == seen
            assert (await sandbox.exec(sh("cat kept new; ls /tmp"))).stdout == b"keptnew\n"
            await sandbox.restore(second)
            assert await sandbox.read_file("later") == b"x\n"
            with pytest.raises(UserError, match=r"no snapshot 'third'.*1-first, 2"):
                await sandbox.restore("third")

    boxes.run(play())


def test_branches_share_a_past_and_nothing_else() -> None:
    async def play() -> None:
        async with Box() as sandbox:
            await sandbox.write_file("common", b"past")
            branches = await sandbox.branch(await sandbox.snapshot(), 3)
            await asyncio.gather(
                *(branch.write_file("own", str(number).encode()) for number, branch in enumerate(branches))
            )
            await branches[0].exec(["rm", "common"])
            assert [await branch.read_file("own") for branch in branches] == [b"0", b"1", b"2"]
            assert await branches[1].read_file("common") == b"past"
            await sandbox.close()
            assert (await branches[2].exec(["cat", "common", "own"])).stdout == b"past2"
            for branch in branches:
                await branch.close()

    boxes.run(play())


def test_the_host_reads_what_is_there_and_follows_no_link(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")

    async def play() -> None:
        async with Box() as sandbox:
            await sandbox.exec(["ln", "-s", str(secret), "answer"])
            with pytest.raises(Refusal, match="'answer' is a link"):
                await sandbox.read_file("answer")
            await sandbox.write_file("answer", b"mine")
            assert secret.read_text() == "secret"
            assert await sandbox.read_file("answer") == b"mine"

    boxes.run(play())


def test_what_the_host_wrote_belongs_to_the_program() -> None:
    async def play() -> None:
        async with Box() as sandbox:
            await sandbox.write_file("src/code.py", b"1")
            outcome = await sandbox.exec(sh("echo 2 > src/code.py; touch src/more; rm -r src; ls -A"))
            assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, b"", b"")

    boxes.run(play())


def test_a_full_workspace_is_refused_and_not_a_crash() -> None:
    async def play() -> None:
        async with Box() as sandbox:
            for number in range(2):
                await sandbox.write_file(f"{number}", b"x" * 7 * MIB)
            with pytest.raises(Refusal, match="the workspace is full"):
                await sandbox.write_file("more", b"x" * 7 * MIB)
            assert sorted(entry.path for entry in await sandbox.list_files()) == ["0", "1"]

    boxes.run(play())


def test_closing_twice_is_fine_and_using_afterwards_is_not() -> None:
    async def play() -> Sandbox:
        async with Box() as sandbox:
            await sandbox.close()
            await sandbox.close()
            with pytest.raises(InfrastructureError, match="closed"):
                await sandbox.exec(["true"])
        return sandbox

    boxes.run(play())


def test_nothing_stays_open_or_mounted(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    async def play() -> None:
        async with Box(tmp_path) as sandbox:
            await sandbox.exec(["touch", "new"])
            await sandbox.restore(await sandbox.snapshot())
            for branch in await sandbox.branch("1", 2):
                await branch.close()
            await sandbox.diff()
            with pytest.raises(Refusal):
                await sandbox.read_file("missing")

    boxes.run(play())  # the keeper and the loop's own descriptors
    before, mounts = _descriptors(), Path("/proc/mounts").read_text()
    boxes.run(play())
    assert _descriptors() == before
    assert Path("/proc/mounts").read_text() == mounts


def test_a_killed_keeper_is_replaced() -> None:
    async def play() -> None:
        async with Box() as sandbox:
            keepers = [child for child in psutil.Process().children() if "keeper.py" in " ".join(child.cmdline())]
            for keeper in keepers:
                keeper.kill()
                keeper.wait()
            assert keepers
            assert (await sandbox.exec(["true"])).returncode == 0
            await sandbox.restore(await sandbox.snapshot())
        states = [child.status() for child in psutil.Process().children()]
        assert psutil.STATUS_ZOMBIE not in states

    boxes.run(play())


@pytest.mark.parametrize(
    ("cmd", "env", "message"),
    [
        ([], {}, "A command is a list"),
        ("ls", {}, "A command is a list of a program and its arguments, not 'ls'"),
        (["a\0b"], {}, "zero byte"),
        (["a"], {"x": "\0"}, "zero byte"),
        (["a"], {"x=y": "1"}, "name of a variable"),
    ],
)
def test_a_command_that_no_system_can_run(cmd: list[str], env: dict[str, str], message: str) -> None:
    async def play() -> None:
        async with Box() as sandbox:
            with pytest.raises(UserError, match=message):
                await sandbox.exec(cmd, env=env)

    boxes.run(play())


def test_programs_run_as_nobody_else() -> None:
    async def play() -> tuple[bytes, int]:
        async with Box() as sandbox:
            call = asyncio.ensure_future(sandbox.exec(SLEEP, timeout=5))
            while not (found := _running(*SLEEP)):
                await asyncio.sleep(0.02)
            uid = found[0].uids().real
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            return (await sandbox.exec(["id", "-un"])).stdout, uid

    name, uid = boxes.run(play())
    assert name == b"sandbox\n"
    assert uid == (os.geteuid() or workspace.mode_of_this_process().uid) != 0


def _running(*cmd: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == list(cmd)]


def _descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    "script",
    [
        "mkdir closed; echo > closed/file; chmod 000 closed",
        "chmod 000 /ws",
        "chmod 000 /tmp /dev/shm",
        "rm -rf /ws/* /tmp/* 2>/dev/null; chmod -w /ws",
        "kill -9 -1",
        "kill -SEGV 1; kill -9 1; head -c 10000000 /dev/zero > /proc/1/mem",
        "exec 2>&-; exec 1>&-; exec 0<&-",
        "ln -s /proc/self/fd fd; ln -s . here; mkfifo out; ln -s loop loop",
    ],
)
def test_no_program_can_make_us_fail(script: str) -> None:
    """A rollout that ends by a failure of ours is not scored: a policy must not be able to choose
    that."""

    async def play() -> None:
        async with Box() as sandbox:
            before = await sandbox.snapshot()
            await sandbox.exec(["sh", "-c", script])
            for read in (sandbox.diff(), sandbox.list_files(), sandbox.exec(["true"]), sandbox.write_file("x", b"")):
                with contextlib.suppress(Refusal):
                    await read
            (branch,) = await sandbox.branch(await sandbox.snapshot(), 1)
            await branch.close()
            await sandbox.restore(before)
            assert (await sandbox.exec(sh("touch file; ls"))).stdout == b"file\n"

    boxes.run(play())


def test_closing_ends_the_call_that_runs_and_refuses_those_that_wait() -> None:
    async def play() -> None:
        async with Box() as sandbox:
            calls = [asyncio.ensure_future(sandbox.exec(SLEEP)) for _ in range(3)]
            while not _running(*SLEEP):
                await asyncio.sleep(0.02)
            await sandbox.close()
            ended = await asyncio.gather(*calls, return_exceptions=True)
            assert [str(error) for error in ended] == [
                "The sandbox was closed during a call.",
                "The sandbox is closed.",
                "The sandbox is closed.",
            ]
            assert not _running(*SLEEP)

    boxes.run(play())


def test_what_is_cancelled_while_it_is_made_stays_open_nowhere() -> None:
    async def play() -> None:
        async with Box() as sandbox:
            snapshot_id = await sandbox.snapshot()
            for act in (sandbox.snapshot(), sandbox.branch(snapshot_id, 3), sandbox.restore(snapshot_id)):
                task = asyncio.ensure_future(act)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            with pytest.raises(InfrastructureError, match="closed"):  # half a restore is not a workspace
                await sandbox.exec(["true"])

    boxes.run(play())
    before = _descriptors()
    boxes.run(play())
    assert _descriptors() == before
