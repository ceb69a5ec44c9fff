"""tasks/ledger/keys.py: keys are found or made, sign and verify; what is wrong with them is said,
with a remedy.

Real ssh-keygen and ssh-agent.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ledger_world
import pytest

from rft.errors import UserError
from tasks.ledger import keys
from tasks.ledger.policy import Enrol, signer_line
from tasks.runs.clone import Clone


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return ledger_world.make_clone(tmp_path / "clone")


def make(folder: Path, *arguments: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "id_ed25519"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-f", str(file), *(arguments or ("-N", ""))]
    subprocess.run(command, check=True, capture_output=True)
    return file


# -- the machine's key -----------------------------------------------------------------------------
def test_machine_key_is_made_once_private_and_of_the_kind_that_model_signing_takes(clone: Clone) -> None:
    key = keys.machine(clone)
    assert key.public.startswith("ecdsa-sha2-nistp256 ")
    assert key.file.stat().st_mode & 0o777 == 0o600
    assert keys.machine(clone) == key


def test_processes_that_start_at_once_get_one_machine_key(clone: Clone) -> None:
    with ThreadPoolExecutor(6) as pool:
        made = set(pool.map(lambda _: keys.machine(clone).public, range(6)))
    assert made == {keys.machine(clone).public}
    shown = keys.machine(clone).file.with_suffix(".pub").read_text()
    assert shown.startswith(keys.machine(clone).public)


def test_machine_key_is_what_the_private_file_says_whatever_lies_beside_it(clone: Clone, tmp_path: Path) -> None:
    key = keys.machine(clone)
    key.file.with_suffix(".pub").write_text(make(tmp_path / "other").with_suffix(".pub").read_text())
    assert keys.machine(clone).public == key.public


def test_fingerprint_is_that_of_ssh_keygen(clone: Clone) -> None:
    key = keys.machine(clone)
    done = subprocess.run(["ssh-keygen", "-l", "-f", str(key.file)], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == key.fingerprint


# -- a person's key --------------------------------------------------------------------------------
def test_person_without_a_key_is_told_how_to_make_one(clone: Clone) -> None:
    with pytest.raises(keys.NoKey, match="ssh-keygen -t ed25519"):
        keys.person(clone)


def test_key_is_the_given_one_then_gits_then_the_default(clone: Clone, tmp_path: Path) -> None:
    default = make(tmp_path / "home/.ssh")
    assert keys.person(clone).file == default
    of_git, given = make(tmp_path / "git"), make(tmp_path / "given")
    clone.git("config", "user.signingkey", str(of_git))
    assert keys.person(clone).file == default, "Git signs with OpenPGP"
    clone.git("config", "gpg.format", "ssh")
    assert keys.person(clone).file == of_git
    assert keys.person(clone, str(given)).file == given
    assert keys.person(clone, f"{given}.pub").public == keys.person(clone, str(given)).public


def test_openpgp_signing_key_is_named(clone: Clone, tmp_path: Path) -> None:
    clone.git("config", "user.signingkey", "0xDEADBEEF")
    with pytest.raises(UserError, match=r"0xDEADBEEF is a key of openpgp.*--key FILE"):
        keys.person(clone)
    file = tmp_path / "secret"
    file.write_text("-----BEGIN PGP PRIVATE KEY BLOCK-----\n")
    with pytest.raises(UserError, match=f"{file} is an OpenPGP key"):
        keys.person(clone, str(file))


@pytest.mark.parametrize("what", ["missing", "folder", "noise", "bytes"])
def test_what_is_no_key_is_named_with_its_file(clone: Clone, tmp_path: Path, what: str) -> None:
    file = tmp_path / what
    if what == "folder":
        file.mkdir()
    elif what == "noise":
        file.write_text("hello\n")
        file.chmod(0o600)
    elif what == "bytes":
        file.with_name("bytes.pub").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=f"{file}.*--key FILE"):
        keys.person(clone, str(file))


def test_encrypted_key_without_agent_or_terminal_is_named_and_signs_with_an_agent(
    clone: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make(tmp_path / "secret", "-N", "a passphrase")
    key = keys.person(clone, str(file))
    with pytest.raises(UserError, match="ssh-add"):
        keys.sign(key, b"data", keys.ACT)
    with pytest.raises(UserError, match="ssh-add"):  # a .pub whose private half no agent holds
        keys.sign(keys.person(clone, f"{file}.pub"), b"data", keys.ACT)
    ask = tmp_path / "ask"
    ask.write_text("#!/bin/sh\necho a passphrase\n")
    ask.chmod(0o700)
    socket = str(tmp_path / "agent")
    with subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL) as agent:
        try:
            monkeypatch.setenv("SSH_AUTH_SOCK", socket)
            asking = os.environ | {"SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
            for _ in range(50):
                if subprocess.run(["ssh-add", str(file)], env=asking, capture_output=True, check=False).returncode == 0:
                    break
            signature = keys.sign(keys.person(clone, f"{file}.pub"), b"data", keys.ACT)
            clone.git("config", "gpg.format", "ssh")
            clone.git("config", "user.signingkey", f"key::{key.public}")
            assert keys.signer(keys.sign(keys.person(clone), b"data", keys.ACT)) == key.public
        finally:
            agent.terminate()
    assert keys.signer(signature) == key.public


# -- signatures ------------------------------------------------------------------------------------
def test_signature_fits_its_bytes_key_person_and_namespace_alone(clone: Clone, tmp_path: Path) -> None:
    key, other = (keys.person(clone, str(make(tmp_path / name))) for name in ("a", "b"))
    signature = keys.sign(key, b"data", keys.ACT)
    mine, others = (signer_line(Enrol(name="ada", roles=["owner"], key=each.public)) for each in (key, other))
    assert keys.verifies(b"data", signature, mine, "ada", keys.ACT)
    assert not keys.verifies(b"Data", signature, mine, "ada", keys.ACT)
    assert not keys.verifies(b"data", signature, others, "ada", keys.ACT)
    assert not keys.verifies(b"data", signature, mine, "bob", keys.ACT)
    assert not keys.verifies(b"data", signature, mine, "ada", keys.COMMIT)
    assert not keys.verifies(b"data", keys.sign(key, b"data", keys.COMMIT), mine, "ada", keys.COMMIT)
    assert keys.verifies(b"data", signature, mine, "ada", keys.ACT), "no, and then yes again"


@pytest.mark.parametrize(
    "signature",
    [
        "",
        "noise",
        "-----BEGIN PGP SIGNATURE-----\n\niQ==\n-----END PGP SIGNATURE-----\n",
        "-----BEGIN SSH SIGNATURE-----\nU1NIU0lH\n-----END SSH SIGNATURE-----\n",
        "-----BEGIN SSH SIGNATURE-----\n!!!!\n-----END SSH SIGNATURE-----\n",
    ],
)
def test_what_is_no_signature_is_a_value_error(signature: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  (base64's own too)
        keys.signer(signature)


# -- tools -----------------------------------------------------------------------------------------
ASKS = "from tasks.ledger import keys; from tasks.runs.clone import Clone; from pathlib import Path; import sys\n"
ASKS += "try: keys.machine(Clone(Path(sys.argv[1])))\nexcept Exception as error: print(type(error).__name__, error)\n"


def ask(clone: Clone, path: Path) -> str:
    environment = os.environ | {"PATH": str(path), "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, "-c", ASKS, str(clone.root)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("tool", "script", "message"),
    [
        ("ssh-keygen", None, "UserError ssh-keygen is not installed, or not in PATH"),
        ("git", "echo git version 2.30.2", "UserError Git 2.30 is too old to sign the ledger: it needs 2.34"),
        ("ssh", "echo OpenSSH_8.4p1, OpenSSL 1.1 >&2", "UserError OpenSSH 8.4 is too old to sign the ledger: it needs"),
    ],
)
def test_missing_or_old_tool_is_named_and_no_key_is_left(
    clone: Clone, tmp_path: Path, tool: str, script: str | None, message: str
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("git", "ssh", "ssh-keygen"):
        found = subprocess.run(["which", name], capture_output=True, text=True, check=True).stdout.strip()
        if name != tool:
            (folder / name).symlink_to(found)
        elif script is not None:
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
    assert message in ask(clone, folder)
    assert not (keys.folder(clone) / "machine").exists()
    assert keys.machine(clone), "the clone is usable with the right tool"


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_user_whom_the_system_does_not_know_is_told_so(tmp_path: Path) -> None:
    """As in a container with `--user 12345`. A signature must not look forged because of it."""
    program = (
        "import os\n"
        "from tasks.ledger import keys\n"
        "from rft.errors import UserError\n"
        "os.setuid(12345)\n"
        "try:\n"
        "    keys.verifies(b'', 'x', b'', 'ada', keys.ACT)\n"
        "except UserError as error:\n"
        "    print(error)\n"
    )
    environment = os.environ | {"TMPDIR": "/tmp"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert "user 12345, whom /etc/passwd does not know" in done.stdout, done.stderr
