"""People with SSH keys, for tests of who may decide what."""

from __future__ import annotations

import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tasks.ledger.keys import Key
from tasks.promotion import acts
from tasks.promotion.acts import Outcome, Signer
from tasks.runs.clone import Clone

_HOME = tempfile.TemporaryDirectory(prefix="rft-people-", ignore_cleanup_errors=True)


@cache
def key(name: str) -> Path:
    """A person's private key, without a passphrase."""
    file = Path(_HOME.name) / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(file)], check=True)
    return file


def signer(name: str) -> Signer:
    public = " ".join(key(name).with_suffix(".pub").read_text().split()[:2])
    return Signer(Key(public, key(name)), name)


def by(name: str) -> tuple[str, str]:
    """The option that names a person's key."""
    return "--key", str(key(name))


def signing(name: str) -> dict[str, str]:
    """Environment variables: Git's settings of a person who signs with their SSH key."""
    return {
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "gpg.format",
        "GIT_CONFIG_VALUE_0": "ssh",
        "GIT_CONFIG_KEY_1": "user.signingkey",
        "GIT_CONFIG_VALUE_1": str(key(name)),
    }


def approve(clone: Clone, run: str, name: str = "Ada", why: str = "half the calls", override: bool = False) -> Outcome:
    """Approve, and promote when that is enough."""
    outcome = acts.approve(clone, run, signer(name), why, override)
    return acts.promote(clone, run) if outcome.approval_status.is_enough else outcome
