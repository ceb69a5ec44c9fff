"""docs/verify-ledger.sh on random histories: what this code lets stand, the script lets stand; what
it refuses, the script refuses; and both call the same entries doubtful, for the same reason.

The script's first half reads commits and signatures, its second half, in awk, judges what they say.
A few histories go through both, as commits. Many go through the second half alone, which costs
milliseconds: there each proposal that was refused is tried as well.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rft.errors import UserError
from tasks.ledger import chain, keys, objects, verify
from tasks.ledger.authorise import Proposal
from tasks.ledger.entry import Entry, Genesis, PolicyChange, Promotion, Registration
from tasks.ledger.keys import Key
from tasks.ledger.state import State
from tests import ledger_world
from tests.ledger_world import Story

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "verify-ledger.sh"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_random_history_is_right_for_the_script_too(tmp_path: Path, seed: int) -> None:
    keys, clone = ledger_world.cast(tmp_path / "keys"), ledger_world.make_clone(tmp_path / "clone")
    ledger_world.is_machine(clone, keys["laptop"])
    story = Story(Random(seed), keys, clone.git("rev-parse", "main"), signs=True)
    while len(story.lines) < 30:
        story.step()
    story.suspect()
    ledger_world.write(clone, story)
    command = ["sh", str(SCRIPT), str(clone.root), "refs/rft/ledger", story.state.genesis]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert doubtful_lines(done.stdout) == doubtful_lines_of(story.state)


def doubtful_lines(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("DOUBTFUL")]


def doubtful_lines_of(state: State) -> list[str]:
    return [f"DOUBTFUL: entry {number}: {why}" for number, why in sorted(state.doubtful().items())]


# -- the judge alone -------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Key]:
    return ledger_world.cast(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = SCRIPT.read_text().split("cat >judge.awk <<'EOJ'\n")[1].split("EOJ\n")[0]
    file = tmp_path_factory.mktemp("judge") / "judge.awk"
    file.write_text(text)
    return file


def judged(judge: Path, facts: list[str]) -> str:
    given = "".join(facts) + "finished\tx\n"
    done = subprocess.run(["awk", "-f", str(judge)], input=given, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout


def facts(state: State, proposal: Proposal, entry: Entry) -> str:
    """What the first half of the script would say of this entry."""
    found, act, verified_statement = dict[str, str](), entry.act, proposal.verified_statement
    seconds = int(datetime.fromisoformat(entry.time).timestamp())
    found["author"] = found["committer"] = f"{entry.machine} <{entry.machine}@rft.invalid> {seconds} +0000"
    found["carries"] = "".join(f"{revision} " for revision in carried(state, proposal))
    found |= flat("entry", json.loads(entry.content)) | {"id": entry.id, "machine_key": proposal.machine}
    change = act.change if isinstance(act, PolicyChange) else None
    if public := act.machine if isinstance(act, Genesis) else getattr(change, "key", None):
        found |= {"new_key": keys.fingerprint(public)} if " " in public else {}
    if isinstance(act, Genesis | PolicyChange | Registration):
        text = rules(state, proposal, entry.machine)[chain.POLICY].decode().split("\n", 1)[1]
        found["policy"] = "".join(letter for letter in text if letter not in " \t\n\"'")
    if verified_statement is not None:
        content = verified_statement.statement.content_bytes
        found |= flat("said", json.loads(content))
        found |= {"statement": hashlib.sha256(content).hexdigest(), "person_key": verified_statement.key}
    return "".join(f"{path}\t{value}\n" for path, value in found.items()) + "judge\t\n"


def flat(path: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict | list):
        return {path: json.dumps(value, ensure_ascii=False)}
    inside: Iterator[Any] = iter(value.items() if isinstance(value, dict) else enumerate(value))
    return {at: text for key, each in inside for at, text in flat(f"{path}/{key}", each).items()}


def carried(state: State, proposal: Proposal) -> list[str]:
    try:
        return verify.carried_revisions(state, proposal.act)
    except KeyError:  # of a request that there is not
        return []


def rules(state: State, proposal: Proposal, machine: str) -> dict[str, bytes]:
    try:
        return verify.rules_after(state, proposal.act, machine)
    except UserError:  # a change that makes no sense
        return {chain.POLICY: state.policy_yaml, chain.SIGNERS: state.signers}


def entry_of(state: State, proposal: Proposal, story: Story) -> Entry:
    """The entry that somebody would write who does not ask `authorise`."""
    names = {key.fingerprint: name for name, key in story.keys.items()}
    name = state.policy.machine_of(proposal.machine) or names[proposal.machine]
    has_weights = isinstance(proposal.act, Promotion) and proposal.act.weights_signature
    return Entry(
        number=state.number + 1,
        previous=state.head or None,
        time=proposal.time,
        machine=name,
        act=proposal.act,
        files={chain.WEIGHTS: objects.sha256(b"signed")} if has_weights else {},
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_judge_lets_stand_what_stands_and_nothing_else(seed: int, cast: dict[str, Key], judge: Path) -> None:
    story, stands = Story(Random(seed), cast), list[str]()
    refused = dict[str, str]()

    def take(state: State, proposal: Proposal, entry: Entry) -> None:
        stands.append(facts(state, proposal, entry))

    def deny(state: State, proposal: Proposal) -> None:
        what = facts(state, proposal, entry_of(state, proposal, story))
        if refused.setdefault(story.refused[-1][:20], "") == "":  # each kind once
            refused[story.refused[-1][:20]] = judged(judge, [*stands, what]).splitlines()[-1]

    story.watch, story.denied = take, deny
    for _ in range(150):
        story.step()
    story.suspect()
    output = judged(judge, stands)
    assert output.splitlines()[-1].startswith(f"OK: {story.state.number} entries, the last is {story.state.head}"), (
        output
    )
    assert doubtful_lines(output) == doubtful_lines_of(story.state)
    for why, line in refused.items():
        assert line.startswith("WRONG: entry "), (why, line)
