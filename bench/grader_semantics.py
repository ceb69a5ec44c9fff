"""The figure of the graders as data: cases that differ from the documentation.

It also counts published objects that are refused. bench/grader_cases.py has the table: for each
type the score, the status and the flags of each case. The judge and the endpoint are servers on
this machine that reply as the case says.
"""

from __future__ import annotations

import asyncio
import sys

from bench.measure import Figure, Part


def grader_semantics(args: list[str]) -> Figure:
    """Cases of the graders as data that differ from what is documented: none. Published objects
    that are refused: none."""
    from bench import grader_cases

    different: dict[str, int] = {}
    tried: dict[str, int] = {}
    for case in grader_cases.CASES:
        grade, _ = asyncio.run(grader_cases.play(case))
        kind, wrong = case.grader["type"], grader_cases.differences(case, grade)
        tried[kind] = tried.get(kind, 0) + 1
        different[kind] = different.get(kind, 0) + bool(wrong)
        print(f"{'DIFFERS' if wrong else 'equal':8}{case}{': ' if wrong else ''}{'; '.join(wrong)}", file=sys.stderr)
    refused = [f"{name}: {why}" for name, why in _refused().items() if why]
    parts = (
        Part("cases that differ", sum(different.values()), "cases", at_most=0, n=sum(tried.values())),
        *(Part(f"{kind}: cases that differ", different[kind], "cases", at_most=0, n=tried[kind]) for kind in tried),
        Part("cases", sum(tried.values()), "cases", at_least=80),
        Part(
            "published objects refused",
            len(refused),
            "objects",
            at_most=0,
            n=len(grader_cases.OBJECTS),
            reason="; ".join(refused),
        ),
    )
    return Figure(parts)


FIGURES = {"grader_semantics": grader_semantics}


def _refused() -> dict[str, str]:
    """Return name -> why it is refused. Empty: the object is accepted."""
    from bench import grader_cases
    from rft.config import graders
    from rft.errors import ConfigError

    found: dict[str, str] = {}
    for name, raw in grader_cases.OBJECTS.items():
        try:
            read = graders.read(raw, "grader.json")
        except ConfigError as error:
            found[name] = str(error)
            continue
        found[name] = ""
        for remark in read.remarks:
            print(f"accepted {name}, with a remark: {remark}", file=sys.stderr)
    return found
