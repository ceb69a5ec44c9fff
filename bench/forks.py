"""The figure of tokens in, tokens out: how often does a context not continue what was sampled?

Such a rollout must never be trained on. The dialogues of dialogues.json (odd whitespace, unicode,
broken calls) are played through the real loop for each family of chat templates:

    append-only       the in-process sampler, forced to draw the recorded tokens; its context is
                      what it fed to the model, token by token
    rendered anew     a chat endpoint: each turn it renders the messages that it is given, and
                      tokenizes them again

A policy does not always write a text with the tokens that a tokenizer would choose. So in both, one
token in thirty is drawn as two shorter ones. A third play shows what only the templates cause:
there, every token is the tokenizer's own choice.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from bench.measure import Figure, Part
from rft.scale import UNIT

PLACE = Path(__file__).resolve().parent
SPLIT_EVERY = 30
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Looks a key up.",
            "parameters": {
                "type": "object",
                "properties": {"key": {"type": "string", "description": "the key"}},
                "required": ["key"],
            },
        },
    }
]


def rollout_forks(args: list[str]) -> Figure:
    """Forked trajectories that training would not have left out, for each template family; forks of
    turns on both ways."""
    from tests import families

    parts: list[Part] = []
    silent = trajectories = 0
    for name in args or list(families.FAMILIES):
        plays = dict(zip(("append-only", "rendered anew", "rendered anew, no token cut"), played(name), strict=True))
        mine, n = sum(play.silent for play in plays.values()), sum(play.trajectories for play in plays.values())
        silent, trajectories = silent + mine, trajectories + n
        parts.append(Part(f"{name}: trained on silently", mine, "trajectories", at_most=0, n=n))
        for way, play in plays.items():
            bound = 0 if way == "append-only" else None
            parts.append(Part(f"{name}: forks / turns, {way}", play.forks / play.turns, at_most=bound, n=play.turns))
            print(f"{name:12} {way:28} {play}", file=sys.stderr)
    return Figure((Part("trained on silently", silent, "trajectories", at_most=0, n=trajectories), *parts))


@dataclass
class Count:
    """The counts of one family in one play. `forks` are found here, independently of the loop.
    `unmarked` are those that the loop did not mark."""

    trajectories: int = 0
    turns: int = 0
    forks: int = 0
    unmarked: int = 0
    silent: int = 0
    refused: int = 0
    """Rollouts that ended because the template refused the messages: unscored."""


def played(name: str) -> tuple[Count, Count, Count]:
    """Return the counts of three plays: append-only, rendered anew, rendered anew with no token
    cut."""
    from rft.chat.renderer import Chat
    from tests import families

    recorded = json.loads((PLACE / "dialogues.json").read_text(encoding="utf-8"))
    texts = [json.dumps(one, ensure_ascii=False) for one in recorded]
    chat = Chat(families.build(name, texts=(*families.TEXTS, *texts)), TOOLS)
    drawn = [_Script(one, [_sampled(chat, turn, SPLIT_EVERY) for turn in one["turns"]]) for one in recorded]
    chosen = [_Script(one, [_sampled(chat, turn, 0) for turn in one["turns"]]) for one in recorded]
    return (
        _count(_forced(chat, drawn), drawn),
        _count(_Endpoint(chat, drawn), drawn),
        _count(_Endpoint(chat, chosen), chosen),
    )


@dataclass
class _Script:
    """A recorded dialogue in one family's tokens. `contexts` is what each turn was sampled from, as
    the player saw it."""

    dialogue: dict[str, Any]
    ids: list[list[int]]
    contexts: list[list[int]] = field(default_factory=list)

    @property
    def forks(self) -> int:
        """Count contexts that do not begin with the last context and what was sampled from it."""
        pairs = zip(self.contexts, self.contexts[1:], self.ids, strict=False)
        return sum(later[: len(earlier) + len(ids)] != earlier + ids for earlier, later, ids in pairs)


def _sampled(chat: Any, turn: dict[str, Any], split_every: int) -> list[int]:
    """Return the tokens that a policy of this family drew for the turn, its end included.
    `split_every` 0: as its tokenizer would choose them."""
    calls = [
        {"type": "function", "function": {"name": name, "arguments": arguments}}
        for name, arguments in turn.get("calls", [])
    ]
    message = {
        "role": "assistant",
        "content": turn.get("content", ""),
        "tool_calls": calls,
        "reasoning_content": turn.get("reasoning", ""),
    }
    ids, loss_mask = chat.dialogue_ids([{"role": "user", "content": "u"}, message])
    spoken = [token for token, own in zip(ids, loss_mask, strict=True) if own]
    vocabulary = chat.tokenizer.get_vocab()
    control = set(chat.tokenizer.added_tokens_decoder)
    drawn: list[int] = []
    for n, token in enumerate(spoken):
        piece = chat.tokenizer.convert_ids_to_tokens(token)
        cuts = (
            []
            if token in control
            else [(vocabulary[piece[:at]], vocabulary[piece[at:]]) for at in _cuts(piece, vocabulary)]
        )
        drawn += cuts[0] if cuts and split_every and n % split_every == split_every // 2 else [token]
        if token in chat.end_ids:  # gpt-oss ends a turn with each call
            break
    return drawn


def _cuts(piece: str, vocabulary: dict[str, int]) -> Iterator[int]:
    return (at for at in range(1, len(piece)) if piece[:at] in vocabulary and piece[at:] in vocabulary)


# -- the two policies ------------------------------------------------------------------------------
def _forced(chat: Any, scripts: list[_Script]) -> Any:
    """Play on the in-process engine with a random model, whose sampler must draw the recording."""
    import torch

    from rft import config
    from rft.models import embedded
    from rft.sampling import engine

    class Forced(engine.Session):
        def __init__(self, *args: Any):
            super().__init__(*args)
            self.fed: list[list[int]] = [[] for _ in scripts]
            self.coming: list[list[int]] = [[] for _ in scripts]

        def begin(self, row: int, max_new: int, deadline_s: float = math.inf) -> None:
            scripts[row].contexts.append(self.fed[row] + self.pending[row])
            self.coming[row] = list(scripts[row].ids[self.turns[row]])
            super().begin(row, max_new, deadline_s)

        def take_turn(self, row: int) -> Any:
            return replace(super().take_turn(row), context_ids=tuple(scripts[row].contexts[-1]))

        def _prefill(self, rows: list[int]) -> torch.Tensor:
            for row in rows:
                self.fed[row] += self.pending[row]
            return super()._prefill(rows)

        def _step(self) -> list[torch.Tensor]:
            for row in self._live:
                self.fed[row].append(self._turn[row].ids[-1])
            return super()._step()

        def _draw(self, logits_BV: torch.Tensor, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.tensor([self.coming[row].pop(0) for row in rows]), torch.full((len(rows),), -1.0)

    class Engine(engine.Engine):
        def session(self, openings: Any, seeds: Any, temperature: float, max_context_tokens: int) -> Any:
            prompts = [self.chat.prompt_ids(list(one.messages), one.tools) for one in openings]
            return Forced(self, prompts, seeds, temperature, max_context_tokens)

    for script in scripts:
        script.contexts.clear()
    size = config.Architecture(
        layers=2,
        hidden=64,
        heads=2,
        kv_heads=2,
        head_dim=32,
        feed_forward=64,
        max_positions=4096,
        structured_init=False,
    )
    return Engine(embedded.build_model(size, chat.tokenizer, 0).eval(), chat, torch.device("cpu"), deterministic=True)


@dataclass
class _Anew:
    """A dialogue with a chat endpoint. It is given messages, and says which tokens it made of
    them."""

    chat: Any
    script: _Script
    messages: list[dict[str, Any]]
    prompt_ids: tuple[int, ...] = ()
    number: int = 0

    async def sample(self, max_new: int, deadline_s: float) -> Any:
        from rft.rollouts.policy import PolicyFailed
        from rft.types import Sampled

        try:
            context = self.chat.prompt_ids(self.messages)
        except Exception as refusal:  # the template's own error, like a 400 of an endpoint
            raise PolicyFailed(str(refusal)) from None
        ids = self.script.ids[self.number]
        text, reading = self.chat.read(ids, self.number)
        self.script.contexts.append(context)
        self.number += 1
        calls = [
            {"id": one.call_id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
            for one in reading.calls
        ]
        self.messages.append(
            {"role": "assistant", "content": reading.content} | ({"tool_calls": calls} if calls else {})
        )
        return Sampled(text, reading, tuple(ids), (-1.0,) * len(ids), context_ids=tuple(context))

    def append(self, calls: Sequence[Any], results: Sequence[Any]) -> tuple[int, ...]:
        from rft.chat.renderer import tool_message

        self.messages += [tool_message(call, result.output) for call, result in zip(calls, results, strict=True)]
        return ()

    def close(self) -> None:
        pass


@dataclass
class _Endpoint:
    chat: Any
    scripts: list[_Script]
    blocks: bool = False

    def open(self, openings: Sequence[Any], seeds: Any, temperature: float, max_context_tokens: int) -> list[_Anew]:
        for script in self.scripts:
            script.contexts.clear()
        return [
            _Anew(self.chat, script, list(one.messages)) for script, one in zip(self.scripts, openings, strict=True)
        ]


# -- the loop around them --------------------------------------------------------------------------
class _Outputs:
    """Gives the recorded results in place of a tool client."""

    def __init__(self, scripts: list[_Script]):
        self._outputs = {
            script.dialogue["name"]: [turn.get("outputs", []) for turn in script.dialogue["turns"]]
            for script in scripts
        }

    async def start(self, context: Any) -> None:
        return None

    async def end(self, context: Any, stop: Any) -> None:
        return None

    async def release(self, context: Any) -> None:
        pass

    def terminal_answer(self, turn: Any) -> None:
        return None

    async def call_all(self, calls: Sequence[Any], context: Any, defaults: Any, arrived: Any) -> list[Any]:
        from rft.types import ToolResult

        places = [tuple(map(int, call.call_id.split("_")[1:])) for call in calls]
        results = [
            ToolResult(call.call_id, self._outputs[context.example.id][turn][n])
            for call, (turn, n) in zip(calls, places, strict=True)
        ]
        for result in results:
            arrived(result)
        return results


class _Grades:
    scale = UNIT

    async def grade(self, example: Any, turns: Any, stop: Any, context: Any) -> Any:
        from rft.types import Scored

        return Scored(1.0 if len(example.id) % 2 else 0.0)


def _count(policy: Any, scripts: list[_Script]) -> Count:
    from rft import config
    from rft.reports import PromptSettings
    from rft.rollouts.loop import Conditions, Request, run_rollouts
    from rft.trainer.collect import unfit
    from rft.types import Example, StopReason

    requests = [
        Request(Example(one.dialogue["name"], ({"role": "user", "content": one.dialogue["question"]},), None), 0)
        for one in scripts
    ]
    prompt = PromptSettings(name="seed", system="Be brief. ", max_turns=6)
    conditions = Conditions(
        prompt, 1.0, (0,), config.Rollout(max_tokens=4096, max_turn_tokens=2048, max_unreadable_calls=100)
    )
    grader = cast(Any, _Grades())
    done = asyncio.run(run_rollouts(policy, cast(Any, _Outputs(scripts)), grader, requests, conditions, {}))
    count = Count(len(done))
    for one, script in zip(done, scripts, strict=True):
        sampled = [list(turn.token_ids) for turn in one.turns]
        assert sampled == script.ids[: len(sampled)], (
            f"{script.dialogue['name']}: the trajectory does not hold the tokens that were drawn"
        )
        count.turns += len(one.turns)
        count.forks += script.forks
        count.unmarked += bool(script.forks) != bool(one.num_forks)
        count.silent += bool(script.forks) and not unfit(one)
        count.refused += one.stop_reason is StopReason.sampler_error
    return count


FIGURES = {"rollout_forks": rollout_forks}
