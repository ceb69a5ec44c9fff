"""Every kernel compiles to machine code of a real chip, without one: its tensor cores in use,
within its shared memory and its registers.

The interpreter takes much that the compiler refuses, so this is what says that the GPU path can
start at all. An H100 each time; with the slow tests also an A100, an L4 and both Blackwells, and
shapes whose rows lie on no 16 bytes.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from rft.kernels.tiles import Tiles, tiles_for

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1",
    reason="needs Triton, and not its interpreter",
)
KERNELS = ("statistics", "finish", "slab_gradient")
TENSOR_CORES = {80: "mma.sync", 89: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma", 120: "mma.sync"}
SHARED_MEMORY = {80: 166_912, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs

    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))


def compiled(name: str, chip: int, dtype: torch.dtype, aligned: bool = True) -> tuple[Any, Tiles]:
    """As the launcher in rft/kernels/fused.py would have it: `aligned` when D and N are multiples
    of 16."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from rft.kernels import fused, programs

    kernel, tiles = getattr(programs, name), tiles_for(dtype, SHARED_MEMORY[chip])
    element = {torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]
    types = {"hidden": f"*{element}", "weight": f"*{element}", "slab_NC": f"*{element}", "ids_N": "*i64"}
    types |= dict.fromkeys(("scale", "clip_low", "clip_high"), "fp32")
    constants = {"TILE_N": tiles.n, "TILE_V": tiles.v, "TILE_D": tiles.d, "EVEN_D": aligned, "GROUP": 16, "ROWS": 0}
    constants |= {"PRECISION": "tf32x3" if dtype == torch.float32 else "tf32", "WITH_ENTROPY": True}
    constants |= fused.FINISH if name == "finish" else {}
    signature, attributes = {}, {}
    for index, parameter in enumerate(kernel.params):
        key = parameter.name
        is_number_a_token = key.endswith(("_N", "_SN"))
        signature[key] = (
            "constexpr" if parameter.is_constexpr else types.get(key, "*fp32" if is_number_a_token else "i32")
        )
        if signature[key].startswith("*") or (aligned and key in ("N", "D", "C", "first_v")):
            attributes[(index,)] = [["tt.divisibility", 16]]
    fixed = {key: constants[key] for key, kind in signature.items() if kind == "constexpr"}
    source = ASTSource(kernel, signature=signature, constexprs=fixed, attrs=attributes)
    options = {"num_warps": fused.FINISH["num_warps"] if name == "finish" else tiles.warps, "num_stages": tiles.stages}
    return triton.compile(source, target=GPUTarget("cuda", chip, 32), options=options), tiles


def spilled_bytes(kernel: Any, path: Path) -> int:
    """Registers that did not fit, by the word of the assembler that Triton brings."""
    import triton

    path.write_text(kernel.asm["ptx"], encoding="utf-8")
    chip = re.findall(r"\.target (\w+)", kernel.asm["ptx"])[0]
    assembler = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    printed = subprocess.run(
        [assembler, "--gpu-name", chip, "-v", "-o", os.devnull, path], capture_output=True, text=True, check=True
    ).stderr
    return int(re.findall(r"(\d+) bytes spill stores", printed)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_for_an_h100(name: str, tmp_path: Path) -> None:
    kernel, _ = compiled(name, 90, torch.bfloat16)
    assert "cubin" in kernel.asm
    assert kernel.metadata.shared <= SHARED_MEMORY[90]
    assert ("wgmma.mma_async" in kernel.asm["ptx"]) == (name != "finish")
    assert spilled_bytes(kernel, tmp_path / "kernel.ptx") <= 128


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("chip", [80, 89, 90, 100, 120])
@pytest.mark.parametrize("name", KERNELS)
def test_for_every_chip(name: str, chip: int, dtype: torch.dtype) -> None:
    for aligned in (True, False) if chip == 90 else (True,):  # each compilation takes a second or two
        kernel, _ = compiled(name, chip, dtype, aligned)
        assert kernel.metadata.shared <= SHARED_MEMORY[chip]
        if name != "finish" and not (chip == 100 and dtype == torch.float32):
            assert TENSOR_CORES[chip] in kernel.asm["ptx"]
