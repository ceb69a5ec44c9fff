"""The champion's files in a run: their profile goes with the weights, and lies in DVC, not in Git.

Issue 12, items 6 (finding R12) and 7. Real Git and DVC.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import ladder_clone
import pytest

from rft import config, files, reports, stage_files
from rft.config import Retention
from rft.errors import UserError
from tasks import retention
from tasks.promotion import agents
from tasks.promotion.agents import Agent
from tasks.runs import by_hand, champion, records, repro
from tasks.runs import run as runs
from tasks.runs.artifacts import PROFILE, WEIGHTS, WINDOW, Revision
from tasks.runs.champion import BEGINNING, Served
from tasks.runs.clone import Clone
from tasks.runs.git import git, git_bytes
from tasks.runs.records import State

POINTER = f"{PROFILE}.dvc"
WHOLE = {"champion.json", "profile.json.dvc", "window.json.dvc", "weights.dvc"}
FIRST, SECOND, THIRD = (f'{{"window": "{word}"}}\n'.encode() for word in ("first", "second", "third"))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Clone, dict[str, str]]:
    """A clone with a promotion of weights, and two of prompts alone upon it: name -> revision. Each
    run has examples of its own."""
    scripted = ladder_clone.make(tmp_path_factory.mktemp("champion"))
    weights = run_ladder(scripted.clone, "promote", BEGINNING, FIRST)
    prompt = run_ladder(scripted.clone, "prompt_only", champion.from_revision(weights, "weights", 2), SECOND)
    again = run_ladder(scripted.clone, "prompt_only", champion.from_revision(prompt, "prompt", 3), THIRD)
    found = {"weights": weights, "prompt": prompt, "again": again}
    return scripted.clone, {name: at.commit for name, at in found.items()}


@pytest.fixture
def revision_of(template: tuple[Clone, dict[str, str]], tmp_path: Path) -> dict[str, Revision]:
    clone = Clone(Path(shutil.copytree(template[0].root, tmp_path / "clone", symlinks=True)))
    return {name: Revision(clone, commit) for name, commit in template[1].items()}


def run_ladder(clone: Clone, scenario: str, served: Served, profile: bytes, decision: str = "promote") -> Revision:
    """A whole recorded run, its stages' files put there."""
    params = config.load(clone.root / "params.yaml")
    with runs.start(clone, runs.plan(clone, params, served)) as run:
        shutil.copytree(ladder_clone._stage_files(scenario) / "data", run.tree / "data", dirs_exist_ok=True)  # type: ignore[arg-type]
        (run.tree / stage_files.INPUTS_PROFILE).write_bytes(profile)
        repro.dvc(run.tree, "commit", "--force", "--quiet")
        run.update(decision=decision)
    return Revision(clone, run.record.revision or "")


def begun(served: Served, clone: Clone) -> Revision:
    """A recorded run of no stage."""
    with runs.start(clone, runs.plan(clone, config.load(clone.root / "params.yaml"), served)) as run:
        pass
    return Revision(clone, run.record.revision or "")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def in_git(at: Revision) -> set[str]:
    """What Git holds of the champion."""
    listed = git(at.clone.root, "ls-tree", "-r", "--name-only", at.commit, "--", "data/champion")
    return {Path(name).name for name in listed.split()}


def cached(clone: Clone, content: bytes) -> Path:
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return clone.dvc_cache / "files/md5" / md5[:2] / md5[2:]


# -- it goes with the weights ----------------------------------------------------------------------
@pytest.mark.slow
def test_r12_a_promotion_of_a_prompt_alone_keeps_the_profile_of_the_weights(revision_of: dict[str, Revision]) -> None:
    first = champion.from_revision(revision_of["weights"], "weights", 2)
    assert first.champion.profile_sha256 == sha256(FIRST)
    for version, name in enumerate(("prompt", "again"), 3):
        at = revision_of[name]
        assert at.read(stage_files.INPUTS_PROFILE) in (SECOND, THIRD), "of a window that the weights never saw"
        served = champion.from_revision(at, name, version)
        assert served.champion.weights_sha256 == first.champion.weights_sha256
        assert (served.champion.profile_path, served.champion.profile_sha256) == ("profile.json", sha256(FIRST))
        assert served.profile == FIRST


@pytest.mark.slow
def test_the_base_model_has_no_profile_whatever_prompts_were_promoted(template: tuple[Clone, dict[str, str]]) -> None:
    clone, _ = template
    served = BEGINNING
    for version, profile in ((2, SECOND), (3, THIRD)):
        at = run_ladder(clone, "prompt_only", served, profile)
        served = champion.from_revision(at, "prompt", version)
        assert served.champion.prompt is not None
        assert (served.champion.profile_path, served.champion.profile_sha256, served.profile) == (None, None, None)
        assert in_git(at) == ({"champion.json"} if version == 2 else {"champion.json", "window.json.dvc"})


