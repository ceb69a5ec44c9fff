"""The in-process policy: many dialogues decoded side by side, tokens in and tokens out.

    Engine.open(openings) -> dialogues  one a rollout; rft/batching.py brings their turns together for
    Session                             one row a dialogue, with a slot in a preallocated key/value cache
    Session.sample(rows) -> Sampled     one assistant turn for each of these rows
    Session.append(row, ...)            tool results; they are prefilled with the row's next turn

A session never encodes what was sampled: the ids go into the cache as they came out. Equal prompts (a group) are prefilled once.
Rows that end their turn leave the working batch. Sampling is by inverse CDF from one uniform number a token, drawn from the row's own
stream, so a row's tokens do not depend on how many numbers its neighbours drew (`torch.multinomial` takes 9 ms for 64 x 3,525; this 1).

Any transformers causal model with rotary positions works: the cache below stands in for transformers' own and scatters each row at its own
position, and the mask says what each row may see.

Shapes: B rows in the working batch, H key/value heads, T positions, D head size, W tokens prefilled, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rft.batching import Batch, Row
from rft.chat import Chat
from rft.errors import UserError
from rft.types import Opening, Sampled, ToolCall


class SlotCache:
    """Keys and values of B rows, each row at a position of its own. Speaks the part of transformers' Cache that attention uses."""

    is_compileable = False

    def __init__(self, num_layers: int, rows: int, heads: int, length: int, dim: int, dtype: torch.dtype, device: torch.device):
        shape = (rows, heads, length, dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.positions_BW = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.visible = 0

    def update(self, key: torch.Tensor, value: torch.Tensor, layer: int, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """`key`, `value`: B H W D, written at `positions_BW`; returns what may be seen, B H visible D."""
        where = self.positions_BW[:, None, :, None].expand(key.shape)
        self.keys[layer].scatter_(2, where, key)
        self.values[layer].scatter_(2, where, value)
        return self.keys[layer][:, :, : self.visible], self.values[layer][:, :, : self.visible]

    def get_seq_length(self, layer: int = 0) -> int:
        return self.visible

    def take(self, rows: torch.Tensor) -> SlotCache:
        """A working copy of some rows."""
        part = SlotCache.__new__(SlotCache)
        part.keys = [keys[rows] for keys in self.keys]
        part.values = [values[rows] for values in self.values]
        part.visible = self.visible
        return part

    def put(self, rows: torch.Tensor, part: SlotCache, source: torch.Tensor | None = None) -> None:
        for mine, theirs in zip(self.keys + self.values, part.keys + part.values, strict=True):
            mine[rows] = theirs if source is None else theirs[source]


class Engine:
    """A model with its chat, ready to decode. `model` may change its weights between sessions.

    `deterministic`: a barrier a turn (rft/batching.py). None: on CPU.
    """

    def __init__(self, model: Any, chat: Chat, device: torch.device, deterministic: bool | None = None):
        self.blocks = device.type == "cpu" if deterministic is None else deterministic
        text = model.config.get_text_config()
        self.model, self.chat, self.device = model, chat, device
        self.num_layers = text.num_hidden_layers
        self.heads = text.num_key_value_heads
        self.head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        self.max_positions: int = text.max_position_embeddings
        kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            other = sorted(kinds - {"full_attention"})
            raise UserError(f"policy.model: the in-process sampler does not support layers of kind {other}. Choose a model with full attention.")

    def open(self, openings: Sequence[Opening], seeds: Sequence[Sequence[int]], temperature: float, max_tokens: int) -> Sequence[Row]:
        """`temperature` 0 is greedy; `max_tokens` bounds a row's whole context."""
        return Batch(self.session(openings, seeds, temperature, max_tokens), self.blocks).dialogues()

    def session(self, openings: Sequence[Opening], seeds: Sequence[Sequence[int]], temperature: float, max_tokens: int) -> Session:
        """One row an opening."""
        if max_tokens > self.max_positions:
            raise UserError(f"rollout.max_tokens = {max_tokens} is more than the model's {self.max_positions} positions. Lower it.")
        prompts = [self.chat.prompt_ids(list(one.messages), one.tools) for one in openings]
        if (longest := max(map(len, prompts), default=0)) >= max_tokens:
            raise UserError(f"rollout.max_tokens = {max_tokens}, but an opening alone has {longest} tokens. Raise it, or shorten the prompt.")
        return Session(self, prompts, seeds, temperature, max_tokens)

    @torch.inference_mode()
    def forward(self, ids_BW: torch.Tensor, last_B: torch.Tensor, cache: SlotCache) -> torch.Tensor:
        """Logits B V after each row's last token, which stands in column `last_B`."""
        seen_T = torch.arange(cache.visible, device=self.device)
        mask = seen_T[None, None, None, :] <= cache.positions_BW[:, None, :, None]
        decoder = self.model.get_decoder()
        hidden = decoder(
            input_ids=ids_BW, attention_mask=mask, position_ids=cache.positions_BW, past_key_values=cache, use_cache=True
        ).last_hidden_state
        rows = torch.arange(len(ids_BW), device=self.device)
        return self.model.get_output_embeddings()(hidden[rows, last_B]).float()


class Session:
    """The rollouts of one batch, from prompt to end. Not reusable."""

    def __init__(self, engine: Engine, prompts: list[list[int]], seeds: Sequence[Sequence[int]], temperature: float, max_tokens: int):
        self.engine, self.temperature, self.max_tokens = engine, temperature, max_tokens
        self.lengths = [0] * len(prompts)  # tokens in the cache
        self.pending = [list(ids) for ids in prompts]  # tokens that are not
        self.turns = [0] * len(prompts)
        self._uniform = [np.random.Generator(np.random.Philox(np.random.SeedSequence(list(seed)))) for seed in seeds]
        dtype = next(engine.model.parameters()).dtype
        self._cache = SlotCache(engine.num_layers, len(prompts), engine.heads, max_tokens + 1, engine.head_dim, dtype, engine.device)

    def room(self, row: int) -> int:
        """Tokens that still fit into this row's context."""
        return self.max_tokens - self.lengths[row] - len(self.pending[row])

    def append(self, row: int, calls: Sequence[ToolCall], outputs: Sequence[str]) -> tuple[int, ...] | None:
        """Tool results for the row; returns their ids, or None, appending nothing, when they do not fit."""
        ids = self.engine.chat.reply_ids(calls, outputs)
        if len(ids) >= self.room(row):
            return None
        self.pending[row] += ids
        return tuple(ids)

    def sample(self, rows: list[int], max_new: int) -> list[Sampled]:
        """One assistant turn for each row, in order of `rows`."""
        logits = self._prefill(rows)
        ids: dict[int, list[int]] = {row: [] for row in rows}
        logprobs: dict[int, list[float]] = {row: [] for row in rows}
        limit = {row: min(max_new, self.max_tokens - self.lengths[row]) for row in rows}
        live, batch = list(rows), list(rows)  # batch: the rows of the working cache; live: those still speaking
        work = self._cache.take(self._index(rows))
        ends = self.engine.chat.end_ids
        while True:
            tokens, scores = self._draw(logits, live, batch)
            spoke = live
            for row, token, score in zip(live, tokens, scores, strict=True):
                ids[row].append(token)
                logprobs[row].append(score)
            live = [row for row, token in zip(live, tokens, strict=True) if token not in ends and len(ids[row]) < limit[row]]
            for row in set(spoke) - set(live):
                self.pending[row] = [ids[row][-1]]
            if not live:
                break
            if len(live) <= 0.75 * len(batch):
                self._cache.put(self._index(batch), work)
                work, batch = self._cache.take(self._index(live)), list(live)
            logits = self._step(work, batch, set(live), ids)
        self._cache.put(self._index(batch), work)
        return [self._said(row, ids[row], logprobs[row], ids[row][-1] in ends) for row in rows]

    def _said(self, row: int, ids: list[int], logprobs: list[float], ended: bool) -> Sampled:
        text, reading = self.engine.chat.read(ids, self.turns[row])
        self.turns[row] += 1
        return Sampled(text, reading, tuple(ids), tuple(logprobs), ended)

    def _prefill(self, rows: list[int]) -> torch.Tensor:
        """Feed every row's pending tokens; logits in the order of `rows`. Rows of one prompt are computed once."""
        first: dict[tuple[int, ...], int] = {}
        source = []
        for row in rows:
            same = (*self.pending[row],) if self.lengths[row] == 0 else (-1, row)
            source.append(first.setdefault(same, row))
        unique = list(dict.fromkeys(source))
        cache = self._cache.take(self._index(unique))
        width = max(len(self.pending[row]) for row in unique)
        ids_BW = torch.zeros(len(unique), width, dtype=torch.long)
        for n, row in enumerate(unique):
            ids_BW[n, : len(self.pending[row])] = torch.tensor(self.pending[row])
        last_B = torch.tensor([len(self.pending[row]) - 1 for row in unique], device=self.engine.device)
        start_B = torch.tensor([self.lengths[row] for row in unique], device=self.engine.device)
        # Padding is written behind the row's end, at most at the last slot, and overwritten before it is ever visible.
        positions = start_B[:, None] + torch.arange(width, device=self.engine.device)
        cache.positions_BW = positions.clamp(max=self.max_tokens)
        cache.visible = min(int(start_B.max()) + width, self.max_tokens + 1)
        logits = self.engine.forward(ids_BW.to(self.engine.device), last_B, cache)
        spread = torch.tensor([unique.index(row) for row in source], device=self.engine.device)
        self._cache.put(self._index(rows), cache, spread)
        for row in rows:
            self.lengths[row] += len(self.pending[row])
            self.pending[row] = []
        return logits[spread]

    def _step(self, work: SlotCache, batch: list[int], live: set[int], ids: dict[int, list[int]]) -> torch.Tensor:
        """One token for every row of the working batch; rows that ended repeat their last and are ignored."""
        device = self.engine.device
        work.positions_BW = torch.tensor([[self.lengths[row]] for row in batch], device=device)
        work.visible = max(self.lengths[row] for row in batch) + 1
        tokens = torch.tensor([[ids[row][-1]] for row in batch], device=device)
        logits = self.engine.forward(tokens, torch.zeros(len(batch), dtype=torch.long, device=device), work)
        for row in live:
            self.lengths[row] += 1
        return logits

    def _draw(self, logits_BV: torch.Tensor, live: list[int], batch: list[int]) -> tuple[list[int], list[float]]:
        """A token for each live row, and its log-probability under the distribution it was drawn from."""
        if len(live) < len(batch):
            place = {row: n for n, row in enumerate(batch)}
            logits_BV = logits_BV[[place[row] for row in live]]
        if self.temperature == 0:
            tokens = logits_BV.argmax(-1)
        else:
            logits_BV = logits_BV / self.temperature
            wide = torch.float64 if logits_BV.shape[1] > 10_000 else torch.float32
            cdf_BV = torch.softmax(logits_BV, -1).to(wide).cumsum(-1)
            uniform = torch.tensor([[self._uniform[row].random()] for row in live], dtype=wide, device=logits_BV.device)
            tokens = torch.searchsorted(cdf_BV, uniform * cdf_BV[:, -1:]).squeeze(1).clamp(max=logits_BV.shape[1] - 1)
        scores = torch.log_softmax(logits_BV, -1).gather(1, tokens[:, None]).squeeze(1)
        return tokens.tolist(), scores.tolist()

    def _index(self, rows: list[int]) -> torch.Tensor:
        return torch.tensor(rows, device=self.engine.device)
