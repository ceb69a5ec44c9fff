"""How good is the agent today, and would training help?

It needs rows, tools and a grader: no traffic, no ledger, no margins of a gate. The agent plays k
rollouts of each row, and each is graded. You see its scores, whether it is ready for training, and
its worst conversations. Nothing is recorded. A run with the same rows and settings takes what was
measured here from the cache.

  rft baseline                         the agent of params.yaml, on its validation examples
  rft --agent mine baseline
  rft baseline --rows week.jsonl       on rows of your own: JSON lines with `messages`

Without a recipe, name the grader. The settings are then those of --params, or the defaults:

  rft baseline --rows rows.jsonl --grader grader.json --tools tools.py
               --set policy.server.kind=chat --set policy.server.url=http://127.0.0.1:8000
               --set policy.server.model=NAME

Any server of chat completions will do. Its key comes from the environment: with KEY="Bearer ...",
--set 'policy.server.headers={Authorization: env:KEY}'. Tools may also be endpoints or MCP servers
(--set tools.endpoints=..., --set tools.mcp=...). --set baseline.examples=24 and --set baseline.k=4
say how many rows and rollouts. After kill -9 the same command goes on. The exit code is 0, however
good the agent is.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows import settings
from flows.cli.options import add_settings, count
from flows.rollouts import STYLES
from flows.screen import print_line, watched
from rft import commands, config, files, recipe, reports, rows, stage_files
from rft.errors import UserError
from rft.formatting import counted
from rft.rollouts import log as rollout_log
from rft.rollouts import transcript
from rft.rollouts.log import LogRow
from rft.rows import check_graded
from rft.stages import examples
from rft.types import Example
from tasks.display.markdown import ROWS, cell
from tasks.promotion import champions
from tasks.runs import by_hand, champion, clone
from tasks.runs.clone import Clone
from tasks.runs.repro import StageFailed

BESIDE = "recipes/measured"
"""The folder of a recipe that is written for one measurement. It exists only in the worktree of
that measurement."""
NO_EXAMPLES = '''\
"""Rows alone: they were given beside it."""

from pydantic import BaseModel, ConfigDict


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")
'''
THEIR_TOOLS = '''\
"""The user's tools, run from where they are, so that what lies beside them is found."""

import sys

# of the files beside it: {sha256}
sys.path.insert(0, {folder!r})
__file__ = {file!r}
with open(__file__, encoding="utf-8") as source:
    exec(compile(source.read(), __file__, "exec", dont_inherit=True))
