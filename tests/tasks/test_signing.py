"""The signature of a weights folder: what it notices, what it gives away, and that the package's
own command verifies it without us."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rft.errors import UserError
from tasks.promotion import signing


def make_key(path: Path, *more: str) -> Path:
    """As a clone makes its machine key."""
    kind = () if "-t" in more else ("-t", "ecdsa", "-b", "256")
    phrase = () if "-N" in more else ("-N", "")
    subprocess.run(["ssh-keygen", "-q", *kind, *phrase, *more, "-C", "a machine", "-f", str(path)], check=True)
    return path


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_key(tmp_path_factory.mktemp("keys") / "machine")


def public(key: Path) -> str:
    return key.with_suffix(".pub").read_text()


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    (folder / "sub").mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(os.urandom(3 << 20))
    (folder / "adapter_config.json").write_text("{}")
    (folder / "sub/notes").write_text("of a sub-folder")
    return folder


def test_a_folder_that_nobody_touched_verifies(weights: Path, key: Path) -> None:
    bundle = signing.sign(weights, key)
    signing.verify(weights, bundle, public(key))
    moved = weights.rename(weights.with_name("elsewhere"))
    signing.verify(moved, bundle, public(key))
    (moved / "empty").mkdir()  # leaves no trace: there is nothing in it to load
    signing.verify(moved, bundle, public(key))


TAMPERED: dict[str, tuple[Callable[[Path], object], str]] = {
    "changed": (lambda f: (f / "adapter_config.json").write_text("[]"), "adapter_config.json was changed"),
    "added": (lambda f: (f / "sub/more.py").write_text("x"), "sub/more.py was added"),
    "removed": (lambda f: (f / "sub/notes").unlink(), "sub/notes is missing"),
    "renamed": (lambda f: (f / "sub/notes").rename(f / "notes"), "notes was added; sub/notes is missing"),
    "for Git": (lambda f: (f / ".gitattributes").write_text("x"), ".gitattributes was added"),
    "link": (lambda f: (f / "link").symlink_to(f / "adapter_config.json"), "link' because it is a symlink"),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_what_was_done_to_a_folder_is_named(weights: Path, key: Path, case: str) -> None:
    bundle = signing.sign(weights, key)
    tamper, message = TAMPERED[case]
    tamper(weights)
    with pytest.raises(UserError) as caught:
        signing.verify(weights, bundle, public(key))
    assert message in str(caught.value)
    assert str(weights) in str(caught.value)
    assert "digest_value" not in str(caught.value), "no raw bytes"


@pytest.mark.slow
def test_the_packages_own_command_verifies_it(weights: Path, key: Path, tmp_path: Path) -> None:
    """An auditor has the folder, the bundle and the public key, and nothing of ours."""
    (tmp_path / "model.sig").write_bytes(signing.sign(weights, key))
    (tmp_path / "machine.pem").write_bytes(signing.public_pem(public(key)))
    exported = subprocess.run(["ssh-keygen", "-e", "-m", "PKCS8", "-f", f"{key}.pub"], capture_output=True, check=True)
    assert exported.stdout == (tmp_path / "machine.pem").read_bytes(), "or made by ssh-keygen alone"

    def command(*more: str) -> subprocess.CompletedProcess[str]:
        program = str(Path(sys.executable).with_name("model_signing"))
        verify = [program, "verify", "key", "weights", "--signature", "model.sig", "--public_key", "machine.pem"]
        return subprocess.run([*verify, *more], cwd=tmp_path, capture_output=True, text=True)

    done = command("--no-ignore-git-paths")
    assert (done.returncode, done.stdout) == (0, "Verification succeeded\n"), done.stderr
    (weights / ".gitignore").write_text("x")
    done = command("--no-ignore-git-paths")
    assert done.returncode == 1
    assert "Extra files found in model 'weights': .gitignore" in done.stderr
    (weights / ".gitignore").unlink()
    (weights / "adapter_config.json").write_text("[]")
    done = command()
    assert done.returncode == 1
    assert "Hash mismatch for 'adapter_config.json'" in done.stderr


def test_the_bundle_holds_hashes_and_names_within_the_folder_only(weights: Path, key: Path) -> None:
    bundle = signing.sign(weights, key)
    payload = base64.b64decode(json.loads(bundle)["dsseEnvelope"]["payload"]).decode()
    assert json.loads(payload)["subject"][0]["name"] == "weights"
    names = [one["name"] for one in json.loads(payload)["predicate"]["resources"]]
    assert names == ["adapter_config.json", "adapter_model.safetensors", "sub/notes"]
    written = json.loads(bundle)
    del written["dsseEnvelope"]["payload"]  # read above; in base64 any two letters may stand by chance
    assert [one.pop("sig") for one in written["dsseEnvelope"]["signatures"]]
    for text in (payload, json.dumps(written)):
        for secret in (str(weights.parent), socket.gethostname(), "a machine", "ignore_paths"):
            assert secret not in text
    again = signing.sign(weights, key)
    assert again != bundle, "ECDSA draws a number for each signature"
    assert json.loads(again)["dsseEnvelope"]["payload"] == json.loads(bundle)["dsseEnvelope"]["payload"]


def test_a_signature_by_another_key_or_of_other_content_is_refused(weights: Path, key: Path, tmp_path: Path) -> None:
    bundle = signing.sign(weights, key)
    with pytest.raises(UserError, match="Key mismatch"):
        signing.verify(weights, bundle, public(make_key(tmp_path / "other")))
    written = json.loads(bundle)
    statement = base64.b64decode(written["dsseEnvelope"]["payload"]).replace(b"notes", b"votes")
    written["dsseEnvelope"]["payload"] = base64.b64encode(statement).decode()
    with pytest.raises(UserError, match="not made by this key, or was changed"):
        signing.verify(weights, json.dumps(written).encode(), public(key))
    written["dsseEnvelope"]["signatures"] = []
    for broken in (b"", b"{}", b"[]", b"\xff", bundle[:-40], json.dumps(written).encode()):
        with pytest.raises(UserError, match="does not fit its signature"):
            signing.verify(weights, broken, public(key))


def test_a_folder_that_cannot_be_signed_is_one_message(weights: Path, key: Path, tmp_path: Path) -> None:
    (tmp_path / "empty/nested").mkdir(parents=True)
    with pytest.raises(UserError, match="holds no files, so there is nothing to sign"):
        signing.sign(tmp_path / "empty", key)
    with pytest.raises(UserError, match="missing"):
        signing.sign(tmp_path / "missing", key)
    (weights / "sub/link").symlink_to(key)
    with pytest.raises(UserError, match="sub/link' because it is a symlink"):
        signing.sign(weights, key)


@pytest.mark.slow
def test_keys_of_other_kinds_are_named_with_the_remedy(weights: Path, tmp_path: Path) -> None:
    signing.sign(weights, make_key(tmp_path / "pem", "-m", "PEM"))
    wrong = {
        "Ed25519": make_key(tmp_path / "ed25519", "-t", "ed25519"),
        "secp384r1": make_key(tmp_path / "larger", "-t", "ecdsa", "-b", "384"),
        "RSA": make_key(tmp_path / "rsa", "-t", "rsa", "-m", "PEM"),
        "password": make_key(tmp_path / "encrypted", "-N", "secret"),
        "cannot be read": tmp_path / "missing",
    }
    (tmp_path / "rubbish").write_text("rubbish")
    for message, path in (wrong | {"not a private key": tmp_path / "rubbish"}).items():
        with pytest.raises(UserError) as caught:
            signing.sign(weights, path)
        assert str(path) in str(caught.value)
        assert message.lower() in str(caught.value).lower()
        assert "ssh-keygen -t ecdsa -b 256" in str(caught.value)
    for line in ("", "rubbish", public(wrong["Ed25519"]), public(wrong["RSA"])):
        with pytest.raises(UserError, match="ssh-keygen -t ecdsa"):
            signing.verify(weights, b"", line)
