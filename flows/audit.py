"""Show an audit as text for people, as JSON for scripts, and as a page with a picture of the graph.

People see first whether all links fit, then the links that do not fit, then what everything rests
on, one line per thing. `--full` prints every link.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rft import commands, files, secrets
from rft.errors import UserError
from rft.formatting import counted
from rft.page import audit as page
from rft.reports.audit import BROKEN, STATES, Audit, Link, Node, State
from tasks import audit as audits
from tasks import provenance
from tasks.audit.graph import Broken
from tasks.audit.upwards import WAYS, Sought
from tasks.ledger import book
from tasks.runs import clone as clones
from tasks.runs.clone import Clone

_SIGNS: dict[State, str] = {
    "verified": "✓",
    "altered": "✗",
    "missing": "✗",
    "doubtful": "✗",
    "erased": "-",
    "not verifiable": "?",
}
_OUTLINE = ("alias", "version", "entry", "person", "run", "revision", "weights", "base model", "conversations", "tools")
"""What people see without --full; the rest is counted under its run."""


def show(options: argparse.Namespace) -> int:
    here = clones.enter()
    question = _question(options)
    if options.conversations:
        return _list(here, options, question)
    if options.export is not None:
        _refuse_export(here, options, question)
    found = audits.ask(here, question, fetches=not options.no_fetch, reverify=options.anew, report_line=_aside)
    page = _page(here, options, found)
    if options.json:
        print(secrets.dumps(found.model_dump(mode="json") | {"worst": found.worst()}, indent=1, ensure_ascii=False))
    else:
        print("\n".join(lines(found, options.full)))
        print(f"\nPage  {page}")
    if options.export is not None:
        _export(here, options, found)
    return 1 if found.broken() else 0


def _aside(line: str) -> None:
    """Progress and warnings go where JSON does not."""
    print(line, file=sys.stderr, flush=True)


def _question(options: argparse.Namespace) -> audits.Question:
    every = [Sought(way, getattr(options, way.replace(" ", "_")) or "") for way in WAYS]
    sought = next((each for each in every if each.value), None)
    if options.what and (sought or options.all):
        raise UserError(f"{options.what!r} and --{'all' if options.all else sought and sought.way} are two questions.")
    if options.conversations and (sought or options.all):
        raise UserError("--conversations lists what is behind a version: name one, or leave it out for the champion.")
    return audits.Question(options.what, options.model, sought, options.all)


def _list(here: Clone, options: argparse.Namespace, question: audits.Question) -> int:
    try:
        found = audits.conversations(here, question, fetches=not options.no_fetch, report_line=_aside)
    except Broken as broken:
        raise UserError(f"the conversations cannot be listed: {broken.why}") from None
    for conversation, runs in sorted(found.items()):
        print(f"{conversation}\t{' '.join(runs)}")
    return 0


def _page(here: Clone, options: argparse.Namespace, found: Audit) -> Path:
    name = "".join(letter if letter.isalnum() else "-" for letter in found.question).strip("-")[:80]
    path: Path = options.page or here.state / "reports" / f"audit-{name}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(secrets.redact(page.render(found)), path)
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


# -- text ------------------------------------------------------------------------------------------
def lines(found: Audit, full: bool = False) -> Iterator[str]:
    """The audit in words, the same in every clone."""
    nodes = {node.id: node for node in found.nodes}
    yield f"{found.question[:1].upper()}{found.question[1:]}"
    yield f"Ledger: {found.ledger}"
    yield from found.answer
    yield ""
    yield verdict(found)
    for state in STATES:
        links = [link for link in found.links if link.state == state]
        if not links or (state == "verified" and not full):
            continue
        yield f"\n{state.capitalize()}"
        for link in links:
            yield from _line(nodes, link)
    if not full:
        yield from _outline(found, nodes)


def verdict(found: Audit) -> str:
    count = Counter(link.state for link in found.links)
    told = ", ".join(f"{count[state]} {state}" for state in reversed(STATES) if count[state])
    if any(count[state] for state in BROKEN):
        first = found.broken()[0]
        names = {node.id: node.name for node in found.nodes}
        return f"BROKEN: {names[first.source]} {first.says} {names[first.target]} ({told})"
    if not found.links:
        return "Nothing was found that has links."
    return f"Every link that can be verified fits ({told})."


def _line(nodes: dict[str, Node], link: Link) -> Iterator[str]:
    source, target = nodes[link.source].name, nodes[link.target].name
    of = nodes[link.source].about.get("run", "")
    of = f" of run {of}" if of and nodes[link.source].kind == "stage" else ""
    yield f"  {_SIGNS[link.state]} {source}{of} {link.says} {target}"
    yield f"      {link.why}"


def _outline(found: Audit, nodes: dict[str, Node]) -> Iterator[str]:
    yield "\nWhat it rests on" if not found.answer else "\nHow"
    for node in found.nodes:
        if node.kind in _OUTLINE:
            mine = [link for link in found.links if link.target == node.id]
            mine = mine or [link for link in found.links if link.source == node.id]
            worst: State | None = next((each for each in STATES if any(link.state == each for link in mine)), None)
            sign = _SIGNS[worst] if worst else " "
            about = _shown(node)
            yield f"  {sign} {node.name}{f': {about}' if about else ''}"
    stages = Counter(node.about.get("run", "") for node in found.nodes if node.kind == "stage")
    outs = Counter(link.source.partition(":")[2].partition("/")[0] for link in found.links if link.says == "wrote")
    for run, count in stages.items():
        yield f"    {counted(count, 'stage')} of run {run}, {counted(outs[run], 'output')}"


def _shown(node: Node) -> str:
    wanted = {
        "version": ("promoted", "approved by", "served"),
        "entry": ("said",),
        "run": ("recipe", "decision"),
        "conversations": ("window", "first", "last"),
        "base model": ("what", "parameters"),
        "weights": ("algorithm", "steps"),
        "person": ("roles now",),
    }.get(node.kind, ())
    told = {key: node.about[key] for key in wanted if key in node.about}
    return ", ".join(value if key == "said" else f"{key} {value}" for key, value in told.items())


# -- in the formats of others ----------------------------------------------------------------------
def _refuse_export(here: Clone, options: argparse.Namespace, question: audits.Question) -> None:
    """Raise UserError, before hours of hashing, for what could not be written in the end."""
    if question.sought or question.every:
        version = commands.command("audit", "champion", "--export", "FOLDER")
        raise UserError(f"--export describes one version. Name it, as in {version}")
    provenance.check_place(here, options.export.absolute())


def _export(here: Clone, options: argparse.Namespace, found: Audit) -> None:
    """Write what the version is. Raises UserError if one of its links is broken."""
    kind, _, name = (found.root or "").partition(":")
    if kind != "version":
        raise UserError(f"--export describes one version, and this is {kind} {name}.")
    if found.broken():
        raise UserError("nothing was exported: the version has a broken link.")
    model, _, number = name.rpartition("@")
    provenance.write(here, book.read(here, report_line=_aside).state, model, int(number), options.export, _aside)
