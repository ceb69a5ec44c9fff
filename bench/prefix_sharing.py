"""Compares the tokens that are computed with the distinct ones, for prompts with common tokens.

There are groups of 8 rollouts, and four prompts per session, of 100 to 4,000 tokens. Their first
half is the stage's instructions, the same for all. Sampling: two sessions of one engine, first with
a slot for each of the 32 rollouts, then with 12 slots, where rows leave and others take their
slots. The tokens of all prefill calls are counted. Training: the same groups, each with 64 sampled
tokens, in microbatches of 16,384 tokens. The places of the rows are counted. Each count is divided
by the number of distinct tokens: those that differ in themselves or in what comes before them.

The model is a small random Llama. Its log-probabilities are compared with a plain forward over one
whole dialogue per length.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from bench.measure import Figure, Part

LENGTHS = (100, 200, 350, 500, 1000, 2000, 4000)
GROUP, PROMPTS, SESSIONS, SLOTS = 8, 4, 2, 12
NEW, MICROBATCH = 64, 16_384
VOCABULARY = 500


def prefix_sharing(args: list[str]) -> Figure:
    """Tokens that prefill and training compute, over the distinct ones: prompts of 100 to 4,000
    tokens in groups of 8 (<= 1.05)."""
    model = _model()
    parts: list[Part] = []
    for length in LENGTHS:
        for slots in (None, SLOTS):
            ratio, difference = _sampling(model, length, slots)
            where = f"{slots} slots" if slots else "a slot each"
            parts.append(Part(f"prefill, {length} tokens, {where}", ratio, "times", at_most=1.05))
            if slots is None:
                parts.append(Part(f"log-probability, {length} tokens, off by", difference, "nats", at_most=1e-4))
        parts.append(Part(f"training, {length} tokens", _training(length), "times", at_most=1.05))
        print(f"[prefix_sharing] {length} tokens: {[part.value for part in parts[-4:]]}", file=sys.stderr)
    ratios = [part.value for part in parts if part.unit == "times" and part.value is not None]
    return Figure((Part("worst of all", max(ratios), "times", n=len(ratios), at_most=1.05), *parts))


FIGURES = {"prefix_sharing": prefix_sharing}


def _model() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "vocab_size": VOCABULARY,
    }
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 8192}
    return LlamaForCausalLM(LlamaConfig(**shape, **heads, initializer_range=0.1)).eval()


def _prompts(length: int, session: int) -> list[list[int]]:
    """Make the session's prompts, each as often as its group is large."""
    import numpy as np

    shared = np.random.default_rng(length).integers(2, VOCABULARY, length // 2).tolist()
    draw = np.random.default_rng((length, session))
    own = [draw.integers(2, VOCABULARY, length - length // 2).tolist() for _ in range(PROMPTS)]
    return [shared + rest for rest in own for _ in range(GROUP)]


def _sampling(model: Any, length: int, slots: int | None) -> tuple[float, float]:
    """Return the computed tokens divided by the distinct ones, and the largest difference of one
    dialogue's log-probabilities from the model's own."""
    import torch

    from rft.sampling.engine import Engine, Session

    class _NoEnd:
        end_ids: frozenset[int] = frozenset()

        def read(self, ids: Sequence[int], turn: int) -> tuple[str, Any]:
            return "", None

    engine = Engine(model, _NoEnd(), torch.device("cpu"), slots=slots)  # type: ignore[arg-type]
    engine.forward = counting = _Counting(engine.forward)  # type: ignore[assignment]
    told: list[list[int]] = []
    difference = 0.0
    for number in range(SESSIONS):
        prompts = _prompts(length, number)
        told += prompts
        session = Session(engine, prompts, [(number, row) for row in range(len(prompts))], 1.0, 8192)
        for row in range(len(prompts)):
            session.begin(row, 2 + row % 3)  # rows leave one after another
        while session.speaking:
            for row in session.advance():
                sampled = session.take_turn(row)
                session.close(row)
                if row == 1:
                    difference = max(difference, _difference(model, prompts[row], sampled))
    return counting.computed / _distinct(told), difference


class _Counting:
    def __init__(self, inner: Any):
        self.whole, self.computed = inner, 0

    def begun(self) -> _Counting:
        self.inner = self.whole.begun()
        return self

    def prefill(self, slots: Any, feeds: Sequence[Any]) -> Any:
        self.computed += sum(len(feed.ids) for feed in feeds)
        return self.inner.prefill(slots, feeds)

    def step(self, *given: Any) -> Any:
        return self.inner.step(*given)


def _difference(model: Any, prompt: list[int], turn: Any) -> float:
    import torch

    ids = torch.tensor([[*prompt, *turn.ids]])
    with torch.no_grad():
        logprobs = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    own = logprobs.gather(1, torch.tensor(turn.ids)[:, None]).squeeze(1)
    return (own - torch.tensor(turn.logprobs)).abs().max().item()


def _training(length: int) -> float:
    from rft.trainer.packing import microbatches, width

    samples = list(_samples(length))
    rows = [row for batch in microbatches(samples, MICROBATCH, math.inf) for row in batch]
    return sum(map(width, rows)) / _distinct([sample.read for sample in samples])


def _samples(length: int) -> Iterator[Any]:
    import numpy as np

    from rft.trainer.packing import TrainingSample

    draw = np.random.default_rng(length)
    for prompt in _prompts(length, 0):
        answer = draw.integers(2, VOCABULARY, NEW).tolist()
        yield TrainingSample(prompt + answer, [False] * length + [True] * NEW, [0.0] * NEW, 1.0)


def _distinct(rows: Sequence[Sequence[int]]) -> int:
    """Count tokens that differ in themselves or in what comes before: nodes of a prefix tree."""
    tree: dict[int, Any] = {}
    count = 0
    for row in rows:
        at = tree
        for token in row:
            if token not in at:
                at[token] = {}
                count += 1
            at = at[token]
    return count
