"""Make private mounts for workspaces, in a small program that forks for each request.

A workspace is an overlay of a read-only base and a tmpfs. Mounting needs a mount namespace of its
own, and for an ordinary user also a user namespace. A process with threads can enter neither, and
one with torch in memory forks slowly. So this separate program, which imports nothing of ours, does
the mounting.

Nothing is left behind, however we end. A request's worker returns *file descriptors* of its
namespaces and of the mounted folder, and then exits. The kernel keeps a mount namespace only while
someone holds it open. With our last descriptor the namespace, its mounts and their memory are gone,
also after a kill -9. On the host no mount is visible and no file is written.

All mounts are below /sys, in that private namespace only. Every Linux has this folder, nobody can
delete it, and nothing here reads it.

    /sys/base        tmpfs, or a folder on disk: the start of all workspaces of one base
    /sys/binds/N     folders of the host that the sandbox may read, such as a Python
    /sys/own         tmpfs, limited in bytes and files: all that a sandbox can write
    /sys/merged      the overlay of base and own: the workspace

Each request is one message on a socket: JSON, a socket for the reply, and descriptors.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

ROOT = "/sys"
BASE, BINDS, WORK, MERGED = f"{ROOT}/base", f"{ROOT}/binds", f"{ROOT}/own", f"{ROOT}/merged"
MAX_MESSAGE = 65536

_NEW_NS, _NEW_USER = 0x20000, 0x10000000
_NOSUID, _NODEV, _BIND, _REC, _PRIVATE, _DETACH = 2, 4, 4096, 1 << 14, 1 << 18, 2
_libc = ctypes.CDLL(None, use_errno=True)


# -- the kernel's calls ----------------------------------------------------------------------------
def _checked(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _unshare(flags: int) -> None:
    _checked(_libc.unshare(flags), f"unshare({flags:#x})")


def _enter(descriptor: int, kind: int) -> None:
    _checked(_libc.setns(descriptor, kind), f"setns({kind:#x})")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount a file system. An error names it and its place."""
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode() or None
    )
    _checked(result, f"mount {kind or 'bind'} on {target} ({options})")


def _tmpfs(target: str, options: str) -> None:
    os.makedirs(target, mode=0o755, exist_ok=True)
    _mount("tmpfs", target, "tmpfs", _NOSUID | _NODEV, options)


def _unmount(target: str) -> None:
    _checked(_libc.umount2(target.encode(), _DETACH), f"umount {target}")


def _private() -> None:
    """Keep our mounts out of the namespace from which this one was copied."""
    _mount("none", "/", "", _REC | _PRIVATE)


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _run(command: list[str], stdin: int | None = None, keep: tuple[int, ...] = ()) -> None:
    done = subprocess.run(command, stdin=stdin, capture_output=stdin is None, pass_fds=keep)
    if done.returncode:
        errors = (done.stderr or b"").decode("utf-8", "replace").strip()[-500:]
        raise OSError(f"{command[0]} ended with {done.returncode}: {errors}")


def _copy(request: dict[str, Any], source: str, target: str, keep: tuple[int, ...] = ()) -> None:
    """Copy a tree unchanged: links, pipes, modes, and an overlay's marks of deleted files."""
    # a user namespace knows only one user, who owns all files
    owners = ["--no-preserve=ownership"] if request["user_namespace"] else []
    _run(["cp", "-a", *owners, f"{source}/.", target], keep=keep)


# -- the requests ----------------------------------------------------------------------------------
Reply = tuple[dict[str, Any], list[int]]


def _base(request: dict[str, Any], fds: list[int]) -> Reply:
    """Make the namespace from which workspaces are derived. `fds`: a tar file with the base's
    files, or nothing."""
    uid, gid = request["uid"], request["gid"]
    if request["user_namespace"]:
        _unshare(_NEW_USER | _NEW_NS)
        _write("/proc/self/setgroups", "deny")
        # as root of the namespace, `cp` can also read files whose mode forbids reading
        _write("/proc/self/uid_map", f"0 {uid} 1")
        _write("/proc/self/gid_map", f"0 {gid} 1")
    else:
        _unshare(_NEW_NS)
    _private()
    source = _open(request["folder"]) if request["folder"] else None  # before /sys is covered
    disk = _open(request["disk"]) if request["disk"] else None
    binds = [os.open(path, os.O_PATH | os.O_CLOEXEC) for path in request["binds"]]
    _tmpfs(ROOT, "mode=755,size=1m")
    for number, bind in enumerate(binds):
        os.makedirs(f"{BINDS}/{number}")
        _mount(f"/proc/self/fd/{bind}", f"{BINDS}/{number}", "", _BIND | _REC)
    if disk is None:
        _tmpfs(BASE, "mode=755,size=100%")
    else:
        os.makedirs(BASE)
        _mount(f"/proc/self/fd/{disk}", BASE, "", _BIND)
    if source is not None:
        _copy(request, f"/proc/self/fd/{source}", BASE, keep=(source,))
    elif fds:
        _run(["tar", "-x", "--no-same-owner", "-C", BASE], stdin=fds[0])
    if not request["user_namespace"]:
        _run(["chown", "-Rh", f"{uid}:{gid}", BASE])
    os.chmod(BASE, 0o755)
    num_bytes, num_files = _size(BASE)
    return {"bytes": num_bytes, "files": num_files}, [_user_namespace(), _mount_namespace(), _open(BASE)]


