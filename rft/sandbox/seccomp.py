"""Deny system calls that no program under test needs, and that have opened kernels to attacks.

Namespaces hide the host's files and processes, but a sandboxed program still uses the host's
kernel. This filter makes that surface smaller: tracing, mounting, BPF, keyrings, io_uring, modules
and new namespaces answer "not permitted". It lists what is denied, not what is allowed, so that an
ordinary program runs as elsewhere.

The kernel runs the filter as a small program in BPF before each system call. bubblewrap loads it
from a descriptor. We write the program ourselves: each instruction is eight bytes, and we need
little more than "load a word", "jump if equal" and "return". A call's number has a meaning only for
one architecture, so the program first checks the architecture. A call of any other architecture,
such as a 32-bit call on x86_64, kills the process. x32 calls have the architecture of x86_64, and
are denied by their bit.

The answers:

- EPERM: the call exists, but may not be used.
- EAFNOSUPPORT: a socket of a family that is not one of the four in `SOCKETS`.
- ENOSYS: the call does not exist. C libraries then use the older call. `clone3` hides its flags in
  memory that a filter cannot read, so programs must use `clone`, whose flags are checked. Memory
  that belongs to no process (`memfd_create`, System V segments) is missing when we count the memory
  of processes, so these calls do not exist either.
- kill: the architecture is wrong.
"""

from __future__ import annotations

import errno
import platform
import struct

from rft.errors import InfrastructureError

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""BPF: load a word at an offset, compare it with a constant, return a constant."""
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
"""The offsets of a call's number, architecture and first arguments in `struct seccomp_data`."""
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_X32_BIT = 0x40000000

NEW_NAMESPACES = 0x7E020080
"""The flags CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET,TIME} of clone."""
_TERMINAL_INPUT, _TERMINAL_PASTE = 0x5412, 0x541C
"""ioctl TIOCSTI and TIOCLINUX: they type into the terminal from which we were started."""

DENIED = {
    "x86_64": {
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "pidfd_getfd": 438,
        "process_madvise": 440,
        "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "open_tree": 428, "move_mount": 429,
        "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442, "open_tree_attr": 467,
        "statmount": 457, "listmount": 458,
        "unshare": 272, "setns": 308,
        "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "fanotify_init": 300,
        "add_key": 248, "request_key": 249, "keyctl": 250,
        "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313, "delete_module": 176,
        "reboot": 169, "swapon": 167, "swapoff": 168, "acct": 163, "quotactl": 179, "quotactl_fd": 443, "syslog": 103,
        "settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305, "adjtimex": 159,
        "sethostname": 170, "setdomainname": 171, "vhangup": 153, "personality": 135,
        "iopl": 172, "ioperm": 173, "modify_ldt": 154, "lookup_dcookie": 212, "uselib": 134, "ustat": 136,
        "sysfs": 139, "nfsservctl": 180, "_sysctl": 156,
        "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
        "name_to_handle_at": 303, "open_by_handle_at": 304,
        "move_pages": 279, "migrate_pages": 256, "mbind": 237, "set_mempolicy": 238, "get_mempolicy": 239,
        "set_mempolicy_home_node": 450, "vmsplice": 278,
    },
    "aarch64": {
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "pidfd_getfd": 438,
        "process_madvise": 440,
        "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "open_tree": 428, "move_mount": 429,
        "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442, "open_tree_attr": 467,
        "statmount": 457, "listmount": 458,
        "unshare": 97, "setns": 268,
        "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "fanotify_init": 262,
        "add_key": 217, "request_key": 218, "keyctl": 219,
        "kexec_load": 104, "kexec_file_load": 294, "init_module": 105, "finit_module": 273, "delete_module": 106,
        "reboot": 142, "swapon": 224, "swapoff": 225, "acct": 89, "quotactl": 60, "quotactl_fd": 443, "syslog": 116,
        "settimeofday": 170, "clock_settime": 112, "clock_adjtime": 266, "adjtimex": 171,
        "sethostname": 161, "setdomainname": 162, "vhangup": 58, "personality": 92,
        "lookup_dcookie": 18, "nfsservctl": 42,
        "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
        "name_to_handle_at": 264, "open_by_handle_at": 265,
        "move_pages": 239, "migrate_pages": 238, "mbind": 235, "set_mempolicy": 237, "get_mempolicy": 236,
        "set_mempolicy_home_node": 450, "vmsplice": 75,
    },
}  # fmt: skip
"""Calls answered by EPERM: for each machine, name -> number."""

