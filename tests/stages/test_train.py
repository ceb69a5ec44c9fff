"""Stage train: it learns, it counts what it leaves out, and a kill changes nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rft import config, reports
from rft.errors import ConfigError, RftError, UserError
from rft.models import embedded, weights
from rft.trainer.collapse import Guard
from rft.trainer.learner import Learner
from rft.trainer.metrics import Watch
from tests import scripted_windows as windows
from tests import small_policy
from tests.ladder import again, inside, params, run, stage_hashes

pytestmark = pytest.mark.usefixtures("ready_server")


def test_every_sampled_rollout_is_trained_on_or_left_out_with_a_reason(ladder: Path):
    table = pq.read_table(ladder / "data/train/rollouts.parquet").to_pylist()
    assert len([row for row in table if row["left_out"] != "validation"]) == 4 * 4 * 4
    report = reports.read(reports.TrainReport, ladder / "data/train/report.json")
    assert report.rollouts == len(table) == sum(row["trained"] for row in table) + sum(report.left_out.values())
    assert all(row["trained"] != bool(row["left_out"]) for row in table)
    assert all(
        len(row["ids"]) == len(row["loss_mask"]) and sum(row["loss_mask"]) == len(row["logprobs"]) for row in table
    )


@pytest.mark.slow
def test_an_example_that_comes_twice_in_a_step_is_rolled_out_anew(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    """Three examples, four a step: one comes twice in every step, and its rollouts must not be
    copies."""
    shutil.copytree(ladder / "data", tmp_path / "data")
    shutil.rmtree(tmp_path / "data/train")
    rows = (tmp_path / "data/examples/train.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "data/examples/train.jsonl").write_text("".join(rows[:3]))
    with inside(tmp_path):
        run("train", params(ladder_recipe, train={"steps": 2, "validation_examples": 0}))
    table = pq.read_table(tmp_path / "data/train/rollouts.parquet").to_pylist()
    assert len({row["example_id"] for row in table}) == 3
    assert len({row["rollout_id"] for row in table}) == len(table) == 2 * 4 * 4


def test_metrics_have_no_wall_times_and_one_line_a_step(ladder: Path):
    lines = [json.loads(line) for line in (ladder / "data/train/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert not any("time" in key or "_s" in key.split("/")[-1][-2:] for line in lines for key in line)
    assert "validation/reward" in lines[-1]


def test_sampler_and_trainer_agree(ladder: Path):
    lines = [json.loads(line) for line in (ladder / "data/train/metrics.jsonl").read_text().splitlines()]
    seen = [line["logprob_mismatch"] for line in lines if "logprob_mismatch" in line]
    assert seen
    assert max(seen) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("killed_after", [1, 3])
def test_a_training_that_was_cut_off_ends_the_same(
    ladder: Path, tmp_path: Path, ladder_recipe: Path, killed_after: int, monkeypatch: pytest.MonkeyPatch
):
    learn, learned = Learner.update, []

    def dies(self: Learner, samples: Any, num_rollouts: int, lr: float) -> dict[str, float]:
        if len(learned) == killed_after:
            raise KeyboardInterrupt
        learned.append(1)
        return learn(self, samples, num_rollouts, lr)

    shutil.copytree(ladder / "data", tmp_path / "data")
    shutil.rmtree(tmp_path / "data/train")
    with inside(tmp_path):
        monkeypatch.setattr(Learner, "update", dies)
        with pytest.raises(KeyboardInterrupt):
            run("train", params(ladder_recipe))
        monkeypatch.undo()
        assert not (tmp_path / "data/train/report.json").exists()
        run("train", params(ladder_recipe))
    assert stage_hashes(tmp_path, "train") == stage_hashes(ladder, "train")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "dpo", "best_of_n"])
def test_algorithms_of_other_kinds_go_through_the_same_loop(
    ladder: Path, tmp_path: Path, ladder_recipe: Path, algorithm: str
):
    again(
        ladder,
        tmp_path,
        ladder_recipe,
        "train",
        train={"algorithm": algorithm, "steps": 2, "validation_examples": 0, "lr": 1e-3},
    )
    report = reports.read(reports.TrainReport, tmp_path / "data/train/report.json")
    assert (report.trained, report.algorithm) == (True, algorithm)
    table = pq.read_table(tmp_path / "data/train/rollouts.parquet").to_pylist()
    assert all(row["trained"] != bool(row["left_out"]) for row in table)


@pytest.mark.slow
@pytest.mark.parametrize(("most", "shared"), [(4096, True), (64, False)])
def test_packing_says_how_much_it_shared_and_warns_once_when_nothing(
    ladder: Path, tmp_path: Path, ladder_recipe: Path, most: int, shared: bool, capsys: pytest.CaptureFixture[str]
):
    """R21: it was asked for, did nothing, and nobody was told."""
    shutil.copytree(ladder / "data", tmp_path / "data")
    shutil.rmtree(tmp_path / "data/train")
    prompt = tmp_path / "data/prompt/prompt.json"
    # longer than 64 tokens
    prompt.write_text(json.dumps(json.loads(prompt.read_text()) | {"system": "value of " * 40}))
    with inside(tmp_path):
        run(
            "train",
            params(
                ladder_recipe, train={"packing": True, "steps": 2, "validation_examples": 0, "microbatch_tokens": most}
            ),
        )
    lines = [json.loads(line) for line in (tmp_path / "data/train/metrics.jsonl").read_text().splitlines()]
    shares = [line["packing/shared_share"] for line in lines if line["samples/trained"]]
    assert shares
    assert all((share > 0.5) == shared for share in shares)
    warned = [line for line in capsys.readouterr().out.splitlines() if "WARNING" in line]
    assert len(warned) == (0 if shared else 1)
    assert shared or "train.microbatch_tokens is 64. Raise it to at least" in warned[0]


@pytest.mark.slow
def test_the_best_weights_are_kept_and_patience_ends_a_run(
    ladder: Path, tmp_path: Path, ladder_recipe: Path, monkeypatch: pytest.MonkeyPatch
):
    """With a learning rate that destroys the policy, the first validation stays the best. Who
    watches for that is asleep here."""
    monkeypatch.setattr(Guard, "saw", lambda *_: "")
    monkeypatch.setattr(Guard, "checked", lambda *_: "")
    changes = {
        "lr": 0.3,
        "steps": 6,
        "validate_every": 1,
        "keep": "best",
        "stop": {"patience": 2},
        "checkpoint_every": 1,
    }
    again(ladder, tmp_path, ladder_recipe, "train", train=changes)
    report = reports.read(reports.TrainReport, tmp_path / "data/train/report.json")
    lines = [json.loads(line) for line in (tmp_path / "data/train/metrics.jsonl").read_text().splitlines()]
    rewards = [line["validation/reward"] for line in lines]
    assert report.kept_step == 1 + rewards.index(max(rewards))
    assert report.steps == report.kept_step + 2 < 6
    assert "stopped early: 2 validations" in report.reason


@pytest.mark.slow
@pytest.mark.parametrize("again_best", [False, True])
def test_the_best_weights_are_those_that_the_checkpoint_names(
    ladder: Path, tmp_path: Path, ladder_recipe: Path, again_best: bool, monkeypatch: pytest.MonkeyPatch
):
    """R22. Where sampling cannot be repeated, a run that goes on may see other validation rewards
    than before the kill, which came after its best."""
    changes = {"keep": "best", "validate_every": 1, "checkpoint_every": 2}
    went_on = {3: 0.7 if again_best else 0.1, 4: 0.2}
    update, validated, steps = Learner.update, Watch.validated, iter(range(4))
    shutil.copytree(ladder / "data", tmp_path / "whole/data", ignore=shutil.ignore_patterns("train"))
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")

    def validations(rewards: dict[int, float]) -> None:
        order = iter(rewards.values())
        monkeypatch.setattr(Watch, "validated", lambda self, section, reward: validated(self, section, next(order)))

    with inside(tmp_path / "whole"):
        validations({1: 0.5, 2: 0.4} | went_on)
        run("train", params(ladder_recipe, train=changes))

    def dies(self: Learner, *args: Any) -> dict[str, float]:
        if next(steps) == 3:  # not `num_updates`: a step whose groups all agree makes none
            raise KeyboardInterrupt
        return update(self, *args)

    with inside(tmp_path / "killed"):
        validations({1: 0.5, 2: 0.4, 3: 0.9})
        with monkeypatch.context() as patch:
            patch.setattr(Learner, "update", dies)
            with pytest.raises(KeyboardInterrupt):
                run("train", params(ladder_recipe, train=changes))
        assert {path.name for path in Path(".rft/progress").glob("train-*/best/*")} == {"000001", "000003"}
        validations(went_on)
        run("train", params(ladder_recipe, train=changes))
    report = reports.read(reports.TrainReport, tmp_path / "killed/data/train/report.json")
    assert report.kept_step == (3 if again_best else 1)
    assert report == reports.read(reports.TrainReport, tmp_path / "whole/data/train/report.json")


@pytest.mark.slow
def test_sampling_ahead_of_the_learner(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    folder = again(ladder, tmp_path, ladder_recipe, "train", train={"lag": 1}, rollout={"deterministic": False})
    assert reports.read(reports.TrainReport, folder / "data/train/report.json").trained
    times = json.loads((folder / "data/train/timing.json").read_text())["steps"]
    assert [row["step"] for row in times] == [1, 2, 3, 4]
    lines = [json.loads(line) for line in (folder / "data/train/metrics.jsonl").read_text().splitlines()]
    assert all(0 <= line["lag"] <= 1 for line in lines)


def test_deterministic_mode_refuses_what_depends_on_the_clock(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    with pytest.raises(ConfigError, match=r"train\.lag = 1.*rollout\.deterministic: false"):
        again(ladder, tmp_path, ladder_recipe, "train", train={"lag": 1})


@pytest.mark.slow
def test_lora_trains_an_adapter_of_this_base(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    again(ladder, tmp_path, ladder_recipe, "train", train={"weights": "lora", "lr": 1e-2, "lora": {"r": 4, "alpha": 8}})
    report = reports.read(reports.TrainReport, tmp_path / "data/train/report.json")
    assert (report.trained, report.weights) == (True, "lora")
    base, _ = weights.load(str(ladder / "data/policy/model"), config.Policy(), small_policy.device())
    before = weights.weights_sha256(base)
    merged = weights.with_weights(base, "lora", tmp_path / "data/train/weights", small_policy.device())
    assert weights.weights_sha256(merged) != before


@pytest.mark.slow
def test_an_adapter_of_another_base_is_refused(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    again(
        ladder,
        tmp_path,
        ladder_recipe,
        "train",
        train={"weights": "lora", "steps": 1, "lr": 1e-2, "lora": {"r": 4, "alpha": 8}},
    )
    chat = small_policy.build(ladder_recipe)[1]
    wider = config.Architecture(**small_policy.ARCHITECTURE.model_dump() | {"hidden": 96})
    other = embedded.build_model(wider, chat.tokenizer, 0)
    with pytest.raises(UserError, match="another base model"):
        weights.with_weights(other, "lora", tmp_path / "data/train/weights", small_policy.device())


@pytest.mark.parametrize("readiness", ["not yet", "suspect"])
def test_a_baseline_that_is_not_ready_trains_nothing(ladder: Path, tmp_path: Path, ladder_recipe: Path, readiness: str):
    shutil.copytree(ladder / "data", tmp_path / "data")
    path = tmp_path / "data/baseline/report.json"
    report = reports.read(reports.BaselineReport, path)
    reports.write(report.model_copy(update={"readiness": readiness, "reason": "nothing is ever solved"}), path)
    with inside(tmp_path):
        run("train", params(ladder_recipe))
    written = reports.read(reports.TrainReport, tmp_path / "data/train/report.json")
    assert (written.trained, written.weights, written.path) == (False, "none", None)
    assert f"'{readiness}': nothing is ever solved" in written.reason


def test_a_missing_file_names_the_stage_that_writes_it(tmp_path: Path, ladder_recipe: Path):
    with inside(tmp_path), pytest.raises(RftError, match="rft stage"):
        run("train", params(ladder_recipe))


@pytest.mark.slow
def test_an_adapter_is_the_same_bytes_in_every_process(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    again(
        ladder,
        tmp_path,
        ladder_recipe,
        "train",
        train={"weights": "lora", "steps": 1, "lr": 1e-2, "lora": {"r": 4, "alpha": 8}},
    )
    targets = json.loads((tmp_path / "data/train/weights/adapter_config.json").read_text())["target_modules"]
    assert targets == sorted(targets)


@pytest.mark.slow
def test_grpo_learns_otherwise_than_dr_grpo(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    again(ladder, tmp_path, ladder_recipe, "train", train={"algorithm": "grpo"})
    report = reports.read(reports.TrainReport, tmp_path / "data/train/report.json")
    assert (report.trained, report.algorithm) == (True, "grpo")
    assert report.sha256 != reports.read(reports.TrainReport, ladder / "data/train/report.json").sha256


@pytest.mark.slow
def test_full_weights_learn_with_activations_computed_again(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    """The learner is then its own sampler, which must not drop its keys and values for that."""
    full = {"weights": "full", "steps": 2, "lr": 1e-4, "gradient_checkpointing": True}
    again(ladder, tmp_path, ladder_recipe, "train", train=full)
    report = reports.read(reports.TrainReport, tmp_path / "data/train/report.json")
    assert (report.trained, report.weights) == (True, "full")


@pytest.mark.slow
def test_an_adapter_on_a_champions_adapter_is_saved_whole(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    lora = {"weights": "lora", "steps": 2, "lr": 1e-2, "lora": {"r": 4, "alpha": 8}}
    first = again(ladder, tmp_path / "first", ladder_recipe, "train", train=lora)
    second = tmp_path / "second"
    shutil.copytree(first / "data", second / "data")
    shutil.copytree(first / "data/train/weights", second / "data/champion/weights")
    champion = reports.Champion(version=1, weights="lora", weights_path="weights")
    reports.write(champion, second / "data/champion/champion.json")
    shutil.rmtree(second / "data/train")
    with inside(second):
        run("train", params(ladder_recipe, train=lora | {"seed": 1}))
        run("challenger", params(ladder_recipe, train=lora | {"seed": 1}))
    report = reports.read(reports.TrainReport, second / "data/train/report.json")
    assert (report.trained, report.weights) == (True, "full")
    arms = reports.read(reports.ChallengerReport, second / "data/challenger/report.json").arms
    served = reports.read(reports.ChallengerReport, ladder / "data/challenger/report.json").arms[0]
    assert len({served.weights_sha256, arms[0].weights_sha256, arms[2].weights_sha256}) == 3
    base, _ = weights.load(str(second / "data/policy/model"), config.Policy(), small_policy.device())
    whole = weights.with_weights(base, "full", second / "data/train/weights", small_policy.device())
    assert weights.weights_sha256(whole) == arms[2].weights_sha256


@pytest.mark.slow
def test_in_bfloat16_an_adapter_on_a_champions_adapter_is_one_adapter(
    ladder: Path, tmp_path: Path, ladder_recipe: Path
):
    """Merged weights would lose it. What the challenger's arm plays with is what was learned."""
    lora = {"weights": "lora", "steps": 2, "lr": 1e-2, "lora": {"r": 4, "alpha": 8}, "validation_examples": 0}
    bfloat16 = {"dtype": "bfloat16"}
    first = again(ladder, tmp_path / "first", ladder_recipe, "train", train=lora, policy=bfloat16)
    second = tmp_path / "second"
    shutil.copytree(first / "data", second / "data")
    shutil.copytree(first / "data/train/weights", second / "data/champion/weights")
    champion = reports.Champion(version=1, weights="lora", weights_path="weights")
    reports.write(champion, second / "data/champion/champion.json")
    shutil.rmtree(second / "data/train")
    with inside(second):
        run("train", params(ladder_recipe, train=lora | {"seed": 1}, policy=bfloat16))
        run("challenger", params(ladder_recipe, train=lora | {"seed": 1}, policy=bfloat16))
    report = reports.read(reports.TrainReport, second / "data/train/report.json")
    assert (report.trained, report.weights) == (True, "lora")
    assert json.loads((second / "data/train/weights/adapter_config.json").read_text())["r"] == 8
    arms = reports.read(reports.ChallengerReport, second / "data/challenger/report.json").arms
    base, _ = weights.load(str(second / "data/policy/model"), config.Policy(dtype="bfloat16"), small_policy.device())
    whole = weights.with_weights(base, "lora", second / "data/train/weights", small_policy.device())
    assert weights.weights_sha256(whole) == arms[2].weights_sha256 != arms[0].weights_sha256


