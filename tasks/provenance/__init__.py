"""A version's facts in the formats of other tools.

    write(clone, state, model, number, folder, report_line) -> the files that it wrote

    subject         The facts of one version, from the ledger and the run's revision.
    limits          What the version was not shown to do, and what nobody can verify.
    bom             bom.cdx.json, a CycloneDX ML-BOM: model card, data, packages.
    card            README.md, a Hugging Face model card.
    openlineage     openlineage.ndjson, the events of the run that made the version.
    live            The same events while a run goes on, to a file or a server.
    slsa            provenance.intoto.jsonl, SLSA provenance signed by this clone's machine key.

The files are copies of facts for tools that do not know us. `rft audit` verifies the facts, and
each file says so. From the same ledger and bytes, the first three files have the same bytes in
every clone. The folder is whole or not there. A folder with such an export is replaced, so a script
may write to the same place each time. Any other folder that is not empty is left alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from rft import files, secrets
from rft.errors import UserError
from tasks.ledger import keys
from tasks.ledger.state import State
from tasks.runs import records
from tasks.runs.clone import Clone

BOM, CARD, LINEAGE, PROVENANCE = "bom.cdx.json", "README.md", "openlineage.ndjson", "provenance.intoto.jsonl"
NAMES = (BOM, CARD, LINEAGE, PROVENANCE)


def write(
    clone: Clone, state: State, model: str, number: int, folder: Path, report_line: Callable[[str], None] = print
) -> list[Path]:
    """Write all four files. Raises UserError for a folder with other files, or for a place from
    which runs would carry the files along, and what `subject.gather` raises."""
    from tasks.provenance import bom, card, openlineage, slsa, subject

    folder = folder.absolute()
    check_place(clone, folder)
    facts = subject.gather(clone, state, model, number)
    lineage = "".join(map(openlineage.line, openlineage.events(facts)))
    texts = {
        BOM: secrets.dumps(bom.bom(facts), indent=1, ensure_ascii=False) + "\n",
        CARD: secrets.redact(card.card(facts)),
        LINEAGE: lineage,
        PROVENANCE: slsa.envelope(facts, keys.machine(clone)),
    }
    with records.held(clone.state / "provenance.lock", wait=True):
        check_place(clone, folder)
        part = folder.with_name(f"{folder.name}.part")
        files.delete(part)
        part.mkdir(parents=True)
        try:
            for name, text in texts.items():
                (part / name).write_text(text, encoding="utf-8", newline="\n")
            if folder.exists():
                _refuse_foreign(folder)
            files.publish(part, folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    report_line(f"[provenance] {facts.name}: {', '.join(NAMES)} in {folder}")
    return [folder / name for name in NAMES]


def check_place(clone: Clone, folder: Path) -> None:
    """Raise UserError for a place where this export must not be written."""
    if folder.is_symlink():
        raise UserError(f"{folder} is a link, and the folder is replaced as a whole. Name the folder itself.")
    clone.refuse_taken_along(folder.resolve())
    for place in (folder, folder.with_name(f"{folder.name}.part")):
        _refuse_foreign(place)


def _refuse_foreign(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is a file, and the export is a folder. Name another place.")
    found = sorted(one.name for one in folder.iterdir())
    if found and (PROVENANCE not in found or not {*found} <= {*NAMES}):
        other = ", ".join([name for name in found if name not in NAMES][:3] or found)
        what = f"{folder} holds other files ({other}) than an export of a version"
        raise UserError(f"{what}, and they would be lost. Name a folder that does not exist, or an empty one.")


__all__ = ["NAMES", "check_place", "write"]
