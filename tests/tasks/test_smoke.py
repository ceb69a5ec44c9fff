"""The smoke test before a promotion (rft/smoke.py): a real agent with its real tools and grader,
and what stops it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load, save

from rft import smoke as engine
from rft.errors import InfrastructureError, UserError
from rft.smoke import Smoke
from tasks.promotion import agents, signing, smoke
from tasks.promotion.agents import Agent
from tasks.runs import records
from tasks.runs.artifacts import Out, Revision
from tasks.runs.clone import Clone
from tasks.runs.git import git

RECIPE = "recipes/tiny"
ROW = '{"id": "mine", "target": "1", "messages": [{"role": "user", "content": "value of k0012"}]}'


@pytest.fixture(scope="module")
def clone(agent_clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A copy of the clone, with a run that waits for approval. Each test adds revisions to it."""
    return Clone(Path(shutil.copytree(agent_clone, tmp_path_factory.mktemp("smoke") / "clone", symlinks=True)))


@pytest.fixture
def agent(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> Agent:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.chdir(clone.root)
    return agents.find(clone, records.load_all(clone)[-1].name)


def changed(agent: Agent, written: dict[str, str]) -> Agent:
    """The agent of a revision that holds these files, by path."""
    clone = agent.at.clone
    index = clone.state / "test-index"
    git(clone.root, "read-tree", agent.at.commit, index=index)
    for path, text in written.items():
        (clone.state / "blob").write_text(text)
        blob = git(clone.root, "hash-object", "-w", str(clone.state / "blob")).strip()
        git(clone.root, "update-index", "--add", "--cacheinfo", f"100644,{blob},{path}", index=index)
    tree = git(clone.root, "write-tree", index=index).strip()
    commit = git(clone.root, "commit-tree", "-p", agent.at.commit, "-m", "changed", tree).strip()
    return replace(agent, at=Revision(clone, commit))


def with_weights(agent: Agent, change: Callable[[bytes], bytes]) -> Agent:
    """The agent with another file of weights, which DVC's cache holds by its hash."""
    served = agent.served
    assert served.revision is not None
    assert served.weights is not None
    files = []
    for name, md5 in served.revision.files(served.weights.path):
        content = cached(agent.at.clone, md5).read_bytes()
        files.append((name, put(agent.at.clone, change(content) if name.endswith(".safetensors") else content)))
    listing = json.dumps([{"md5": md5, "relpath": name} for name, md5 in files]).encode()
    out = Out(served.weights.path, put(agent.at.clone, listing, ".dir"), 0, len(files))
    revision = Revision(agent.at.clone, served.revision.commit)
    revision.__dict__["outs"] = served.revision.outs | {out.path: out}
    return replace(agent, served=replace(served, weights=out, revision=revision))


def cached(clone: Clone, md5: str) -> Path:
    return clone.dvc_cache / "files" / "md5" / md5[:2] / md5[2:]


def put(clone: Clone, content: bytes, kind: str = "") -> str:
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest() + kind
    cached(clone, md5).parent.mkdir(exist_ok=True)
    cached(clone, md5).write_bytes(content)
    return md5


def played(agent: Agent) -> Smoke:
    """As `check` plays it, without waiting for torch in a new process."""
    with agents.laid_out(agent, *smoke.EXAMPLES) as tree, contextlib.chdir(tree):
        return engine.play(120)


def tools_of(agent: Agent) -> str:
    return (agent.at.file(f"{RECIPE}/tools.py") or b"").decode()


def settings_of(agent: Agent, **policy: object) -> str:
    settings = yaml.safe_load(agent.at.file("params.yaml") or b"")
    settings["policy"] |= policy
    settings["rollout"] = settings.get("rollout", {}) | {"max_unreadable_calls": 0}
    settings["challenger"] |= {"temperature": 0.05}  # what this policy is sure of, and nothing else
    return yaml.safe_dump(settings)


# -- it passes -------------------------------------------------------------------------------------
@pytest.mark.slow
def test_an_agent_that_works_passes_and_leaves_nothing(agent: Agent) -> None:
    lines: list[str] = []
    found = smoke.check(agent, lines.append)
    assert (found.source, found.examples) == ("data/examples/validation.jsonl", 4)
    assert 0 <= found.mean_reward <= 1
    assert found.solved == 4 * found.mean_reward
    assert sum(found.stop_reasons.values()) == 4
    assert found.description.startswith("4 examples of data/examples/validation.jsonl, played and graded: ")
    rows = (agent.at.read("data/examples/validation.jsonl") or b"").splitlines()
    assert lines[0] == "[smoke] 4 examples of data/examples/validation.jsonl, one rollout each"
    assert lines[1] == "[smoke] its tools are up; loading its policy"
    told = re.match(rf"\[smoke\] 1/4 examples, {json.loads(rows[0])['id']}: (\w+), reward [01]\.", lines[2])
    assert told
    assert told[1] in found.stop_reasons, "whichever: it is sampled"
    assert lines[-1].startswith(f"[smoke] 4/4 examples, {json.loads(rows[3])['id']}: ")
    again = played(agent)
    assert again.model_copy(update={"seconds": found.seconds}) == found, "the same agent, the same answers"
    assert list(agent.at.clone.state.glob("agent-*")) == []


@pytest.mark.slow
def test_a_recipes_own_examples_are_played_instead(agent: Agent) -> None:
    found = played(changed(agent, {f"{RECIPE}/smoke.jsonl": ROW + "\n" + ROW.replace("mine", "other") + "\n"}))
    assert (found.source, found.examples) == (f"{RECIPE}/smoke.jsonl", 2)


@pytest.mark.slow
def test_its_weights_are_those_that_were_signed_before(agent: Agent, tmp_path: Path) -> None:
    key = tmp_path / "machine"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "256", "-N", "", "-f", str(key)], check=True)
    with agents.laid_out(agent, *smoke.EXAMPLES) as tree:
        weights = tree / "data/champion/weights"
        bundle = signing.sign(weights, key)
        with contextlib.chdir(tree):
            engine.play(120)
        signing.verify(weights, bundle, key.with_suffix(".pub").read_text())


