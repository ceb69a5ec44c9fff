"""Keys and values of many dialogues, one slot each, and transformers' own forward over them.

The rows that are decoded now are in the first slots, so that a step reads and writes in place:
nothing is copied between tokens. `copy` moves other rows there. A dialogue that waits for its tool
costs only memory. The length of all slots grows with the longest dialogue.

`ModelForward` runs any causal model with rotary positions and full attention. A stand-in for
transformers' Cache writes each row at its own position, and the mask says what each row may see.
For the families that it knows, rft/sampling/decode.py does the same work several times faster.

Shapes: L layers, S slots, B rows of a call, H key/value heads, T positions, D head size, W tokens
of the longest row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

ROOM = 64
"""Positions by which slots grow."""


@dataclass(frozen=True, slots=True)
class Feed:
    """Tokens for a slot, after the `start` that it holds already."""

    slot: int
    start: int
    ids: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


@dataclass(frozen=True, slots=True)
class Prefix:
    """Keys and values L H T D of the tokens `ids`, which a dialogue begins with."""

    ids: tuple[int, ...]
    keys_LHTD: torch.Tensor
    values_LHTD: torch.Tensor


class Slots:
    def __init__(
        self, layers: int, slots: int, heads: int, length: int, dim: int, dtype: torch.dtype, device: torch.device
    ):
        """Start with zeros: values after a row's end are multiplied by 0, so they must be
        finite."""
        shape = (layers, slots, heads, length + ROOM, dim)
        self.keys_LSHTD = torch.zeros(shape, dtype=dtype, device=device)
        self.values_LSHTD = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def length(self) -> int:
        return self.keys_LSHTD.shape[3]

    def fit(self, seats: int, length: int, dtype: torch.dtype) -> bool:
        """Tell whether there are exactly `seats` slots here, of this dtype and of at least this
        length."""
        held = self.keys_LSHTD
        return (held.shape[1], held.dtype) == (seats, dtype) and self.length >= length

    @property
    def num_bytes(self) -> int:
        return self.keys_LSHTD.nbytes + self.values_LSHTD.nbytes

    def hold(self, length: int) -> None:
        """Make room for this many positions."""
        if length > self.length:
            more = length + ROOM - self.length
            self.keys_LSHTD = torch.nn.functional.pad(self.keys_LSHTD, (0, 0, 0, more))
            self.values_LSHTD = torch.nn.functional.pad(self.values_LSHTD, (0, 0, 0, more))

    def copy(self, sources: list[int], targets: list[int], length: int) -> None:
        """Copy the first `length` positions of some slots into others."""
        for held in (self.keys_LSHTD, self.values_LSHTD):
            part = held[:, :, :, :length]
            part[:, torch.tensor(targets, device=part.device)] = part[:, torch.tensor(sources, device=part.device)]

    def take(self, slot: int, ids: tuple[int, ...]) -> Prefix:
        """Copy the first tokens of a slot, which are `ids`, out of it."""
        keys, values = (held[:, slot, :, : len(ids)].clone() for held in (self.keys_LSHTD, self.values_LSHTD))
        return Prefix(ids, keys, values)

    def put(self, prefix: Prefix, targets: list[int], length: int) -> None:
        """Copy the first `length` tokens of a prefix into some slots."""
        for held, kept in ((self.keys_LSHTD, prefix.keys_LHTD), (self.values_LSHTD, prefix.values_LHTD)):
            held[:, torch.tensor(targets, device=held.device), :, :length] = kept[:, None, :, :length]


class Forward(Protocol):
    """Logits B V, in float32, after the last token of each row; keys and values go into the
    slots."""

    def begun(self) -> Forward:
        """Return a forward for one session, in which no weight changes."""
        ...

    def prefill(self, slots: Slots, feeds: Sequence[Feed]) -> torch.Tensor: ...

    def step(self, slots: Slots, ids_B: torch.Tensor, positions_B: torch.Tensor, visible: int) -> torch.Tensor:
        """Feed one token to each of the first B slots, at its position. No row has more than
        `visible` positions, this one included."""
        ...


class ModelForward:
    """The model's own forward."""

    def __init__(self, model: Any):
        self.model = model

    def begun(self) -> ModelForward:
        return self

    @torch.inference_mode()
    def prefill(self, slots: Slots, feeds: Sequence[Feed]) -> torch.Tensor:
        device = slots.keys_LSHTD.device
        width, visible = max(len(feed.ids) for feed in feeds), max(feed.end for feed in feeds)
        slots.hold(max(feed.start for feed in feeds) + width)
        # Padding repeats a row's last token after its end, where it is overwritten before it is
        # visible.
        ids_BW = torch.tensor([[*feed.ids, *[feed.ids[-1]] * (width - len(feed.ids))] for feed in feeds], device=device)
        starts_B = torch.tensor([feed.start for feed in feeds], device=device)
        last_B = torch.tensor([len(feed.ids) - 1 for feed in feeds], device=device)
        where_B = torch.tensor([feed.slot for feed in feeds], device=device)
        positions_BW = starts_B[:, None] + torch.arange(width, device=device)
        return self._run(ids_BW, last_B, _Cache(slots, where_B, positions_BW, visible))

    @torch.inference_mode()
    def step(self, slots: Slots, ids_B: torch.Tensor, positions_B: torch.Tensor, visible: int) -> torch.Tensor:
        slots.hold(visible)
        where = slice(0, len(ids_B))
        return self._run(ids_B[:, None], torch.zeros_like(ids_B), _Cache(slots, where, positions_B[:, None], visible))

    def _run(self, ids_BW: torch.Tensor, last_B: torch.Tensor, cache: _Cache) -> torch.Tensor:
        seen_T = torch.arange(cache.visible, device=ids_BW.device)
        mask = seen_T[None, None, None, :] <= cache.positions_BW[:, None, :, None]
        decoder = self.model.get_decoder()
        hidden_BWD = decoder(
            input_ids=ids_BW,
            attention_mask=mask,
            position_ids=cache.positions_BW,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        rows_B = torch.arange(len(ids_BW), device=ids_BW.device)
        return self.model.get_output_embeddings()(hidden_BWD[rows_B, last_B]).float()


class _Cache:
    """Some slots, each at its own positions: the part of transformers' Cache that attention
    uses."""

    is_compileable = False

    def __init__(self, slots: Slots, where: slice | torch.Tensor, positions_BW: torch.Tensor, visible: int):
        self.slots, self.where, self.positions_BW, self.visible = slots, where, positions_BW, visible
        slot_B = torch.arange(len(positions_BW), device=positions_BW.device) if isinstance(where, slice) else where
        self._at = (slot_B[:, None], slice(None), positions_BW)

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `key` and `value`, B H W D; return what may be seen, B H visible D."""
        keys, values = self.slots.keys_LSHTD[layer], self.slots.values_LSHTD[layer]
        keys[self._at], values[self._at] = key.transpose(1, 2), value.transpose(1, 2)
        return keys[:, :, : self.visible][self.where], values[:, :, : self.visible][self.where]

    def get_seq_length(self, layer: int = 0) -> int:
        return self.visible
