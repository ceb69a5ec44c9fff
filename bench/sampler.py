"""How fast is the in-process sampler, beside transformers' own `generate`?

Both run the embedded policy's architecture. The policy is built as the ICD-10 recipe builds it,
with its tokenizer, and is not trained, because weights do not matter for speed. 64 dialogues of
that recipe, 60 to 140 tokens long, whose next turn is the answer, get 32 tokens each at temperature
1; no token ends a turn. `generate` decodes the same rows with a dynamic and with a static cache,
and the faster one counts. Both are given their prompts' tokens. The sides take turns, so that other
work of the machine affects both, and a ratio compares neighbors.

Ours runs in deterministic mode (a barrier per turn) and in free mode, both as in a stage, with an
event loop in its own thread. The deterministic mode has the bound. Then the groups of RFT are
measured: 8 dialogues 8 times each, whose prompts our sampler computes once. `generate` computes
them 8 times.

The sampler's log-probabilities are compared with the model's forward over the whole sequence, after
the weights have changed under the engine.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from bench.measure import Figure, Part
from bench.rollouts import median_limits
from rft.rollouts.loop_thread import LoopThread

ROOT = Path(__file__).resolve().parents[1]
ROWS = 64
NEW = 32
GROUP = 8
PROMPT = range(60, 141)
ROUNDS = 15
THREADS = (2, 1)


def speed_sampler(args: list[str]) -> Figure:
    """Tokens/s of the in-process sampler over those of transformers' generate, same 64 rows (>= 3,
    2 threads). `ROUNDS` repeats, in turns."""
    import torch

    from rft import config
    from rft.models import weights

    rounds = int(args[0]) if args else ROUNDS
    params = config.load(ROOT / "params.yaml")
    before = torch.get_num_threads()
    weights.prepare_process(params.policy)
    network, openings, chat = _policy(params)
    parts = []
    try:
        for threads in THREADS:
            torch.set_num_threads(threads)
            parts += _at(threads, network, chat, openings, rounds)
        parts.insert(
            1,
            Part(
                "log-probability, largest difference from the trainer's",
                _mismatch(network, chat, openings),
                at_most=1e-4,
            ),
        )
    finally:
        torch.set_num_threads(before)
    return Figure(
        tuple(parts), {"rows": ROWS, "new_tokens": NEW, "prompt_tokens": _lengths(chat, openings), "rounds": rounds}
    )


FIGURES = {"speed_sampler": speed_sampler}


def _at(threads: int, network: Any, chat: Any, openings: Sequence[Any], rounds: int) -> Iterator[Part]:
    from rft.sampling.engine import Engine

    device = next(network.parameters()).device
    barrier, free = (
        Engine(network, chat, device, deterministic=True),
        Engine(network, chat, device, deterministic=False),
    )
    group = [one for one in openings[: ROWS // GROUP] for _ in range(GROUP)]
    sides: dict[str, Callable[[], None]] = {
        "generate, dynamic cache": lambda: _generate(network, chat, openings, None),
        "ours": lambda: _ours(barrier, openings),
        "generate, static cache": lambda: _generate(network, chat, openings, "static"),
        "ours, free mode": lambda: _ours(free, openings),
        "generate, groups of 8": lambda: _generate(network, chat, group, None),
        "ours, groups of 8": lambda: _ours(barrier, group),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    with _tokens_alone(chat, openings):
        for n in range(rounds + 1):
            for name, play in sides.items():
                began = time.perf_counter()
                play()
                if n:  # the first warms up
                    seconds[name].append(time.perf_counter() - began)
    theirs = min(
        ("generate, dynamic cache", "generate, static cache"), key=lambda name: statistics.median(seconds[name])
    )
    bound = 3.0 if threads == THREADS[0] else None
    label = f"{threads} thread{'s' if threads > 1 else ''}"
    yield _ratio(f"ours over generate, deterministic mode, {label}", seconds[theirs], seconds["ours"], bound)
    yield _ratio(f"ours over generate, free mode, {label}", seconds[theirs], seconds["ours, free mode"])
    yield _ratio(
        f"ours over generate, groups of 8, deterministic mode, {label}",
        seconds["generate, groups of 8"],
        seconds["ours, groups of 8"],
    )
    for name, spent in seconds.items():
        speeds = sorted(ROWS * NEW / one for one in spent)
        yield Part(
            f"{name}, {label}", statistics.median(speeds), "tokens/s", low=speeds[0], high=speeds[-1], n=len(speeds)
        )


def _ratio(name: str, theirs: Sequence[float], ours: Sequence[float], at_least: float | None = None) -> Part:
    """Return the median of the rounds' ratios, with a 95 % interval from their order. It assumes
    nothing about their distribution."""
    ratios = [one / other for one, other in zip(theirs, ours, strict=True)]
    low, high = median_limits(ratios)
    middle = statistics.median(ratios)
    return Part(name, middle, "times", at_least=at_least, low=low, high=high, n=len(ratios))


# -- the sides -------------------------------------------------------------------------------------
def _ours(engine: Any, openings: Sequence[Any]) -> None:
    async def play() -> None:
        dialogues = engine.open(openings, [(0, n) for n in range(len(openings))], 1.0, 512)
        turns = await asyncio.gather(*(one.sample(NEW, 600.0) for one in dialogues))
        assert all(len(one.ids) == NEW for one in turns)
        for one in dialogues:
            one.close()

    with LoopThread() as loop_thread:
        loop_thread.run(play())


def _generate(network: Any, chat: Any, openings: Sequence[Any], cache: str | None) -> None:
    import torch

    ids, mask = _padded(chat, openings)
    with torch.inference_mode():
        found = network.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=NEW,
            max_new_tokens=NEW,
            cache_implementation=cache,
            pad_token_id=chat.tokenizer.pad_token_id,
            disable_compile=True,
        )
    assert found.shape[1] == ids.shape[1] + NEW


def _padded(chat: Any, openings: Sequence[Any]) -> tuple[Any, Any]:
    """Pad on the left, as `generate` requires."""
    import torch

    rows = [chat.prompt_ids(list(one.messages)) for one in openings]
    width = max(map(len, rows))
    ids = torch.tensor([[chat.tokenizer.pad_token_id] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


@contextmanager
def _tokens_alone(chat: Any, openings: Sequence[Any]) -> Iterator[None]:
    """Make every turn run to its limit, and render prompts beforehand: `generate` is given ids, so
    ours is, too."""
    ends, render = chat.end_ids, chat.prompt_ids
    rendered = {repr(list(one.messages)): render(list(one.messages)) for one in openings}
    chat.end_ids, chat.prompt_ids = (), lambda messages, *_: list(rendered[repr(messages)])
    try:
        yield
    finally:
        chat.end_ids, chat.prompt_ids = ends, render


def _mismatch(network: Any, chat: Any, openings: Sequence[Any]) -> float:
    """Return the largest difference between the engine's log-probabilities and a plain forward of
    the model, after an optimizer step that the engine was not told about."""
    import torch

    from rft.sampling.engine import Engine

    engine = Engine(network, chat, next(network.parameters()).device, deterministic=True)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    ids, _ = _padded(chat, openings)
    network(ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    session = engine.session(openings, [(1, n) for n in range(len(openings))], 1.0, 512)
    prompts = [list(row) for row in session.pending]
    worst = 0.0
    for prompt, one in zip(prompts, session.sample(list(range(len(openings))), NEW), strict=True):
        with torch.no_grad():
            logprobs = torch.log_softmax(
                network(torch.tensor([[*prompt, *one.ids]])).logits[0, len(prompt) - 1 : -1], -1
            )
        own = logprobs.gather(1, torch.tensor(one.ids)[:, None]).squeeze(1)
        worst = max(worst, (own - torch.tensor(one.logprobs)).abs().max().item())
    return worst


# -- the policy ------------------------------------------------------------------------------------
def _policy(params: Any) -> tuple[Any, list[Any], Any]:
    """Return (model, openings, chat): the recipe's own policy before its warm start, and dialogues
    in which the answer comes next."""
    from rft import recipe
    from rft.chat.renderer import Chat
    from rft.models import embedded
    from rft.stages import policy
    from rft.tools.signatures import schemas
    from rft.types import Opening

    ours = recipe.load(params.recipe.model_copy(update={"path": str(ROOT / params.recipe.path)}))
    section, tools = params.policy, schemas(ours)
    demonstrations = list(ours.demonstrations(section.warm_start.demonstrations, section.seed))
    tokenizer = embedded.build_tokenizer(
        policy.texts(demonstrations), tools, ours.vocabulary(), section.architecture.merges
    )
    network, chat = embedded.build_model(section.architecture, tokenizer, section.seed).eval(), Chat(tokenizer, tools)
    told = [Opening(tuple(messages[:-1])) for messages in demonstrations]
    return (
        network,
        list(islice((one for one in told if len(chat.prompt_ids(list(one.messages))) in PROMPT), ROWS)),
        chat,
    )


def _lengths(chat: Any, openings: Sequence[Any]) -> list[int]:
    lengths = sorted(len(chat.prompt_ids(list(one.messages))) for one in openings)
    return [lengths[0], round(statistics.median(lengths)), lengths[-1]]
