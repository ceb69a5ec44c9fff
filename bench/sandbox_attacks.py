"""Programs that try to leave a sandbox, for the figure `sandbox_containment` and its tests.

Each attack is a short Python program. It runs inside a sandbox, and once more without one as its
*control*: there it must succeed, or the attack shows nothing. A program that gets what it wants
calls `escaped("what")`. A program that cannot get it just ends, in any way. `scene` tells it where
the treasures are on the host: a secret file, a server, a process.

Some controls would harm the machine (writing to /usr), and some kernels refuse a thing to
everybody. So a control is `must`, `may` (it is tried, and its result is printed) or `no`.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Literal

PRELUDE = """
import contextlib, ctypes, errno, json, os, resource, signal, socket, stat, struct, subprocess, sys, time
scene = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
number = scene["numbers"]
def escaped(what):
    print("ESCAPED", what, flush=True)
    os._exit(0)
def syscall(name, *arguments):
    return libc.syscall(ctypes.c_long(number[name]), *map(ctypes.c_long, arguments))
def spawn(count):
    children = []
    for _ in range(count):
        try:
            pid = os.fork()
        except OSError:
            break
        if pid == 0:
            time.sleep(20)
            os._exit(0)
        children.append(pid)
    return children
def end(children):
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
"""

NUMBERS = {
    "x86_64": {
        "keyctl": 250, "add_key": 248, "perf_event_open": 298, "bpf": 321, "userfaultfd": 323, "io_uring_setup": 425,
        "unshare": 272, "mount": 165, "setns": 308, "process_vm_readv": 310, "open_by_handle_at": 304, "syslog": 103,
        "memfd_create": 319, "shmget": 29, "clone3": 435, "kexec_load": 246, "personality": 135, "chroot": 161,
        "name_to_handle_at": 303, "init_module": 175, "pidfd_getfd": 438,
    },
    "aarch64": {
        "keyctl": 219, "add_key": 217, "perf_event_open": 241, "bpf": 280, "userfaultfd": 282, "io_uring_setup": 425,
        "unshare": 97, "mount": 40, "setns": 268, "process_vm_readv": 270, "open_by_handle_at": 265, "syslog": 116,
        "memfd_create": 279, "shmget": 194, "clone3": 435, "kexec_load": 104, "personality": 92, "chroot": 51,
        "name_to_handle_at": 264, "init_module": 105, "pidfd_getfd": 438,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Attack:
    """One way out. `row`: it is a row of the reference's matrix."""

    name: str
    program: str
    control: Literal["must", "may", "no"] = "must"
    row: bool = False
    root_only: bool = False
    """Its control works only as root."""

    @property
    def source(self) -> str:
        return PRELUDE + textwrap.dedent(self.program)


