"""The in-process policy: many dialogues decoded side by side, tokens in and tokens out.

    Engine.open(openings) -> dialogues  one per rollout; rft/sampling/batching.py brings their turns
                                        together
    Session                             one row per dialogue; a row has a slot
                                        (rft/sampling/kv_cache.py) from its first turn until it is
                                        closed
    Session.begin(row, max_new, ...)    asks for a turn
    Session.advance() -> rows           one token for all rows that speak; new turns join with it,
                                        and turns that ended make room
    Session.take_turn(row) -> Sampled   the turn that ended
    Session.append(row, ...)            tool results; they are prefilled with the row's next turn
    Session.sample(rows) -> Sampled     one turn of these rows, begun together

A session never encodes what was sampled: the sampled ids go into the slots. What prompts have in
common (in a group everything, in a stage the instructions) is computed once and copied
(rft/sampling/prefixes.py). What all prompts of a session begin with is kept for the next session,
as long as the weights stay the same. If there are fewer slots than rows, the other rows wait, in
order, until a row is closed.

Sampling is by inverse CDF from one uniform number per token, drawn from the row's own stream. So a
row's tokens do not depend on how many numbers its neighbors drew. `torch.multinomial` takes 9 ms
for 64 x 3,525; this takes 0.4.

A turn has its own time, and a deadline ends it between two tokens. In each step a row is charged
its share: the step's seconds divided by the number of rows. So neighbors never make a turn's time
longer: a step of B rows takes no longer than B steps of one. The shares of all rows add up to the
time of decoding. Waiting for a slot is not included, and prefill is not: a group's prompt is
computed for one row, and the policy did not write the tool results.

The forward is our own (rft/sampling/decode.py) if it knows the model and agrees with the model's
own forward. Otherwise the model's own forward is used.

Shapes: B rows that speak, V vocabulary.
"""

from __future__ import annotations

import copy
import math
import time
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import torch

from rft import progress
from rft.chat.renderer import Chat
from rft.errors import UserError
from rft.models import heap
from rft.models.shape import num_positions
from rft.sampling.batching import Batch, Row
from rft.sampling.decode import FastForward, fast_forward
from rft.sampling.kv_cache import ROOM, Feed, Forward, ModelForward, Prefix, Slots
from rft.sampling.prefixes import WORTH, Part, Prompt, common, plan
from rft.types import Opening, Sampled, ToolCall, Usage

PREFILL_TOKENS = {"cpu": 1024, "cuda": 16384}
"""Tokens of one prefill call. What 1,024 tokens of the embedded policy need fits into a core's
cache; 2,048 took 1.5 times as long."""

HELD_BYTES = 2**27
"""Slots up to this size are kept for the next session."""

_printed: set[str] = set()


