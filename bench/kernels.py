"""The figures of the GPU kernels: time and memory of the policy-gradient loss.

Forward and backward are measured, from the hidden states on. Four implementations give the same
numbers:
  - ours (rft.kernels.linear_logprobs);
  - the plain reference beside it;
  - torch.compile of that reference;
  - liger-kernel's LigerFusedLinearGRPOLoss (0.8.5), which streams over chunks of the vocabulary,
    with all rollouts in one of its own chunks (its fastest) and no KL.
All get the same inputs in bfloat16, rollouts of 1024 tokens, and Dr. GRPO's normalizer, so that
Liger's loss is ours. Before anything is timed, each rival's loss is compared with ours. Only ours
and the reference also give entropies, which is part of their time. The head trains, or is frozen as
under LoRA.

The limit of the work. Ours costs 8 N V D operations (6 with a frozen head) and reads 2 (N + V) D
bytes a few times. That is hundreds of operations per byte, so the tensor cores are the limit at
every shape here, not the memory. Each time is therefore also given as a share of the matmul rate
that torch.mm reaches on this GPU, beside the ridge. Memory limits only one kernel, `finish`, which
reads a row of the head per token: its share of the measured copy bandwidth has the bound of 0.85.

Peak memory is what a call allocates at its peak beyond inputs and returned gradients.

ARGS=tiles times other tiles than those of rft/kernels/tiles.py at one shape; the best one may go
into that table. ARGS=quick measures two shapes.
"""

from __future__ import annotations

import gc
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from bench.measure import Figure, Part, unmeasured

