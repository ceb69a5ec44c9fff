"""The table of all verbs, and how a command line is understood by it.

A newcomer reads the verbs from top to bottom, so they stand in the order in which they are needed.
Related ones are below one word: `rft runs compare`. Such a word alone does what is asked for most
(ALONE): `rft runs` lists the runs.

An old spelling (MOVED) is an error that names today's. An unknown verb is an error that names the
nearest one. docs/cli.md is written from this table and the verbs' help (page.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from rft.errors import UserError, did_you_mean

SECTIONS: dict[str, tuple[str, ...]] = {
    "begin": ("demo", "init", "new", "agents"),
    "look before you train": ("doctor", "traffic", "baseline"),
    "train": ("run", "runs", "rollouts", "up"),
    "decide": ("approve", "reject", "rollback", "champion"),
    "use what was learned": ("play", "export"),
    "show what it rests on": ("audit", "ledger"),
    "keep it in order": ("backup", "upgrade", "stage"),
}
"""Heading -> its verbs, as `rft --help` shows them."""
VERBS = tuple(verb for verbs in SECTIONS.values() for verb in verbs)
BELOW: dict[str, tuple[str, ...]] = {
    "doctor": ("check", "exploits", "speed", "model"),
    "traffic": ("ingest", "drift", "invent"),
    "runs": ("list", "compare", "report", "extend", "cancel", "gc"),
    "rollouts": ("list", "show", "group", "summary", "export", "replay"),
    "ledger": ("show", "verify", "people", "policy", "rules", "share", "clocks", "erase", "restart"),
    "backup": ("make", "verify", "restore"),
    "stage": ("run", "tools", "engine"),
}
"""A word -> the verbs below it. Each is a module of the word's package."""
PATHS = (
    *(verb for verb in VERBS if verb not in BELOW),
    *(f"{word} {verb}" for word, verbs in BELOW.items() for verb in verbs),
)
"""All words of each verb."""
ALONE = {"doctor": "check", "runs": "list", "rollouts": "list", "ledger": "show"}
"""A word -> the verb that it stands for if none of its verbs follows."""
COMING = {
    "serve": "serve the champion behind OpenAI's and Anthropic's APIs, and log what happened",
    "canary": "give a new champion a share of the sessions, and take it back when it harms",
    "console": "open the pages on which people judge and approve",
    "erase": "remove a person's conversations from all that this workspace holds",
}
"""Verbs of later versions: their words are kept free."""
MOVED = {
    "bench": "doctor speed",
    "cancel": "runs cancel",
    "drift": "traffic drift",
    "engine": "stage engine",
    "exploits": "doctor exploits",
    "extend": "runs extend",
    "gc": "runs gc",
    "ingest": "traffic ingest",
    "invent": "traffic invent",
    "model": "doctor model",
    "people": "ledger people",
    "policy": "ledger policy",
    "replay": "rollouts replay",
    "report": "runs report",
    "restore": "backup restore",
    "serve-tools": "stage tools",
}
"""An old verb -> today's words."""
MOVED_OPTIONS = {
    ("ledger", "--verify"): "ledger verify",
    ("rollouts", "--show"): "rollouts show ROLLOUT",
    ("rollouts", "--group"): "rollouts group EXAMPLE",
    ("rollouts", "--summary"): "rollouts summary",
    ("rollouts", "--export"): "rollouts export --out FILE",
    ("rollouts", "--export-traces"): "rollouts export --traces",
}
"""A word and an old option -> today's words."""
_NAMED = {"backup": "make", "runs": "report", "rollouts": "list", "stage": "run"}
"""A word -> the verb that was probably meant if a name of the user's follows: a run, a folder, a
stage."""


def understood(words: Sequence[str]) -> list[str]:
    """Return the command line with the verb that a word alone stands for. `words` begins with the
    verb, or holds options alone. Raises UserError for a verb that is not there, with what to
    write."""
    if not words or words[0].startswith("-"):
        return list(words)
    word, rest = words[0], list(words[1:])
    if word not in VERBS:
        raise UserError(_unknown(word))
    for (group, option), now in MOVED_OPTIONS.items():
        if group == word and any(each.partition("=")[0] == option for each in rest):
            raise UserError(f"`rft {word} {option}` is now: rft {now}")
    if word not in BELOW or (rest and rest[0] in (*BELOW[word], "-h", "--help")):
        return [word, *rest]
    if word in ALONE and (not rest or rest[0].startswith("-")):
        return [word, ALONE[word], *rest]
    return _refuse(word, rest)


def _unknown(word: str) -> str:
    if word in MOVED:
        return f"`rft {word}` is now: rft {MOVED[word]}"
    if word in COMING:
        return f"`rft {word}` is not in this version. It will {COMING[word]}."
    below = [f"{group} {verb}" for group, verbs in BELOW.items() for verb in verbs if verb == word]
    if below:
        return f"`rft {word}` is not a verb. Did you mean `rft {'`, `rft '.join(below)}`?"
    return f"`rft {word}` is not a verb. {did_you_mean(word, VERBS)} All verbs: rft --help"


def _refuse(word: str, rest: Sequence[str]) -> list[str]:
    verbs = f"The verbs below it: {', '.join(BELOW[word])}. To read what they do: rft {word} --help"
    if not rest or rest[0].startswith("-"):
        raise UserError(f"`rft {word}` needs a verb. {verbs}")
    meant = f"Did you mean `rft {word} {_NAMED[word]} {rest[0]}`? " if word in _NAMED else ""
    raise UserError(f"`rft {word} {rest[0]}`: {rest[0]!r} is not a verb. {meant}{verbs}")
