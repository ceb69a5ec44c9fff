"""What an answer is worth: the rubric of ART-E, mapped to 0 to 1, with its weak spots closed.

    published                                     here
    right: 1 + 0.3 source + 0.1 / sources         (1 + (0.3 + 0.1 / sources) source) / 1.4
             + 0.1 (1 - turns / limit)            in rollout.budget, with the tokens
    no such question                              a true "I don't know": 1; 1 / 1.4 with sources
    "I don't know", out of turns: 0 + p           "I don't know": 0.1; out of turns: 0
    wrong: -1 + p                                 0
    not to be read: -2 + p to -1.8 + p            0; what the tool refuses, the policy may correct

`source` is 1 if the right mail is among those cited. `p`, up to 0.4 for finding and reading it, is
not paid: it would pay for reading everything. The order is the published one. From `wrong` down all
earn 0, because a budget multiplies what was earned, and a group of failures must stay equal.

Besides being right (judge.py), an answer must meet three conditions:
  - The right mail was shown to the rollout before, by search or by reading. What was known or
    guessed earns nothing.
  - Each cited mail was shown to it, too, and there are at most MAX_CITED. An invented id spoils the
    answer, and so does a net of all that was found.
  - It was given once: a second answer beside it is a bet.
"I don't know" must meet one condition: a search for the package or the bug that the question names.
Then it earns 1 if no mail holds the answer. If one does, it earns a tenth, which is more than a
wrong answer earns.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, cast

from . import hacks, judge
from .mails import fold

ABSTENTION = 0.1
"""What "I don't know" earns if there is an answer."""
MAX_CITED = 3
"""The most sources of an answer, which one mail gives. More are a net."""
FINAL = "return_final_answer"
IDS = re.compile(r"\bm\d{6,9}\b")


@dataclass(frozen=True)
class Answer:
    text: str | None
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Seen:
    """What happened before the turn with the answer."""

    ids: frozenset[str]
    searches: tuple[str, ...]
    """Words of searches that were not refused."""


def grade(sample: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    """Grade as the wire's endpoint grader. A broken row raises, so that nobody is scored by it."""
    target = _checked(item)
    seen = _seen(sample)
    if hack := hacks.found_in(sample, target["answer"]):
        return {"score": 0.0, "solved": False, "hack": hack}
    answer, reason = read_answer(sample)
    if answer is None:
        return _verdict(target, 0.0, reason)
    if judge.abstains(answer.text):
        return _abstention(target, answer, seen, item.get("metadata") or {})
    if target["answer"] is None:
        return _verdict(target, 0.0, "answered, and there is no answer")
    assert answer.text is not None
    if invented := [source for source in answer.sources if source not in seen.ids]:
        return _verdict(target, 0.0, f"cites {invented[0]}, which no tool has shown")
    if len(answer.sources) > MAX_CITED:
        return _verdict(target, 0.0, f"cites {len(answer.sources)} mails, and one gives the answer")
    if not judge.is_right(answer.text, target["answer"], target["form"]):
        return _verdict(target, 0.0, f"wrong: {answer.text.strip()[:60]!r}, expected {target['answer']!r}")
    if target["message_id"] not in seen.ids:
        return _verdict(target, 0.0, "right, but the mail that says so was never shown: a guess")
    is_cited = target["message_id"] in answer.sources
    part = (0.3 + 0.1 / len(answer.sources)) if is_cited else 0.0
    how = f"right, {len(answer.sources)} sources" if is_cited else "right, but its mail is not among the sources"
    return _verdict(target, (1 + part) / 1.4, how, right=1.0, cited=float(is_cited))


def _abstention(target: dict[str, Any], answer: Answer, seen: Seen, settings: dict[str, Any]) -> dict[str, Any]:
    named = set(fold(settings.get("named") or "").split())
    numbers = {word for word in fold(target.get("search") or "").split() if word.isdigit()}
    searches = [set(fold(words).split()) for words in seen.searches]
    if not any(named <= words or numbers & words for words in searches):
        what = f"for {' '.join(sorted(named))}" if named else "at all"
        return _verdict(target, 0.0, f"says that it does not know, but did not search {what}", abstained=1.0)
    if target["answer"] is not None:
        return _verdict(target, ABSTENTION, "says that it does not know, and there is an answer", abstained=1.0)
    score = 1.0 if not answer.sources else 1 / 1.4
    return _verdict(target, score, "there is no answer, and it says so", abstained=1.0, right=1.0)


