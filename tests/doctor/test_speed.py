"""`rft doctor speed`: what is counted as work, against PyTorch's own counter; and the verb, on a
real small policy."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, LlamaConfig

from flows import cli
from flows.cli.doctor.speed import _threads
from rft.doctor import machine, speed
from rft.doctor.capacity import shape_of
from rft.doctor.hours import Typical
from rft.doctor.machine import Limits, Work
from rft.errors import UserError
from rft.sampling.engine import Engine
from tests import small_policy, tiny_recipe
from tests.sick_agents import BASELINE, FEW, ROLLOUT, TRAIN, settings

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 900, "max_position_embeddings": 256,
}  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "BUDGET_S", 0.2)
    monkeypatch.setattr(machine, "READ_BYTES", {"cpu": 2**22})
    monkeypatch.setattr(machine, "SECONDS", 0.02)


# -- what counts as work ---------------------------------------------------------------------------
def eager(told: Any) -> Any:
    """PyTorch counts no operations of the fused attention on a CPU."""
    return AutoModelForCausalLM.from_config(told, attn_implementation="eager")


@pytest.mark.parametrize("tied", [True, False])
def test_reading_is_counted_as_pytorch_counts_it(tied: bool):
    """Attention is counted by the half that is seen; PyTorch counts the whole square."""
    told = LlamaConfig(**SIZES, tie_word_embeddings=tied)
    shape, network = shape_of(told), eager(told)
    rows, prompt = 3, 40
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.zeros(rows, prompt, dtype=torch.long), logits_to_keep=1)
    unseen = rows * 3 * 2 * 64 * prompt**2
    read, _ = speed.work(shape, prompt, rows, 5, 4)
    assert read.flop == pytest.approx(counter.get_total_flops() - unseen, rel=0.01)
    weights = network.num_parameters() - (0 if tied else told.vocab_size * 64)  # embeddings are looked up
    assert read.read == 4 * weights


def test_saying_is_counted_token_by_token():
    told = LlamaConfig(**SIZES)
    shape, network = shape_of(told), eager(told)
    rows, prompt, written = 2, 30, 4
    flop = 0
    for number in range(1, written + 1):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            begun = network(torch.zeros(rows, prompt + number - 1, dtype=torch.long), use_cache=True)
            before = counter.get_total_flops()
            network(torch.zeros(rows, 1, dtype=torch.long), past_key_values=begun.past_key_values)
            flop += counter.get_total_flops() - before
    _, write = speed.work(shape, prompt, rows, written, 4)
    assert write.flop == pytest.approx(flop, rel=0.01)
    attended = sum(prompt + number for number in range(1, written + 1))
    assert write.read == written * 4 * (network.num_parameters() - 900 * 64) + rows * attended * 2 * 3 * 2 * 16 * 4


def test_the_higher_floor_is_what_a_machine_can_do_at_most():
    limits = Limits(flops=100.0, bytes_per_s=10.0)
    assert Work(flop=200.0, read=5.0).floor_s(limits) == 2.0
    assert Work(flop=50.0, read=70.0).floor_s(limits) == 7.0
    assert speed.Rate("read", 30, 4.0, Work(200.0, 5.0), 1).share(limits) == 0.5


# -- measuring -------------------------------------------------------------------------------------
@pytest.mark.slow
def test_limits_are_those_of_this_machine():
    found = machine.limits(CPU, torch.float32, seconds=0.1)
    assert 1e9 < found.flops < 1e14
    assert 1e8 < found.bytes_per_s < 1e13
    before = torch.get_num_threads()
    assert 1 in machine.threads(0.01)
    assert torch.get_num_threads() == before


def test_rows_and_tokens_are_as_many_as_fit_the_time(monkeypatch: pytest.MonkeyPatch):
    network = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES))
    shape = shape_of(network.config)
    engine = Engine(network, speed.Endless(), CPU)  # type: ignore[arg-type]
    monkeypatch.setattr(speed, "BUDGET_S", 1e9)  # on a busy machine the real one would be too short
    read, write = speed.sampling(engine, shape, 100, 16, seed=0, new=12)
    assert (read.rows, read.tokens, write.tokens) == (16, 1600, 16 * 11)
    monkeypatch.setattr(speed, "BUDGET_S", 1e-9)
    read, write = speed.sampling(engine, shape, 100, 16, seed=0, new=12)
    assert (read.rows, read.tokens, write.tokens) == (1, 100, 1)
    with pytest.raises(UserError, match=r"prompts of 255 tokens fill the model's 256 positions"):
        speed.sampling(engine, shape, 255, 16, seed=0)


def test_a_server_has_a_speed_of_its_own(tmp_path: Path):
    server = {"kind": "vllm", "url": "http://127.0.0.1:1", "model": "m"}
    params = settings(tiny_recipe.make(tmp_path), policy={"model": "some/model", "server": server})
    with pytest.raises(UserError, match=r"--set policy\.server=null"):
        speed.measure(speed.Setup(lambda: params))


def test_another_number_of_threads_is_named_where_it_is_faster():
    def found(by_threads: dict[int, float]) -> Any:
        return speed.Found(
            "m",
            1,
            "cpu",
            "float32",
            4,
            Limits(1.0, 1.0),
            by_threads,
            "FastForward",
            "float32",
            (),
            Typical(1, 2),
            1,
            {},
        )

    assert _threads(found({1: 10.0, 2: 20.0, 4: 8.0})) == ["Products are 2.5 times as fast with policy.threads: 2."]
    assert _threads(found({1: 10.0, 2: 8.4, 4: 8.0})) == ["Products are 1.2 times as fast with policy.threads: 1."]
    assert _threads(found({1: 1.0, 2: 8.4, 4: 8.0})) == []
    assert _threads(found({})) == []


# -- the verb --------------------------------------------------------------------------------------
@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with the tiny recipe and a small policy, as far as the verb looks."""
    recipe = tiny_recipe.make(tmp_path)
    model = small_policy.save(*small_policy.build(recipe, structured=False), tmp_path / "model")
    written = {
        "recipe": {"path": "tiny"}, "gate": tiny_recipe.gate(), "examples": FEW, "rollout": ROLLOUT, "train": TRAIN,
        "baseline": BASELINE, "policy": {"model": str(model), "device": "cpu"}, "traffic": {"file": "params.yaml"},
    }  # fmt: skip
    for file, text in {"dvc.yaml": "stages: {}\n", ".dvc/config": "", "params.yaml": yaml.safe_dump(written)}.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    who = ("-c", "user.name=a", "-c", "user.email=a@localhost")
    for command in (("init", "-q"), ("add", "params.yaml"), (*who, "commit", "-qm", "start")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "limits", partial(machine.limits, seconds=0.1))
    monkeypatch.setattr(machine, "threads", partial(machine.threads, 0.02))
    monkeypatch.setattr(speed, "BUDGET_S", 0.5)
    return tmp_path