def _size(folder: str) -> tuple[int, int]:
    """Return the bytes of a tree, and its number of files and folders."""
    found = [os.lstat(folder)]
    for above, folders, files in os.walk(folder):
        found += [os.lstat(f"{above}/{name}") for name in (*folders, *files)]
    return sum(about.st_blocks * 512 for about in found), len(found)


def _create(request: dict[str, Any], fds: list[int]) -> Reply:
    """Derive a namespace with a workspace from that of a base. `fds`: the base's user and mount
    namespaces, and the snapshot to start from, if any."""
    _enter_both(request, fds)
    _unshare(_NEW_NS)
    _private()
    os.makedirs(MERGED, exist_ok=True)
    return {}, [_mount_namespace(), *_workspace(request, fds[2:])]


def _restore(request: dict[str, Any], fds: list[int]) -> Reply:
    """Replace a workspace's changes by those of a snapshot. `fds`: the workspace's namespaces, the
    snapshot."""
    _enter_both(request, fds)
    _unmount(MERGED)
    _unmount(WORK)
    return {}, _workspace(request, fds[2:])


def _snapshot(request: dict[str, Any], fds: list[int]) -> Reply:
    """Copy a workspace's changes to a tmpfs that lives as long as the returned descriptor. `fds`:
    the workspace's namespaces, the folder of its changes."""
    _enter_both(request, fds)
    place = f"{ROOT}/snapshot"
    _tmpfs(place, request["work_options"])
    try:
        _copy(request, f"/proc/self/fd/{fds[2]}", place, keep=(fds[2],))
        return {}, [_open(place)]
    finally:
        _unmount(place)


def _workspace(request: dict[str, Any], snapshot: list[int]) -> list[int]:
    """Mount the writable part and the workspace. Return the open folders of the workspace and of
    its changes. The sandbox's /tmp and /dev/shm are beside the changes."""
    _tmpfs(WORK, request["work_options"])
    for name in ("upper", "aside", "tmp", "shm"):
        os.mkdir(f"{WORK}/{name}")
    changes = f"{WORK}/upper"
    if snapshot:
        _copy(request, f"/proc/self/fd/{snapshot[0]}", changes, keep=(snapshot[0],))
    elif not request["overlay"]:
        _copy(request, BASE, changes)
    for name in ("upper", "tmp", "shm"):
        if not request["user_namespace"]:
            os.chown(f"{WORK}/{name}", request["uid"], request["gid"])
    if request["overlay"]:
        # with redirects of directories, or copies of metadata alone, only the kernel could read the
        # changes
        marks = "userxattr" if request["user_namespace"] else "metacopy=off,redirect_dir=off"
        options = f"lowerdir={BASE},upperdir={changes},workdir={WORK}/aside,{marks}"
        _mount("overlay", MERGED, "overlay", _NOSUID | _NODEV, options)
    else:
        _mount(changes, MERGED, "", _BIND)
    return [_open(MERGED), _open(changes)]


def _enter_both(request: dict[str, Any], fds: list[int]) -> None:
    if request["user_namespace"]:
        _enter(fds[0], _NEW_USER)
    _enter(fds[1], _NEW_NS)


def _user_namespace() -> int:
    return os.open("/proc/self/ns/user", os.O_RDONLY | os.O_CLOEXEC)


def _mount_namespace() -> int:
    return os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as handle:
        handle.write(text)


REQUESTS: dict[str, Callable[[dict[str, Any], list[int]], Reply]] = {
    "base": _base,
    "create": _create,
    "restore": _restore,
    "snapshot": _snapshot,
}


# -- the server ------------------------------------------------------------------------------------
def send(line: socket.socket, message: dict[str, Any], fds: list[int]) -> None:
    """Send one message with descriptors."""
    data = array.array("i", fds)
    line.sendmsg([json.dumps(message).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, data)] if fds else [])


def receive(line: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Receive one message with its descriptors; None if the other end is closed."""
    data, ancillary, _, _ = line.recvmsg(MAX_MESSAGE, socket.CMSG_SPACE(16 * 4), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return (json.loads(data) if data else None), list(fds)


def _answer(request: dict[str, Any], fds: list[int]) -> None:
    """Do one request, and reply on the first of the descriptors, a socket."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with socket.socket(fileno=fds[0]) as line:
        try:
            message, result = REQUESTS[request["do"]](request, fds[1:])
            send(line, message, result)
        except OSError as error:
            send(line, {"error": str(error.strerror or error), "errno": error.errno}, [])


def main(descriptor: int) -> None:
    """Fork for each request until the other end is closed. The kernel closes it if our parent
    dies."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for our parent, which then closes the line
    with socket.socket(fileno=descriptor) as line:
        while True:
            request, fds = receive(line)
            if request is None:
                return
            if os.fork() == 0:
                status = 1
                try:
                    line.close()
                    _answer(request, fds)
                    status = 0
                finally:
                    os._exit(status)
            for fd in fds:
                os.close(fd)


if __name__ == "__main__":
    main(int(sys.argv[1]))