ABSENT = {
    "x86_64": {"clone3": 435, "memfd_create": 319, "memfd_secret": 447, "shmget": 29},
    "aarch64": {"clone3": 435, "memfd_create": 279, "memfd_secret": 447, "shmget": 194},
}
"""Calls answered by ENOSYS."""

CHECKED = {
    "x86_64": {"clone": 56, "ioctl": 16, "socket": 41, "socketpair": 53},
    "aarch64": {"clone": 220, "ioctl": 29, "socket": 198, "socketpair": 199},
}
"""Calls that are allowed or denied by an argument."""

SOCKETS = {"unix": 1, "inet": 2, "inet6": 10, "netlink": 16}
"""The socket families that exist inside. A network namespace does not confine all the others: over
vsock, a virtual machine can reach its host."""

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The kernel's number of each machine in `struct seccomp_data`."""


def program(machine: str | None = None) -> bytes:
    """Return the filter for this machine, as `bwrap --seccomp` reads it. Raises
    InfrastructureError for a machine without a table."""
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise InfrastructureError(f"There is no filter of system calls for {machine!r} machines, only for {known}.")
    refuse = _op(_RETURN, _ERROR | errno.EPERM)
    lines = [
        _op(_LOAD, _ARCHITECTURE),
        _op(_JUMP_EQUAL, ARCHITECTURES[machine], 1, 0),
        _op(_RETURN, _KILL),
        _op(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        lines += [_op(_JUMP_AT_LEAST, _X32_BIT, 0, 1), refuse]
    for number in sorted(DENIED[machine].values()):
        lines += [_op(_JUMP_EQUAL, number, 0, 1), refuse]
    for number in sorted(ABSENT[machine].values()):
        lines += [_op(_JUMP_EQUAL, number, 0, 1), _op(_RETURN, _ERROR | errno.ENOSYS)]
    checked = CHECKED[machine]
    for call in ("socket", "socketpair"):
        families = sorted(SOCKETS.values())
        lines += [_op(_JUMP_EQUAL, checked[call], 0, 3 + len(families)), _op(_LOAD, _FIRST_ARGUMENT)]
        lines += [_op(_JUMP_EQUAL, family, len(families) - at, 0) for at, family in enumerate(families)]
        lines += [_op(_RETURN, _ERROR | errno.EAFNOSUPPORT), _op(_RETURN, _ALLOW)]
    lines += [
        _op(_JUMP_EQUAL, checked["clone"], 0, 4),
        _op(_LOAD, _FIRST_ARGUMENT),
        _op(_JUMP_ANY_BIT, NEW_NAMESPACES, 0, 1),
        refuse,
        _op(_RETURN, _ALLOW),
        _op(_JUMP_EQUAL, checked["ioctl"], 0, 5),
        _op(_LOAD, _SECOND_ARGUMENT),
        _op(_JUMP_EQUAL, _TERMINAL_INPUT, 1, 0),
        _op(_JUMP_EQUAL, _TERMINAL_PASTE, 0, 1),
        refuse,
        _op(_RETURN, _ALLOW),
        _op(_RETURN, _ALLOW),
    ]
    return b"".join(lines)


def _op(code: int, constant: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Write one instruction. Jumps count the instructions to skip."""
    return struct.pack("=HBBI", code, if_true, if_false, constant)
