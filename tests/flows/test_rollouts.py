"""`rft rollouts` and `rft rollouts replay` through the command line, on a clone with a finished run
and a stage in progress."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import ladder_clone
import pandas as pd
import pytest
import tokenizers
from mlflow import MlflowClient

from flows import cli
from flows.cli.rollouts import list as listing
from rft import reports
from rft.rollouts import log as rollout_log
from rft.rollouts.log import LogRow
from rft.rollouts.store import RolloutStore
from rft.types import Scored
from tasks.display import tracking
from tasks.runs import records
from tasks.runs.records import RunRecord
from tests.rollouts.test_replay import row, server, value

WORDS = {"<unk>": 0, "look": 1, "up": 2, "9153": 3}


def trained(number: int, step: int, sample: int, reward: float | None, left_out: str = "", **more: Any) -> LogRow:
    """A rollout of training with tokens; its answer is right when its reward is 1."""
    grade = Scored(reward, solved=reward == 1, explanation="exact") if reward is not None else None
    found = row(number, None if reward == 1 else "0000", grade=grade)
    tokens = {"ids": [1, 2, 3], "loss_mask": [False, True, True], "logprobs": [-0.25, -4.0], "num_tokens": 2}
    place = {
        "stage": "train",
        "arm": "challenger",
        "step": step,
        "sample": sample,
        "rollout_id": f"rollout_{step}{number}{sample}0000-aa",
    }
    return replace(found, **place, **tokens, reward=reward, trained=not left_out, left_out=left_out, **more)


TRAIN = [
    trained(1, 1, 0, 1.0),
    trained(1, 1, 1, 0.0),
    trained(2, 1, 0, 0.5, "no variance"),
    trained(2, 1, 1, 0.5, "no variance"),
    trained(1, 2, 0, 1.0),
    trained(1, 2, 1, 0.25, stop_reason="max_tokens"),
    trained(
        2,
        2,
        0,
        None,
        "unscored: infra_error",
        score=None,
        status="infra_error",
        stop_reason="tool_error",
        explanation="HTTP 500",
    ),
]
HELD_OUT = replace(trained(3, 2, 0, 1.0, "validation"), arm="validation")
METRICS = [
    {"step": 1, "samples/sampled": 4, "samples/trained": 2},
    {"step": 2, "samples/sampled": 3, "samples/trained": 2},
]
BASELINE = [row(number, None if number % 2 else "0000") for number in range(1, 7)]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[ladder_clone.Scripted, RunRecord]:
    """A clone with a finished run whose logs are these rows."""
    scripted = ladder_clone.make(tmp_path_factory.mktemp("rollouts"))
    data = scripted.script / "data"
    for stage, rows in (("train", [*TRAIN, HELD_OUT]), ("baseline", BASELINE), ("prompt", []), ("challenger", [])):
        rollout_log.write(rows, data / stage / "rollouts.parquet")
    rollout_log.write([], data / "challenger/shown.parquet")
    (data / "train/metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in METRICS))
    reports.write(
        reports.PolicyReport(kind="embedded", model="data/policy", sha256="0" * 64, num_parameters=1),
        data / "policy/report.json",
    )
    tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, "<unk>")).save(str(data / "policy/tokenizer.json"))
    return scripted, ladder_clone.run_ladder(scripted)


Rft = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rft(
    ran: tuple[ladder_clone.Scripted, RunRecord], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Rft:
    monkeypatch.chdir(ran[0].root)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(list(arguments))
        out, err = capsys.readouterr()
        return code, re.sub(r" +$", "", out, flags=re.MULTILINE), err

    return run


def traces(rft: Rft, *arguments: str) -> list[str]:
    code, out, err = rft("rollouts", "--json", *arguments)
    assert (code, err) == (0, "")
    return [json.loads(line)["rollout_id"] for line in out.splitlines()]


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    for verb, words in (
        ("rollouts", ("rft rollouts show 3f2a --tokens", "rft rollouts replay --grader")),
        ("rollouts list", ("--where SQL",)),
        ("rollouts replay", ("{tool_server}", "--out both.parquet")),
    ):
        with pytest.raises(SystemExit, match="0"):
            cli.main([*verb.split(), "--help"])
        text = capsys.readouterr().out
        assert all(word in text for word in words)


def test_the_list_is_the_newest_run_s(rft: Rft, ran: tuple[ladder_clone.Scripted, RunRecord]) -> None:
    code, out, err = rft("rollouts")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len([line for line in lines if " train/challenger " in line]) == len(TRAIN)
    assert len([line for line in lines if " train/validation " in line]) == 1
    assert re.search(
        r"^1200000\S* +train/challenger +1 +n-0002 +0 +completed +1 +2 +0\.500 +no variance$", out, re.MULTILINE
    )
    assert re.search(r"^2200000\S* .* tool_error +1 +2 +none +unscored: infra_error$", out, re.MULTILINE)
    assert f"14 of 14 rollouts of run {ran[1].name}. To read one: " in out
    assert rft("rollouts", "list", ran[1].name[-4:]) == (code, out, err)


@pytest.mark.slow
def test_a_terminal_shows_the_first(rft: Rft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LISTED", 5)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert len(rft("rollouts")[1].splitlines()) == 1 + 5 + 2
    assert "14 of 14 rollouts of run" in rft("rollouts")[1]
    assert "the first 5 shown" in rft("rollouts")[1]
    assert len(rft("rollouts", "-n", "9")[1].splitlines()) == 1 + 9 + 2


def test_what_is_cut_is_cut_in_the_middle() -> None:
    """N14: names of one kind begin alike, so that rows that were cut at the end all looked the
    same."""
    names = (
        "challenger/champion",
        "challenger/champion_new_prompt",
        "challenger/challenger",
        "validation-000041",
        "validation-000042",
    )
    assert len({listing._middle(name, 14) for name in names}) == len(names)
    assert all(len(listing._middle(name, 14)) == 14 for name in names)
    assert listing._middle("train/a", 14) == "train/a"


def test_a_pipe_has_no_edge(rft: Rft, monkeypatch: pytest.MonkeyPatch) -> None:
    """N14: what goes into a file is whole."""
    monkeypatch.delenv("COLUMNS")
    assert "…" not in rft("rollouts")[1]


def test_narrow_terminals(rft: Rft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    out = rft("rollouts", "--stage", "train")[1]
    assert max(len(line) for line in out.splitlines()[:-1]) <= 60
    assert "1200000" in out


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--arm", "challenger", "--step", "2"], [4, 5, 6]),
        (["--arm", "challenger", "--example", "n-0002"], [2, 3, 6]),
        (["--stop", "max_tokens"], [5]),
        (["--arm", "challenger", "--reward", "<0.5"], [1, 5]),
        (["--arm", "challenger", "--reward", "0.5"], [2, 3]),
        (["--reward", "none"], [6]),
        (["--arm", "challenger", "--worst", "2"], [1, 5]),
        (["--arm", "challenger", "--best", "3"], [0, 4, 2]),
        (["--arm", "challenger", "-n", "2"], [0, 1]),
        (["--where", "stage = 'train' AND list_sum(logprobs) < -4 AND step = 1 AND NOT solved"], [1, 2, 3]),
        (["--where", "left_out LIKE 'unscored%'"], [6]),
        (["--where", "step = 9"], []),
        (["--step", "99", "--worst", "2"], []),
    ],
)
def test_filters(rft: Rft, arguments: list[str], found: list[int]) -> None:
    assert traces(rft, *arguments) == [TRAIN[n].rollout_id for n in found]


def test_json_lines_hold_the_whole_row(rft: Rft) -> None:
    line = json.loads(rft("rollouts", "--json", "--stop", "max_tokens")[1])
    assert line == rollout_log.cells(TRAIN[5]) | {
        name: json.loads(getattr(TRAIN[5], name)) for name in ("components", "item", "messages")
    }


def test_a_stop_reason_of_0_1_0_may_be_asked_for(rft: Rft) -> None:
    for name in ("policy_error", "sampler_error"):
        assert "No rollout of run" in rft("rollouts", "--stop", name)[1]


@pytest.mark.parametrize(
    ("where", "today"),
    [
        ("status = 'timeout'", "grader_timeout"),
        ("Status IN ('ok', 'policy_error')", "unjudgeable_answer"),
        ("'parse_error' <> status", "grader_bad_reply"),
        ("reward IS NULL AND stop_reason!='policy_error'", "sampler_error"),
    ],
)
def test_a_value_of_0_1_0_in_an_expression_is_refused_with_its_name_of_today(rft: Rft, where: str, today: str) -> None:
    """It would fit no row, and nobody would be told."""
    code, _, error = rft("rollouts", "--where", where)[:3]
    assert code == 2
    assert f"is called {today} now" in error


@pytest.mark.parametrize("where", ["stop_reason = 'timeout'", "stop_reason NOT IN ('parse_error')", "status = 'ok'"])
def test_values_that_have_their_name_still_are_compared(rft: Rft, where: str) -> None:
    assert rft("rollouts", "--where", where)[0] == 0


def test_nothing_fits(rft: Rft) -> None:
    assert rft("rollouts", "--step", "99")[:2][0] == 0
    assert "No rollout of run" in rft("rollouts", "--step", "99")[1]
    assert "There is no rollout of this folder" in rft("rollouts", "--here")[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--where", "rewart < 1"], 'Referenced column "rewart" not found'),
        (["--where", "rewart < 1"], "The columns are listed in docs/rollouts.md"),
        (["--where", "1=1) TO 'x.csv'; COPY (SELECT 1"], "--where"),
        (["--where", "reward < (SELECT count(*) FROM read_csv('params.yaml'))"], "--where"),
        (["--where", "step IN (SELECT 1 FROM 'params.yaml')"], "--where"),
        (["--where", "1; DROP TABLE rollouts"], "--where"),
        (["--stop", "complete"], "no such stop reason. Did you mean 'completed'?"),
        (["--stage", "trian"], "no such stage. Did you mean 'train'?"),
        (["--reward", "low"], "--reward 'low': write a bound such as '<0.2'"),
        (["--reward", "1.2.3"], "--reward '1.2.3': write a bound"),
        (["show", "9"], "ROLLOUT 9: no rollout of run"),
        (["show", "1"], "rollouts begin with it"),
        (["group", "n-9999"], "EXAMPLE n-9999: no rollout of that example"),
        (["list", "nothing"], "no run named 'nothing'"),
        (["--here", "--live"], "name one place"),
        (["export", "--here", "--traces"], "traces belong to a run in MLflow"),
        (
            ["export", "--out", "missing/chat.jsonl"],
            "missing/chat.jsonl: cannot be written (No such file or directory). Name a file",
        ),
    ],
)
def test_wrong_input_is_one_message(
    rft: Rft, ran: tuple[ladder_clone.Scripted, RunRecord], arguments: list[str], message: str
) -> None:
    code, out, err = rft("rollouts", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert "Traceback" not in err
    assert ran[0].git("status", "--porcelain") == ""


# -- one, a group, all -----------------------------------------------------------------------------
def test_one_as_a_transcript(rft: Rft) -> None:
    code, out, err = rft("rollouts", "show", "1100")
    assert (code, err) == (0, "")
    for phrase in (
        "rollout_1100000-aa  train/challenger, step 1, example n-0001, sample 0",
        '→ lookup(key="k0001")',
        f"← {value(1)}",
        "assistant, turn 2",
    ):
        assert phrase in out
    assert re.search(r"grade +1, solved\n +explanation exact\n +reward +1\.000\n +training +trained on\n", out)
    assert "\ntokens\n" not in out
    assert rft("rollouts", "show", "rollout_1100000-aa")[1] == out


def test_tokens_by_the_run_s_own_tokenizer(rft: Rft) -> None:
    out = rft("rollouts", "show", "1100", "--tokens")[1]
    assert '    0  1 tokens given  "look"' in out
    assert re.search(r'^    1        2  "up" +-0\.250$', out, re.MULTILINE)
    assert re.search(r'^    2        3  "9153" +-4\.000  ◀ 1\.8%$', out, re.MULTILINE)


def test_a_group_side_by_side(rft: Rft) -> None:
    out = rft("rollouts", "group", "n-0001", "--stage", "train", "--step", "1")[1]
    assert out.startswith("train/challenger, step 1, example n-0001: 2 rollouts\n")
    assert re.search(rf"turn 2 +{value(1)} +0000\n", out)
    assert re.search(r"solved +yes +no\n", out)
    assert out.count("example n-0001") == 1
    both = rft("rollouts", "group", "n-0001", "--stage", "train")[1]
    assert both.count("example n-0001: 2 rollouts") == 2


def test_sampled_is_trained_and_left_out(rft: Rft) -> None:
    code, out, err = rft("rollouts", "summary")
    assert (code, err) == (0, "")
    assert re.search(r"train/challenger +1 +4 +2 +2 no variance\n", out)
    assert re.search(r"train/challenger +2 +3 +2 +1 unscored: infra_error\n", out)
    assert re.search(r"train/validation +2 +1 +1 validation\n", out)
    assert "14 sampled = 4 trained on + 6 compared (stages that train nothing) + 4 left out. It adds up." in out
    assert "4 sampled = 2 trained on" in rft("rollouts", "summary", "--step", "1")[1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*TRAIN[:6], replace(TRAIN[6], left_out="")], "was neither trained on nor left out"),
        (TRAIN[:6], "step 2 of training says samples/sampled = 3, its log holds 2"),
        (
            [replace(TRAIN[0], trained=False, left_out="no variance"), *TRAIN[1:]],
            "step 1 of training says samples/trained = 2, its log holds 1",
        ),
    ],
)
def test_a_log_that_does_not_add_up(
    rft: Rft, ran: tuple[ladder_clone.Scripted, RunRecord], rows: list[LogRow], message: str
) -> None:
    stage_folder = ran[0].root / "data/train"
    stage_folder.mkdir(exist_ok=True)
    rollout_log.write(rows, stage_folder / "rollouts.parquet")
    (stage_folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in METRICS))
    try:
        code, _, err = rft("rollouts", "summary", "--here")
    finally:
        for path in stage_folder.iterdir():
            path.unlink()
    assert code == 1
    assert err.startswith("error: the log does not add up")
    assert message in err


def test_stages_in_progress(rft: Rft, ran: tuple[ladder_clone.Scripted, RunRecord]) -> None:
    """While somebody else writes them. A store of another version is told of, and hides no
    other."""
    with RolloutStore(ran[0].clone.state / "progress" / "train-0123" / "rollouts") as store:
        store.add_all(TRAIN[:2], [1.0, 2.0], "step-1")
        store.add_all(TRAIN[2:4], [1.0, 2.0], "step-2")
        store.hold(TRAIN[4:5], [1.0], ["{}"], "step-3")
        assert traces(rft, "--live") == [one.rollout_id for one in TRAIN[:5]]
        assert traces(rft, "--live", "--where", "left_out = 'in progress'") == [TRAIN[4].rollout_id]
        assert "1 in progress" in rft("rollouts", "summary", "--live")[1]
        older = ran[0].clone.state / "progress" / "train-4567" / "rollouts"
        older.mkdir(parents=True)
        (older / "000001.jsonl").touch()
        code, out, err = rft("rollouts", "--live", "--json")
        assert (code, len(out.splitlines())) == (0, 5)
        assert err.startswith(f"warning: {older}: another version of agent-rft stored these rollouts")
        shutil.rmtree(older)
        store.drop(lambda row: True)
    assert "There is no rollout of stages in progress" in rft("rollouts", "--live")[1]


# -- exports ---------------------------------------------------------------------------------------
def test_chat_lines(rft: Rft, tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    assert (
        rft("rollouts", "export", "--arm", "challenger", "--best", "2", "--out", str(path))[1]
        == f"2 rollouts in {path}\n"
    )
    first = json.loads(path.read_text().splitlines()[0])
    assert first["messages"] == json.loads(TRAIN[0].messages)
    assert first["reward"] == 1.0
    assert first["metadata"]["rollout_id"] == TRAIN[0].rollout_id
    assert [one.name for one in tmp_path.iterdir()] == ["chat.jsonl"]


@pytest.mark.slow
def test_traces_in_mlflow_once(rft: Rft, ran: tuple[ladder_clone.Scripted, RunRecord]) -> None:
    scripted, record = ran
    code, out, err = rft("rollouts", "export", "--traces")
    assert (code, out) == (2, "")
    assert "is not in MLflow" in err
    client: MlflowClient = tracking.client(scripted.clone)
    experiment = tracking.experiment(client, scripted.clone, "tiny")
    known = record.model_copy(update={"mlflow_run_id": client.create_run(experiment).info.run_id})
    records.save(scripted.clone, known)
    for _ in range(2):
        code, out, err = rft("rollouts", "export", "--stage", "train", "--traces")
        assert code == 0, err
        assert out == (
            f"8 traces of run {record.name} are in MLflow's experiment 'tiny'; another export adds none twice.\n"
        )
    assert err.splitlines()[-1] == "[traces] 8/8"
    found = client.search_traces(locations=[experiment], run_id=known.mlflow_run_id)
    assert len(found) == 8
    worst = client.search_traces(locations=[experiment], filter_string="tag.stop_reason = 'max_tokens'")
    assert [one.info.tags["rollout"] for one in worst] == [TRAIN[5].rollout_id]
    trace = next(one for one in found if one.info.tags["rollout"] == TRAIN[0].rollout_id)
    assert {
        "stage": "train",
        "arm": "challenger",
        "step": "1",
        "reward": "1.000",
        "training": "trained on",
    }.items() <= trace.info.tags.items()
    rollout, first, call, second = trace.data.spans
    assert [one.name for one in trace.data.spans] == ["rollout", "turn 1", "lookup", "turn 2"]
    assert [one.parent_id for one in (first, call, second)] == [rollout.span_id, first.span_id, rollout.span_id]
    assert (call.inputs, call.outputs) == ({"key": "k0001"}, value(1))
    assert second.outputs["content"] == value(1)
    assert rollout.outputs["reward"] == 1.0
    assert [one.start_time_ns - rollout.start_time_ns for one in trace.data.spans] == [0, 0, 0, 2_000_000]
    assert [(one.end_time_ns or 0) - rollout.start_time_ns for one in trace.data.spans] == [
        4_000_000,
        2_000_000,
        1_000_000,
        3_000_000,
    ]
    records.save(scripted.clone, record)


# -- replay ----------------------------------------------------------------------------------------
@pytest.mark.slow
def test_replay_with_a_stricter_grader(rft: Rft, tmp_path: Path) -> None:
    (tmp_path / "grader.json").write_text("{}")
    with server(
        lambda body: 500 if body["item"] == json.loads(BASELINE[5].item) else {"score": 0.25, "reason": "strict"}
    ) as (url, _):
        (tmp_path / "grader.json").write_text(json.dumps({"type": "endpoint", "name": "strict", "url": url}))
        arguments = ["--grader", str(tmp_path / "grader.json"), "--stage", "baseline", "--set", "tools.retries=0"]
        code, out, err = rft("rollouts", "replay", *arguments, "--out", str(tmp_path / "both.parquet"))
        assert code == 0, err
        assert rft("rollouts", "replay", *arguments, "--out", str(tmp_path / "both.jsonl"))[0] == 0
    assert "6 rollouts of run" in out
    assert re.search(r"mean score +0\.600 +0\.250 +-0\.350\n", out)
    assert "changed: 5 of 5 (2 up, 3 down)" in out
    assert "unscored now, and in no mean: 1 (1 had a score then); scored now and not then: 0" in out
    assert "1.000 → 0.250  strict" in out
    assert "HTTP 500" in out
    assert err.splitlines()[-1] == "[replay] 6/6"
    assert pd.read_parquet(tmp_path / "both.parquet")["new_score"].tolist()[:5] == [0.25] * 5
    with duckdb.connect() as database:
        assert database.execute(f"SELECT count(*), count(new_score) FROM '{tmp_path}/both.jsonl'").fetchall() == [
            (6, 5)
        ]


def test_replay_with_a_judge_says_what_it_cost(rft: Rft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = {
        "type": "model", "model": "m", "prompt": "{target}? {final_answer}", "prices": {"input": 1, "output": 10},
        "response_format": {},
    }  # fmt: skip
    (tmp_path / "judge.json").write_text(json.dumps(judge))
    verdict = {"steps": [{"description": "", "conclusion": "half right"}], "result": 0.5}
    reply = {
        "choices": [{"message": {"content": json.dumps(verdict)}}],
        "usage": {"prompt_tokens": 2000, "completion_tokens": 100},
    }
    with server(lambda body: reply) as (url, _):
        monkeypatch.setenv("OPENAI_BASE_URL", url.removesuffix("/grade"))
        code, out, err = rft("rollouts", "replay", "--grader", str(tmp_path / "judge.json"), "--stage", "baseline")
    assert code == 0, err
    assert "graded again by 'model'" in out
    assert "1.000 → 0.500  half right" in out
    assert "judge.json: response_format is not sent" in out.replace("\n", " ")
    assert "judge m: 6 replies, 12,000 tokens read, 600 written, cost 0.0180" in out


@pytest.mark.slow
def test_replay_with_the_recipe_s_own(rft: Rft, ran: tuple[ladder_clone.Scripted, RunRecord]) -> None:
    code, out, err = rft(
        "rollouts",
        "replay",
        "--grader",
        "recipes/tiny/grader.json",
        "--where",
        "stage = 'baseline' AND sample = 0",
        "-n",
        "3",
    )
    assert code == 0, err
    assert "changed: 0 of 3 (0 up, 0 down)" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grader", "missing.json"], "missing.json: cannot be read"),
        (["--grader", "params.yaml"], "params.yaml: is not JSON"),
        (
            ["--grader", "recipes/tiny/grader.json", "--out", "both.csv"],
            "--out both.csv: end the name with .parquet or .jsonl",
        ),
        (["--grader", "recipes/tiny/grader.json", "--step", "99"], "there is nothing to grade"),
        (["nothing", "--grader", "recipes/tiny/grader.json"], "no run named 'nothing'"),
    ],
)
def test_a_replay_that_cannot_be(rft: Rft, arguments: list[str], message: str) -> None:
    code, out, err = rft("rollouts", "replay", *arguments)
    assert (code, out) == (2, "")
    assert message in err
