"""The search for a prompt: which candidates there are, what a race leaves, and that luck is not
called a gain."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from rft import recipe, reports
from rft.errors import ConfigError
from rft.reports import PromptSettings
from rft.sampling import policies
from rft.stages import prompt
from rft.types import Opening, ToolCall, ToolResult
from tests import sample_reports, small_policy, tiny_recipe
from tests.ladder import SECTIONS, inside, run
from tests.scripted_policy import CALL, Scripted, ScriptedDialogue

pytestmark = pytest.mark.usefixtures("ready_server")

SEED = PromptSettings(name="seed", system=" look it up", tool_defaults={"lookup": {"spaces": 0}}, max_turns=3)
PROMPTS = recipe.Prompts(
    seed=SEED,
    instructions={"seed": " look it up", "loud": " LOOK IT UP"},
    tool_defaults={"lookup": {"spaces": [0, 3]}},
    block_repeated_calls=[False, True],
    max_turns=[2, 3],
)


def test_every_knob_but_what_the_seed_has():
    assert list(prompt.knobs(SEED, PROMPTS, 8)) == [
        ("instruction", "loud"),
        ("lookup.spaces", 3),
        ("block_repeated_calls", True),
        ("max_turns", 2),
    ]


def test_a_seed_without_a_turn_limit_has_that_of_the_rollout():
    seed = SEED.model_copy(update={"max_turns": None})
    assert ("max_turns", 3) not in prompt.knobs(seed, PROMPTS, 3)
    assert ("max_turns", 3) in prompt.knobs(seed, PROMPTS, 8)
    assert prompt.apply(seed, PROMPTS, (("max_turns", 2),)).max_turns == 2


def test_a_candidate_changes_only_what_its_knobs_say():
    both = prompt.apply(SEED, PROMPTS, (("instruction", "loud"), ("lookup.spaces", 3)))
    assert both == SEED.model_copy(
        update={"name": "loud, lookup.spaces=3", "system": " LOOK IT UP", "tool_defaults": {"lookup": {"spaces": 3}}}
    )


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny recipe with prompts: a policy that never learned them races."""
    folder = tmp_path_factory.mktemp("search")
    ours = tiny_recipe.make(folder)
    (ours / "prompts.json").write_text(json.dumps(PROMPTS.model_dump()))
    network, chat = small_policy.build(ours)
    with inside(folder):
        settings = tiny_recipe.params(
            ours,
            **SECTIONS
            | {"policy": {"model": str(small_policy.save(network, chat, folder / "given"))}}
            | {"prompt": {"rounds": 3, "first_examples": 2, "k": 1, "confirm_k": 2, "search_share": 0.5}},
        )
        for stage in ("examples", "policy", "baseline"):
            run(stage, settings)
        measured(folder, readiness="ready")  # its scores are all 0, which is suspect
        run("prompt", settings)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"seed": {"name": "seed", "system": "", "max_turns": 4}},
            r"prompts\.json: seed\.max_turns asks for 4 turns, and rollout\.max_turns = 3",
        ),
        (
            {"seed": {"name": "seed", "system": ""}, "max_turns": [2, 5]},
            r"prompts\.json: max_turns asks for 5 turns, and rollout\.max_turns = 3",
        ),
    ],
)
def test_prompts_that_ask_for_more_turns_than_there_are_stop_the_stages_that_use_them(
    searched: Path, tmp_path: Path, changes: dict, says: str
):
    shutil.copytree(searched, tmp_path / "there")
    ours = tmp_path / "there/tiny"
    (ours / "prompts.json").write_text(json.dumps(changes))
    sections = SECTIONS | {"policy": {"model": str(searched / "given")}}
    with inside(tmp_path / "there"):
        for stage in ("baseline", "prompt"):
            # a policy that never learned makes a baseline that is suspect, which ends `prompt`
            # first
            measured(Path.cwd(), readiness="ready")
            with pytest.raises(ConfigError, match=says + ".* Set rollout.max_turns to at least"):
                run(stage, tiny_recipe.params(ours, **sections))
            run(stage, tiny_recipe.params(ours, **sections | {"rollout": SECTIONS["rollout"] | {"max_turns": 5}}))


@pytest.mark.slow
def test_a_champion_from_days_with_more_turns_is_refused_and_so_is_a_winner(searched: Path, tmp_path: Path):
    shutil.copytree(searched, tmp_path / "there")
    served = SEED.model_dump() | {"max_turns": 8}
    with inside(tmp_path / "there"):
        settings = tiny_recipe.params(
            tmp_path / "there/tiny", **SECTIONS | {"policy": {"model": str(searched / "given")}}
        )
        file = Path("data/champion/champion.json")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(reports.Champion().model_dump() | {"prompt": served}))
        with pytest.raises(
            ConfigError,
            match=r"champion\.json: prompt\.max_turns asks for 8 turns, and rollout\.max_turns = 3.* rft rollback",
        ):
            run("baseline", settings)
        file.unlink()
        Path("data/prompt/prompt.json").write_text(json.dumps(served))
        Path("data/train").mkdir()
        reports.write(
            reports.TrainReport(trained=False, reason="not asked for", weights="none"), Path("data/train/report.json")
        )
        for stage in ("train", "challenger"):
            with pytest.raises(
                ConfigError, match=r"data/prompt/prompt\.json: max_turns of 'seed' is 8, and rollout\.max_turns = 3"
            ):
                run(stage, settings)


def measured(folder: Path, **changes: str) -> None:
    """The baseline's report, changed."""
    path = folder / "data/baseline/report.json"
    reports.write(reports.read(reports.BaselineReport, path).model_copy(update=changes), path)


