"""Write the lock file that `make setup` installs from.

Run `make lock` after a change of constraints.txt. A test compares the versions.

Every version is pinned already, so pip's resolver would spend two minutes to find the same ones. It
runs once, here. The lock names each package at its version, with the hashes of its files. So pip
takes the file that suits the machine, and verifies it. Which packages are needed depends on the
Python, the platform and the PyTorch: the lock's name and first lines state them. Anywhere else,
`make setup` asks the resolver and says so. PyTorch itself is not in the lock: the user chooses its
build, and the index that it comes from, at set-up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from packaging.tags import Tag
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

TORCH = "2.13.0"
PACKAGE = re.compile(r"^(\S+)==(\S+) ")


def name() -> str:
    """Name the lock file for this Python and platform."""
    return f"lock-cp{sys.version_info[0]}{sys.version_info[1]}-{sysconfig.get_platform()}.txt"


def versions(lock: str) -> dict[str, str]:
    """Return the version of each package in a lock."""
    return dict(found.groups() for line in lock.splitlines() if (found := PACKAGE.match(line)))  # type: ignore[misc]


def render(root: Path, index: str) -> str:
    """Ask the resolver what is needed here, and the index for the hashes."""
    needed = _resolved(root)
    with ThreadPoolExecutor(8) as pool, httpx.Client(timeout=60, follow_redirects=True) as client:
        hashes = pool.map(lambda one: _hashes(client, index, *one), needed)
        lines = [
            " \\\n    ".join([f"{package}=={version}", *(f"--hash=sha256:{each}" for each in found)]) + "\n"
            for (package, version), found in zip(needed, hashes, strict=True)
        ]
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    head = f"# What `make setup` installs with Python {python} on {sysconfig.get_platform()}; `make lock` writes it.\n"
    return head + f"# torch=={TORCH}\n" + "".join(lines)


def _resolved(root: Path) -> list[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = ["install", "--quiet", "--dry-run", "--ignore-installed", "--report", str(report)]
        wanted = ["-c", "constraints.txt", "setuptools", f"torch=={TORCH}+cpu", "--editable", ".[test]"]
        done = subprocess.run([sys.executable, "-m", "pip", *command, *wanted], cwd=root, check=False)
        if done.returncode:
            sys.exit(f"pip finds no set of packages, or no torch=={TORCH}+cpu: see above.")
        found = [one["metadata"] for one in json.loads(report.read_text())["install"]]
    packages = {canonicalize_name(one["name"]): one["version"] for one in found}
    return sorted((name, version) for name, version in packages.items() if name not in ("torch", "agent-rft"))


def _hashes(client: httpx.Client, index: str, package: str, version: str) -> list[str]:
    """Return the hashes of the package's wheels for this platform, with any C library; without such
    wheels, those of its source."""
    reply = client.get(f"{index}/{package}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    reply.raise_for_status()
    found: dict[str, list[str]] = {"wheel": [], "source": []}
    for file in reply.json()["files"]:
        if kind := _kind(file["filename"], Version(version)):
            found[kind].append(file["hashes"]["sha256"])
    if not (files := found["wheel"] or found["source"]):
        sys.exit(f"the index has no file of {package}=={version} for this Python and platform")
    return sorted(files)


def _kind(file: str, version: Version) -> str:
    """Say whether the file is a wheel for this platform or the source; empty: neither."""
    with contextlib.suppress(InvalidWheelFilename):
        _, its, _, tags = parse_wheel_filename(file)
        return "wheel" if its == version and any(map(_suits, tags)) else ""
    with contextlib.suppress(InvalidSdistFilename):
        return "source" if parse_sdist_filename(file)[1] == version else ""
    return ""


def _suits(tag: Tag) -> bool:
    ours = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    system, _, machine = sysconfig.get_platform().partition("-")
    is_platform = tag.platform == "any" or (tag.platform.startswith(f"many{system}") and tag.platform.endswith(machine))
    return is_platform and (tag.interpreter in (ours, "py3") or tag.abi == "abi3")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", required=True, help="an index whose pages come as JSON too, ending in /simple")
    wanted = parser.parse_args(arguments)
    root = Path(__file__).resolve().parents[1]
    (root / name()).write_text(render(root, wanted.index), encoding="utf-8")
    print(name())
    return 0


if __name__ == "__main__":
    sys.exit(main())
