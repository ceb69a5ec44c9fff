"""The filter of system calls, run as the kernel would run it: a BPF machine in twenty lines."""

from __future__ import annotations

import errno
import platform
import struct

import boxes
import pytest
from boxes import Box

from rft.errors import InfrastructureError
from rft.sandbox import seccomp

ALLOW, KILL = 0x7FFF0000, 0x80000000
MACHINES = ["x86_64", "aarch64"]
LINUX_CALLS = {
    "x86_64": {
        "read": 0,
        "openat": 257,
        "execve": 59,
        "fork": 57,
        "clone": 56,
        "ioctl": 16,
        "socket": 41,
        "ptrace": 101,
    },
    "aarch64": {"read": 63, "openat": 56, "execve": 221, "clone": 220, "ioctl": 29, "socket": 198, "ptrace": 117},
}


def decide(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """Run the program on one call."""
    architecture = seccomp.ARCHITECTURES[machine] if architecture is None else architecture
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, architecture, 0, *padded)
    program = seccomp.program(machine)
    lines = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at = word = 0
    while True:
        code, if_true, if_false, constant = lines[at]
        at += 1
        if code == 0x06:
            return constant
        if code == 0x20:
            (word,) = struct.unpack_from("=I", data, constant)
            continue
        holds = {0x15: word == constant, 0x35: word >= constant, 0x45: word & constant != 0}[code]
        at += if_true if holds else if_false


def error(number: int) -> int:
    return 0x00050000 | number


@pytest.mark.parametrize("machine", MACHINES)
def test_ordinary_calls_are_allowed(machine: str) -> None:
    calls = LINUX_CALLS[machine]
    assert {decide(machine, calls[name]) for name in calls.keys() & {"read", "openat", "execve", "fork"}} == {ALLOW}
    assert decide(machine, 511) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_denied_calls_are_answered_by_errors(machine: str) -> None:
    assert {decide(machine, number) for number in seccomp.DENIED[machine].values()} == {error(errno.EPERM)}
    assert {decide(machine, number) for number in seccomp.ABSENT[machine].values()} == {error(errno.ENOSYS)}
    assert decide(machine, LINUX_CALLS[machine]["ptrace"]) == error(errno.EPERM)


@pytest.mark.parametrize("machine", MACHINES)
def test_no_new_namespaces(machine: str) -> None:
    clone = LINUX_CALLS[machine]["clone"]
    process, thread = 17, 0x3D0F00
    assert {decide(machine, clone, flags) for flags in (process, thread, 0)} == {ALLOW}
    for bit in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert decide(machine, clone, bit | process) == error(errno.EPERM)


@pytest.mark.parametrize("machine", MACHINES)
def test_sockets_of_four_families(machine: str) -> None:
    call = LINUX_CALLS[machine]["socket"]
    allowed = [family for family in range(64) if decide(machine, call, family, 1) == ALLOW]
    assert allowed == [1, 2, 10, 16]
    assert decide(machine, call, 40, 1) == error(errno.EAFNOSUPPORT)


@pytest.mark.parametrize("machine", MACHINES)
def test_no_typing_into_terminals(machine: str) -> None:
    ioctl = LINUX_CALLS[machine]["ioctl"]
    assert decide(machine, ioctl, 0, 0x5401) == ALLOW
    assert {decide(machine, ioctl, 0, request) for request in (0x5412, 0x541C)} == {error(errno.EPERM)}
    assert decide(machine, ioctl, 0, 0x5412 | 1 << 40) == error(errno.EPERM)  # the kernel looks at 32 bits


@pytest.mark.parametrize("machine", MACHINES)
def test_another_architecture_is_the_end(machine: str) -> None:
    i386, arm = 0x40000003, 0x40000028
    assert {decide(machine, 0, architecture=other) for other in (i386, arm, 0)} == {KILL}


def test_x32_calls_are_denied() -> None:
    assert {decide("x86_64", 0x40000000 | number) for number in (0, 39, 101, 512)} == {error(errno.EPERM)}


def test_a_machine_without_a_table_is_an_error() -> None:
    with pytest.raises(InfrastructureError, match="no filter of system calls for 'riscv64' machines, only for x86_64"):
        seccomp.program("riscv64")


def test_the_numbers_of_both_machines_have_the_same_names() -> None:
    """Calls that only x86_64 has are older than aarch64."""
    older = {"iopl", "ioperm", "modify_ldt", "uselib", "ustat", "sysfs", "_sysctl"}
    assert seccomp.DENIED["x86_64"].keys() - seccomp.DENIED["aarch64"].keys() == older
    assert seccomp.DENIED["aarch64"].keys() <= seccomp.DENIED["x86_64"].keys()
    assert seccomp.ABSENT["aarch64"].keys() == seccomp.ABSENT["x86_64"].keys()
    for machine in MACHINES:
        numbers = [*seccomp.DENIED[machine].values(), *seccomp.ABSENT[machine].values()]
        assert len(set(numbers)) == len(numbers)


@boxes.needs_sandbox
@pytest.mark.skipif(platform.machine() not in MACHINES, reason="there is no filter for this machine")
def test_the_kernel_takes_it() -> None:
    async def play() -> None:
        async with Box() as sandbox:
            status = (await sandbox.exec(["grep", "-E", "^(Seccomp|NoNewPrivs):", "/proc/self/status"])).stdout
            assert status.split() == [b"NoNewPrivs:", b"1", b"Seccomp:", b"2"]

    boxes.run(play())
