"""Find the base model that policy.model names, and say what it is.

  rft doctor model
  rft doctor model --set policy.model=Qwen/Qwen3-0.6B
  rft doctor model --write             place the answer in data/model, for `dvc repro` by hand

A folder or a GGUF file is hashed. A model of a hub is downloaded and pinned by its commit. A run
does the same first, and its stages refuse other bytes.
"""

from __future__ import annotations

import argparse
import json

from rich.console import Console
from rich.table import Table

from flows import settings
from flows.cli.options import add_settings
from flows.screen import print_line
from rft import stage_files
from rft.formatting import counted
from rft.models import source
from tasks.runs import clone

SHOWN = 10
"""How many files are listed."""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print what data/model/model.json would hold")
    parser.add_argument("--write", action="store_true", help="place it in data/model")
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    here = clone.enter()
    section = settings.resolve(here, options.params, options.overrides).policy
    found = source.resolve(section, here.home, here.state, (lambda line: None) if options.json else print_line)
    if options.json:
        print(json.dumps(found.model.model_dump(mode="json"), indent=1))
    elif found.source is None:
        own = "the embedded policy, which stage `policy` builds"
        print_line(own if found.model.kind == "embedded" else "A chat endpoint's own model, whose bytes nobody sees.")
    else:
        model = found.model
        table = Table(box=None, pad_edge=False)
        for column in ("file", "bytes", "SHA-256"):
            table.add_column(column, justify="right" if column == "bytes" else "left")
        largest = sorted(model.files.items(), key=lambda pair: -pair[1].num_bytes)
        for name, file in largest[:SHOWN]:
            table.add_row(name, f"{file.num_bytes:,}", file.sha256[:16])
        Console(highlight=False).print(table)
        if (more := len(largest) - SHOWN) > 0:
            print_line(f"... and {counted(more, 'file')} more")
        at = f" at commit {model.revision}" if model.revision else ""
        print_line(f"{model.model}: {model.kind}{at}, SHA-256 {model.sha256}")
    if options.write:
        source.write(found, here.home)
        print_line(f"Written: {stage_files.path(type(found.model))}")
    return 0
