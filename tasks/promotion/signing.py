"""The signature of a weights folder, in OpenSSF's format for models, by the clone's machine key.

    bundle = sign(folder, key)            -> bytes of a Sigstore bundle, to be kept as model.sig
    verify(folder, bundle, public_key)    raises UserError naming what was changed, added or missing

The ledger's entry already names the hash of the weights, and its commit is signed. This signature
is for people who have only the folder. To verify it they need neither Git nor a tool of ours, only
the package `model-signing` and the machine's public key (`public_pem`):

    model_signing verify key FOLDER --no-ignore-git-paths --signature model.sig \\
        --public_key machine.pem

The bundle lists the SHA-256 of every file under its path in the folder. Besides that it holds only
the folder's own name and a hash of the public key: no time, no host, no other path. ECDSA draws a
random number for each signature, so two bundles of equal bytes differ.

By default the package leaves out `.git`, `.github`, `.gitignore` and `.gitattributes`, so anything
could be put there afterwards. We sign them too, hence the option above. A link is an error, and an
empty folder inside leaves no trace.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rft import files
from rft.errors import UserError

if TYPE_CHECKING:
    from model_signing.hashing import Config

_SSH = b"OPENSSH PRIVATE KEY"
_NEEDED = "Model signing needs an ECDSA P-256 key without a passphrase: ssh-keygen -t ecdsa -b 256 -N '' -f KEY"


def sign(folder: Path, private_key: Path) -> bytes:
    """Sign all files of a folder. Raises UserError for a key of another kind, and for a folder
    that is missing, empty, or holds a link."""
    from model_signing import signing

    pem = private_pem(private_key)
    with tempfile.TemporaryDirectory() as scratch, _readable(pem) as key:
        bundle = Path(scratch) / "model.sig"
        config = signing.Config().use_elliptic_key_signer(private_key=key).set_hashing_config(_everything())
        try:
            config.sign(folder, bundle)
        except (OSError, ValueError) as error:
            raise UserError(f"{folder}: cannot be signed: {error}") from None
        content = bundle.read_bytes()
    if not _signed(content):
        raise UserError(f"{folder}: holds no files, so there is nothing to sign.")
    return content


def verify(folder: Path, bundle: bytes, public_key: str) -> None:
    """Verify a folder. `public_key` is a line as in KEY.pub. Raises UserError naming each file that
    was changed, was added or is missing, or saying why the signature itself is not valid."""
    from cryptography.exceptions import InvalidSignature
    from model_signing import verifying

    pem = public_pem(public_key)
    with tempfile.TemporaryDirectory() as scratch, _readable(pem) as key:
        path = Path(scratch) / "model.sig"
        path.write_bytes(bundle)
        config = verifying.Config().use_elliptic_key_verifier(public_key=key).set_hashing_config(_everything())
        try:
            config.verify(folder, path)
        except InvalidSignature:
            raise UserError(f"{folder}: the signature was not made by this key, or was changed.") from None
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            # its mismatches come as a list with raw digests; only a verified signature has any
            mismatch = str(error).startswith("Signature mismatch")
            differences = "; ".join(_differences(folder, _signed(bundle))) if mismatch else ""
            raise UserError(f"{folder}: does not fit its signature: {differences or repr(error)}.") from None


def verify_digests(bundle: bytes, digests: dict[str, str], public_key: str) -> None:
    """Verify a signature with only the SHA-256 of each file: an audit has hashed the files already.
    Raises UserError like `verify`."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        envelope = json.loads(bundle)["dsseEnvelope"]
        payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"].encode()
        signature = base64.b64decode(envelope["signatures"][0]["sig"])
        # https://github.com/secure-systems-lab/dsse/blob/master/protocol.md
        encoded = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
        key = form.load_pem_public_key(public_pem(public_key))
        assert isinstance(key, ec.EllipticCurvePublicKey)
        key.verify(signature, encoded, ec.ECDSA(hashes.SHA256()))
        signed = _signed(bundle)
    except InvalidSignature:
        raise UserError("the weights' signature was not made by this key, or was changed.") from None
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"the weights' signature is not as model signing writes it ({error!r}).") from None
    if wrong := sorted(name for name in signed.keys() | digests.keys() if signed.get(name) != digests.get(name)):
        raise UserError(f"the weights do not fit their signature: {', '.join(wrong[:5])} differ.")


def public_pem(public_key: str) -> bytes:
    """Convert a public key from OpenSSH's form into the one that model signing reads."""
    from cryptography.hazmat.primitives import serialization as form

    try:
        key = form.load_ssh_public_key(public_key.encode())
    except Exception as error:  # several kinds, one of which is not a ValueError
        raise UserError(f"{public_key[:40]!r} is not a public key of OpenSSH: {error}. {_NEEDED}") from None
    _check(key, "the public key")
    return key.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)


def private_pem(path: Path) -> bytes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as form

    try:
        content = path.read_bytes()
        load = form.load_ssh_private_key if _SSH in content else form.load_pem_private_key
        key = load(content, None)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}). {_NEEDED}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UserError(f"{path}: not a private key that can be used: {error} {_NEEDED}") from None
    _check(key, str(path))
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())


def _check(key: object, where: str) -> None:
    curve = getattr(getattr(key, "curve", None), "name", None)
    if curve != "secp256r1":
        kind = curve or type(key).__name__.removesuffix("PublicKey").removesuffix("PrivateKey")
        raise UserError(f"{where} is of another kind ({kind}). {_NEEDED}")


@contextmanager
def _readable(content: bytes) -> Iterator[str]:
    """Give a few bytes a path, which the package asks for. It is a pipe, which is read once, so a
    private key is never on the disk in a second form."""
    reader, writer = os.pipe()
    try:
        os.write(writer, content)  # a key is far smaller than a pipe holds
        os.close(writer)
        yield f"/dev/fd/{reader}"
    finally:
        os.close(reader)


def _everything() -> Config:
    """Return a configuration that leaves no file out."""
    from model_signing import hashing

    return hashing.Config().set_ignored_paths(paths=(), ignore_git_paths=False)


def _signed(bundle: bytes) -> dict[str, str]:
    """Return path -> SHA-256, as the bundle lists them."""
    statement = json.loads(base64.b64decode(json.loads(bundle)["dsseEnvelope"]["payload"]))
    return {one["name"]: one["digest"] for one in statement["predicate"]["resources"]}


def _differences(folder: Path, signed: dict[str, str]) -> Iterator[str]:
    found = {str(path.relative_to(folder)): files.sha256(path) for path in folder.rglob("*") if path.is_file()}
    for name in sorted(signed.keys() | found.keys()):
        if name not in found:
            yield f"{name} is missing"
        elif name not in signed:
            yield f"{name} was added"
        elif found[name] != signed[name]:
            yield f"{name} was changed"