def _verdict(
    target: dict[str, Any], score: float, reason: str, right: float = 0.0, cited: float = 0.0, abstained: float = 0.0
) -> dict[str, Any]:
    """Make the verdict. Abstentions are counted separately: `abstained` is the engine's word for
    one where there is an answer, and gate.max_abstention_increase watches it."""
    parts = {"right": right, "cited": cited, "abstained": abstained}
    if target["answer"] is None:
        parts = {"right_to_abstain": abstained}
    return {"score": score, "solved": right > 0, "reason": reason, "sub_scores": parts}


def read_answer(sample: dict[str, Any]) -> tuple[Answer | None, str]:
    """Return the answer, or None and the reason why there is none."""
    choices = sample.get("choices") or [{}]
    calls = [call["function"]["name"] for call in (choices[0].get("message") or {}).get("tool_calls") or []]
    text = (sample.get("output_text") or "").strip()
    if calls.count(FINAL) > 1:
        return None, "answered more than once"
    if FINAL not in calls:
        return None, f"the answer is in a message, not in a call of {FINAL}" if text else "no answer"
    if not text:
        return None, f"{FINAL} did not take the answer"
    try:
        pairs = json.loads(text, object_pairs_hook=list)  # pairs, so that a key given twice is seen
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return None, "the answer is not JSON"
    if not isinstance(arguments, dict) or len(pairs) != 2 or set(arguments) != {"answer", "sources"}:
        return None, "the answer is not {answer, sources}"
    answer, sources = arguments["answer"], arguments["sources"]
    if not isinstance(sources, list) or not all(isinstance(source, str) for source in sources):
        return None, "sources is not a list of message_ids"
    if not isinstance(answer, str | None):
        return None, "the answer is not a text"
    if answer is not None and not answer.strip():
        return None, "the answer is empty"
    cited = tuple(source.strip() for source in cast(list[str], sources))
    if len(set(cited)) < len(cited):
        return None, "a source is given twice"
    return Answer(answer, cited), ""


def _seen(sample: dict[str, Any]) -> Seen:
    """Read the trajectory up to its last turn. Calls of that turn come too late for the answer."""
    trajectory: list[dict[str, Any]] = sample.get("trajectory") or []
    turns = [place for place, message in enumerate(trajectory) if message.get("role") == "assistant"]
    before = trajectory[: turns[-1]] if turns else []
    replies = {m.get("tool_call_id"): m for m in before if m.get("role") == "tool" and not m.get("is_error")}
    ids: set[str] = set()
    searches: list[str] = []
    for message in before:
        for call in message.get("tool_calls") or []:
            reply = replies.get(call.get("id"))
            if reply is None:
                continue
            ids.update(IDS.findall(_shown(call["function"], str(reply.get("content") or ""))))
            if call["function"]["name"] == "search_emails":
                searches.append(_keywords(call["function"]["arguments"]))
    return Seen(frozenset(ids), tuple(searches))


def _shown(function: dict[str, Any], reply: str) -> str:
    """Return the ids that a reply shows, at the end of a hit or the beginning of a mail. The rest
    of a mail's text may be anything."""
    if function["name"] == "search_emails":
        return "\n".join(line.rpartition(" | ")[2] for line in reply.splitlines())
    return reply.strip().removeprefix("Id:").lstrip(" |")[:10] if function["name"] == "read_email" else ""


def _keywords(arguments: str) -> str:
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return ""
    return " ".join(str(found.get(name) or "") for name in ("keywords", "from_addr")) if isinstance(found, dict) else ""


def _checked(item: dict[str, Any]) -> dict[str, Any]:
    target = item.get("target")
    keys = {"answer", "form", "message_id"}
    if not isinstance(target, dict) or not keys <= set(target):
        raise ValueError(f"row {item.get('id')}: the target {target!r:.80} has not the keys {sorted(keys)}")
    if (target["answer"] is None) != (target["message_id"] is None):
        raise ValueError(f"row {item.get('id')}: the target has an answer without a message_id, or the reverse")
    return target