SHAPES = [
    (4096, 1024, 32_000),
    (8192, 1024, 151_936),
    (8192, 2560, 151_936),
    (4096, 4096, 128_256),
    (16_384, 4096, 151_936),
]
QUICK = [(4096, 1024, 32_000), (8192, 2560, 151_936)]
VOCABULARIES = (32_000, 64_000, 128_256, 151_936)
LENGTH = 1024
CLIP = 0.2
LIGER = "0.8.5"
REPEATS, WARM_UP = 15, 3
RIVALS = ("plain", "compiled", "liger")
NO_GPU = "not measured on this device: no CUDA GPU"
Way = Callable[["Batch"], Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """N tokens in rollouts of LENGTH. `hidden_ND` gets gradients, and `weight_VD` unless frozen."""

    hidden_ND: Any
    weight_VD: Any
    ids_N: Any
    old_N: Any
    advantage_B: Any


def kernel_time(args: list[str]) -> Figure:
    """Fused policy-gradient loss on a GPU: speed over plain torch, torch.compile and liger-kernel,
    share of the matmul rate."""
    if not _has_gpu():
        return unmeasured("speed over the fastest rival", NO_GPU)
    if "tiles" in args:
        return _tiles()
    shapes = QUICK if "quick" in args else SHAPES
    rate, bandwidth = matmul_rate(), copy_bandwidth()
    parts = [Part("torch.mm", rate / 1e12, "TFLOP/s"), Part("copy", bandwidth / 1e9, "GB/s")]
    notes: dict[str, Any] = {"device": _device(), "ridge_flop_per_byte": rate / bandwidth}
    for frozen in (False, True):
        for shape in shapes:
            name = f"{_describe(shape)}{', frozen head' if frozen else ''}"
            batch = made(*shape, frozen)
            times = {
                way: _or_reason(lambda way=way, batch=batch: milliseconds(lambda: WAYS[way](batch), batch))
                for way in ("ours", *RIVALS)
            }
            spans = _by_kernel(batch)
            notes[name] = {"ms_by_kernel": spans}
            parts += [
                Part(f"{way}: {name}", value, "ms", n=REPEATS)
                for way, value in times.items()
                if not isinstance(value, str)
            ]
            parts += _faster(name, times)
            operations = (6 if frozen else 8) * shape[0] * shape[1] * shape[2]
            ours = times["ours"]
            assert isinstance(ours, float), ours
            parts.append(Part(f"share of the matmul rate: {name}", operations / (ours / 1e3) / rate, "share"))
            # Below 64 MB the caches serve it, and its few microseconds are mostly its start.
            bound = 0.85 if shape[0] * shape[1] >= 2**24 else None
            parts.append(
                Part(
                    f"finish, share of copy bandwidth: {name}",
                    _finish_share(batch, spans, bandwidth),
                    "share",
                    at_least=bound,
                )
            )
            print(f"[kernel_time] {name}: {times}", file=sys.stderr)
            del batch
    worst = min(
        (part for part in parts if part.unit == "x" and part.value is not None), key=lambda part: part.value or 0.0
    )
    return Figure(
        (Part("speed over the fastest rival, worst shape", worst.value, "x", at_least=1.0, n=REPEATS), *parts), notes
    )


def kernel_memory(args: list[str]) -> Figure:
    """Peak memory of the fused policy-gradient loss beyond inputs and gradients: its growth with
    the vocabulary, and the rivals' peaks."""
    if not _has_gpu():
        return unmeasured("growth of peak memory, V 32 k to 152 k", NO_GPU)
    N, D = (4096, 1024) if "quick" in args else (8192, 2560)
    peaks: dict[int, dict[str, float | str]] = {}
    for V in VOCABULARIES:
        batch = made(N, D, V)
        peaks[V] = {
            way: _or_reason(lambda way=way, batch=batch: peak_mib(lambda: WAYS[way](batch), batch))
            for way in ("ours", *RIVALS)
        }
        print(f"[kernel_memory] V={V}: {peaks[V]}", file=sys.stderr)
        del batch
    ours = [value for peak in peaks.values() if isinstance(value := peak["ours"], float)]
    assert len(ours) == len(VOCABULARIES), peaks
    # A few splits of the vocabulary more or less are a few numbers per token: below 1 %.
    parts = [
        Part(f"growth of peak memory, N={N} D={D}, V 32 k to 152 k", max(ours) / min(ours) - 1, "share", at_most=0.01)
    ]
    for V, peak in peaks.items():
        parts.append(Part(f"peak, V={V}", float(peak["ours"]), "MiB"))
        for rival in RIVALS:
            other = peak[rival]
            name = f"peak of {rival} over ours, V={V}"
            if isinstance(other, str):
                parts.append(Part(name, None, n=0, reason=other))
            else:
                parts.append(Part(name, other / float(peak["ours"]), "x", at_least=1.0))
    return Figure(tuple(parts), {"device": _device(), "peak_mib": {str(V): peak for V, peak in peaks.items()}})


FIGURES = {"kernel_time": kernel_time, "kernel_memory": kernel_memory}


# -- four ways -------------------------------------------------------------------------------------
def _loss(logprobs: Callable[..., Any], batch: Batch) -> Any:
    """Compute the clipped loss of Dr. GRPO from log-probabilities, one number per token."""
    import torch

    now_N, _ = logprobs(batch.hidden_ND, batch.weight_VD, batch.ids_N)
    ratio_N, advantage_N = torch.exp(now_N - batch.old_N), batch.advantage_B.repeat_interleave(LENGTH)
    return -torch.minimum(ratio_N * advantage_N, ratio_N.clamp(1 - CLIP, 1 + CLIP) * advantage_N).mean()


def _ours(batch: Batch) -> Any:
    from rft import kernels

    return _loss(kernels.linear_logprobs, batch)


def _plain(batch: Batch) -> Any:
    from rft.kernels import reference

    return _loss(reference.linear_logprobs, batch)


@cache
def _compiler() -> Any:
    import torch

    from rft.kernels import reference

    return torch.compile(reference.linear_logprobs, dynamic=False)


def _compiled(batch: Batch) -> Any:
    return _loss(_compiler(), batch)


def _liger(batch: Batch) -> Any:
    import torch
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss  # pyright: ignore[reportMissingImports]

    rollouts = len(batch.advantage_B)
    loss = LigerFusedLinearGRPOLoss(
        beta=0.0,
        use_ref_model=False,
        loss_type="dr_grpo",
        max_completion_length=LENGTH,
        chunk_size=rollouts,
        compiled=batch.hidden_ND.is_cuda,
    )
    shape = (rollouts, LENGTH)
    mask = torch.ones(shape, device=batch.hidden_ND.device)
    hidden = batch.hidden_ND.view(*shape, -1)
    return loss(
        hidden,
        batch.weight_VD,
        batch.ids_N.view(shape),
        mask,
        batch.advantage_B,
        old_per_token_logps=batch.old_N.view(shape),
    )[0]


WAYS: dict[str, Way] = {"ours": _ours, "plain": _plain, "compiled": _compiled, "liger": _liger}


def made(N: int, D: int, V: int, frozen: bool = False, device: str = "cuda", dtype: str = "bfloat16") -> Batch:
    """Make a batch: logits with a standard deviation of 4, and ratios on both sides of the clip.
    Half of the ids are drawn from the logits, the others at random."""
    import torch

    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    hidden_ND = torch.randn(N, D, device=device, dtype=kind).requires_grad_()
    weight_VD = (4 / D**0.5 * torch.randn(V, D, device=device)).to(kind).requires_grad_(not frozen)
    ids_N = torch.randint(V, (N,), device=device)
    with torch.no_grad():
        from rft.kernels import linear_logprobs

        best_N = torch.cat([(rows_nD @ weight_VD.T).argmax(-1) for rows_nD in hidden_ND.split(512)])
        ids_N = torch.where(torch.rand(N, device=device) < 0.5, best_N, ids_N)
        now_N, _ = linear_logprobs(hidden_ND, weight_VD, ids_N, with_entropy=False)
    old_N = now_N + 0.2 * torch.randn(N, device=device)
    return Batch(hidden_ND, weight_VD, ids_N, old_N, torch.randn(N // LENGTH, device=device))


def _or_reason(measure: Callable[[], float]) -> float | str:
    """Return a number, or the reason why a rival has none: it is not there or does not fit."""
    import torch

    try:
        return measure()
    except ImportError as error:
        return f"{error.name} is not installed here: pip install liger-kernel=={LIGER}"
    except torch.cuda.OutOfMemoryError:
        return "does not fit this GPU's memory"
    finally:
        torch.compiler.reset()  # after eight shapes it silently stops compiling a function
        gc.collect()
        torch.cuda.empty_cache()


def _faster(name: str, times: dict[str, float | str]) -> Iterator[Part]:
    ours = times["ours"]
    assert isinstance(ours, float), f"{name}: ours {ours}"
    for rival in RIVALS:
        other = times[rival]
        label = f"speed over {rival}: {name}"
        yield (
            Part(label, None, n=0, reason=other)
            if isinstance(other, str)
            else Part(label, other / ours, "x", at_least=1.0, n=REPEATS)
        )


# -- measuring -------------------------------------------------------------------------------------
@contextmanager
def _cleared(batch: Batch) -> Iterator[None]:
    batch.hidden_ND.grad = batch.weight_VD.grad = None
    yield
    batch.hidden_ND.grad = batch.weight_VD.grad = None


def _warm(way: Callable[[], Any], batch: Batch) -> None:
    """Warm up, so that everything is compiled, and compare the loss with ours: a rival must compute
    the same."""
    import torch

    wanted = _ours(batch).item()
    for _ in range(WARM_UP):
        with _cleared(batch):
            loss = way()
            loss.backward()
    assert abs(loss.item() - wanted) <= 2e-2 * (0.1 + abs(wanted)), f"the loss is {loss.item()}, ours {wanted}"
    torch.cuda.synchronize()


def milliseconds(way: Callable[[], Any], batch: Batch) -> float:
    """Return the median time of forward and backward, by the GPU's own clock. The L2 cache is
    overwritten before each."""
    import torch

    _warm(way, batch)
    cache = torch.empty(256 * 2**20, dtype=torch.int8, device="cuda")
    spans = []
    for _ in range(REPEATS):
        with _cleared(batch):
            cache.zero_()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            way().backward()
            end.record()
            torch.cuda.synchronize()
            spans.append(start.elapsed_time(end))
    return statistics.median(spans)


def peak_mib(way: Callable[[], Any], batch: Batch) -> float:
    """Return the peak memory of forward and backward, without what was there before and the
    returned gradients."""
    import torch

    _warm(way, batch)
    with _cleared(batch):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        way().backward()
        torch.cuda.synchronize()
        returned = sum(one.grad.nbytes for one in (batch.hidden_ND, batch.weight_VD) if one.grad is not None)
        return (torch.cuda.max_memory_allocated() - before - returned) / 2**20


def matmul_rate() -> float:
    """Return the operations per second of torch.mm in bfloat16, at a size that suits it."""
    import torch

    side = 8192
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * side**3 / _seconds(lambda: torch.mm(a, b))


def copy_bandwidth() -> float:
    """Return the bytes per second, read and written, of a copy of 2 GiB."""
    import torch

    source = torch.empty(2**31, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / _seconds(lambda: target.copy_(source))


def _seconds(call: Callable[[], Any]) -> float:
    import torch

    spans = []
    for repeat in range(WARM_UP + REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        spans += [start.elapsed_time(end) / 1e3] if repeat >= WARM_UP else []
    return statistics.median(spans)


def _by_kernel(batch: Batch) -> dict[str, float]:
    """Return the profiler's milliseconds of one call by the kernels' names, the longest first."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with _cleared(batch), profile(activities=[ProfilerActivity.CUDA]) as seen:
        _ours(batch).backward()
        torch.cuda.synchronize()
    spans = {event.key: event.self_device_time_total / 1e3 for event in seen.key_averages()}
    return dict(sorted(spans.items(), key=lambda item: -item[1]))


def _finish_share(batch: Batch, spans: dict[str, float], bandwidth: float) -> float:
    """Divide the bytes that `finish` must move (two rows per token, and each split's three numbers)
    by its time and the copy bandwidth."""
    from rft.kernels.fused import NUM_SPLITS

    (N, D), size = batch.hidden_ND.shape, batch.hidden_ND.element_size()
    return N * (2 * D * size + 12 * NUM_SPLITS) / (spans["finish"] / 1e3) / bandwidth


def _tiles() -> Figure:
    """Time other tiles than the table's, at one shape. A tile that the chip refuses says so."""
    import torch
    from triton.runtime.errors import OutOfResources

    from rft.kernels import fused
    from rft.kernels.tiles import Tiles

    batch = made(*QUICK[1])
    chosen, original = fused.tiles_on(batch.hidden_ND), fused.tiles_on
    found: dict[str, float | str] = {}
    sizes = [(128, 256, 64), (128, 128, 64), (128, 128, 32), (64, 256, 64), (256, 128, 64), (64, 128, 64), (64, 64, 32)]
    for n, v, d in sizes:
        for warps, stages in ((4, 3), (8, 3), (4, 4), (8, 4)):
            tiles = Tiles(n, v, d, warps, stages)
            fused.tiles_on = lambda _, tiles=tiles: tiles
            try:
                found[str(tiles)] = milliseconds(lambda: _ours(batch), batch)
            except OutOfResources as error:
                found[str(tiles)] = str(error)
            finally:
                fused.tiles_on = original
            print(f"[kernel_time] {tiles}: {found[str(tiles)]}", file=sys.stderr)
    times = {name: value for name, value in found.items() if isinstance(value, float)}
    best = min(times, key=lambda name: times[name])
    torch.cuda.synchronize()
    ours = milliseconds(lambda: _ours(batch), batch)
    return Figure(
        (Part(f"the table's tiles over the best, {best}", ours / times[best], "x", at_most=1.05),),
        {"chosen": str(chosen), "ms": found},
    )


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _device() -> str:
    import torch

    return torch.cuda.get_device_name()


def _describe(shape: tuple[int, int, int]) -> str:
    return "N={} D={} V={}".format(*shape)
