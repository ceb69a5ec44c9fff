"""DVC as a child process that is never left behind, and that is loaded once per run.

Killing is the hard part. Each of these happened: the death signal reached one generation only,
DVC's shell stood between DVC and the stage, a stage outlived its driver and wrote into the next
run. So DVC gets a session of its own and asks to die with its parent. The stage is `exec`ed, so
that its parent is DVC, and asks the same. On every way out we signal the whole group. The death
signal is tied to the thread that started the child, so that thread waits for the child.

Loading DVC takes longer than seeing that a stage has not changed. So a run starts a `Loaded` DVC,
which forks for each stage. The fork has DVC's code, and has read nothing of the tree yet. It has a
session and a group of its own before we hear of it. `Loaded` stands between us and the stage, and
passes death on: it dies with us, and its forks die with it. It serves only the run that it was
started for, because the environment at its start says to which run a process belongs. Where
`Loaded` is missing or dead, DVC is started in the usual way.

Half of a fork's work is dvc.lock, which DVC writes anew for each stage. DVC keeps comments in it,
which makes reading several times slower. But dvc.lock is DVC's own file, without comments. So a
fork reads it with DVC's faster reader, and writes the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Protocol

from rft.process import DIES_WITH_PARENT
from tasks.runs.clone import TELEMETRY_OFF

_DVC = f"""{DIES_WITH_PARENT}
from dvc.cli import main
sys.exit(main(sys.argv[1:]))
"""
_LOADED = f"""{DIES_WITH_PARENT}
import contextlib, gc, importlib, json, socket
from dvc.cli import main
from dvc.cli.parser import get_main_parser
get_main_parser()
for module in sys.argv.pop(1).split():
    with contextlib.suppress(ImportError):  # another version names it otherwise, and loads it when it needs it
        importlib.import_module(module)
len(os.listdir("/proc/self/task")) == 1 or sys.exit("a fork would have the locks of other threads, and not the threads")
from dvc.utils.serialize import _yaml
if hasattr(_yaml, "parse_yaml_for_update"):
    _yaml.parse_yaml_for_update = _yaml.parse_yaml  # several times as fast, and without comments
