"""SQLite databases: copies them while others write, and moves MLflow's addresses with a clone.

A plain copy of a database in use is torn, and lacks what is still in its log. So SQLite's own
back-up interface copies it, page by page, as of one moment.

MLflow keeps the address of every artifact as an absolute URI. In another folder these addresses
lead nowhere, or to the old clone's files. `readdress` rewrites those that lead into the old clone's
`mlruns/`. It does so only in the columns that MLflow resolves: a run's parameters and tags stay as
they were. If a clone was moved by hand before it was backed up, an address with a still older place
counts too, as long as its artifact lies in this `mlruns/`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from rft.errors import InfrastructureError

ADDRESSES = (
    ("experiments", "artifact_location", ""),
    ("runs", "artifact_uri", ""),
    ("logged_models", "artifact_location", ""),
    ("model_versions", "source", ""),
    ("model_versions", "storage_location", ""),
    ("trace_tags", "value", "key = 'mlflow.artifactLocation'"),
)
"""Table, column and condition: where MLflow 3 looks for artifacts."""
_PATIENCE_S = 60.0


def copy(source: Path, target: Path) -> None:
    """Copy a database as it is at one moment. Raises InfrastructureError for a damaged one."""
    try:
        with (
            closing(sqlite3.connect(f"{source.as_uri()}?mode=rw", uri=True, timeout=_PATIENCE_S)) as there,
            closing(sqlite3.connect(target)) as here,
        ):
            there.backup(here)
            result = here.execute("PRAGMA quick_check(1)").fetchone()[0]
            here.execute("PRAGMA journal_mode=DELETE")  # a single file; the next program sets its own mode
    except sqlite3.Error as error:
        result = str(error)
    if result != "ok":
        remedy = "Repair it (sqlite3 FILE .recover), or move it away: what only it knows is lost then"
        raise InfrastructureError(
            f"{source}: SQLite cannot copy it whole: {' '.join(result.split())}. {remedy}. Nothing was backed up."
        )


def readdress(database: Path, old: Path, new: Path) -> int:
    """Make MLflow's addresses below `old` lead below `new`. The database is not at its new place
    yet, but its artifacts lie beside it. Returns how many were rewritten."""
    number = 0
    with closing(sqlite3.connect(database)) as opened, opened:
        every = [*_addresses(opened)]
        places = _places([address for *_, address in every], old, database.parent)
        for table, column, row, address in every:
            found = _read(address, old)
            if found is not None and found.before in places:
                made = found.scheme + (quote(f"{new}{found.rest}") if found.scheme else f"{new}{found.rest}")
                opened.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', (made, row))
                number += 1
    return number


def elsewhere(database: Path, root: Path) -> list[str]:
    """Return the local folders to which addresses lead outside of this clone. Artifacts that moved
    with the clone, below its `mlruns/`, are inside. An experiment's own folder holds nothing, so it
    is left out."""
    with closing(sqlite3.connect(database)) as opened:
        every = [address for table, _, _, address in _addresses(opened) if table != "experiments"]
    places, outside = _places(every, root, root / "mlruns"), set[str]()
    for address in every:
        found = _read(address, root)
        if found is None and address.startswith(("/", "file:")):
            outside.add(address)
        elif found is not None and found.before not in places:
            outside.add(f"{found.before}/mlruns")
    return sorted(outside)


def _addresses(opened: sqlite3.Connection) -> Iterator[tuple[str, str, int, str]]:
    """Yield (table, column, row, address). A column that this version of MLflow lacks is
    skipped."""
    for table, column, condition in ADDRESSES:
        if column in {row[1] for row in opened.execute(f'PRAGMA table_info("{table}")')}:
            where = f'"{column}" IS NOT NULL{f" AND {condition}" if condition else ""}'
            for row, address in opened.execute(f'SELECT rowid, "{column}" FROM "{table}" WHERE {where}').fetchall():
                yield table, column, row, str(address)


@dataclass(frozen=True)
class _Address:
    scheme: str
    """`file://`, or nothing for a path."""
    before: str
    """Where the clone lay."""
    rest: str
    """`/mlruns/...`"""


def _read(address: str, root: Path) -> _Address | None:
    """Parse a local address in some clone's `mlruns/`; None for any other. An address below `root`
    is this clone's, even if `root` itself has `mlruns` in its path."""
    scheme = next((each for each in ("file://", "file:") if address.startswith(each)), "")
    path = unquote(address.removeprefix(scheme)) if scheme else address
    before = str(root) if f"{path}/".startswith(f"{root}/mlruns/") else f"{path}/".rpartition("/mlruns/")[0]
    return _Address(scheme, before, path[len(before) :]) if before.startswith("/") else None


def _places(addresses: list[str], root: Path, artifacts: Path) -> set[str]:
    """Return where this clone lay: `root`, and each other place whose artifacts lie here now."""
    found = {str(root)}
    for each in filter(None, (_read(address, root) for address in addresses)):
        inside = each.rest.removeprefix("/mlruns").strip("/")
        if inside not in ("", "0", "artifacts") and (artifacts / inside).exists():
            found.add(each.before)
    return found