@pytest.mark.slow
def test_a_champion_of_another_base_model_is_refused(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    shutil.copytree(ladder / "data", tmp_path / "data", ignore=shutil.ignore_patterns("train", "challenger", "gate"))
    champion = reports.Champion(version=1, run="r-1", weights="lora", weights_path="weights", base_sha256="0" * 64)
    reports.write(champion, tmp_path / "data/champion/champion.json")
    with inside(tmp_path), pytest.raises(UserError, match="another base model"):
        run("train", params(ladder_recipe))


# -- supervised ------------------------------------------------------------------------------------
IMITATES = {"algorithm": "supervised", "group_size": 8, "steps": 6, "weights": "full", "lr": 1e-3}
"""On top of the ladder's settings, whose groups are of 4."""


def imitate(ladder: Path, folder: Path, recipe: Path, *, cut: int | None = None, **train: Any) -> reports.TrainReport:
    """Examples and training once more, with other settings. `cut`: stop before this update."""
    shutil.copytree(ladder / "data", folder / "data")
    shutil.rmtree(folder / "data/train")
    settings = params(recipe, train=IMITATES | train)
    with inside(folder):
        if settings.train.source == "traffic":
            windows.take_in(windows.write(Path("data/inbox/window.jsonl"), windows.rows(50)), settings.traffic)
            run("traffic", settings)
        run("examples", settings)
        if cut is not None:
            with pytest.MonkeyPatch.context() as patch:
                update = Learner.update

                def dies(self: Learner, *given: Any) -> dict[str, float]:
                    if self.num_updates == cut:
                        raise KeyboardInterrupt
                    return update(self, *given)

                patch.setattr(Learner, "update", dies)
                with pytest.raises(KeyboardInterrupt):
                    run("train", settings)
        run("train", settings)
    return reports.read(reports.TrainReport, folder / "data/train/report.json")


@pytest.mark.slow
def test_demonstrations_are_imitated_and_a_cut_changes_nothing(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    changes = {"source": "demonstrations", "supervised": {"demonstrations": 40}}
    report = imitate(ladder, tmp_path / "whole", ladder_recipe, **changes)
    assert (report.trained, report.source, report.imitated) == (True, "demonstrations", 40)
    assert report.reason == "6 steps of supervised (demonstrations) on full weights"
    rows = [json.loads(line) for line in (tmp_path / "whole/data/train/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert all({"loss", "nll", "entropy", "grad_norm", "lr"} <= set(row) for row in rows)
    assert "validation/reward" in rows[-1]
    assert imitate(ladder, tmp_path / "cut", ladder_recipe, cut=3, **changes) == report
    assert stage_hashes(tmp_path / "cut", "train") == stage_hashes(tmp_path / "whole", "train")


@pytest.mark.slow
def test_confirmed_answers_of_production_are_imitated(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    report = imitate(ladder, tmp_path, ladder_recipe, source="traffic", steps=3)
    assert (report.trained, report.source, report.imitated) == (True, "traffic", 50)
    assert report.reason == "3 steps of supervised (traffic) on full weights"
    losses = [json.loads(line)["nll"] for line in (tmp_path / "data/train/metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_best_of_n_may_name_what_it_imitates(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    folders = [
        again(ladder, tmp_path / str(n), ladder_recipe, "train", train={"algorithm": "best_of_n", "steps": 1} | named)
        for n, named in enumerate(({}, {"source": "rollouts"}))
    ]
    hashes = [stage_hashes(folder, "train") for folder in folders]
    assert hashes[0]["weights"] == hashes[1]["weights"]
    assert reports.read(reports.TrainReport, folders[1] / "data/train/report.json").source == "rollouts"


@pytest.mark.slow
def test_the_best_rollouts_that_passed_are_imitated_in_rounds(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    changes = {"source": "rollouts", "supervised": {"rounds": 2, "examples": 6}, "checkpoint_every": 1}
    report = imitate(ladder, tmp_path / "whole", ladder_recipe, **changes)
    table = pq.read_table(tmp_path / "whole/data/train/rollouts.parquet").to_pylist()
    sampled = [row for row in table if row["left_out"] != "validation"]
    assert {row["step"] for row in sampled} == {1, 4}
    assert len(sampled) == 2 * 6 * 8
    trained = [row for row in sampled if row["trained"]]
    assert trained
    assert all(row["solved"] for row in trained)
    assert len({(row["step"], row["example_id"]) for row in trained}) == len(trained)
    assert {row["left_out"] for row in sampled} <= {"", "not passed", "not the best of its group"}
    assert imitate(ladder, tmp_path / "cut", ladder_recipe, cut=4, **changes) == report
    assert stage_hashes(tmp_path / "cut", "train") == stage_hashes(tmp_path / "whole", "train")


@pytest.mark.parametrize(
    ("train", "told"),
    [
        ({"algorithm": "supervised"}, "algorithm supervised needs source"),
        ({"source": "traffic"}, "source = traffic is not read by algorithm dr_grpo"),
        ({"algorithm": "best_of_n", "source": "traffic"}, "source = traffic is not read by algorithm best_of_n"),
        (IMITATES | {"source": "traffic", "group_size": 4}, "group_size is not read with source traffic"),
        (
            {"algorithm": "supervised", "source": "traffic", "supervised": {"rounds": 2}},
            "rounds is read with source rollouts only",
        ),
        ({"algorithm": "supervised", "source": "traffic", "lag": 1}, "lag is not read by algorithm supervised"),
        ({"warm_start": {"steps": 3}}, "warm_start has no effect here"),
        ({"when_not_ready": "warm_start"}, r"needs warm_start\.lr and warm_start\.steps"),
        ({"supervised": {"other_weight": 0.1}}, "supervised is not read by algorithm dr_grpo"),
    ],
)
def test_a_setting_that_nothing_reads_is_refused(train: dict[str, Any], told: str):
    with pytest.raises(ValueError, match=told):
        config.Train(**train)


def not_yet(folder: Path) -> None:
    path = folder / "data/baseline/report.json"
    report = reports.read(reports.BaselineReport, path)
    reports.write(report.model_copy(update={"readiness": "not yet", "reason": "as said"}), path)


@pytest.mark.slow
def test_a_run_that_is_not_ready_goes_on_with_a_warm_start(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    """An adapter is then merged: it belongs to the warm-started model, not to the base."""
    shutil.copytree(ladder / "data", tmp_path / "data")
    shutil.rmtree(tmp_path / "data/train")
    not_yet(tmp_path)
    warm = {"demonstrations": 32, "steps": 3, "batch": 8, "lr": 1e-3}
    changes = {"when_not_ready": "warm_start", "warm_start": warm, "steps": 2, "weights": "lora", "lr": 1e-2}
    settings = params(ladder_recipe, train=changes)
    with inside(tmp_path):
        run("examples", settings)
        run("train", settings)
    report = reports.read(reports.TrainReport, tmp_path / "data/train/report.json")
    assert (report.trained, report.weights, report.source) == (True, "full", "demonstrations")
    assert (report.warm_start_steps, report.imitated) == (3, 32)
    assert report.reason.startswith("after 3 steps of warm start, 2 steps of dr_grpo on lora weights")


@pytest.mark.slow
def test_what_is_there_already_is_imitated_before_an_agent_is_ready(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    not_yet(shutil.copytree(ladder, tmp_path / "before", ignore=shutil.ignore_patterns(".rft")))
    changes = {"source": "demonstrations", "supervised": {"demonstrations": 40}, "steps": 2}
    assert imitate(tmp_path / "before", tmp_path / "after", ladder_recipe, **changes).trained