@pytest.mark.slow
def test_the_verb_draws_a_table_or_json(place: Path, capsys: pytest.CaptureFixture[str]):
    before = sorted(path for path in place.rglob("*") if ".git" not in path.parts)
    assert cli.main(["doctor", "speed", "--json"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report["rates"].keys() == {"read", "say", "learn"}
    for rate in report["rates"].values():
        assert rate["tokens_per_s"] == pytest.approx(rate["tokens"] / rate["seconds"])
        assert min(rate["arithmetic_s"], rate["memory_s"]) > 0
    assert report["forward"] == "FastForward"
    assert report["hours"].keys() == {"baseline", "prompt", "train", "challenger"}
    assert "[speed] sampling\n[speed] learning\n" in printed.err
    assert cli.main(["doctor", "speed", "--set", "train.weights=full"]) == 0
    table = capsys.readouterr().out
    assert "saying" in table
    assert "GFLOP/s" in table
    assert table.splitlines()[-1].startswith("a run       about ")
    assert sorted(path for path in place.rglob("*") if not {".git", "__pycache__"} & {*path.parts}) == [
        path for path in before if "__pycache__" not in path.parts
    ]


@pytest.mark.slow
def test_what_cannot_be_measured_is_an_error(place: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["doctor", "speed", "--set", "policy.model=null"]) == 2
    assert "rft stage run policy" in capsys.readouterr().err
    assert cli.main(["doctor", "speed", "--set", "train.stepz=8"]) == 2
    assert "Did you mean 'steps'?" in capsys.readouterr().err
