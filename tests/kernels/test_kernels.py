"""The kernels against their plain references, forward and backward, in Triton's interpreter.

The interpreter is chosen when Triton is first imported, so the tests that need it run in one
process of their own: this file again, with TRITON_INTERPRET=1. There the tiles are 16 wide and a
slab 32, so that inputs of a few dozen cross every border. Compiled: test_kernels_compile.py. On a
GPU: tests/gpu.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rft
from rft import kernels
from rft.errors import UserError
from rft.kernels import chunked, reference
from tests.kernel_cases import ROUNDED, Case, agree

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreter = pytest.mark.skipif(not INTERPRETED, reason="runs in the process that test_in_the_interpreter starts")
here = pytest.mark.skipif(INTERPRETED, reason="needs no interpreter")
triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton on this platform")


# -- the plain reference, and what every path refuses ----------------------------------------------
@here
def test_the_reference_is_the_definition() -> None:
    """Token by token in double precision, and its gradient by finite differences."""
    one = Case(5, 6, 9)
    logprobs_N, entropy_N = kernels.linear_logprobs(one.hidden_ND, one.weight_VD, one.ids_N, 0.7)
    assert entropy_N is not None
    for n in range(5):
        p_V = torch.softmax(one.weight_VD.double() @ one.hidden_ND[n].double() / 0.7, 0)
        assert logprobs_N[n].item() == pytest.approx(p_V[one.ids_N[n]].log().item(), abs=1e-5)
        assert entropy_N[n].item() == pytest.approx(-(p_V * p_V.log()).sum().item(), abs=1e-5)


@here
def test_entropy_is_only_watched() -> None:
    one = Case(3, 4, 5)
    _, entropy_N = kernels.linear_logprobs(*one.leaves(), one.ids_N)
    assert entropy_N is not None
    assert not entropy_N.requires_grad
    assert kernels.linear_logprobs(one.hidden_ND, one.weight_VD, one.ids_N, with_entropy=False)[1] is None


@here
def test_what_cannot_be_computed_is_refused() -> None:
    one = Case(3, 4, 5)
    wrong: Any
    for wrong, says in (
        ((one.hidden_ND[0], one.weight_VD, one.ids_N), r"\(N, D\) and \(V, D\)"),
        ((one.hidden_ND, one.weight_VD[:, :3], one.ids_N), r"\(N, D\) and \(V, D\)"),
        ((one.hidden_ND, one.weight_VD[:0], one.ids_N), "above 0"),
        ((one.hidden_ND, one.weight_VD, one.ids_N[:2]), "one entry per token"),
        ((one.hidden_ND, one.weight_VD, one.ids_N.int()), "torch.int64"),
        ((one.hidden_ND, one.weight_VD, one.ids_N, 0.0), "temperature 0.0"),
        ((one.hidden_ND, one.weight_VD, one.ids_N, float("nan")), "temperature nan"),
    ):
        with pytest.raises(UserError, match=says):
            kernels.linear_logprobs(*wrong)


@here
def test_only_the_gpu_path_needs_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rft, "kernels", kernels)  # so that what is imported anew here is gone afterwards
    for name in [name for name in sys.modules if name.startswith("rft.kernels")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    anew = importlib.import_module("rft.kernels")
    assert anew.linear_logprobs(torch.ones(2, 3), torch.ones(4, 3), torch.tensor([0, 3]))[0].shape == (2,)
    monkeypatch.setattr(anew, "_on_a_gpu", lambda _: True)
    with pytest.raises(UserError, match="needs Triton"):
        anew.linear_logprobs(torch.ones(2, 3), torch.ones(4, 3), torch.tensor([0, 3]))


@here
def test_tiles_fit_the_chip_that_they_are_for() -> None:
    from rft.kernels.tiles import TABLE, tiles_for

    for dtype, table in TABLE.items():
        assert list(table) == sorted(table, reverse=True)
        for shared_memory in (48_000, 65_536, 101_376, 166_912, 232_448):
            tiles = tiles_for(dtype, shared_memory)
            assert tiles.shared_bytes(dtype.itemsize) <= shared_memory
            assert min(tiles.n, tiles.v, tiles.d) >= 16


# -- in chunks -------------------------------------------------------------------------------------
@pytest.fixture(params=[(0, 1, 1, 4096), (90, 40, 20, 16), (400, 100, 47, 4096), (10_000, 5000, 4000, 16)], ids=str)
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slabs of a word, of two, of a few, and of all, of which none, some and all are kept."""
    for name, size in zip(("CHUNK", "SLAB", "PART", "TOKENS"), request.param, strict=True):
        monkeypatch.setattr(chunked, name, size)


