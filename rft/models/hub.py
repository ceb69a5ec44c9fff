"""Models of a hub: which commit a name means, and its files in the local cache.

A hub's branch moves, so a run pins the commit that it found, and every stage opens that commit from
the cache, without asking the hub again. Only a model's own files are fetched: safetensors,
configuration and tokenizer. Pickled weights are not, because loading them runs code. The hub's own
environment variables apply (HF_ENDPOINT, HF_HOME, HF_TOKEN, HF_HUB_OFFLINE).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from rft import secrets
from rft.errors import InfrastructureError, UserError

ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TEXTS = ["*.json", "*.jinja", "*.txt", "*.model", "*.jsonl"]
_WEIGHTS = ["*.safetensors"]
_PATIENCE_S = 30.0


def commit(model: str, revision: str | None) -> str:
    """Find the commit that a branch, a tag or a commit's name means now. Raises UserError if the
    hub does not have it, InfrastructureError if the hub cannot be asked."""
    from huggingface_hub import HfApi

    if revision and _COMMIT.fullmatch(revision) and find(model, revision, weights=False):
        return revision
    with _asking(model, revision):
        found = HfApi().model_info(model, revision=revision, timeout=_PATIENCE_S).sha
    if not found:
        raise InfrastructureError(f"policy.model = {model!r}: {_endpoint()} names no commit. Pin policy.revision.")
    return found


def fetch(model: str, commit: str, weights: bool = True) -> Path:
    """Return the folder of a commit; download it if necessary. `weights`: False for its text files
    only. Raises UserError and InfrastructureError like `commit`."""
    from huggingface_hub import snapshot_download

    if (here := find(model, commit, weights)) is not None:
        return here
    with _asking(model, commit):
        return Path(snapshot_download(model, revision=commit, allow_patterns=_wanted(weights)))


def cached(model: str, commit: str) -> Path:
    """Return the folder of a commit that `fetch` brought. Raises UserError if it is gone."""
    if (found := find(model, commit)) is None:
        raise UserError(
            f"policy.model = {model!r}: commit {commit} is not in the hub's cache on this machine (HF_HOME). Start the "
            "run again: its first step downloads it."
        )
    return found


def is_taken(name: str) -> bool:
    """Tell whether `fetch` brings a file of this name. Other programs share the cache."""
    return any(fnmatch(name, pattern) for pattern in (*_TEXTS, *_WEIGHTS))


def find(model: str, commit: str, weights: bool = True) -> Path | None:
    """Return the folder of a commit in the cache, if all that is wanted of it is there."""
    import httpx2
    from huggingface_hub import errors, snapshot_download

    try:
        return Path(snapshot_download(model, revision=commit, allow_patterns=_wanted(weights), local_files_only=True))
    except (errors.LocalEntryNotFoundError, errors.IncompleteSnapshotError, httpx2.HTTPError, OSError, ValueError):
        return None


def _wanted(weights: bool) -> list[str]:
    return [*_TEXTS, *(_WEIGHTS if weights else [])]


@contextmanager
def _asking(model: str, revision: str | None) -> Iterator[None]:
    import httpx2
    from huggingface_hub import errors

    if len(token := os.environ.get("HF_TOKEN", "")) >= secrets.MIN_CHARS:
        secrets.add("HF_TOKEN", token)
    what = f"policy.model = {model!r}"
    folder = "Or name a folder or a GGUF file on this machine."
    try:
        yield
    except errors.GatedRepoError as error:
        raise UserError(f"{what}: {_endpoint()} shows it only to those whom its owner lets in ({_first(error)}). Ask "
                        f"there for access and set HF_TOKEN. {folder}") from None  # fmt: skip
    except errors.RepositoryNotFoundError as error:
        raise UserError(f"{what}: {_endpoint()} has no such model, or shows it only with a token ({_first(error)}). "
                        f"Correct the name, or set HF_TOKEN. {folder}") from None  # fmt: skip
    except errors.RevisionNotFoundError:
        raise UserError(f"policy.revision = {revision!r}: {model} has no such commit, tag or branch at {_endpoint()}. "
                        "Name one that it has, or leave it out for the newest.") from None  # fmt: skip
    except errors.HFValidationError as error:
        raise UserError(f"{what}: neither a folder, nor a GGUF file, nor a hub id: {_first(error)}") from None
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError, httpx2.HTTPError, OSError) as error:
        raise InfrastructureError(
            f"{what}: {_endpoint()} cannot be reached: {_first(error)}. Once a commit is in the cache of this machine, "
            f"policy.revision with its 40 digits needs no hub. {folder}"
        ) from None


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


def _first(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return secrets.redact((lines[0] if lines else type(error).__name__).rstrip("."))
