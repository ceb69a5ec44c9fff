"""Write what a shell needs to complete `rft` commands: shtab turns the parser into a script.

eval "$(rft --completion bash)"          in ~/.bashrc; zsh likewise in ~/.zshrc
rft --completion fish | source           in ~/.config/fish/config.fish
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import shtab

FILES, FOLDERS = ("FILE", "PATH", "LOG", "KEY"), ("FOLDER", "BACKUP", "INTO")
"""Words for values that are completed with names of files, and of folders."""


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Write the script for `bash`, `zsh` or `fish`. `parser` knows all verbs."""
    for each in _parsers(parser):
        for action in each._actions:
            words = str(action.metavar or "")
            kind = shtab.DIRECTORY if words.endswith(FOLDERS) else shtab.FILE if words.endswith(FILES) else None
            if kind:
                action.complete = kind  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _parsers(below)
