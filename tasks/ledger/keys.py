"""SSH keys: find or make them, sign with them, verify what they signed.

OpenSSH does the cryptography. So people sign with a key that they have anyway, from a file, an
agent or a hardware token, and an auditor needs only `ssh-keygen`. A clone has a machine key of its
own (`.rft/keys/machine`). It is an ECDSA P-256 key, which OpenSSF model signing accepts too. It has
no passphrase, because it signs at night. A person's key is never copied or stored.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rft import commands, files
from rft.errors import InfrastructureError, UserError
from tasks.runs import records
from tasks.runs.clone import Clone
from tasks.runs.git import GitError, git

COMMIT, ACT = "git", "rft-act"
"""The namespaces of signatures: Git's for commits, and ours for people's statements."""
GIT, OPENSSH = (2, 34), (8, 9)
"""The oldest versions that work: `git verify-commit` with SSH signatures, `ssh-keygen -Y`."""
MAKE = "ssh-keygen -t ed25519"
_MAKING = "making-"
_ENDED_S = 600.0
"""How long a person may look for their token or passphrase."""


@dataclass(frozen=True)
class Key:
    public: str
    """The public key as in a .pub file, without its comment: `ssh-ed25519 AAAA...`."""
    file: Path
    """What `ssh-keygen -f` gets: the private file, or the .pub of a key that an agent holds."""

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.public)


def fingerprint(public: str) -> str:
    """Return `SHA256:...`, as ssh-keygen prints it. Raises UserError for what is not a public
    key."""
    try:
        blob = base64.b64decode(public.split()[1], validate=True)
    except (IndexError, binascii.Error):
        raise UserError(f"{public[:60]!r} is not a public key in OpenSSH's format, like a .pub file.") from None
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


# -- the clone's own key ---------------------------------------------------------------------------
def folder(clone: Clone) -> Path:
    return clone.state / "keys"


def machine(clone: Clone) -> Key:
    """Return the clone's machine key. It is made at its first use."""
    private = folder(clone) / "machine"
    try:
        if not private.exists():
            assert_tools(clone)
            private.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with records.held(folder(clone) / "lock", wait=True):
                if not private.exists():
                    _make_machine(private)
        content = private.read_bytes()
    except (PermissionError, FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        what = f"{error.filename}: {error.strerror}, so this clone's machine key can be neither read nor made"
        own = shlex.quote(str(folder(clone)))
        yours = (
            f'work as the user whose clone it is, or make it yours: sudo chown -R "$USER" {own}; chmod -R u+rwX {own}'
        )
        remedy = yours if isinstance(error, PermissionError) else "something else is needed there: move it away"
        raise UserError(f"{what}. To go on, {remedy}") from None
    return Key(_own(private, content), private)


def _make_machine(private: Path) -> None:
    """Make the machine key. The caller holds the lock. It is made in a scratch folder, which is
    removed before the key gets its name. So after a kill there is no key yet, and the next start
    removes what was left. An ssh-keygen that outlived its driver can write only to its own scratch
    folder."""
    for left in private.parent.glob(f"{_MAKING}*"):
        shutil.rmtree(left, ignore_errors=True)
    whole = private.with_name("machine.part")
    with tempfile.TemporaryDirectory(prefix=_MAKING, dir=private.parent) as scratch:
        made = Path(scratch) / "machine"
        _ssh_keygen("-q", "-t", "ecdsa", "-b", "256", "-N", "", "-C", "agent-rft", "-f", str(made))
        os.replace(made.with_suffix(".pub"), private.with_suffix(".pub"))
        os.replace(made, whole)
    os.replace(whole, private)


@cache
def _own(private: Path, content: bytes) -> str:
    """Return the public half of the machine key, derived from the private one. The clone's memory
    of what it verified rests on this key, and anybody could have replaced the .pub file beside
    it."""
    enrol = commands.command("ledger people", "add", "--machine", *commands.WHY)
    remedy = f"It is this clone's machine key. Restore it, with mode 600, or delete it and enrol a new one: {enrol}"
    kind, blob = _derived(private, remedy).split()[:2]
    return f"{kind} {blob}"


# -- a person's key --------------------------------------------------------------------------------
def person(clone: Clone, given: str | None = None) -> Key:
    """Return the key with which a person signs: `given` (--key), or the one with which Git signs
    (user.signingkey with gpg.format=ssh), or ~/.ssh/id_ed25519.

    Raises UserError when there is none, or when it is not an SSH key.
    """
    assert_tools(clone)
    if given is not None:
        return _key(Path(given).expanduser(), "--key")
    configured, form = _configured(clone, "user.signingkey"), _configured(clone, "gpg.format") or "openpgp"
    if configured and form == "ssh":
        literal = configured.removeprefix("key::")
        if literal.startswith(("ssh-", "ecdsa-", "sk-")):
            return _of_agent(clone, literal)
        return _key(Path(configured).expanduser(), "Git's user.signingkey")
    default = Path.home() / ".ssh" / "id_ed25519"
    if default.exists() or default.with_suffix(".pub").exists():
        return _key(default, "the default key")
    if configured:
        what = f"Git's user.signingkey = {configured} is a key of {form}, and decisions are signed with SSH keys"
        raise UserError(f"{what}. Name one with --key FILE, or make one: {MAKE}")
    raise NoKey(
        f"you have no SSH key to sign with: no --key, none in Git's user.signingkey, no {default}. Make one: {MAKE}"
    )


class NoKey(UserError):
    """There is no key at all, so the caller may offer to make one."""


def make_person() -> None:
    """Let ssh-keygen make the default key. It asks for the passphrase itself."""
    default = Path.home() / ".ssh" / "id_ed25519"
    default.parent.mkdir(mode=0o700, exist_ok=True)
    if subprocess.run(["ssh-keygen", "-t", "ed25519", "-f", str(default)], check=False).returncode != 0:
        raise UserError("ssh-keygen made no key. Nothing was signed.")


def _key(file: Path, what: str) -> Key:
    for each in (file, file.with_name(file.name + ".pub")):
        if each.exists():
            break
    else:
        raise UserError(f"{what}: {file} does not exist. Name a private SSH key or its .pub file: --key FILE")
    try:
        text = file.read_bytes()[:100] if file.exists() else b""
    except OSError as error:
        raise UserError(
            f"{what}: {file} cannot be read ({error.strerror}). Name a private SSH key: --key FILE"
        ) from None
    if b"BEGIN PGP" in text or file.suffix in (".gpg", ".asc"):
        raise UserError(f"{what}: {file} is an OpenPGP key, and decisions are signed with SSH keys. Make one: {MAKE}")
    return Key(_public(file), file)


def _public(file: Path) -> str:
    """Return the public half. A .pub file is read first, so that an encrypted key needs no
    passphrase."""
    beside = file if file.suffix == ".pub" else file.with_name(file.name + ".pub")
    text = beside.read_text(encoding="utf-8", errors="replace") if beside.exists() else _derived(file)
    words = text.split()
    if len(words) < 2 or not words[0].startswith(("ssh-", "ecdsa-", "sk-")):
        raise UserError(f"{beside}: not an SSH public key. Name a private SSH key or its .pub file: --key FILE")
    public = f"{words[0]} {words[1]}"
    fingerprint(public)
    return public


def _derived(private: Path, remedy: str = "Name another one: --key FILE") -> str:
    done = _run("-y", "-f", str(private))
    if done.returncode != 0:
        why = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise UserError(f"{private}: not a readable SSH key ({''.join(why)}). {remedy}")
    return done.stdout.decode()


def _of_agent(clone: Clone, public: str) -> Key:
    """Return a key of which Git knows only the public half: an agent holds it."""
    words = public.split()
    file = folder(clone) / f"agent-{hashlib.sha256(words[1].encode()).hexdigest()[:16]}.pub"
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.write_text(f"{words[0]} {words[1]}\n", file)
    return Key(f"{words[0]} {words[1]}", file)


def _configured(clone: Clone, name: str) -> str | None:
    try:
        return git(clone.root, "config", name) or None
    except GitError:
        return None


# -- sign and verify -------------------------------------------------------------------------------
def sign(key: Key, data: bytes, namespace: str) -> str:
    """Sign bytes. Returns the armored signature. Raises UserError when the key cannot be used."""
    done = _run(*_sign(key.file, namespace), given=data)
    if done.returncode == 0:
        return done.stdout.decode()
    output = done.stderr.decode(errors="replace").strip()
    if "passphrase" in output or "agent" in output.casefold() or key.file.suffix == ".pub":
        what = (
            f"{key.file}: the key is encrypted or lies in an agent, and nobody could be asked for it ({_last(output)})"
        )
        raise UserError(
            f"{what}. Add it to your agent (ssh-add {shlex.quote(str(key.file))}), or run this in a terminal."
        )
    raise UserError(
        f"{key.file}: ssh-keygen did not sign with this key ({_last(output)}). Name another one: --key FILE"
    )


def sign_command(key: str, file: Path) -> str:
    """Return the command that signs a file with a key, to be pasted elsewhere."""
    return shlex.join(["ssh-keygen", *_sign(key, ACT), str(file)])


def _sign(key: Path | str, namespace: str) -> list[str]:
    return ["-Y", "sign", "-n", namespace, "-f", str(key)]


def signer(signature: str) -> str:
    """Return the public key that a signature names. Raises ValueError for what is not a
    signature."""
    body = re.fullmatch(r"-+BEGIN SSH SIGNATURE-+\s([^-]*+)-+END SSH SIGNATURE-+", signature.strip())
    if body is None:
        raise ValueError("not an SSH signature")
    blob = base64.b64decode("".join(body[1].split()), validate=True)
    if blob[:6] != b"SSHSIG":
        raise ValueError("not an SSH signature")
    public = _string(blob[10:])
    kind = _string(public).decode("ascii")
    if not re.fullmatch(r"[a-z0-9@.-]+", kind):
        raise ValueError("an SSH signature with a key of no known kind")
    return f"{kind} {base64.b64encode(public).decode()}"


def _string(blob: bytes) -> bytes:
    """Return the first string in SSH's wire format: four bytes of length, then the bytes (RFC
    4251)."""
    length = int.from_bytes(blob[:4], "big")
    if len(blob) < 4 + length:
        raise ValueError("an SSH signature that is cut off")
    return blob[4 : 4 + length]


@contextmanager
def scratch() -> Iterator[Path]:
    """Make a folder for files that ssh-keygen reads. Raises InfrastructureError if that fails."""
    try:
        folder = tempfile.TemporaryDirectory()
    except FileNotFoundError as error:  # Python found each place for temporary files full
        raise InfrastructureError(f"{error.strerror or error}: is the disk full? Nothing was changed.") from None
    with folder as name:
        yield Path(name)


_fitted: set[bytes] = set()
"""SHA-256 of each check that succeeded in this process."""


def verifies(data: bytes, signature: str, signers: bytes, principal: str, namespace: str) -> bool:
    """Say whether `principal` of these allowed_signers signed these bytes.

    A yes depends only on the arguments, so each process asks ssh-keygen for it once (6 ms). Nobody
    can forge what the process itself has verified.
    """
    asked = hashlib.sha256(repr((data, signature, signers, principal, namespace)).encode()).digest()
    if asked not in _fitted and _fits(data, signature, signers, principal, namespace):
        _fitted.add(asked)
    return asked in _fitted


def _fits(data: bytes, signature: str, signers: bytes, principal: str, namespace: str) -> bool:
    with scratch() as place:
        (place / "signers").write_bytes(signers)
        (place / "signature").write_bytes(signature.encode())
        found = ("-f", str(place / "signers"), "-I", principal, "-n", namespace, "-s", str(place / "signature"))
        return _run("-Y", "verify", *found, given=data).returncode == 0


# -- the tools -------------------------------------------------------------------------------------
def assert_tools(clone: Clone) -> None:
    """Raise UserError if Git or OpenSSH is too old for this."""
    for name, found, oldest in ((("Git", *_git(clone.root))), ("OpenSSH", *_openssh())):
        if found is not None and found < oldest:
            have, want = (".".join(map(str, version)) for version in (found, oldest))
            raise UserError(f"{name} {have} is too old to sign the ledger: it needs {want} or later. Update it.")


@cache
def _git(root: Path) -> tuple[tuple[int, int] | None, tuple[int, int]]:
    return _version(git(root, "version")), GIT


@cache
def _openssh() -> tuple[tuple[int, int] | None, tuple[int, int]]:
    _run("-Y", "sign")  # raises without ssh-keygen, which does not print its version
    try:
        output = subprocess.run(["ssh", "-V"], capture_output=True, check=False).stderr.decode(errors="replace")
    except FileNotFoundError:
        return None, OPENSSH
    return _version(output), OPENSSH


def _version(text: str) -> tuple[int, int] | None:
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _ssh_keygen(*arguments: str) -> None:
    done = _run(*arguments)
    if done.returncode != 0:
        output = done.stderr.decode(errors="replace").strip() or done.stdout.decode(errors="replace").strip()
        raise InfrastructureError(f"ssh-keygen {' '.join(arguments[:2])} failed: {output}")


def _run(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = dict(os.environ)
    if not sys.stdin or not sys.stdin.isatty():
        environment["SSH_ASKPASS_REQUIRE"] = "never"
    try:
        done = subprocess.run(
            ["ssh-keygen", *arguments],
            input=given,
            capture_output=True,
            check=False,
            env=environment,
            timeout=_ENDED_S,
            start_new_session=not (sys.stdin and sys.stdin.isatty()),
        )
    except FileNotFoundError:
        why = "It signs and verifies the ledger of approvals: install OpenSSH's client, then try again."
        raise UserError(f"ssh-keygen is not installed, or not in PATH. {why}") from None
    except subprocess.TimeoutExpired:
        raise InfrastructureError(f"ssh-keygen did not end within {_ENDED_S:.0f} s. Nothing was signed.") from None
    if done.stderr.startswith(b"No user exists for uid"):  # otherwise it would look like a wrong signature
        who = f"ssh-keygen refuses to work for user {os.getuid()}, whom /etc/passwd does not know"
        raise UserError(f"{who}. Add the user; in a container, at its build: infra/Dockerfile, --build-arg UID")
    return done


def _last(output: str) -> str:
    line = output.splitlines()[-1] if output else "no word why"
    return re.sub(r"^Enter passphrase[^:]*: ", "", line)
