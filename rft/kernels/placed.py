"""Where a prompt's queries, keys and values go, besides their slots (decoding.py)."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Placed:
    """Where `lay` also puts what it made of each token: place `place_N` of queries P (H G) D, and
    of keys and values 2 P H D."""

    place_N: torch.Tensor
    q_PHD: torch.Tensor
    kv_2PHD: torch.Tensor
