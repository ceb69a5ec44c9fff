"""Check the way between messages and tokens with the model's own tokenizer and template.

The trainer relies on these. No weights are loaded.

    prefix  a new turn leaves the rendered text before it unchanged, as the rollout holds it
            (rft/chat/renderer.py). Plain dialogues of tool calls must pass. Otherwise a server
            shows the policy another past than in training. Problems of only some dialogues, such as
            reasoning that is dropped later or two calls in a turn, are warnings
    calls   a tool call written in the policy's format is read back as the same call
    room    the longest opening and the recipe's own dialogues fit into rollout.max_tokens, which
            fits into the model's positions. If the policy's server sets the limit, the positions
            are used here, and the check `server` looks closer
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rft import stats
from rft.chat.dialogue import opening_of
from rft.doctor.finding import Finding, fail, together, warn
from rft.doctor.setup import Setup
from rft.grading import scripted
from rft.models.shape import num_positions
from rft.types import Example

NUM_LONGEST = 16  # of each split, by letters, which are cheap to count
MAX_CUT_SHARE = 0.05


def check(setup: Setup) -> Finding:
    chat = setup.chat()
    limit = setup.params.rollout.max_tokens or _num_positions(setup)
    room, longest = _room(setup, chat, limit)
    problems = [*_prefixes(setup, chat), *_calls_read_back(setup, chat), *_positions(setup), *room]
    of = f" of {limit}" if limit else ""
    description = f"prefixes kept, calls read back; the longest opening takes {longest}{of} tokens"
    return together(problems, description, longest_opening=longest, max_tokens=limit)


def _prefixes(setup: Setup, chat: Any) -> Iterator[Finding]:
    """Report prefixes that change. A template may drop reasoning, as most do, if no server renders
    the past again."""
    from rft.chat.renderer import prefix_problems

    problems = [
        text for text in prefix_problems(chat) if setup.params.policy.server or not text.startswith("reasoning")
    ]
    if plain := [text for text in problems if text.startswith("tool calls")]:
        remedy = (
            "Set policy.chat_template to the model's training template, or to one that has tools and only appends "
            "turns, such as rft/chat/templates/chatml-hermes.jinja; policy.tool_format must fit it."
        )
        yield fail(plain[0], remedy, prefix_problems=problems)
    elif problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        remedy = "It matters if the policy meets this: a server that renders messages again shows it another past."
        yield warn(problems[0] + more, remedy, prefix_problems=problems)


def _calls_read_back(setup: Setup, chat: Any) -> Iterator[Finding]:
    own = scripted.own_calls(setup.recipe, setup.rows["train"][0], setup.params.policy.seed)
    for tool in chat.tools:
        function = tool["function"]
        call, _ = scripted.one_call(function["name"], function.get("parameters", {}), own)
        written = {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        ids, loss_mask = chat.dialogue_ids(
            [{"role": "user", "content": "u"}, {"role": "assistant", "content": "", "tool_calls": [written]}]
        )
        text, reading = chat.read([token for token, is_own in zip(ids, loss_mask, strict=True) if is_own], 0)
        back = [(read.name, read.problem or _parsed(read.arguments)) for read in reading.calls]
        if reading.problem or back != [(call.name, _parsed(call.arguments))]:
            yield fail(
                f"a call of {call.name} does not read back: {text[:120]!r} is {reading.problem or back}",
                "Set policy.tool_format to the format that the model was trained on.",
            )


def _parsed(text: str) -> Any:
    return json.loads(text)


def _positions(setup: Setup) -> Iterator[Finding]:
    positions, limit = _num_positions(setup), setup.params.rollout.max_tokens
    if positions and limit and limit > positions:
        yield fail(f"rollout.max_tokens = {limit} is more than the model's {positions} positions", "Lower it.")


def _num_positions(setup: Setup) -> int | None:
    return num_positions(setup.model_config())


def _room(setup: Setup, chat: Any, limit: int | None) -> tuple[list[Finding], int]:
    """Return problems, and the longest opening's length. `limit`: tokens of the whole context, or
    None if unknown."""
    rollout, problems = setup.params.rollout, []
    openings = [opening_of(row, setup.recipe.prompts.seed, rollout) for row in _longest(setup)]
    longest, example_id = max(
        (len(chat.prompt_ids(list(opening.messages), opening.tools, opening.response_format)), opening.example_id)
        for opening in openings
    )
    if limit is None:
        return [], longest
    if longest >= limit:
        what = "rollout.max_tokens" if rollout.max_tokens else "the number of the model's positions"
        remedy = "Raise rollout.max_tokens, or shorten the system prompt, the tools' descriptions or the notes."
        problems.append(fail(f"the opening of example {example_id} takes {longest} tokens, {what} = {limit}", remedy))
    elif longest + rollout.max_turn_tokens > limit:
        description = f"the opening of example {example_id} ({longest} tokens) leaves no room for one turn"
        description = f"{description} of rollout.max_turn_tokens = {rollout.max_turn_tokens}"
        problems.append(warn(description, "Raise rollout.max_tokens."))
    lengths = [
        len(chat.dialogue_ids(messages)[0])
        for messages in scripted.demonstrations(setup.recipe, setup.params.policy.seed)
    ]
    cut = sum(length > limit for length in lengths)
    if lengths and cut > MAX_CUT_SHARE * len(lengths):
        long = f"longer than rollout.max_tokens (P95 {stats.percentile(lengths, 0.95):.0f} tokens)"
        remedy = "Raise rollout.max_tokens: rollouts as long as these would be cut."
        problems.append(warn(f"{cut} of {len(lengths)} demonstrations are {long}", remedy))
    elif not lengths and longest + rollout.max_turns * rollout.max_turn_tokens > limit:
        turns = (limit - longest) // rollout.max_turn_tokens
        description = f"the longest opening leaves room for {turns} full turns, tool results not counted"
        remedy = "Raise rollout.max_tokens, or lower rollout.max_turn_tokens, if turns are that long."
        problems.append(warn(f"{description}; rollout.max_turns = {rollout.max_turns}", remedy))
    return problems, longest


def _longest(setup: Setup) -> Iterator[Example]:
    for rows in setup.rows.values():
        letters = {row.id: sum(len(str(message.get("content"))) for message in row.messages) for row in rows}
        yield from sorted(rows, key=lambda row: letters[row.id], reverse=True)[:NUM_LONGEST]
