"""`rft upgrade`: which stages another version repeats, and what it writes anew."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, get_args

import ladder_clone
import pytest
from ladder_clone import Scripted

from flows import cli, settings
from rft import config
from rft.config.section import Section
from rft.errors import UserError
from tasks import dependencies
from tasks.runs import engine, records, upgrade, workspace
from tasks.runs.clone import Clone

AGENTS = ("agents/refunds", "agents/billing")


@pytest.fixture(scope="module")
def _made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ladder_clone.make(tmp_path_factory.mktemp("upgrade"), agents=AGENTS).root.parent


@pytest.fixture
def refunds(_made: Path, tmp_path: Path) -> Scripted:
    shutil.copytree(_made / "clone", tmp_path / "clone", symlinks=True)
    return Scripted(Clone(tmp_path / "clone", AGENTS[0]), _made / "script")


@pytest.mark.slow
def test_the_stages_that_can_load_what_changed_are_named_and_no_others(
    refunds: Scripted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refunds.rft("run").returncode == 0
    clone = refunds.clone
    params = settings.resolve(clone)
    assert upgrade.outlook(clone, params).changed == {}
    changed = "rft/stages/gate.py"
    (refunds.root / changed).write_text((refunds.root / changed).read_text() + "\n\nVERSION = 2\n")
    found = upgrade.outlook(clone, params)
    (record,) = records.load_all(clone)
    assert (found.run, found.changed) == (record.name, {"gate": [changed]})
    assert found.version
    monkeypatch.chdir(refunds.home)
    before = refunds.git("for-each-ref"), refunds.git("status", "--porcelain")
    assert cli.main(["upgrade", "--check"]) == 0
    assert f"gate         would run again: {changed}" in capsys.readouterr().out
    assert cli.main(["upgrade"]) == 0
    assert (refunds.git("for-each-ref"), refunds.git("status", "--porcelain")) == before, "nothing to write"
    ran = len(refunds.ran())
    assert refunds.rft("run").returncode == 0
    assert refunds.ran()[ran:] == ["gate"]


def test_a_dvc_yaml_that_was_edited_by_hand_is_kept_and_written_anew(refunds: Scripted) -> None:
    place, written = refunds.home / "dvc.yaml", (refunds.home / "dvc.yaml").read_text()
    (refunds.root / engine.START).unlink()  # what only a clone of agent-rft has
    upgrade.refuse_stale(refunds.clone)
    place.write_text(written.replace("exec rft-stage gate", "python gate.py"))
    with pytest.raises(UserError, match=r"agents/refunds/dvc.yaml was edited by hand.*rft upgrade.*dvc.yaml.edited"):
        upgrade.refuse_stale(refunds.clone)
    assert upgrade.rewrite(refunds.clone) == [("dvc.yaml", "dvc.yaml.edited")]
    assert place.read_text() == written
    assert "python gate.py" in (refunds.home / "dvc.yaml.edited").read_text()
    assert upgrade.stale(refunds.clone) == []


def test_an_agent_that_git_ignores_is_refused_by_name(refunds: Scripted) -> None:
    upgrade.refuse_stale(refunds.clone)
    (refunds.root / ".gitignore").write_text("/agents/\n")
    upgrade.refuse_stale(refunds.clone)  # what is tracked stays so
    refunds.git("rm", "-r", "--cached", "--quiet", "agents/refunds")
    with pytest.raises(UserError, match=r"agents/refunds: Git ignores it, so no run can record it. Take it out"):
        upgrade.refuse_stale(refunds.clone)


def test_that_of_another_version_is_none_that_was_edited(refunds: Scripted) -> None:
    (refunds.root / engine.START).unlink()
    older = "# The ladder, by an older version.\nstages: {}\n"
    (refunds.home / "dvc.yaml").write_text(older)
    (refunds.home / ".gitignore").write_text("/data/*\n/mine\n")
    with pytest.raises(UserError, match=r"was written by another version of agent-rft.*rft upgrade --check"):
        upgrade.refuse_stale(refunds.clone)
    assert upgrade.rewrite(refunds.clone) == [("dvc.yaml", None), (".gitignore", None)]
    assert (refunds.home / ".gitignore").read_text().splitlines()[-1] == "/mine"


def test_the_agents_of_this_repository_have_the_stages_of_this_version(repository: Path) -> None:
    for agent in workspace.agents(repository):
        text = (repository / agent.folder / "dvc.yaml").read_text()
        assert text == dependencies.render(repository), f"cp dvc.yaml {agent.folder}/dvc.yaml"
        assert not dependencies.is_edited(text)


def _sections(kind: Any) -> dict[str, type[Section]]:
    """List the sections of params.yaml that a type names, by their classes."""
    if isinstance(kind, type) and issubclass(kind, Section):
        found = {kind.__name__: kind}
        for field in kind.model_fields.values():
            found |= _sections(field.annotation)
        return found
    return {name: section for part in get_args(kind) for name, section in _sections(part).items()}


def test_a_key_that_comes_later_is_left_out_where_it_is_not_set() -> None:
    """Otherwise it would unsettle the thresholds that are registered in every ledger, and repeat
    every stage of its section. tests/golden/first_keys.json has the keys of 0.1, and stays: a new
    key is named in LATER of its section (rft/config/section.py)."""
    first = json.loads((Path(__file__).parents[1] / "golden/first_keys.json").read_text())
    for name, section in _sections(config.Params).items():
        later = set(section.model_fields) - set(first.get(name, section.model_fields))
        assert later <= set(getattr(section, "LATER", ())), name
