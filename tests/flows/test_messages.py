"""What a newcomer is told who does something wrong: where it is, what is there, what to do instead,
in at most three lines.

The sample was provoked by hand, verb by verb. A row is the command, then what its message must
name: the place (an option, a key, a file), the value that was found there, and the remedy.
"""

from __future__ import annotations

import shlex
import textwrap
from pathlib import Path

import ladder_clone
import pytest

from flows import cli

WIDTH, LINES = 120, 3
"""Of a terminal, and of a message."""
SAMPLE = [
    # the command line itself
    ("rnu", "rft rnu", "not a verb", "rft --help"),
    ("cancel RUN", "rft cancel", "is now", "rft runs cancel"),
    ("runs shwo", "rft runs shwo", "'shwo'", "rft runs --help"),
    ("run --stepz 3", "rft run", "--stepz", "rft run --help"),
    ("approve", "rft approve", "RUN", "rft approve --help"),
    ("traffic drift --histry", "rft traffic drift", "--histry", "'--history'"),
    ("export champion x --dtype int8", "--dtype", "'int8'", "'float32'"),
    ("-C nowhere runs", "-C nowhere", "No such file", "Name a folder"),
    ("--agent nobody run", "--agent nobody", "no agent", "There are: tiny"),
    # settings
    ("run --set train.stepz=3", "params.yaml", "'train.stepz'", "'steps'"),
    ("run --set train.steps=0", "params.yaml", "'train.steps' = 0", "greater than or equal to 1"),
    ("run --set train", "--set train", "train", "section.key=value"),
    ("run --set train.steps={", "--set train.steps={", "not YAML", "--set"),
    ("run --params missing.yaml", "missing.yaml", ": missing", "`rft new` writes one"),
    ("run --set recipe.path=recipes/gone", "recipe.path", "'recipes/gone'", "examples.py"),
    ("run --window missing.jsonl", "missing.jsonl", "no such file", "traffic.file"),
    ("run --window data/inbox/*.csv", "data/inbox/*.csv", "no file matches", "--window"),
    ("run --until gate", "--until gate", "the test set", "Name one of policy, baseline"),
    ("run --until trian", "--until trian", "no stage", "train"),
    # runs and rollouts
    ("runs report nothing", "'nothing'", "no run", "rft runs"),
    ("runs cancel nothing", "'nothing'", "no run", "rft runs"),
    ("runs compare nothing more", "'nothing'", "no run", "rft runs"),
    ("rollouts list --stage trian", "--stage trian", "no such stage", "'train'"),
    ("rollouts list --stop length", "--stop length", "no such stop reason", "max_tokens"),
    ("rollouts list --reward high", "--reward 'high'", "bound", "'<0.2'"),
    ("rollouts list --where nonsense=1", "--where 'nonsense=1'", "nonsense", "docs/rollouts.md"),
    ("rollouts show zzz", "zzz", "no rollout", "rft rollouts list"),
    ("rollouts replay --grader missing.json", "missing.json", "cannot be read", "grader"),
    # decisions
    ("approve nothing --reason why", "'nothing'", "no run", "rft runs"),
    ("rollback --reason why", "nothing was promoted", "the beginning", "rft runs"),
    ("champion --at yesterday", "--at 'yesterday'", "not a date", "2026-09-01"),
    ("audit nothing", "'nothing'", "no run", "rft runs"),
    ("audit 99", "entry 99", "ends with entry 2", "rft ledger"),
    ("export 99 exports/x", "champion 99", "the beginning", "rft runs"),
    ("play nothing", "'nothing'", "no run", "rft runs"),
    ("ledger rules approvers --reason x", "'approvers'", "KEY=VALUE", "approvers, four_eyes"),
    ("ledger rules approvers=0 --reason x", "approvers", "= 0", "greater than or equal to 1"),
    ("ledger people add bob --reason x", "NAME", "--role", "--public KEY"),
    ("ledger people remove nobody --reason x", "nobody", "not enrolled", "There are: "),
    ("ledger clocks --days 0 --reason x", "--days 0", "more than 0", "3650"),
    # files
    ("traffic drift missing.jsonl", "missing.jsonl", "no such file", "traffic.file"),
    ("traffic ingest missing.jsonl", "missing.jsonl", "no such file", "traffic.file"),
    ("traffic invent --start monday", "--start", "'monday'", "2026-03-02"),
    ("backup make here", "here", "lies inside", "Name a folder"),
    ("backup verify recipes", "recipes", "not a back-up", "rft backup make"),
    ("new agents/mine", "rft.yaml", "not a workspace", "rft init"),
    ("stage run drfit", "'drfit'", "no stage", "drift"),
    ("stage tools nowhere", "nowhere", "examples.py", "recipe"),
    ("stage tools recipes/tiny --host 0.0.0.0", "--host 0.0.0.0", "other machines", "RFT_TOOL_KEY"),
    ("doctor check --only taste", "--only taste", "no such check", "tools"),
    ("up", "infra/schedule.yaml", "missing", "git checkout infra/schedule.yaml"),
]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> ladder_clone.Scripted:
    made = ladder_clone.make(tmp_path_factory.mktemp("messages"))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        ladder_clone.run_ladder(made)
    return made


def said(typed: str, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The message of a command, as somebody sees it who types `rft`."""
    monkeypatch.chdir(root)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")  # no server is started for what fails before
    monkeypatch.setattr(cli, "_program", lambda: "rft")
    assert cli.main(shlex.split(typed)) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize(("typed", "place", "value", "remedy"), SAMPLE, ids=[row[0] for row in SAMPLE])
def test_a_message_names_place_value_and_remedy_in_three_lines(
    scripted: ladder_clone.Scripted,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    typed: str,
    place: str,
    value: str,
    remedy: str,
) -> None:
    text = said(typed, scripted.root, capsys, monkeypatch)
    message = text[text.rindex("error: ") :].rstrip()
    assert [part for part in (place, value, remedy) if part not in message] == [], message
    lines = [row for line in message.splitlines() for row in textwrap.wrap(line, WIDTH)]
    assert len(lines) <= LINES, message
    assert scripted.git("status", "--porcelain") == ""


def test_the_sample_is_large_enough() -> None:
    assert len(SAMPLE) >= 40
    assert len({typed.split()[0] for typed, *_ in SAMPLE}) >= 15
