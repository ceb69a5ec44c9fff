"""Write the command lines: what the sandboxed program sees, and how it is started.

The program runs in bubblewrap, in new namespaces of every kind and with an empty root. Only the
folders and files listed here are mounted there. The sandbox is new for each call, and nothing of a
call stays in memory. A chain of small programs surrounds bubblewrap, and each starts the next:

    the limits' prefix    joins a cgroup                                   (rft/sandbox/limits.py)
    sh                    opens the script that will be the command
    nsenter               enters the namespace where the workspace is mounted; as root, it also
                          becomes an ordinary user for good
    bwrap                 makes the sandbox
    prlimit               sets the limits of each process, with a count for this sandbox alone
    sh                    waits until it is told to become the program

The order has reasons. Joining a cgroup needs our rights. The kernel counts processes per user and
user namespace. So with a limit set outside, all sandboxes would share one count; set inside, each
has its own. And root must not start bubblewrap, because the kernel exempts root from that count.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rft.sandbox import keeper

WORKSPACE = "/ws"
PATH = "/usr/bin:/bin"
USER_ID = 1000
"""The program's user id, as it sees it. It is the same on every machine."""
NUM_FILES_OPEN = 1024
SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin")
_ETC = ("/etc/alternatives", "/etc/ld.so.cache")
"""Files that are needed to find programs and libraries. Nothing else of /etc is visible: no users,
hosts or keys."""
_ENVIRONMENT = {"PATH": PATH, "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
"""A program's whole environment, except for what its call adds."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
SCRIPT = 9
"""The descriptor of the waiting shell's script. It has one digit, because a shell cannot close
others."""
WAIT = ("/bin/sh", "-c", f"read -r line && . /proc/self/fd/{SCRIPT}")
"""Waits for the first line of the input. A shell reads it byte by byte, so the rest is left for the
program. If the input ends, the shell ends, too."""
_PASSWD = f"sandbox:x:{USER_ID}:{USER_ID}::/tmp:/bin/sh\n"
_GROUP = f"sandbox:x:{USER_ID}:\n"


@dataclass(frozen=True, slots=True)
class Features:
    """What the installed bubblewrap can do (rft/sandbox/probe.py finds it out)."""

    disable_userns: bool = True
    """Forbids further user namespaces inside, since version 0.8. The filter of system calls denies
    them too."""


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Descriptors that bubblewrap reads and writes besides the program's own streams. It closes
    them before the program starts."""

    status: int
    passwd: int
    group: int
    filter: int | None

    def all(self) -> list[int]:
        wanted = (self.status, self.passwd, self.group, self.filter)
        return [descriptor for descriptor in wanted if descriptor is not None]


def python_folders() -> tuple[Path, ...]:
    """Return the folders that this interpreter needs besides /usr."""
    wanted = {Path(sys.base_prefix), Path(sys.prefix)}
    return tuple(sorted(folder for folder in wanted if not folder.is_relative_to("/usr") and folder.is_dir()))


def passwd_and_group() -> tuple[bytes, bytes]:
    """Return the sandbox's /etc/passwd and /etc/group, with its only user."""
    return _PASSWD.encode(), _GROUP.encode()


def enter(pid: int, mount_namespace: int, user_namespace: int | None, user: tuple[int, int]) -> list[str]:
    """Enter namespaces that the process `pid` holds open, and become `user` for good. The
    namespaces are named by paths, because an inherited descriptor would still be open inside the
    sandbox."""
    argv = ["nsenter", f"--mount=/proc/{pid}/fd/{mount_namespace}"]
    if user_namespace is not None:  # we already are an ordinary user
        return [*argv, f"--user=/proc/{pid}/fd/{user_namespace}", "--preserve-credentials", "--"]
    return [*argv, f"--setuid={user[0]}", f"--setgid={user[1]}", "--"]


def bubblewrap(
    features: Features,
    descriptors: Descriptors,
    binds: Sequence[Path],
) -> list[str]:
    """Make the sandbox. Every mount of the host is read-only. The workspace, /tmp and /dev/shm are
    in one tmpfs of limited size."""
    argv = ["bwrap", "--unshare-all", "--unshare-user"]  # all: pid, network, ipc, uts, cgroup
    argv += ["--disable-userns"] if features.disable_userns else []
    argv += ["--uid", str(USER_ID), "--gid", str(USER_ID), "--hostname", "sandbox"]
    argv += ["--ro-bind", "/usr", "/usr"]
    for folder in SYSTEM:
        if os.path.islink(folder):
            argv += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            argv += ["--ro-bind", folder, folder]
    for file in _ETC:
        argv += ["--ro-bind-try", file, file]
    argv += ["--ro-bind-data", str(descriptors.passwd), "/etc/passwd"]
    argv += ["--ro-bind-data", str(descriptors.group), "/etc/group"]
    argv += ["--proc", "/proc", "--dev", "/dev"]
    argv += ["--bind", f"{keeper.WORK}/shm", "/dev/shm", "--bind", f"{keeper.WORK}/tmp", "/tmp"]
    for number, folder in enumerate(binds):
        argv += ["--ro-bind", f"{keeper.BINDS}/{number}", str(folder)]
    argv += ["--bind", keeper.MERGED, WORKSPACE]
    # the root and /dev are tmpfs without a limit: a program could fill the memory with `touch /x`
    argv += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]
    argv += ["--die-with-parent"]  # a kill of this process, or of ours, ends all inside
    argv += ["--new-session"]  # without a terminal to type into
    argv += ["--cap-drop", "ALL", "--clearenv"]
    for name, value in _ENVIRONMENT.items():
        argv += ["--setenv", name, value]
    argv += ["--json-status-fd", str(descriptors.status)]
    argv += ["--seccomp", str(descriptors.filter)] if descriptors.filter is not None else []
    return [*argv, "--"]


def opened(pid: int, script: int) -> list[str]:
    """Open the script that the process `pid` will write, under a number that a shell can close."""
    return ["/bin/sh", "-c", f'exec {SCRIPT}<"$0" && exec "$@"', f"/proc/{pid}/fd/{script}"]


def script(cmd: Sequence[str], cwd: str, env: Mapping[str, str]) -> str:
    """Write the commands by which the waiting shell becomes the program."""
    lines = [f"exec {SCRIPT}<&-", f"cd {shlex.quote(cwd)} || exit 126", "unset OLDPWD SHLVL", "export PWD"]
    strange = [f"{name}={value}" for name, value in env.items() if not _NAME.fullmatch(name)]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in env.items() if _NAME.fullmatch(name)]
    return "\n".join([*lines, f"exec {shlex.join([*(['env', *strange] if strange else []), *cmd])}"]) + "\n"


def limited(processes: int, cpu_s: int, file_bytes: int, address_bytes: int | None) -> list[str]:
    """Set the limits of each process. `address_bytes`: its memory, where no cgroup counts
    memory."""
    # two more processes: bubblewrap's own, which is number 1 inside, and the one that it starts
    argv = ["prlimit", f"--nproc={processes + 1}", f"--cpu={cpu_s}:{cpu_s + 1}", f"--fsize={file_bytes}"]
    argv += [f"--nofile={NUM_FILES_OPEN}", "--memlock=65536", "--msgqueue=65536", "--sigpending=1024"]
    # one byte forbids a dump; with zero the kernel would still pass one to the host's handler
    argv += ["--core=1"]
    argv += [f"--as={address_bytes}"] if address_bytes is not None else []
    return [*argv, "--"]
