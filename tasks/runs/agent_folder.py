"""What an agent's folder holds besides its settings and its recipe.

It holds dvc.yaml, the lists of what Git and DVC ignore, and the files that each run writes anew and
that a stage by hand reads.

Below the top of a repository, the folder is a DVC repository of its own, with its own `.dvc/`.
Otherwise `dvc exp save` in the user's own pipeline fails. It commits the stages of every dvc.yaml
that it finds, and ours read files that only a run has (tried with DVC 3.67.1). DVC does not touch a
DVC repository inside its own. The cache is the workspace's (tasks/runs/run.py).
"""

from __future__ import annotations

from pathlib import Path

from rft import files, reports, stage_files
from rft.process import ROOT
from tasks import dependencies

IGNORED = """\
# the stages' files: DVC keeps their bytes. Descriptions of what a run begins with are Git's
/data/*
!/data/champion/
/data/champion/*
!/data/champion/champion.json
!/data/champion/profile.json.dvc
!/data/champion/window.json.dvc
!/data/champion/weights.dvc
!/data/model/
/data/model/*
!/data/model/model.json
!/data/registration/
/data/registration/*
!/data/registration/opening.json
!/data/registration/registration.json

# unfinished work of stages that `dvc repro` runs by hand; agents to be served elsewhere
/.rft/
/exports/
# what `rft upgrade` kept of a dvc.yaml that was edited by hand
/dvc.yaml.edited
"""
NOT_WALKED = """\
# what DVC must not walk into or hash
.rft/
__pycache__/
*.pyc
"""
BEGINNING: tuple[reports.Report, ...] = (
    reports.Champion(),
    reports.Model(),
    reports.Opening(),
    reports.Registration(),
)
"""The files of a new agent: nothing is served, no model is given, no look is registered."""


def lay(folder: Path) -> list[Path]:
    """Write these files where they are missing. Return those that were written."""
    texts = {
        Path("dvc.yaml"): dependencies.render(ROOT),
        Path(".gitignore"): IGNORED,
        Path(".dvcignore"): NOT_WALKED,
        Path(".dvc/config"): "[core]\n    analytics = false\n",
        Path(".dvc/.gitignore"): "/config.local\n/tmp\n/cache\n",
    }
    written: list[Path] = []
    for name, text in texts.items():
        if not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            files.write_text(text, folder / name)
            written.append(name)
    for report in BEGINNING:
        name = stage_files.path(type(report))
        if not (folder / name).exists():
            reports.write(report, folder / name)
            written.append(name)
    return written