class Engine:
    """A model with its chat, ready to decode. The model's weights may change between sessions.

    `deterministic`: a barrier per turn (rft/sampling/batching.py); None: only on a CPU. `slots`:
    dialogues held at once; None: all of a session. The fast path keeps the model's parameters, but
    changes the layout of their memory.
    """

    def __init__(
        self, model: Any, chat: Chat, device: torch.device, deterministic: bool | None = None, slots: int | None = None
    ):
        self.blocks = device.type == "cpu" if deterministic is None else deterministic
        text = model.config.get_text_config()
        self.model, self.chat, self.device, self.slots = model.eval(), chat, device, slots
        self.num_layers = text.num_hidden_layers
        self.heads = text.num_key_value_heads
        self.head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        self.max_positions = _positions(model)
        self._in_bfloat16 = False
        self._held: tuple[Slots, weakref.ref[Session]] | None = None
        self._stem: tuple[Prefix, tuple[float, ...]] | None = None
        kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise UserError(
                "policy.model: the in-process sampler does not support layers of kind "
                f"{sorted(kinds - {'full_attention'})}. Choose a model with full attention."
            )
        fast, why = fast_forward(model)
        self.forward: Forward = fast or ModelForward(model)
        if why:
            _print_once(f"uses the model's own forward, which is slower: {why}")

    def decoding_in(self, dtype: str) -> Engine:
        """Return a sampler of the same weights that multiplies in this format (`train.decoding`).
        In bfloat16 it samples from a distribution that differs a little from the policy's. It
        reports log-probabilities of the distribution that it drew from, and the learner corrects
        for the difference.

        Raises UserError if the model or this machine cannot do that.
        """
        if dtype == "float32":
            return self
        why = self.forward.no_bfloat16 if isinstance(self.forward, FastForward) else "the model has no fast forward"
        if why:
            raise UserError(f"train.decoding = {dtype} cannot be honored: {why}. Set it to float32.")
        one = copy.copy(self)
        one._in_bfloat16, one._held, one._stem = True, None, None
        return one

    def begun(self) -> Forward:
        """Return the forward of one session."""
        if self._in_bfloat16 and isinstance(self.forward, FastForward):
            return self.forward.begun(in_bfloat16=True)
        return self.forward.begun()

    def limit(self, configured: int | None) -> int:
        """Return the limit of a whole context. Without a `configured` one, it is the model's number
        of positions."""
        if configured is not None and configured > self.max_positions:
            raise UserError(
                f"rollout.max_tokens = {configured} is more than the model's {self.max_positions} positions. Lower it."
            )
        return self.max_positions if configured is None else configured

    def stem(self) -> Prefix | None:
        """Return what all prompts of the previous session began with, if the weights are the
        same."""
        if self._stem is not None and self._stem[1] != self._weights():
            self._stem = None
        return self._stem and self._stem[0]

    def keep(self, stem: Prefix) -> None:
        """Keep what all prompts of a session begin with for the next one."""
        self._stem = (stem, self._weights())

    @torch.inference_mode(False)
    def slots_for(self, session: Session, seats: int, length: int) -> Slots:
        """Return slots for a session: those of the previous session, if they are free, small, and
        of this size. What is left in them is never seen. For 64 rows of 100 tokens, new slots cost
        a tenth of the time, because the system must clear 60 MB."""
        dtype = next(self.model.parameters()).dtype
        if (slots := self._free_slots()) is None or not slots.fit(seats, length + ROOM, dtype):
            slots = Slots(self.num_layers, seats, self.heads, length, self.head_dim, dtype, self.device)
        self._held = (slots, weakref.ref(session)) if slots.num_bytes <= HELD_BYTES else None
        return slots

    def _free_slots(self) -> Slots | None:
        return self._held[0] if self._held is not None and self._held[1]() is None else None

    def forget_slots(self) -> None:
        """Keep no slots. After a session that failed or saw NaN, its slots may hold NaN, which no
        mask hides."""
        self._held = None

    def _weights(self) -> tuple[float, ...]:
        """Return the weights' sums, which tell present weights from earlier ones: weights may
        change unseen (`.data`). It takes as long as reading all weights once: 30 ms for 135 M."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        return tuple(torch.stack([tensor.detach().sum(dtype=torch.float32) for tensor in tensors]).tolist())

    async def check_openings(self, openings: Sequence[Opening], max_context_tokens: int | None) -> None:
        self.chat.opening_ids(openings, self.limit(max_context_tokens))

    def open(
        self,
        openings: Sequence[Opening],
        seeds: Sequence[Sequence[int]],
        temperature: float,
        max_context_tokens: int | None,
    ) -> Sequence[Row]:
        """Open a dialogue per rollout. `temperature` 0 is greedy; `max_context_tokens` bounds its
        context."""
        return Batch(self.session(openings, seeds, temperature, max_context_tokens), self.blocks).dialogues()

    def session(
        self,
        openings: Sequence[Opening],
        seeds: Sequence[Sequence[int]],
        temperature: float,
        max_context_tokens: int | None,
    ) -> Session:
        """Make a session with one row per opening."""
        limit = self.limit(max_context_tokens)
        return Session(self, self.chat.opening_ids(openings, limit), seeds, temperature, limit)


@dataclass(slots=True)
class _Speaking:
    """A turn that is being sampled."""

    limit: int
    deadline_s: float
    context: int
    held: int  # tokens of the context that are in the row's slot
    seconds: float = 0.0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Session:
    """The rollouts of one batch, from prompt to end. Not reusable. Calls come one at a time, but
    `append` may come during `advance`."""

    def __init__(
        self,
        engine: Engine,
        prompts: list[list[int]],
        seeds: Sequence[Sequence[int]],
        temperature: float,
        max_context_tokens: int,
    ):
        self.engine, self.temperature, self.max_context_tokens = engine, temperature, max_context_tokens
        self.lengths = [0] * len(prompts)  # tokens in the slot
        self.pending = [list(ids) for ids in prompts]  # tokens that are not
        self.turns = [0] * len(prompts)
        self._uniform = [np.random.Generator(np.random.Philox(np.random.SeedSequence(list(seed)))) for seed in seeds]
        self._prompts: list[Prompt] = [tuple(ids) for ids in prompts]
        self._unbegun = Counter(self._prompts)
        self._ended: dict[Prompt, torch.Tensor] = {}  # logits after a prompt that others need too
        self._holders: dict[Prompt, list[int]] = {}  # rows whose slot begins with it
        self._kept: dict[Prompt, Prefix] = {}  # prompts that are needed, and that no row holds any more
        seats = min(engine.slots or len(prompts), len(prompts))
        self._rows: list[int | None] = [None] * seats  # the row in each slot; those that speak are first
        self._slot: dict[int, int] = {}
        self._live: list[int] = []  # rows that speak, in order of slot
        self._queue: deque[int] = deque()  # rows whose turn has not begun
        self._turn: dict[int, _Speaking] = {}
        # per row that speaks: last token, and its position
        self._ids_B = self._positions_B = torch.zeros(0, dtype=torch.long, device=engine.device)

    @cached_property
    def _slots(self) -> Slots:
        """The slots, made with the first token by the thread that decodes."""
        return self.engine.slots_for(self, len(self._rows), max(map(len, self._prompts), default=0))

    @cached_property
    def _forward(self) -> Forward:
        return self.engine.begun()

    def room(self, row: int) -> int:
        """Return how many tokens still fit into this row's context."""
        return self.max_context_tokens - self.lengths[row] - len(self.pending[row])

    def append(self, row: int, calls: Sequence[ToolCall], outputs: Sequence[str]) -> tuple[int, ...] | None:
        """Append tool results to the row; return their ids, or None if they do not fit and nothing
        was appended."""
        ids = self.engine.chat.tool_result_ids(calls, outputs)
        if len(ids) >= self.room(row):
            return None
        self.pending[row] += ids
        return tuple(ids)

    def sample(self, rows: list[int], max_new: int) -> list[Sampled]:
        """Sample one assistant turn per row, in order of `rows`, which must fit into the slots."""
        assert len(self.seatable(rows)) == len(rows), "more rows than slots"
        for row in rows:
            self.begin(row, max_new)
        while self.speaking:
            self.advance()
        return [self.take_turn(row) for row in rows]

    # -- turns that come and go --------------------------------------------------------------------
    @property
    def speaking(self) -> bool:
        return bool(self._live or self.seatable(self._queue))

    def seatable(self, rows: Sequence[int]) -> list[int]:
        """Return the rows that have a slot and, in order, as many others as slots are free."""
        free = self._rows.count(None)
        return [row for row in rows if row in self._slot or (free := free - 1) >= 0]

    def begin(self, row: int, max_new: int, deadline_s: float = math.inf) -> None:
        """Ask for the row's next turn, of at most `max_new` tokens and `deadline_s` of its own
        time. It joins with the next token, once it has a slot."""
        held = self.lengths[row]
        context = held + len(self.pending[row])
        self._turn[row] = _Speaking(min(max_new, self.room(row)), deadline_s, context, held)
        self._queue.append(row)

    def close(self, row: int) -> None:
        """Cancel the row's turn and free its slot."""
        if self.lengths[row] and row in self._slot:
            self._release(row)
        if self._turn.pop(row, None) is not None:
            if row in self._live:
                self._keep([other != row for other in self._live])
            elif row in self._queue:
                self._queue.remove(row)
        if row in self._slot:
            self._rows[self._slot.pop(row)] = None

    def _release(self, row: int) -> None:
        """Keep the prompt of a row that is closed, if other rows need it and none of them holds
        it."""
        prompt = self._prompts[row]
        self._holders[prompt].remove(row)
        if not self._holders[prompt]:
            del self._holders[prompt]
            if self._unbegun[prompt]:
                self._kept[prompt] = self._slots.take(self._slot[row], prompt)

    def advance(self) -> list[int]:
        """Sample a token for all rows that speak, those that join now included. Return the rows
        whose turn ended with it."""
        try:
            with self._memory():
                return self._advance()
        except BaseException:
            self.engine.forget_slots()
            raise

    def _memory(self) -> AbstractContextManager[None]:
        """Say which setting to lower if memory runs out."""
        now = len(self._rows)
        lower = f"Lower rollout.batch to {now // 2}" if now > 1 else "Lower rollout.max_tokens"
        return heap.told(f"sampling {now} rollouts side by side", f"{lower}.")

    @torch.inference_mode()
    def _advance(self) -> list[int]:
        began = time.monotonic()
        stepped = self._step()
        joined, joining_s = self._join(self.seatable(self._queue))
        logits = [*stepped, *joined]
        self._ids_B, scores_B = self._draw(logits[0] if len(logits) == 1 else torch.cat(logits), self._live)
        ids, scores = self._ids_B.tolist(), scores_B.tolist()
        if math.isnan(sum(scores)):
            self.engine.forget_slots()
        share_s = (time.monotonic() - began - joining_s) / len(self._live)
        ends, goes_on = self.engine.chat.end_ids, []
        for row, token, score in zip(self._live, ids, scores, strict=True):
            turn = self._turn[row]
            turn.ids.append(token)
            turn.logprobs.append(score)
            turn.seconds += share_s
            goes_on.append(token not in ends and len(turn.ids) < turn.limit and turn.seconds < turn.deadline_s)
        ended = [row for row, on in zip(self._live, goes_on, strict=True) if not on]
        for row in ended:
            self.pending[row] = self._turn[row].ids[-1:]
        if ended:
            self._keep(goes_on)
        return ended

    def take_turn(self, row: int) -> Sampled:
        """Return the turn that this row ended; call it once per turn."""
        turn = self._turn.pop(row)
        text, reading = self.engine.chat.read(turn.ids, self.turns[row])
        self.turns[row] += 1
        ended = turn.ids[-1] in self.engine.chat.end_ids
        usage = Usage(turn.context, turn.held, len(turn.ids))
        return Sampled(text, reading, tuple(turn.ids), tuple(turn.logprobs), ended, seconds=turn.seconds, usage=usage)

    # -- forwards ----------------------------------------------------------------------------------
    def _step(self) -> list[torch.Tensor]:
        """Compute logits after the last token of all rows that speak."""
        if not self._live:
            return []
        visible = max(self.lengths[row] for row in self._live) + 1
        logits_BV = self._forward.step(self._slots, self._ids_B, self._positions_B, visible)
        self._positions_B = self._positions_B + 1
        for row in self._live:
            self.lengths[row] += 1
        return [logits_BV]

    def _join(self, rows: list[int]) -> tuple[list[torch.Tensor], float]:
        """Add these rows to those that speak, and prefill what is pending. Return logits in order
        of `rows`, and the seconds it took."""
        if not rows:
            return [], 0.0
        began = self._now()
        self._seat(rows)
        logits = self._prefill(rows)
        for row in rows:
            self._queue.remove(row)
            self.lengths[row] += len(self.pending[row])
            self.pending[row] = []
        self._live += rows
        places = torch.tensor([self.lengths[row] for row in rows], device=self.engine.device)
        self._positions_B = torch.cat((self._positions_B, places))
        return [logits], self._now() - began

    def _now(self) -> float:
        """Return the time once the device has finished its work."""
        if self.engine.device.type == "cuda":
            torch.cuda.synchronize(self.engine.device)
        return time.monotonic()

    def _prefill(self, rows: list[int]) -> torch.Tensor:
        """Prefill what is pending: prompts, and tool results."""
        new: dict[Prompt, list[int]] = {}
        for row in rows:
            if self.lengths[row] == 0:
                assert len(self.pending[row]) == len(self._prompts[row]), "a row begins with its prompt"
                new.setdefault(self._prompts[row], []).append(row)
        feeds = {row: Feed(self._slot[row], self.lengths[row], self.pending[row]) for row in rows if self.lengths[row]}
        logits = self._tell(feeds)
        for prompt, row_logits in self._begin(new).items():
            logits |= dict.fromkeys(new[prompt], row_logits)
        return torch.stack([logits[row] for row in rows])

    def _begin(self, new: dict[Prompt, list[int]]) -> dict[Prompt, torch.Tensor]:
        """Put prompts into the slots of their rows, computing once what they have in common with
        each other and with what is held already. Return the logits after each."""
        if not new:
            return {}
        stem = self.engine.stem()
        there: dict[Prompt, Prefix | int] = {} if stem is None else {stem.ids: stem}
        there |= self._kept | {prompt: self._slot[rows[-1]] for prompt, rows in self._holders.items()}
        slots = {prompt: self._slot[rows[0]] for prompt, rows in new.items() if prompt not in self._ended}
        for wave in plan(slots.keys(), there.keys()):
            for (source, length), parts in groupby(sorted(wave, key=_copied), key=_copied):
                if source:
                    self._copy((slots | there)[source], [slots[part.prompt] for part in parts], length)
            told = self._tell({part: Feed(slots[part.prompt], part.start, part.ids) for part in wave})
            self._ended |= {
                part.prompt: row_logits for part, row_logits in told.items() if part.end == len(part.prompt)
            }
        for prompt, rows in new.items():
            others = [self._slot[row] for row in rows if self._slot[row] != slots.get(prompt)]
            if others:
                self._copy((there | slots)[prompt], others, len(prompt))
        self._keep_stem(stem, next(iter(new.values()))[0])
        return {prompt: self._begun(prompt, rows) for prompt, rows in new.items()}

    def _keep_stem(self, stem: Prefix | None, row: int) -> None:
        """Keep what all prompts begin with, for the engine's next session. It is done once per
        session."""
        if not self._holders:
            ids = self._prompts[row][: common(min(self._prompts), max(self._prompts))]
            if len(ids) >= WORTH and (stem is None or stem.ids != ids):
                self.engine.keep(self._slots.take(self._slot[row], ids))

    def _begun(self, prompt: Prompt, rows: list[int]) -> torch.Tensor:
        """Note that these rows hold the prompt; return the logits after it."""
        self._holders.setdefault(prompt, []).extend(rows)
        self._kept.pop(prompt, None)
        self._unbegun[prompt] -= len(rows)
        return self._ended[prompt] if self._unbegun[prompt] else self._ended.pop(prompt)

    def _copy(self, source: Prefix | int, targets: list[int], length: int) -> None:
        """Copy the first tokens of a slot, or of what was kept, into other slots."""
        if isinstance(source, Prefix):
            self._slots.put(source, targets, length)
        else:
            self._slots.copy([source] * len(targets), targets, length)

    def _tell(self, feeds: dict[Any, Feed]) -> dict[Any, torch.Tensor]:
        """Prefill these tokens, similar rows in one call; return the logits after each."""
        logits: dict[Any, torch.Tensor] = {}
        most = PREFILL_TOKENS[self.engine.device.type]
        for goes_on in (False, True):
            names = [name for name, feed in feeds.items() if (feed.start > 0) == goes_on]
            names.sort(key=lambda name: len(feeds[name].ids))
            for chunk in _chunks(names, [len(feeds[name].ids) for name in names], most):
                found = self._forward.prefill(self._slots, [feeds[name] for name in chunk])
                logits |= zip(chunk, found, strict=True)
        return logits

    def _draw(self, logits_BV: torch.Tensor, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw a token per row; also return its log-probability under the distribution that it was
        drawn from."""
        if self.temperature == 0:
            tokens_B = logits_BV.argmax(-1)
            return tokens_B, torch.log_softmax(logits_BV, -1).gather(1, tokens_B[:, None]).squeeze(1)
        drawn = [self._uniform[row].random() for row in rows]
        uniform_B = torch.tensor(drawn, dtype=torch.float32, device=logits_BV.device)
        return draw(logits_BV if self.temperature == 1 else logits_BV / self.temperature, uniform_B)

    # -- slots -------------------------------------------------------------------------------------
    def _seat(self, rows: list[int]) -> None:
        """Give these rows, in order, the slots after those that speak."""
        before = dict(self._slot)
        for place, row in enumerate(rows, start=len(self._live)):
            if row not in self._slot:
                self._sit(row, self._rows.index(None, len(self._live)))
            self._trade(place, self._slot[row])
        self._move(before)

    def _keep(self, goes_on: list[bool]) -> None:
        """Move rows that go on to the front, each into the slot of one that does not."""
        before, count = dict(self._slot), sum(goes_on)
        order = list(range(count))
        free = [slot for slot in order if not goes_on[slot]]
        late = [slot for slot in range(count, len(goes_on)) if goes_on[slot]]
        for mine, other in zip(free, late, strict=True):
            order[mine] = other
            self._trade(mine, other)
        self._move(before)
        self._live = [self._live[slot] for slot in order]
        chosen_B = torch.tensor(order, dtype=torch.long, device=self.engine.device)
        self._ids_B, self._positions_B = self._ids_B[chosen_B], self._positions_B[chosen_B]

    def _sit(self, row: int | None, slot: int) -> None:
        self._rows[slot] = row
        if row is not None:
            self._slot[row] = slot

    def _trade(self, mine: int, other: int) -> None:
        row = self._rows[mine]
        self._sit(self._rows[other], mine)
        self._sit(row, other)

    def _move(self, before: dict[int, int]) -> None:
        """Copy keys and values of the rows that changed their slot."""
        moved = [row for row, slot in before.items() if self._slot[row] != slot]
        if moved:
            length = max(self.lengths[row] for row in moved)
            self._slots.copy([before[row] for row in moved], [self._slot[row] for row in moved], length)


def _print_once(message: str) -> None:
    if message not in _printed:
        _printed.add(message)
        progress.print_line("sampler", message)


def _positions(model: Any) -> int:
    """Return how many tokens a dialogue may have. Raises UserError where the model does not say."""
    if (positions := num_positions(model.config)) is None:
        raise UserError("policy.model: its config.json has no max_position_embeddings, so no context has a limit.")
    return positions


def draw(logits_BV: torch.Tensor, uniform_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw tokens B by inverse CDF; also return their log-probabilities.

    The vocabulary is searched in two steps: for a block, and for a token in it. So no sum has more
    than about twice the square root of V terms. That is fast, and exact enough in float32 for any
    vocabulary.
    """
    probability_BV = logits_BV.softmax(-1)
    rows, vocabulary = logits_BV.shape
    size = math.isqrt(vocabulary - 1) + 1
    whole = vocabulary // size * size
    parts = [probability_BV[:, :whole].view(rows, -1, size).sum(-1)]
    if whole < vocabulary:
        parts.append(probability_BV[:, whole:].sum(-1, keepdim=True))
    up_to = torch.cat(parts, -1).cumsum(-1)
    target_B1 = uniform_B[:, None] * up_to[:, -1:]
    block_B1 = _find(up_to, target_B1)
    places = block_B1 * size + torch.arange(size, device=logits_BV.device)
    inside = probability_BV.gather(1, places.clamp_max(vocabulary - 1)) * (places < vocabulary)
    before_B1 = up_to.gather(1, block_B1) - inside.sum(-1, keepdim=True)
    tokens_B1 = block_B1 * size + _find(inside.cumsum(-1), target_B1 - before_B1)
    return tokens_B1.squeeze(1), probability_BV.gather(1, tokens_B1).squeeze(1).log()


def _find(up_to: torch.Tensor, target_B1: torch.Tensor) -> torch.Tensor:
    """Find the place whose share holds the target, even if rounding puts the target outside."""
    inside = torch.minimum(target_B1, up_to[:, -1:] * (1 - 2**-22)).clamp_(min=0)
    return torch.searchsorted(up_to, inside, right=True)


def _copied(part: Part) -> tuple[Prompt, int]:
    """Return what a part copies first, and how much of it."""
    return part.source or (), part.start


def _chunks(rows: list[Any], lengths: list[int], most: int) -> list[list[Any]]:
    """Split rows into runs of at most `most` tokens; a longer row is alone."""
    chunks: list[list[Any]] = []
    held = 0
    for row, length in zip(rows, lengths, strict=True):
        if not chunks or held + length > most:
            chunks.append([])
            held = 0
        chunks[-1].append(row)
        held += length
    return chunks
