"""Write docs/cli.md from the table of verbs and their help, so that the two cannot differ.

python -m flows.cli.page            # whether the page is old
python -m flows.cli.page --write    # write it
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from flows.cli import parsing, table

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
HEAD = """\
# The commands

`make docs` writes this page from the help of each verb: `rft VERB --help` says the same.

RUN is a name from `rft runs`, or any part of one that no other has. `-C FOLDER` works as if `rft` was
started there, and `--agent NAME` names the agent; both may stand before or after the verb. Without
them, it is the agent of the current folder. Verbs that read settings take `--params FILE` for a file
other than params.yaml, and `--set KEY=VALUE` for one setting, such as `--set train.steps=40`, as often
as you like.

| exit code | |
|---|---|
| 0 | done; also where a run stops with its numbers, or a gate says no |
| 1 | `rft audit` found a link that is altered, missing or doubtful |
| 2 | the input is wrong, and the message says what to change |
| 3 | a server, a disk or the network failed: the same command goes on |
| 4 | a run stopped in order, at `run.max_hours` or by `rft runs cancel` |
| 130 | Ctrl-C |

To complete commands with the tab key, in `~/.bashrc` or `~/.zshrc`: `eval "$(rft --completion bash)"`
(or `zsh`); in `~/.config/fish/config.fish`: `rft --completion fish | source`.
"""


def render() -> str:
    lines = [HEAD, *_overview()]
    top = _below(parsing.parser())
    for heading, verbs in table.SECTIONS.items():
        lines += [f"## {heading.capitalize()}", ""]
        for verb in verbs:
            lines += [f"### rft {verb}", "", *_verb(verb, top[verb])]
            for name, parser in (_below(top[verb]) if verb in table.BELOW else {}).items():
                lines += [f"#### rft {verb} {name}", "", *_verb(f"{verb} {name}", parser)]
    return "\n".join(lines).rstrip() + "\n"


def _overview() -> Iterator[str]:
    for heading, verbs in table.SECTIONS.items():
        yield from (f"| {heading} | |", "|---|---|")
        for verb in verbs:
            below = f" {' '.join(f'`{name}`' for name in table.BELOW[verb])}" if verb in table.BELOW else ""
            yield f"| `rft {verb}`{below} | {parsing.first_line(parsing.help_file(verb))} |"
        yield ""
    yield "These words are kept for verbs of later versions:\n"
    yield from (f"- `rft {verb}` will {what}." for verb, what in table.COMING.items())
    yield ""


def _verb(words: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Help as Markdown: paragraphs, examples as code, then a table of the options."""
    for part in parsing.docstring(parsing.help_file(words)).split("\n\n"):
        yield f"```\n{_dedented(part)}\n```\n" if part.startswith("  ") else f"{part}\n"
    rows = [row for action in parser._actions if (row := _row(action))]
    if rows:
        yield from ("| option | |", "|---|---|", *rows, "")


def _dedented(part: str) -> str:
    return "\n".join(line.removeprefix("  ") for line in part.splitlines())


def _row(action: argparse.Action) -> str:
    if isinstance(action, argparse._HelpAction | argparse._SubParsersAction) or action.dest in ("params", "overrides"):
        return ""
    words = action.metavar if isinstance(action.metavar, tuple) else (action.metavar or "|".join(action.choices or ()),)
    value = "" if action.nargs == 0 else " ".join(words)
    name = f"{', '.join(action.option_strings)} {value}".strip()
    what = (action.help or "").replace("|", "\\|").replace("%%", "%")
    return f"| `{name}` | {what} |"


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--write"]):
        print("usage: python -m flows.cli.page [--write]", file=sys.stderr)
        return 2
    now = render()
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == now:
        return 0
    print(f"docs/cli.md is {'written' if arguments else 'old'}")
    if arguments:
        PAGE.write_text(now, encoding="utf-8")
    return 0 if arguments else 1


def _below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (verbs,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(verbs.choices)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