# -- it does not -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROW + '\n{"id": "cut', r"recipes/tiny/smoke.jsonl:2: the file is cut off"),
        (f"{ROW}\n{ROW}\n", r"recipes/tiny/smoke.jsonl:2: id 'mine' was met before, at recipes/tiny/smoke.jsonl:1"),
        ("\n", "recipes/tiny/smoke.jsonl: holds no examples. A row of smoke.jsonl is written like"),
        ('{"id": "mine", "messages": "hello"}\n', "recipes/tiny/smoke.jsonl:1: "),
    ],
)
def test_a_bad_row_is_named_with_its_file_and_line(agent: Agent, rows: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        played(changed(agent, {f"{RECIPE}/smoke.jsonl": rows}))


@pytest.mark.slow
def test_a_grader_that_raises_names_the_example(agent: Agent) -> None:
    tools = tools_of(agent).replace("score = float", "raise OSError('the judge is gone'); score = float")
    broken = changed(agent, {f"{RECIPE}/tools.py": tools, f"{RECIPE}/smoke.jsonl": ROW + "\n"})
    with pytest.raises(
        InfrastructureError, match=r"example mine ended with .* and got no grade: grader: HTTP 500.*judge"
    ):
        played(broken)


@pytest.mark.slow
def test_a_tool_that_fails_names_the_example(agent: Agent) -> None:
    tools = tools_of(agent).replace("key = key.strip()", "raise OSError('no database')")
    with pytest.raises(InfrastructureError) as caught:
        played(changed(agent, {f"{RECIPE}/tools.py": tools}))
    assert "ended with tool_error and got no grade: tool lookup failed: HTTP 500" in str(caught.value)
    assert str(caught.value).endswith("Fix the tool server and try again.")


@pytest.mark.slow
def test_a_tool_server_that_dies_is_told_without_folders_that_are_gone(agent: Agent) -> None:
    tools = tools_of(agent).replace("key = key.strip()", "import os; os._exit(9)")
    with pytest.raises(InfrastructureError) as caught:
        smoke.check(changed(agent, {f"{RECIPE}/tools.py": tools}))
    assert str(caught.value).startswith(
        f"smoke test of {agent.description}: the tool server of {RECIPE} died in the middle"
    )
    assert str(caught.value).endswith("Nothing was promoted.")
    assert "agent-" not in str(caught.value)


@pytest.mark.slow
def test_code_that_crashes_or_hangs_ends_with_its_last_words(agent: Agent) -> None:
    left_behind = "import subprocess\nsubprocess.Popen(['sleep', '600'])\nraise OSError('no database')\n"
    began = time.monotonic()
    with pytest.raises(UserError, match=r"tools\.py: line \d+: raised OSError: no database .* Nothing was promoted\."):
        smoke.check(changed(agent, {f"{RECIPE}/tools.py": tools_of(agent) + left_behind}))
    assert time.monotonic() - began < 60, "what it started does not keep us"
    hanging = {f"{RECIPE}/examples.py": "import time\ntime.sleep(60)\n"}
    with pytest.raises(
        InfrastructureError, match=r"hung: it took longer than 1 s to start, or than rollout.deadline_s"
    ):
        smoke.check(changed(agent, hanging), start_s=1)
    assert list(agent.at.clone.state.glob("agent-*")) == []


@pytest.mark.slow
def test_damaged_weights_are_told(agent: Agent) -> None:
    with pytest.raises(InfrastructureError, match=r"its weights cannot be loaded \(SafetensorError"):
        played(with_weights(agent, lambda content: content[:-100]))

    def diverged(content: bytes) -> bytes:
        whole = {name: tensor * float("nan") for name, tensor in load(content).items()}
        return save(whole, {"format": "pt"})

    with pytest.raises(InfrastructureError, match=r"example n-.* could not be played .*: see how the training went"):
        played(with_weights(agent, diverged))


@pytest.mark.slow
def test_turns_that_nobody_can_read_are_told(agent: Agent) -> None:
    first = (agent.at.read("data/examples/validation.jsonl") or b"").splitlines()[0].decode() + "\n"
    other = {"params.yaml": settings_of(agent, tool_format="llama3"), f"{RECIPE}/smoke.jsonl": first}
    with pytest.raises(UserError) as caught:
        played(changed(agent, other))
    message = str(caught.value)
    assert "none of its turns on 1 example could be read" in message
    assert f"Example {json.loads(first)['id']} ended with parse_error on '<tool_call>" in message
    assert "Set policy.tool_format to how this model writes its calls" in message


@pytest.mark.slow
def test_a_policy_on_a_server_that_this_clone_does_not_reach(agent: Agent) -> None:
    server = {"kind": "chat", "url": "http://127.0.0.1:9/v1", "model": "x"}
    with pytest.raises(InfrastructureError) as caught:
        played(changed(agent, {"params.yaml": settings_of(agent, server=server)}))
    assert "Cannot connect to host 127.0.0.1:9" in str(caught.value)
    assert "start that server, or promote from a clone that reaches it" in str(caught.value)