@pytest.mark.parametrize("readiness", ["not worth it", "suspect"])
def test_when_there_is_nothing_to_gain_no_rollout_is_spent(searched: Path, tmp_path: Path, readiness: str):
    shutil.copytree(searched / "data", tmp_path / "data")
    measured(tmp_path, readiness=readiness, reason="all 24 scores are 0")
    with inside(tmp_path):
        run("prompt", tiny_recipe.params(searched / "tiny", **SECTIONS))
    report = reports.read(reports.PromptReport, tmp_path / "data/prompt/report.json")
    assert (report.winner, report.found, report.num_rollouts, report.candidates) == (SEED, False, 0, [])
    assert f"'{readiness}': all 24 scores are 0" in report.reason


def test_the_seed_prompt_is_always_in(searched: Path):
    report = reports.read(reports.PromptReport, searched / "data/prompt/report.json")
    first = report.candidates[0]
    assert (first.settings.name, first.eliminated, first.round) == ("seed", False, 3)
    assert len(report.candidates) >= 5


def test_no_gain_found_is_a_result(searched: Path):
    report = reports.read(reports.PromptReport, searched / "data/prompt/report.json")
    assert not report.found
    assert report.winner == SEED == reports.read(PromptSettings, searched / "data/prompt/prompt.json")
    assert report.reason.startswith("no gain found")


def test_the_search_never_sees_the_part_that_confirms(searched: Path, tmp_path: Path):
    import pyarrow.parquet as pq

    shutil.copytree(searched / "data", tmp_path / "data")
    rows = pq.read_table(tmp_path / "data/prompt/rollouts.parquet").to_pylist()
    held_back = [
        json.loads(line)["id"] for line in (tmp_path / "data/examples/validation.jsonl").read_text().splitlines()
    ][6:]
    in_the_race = [row for row in rows if row["sample"] == 0 and row["example_id"] in held_back]
    assert len({row["arm"] for row in in_the_race}) <= 2


# -- a golden --------------------------------------------------------------------------------------
Knows = Callable[[int], bool]


def never(key: int) -> bool:
    return False


@dataclass
class Reader(ScriptedDialogue):
    """Takes the value from the tool's result where spaces make it stand out."""

    reads: Knows = never

    def append(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> tuple[int, ...] | None:
        if results[0].output.startswith("   ") and self.reads(int(self.key[1:])):
            self.turns = (self.turns[0], results[0].output.strip())
        return super().append(calls, results)


@dataclass
class Obedient(Scripted):
    """Looks the key up, and knows some values; under a loud instruction others."""

    quiet: Knows = never
    loud: Knows = never
    reads: Knows = never

    def open(
        self,
        openings: Sequence[Opening],
        seeds: Sequence[Sequence[int]],
        temperature: float,
        max_context_tokens: int | None,
    ) -> list[ScriptedDialogue]:
        dialogues: list[ScriptedDialogue] = []
        for one, opening in zip(super().open(openings, seeds, temperature, max_context_tokens), openings, strict=True):
            number = int(one.key[1:])
            knows = self.loud if "LOOK" in opening.messages[0]["content"] else self.quiet
            answer = f"{(number * 7919 + 1234) % 9973:04d}" if knows(number) else "0000"
            dialogues.append(Reader((CALL % "{key}", answer), one.key, one.room, one.results, reads=self.reads))
        return dialogues


def _shown(metric: reports.Metric | None) -> str:
    return "none" if metric is None else f"{metric.value:+z.6f} [{metric.low:+z.6f}, {metric.high:+z.6f}] n={metric.n}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        (
            "found",
            Obedient((), quiet=lambda key: key % 3 == 1, loud=lambda key: key % 3 > 0, reads=lambda key: key % 8 < 5),
        ),
        ("not_confirmed", Obedient((), quiet=lambda key: key % 2 > 0, loud=lambda key: key % 6 > 0)),
    ],
    ids=["found", "not_confirmed"],
)
def test_the_optimized_prompt_stays_what_it_was(
    name: str, policy: Obedient, golden: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The whole stage: all candidates, round by round, and the prompt that is served."""
    ours = tiny_recipe.make(tmp_path)
    (ours / "prompts.json").write_text(json.dumps(PROMPTS.model_dump()))
    settings = tiny_recipe.params(
        ours,
        examples={"train": 32, "validation": 24, "test": 4},
        rollout={"max_turns": 3, "budget": {"tool_calls": 0, "weight": 0.2}},
        prompt={"rounds": 3, "first_examples": 4, "k": 1, "confirm_k": 2, "search_share": 0.5},
    )
    monkeypatch.setattr(policies, "load_policy", lambda *_: policies.Sampling(policy, ""))
    with inside(tmp_path):
        run("examples", settings)
        ready = reports.read(
            reports.BaselineReport, sample_reports.stage_files("promote") / "data/baseline/report.json"
        )
        reports.write(ready, Path("data/baseline/report.json"))
        run("prompt", settings)
        found = reports.read(reports.PromptReport, Path("data/prompt/report.json"))
        served = Path("data/prompt/prompt.json").read_text(encoding="utf-8")
    lines = [
        f"found: {found.found}; {found.reason}; {found.num_rollouts} rollouts",
        f"confirmation: {_shown(found.confirmation)}",
    ]
    for one in found.candidates:
        ended = f"eliminated in round {one.round}" if one.eliminated else f"alive in round {one.round}"
        lines.append(
            f"{one.settings.name} (from {one.parent}): {ended}; search {_shown(one.search)}; gain {_shown(one.gain)}"
        )
    golden(f"prompt_{name}.txt", "\n".join([*lines, served, ""]))