gc.freeze()
gc.set_threshold(100_000, 50, 50)  # a long dvc.lock is read and written many objects at a time
line = socket.socket(fileno=int(sys.argv.pop(1)))
while True:
    asked, files, _, _ = socket.recv_fds(line, 1 << 20, 1)
    if not asked:
        sys.exit(0)
    parent, child = os.getpid(), os.fork()
    if child == 0:
        break
    os.close(files[0])
    line.send(json.dumps(["ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]).encode())
os.setsid()
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.getppid() == parent or os._exit(1)
line.send(json.dumps(["began", os.getpid()]).encode())  # only now: its group is there to be signaled
line.close()
for file in (1, 2):
    os.dup2(files[0], file)
os.close(files[0])
arguments, environment = json.loads(asked)
os.environ.clear()
os.environ.update(environment)
sys.argv[1:] = arguments
sys.exit(main(arguments))
"""
_NEEDED = (
    "configobj", "dulwich.ignore", "dulwich.index", "dulwich.worktree", "dvc.cachemgr", "dvc.data_cloud", "dvc.lock",
    "dvc.parsing.interpolate", "dvc.repo.artifacts", "dvc.repo.datasets", "dvc.repo.metrics", "dvc.repo.open_repo",
    "dvc.repo.params", "dvc.repo.plots", "dvc.repo.reproduce", "dvc.repo.stage", "dvc.rwlock", "dvc.stage.loader",
    "dvc.utils.strictyaml", "dvc_data.hashfile.db.local", "dvc_data.hashfile.status", "flufl.lock",
    "fsspec.implementations.memory", "platformdirs.unix", "psutil", "pyparsing", "ruamel.yaml",
    "ruamel.yaml.mergevalue", "zc.lockfile",
)  # fmt: skip
"""Modules that `dvc repro` loads when it runs."""
_GRACE_S = 5.0
Environment = Mapping[str, str]


class Process(Protocol):
    """The part of a `subprocess.Popen` that is used here."""

    @property
    def pid(self) -> int: ...
    @property
    def stdout(self) -> IO[str] | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...


class Loaded:
    """A process that has loaded DVC, and forks. It is started only on Linux, because it needs the
    death signal."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._made_for: tuple[Path, Environment] | None = None

    def start(self, tree: Path, more: Environment) -> None:
        """Start loading DVC for this folder, with `more` in its environment."""
        self.stop()
        if sys.platform != "linux":
            return
        self._made_for = (tree, dict(more))
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _LOADED, str(os.getpid()), " ".join(_NEEDED), str(theirs.fileno())],
                cwd=tree,
                env=_environment(more),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def fork(self, tree: Path, arguments: list[str], more: Environment) -> Process | None:
        """Return a process that runs `dvc ARGUMENTS`; None where `Loaded` was started for something
        else, or is dead."""
        if self._line is None or self._made_for != (tree, dict(more)):
            return None
        output, theirs = os.pipe()
        try:
            # our own environment may have changed since: MLflow writes its address into it
            asked = json.dumps([arguments, _environment(more)]).encode()
            socket.send_fds(self._line, [asked], [theirs])
            began = _told(self._line, "began")
        except OSError:  # it is dead, or the environment is too long for a message
            began = None
        except BaseException:  # the stage must not begin when nobody waits for it any more
            os.close(output)
            self.stop()
            raise
        finally:
            os.close(theirs)
        if began is not None:
            return _Fork(began, self._line, open(output, encoding="utf-8", errors="replace"))
        os.close(output)
        self.stop()
        return None

    def stop(self) -> None:
        process, line, self._process, self._line = self._process, self._line, None, None
        if line is not None:
            line.close()
        if process is not None:
            process.kill()
            process.wait()


class _Fork:
    """A child of `Loaded`; `Loaded` reports how it ended."""

    def __init__(self, pid: int, line: socket.socket, stdout: IO[str]):
        self.pid, self.stdout = pid, stdout
        self._code: int | None = None
        self._over = threading.Event()
        threading.Thread(target=self._watch, args=(line,), daemon=True).start()

    def _watch(self, line: socket.socket) -> None:
        code = _told(line, "ended")
        self._code = -signal.SIGKILL if code is None else code  # its parent died, so the child died too
        self._over.set()

    def poll(self) -> int | None:
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        if not self._over.wait(timeout) or self._code is None:
            raise subprocess.TimeoutExpired("dvc", timeout or 0.0)
        return self._code


def _told(line: socket.socket, what: str) -> int | None:
    """Wait for a message about a fork. None where `Loaded` or the fork died before it."""
    with contextlib.suppress(OSError):
        if received := line.recv(64):
            word, number = json.loads(received)
            return number if word == what else None
    return None


@contextlib.contextmanager
def started(tree: Path, arguments: list[str], more: Environment, loaded: Loaded | None = None) -> Iterator[Process]:
    """Run DVC in this folder during the block, with its output in a pipe."""
    process = loaded.fork(tree, arguments, more) if loaded else None
    process = process or _popen(tree, arguments, _environment(more))
    # A grandchild that survives DVC would keep the pipe open, and we would wait for it.
    threading.Thread(target=lambda: (process.wait(), _signal_group(process.pid, signal.SIGKILL)), daemon=True).start()
    try:
        yield process
    finally:
        if process.poll() is None:
            _signal_group(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout:
            process.stdout.close()


def _popen(tree: Path, arguments: list[str], environment: Environment) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-c", _DVC, str(os.getpid()), *arguments],
        cwd=tree,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )


def _environment(more: Environment) -> dict[str, str]:
    environment = {**os.environ, **TELEMETRY_OFF, **more}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
    environment["TQDM_DISABLE"] = "1"  # stages print their progress in lines of their own
    environment["SHELL"] = "/bin/sh"  # DVC runs commands through it; one shell everywhere
    environment.pop("DVC_ROOT", None)
    return environment


def _signal_group(group: int, which: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, which)