ATTACKS = (
    # -- the network -------------------------------------------------------------------------------
    Attack("reach a server on the host's loopback", """
        with socket.create_connection(("127.0.0.1", scene["port"]), timeout=1) as line:
            escaped(line.recv(100))
    """, row=True),
    Attack("reach the host's loopback over IPv6-mapped addresses", """
        with socket.create_connection(("::ffff:127.0.0.1", scene["port"]), timeout=1) as line:
            escaped(line.recv(100))
    """),
    Attack("find a route to the internet", """
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            line.connect(("1.1.1.1", 53))
            escaped(line.getsockname())
    """, control="may", row=True),
    Attack("reach an abstract socket of the host", """
        with socket.socket(socket.AF_UNIX) as line:
            line.connect("\\0" + scene["abstract"])
            escaped(line.recv(100))
    """, row=True),
    Attack("reach a socket of the host by its path", """
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(scene["socket"])
            escaped(line.recv(100))
    """),
    Attack("speak to the hypervisor over vsock", """
        socket.socket(40, socket.SOCK_STREAM)
        escaped("a vsock socket")
    """, control="may"),
    Attack("see packets of the host", """
        names = [name for _, name in socket.if_nameindex()]
        if names != ["lo"]:
            escaped(names)
    """, control="may"),
    # -- files -------------------------------------------------------------------------------------
    Attack("read a host's file by its path", "escaped(open(scene['secret']).read())", row=True),
    Attack("read a host's file through ..", "escaped(open('../' * 40 + scene['secret']).read())", row=True),
    Attack("read a host's file through number 1's root", "escaped(open('/proc/1/root' + scene['secret']).read())",
           control="may", row=True),
    Attack("read a host's file through a link left in the workspace", """
        os.symlink(scene["secret"], "link")
        escaped(open("link").read())
    """, row=True),
    Attack("look at the host's devices in /sys", "escaped(os.listdir('/sys')[0])", row=True),
    Attack("read the host's users", """
        if "root:" in open("/etc/passwd").read():
            escaped("its list of users")
    """),
    Attack("write to the system's folders", """
        for folder in ("/usr", "/usr/lib", "/", "/dev", "/etc", "/proc", "/bin"):
            with contextlib.suppress(OSError):
                open(folder + "/rft-was-here", "w")
                escaped(folder)
    """, control="no", row=True),
    Attack("write to the interpreter's folders", """
        for folder in sys.path:
            with contextlib.suppress(OSError):
                open(folder + "/rft_was_here.py", "w")
                escaped(folder)
    """, control="no"),
    Attack("make a device", """
        os.mknod("device", 0o600 | stat.S_IFBLK, os.makedev(8, 0))
        escaped("a block device")
    """, root_only=True),
    Attack("open a device of the host", """
        for name in ("mem", "kmsg", "port", "sda", "vda", "nvme0n1", "kvm", "fuse", "loop-control", "vhost-vsock"):
            with contextlib.suppress(OSError):
                os.open("/dev/" + name, os.O_RDONLY | os.O_NONBLOCK)
                escaped(name)
    """, root_only=True),
    Attack("change the kernel's settings", """
        for name in ("kernel/core_pattern", "kernel/hostname", "vm/overcommit_memory", "kernel/modprobe"):
            with contextlib.suppress(OSError):
                os.open("/proc/sys/" + name, os.O_WRONLY)
                escaped(name)
    """, root_only=True),
    Attack("open a file of the host by its handle", """
        handle = ctypes.create_string_buffer(struct.pack("Ii", 120, 0) + bytes(128))
        mount_id = ctypes.c_int()
        if syscall("name_to_handle_at", -100, ctypes.cast(ctypes.create_string_buffer(b"/usr"), ctypes.c_void_p).value,
                   ctypes.addressof(handle), ctypes.addressof(mount_id), 0):
            sys.exit("no handle")
        opened = syscall("open_by_handle_at", os.open("/usr", os.O_RDONLY), ctypes.addressof(handle), os.O_RDONLY)
        if opened >= 0:
            escaped("a file by its handle")
    """, root_only=True),
    # -- what we hold ------------------------------------------------------------------------------
    Attack("read the environment of the process that started it", """
        for pid in {os.getppid(), 1}:
            with contextlib.suppress(OSError):
                if scene["variable"].encode() in open(f"/proc/{pid}/environ", "rb").read():
                    escaped("a variable of the host")
    """),
    Attack("use a descriptor that was left open", """
        for descriptor in range(3, 256):
            with contextlib.suppress(OSError):
                os.fstat(descriptor)
                escaped(os.readlink(f"/proc/self/fd/{descriptor}"))
    """),
    Attack("read the keys of the session", """
        if syscall("keyctl", 0, -3, 1) >= 0:
            escaped("the session's keyring")
    """),
    # -- processes ---------------------------------------------------------------------------------
    Attack("see the host's processes", """
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if scene["marker"].encode() in open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0"):
                    escaped(f"process {pid}")
    """, row=True),
    Attack("end a process of the host", """
        os.kill(scene["victim"], signal.SIGKILL)
        escaped("it is dead")
    """),
    Attack("trace a process", """
        pid = os.fork()
        if pid == 0:
            time.sleep(5)
            os._exit(0)
        attach = 16
        held = libc.ptrace(attach, pid, None, None)
        os.kill(pid, signal.SIGKILL)
        if held == 0:
            escaped("a traced process")
    """, control="may"),
    Attack("read another process's memory", """
        secret = ctypes.create_string_buffer(b"secret of the parent")
        pid = os.getpid()
        child = os.fork()
        if child == 0:
            local, target = ctypes.create_string_buffer(20), struct.pack("QQ", ctypes.addressof(secret), 20)
            mine = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(local), 20))
            theirs = ctypes.create_string_buffer(target)
            if syscall("process_vm_readv", pid, ctypes.addressof(mine), 1, ctypes.addressof(theirs), 1, 0) == 20:
                escaped(local.raw)
            os._exit(0)
        os.waitpid(child, 0)
    """, control="may"),
    # -- rights ------------------------------------------------------------------------------------
    Attack("make a user namespace inside", """
        if libc.unshare(0x10000000) == 0:
            escaped("a user namespace")
    """, control="may", row=True),
    Attack("make a user namespace by clone", """
        child = libc.syscall(ctypes.c_long(scene["clone"]), ctypes.c_long(0x10000000 | signal.SIGCHLD), 0, 0, 0, 0)
        if child == 0:
            os._exit(0)
        if child > 0:
            escaped("a process in a user namespace")
    """, control="may"),
    Attack("make a user namespace by clone3", """
        arguments = ctypes.create_string_buffer(struct.pack("8Q", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0))
        child = syscall("clone3", ctypes.addressof(arguments), 64)
        if child == 0:
            os._exit(0)
        if child > 0:
            escaped("a process in a user namespace")
    """, control="may"),
    Attack("mount a file system", """
        os.makedirs("mount", exist_ok=True)
        libc.unshare(0x10000000 | 0x20000)
        if libc.mount(b"none", b"mount", b"tmpfs", 0, None) == 0:
            escaped("a mount")
    """, control="may", row=True),
    Attack("enter number 1's namespace of mounts", """
        if libc.setns(os.open("/proc/1/ns/mnt", os.O_RDONLY), 0) == 0:
            escaped("it")
    """, control="may"),
    Attack("become root", """
        for become in (lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgid(0)):
            with contextlib.suppress(OSError):
                become()
                escaped(os.getuid())
    """, root_only=True),
    Attack("run a program that becomes root", """
        if not int(open("/proc/self/status").read().split("NoNewPrivs:")[1].split()[0]):
            escaped("new privileges are possible")
    """, control="may"),
    Attack("have any capability", """
        status = open("/proc/self/status").read()
        for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb"):
            if int(status.split(name + ":")[1].split()[0], 16):
                escaped(name)
    """),
    # -- the kernel --------------------------------------------------------------------------------
    Attack("set up io_uring", """
        if syscall("io_uring_setup", 4, ctypes.addressof(ctypes.create_string_buffer(120))) >= 0:
            escaped("a ring")
    """, control="may"),
    Attack("watch page faults", """
        if syscall("userfaultfd", 1) >= 0:
            escaped("userfaultfd")
    """, control="may"),
    Attack("load a BPF program", """
        about = ctypes.create_string_buffer(struct.pack("5I", 1, 4, 4, 1, 0), 128)
        if syscall("bpf", 0, ctypes.addressof(about), 72) >= 0:
            escaped("a map")
    """, root_only=True, control="may"),
    Attack("count the host's events", """
        event = ctypes.create_string_buffer(struct.pack("IIQ", 1, 120, 0), 120)
        if syscall("perf_event_open", ctypes.addressof(event), 0, -1, -1, 0) >= 0:
            escaped("a counter")
    """, control="may"),
    Attack("read the kernel's log", """
        if syscall("syslog", 10, 0, 0) > 0:
            escaped("its size")
    """, root_only=True),
    Attack("make 32-bit calls, which have other numbers", """
        import mmap
        getpid = b"\\x53\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\x5b\\xc3"  # push rbx; mov eax, 20; int 0x80; pop rbx; ret
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(getpid)
        call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
        if os.uname().machine == "x86_64" and call() == os.getpid():
            escaped("a 32-bit getpid")
    """, control="may"),
    Attack("make x32 calls, which have other numbers", """
        if os.uname().machine == "x86_64":
            if libc.syscall(ctypes.c_long(0x40000000 | 39)) == os.getpid():
                escaped("an x32 getpid")
    """, control="may"),
    # -- too much ----------------------------------------------------------------------------------
    Attack("fork without end", """
        children = spawn(scene["processes"] * 3)
        count = len(children)
        end(children)
        if count > scene["processes"]:
            escaped(f"{count} processes")
    """, row=True),
    Attack("start threads without end", """
        import threading
        done, count = threading.Event(), 0
        threading.stack_size(65536)
        with contextlib.suppress(RuntimeError):
            for count in range(scene["processes"] * 3):
                threading.Thread(target=done.wait, daemon=True).start()
        done.set()
        if count > scene["processes"]:
            escaped(f"{count} threads")
    """),
    Attack("use more memory than allowed, in one process", """
        blocks = []
        while len(blocks) * 2**20 < scene["memory"] * 1.5:
            blocks.append(bytearray(b"x" * 2**20))
        escaped(f"{len(blocks)} MiB")
    """, row=True),
    Attack("use more memory than allowed, in many processes", """
        share = scene["memory"] * 2 // 6
        read, write = os.pipe()
        pids = []
        for _ in range(6):
            pid = os.fork()
            if pid == 0:
                block = bytearray(b"x" * share)
                os.write(write, b"1")
                time.sleep(1.5)
                os.write(write, b"2")
                os._exit(0)
            pids.append(pid)
        os.close(write)
        for pid in pids:
            os.waitpid(pid, 0)
        if os.read(read, 100).count(b"2") == 6:
            escaped("twice the memory, for a second")
    """, row=True),
    Attack("hide memory in files without a name", """
        hidden = 0
        while hidden < scene["memory"] * 1.5:
            descriptor = syscall("memfd_create", ctypes.addressof(ctypes.create_string_buffer(b"x")), 0)
            if descriptor < 0:
                sys.exit(0)
            hidden += os.write(descriptor, b"x" * 2**20 * 4)
        escaped(f"{hidden} bytes that no process has")
    """),
    Attack("hide memory in segments without a process", """
        libc.shmat.restype = ctypes.c_void_p
        hidden = []
        while len(hidden) * 2**22 < scene["memory"] * 1.5:
            segment = libc.shmget(0, ctypes.c_size_t(2**22), 0o1600)
            if segment < 0:
                break
            place = libc.shmat(segment, None, 0)
            ctypes.memset(place, 120, 2**22)
            libc.shmdt(ctypes.c_void_p(place))
            hidden.append(segment)
        for segment in hidden:
            libc.shmctl(segment, 0, None)
        if len(hidden) * 2**22 >= scene["memory"] * 1.5:
            escaped(f"{len(hidden)} segments")
    """),
    Attack("fill the disk", """
        for folder in (".", "/tmp", "/dev/shm"):
            written = 0
            try:
                while written < scene["disk"] * 1.5:
                    with open(f"{folder}/{scene['marker']}-{written}", "wb") as file:
                        written += file.write(b"x" * 2**20 * 2)
                escaped(f"{written} bytes in {folder}")
            except OSError:
                pass
            finally:
                for name in os.listdir(folder):
                    if name.startswith(scene["marker"]):
                        os.unlink(f"{folder}/{name}")
    """, row=True),
    Attack("fill the three folders together", """
        total = 0
        for folder in (".", "/tmp", "/dev/shm"):
            with contextlib.suppress(OSError), open(f"{folder}/{scene['marker']}", "wb") as file:
                while file.tell() < scene["disk"] * 0.7:
                    total += file.write(b"x" * 2**20)
        for folder in (".", "/tmp", "/dev/shm"):
            with contextlib.suppress(OSError):
                os.unlink(f"{folder}/{scene['marker']}")
        if total > scene["disk"] * 1.5:
            escaped(f"{total} bytes")
    """),
    Attack("make files without end", """
        count = 0
        folder = f"/dev/shm/{scene['marker']}-files"  # in the control, a disk would take its time
        os.mkdir(folder)
        try:
            for count in range(scene["files"] + 1):
                os.close(os.open(f"{folder}/{count}", os.O_CREAT | os.O_WRONLY))
        except OSError:
            sys.exit(0)
        finally:
            subprocess.run(["rm", "-r", folder])
        escaped(f"{count} files")
    """),
    Attack("write a file that is too long", """
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            with open("long", "wb") as file:
                file.truncate(scene["file"] * 2)
            escaped("a long file")
        finally:
            os.unlink("long")
    """, row=True),
    Attack("compute without end", """
        start = time.process_time()
        while time.process_time() - start < scene["cpu_s"] + 1.5:
            pass
        escaped("more time on the processor than allowed")
    """, row=True),
    Attack("raise its own limits", """
        for limit in (resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU, resource.RLIMIT_NOFILE):
            soft, hard = resource.getrlimit(limit)
            if hard == resource.RLIM_INFINITY:
                escaped(f"limit {limit} has no end")
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(limit, (hard, hard * 2))
                escaped(f"limit {limit}")
    """),
    Attack("send a core dump to the host's handler", """
        if resource.getrlimit(resource.RLIMIT_CORE)[1] not in (1,):
            escaped(resource.getrlimit(resource.RLIMIT_CORE))
    """),
)  # fmt: skip