@pytest.mark.slow
def test_the_champion_brings_the_profile_of_the_traffic_that_its_run_saw(revision_of: dict[str, Revision]) -> None:
    """Of its own run, also where only a prompt was promoted: that agent made that traffic."""
    for name in ("weights", "prompt"):
        served = champion.from_revision(revision_of[name], name, 2)
        assert served.window is not None
        assert served.window == revision_of[name].read(stage_files.CURRENT_PROFILE)
        assert (served.champion.window_path, served.champion.window_sha256) == ("window.json", sha256(served.window))
        assert begun(served, revision_of[name].clone).read(WINDOW) == served.window


# -- Git holds its hash, DVC its bytes -------------------------------------------------------------
def test_git_holds_the_hash_of_the_profile_and_dvc_its_bytes(revision_of: dict[str, Revision]) -> None:
    for at in (revision_of["prompt"], revision_of["again"]):
        assert in_git(at) == WHOLE
        assert json.loads(at.file("data/champion/champion.json") or b"")["profile_sha256"] == sha256(FIRST)
        assert at.outs[PROFILE].md5 == cached(at.clone, FIRST).parent.name + cached(at.clone, FIRST).name
        assert at.read(PROFILE) == FIRST
    objects = git_bytes(revision_of["again"].clone.root, "cat-file", "--batch-all-objects", "--batch")
    assert not any(profile in objects for profile in (FIRST, SECOND, THIRD))


@pytest.mark.slow
def test_a_worktree_holds_the_profile_as_dvc_checks_it_out(revision_of: dict[str, Revision]) -> None:
    clone = revision_of["again"].clone
    served = champion.from_revision(revision_of["again"], "again", 4)
    with runs.start(clone, runs.plan(clone, config.load(clone.root / "params.yaml"), served)) as run:
        assert (run.tree / PROFILE).read_bytes() == FIRST
        assert reports.read(reports.Champion, run.stage_folder("champion") / "champion.json") == served.champion
        pointers = (POINTER, f"{WEIGHTS}.dvc")
        assert "up to date" in repro.dvc(run.tree, "status", *pointers)
        for path in (PROFILE, WEIGHTS):
            files.delete(run.tree / path)
        repro.dvc(run.tree, "checkout", *pointers)
        assert (run.tree / PROFILE).read_bytes() == FIRST
        assert files.tree_sha256(run.tree / WEIGHTS) == served.champion.weights_sha256


@pytest.mark.slow
def test_gc_keeps_the_profile_that_a_later_champion_has_from_an_old_run(tmp_path: Path) -> None:
    clone = ladder_clone.make(tmp_path).clone
    before = Served(reports.Champion(version=2))  # else it would hold the beginning
    old = run_ladder(clone, "promote", before, FIRST, decision="reject")  # nobody waits for it
    young = run_ladder(clone, "prompt_only", champion.from_revision(old, "old", 3), SECOND)
    with retention.alone(clone):
        todo = retention.plan(clone, Retention(work_days=0, logs_days=0, pages_days=0, cache_days=0))
        retention.carry_out(clone, todo, lambda done, total: None)
    assert old.commit in todo.revisions
    with pytest.raises(UserError, match="is past its retention"):
        old.report(reports.Decision)
    assert champion.from_revision(young, "young", 4).profile == FIRST


@pytest.mark.slow
def test_what_the_users_commit_holds_of_an_earlier_champion_is_not_recorded_again(
    revision_of: dict[str, Revision],
) -> None:
    """Somebody may have committed what `dvc exp apply` brought, also with version 0.1.0."""
    clone, at = revision_of["again"].clone, revision_of["again"]
    clone.git("checkout", "--quiet", at.commit, "--", "data/champion")
    (clone.root / PROFILE).write_bytes(SECOND)
    clone.git("add", "--force", "data/champion")
    clone.git("commit", "--quiet", "--message", "a champion of then")
    assert in_git(Revision(clone, "HEAD")) == WHOLE | {"profile.json"}
    bare = begun(BEGINNING, clone)
    assert in_git(bare) == {"champion.json"}
    assert bare.outs == {}
    later = begun(champion.from_revision(at, "again", 4), clone)
    assert in_git(later) == WHOLE
    assert later.read(PROFILE) == FIRST


@pytest.mark.slow
def test_a_stage_by_hand_has_the_profile_too(revision_of: dict[str, Revision]) -> None:
    clone, at = revision_of["again"].clone, revision_of["again"]
    clone.git("checkout", "--quiet", at.commit, "--", "data/champion")
    repro.dvc(clone.root, "checkout", POINTER, f"{WINDOW}.dvc", f"{WEIGHTS}.dvc")
    assert (clone.root / PROFILE).read_bytes() == FIRST
    outcome = by_hand.run_stage(clone, config.load(clone.root / "params.yaml"), "traffic")
    assert outcome.how == "restored", "its inputs are those of the run, all files of the champion among them"