'''
BESIDE_TOOLS = frozenset(
    {".py", ".json", ".yaml", ".yml", ".toml", ".csv", ".tsv", ".txt", ".md", ".sql", ".db", ".sqlite"}
)
"""Files with these suffixes may be read by the tools that lie beside them. If one changes, the
agent is measured again. Logs are not included, because a tool server's own grows with each call."""
NO_TOOLS = '"""No tools of its own."""\n\nTOOLS = []\n'
_MANY_CUT = 0.05
_REMEDY = "A row is a JSON object with `messages`, one a line."


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", metavar="FILE", help="rows of JSON lines, in place of the recipe's examples")
    parser.add_argument("--worst", type=count, metavar="N", default=3, help="conversations to show (default: 3)")
    without = parser.add_argument_group("without a recipe")
    without.add_argument("--grader", metavar="FILE", help="grader.json (docs/graders.md); it needs --rows")
    without.add_argument("--tools", metavar="FILE", help="tools.py with TOOLS, if tools are Python functions")
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    written, file = _recipe(options), Path(options.rows).absolute() if options.rows else None
    here = clone.enter()
    params = settings.ungated(here, options.params, options.overrides, BESIDE if written else None)
    if written and params.policy.server is None and params.policy.model is None:
        raise UserError(
            "--grader: there is no policy. Name a server, --set policy.server.kind=chat --set policy.server.url=... "
            "--set policy.server.model=..., or a model, --set policy.model=FOLDER (docs/models.md). The embedded "
            "policy needs a recipe with demonstrations."
        )
    served = champion.BEGINNING if written else champions.of_params(here, params, print_line)
    served.refuse_other_base(params)
    with contextlib.chdir(here.home):  # recipe.path is relative to it
        rows = _rows(params, file)
    grader = recipe.grader_at(Path(options.grader) if written else here.home / params.recipe.path / "grader.json")
    if written and not options.tools:
        _refuse_unseen(params, rows)
    check_graded(rows, grader, str(file or "the recipe's validation split"))
    with watched(), _own_names(here, options):
        report = by_hand.measure(here, params, rows, served, written)
    console = Console(highlight=False)
    console.print(table(report))
    played = rollout_log.read(here.home / stage_files.rollouts("baseline"))
    _show_worst(console, played, options.worst)
    for line in (*_cut(report, params), *_last(report, options)):
        console.print(line, markup=False, soft_wrap=True)
    return 0


@contextlib.contextmanager
def _own_names(here: Clone, options: argparse.Namespace) -> Iterator[None]:
    """Name the user's files in a stage's error: the copies that it read are gone by then."""
    place = by_hand.folder(here) / "tree" / BESIDE
    try:
        yield
    except StageFailed as failed:
        message = str(failed)
        for name, given in {"tools.py": options.tools, "grader.json": options.grader}.items():
            for written in (str(place / name), f"{BESIDE}/{name}"):
                message = message.replace(written, given) if given else message
        raise StageFailed(message, failed.exit_code) from None


def _recipe(options: argparse.Namespace) -> dict[str, str] | None:
    """Write the files of a recipe that consists of a grader and tools. None: there is a recipe."""
    if options.grader is None:
        if options.tools is not None:
            raise UserError("--tools is for an agent without a recipe. Add --grader FILE, or write the recipe's tools.")
        return None
    if options.rows is None:
        raise UserError("--grader: there is no recipe, so where are the rows? Add --rows FILE.")
    grader = _text(options.grader, "--grader")
    recipe.grader_at(Path(options.grader))
    tools = NO_TOOLS if options.tools is None else _tools(options.tools)
    return {"examples.py": NO_EXAMPLES, "tools.py": tools, "grader.json": grader}


def _tools(name: str) -> str:
    """Write a tools.py that imports the user's."""
    try:
        compile(_text(name, "--tools"), name, "exec")
    except (SyntaxError, ValueError) as error:
        if not isinstance(error, SyntaxError) or error.lineno is None:  # null bytes: it depends on the version
            raise UserError(f"--tools {name}: is not Python: {error}. Name a file of Python.") from None
        raise UserError(f"--tools {name}: line {error.lineno}: {error.msg}. Fix that line.") from None
    file = Path(name).absolute()
    found = hashlib.sha256()
    for path in sorted({file, *file.parent.glob("*"), *file.parent.glob("*/*.py")}):
        if path.suffix in BESIDE_TOOLS and path.is_file():
            found.update(f"{path.name} {files.sha256(path)}\n".encode())
    return THEIR_TOOLS.format(file=str(file), folder=str(file.parent), sha256=found.hexdigest())


def _text(name: str, option: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{option} {name}: cannot be read ({why}). Name a file.") from None


def _rows(params: config.Params, file: Path | None) -> list[Example]:
    """Return the rows to play: those of the file, or the recipe's validation examples."""
    section = params.examples
    if file is not None:
        found = stage_files.load_examples("validation", file, section.keys, _REMEDY)
    else:
        loaded = recipe.load(params.recipe, section.keys)
        found = examples.once(examples.from_recipe(loaded, "validation", section.validation, section.seed))
    rows.check_named(found, section.keys, str(file or "the recipe"))
    return found


def _refuse_unseen(params: config.Params, rows: Sequence[Example]) -> None:
    """Refuse a tool that the agent is never shown: the agent would seem unable to do anything."""
    brought = {tool.get("function", tool).get("name") for row in rows for tool in row.tools or ()}
    for number, endpoint in enumerate(params.tools.endpoints):
        if endpoint.parameters is None and endpoint.name not in brought:
            raise UserError(
                f"--set tools.endpoints: {endpoint.name} has no parameters, and no row brings its schema, so "
                f"the agent would never be shown it. Write its JSON schema under tools.endpoints[{number}].parameters."
            )


# -- what is shown ---------------------------------------------------------------------------------
def table(report: reports.BaselineReport) -> Table:
    """Make a table of what was measured, within 80 characters."""
    at_work = report.sampled
    num, k = counted(len(at_work.rows), "row"), counted(at_work.k, "rollout")
    title = f"{num}, {k} each at temperature {at_work.temperature:g}, 95 % intervals"
    made = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, pad_edge=False)
    made.show_header = False
    for label, (how, key) in ROWS.items():
        made.add_row(label, cell(getattr(report, how).metrics.get(key)))
    made.add_row(*_best(at_work))
    shares = {name: at_work.shares[key] for name, key in _SHARES.items()}
    made.add_row("rows", ", ".join(f"{share:.0%} {name}" for name, share in shares.items()))
    made.add_row("ended", _counts(at_work.stop_reasons) or "–")
    if at_work.unscored:
        why = _counts(at_work.unscored_stop_reasons)
        made.add_row("unscored", f"{at_work.unscored}{f' ({why})' if why else ''}", style="red")
    return made


_SHARES = {"always solved": "always_solved", "sometimes": "mixed", "never": "always_failed"}


def _best(at_work: reports.Evaluation) -> tuple[str, str]:
    """Say what the best of several rollouts scores, which is the room for training."""
    ks = "/".join(str(k) for k, _ in at_work.max_at_k)
    return f"best of {ks}", "  ".join(f"{score:.2f}" for _, score in at_work.max_at_k)


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(found.items(), key=lambda pair: -pair[1]))


def worst(played: Sequence[LogRow], most: int) -> list[LogRow]:
    """Choose the worst rollouts, one of each example: first those without a grade, because an
    outage must be seen first, then the lowest rewards."""
    sampled = [row for row in played if row.temperature != 0 and not row.left_out]
    order = sorted(sampled, key=lambda row: (row.reward is not None, row.reward or 0.0, row.rollout_id))
    return [*{row.example_id: row for row in reversed(order)}.values()][::-1][:most]


def _show_worst(console: Console, played: Sequence[LogRow], most: int) -> None:
    shown = worst(played, most)
    print_line(f"The worst rollouts, of {counted(len(shown), 'row')}:")
    for row in shown:
        print_line()
        for line in transcript.lines(row):
            console.print(Text(line.text, STYLES[line.kind]), soft_wrap=True)


def _cut(report: reports.BaselineReport, params: config.Params) -> Iterator[str]:
    """Say so if many answers were cut: each was graded as far as it got."""
    at_work = report.sampled
    cut, played = at_work.stop_reasons.get("max_tokens", 0), sum(at_work.stop_reasons.values())
    if cut > _MANY_CUT * played:
        whole = params.rollout.max_tokens or "what the server takes"
        yield (
            f"\n{cut} of {played} rollouts were cut, and graded as they stand: a turn may have "
            f"{params.rollout.max_turn_tokens} tokens (rollout.max_turn_tokens), and the whole conversation {whole} "
            "(rollout.max_tokens). If your agent has more room in production: --set rollout.max_turn_tokens=..."
        )


def _last(report: reports.BaselineReport, options: argparse.Namespace) -> Iterator[str]:
    yield f"\n{report.readiness}: {report.reason}"
    yield f"\nAll of them  {commands.command('rollouts list', '--here', '--stage', 'baseline')}"
    if options.grader is None:
        yield f"Go on        {commands.command('doctor')}"
        return
    source = ("--from", f"grader:{options.grader}", "--files", options.rows)
    then = ", and put your tools.py there" if options.tools else ""
    yield f"Go on        {commands.command('new', 'agents/mine', *source)}{then}"