@here
@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunks_equal_the_reference(dtype: torch.dtype) -> None:
    one = Case(37, 24, 45, dtype)
    # In bfloat16 a logit is rounded before softmax, as the model's own head does it.
    tolerance = ROUNDED if dtype == torch.float32 else 0.05
    agree([x.to(dtype) for x in one.scored(chunked)], [x.to(dtype) for x in one.scored(reference)], tolerance)


@here
@pytest.mark.usefixtures("sizes")
def test_chunks_where_one_of_the_two_learns() -> None:
    one = Case(37, 24, 45)
    for hidden, weight in ((True, False), (False, True), (False, False)):
        found = []
        for path in (chunked, reference):
            hidden_ND, weight_VD = one.hidden_ND.clone(), one.weight_VD.clone()
            hidden_ND.requires_grad_(hidden), weight_VD.requires_grad_(weight)
            logprobs_N, entropy_N = path.linear_logprobs(hidden_ND, weight_VD, one.ids_N)
            if hidden or weight:
                (logprobs_N * one.grad_logprob_N).sum().backward()
            gradients = [tensor.grad for tensor in (hidden_ND, weight_VD) if tensor.grad is not None]
            found.append([logprobs_N, entropy_N, *gradients])
        agree(*found)


@here
@pytest.mark.usefixtures("sizes")
def test_a_gradient_in_place_is_added_to_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as autograd's, also for a weight that is used elsewhere, and with the graph used
    twice."""
    monkeypatch.setattr(chunked, "fits", lambda *_: False)
    one, found = Case(37, 24, 45), []
    for in_place in (True, False):
        hidden_ND, weight_VD = one.leaves()
        for _ in range(2):
            logprobs_N, _ = kernels.linear_logprobs(hidden_ND, weight_VD, one.ids_N, in_place=in_place)
            loss = (logprobs_N * one.grad_logprob_N).sum() + weight_VD.square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
        found.append([hidden_ND.grad, weight_VD.grad])
    agree(*found)


@here
def test_an_id_outside_the_vocabulary_is_an_error_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "fits", lambda *_: False)
    one = Case(3, 4, 5)
    for wrong in (-1, 5):
        with pytest.raises((IndexError, RuntimeError)):
            kernels.linear_logprobs(one.hidden_ND, one.weight_VD, torch.tensor([0, 1, wrong]))


@here
@pytest.mark.parametrize("learns", [False, True])
def test_many_logits_are_never_whole(monkeypatch: pytest.MonkeyPatch, learns: bool) -> None:
    """All that forward and backward hold at a time is little more than a chunk, and with a frozen
    head than a slab: of 128,000 logits. The weight's gradient is in place."""
    from rft.trainer.activations import Held

    for name, size in (("CHUNK", 32_000), ("SLAB", 6400), ("PART", 640)):
        monkeypatch.setattr(chunked, name, size)
    one = Case(64, 4, 2000)
    head = torch.nn.Linear(4, 2000, bias=False).requires_grad_(learns)
    head.weight.grad = torch.zeros(2000, 4) if learns else None
    hidden_ND = one.hidden_ND.clone().requires_grad_()
    with Held(head) as held:
        kernels.linear_logprobs(hidden_ND, head.weight, one.ids_N, in_place=True)[0].sum().backward()
    assert held.most <= 4 * (32_000 if learns else 6400) * 2


# -- in the interpreter ----------------------------------------------------------------------------
@pytest.mark.slow
@here
@triton
def test_in_the_interpreter() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.fixture(scope="module")
def fused() -> Iterator[Any]:
    from triton.runtime import interpreter as runtime

    from rft.kernels import fused

    def widened(handle: Any) -> Any:
        """The interpreter keeps bfloat16 as the upper half of a float32, and its product takes the
        bits for integers."""
        data = handle.data
        return (data.astype("uint32") << 16).view("float32") if data.dtype == "uint16" else data

    def create_dot(self: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
        return runtime.TensorHandle(widened(a) @ widened(b) + d.data, d.dtype.scalar)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime.InterpreterBuilder, "create_dot", create_dot)
        patch.setattr(fused, "SLAB", 32)
        patch.setattr(fused, "LEAST_SLAB", 32)
        patch.setattr(fused, "NUM_SPLITS", 2)
        patch.setattr(fused, "GROUP", 2)
        yield fused


SHAPES = [(1, 1, 1), (3, 16, 16), (16, 32, 32), (17, 20, 33), (35, 18, 50), (2, 50, 97)]


@interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("N", "D", "V"), SHAPES)
def test_values_and_gradients_equal_the_reference(fused: Any, N: int, D: int, V: int, dtype: torch.dtype) -> None:
    one = Case(N, D, V, dtype)
    agree(one.scored(fused), one.scored(reference))


