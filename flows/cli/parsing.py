"""The parser of the command line, built from the table of verbs and the docstring of each verb.

Only the verb that was typed is loaded. The docstrings of the others are read without an import: a
docstring is the help, and its first line stands on the first screen.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import textwrap
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from flows.cli import table
from rft.errors import UserError, did_you_mean
from rft.process import ROOT

FOLDER = Path(__file__).parent
ABOUT = "Retrain a tool-using agent on your own hardware, and show that it got better."
EPILOG = "`rft VERB --help` says more, with examples. docs/cli.md has all of it."


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"agent-rft {metadata.version('agent-rft')}, {ROOT}")
        parser.exit()


class _Completion(argparse.Action):
    def __call__(self, top: argparse.ArgumentParser, _: object, shell: object, *__: object) -> None:
        from flows.cli import completion

        print(completion.script(parser(), str(shell)))
        top.exit()


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one message, and where to read on, instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog}: {message.rstrip('.')}{'' if message.endswith('?') else '.'} {self._more}")

    @property
    def _more(self) -> str:
        return f"To see what it takes: {self.prog} --help"

    def refuse(self, word: str) -> NoReturn:
        """Refuse an option or a word too many."""
        if not word.startswith("-"):
            self.error(f"{word!r} is one word too many")
        options = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        self.error(f"there is no option {word}. {did_you_mean(word.partition('=')[0], options)}")


def parser(words: Sequence[str] | None = None) -> Parser:
    """Return the parser of all verbs. Only the verb that `words` names gets its options. None: all
    verbs get them."""
    top = Parser(
        prog="rft",
        usage="rft [-C FOLDER] [--agent NAME] VERB ...",
        description=screen(),
        epilog=EPILOG,
        formatter_class=_VerbFormatter,
        parents=[which()],
    )
    top.add_argument("--version", action=_Version, nargs=0, help="print the version, and where it is installed")
    top.add_argument(
        "--completion",
        action=_Completion,
        metavar="SHELL",
        choices=("bash", "zsh", "fish"),
        help="print what completes commands in bash, zsh or fish",
    )
    _add_verbs(top, table.VERBS, FOLDER, words)
    return top


def screen() -> str:
    """Write the table of verbs, each with the first line of its help."""
    lines = [ABOUT]
    for heading, verbs in table.SECTIONS.items():
        lines += [f"{heading}:", *(f"  {verb:<10} {first_line(help_file(verb))}" for verb in verbs)]
    return "\n".join([lines[0], "", *lines[1:]])


def help_file(verb: str) -> Path:
    """Return the file whose docstring is the help of a verb, or of `WORD VERB`."""
    path = FOLDER.joinpath(*verb.split())
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def first_line(file: Path) -> str:
    first = docstring(file).partition("\n")[0].rstrip(".")
    return first[:1].lower() + first[1:]


def _add_verbs(parser: Parser, names: Sequence[str], folder: Path, words: Sequence[str] | None) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True, prog=parser.prog)
    for name in names:
        group = (folder / name).is_dir()
        file = folder / name / "__init__.py" if group else folder / f"{name}.py"
        own = verbs.add_parser(name, help=first_line(file), description=docstring(file), formatter_class=_VerbFormatter)
        if words is not None and words[:1] != [name]:
            continue
        below = None if words is None else words[1:]
        if group:
            _add_verbs(own, table.BELOW[name], folder / name, below)
        else:
            verb = importlib.import_module(".".join(["flows.cli", *file.relative_to(FOLDER).with_suffix("").parts]))
            own.set_defaults(verb=verb.run, parser=own)
            verb.add(own)


def docstring(file: Path) -> str:
    """Return a verb's help without loading it. It stands at the top of its file."""
    _, quotes, text = file.read_text(encoding="utf-8").partition('"""')
    return ast.literal_eval(f'"""{text.partition(quotes)[0]}"""').strip()


class _VerbFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps paragraphs to the terminal. Indented ones are examples, and stay as they are. The
    verbs below a word are shown by these alone."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.split("\n\n")
        return "\n\n".join(
            part if "\n  " in part or part.startswith("  ") else textwrap.fill(part, width) for part in parts
        )

    def add_argument(self, action: argparse.Action) -> None:
        if not isinstance(action, argparse._SubParsersAction):
            super().add_argument(action)


def without_place(words: Sequence[str]) -> list[str]:
    """Return a command line without the options that say where the verb works."""
    return which().parse_known_args(words)[1]


def which() -> argparse.ArgumentParser:
    """Return the parser of the options that say where a verb works. They may stand before or after
    the verb."""
    which = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    which.add_argument("-C", dest="folder", metavar="FOLDER", help="work as if started in this folder")
    which.add_argument("--agent", metavar="NAME", help="the agent to work on, if not that of the folder")
    return which
