"""Show what a version, a run or an entry of the ledger rests on.

Every hash and every signature on the way is recomputed. What this clone lacks is fetched by hash.

  rft audit                         what is served now, down to the conversations behind it
  rft audit icd10@previous          the champion before; icd10@6: the one of entry 6
  rft audit RUN                     a run, promoted or not
  rft audit 3                       an entry of the ledger
  rft audit --all                   every version and every run
  rft audit --conversation ID       which runs and versions rest on a conversation
  rft audit --hash SHA              ... on whatever has this hash: a file, a commit, a model
  rft audit --package NAME          ... or NAME==VERSION: what ran with it

Each link is verified, altered, missing, erased, doubtful or not verifiable, and the page that is
written shows them as a picture. Exit code 1: a link is altered, missing or doubtful. 0: none is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from flows import audit


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", metavar="VERSION|RUN|ENTRY", help="default: the champion that is served")
    parser.add_argument("--model", metavar="NAME", help="of champion or previous, where there are several")
    way = parser.add_mutually_exclusive_group()
    for name, metavar, help_text in _WAYS:
        way.add_argument(f"--{name}", metavar=metavar, help=help_text)
    way.add_argument("--all", action="store_true", help="every version and every run")
    parser.add_argument("--conversations", action="store_true", help="list the conversations behind the version")
    parser.add_argument("--full", action="store_true", help="print every link, not only those that need a look")
    parser.add_argument("--json", action="store_true", help="print the graph as JSON")
    parser.add_argument("--page", metavar="FILE", type=Path, help="where to write the page (default: .rft/reports)")
    help_text = "also write the version's ML-BOM, model card, OpenLineage events and signed provenance"
    parser.add_argument("--export", metavar="FOLDER", type=Path, help=help_text)
    parser.add_argument("--anew", action="store_true", help="verify every signature of the ledger again")
    parser.add_argument("--no-fetch", action="store_true", help="ask no remote")


_WAYS = (
    ("conversation", "ID", "what rests on a conversation"),
    ("example", "ID", "... on an example"),
    ("package", "NAME", "... on a package, or NAME==VERSION"),
    ("person", "NAME", "... on what somebody signed or started"),
    ("base-model", "NAME", "... on a base model, by name or hash"),
    ("hash", "SHA", "... on whatever has this hash"),
)


def run(options: argparse.Namespace) -> int:
    return audit.show(options)