@interpreter
@settings(max_examples=8)
@given(N=st.integers(1, 20), D=st.integers(1, 24), V=st.integers(1, 50), seed=st.integers(0, 99))
def test_any_shape(fused: Any, N: int, D: int, V: int, seed: int) -> None:
    one = Case(N, D, V, seed=seed)
    agree(one.scored(fused), one.scored(reference))


@interpreter
def test_no_tokens(fused: Any) -> None:
    one = Case(0, 4, 5)
    assert all(not result.any() for result in one.scored(fused))
    assert one.scored(fused)[3].shape == (5, 4)


@interpreter
@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_what_is_frozen_gets_no_gradient(fused: Any, frozen: str) -> None:
    one = Case(6, 8, 40)
    wanted = one.scored(reference)
    hidden_ND, weight_VD = one.leaves()
    (hidden_ND if frozen == "hidden" else weight_VD).requires_grad_(False)
    (fused.linear_logprobs(hidden_ND, weight_VD, one.ids_N, 0.7)[0] * one.grad_logprob_N).sum().backward()
    assert (hidden_ND.grad is None) == (frozen == "hidden")
    assert (weight_VD.grad is None) == (frozen == "weight")
    index = 3 if frozen == "hidden" else 2
    agree([(hidden_ND, weight_VD)[index - 2].grad], [wanted[index]])


@interpreter
def test_a_gradient_that_is_one_number_for_all(fused: Any) -> None:
    """sum() hands back one number that only looks like N of them."""
    one = Case(6, 8, 40)
    found, wanted = [], []
    for path, grads in ((fused, found), (reference, wanted)):
        leaves = one.leaves(path)
        path.linear_logprobs(*leaves, one.ids_N, with_entropy=False)[0].sum().backward()
        grads += [leaf.grad for leaf in leaves]
    agree(found, wanted)


@interpreter
def test_extreme_logits(fused: Any) -> None:
    """A token whose chosen id is hopeless, one that is certain, and a gap of hundreds between
    tiles, in both directions."""
    weight_VD = torch.zeros(64, 2)
    weight_VD[3, 0], weight_VD[60, 0] = 300.0, -300.0
    hidden_ND = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    ids_N = torch.tensor([3, 60, 60])
    found, wanted = (path.linear_logprobs(hidden_ND, weight_VD, ids_N) for path in (fused, reference))
    assert found[0].tolist() == pytest.approx([0.0, -600.0, 0.0], abs=1e-3)
    agree(list(found), list(wanted))


@interpreter
@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")
def test_what_is_no_number_shows(fused: Any) -> None:
    one = Case(4, 8, 20)
    one.hidden_ND[1, 3] = float("nan")
    ids_N = one.ids_N.clone()
    ids_N[2], ids_N[3] = 20, -1
    logprobs_N, entropy_N = fused.linear_logprobs(one.hidden_ND, one.weight_VD, ids_N)
    assert logprobs_N.isnan().tolist() == [False, True, True, True]
    assert entropy_N.isnan().tolist() == [False, True, False, False]


@interpreter
def test_equal_inputs_give_equal_bytes(fused: Any) -> None:
    one = Case(20, 16, 40, torch.bfloat16)
    assert all(torch.equal(a, b) for a, b in zip(one.scored(fused), one.scored(fused), strict=True))


@interpreter
def test_views_are_read_as_they_are(fused: Any) -> None:
    one = Case(6, 8, 20)
    wanted = one.scored(fused)
    one.hidden_ND, one.weight_VD = one.hidden_ND.T.contiguous().T, one.weight_VD.T.contiguous().T
    assert all(torch.equal(a, b) for a, b in zip(one.scored(fused), wanted, strict=True))


@interpreter
def test_types_and_devices_that_the_kernels_cannot_read(fused: Any) -> None:
    one = Case(3, 4, 5)
    for hidden_ND, weight_VD in (
        (one.hidden_ND.half(), one.weight_VD.half()),
        (one.hidden_ND.bfloat16(), one.weight_VD),
    ):
        with pytest.raises(UserError, match="load the model in one"):
            fused.linear_logprobs(hidden_ND, weight_VD, one.ids_N)
    with pytest.raises(UserError, match="one device"):
        fused.linear_logprobs(one.hidden_ND, one.weight_VD, one.ids_N.to("meta"))


@interpreter
def test_a_slab_is_bounded(fused: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "SLAB", 8192)
        patch.setattr(fused, "LEAST_SLAB", 1024)
        assert [fused.slab_width(N, 152_000) for N in (1, 16_384, 32_768, 10_000_000)] == [8192, 8192, 4096, 1024]
        assert fused.slab_width(4096, 5000) == 5120
