"""Give each rollout its own files: a workspace over a shared base, with snapshots.

A `Base` is a tree of files, copied once, that nobody changes. A `Workspace` is an overlay: it shows
the base, and writes go to a tmpfs of limited size. So a workspace of a large repository costs
milliseconds, and no memory until something is written. A snapshot costs only as much as the
changes. Where the kernel refuses an overlay, a workspace is a copy of the base.

    base        folder, `git archive` or nothing     ->  read-only tree
    workspace   base + changes                       ->  what the sandbox sees as /ws
    snapshot    a copy of the changes                ->  restored here, or the start of a branch
    changes     added, modified and deleted files, read from the overlay's own record

A snapshot holds files and no processes: each call of a sandbox starts new processes.

Only rft/sandbox/keeper.py mounts. This module asks it, and holds the descriptors that it returns.
When the last of them is closed, the kernel frees the mounts and their memory.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rft.errors import InfrastructureError, UserError
from rft.sandbox import keeper, limits, programs, reading

FIRST_FREE_USER = 62_501
"""As root, the sandbox runs under the first user id from here on that this machine does not use."""
BYTES_PER_FILE = 4096
"""A workspace may hold one file per so many bytes, because empty files also cost kernel memory."""
REPLY_S = 600.0
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")


# -- who, and with which means ---------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Mode:
    """How this process may mount."""

    uid: int
    gid: int
    user_namespace: bool
    """Whether mounting needs a user namespace. It does for everybody except root."""
    overlay: bool = True

    def request(self) -> dict[str, Any]:
        return {"uid": self.uid, "gid": self.gid, "user_namespace": self.user_namespace, "overlay": self.overlay}


def mode_of_this_process(overlay: bool = True) -> Mode:
    """Return the user of this process's sandboxes. Those of root run as a user without any
    rights."""
    if os.geteuid() == 0:
        uid = next(number for number in range(FIRST_FREE_USER, 65_000) if not _is_user(number))
        return Mode(uid, uid, user_namespace=False, overlay=overlay)
    return Mode(os.geteuid(), os.getegid(), user_namespace=True, overlay=overlay)


def _is_user(uid: int) -> bool:
    with contextlib.suppress(KeyError):
        pwd.getpwuid(uid)
        return True
    return False


# -- the keeper, seen from here --------------------------------------------------------------------
class _Keeper:
    """The process that mounts for us, started at the first request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, message: dict[str, Any], fds: Sequence[int] = ()) -> tuple[dict[str, Any], list[int]]:
        """Send a request and wait for its reply. Raises InfrastructureError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                self._send(message, [theirs.fileno(), *fds])
            ours.settimeout(REPLY_S)
            try:
                reply, received = keeper.receive(ours)
            except TimeoutError:
                raise InfrastructureError(f"A workspace was not {message['do']}d within {REPLY_S:g} s.") from None
        if reply is None or "error" in reply:
            why = reply["error"] if reply else "the process that mounts has died"
            raise InfrastructureError(f"The workspace cannot be made ({message['do']}): {why}.")
        return reply, received

    def close(self) -> None:
        """End the keeper. Its mounts stay as long as somebody holds them. A forked copy of this
        process only closes its end of the line."""
        if self._line is None or self._process is None:
            return
        self._line.close()
        self._line = None
        if self._owner == os.getpid():
            self._process.kill()
            self._process.wait()  # otherwise a zombie would be left
        else:
            self._process.returncode = 0  # not our child, so we do not wait for it

    def _send(self, message: dict[str, Any], fds: list[int]) -> None:
        with self._lock:
            try:
                keeper.send(self._started(), message, fds)
            except (BrokenPipeError, ConnectionResetError):
                self.close()  # it was killed, so we start another one
                keeper.send(self._started(), message, fds)

    def _started(self) -> socket.socket:
        if self._owner != os.getpid():
            self.close()
        if self._line is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                argv = [sys.executable, "-I", "-S", str(Path(keeper.__file__).resolve()), str(theirs.fileno())]
                # a session of its own: Ctrl-C is for us, and our end closes the line
                self._process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    cwd="/",
                    env=programs.environment(),
                )
            self._line, self._owner = ours, os.getpid()
        return self._line


_keeper = _Keeper()
atexit.register(_keeper.close)


async def _ask(message: dict[str, Any], fds: Sequence[int] = ()) -> tuple[dict[str, Any], list[int]]:
    """Ask the keeper without blocking the loop. If the caller is cancelled meanwhile, the
    descriptors are closed."""
    asking = asyncio.ensure_future(asyncio.to_thread(_keeper.ask, message, fds))
    try:
        return await asyncio.shield(asking)
    except asyncio.CancelledError:
        with contextlib.suppress(InfrastructureError):
            _close(*(await asking)[1])
        raise


# -- the base --------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False, slots=True)
class Base:
    """A tree of files from which workspaces start. Make one with `of_folder`, `of_commit` or
    `empty`, and close it after its workspaces."""

    mode: Mode
    user_namespace: int
    mount_namespace: int
    folder: int
    """The base itself, open."""
    num_bytes: int
    num_files: int
    binds: tuple[Path, ...]
    """Folders of the host that the sandbox may read, at their own paths."""
    on_disk: Path | None = None
    """The folder of the copy, if it is not in memory."""
    _closed: list[bool] = field(default_factory=list)

    @classmethod
    async def of_folder(
        cls, folder: Path, binds: Sequence[Path] = (), mode: Mode | None = None, disk: Path | None = None
    ) -> Base:
        """Copy a folder. Raises UserError if it is missing. `disk`: a folder for the copy, if the
        tree is too large for memory. `close` removes the copy, so close such a base after its
        workspaces. If a process is killed, the next one removes its copies."""
        for wanted in (folder, *([disk] if disk else [])):
            if not wanted.is_dir():
                raise UserError(f"{wanted}: the base of a workspace must be a folder that exists.")
        return await cls._make(mode, binds, folder=folder, disk=disk)

    @classmethod
    async def of_commit(
        cls, repository: Path, commit: str, binds: Sequence[Path] = (), mode: Mode | None = None
    ) -> Base:
        """Extract only a commit's files. A clone or a checkout would also hold later commits, in
        which an agent finds the answers."""
        with tempfile.TemporaryFile() as archive:
            # root may archive a repository of another user
            argv = ["git", "-c", "safe.directory=*", "-C", str(repository), "archive", "--format=tar", commit]
            done = await asyncio.to_thread(subprocess.run, argv, stdout=archive, stderr=subprocess.PIPE)
            if done.returncode:
                errors = done.stderr.decode("utf-8", "replace").strip()
                raise UserError(f"{repository}: the commit {commit!r} cannot be extracted: {errors}")
            archive.seek(0)
            return await cls._make(mode, binds, archive=archive.fileno())

    @classmethod
    async def empty(cls, binds: Sequence[Path] = (), mode: Mode | None = None) -> Base:
        return await cls._make(mode, binds)

    @classmethod
    async def _make(
        cls,
        mode: Mode | None,
        binds: Sequence[Path],
        folder: Path | None = None,
        archive: int | None = None,
        disk: Path | None = None,
    ) -> Base:
        mode = mode or mode_of_this_process()
        place = None if disk is None else _place(disk.resolve())
        message = {"do": "base", "folder": str(folder.resolve()) if folder else None}
        message |= {"disk": str(place / "files") if place else None}
        message |= {"binds": [str(bind.resolve()) for bind in binds], **mode.request()}
        try:
            reply, fds = await _ask(message, [] if archive is None else [archive])
        except BaseException:
            if place is not None:
                _remove(place)
            raise
        user_namespace, mount_namespace, copied = fds
        return cls(mode, user_namespace, mount_namespace, copied, reply["bytes"], reply["files"], tuple(binds), place)

    @property
    def user(self) -> tuple[int, int]:
        return self.mode.uid, self.mode.gid

    def close(self) -> None:
        """Close the base; may be called twice. Workspaces made before stay, unless the copy is on
        disk."""
        if not self._closed:
            self._closed.append(True)
            _close(self.user_namespace, self.mount_namespace, self.folder)
            if self.on_disk is not None:
                _remove(self.on_disk)


_PLACE = "rft-base"


def _place(disk: Path) -> Path:
    """Make a folder for a base that nobody else may enter, and remove the folders of dead
    processes."""
    for left in disk.glob(f"{_PLACE}-*-*-*"):
        pid, start = left.name.split("-")[2:4]
        if not (pid.isdecimal() and start.isdecimal()) or limits.started(int(pid)) != int(start):
            _remove(left)
    pid = os.getpid()
    place = Path(tempfile.mkdtemp(prefix=f"{_PLACE}-{pid}-{limits.started(pid)}-", dir=disk))
    (place / "files").mkdir()
    return place


def _remove(place: Path) -> None:
    """Remove a tree, even if its folders are not writable. Raises InfrastructureError."""
    try:
        for above, folders, _ in os.walk(place):
            for path in (f"{above}/{name}" for name in folders):
                if not os.path.islink(path):  # the target of a link is not ours
                    os.chmod(path, 0o700)
        shutil.rmtree(place)
    except OSError as error:
        raise InfrastructureError(f"{place}: what is left of a workspace's base cannot be removed: {error}") from None


# -- the workspace ---------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Change:
    """One difference from the base, such as `Change("src/a.py", "modified", "file")`."""

    path: str
    how: Literal["added", "modified", "deleted"]
    kind: reading.Kind


@dataclass(eq=False, slots=True)
class Snapshot:
    """The changes of a workspace at one moment, in memory of their own."""

    folder: int

    def close(self) -> None:
        if self.folder >= 0:
            _close(self.folder)
            self.folder = -1


@dataclass(eq=False, slots=True)
class Workspace:
    """A base and its changes, mounted."""

    base: Base
    disk_bytes: int
    user_namespace: int
    mount_namespace: int
    folder: int
    """The workspace as the sandbox sees it, open."""
    changed: int
    """Only the changes, open."""

    @classmethod
    async def create(cls, base: Base, disk_bytes: int, start: Snapshot | None = None) -> Workspace:
        """Mount a workspace of a base. `start`: a snapshot whose changes it begins with."""
        message = {"do": "create", **_request(base, disk_bytes)}
        fds = [base.user_namespace, base.mount_namespace, *([start.folder] if start else [])]
        _, received = await _ask(message, fds)
        return cls(base, disk_bytes, os.dup(base.user_namespace), *received)

    async def snapshot(self) -> Snapshot:
        """Copy the changes. Nothing may write meanwhile."""
        message = {"do": "snapshot", **_request(self.base, self.disk_bytes)}
        fds = [self.user_namespace, self.mount_namespace, self.changed]
        _, received = await _ask(message, fds)
        return Snapshot(*received)

    async def restore(self, snapshot: Snapshot) -> None:
        """Replace all changes by those of a snapshot, and empty /tmp. If that fails or is
        cancelled, the workspace is closed."""
        message = {"do": "restore", **_request(self.base, self.disk_bytes)}
        fds = [self.user_namespace, self.mount_namespace, snapshot.folder]
        try:
            _, received = await _ask(message, fds)
        except BaseException:
            self.close()
            raise
        _close(self.folder, self.changed)
        self.folder, self.changed = received

    def changes(self) -> list[Change]:
        """List the differences from the base, sorted by path. Raises reading.Refusal for a tree
        that is too large or too deep."""
        found = sorted(_compare(self.changed, self.base.folder, "", whole=not self.base.mode.overlay), key=_by_path)
        if len(found) > reading.MAX_FILES:
            raise reading.Refusal(f"The workspace has more than {reading.MAX_FILES:,} changes.")
        return found

    def close(self) -> None:
        """Free the workspace; may be called twice."""
        if self.folder >= 0:
            _close(self.user_namespace, self.mount_namespace, self.folder, self.changed)
            self.folder = -1


def _by_path(change: Change) -> tuple[str, str]:
    return change.path, change.how


def _request(base: Base, disk_bytes: int) -> dict[str, Any]:
    num_bytes, num_files = disk_bytes, max(1024, disk_bytes // BYTES_PER_FILE)
    if not base.mode.overlay:  # the copy of the base is in the same tmpfs
        num_bytes, num_files = num_bytes + base.num_bytes, num_files + base.num_files
    return {**base.mode.request(), "work_options": f"mode=755,size={num_bytes},nr_inodes={num_files}"}


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


# -- changes ---------------------------------------------------------------------------------------
def _compare(changed: int, base: int | None, prefix: str, whole: bool) -> Iterator[Change]:
    """Yield the differences below one folder. `whole`: a name that is missing in `changed` was
    deleted; otherwise the overlay marks deleted names."""
    if prefix.count("/") > reading.MAX_DEPTH:
        raise reading.Refusal(f"{prefix[:80]!r}... is deeper than {reading.MAX_DEPTH} folders.")
    before = _stats(base) if base is not None else {}
    after = _stats(changed)
    for name, about in after.items():
        path, old = f"{prefix}{name}", before.get(name)
        if stat.S_ISCHR(about.st_mode) and about.st_rdev == 0:  # the overlay's mark of a deletion
            if old is not None and base is not None:
                yield from _all(base, name, old, path, "deleted")
        elif stat.S_ISDIR(about.st_mode):
            with _opened(name, changed) as inner:
                if old is not None and base is not None and stat.S_ISDIR(old.st_mode):
                    with _opened(name, base) as inner_base:
                        yield from _compare(inner, inner_base, f"{path}/", whole or _hides(inner))
                else:
                    if old is not None:
                        yield Change(path, "deleted", reading.kind_of(old.st_mode))
                    yield Change(path, "added", "folder")
                    yield from _compare(inner, None, f"{path}/", whole)
        elif old is None:
            yield Change(path, "added", reading.kind_of(about.st_mode))
        elif stat.S_ISDIR(old.st_mode):
            if base is not None:
                yield from _all(base, name, old, path, "deleted")
            yield Change(path, "added", reading.kind_of(about.st_mode))
        elif base is not None and _differ(name, changed, about, base, old):
            yield Change(path, "modified", reading.kind_of(about.st_mode))
    if whole and base is not None:
        for name in before.keys() - after.keys():
            yield from _all(base, name, before[name], f"{prefix}{name}", "deleted")


def _stats(folder: int) -> dict[str, os.stat_result]:
    with reading.refusing("a folder"), os.scandir(folder) as names:
        return {name.name: name.stat(follow_symlinks=False) for name in names}


@contextlib.contextmanager
def _opened(name: str, parent: int) -> Iterator[int]:
    with reading.refusing(name):
        handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        yield handle
    finally:
        os.close(handle)


def _hides(folder: int) -> bool:
    """Tell whether a changed folder replaces the base's folder of the same name."""
    for name in _OPAQUE:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"y":
                return True
    return False


def _all(parent: int, name: str, about: os.stat_result, path: str, how: Literal["deleted"]) -> Iterator[Change]:
    """Yield a path of the base and all below it."""
    yield Change(path, how, reading.kind_of(about.st_mode))
    if stat.S_ISDIR(about.st_mode):
        with _opened(name, parent) as inner:
            for below, stats in _stats(inner).items():
                yield from _all(inner, below, stats, f"{path}/{below}", how)


def _differ(name: str, changed: int, about: os.stat_result, base: int, old: os.stat_result) -> bool:
    """Tell whether two files or links differ: in kind, in being executable, or in bytes."""
    if stat.S_IFMT(about.st_mode) != stat.S_IFMT(old.st_mode) or (about.st_mode ^ old.st_mode) & 0o111:
        return True
    if stat.S_ISLNK(about.st_mode):
        return os.readlink(name, dir_fd=changed) != os.readlink(name, dir_fd=base)
    if not stat.S_ISREG(about.st_mode):
        return False
    if about.st_size != old.st_size:
        return True
    return reading.read_file(changed, name, old.st_size) != reading.read_file(base, name, old.st_size)