# -- revisions of version 0.1.0 --------------------------------------------------------------------
def as_before(at: Revision, profile: bytes) -> Revision:
    """The same revision as version 0.1.0 recorded it: the profile in Git, and its hash nowhere."""
    root, index = at.clone.root, at.clone.state / "index"
    told = json.loads(at.file("data/champion/champion.json") or b"")
    for key in ("profile_sha256", "window_path", "window_sha256"):
        told.pop(key, None)
    content = {
        PROFILE: profile,
        "data/champion/champion.json": json.dumps(told | {"profile_path": "profile.json"}).encode(),
    }
    git(root, "read-tree", at.commit, index=index)
    git(root, "rm", "--cached", "--quiet", "--force", "--ignore-unmatch", "--", POINTER, f"{WINDOW}.dvc", index=index)
    for path, text in content.items():
        blob = git(root, "hash-object", "-w", "--stdin", given=text)
        git(root, "update-index", "--add", "--cacheinfo", f"100644,{blob},{path}", index=index)
    tree = git(root, "write-tree", index=index)
    return Revision(at.clone, git(root, "commit-tree", tree, "-p", at.commit, given=b"as before"))


@pytest.mark.slow
def test_an_old_revision_with_the_profile_in_git_still_lays_out(revision_of: dict[str, Revision]) -> None:
    old = as_before(revision_of["prompt"], FIRST)
    cached(old.clone, FIRST).unlink()  # it is in Git, and may be nowhere else
    served = champion.from_revision(old, "prompt", 3)
    assert (served.profile, served.champion.profile_sha256) == (FIRST, sha256(FIRST))
    later = begun(served, old.clone)
    assert in_git(later) == WHOLE
    assert later.read(PROFILE) == FIRST
    assert not os.access(cached(old.clone, FIRST), os.W_OK) or os.getuid() == 0


@pytest.mark.slow
def test_an_old_revision_gave_the_base_model_a_profile_that_is_not_its_own(
    template: tuple[Clone, dict[str, str]],
) -> None:
    clone, _ = template
    at = run_ladder(clone, "prompt_only", Served(reports.Champion(version=2)), SECOND)
    assert champion.from_revision(as_before(at, THIRD), "prompt", 3).champion.profile_path is None


# -- where it is read ------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_profile_that_is_not_the_recorded_one_is_refused(revision_of: dict[str, Revision]) -> None:
    at = revision_of["prompt"]
    raw = json.loads(at.file("data/champion/champion.json") or b"") | {"profile_sha256": sha256(SECOND)}
    index = at.clone.state / "index"
    git(at.clone.root, "read-tree", at.commit, index=index)
    blob = git(at.clone.root, "hash-object", "-w", "--stdin", given=json.dumps(raw).encode())
    git(at.clone.root, "update-index", "--cacheinfo", f"100644,{blob},data/champion/champion.json", index=index)
    tree = git(at.clone.root, "write-tree", index=index)
    changed = Revision(at.clone, git(at.clone.root, "commit-tree", tree, given=b"changed"))
    with pytest.raises(UserError, match=rf"run prompt: data/champion/profile\.json has hash {sha256(FIRST)}, but its"):
        champion.from_revision(changed, "prompt", 3)


def test_an_agent_is_laid_out_with_its_own_profile(revision_of: dict[str, Revision]) -> None:
    """Not with that of the champion that its run began with, which lies in the revision."""
    for name in ("weights", "prompt"):
        served = champion.from_revision(revision_of[name], name, 2)
        agent = Agent("tiny", 2, served, revision_of[name], name, "challenger", "approved")
        with agents.laid_out(agent) as tree:
            assert (tree / PROFILE).read_bytes() == FIRST
            assert files.tree_sha256(tree / WEIGHTS) == served.champion.weights_sha256


# -- what else a revision says ---------------------------------------------------------------------
@pytest.mark.parametrize("state", ["stopped", "failed", "finished"])
def test_git_keeps_no_message_that_may_quote_a_conversation(tmp_path: Path, state: State) -> None:
    clone, message = ladder_clone.make(tmp_path).clone, "of 200 bad, such as 'my chest hurts'"
    with runs.start(clone, runs.plan(clone, config.load(clone.root / "params.yaml"), BEGINNING)) as run:
        run.update(state=state, message=message)
    told = json.loads(clone.git("log", "-1", "--format=%b", run.record.revision or ""))
    assert (told["state"], told["message"]) == (state, "")
    assert records.find(clone, run.name).message == message, "this clone remembers it"
