"""`rft export` (item 5; N5): what is in the folder speaks as our engine does, and what must not be
exported is not."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import shlex
import shutil
import warnings
from pathlib import Path
from typing import Any

import agent_clone as clones
import ladder_clone
import people
import pytest
import torch
from safetensors.torch import load_file, save_file

from flows import cli
from rft import commands, config, export, files, reports
from rft.chat.formats import FAMILIES
from rft.errors import InfrastructureError, UserError
from rft.export import vllm
from rft.rollouts.prompting import champion_prompt
from rft.sampling.engine import Engine
from rft.sampling.policies import base_model
from rft.types import Opening
from tasks import export as exporting
from tasks.display import tracking
from tasks.ledger import book
from tasks.promotion import acts, agents, champions
from tasks.runs import records, repro
from tasks.runs import run as runs
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone
from tests import families, small_policy
from tests.ladder import params as small_params

pytestmark = pytest.mark.slow

QUESTIONS = [f"value of k{number:04d}" for number in (3, 12, 1224, 7777)]
QUESTIONS += ["value of the key", "k0003 k0012 k1224", "k77", "what do you know of k4711 and of 4711?"]
"""The last four are none that it was trained on."""


@pytest.fixture
def here(agent_clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    """A copy of the clone, which is the current folder. One run waits for approval."""
    return copied(agent_clone, tmp_path, monkeypatch)


@pytest.fixture
def approved(approved_clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    """The same, approved."""
    return copied(approved_clone, tmp_path, monkeypatch)


def copied(root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    clone = Clone(Path(shutil.copytree(root, folder / "clone", symlinks=True)))
    monkeypatch.chdir(clone.root)
    return clone


def run_name(clone: Clone) -> str:
    return records.load_all(clone)[-1].name


def manifest(folder: Path) -> export.Manifest:
    return reports.read(export.Manifest, folder / "manifest.json")


# -- it speaks as it did here ----------------------------------------------------------------------
def ours(clone: Clone, which: str) -> list[tuple[list[int], list[int]]]:
    """Prompt and greedy answer of our engine, as tokens, on the agent's own files."""
    with agents.laid_out(agents.find(clone, which)) as tree, contextlib.chdir(tree):
        params = config.load()
        network, chat = base_model(params, "champion", small_policy.device())
        system = champion_prompt(export.recipe.load(params.recipe)).system
        first = ({"role": "system", "content": system},) if system else ()
        openings = [Opening((*first, {"role": "user", "content": question})) for question in QUESTIONS]
        session = Engine(network, chat, small_policy.device()).session(
            openings, [[n] for n in range(len(openings))], 0.0, 200
        )
        prompts = [list(ids) for ids in session.pending]
        return [
            (prompt, list(turn.ids))
            for prompt, turn in zip(prompts, session.sample(list(range(len(openings))), 24), strict=True)
        ]


def loaded(folder: Path) -> tuple[Any, Any]:
    """Tokenizer and model, with transformers and peft on nothing but the export."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = folder / ("model" if (folder / "model").exists() else "base")
    tokenizer: Any = AutoTokenizer.from_pretrained(source)
    network: Any = AutoModelForCausalLM.from_pretrained(source)
    if (folder / "adapter").exists():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of peft, about transformers
            network = PeftModel.from_pretrained(network, str(folder / "adapter"))
    return tokenizer, network.eval()


def theirs(folder: Path) -> list[tuple[list[int], list[int]]]:
    """The same on the export."""
    from transformers import GenerationConfig

    tokenizer, network = loaded(folder)
    request = json.loads((folder / "request.json").read_text())
    settings = GenerationConfig.from_pretrained(
        folder, do_sample=False, temperature=None, top_p=None, top_k=None, max_new_tokens=request["max_tokens"]
    )
    found = []
    for question in QUESTIONS:
        messages = [*request["messages"][:-1], {"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(
            messages, tools=json.loads((folder / "tools.json").read_text()),
            chat_template=(folder / "chat_template.jinja").read_text(), tokenize=False, add_generation_prompt=True,
        )  # fmt: skip
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        with torch.no_grad():
            answer = network.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)[
                0, ids.shape[1] :
            ]
        found.append((ids[0].tolist(), answer.tolist()))
    return found


@torch.no_grad()
def moved(folder: Path) -> float:
    """How far the adapter moves the logits of a question, at most."""
    tokenizer, network = loaded(folder)
    ids = tokenizer(QUESTIONS[0], add_special_tokens=False, return_tensors="pt").input_ids
    logits = network(ids).logits
    with network.disable_adapter():
        return float((logits - network(ids).logits).abs().max())


def test_what_is_exported_speaks_as_it_did_here(approved: Clone, capsys: pytest.CaptureFixture[str]) -> None:
    """Adapter on its base, and merged in float32: token by token. Three steps need not change the
    likeliest word of any answer, so that the adapter counts is seen in the logits."""
    known = ours(approved, "champion")
    for name, options in (("adapter", []), ("merged", ["--merge", "--dtype", "float32"])):
        assert cli.main(["export", "champion", f"exports/{name}", *options]) == 0
        assert theirs(approved.root / "exports" / name) == known
    assert cli.main(["export", "0", "exports/beginning"]) == 0
    before = theirs(approved.root / "exports/beginning")
    assert before == ours(approved, "0")
    assert moved(approved.root / "exports/adapter") > 0.1
    assert not (approved.root / "exports/beginning/adapter").exists()
    assert "give 12 recorded openings token by token" in capsys.readouterr().out
    assert "exports" not in approved.git("status", "--porcelain"), "exports/ is not a part of a run"


def test_every_byte_is_named_and_comes_by_hash(approved: Clone) -> None:
    assert cli.main(["export", "champion", "exports/a"]) == 0
    folder = approved.root / "exports/a"
    made = manifest(folder)
    paths = {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
    assert {name: one.sha256 for name, one in made.files.items()} == {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items()
    }
    at = Revision(approved, made.origin.revision)
    trained = at.report(reports.TrainReport)
    policy = at.report(reports.PolicyReport)
    assert trained
    assert policy
    assert files.tree_sha256(folder / "adapter") == trained.sha256 == made.weights.sha256
    assert files.tree_sha256(folder / "base") == policy.sha256 == made.base.sha256
    assert (folder / "system_prompt.txt").read_text() == clones.SYSTEM
    assert json.loads((folder / "prompt.json").read_text())["system"] == clones.SYSTEM
    sampling = json.loads((folder / "sampling.json").read_text())
    assert (
        sampling["temperature"],
        sampling["max_tokens"],
        sampling["max_tokens_per_turn"],
        sampling["max_turns"],
    ) == (1, 200, 24, 3)
    assert [tool["function"]["name"] for tool in json.loads((folder / "tools.json").read_text())] == ["lookup"]
    assert str(approved.root) not in (folder / "README.md").read_text()
    again = approved.root.parent / "again"
    assert cli.main(["export", "champion", str(again)]) == 0
    assert {name: path.read_bytes() for name, path in paths.items()} == {
        name: (again / name).read_bytes() for name in paths
    }


def test_a_cast_is_one_and_says_what_it_cost(here: Clone) -> None:
    """R6: bfloat16 moves the weights by as much as it says, once."""
    for dtype in ("float32", "bfloat16"):
        assert cli.main(["export", run_name(here), f"exports/{dtype}", "--merge", "--dtype", dtype]) == 0
    states = {
        dtype: load_file(here.root / "exports" / dtype / "model/model.safetensors") for dtype in ("float32", "bfloat16")
    }
    assert {one.dtype for one in states["bfloat16"].values()} == {torch.bfloat16}
    assert all(torch.equal(one.to(torch.bfloat16), states["bfloat16"][name]) for name, one in states["float32"].items())
    moved = max(float((one - states["bfloat16"][name].float()).abs().max()) for name, one in states["float32"].items())
    exact, cast = (manifest(here.root / "exports" / dtype).weights.moved for dtype in ("float32", "bfloat16"))
    assert exact
    assert cast
    assert (exact.by_cast, exact.kept) == (0, pytest.approx(1, abs=1e-6))
    assert cast.by_cast == pytest.approx(moved) != 0
    assert 0.5 < (cast.kept or 0) < 1
    assert exact.by_training == cast.by_training > 0
    assert f"moved a weight by {moved:.3g} at most" in (here.root / "exports/bfloat16/README.md").read_text()


# -- what vLLM is told -----------------------------------------------------------------------------
def flags(folder: Path) -> dict[str, str]:
    text = (folder / "README.md").read_text().split("```bash\n")[1].split("\n```")[0]
    words = shlex.split(text.replace("\\\n", " "))
    assert words[:2] == ["vllm", "serve"]
    found = {"": words[2]}
    for word, following in zip(words[3:], [*words[4:], "--"], strict=True):
        if word.startswith("--"):
            found[word] = "" if following.startswith("--") else following
    return found


def test_the_line_that_starts_vllm(approved: Clone) -> None:
    """Each path in it exists; the names are those of the request."""
    for name, options in (("adapter", []), ("merged", ["--merge", "--dtype", "bfloat16"])):
        assert cli.main(["export", "champion", f"exports/{name}", *options]) == 0
    folder, name = approved.root / "exports/adapter", f"tiny-{number(approved)}"
    assert flags(folder) == {
        "": "./base",
        "--served-model-name": f"{name}-base",
        "--enable-lora": "",
        "--max-lora-rank": "8",
        "--lora-modules": f"{name}=./adapter",
        "--dtype": "float32",
        "--max-model-len": "200",
        "--chat-template": "./chat_template.jinja",
        "--generation-config": ".",
        "--enable-auto-tool-choice": "",
        "--tool-call-parser": "hermes",
    }
    assert json.loads((folder / "request.json").read_text())["model"] == name
    merged = flags(approved.root / "exports/merged")
    assert (merged[""], merged["--served-model-name"], merged["--dtype"]) == ("./model", name, "bfloat16")
    assert "--enable-lora" not in merged
    for path in (
        "base/config.json",
        "base/tokenizer.json",
        "adapter/adapter_model.safetensors",
        "chat_template.jinja",
        "generation_config.json",
    ):
        assert (folder / path).exists()


def test_every_family_has_a_parser() -> None:
    assert set(vllm.PARSERS) == set(FAMILIES)
    for name, one in families.FAMILIES.items():
        assert vllm.family(export.Chat(families.tokenizer(name), []).format) == one.format


def number(clone: Clone) -> int:
    return book.read(clone).state.champion("tiny")


# -- which agent -----------------------------------------------------------------------------------
def test_a_run_that_nobody_approved_says_so(here: Clone, capsys: pytest.CaptureFixture[str]) -> None:
    name = run_name(here)
    assert cli.main(["export", name[-6:], "exports/waits"]) == 0
    assert "not approved: it waits for approval" in capsys.readouterr().err
    assert "**Not approved: it waits for approval.**" in (here.root / "exports/waits/README.md").read_text()
    made = manifest(here.root / "exports/waits")
    assert (made.approved, made.origin.version, made.origin.run) == (False, None, name)
    acts.reject(here, name, people.signer("Bob"), "odd words")
    assert cli.main(["export", name, "exports/no"]) == 0
    assert "**Not approved: rejected by bob on" in (here.root / "exports/no/README.md").read_text()


def test_an_approved_run_is_its_version(approved: Clone) -> None:
    assert cli.main(["export", run_name(approved), "exports/a"]) == 0
    made = manifest(approved.root / "exports/a")
    assert (made.approved, made.origin.version) == (True, number(approved))
    assert made.origin.standing.startswith("champion; approved by ada on ")
    assert "Not approved" not in (approved.root / "exports/a/README.md").read_text()


def test_a_prompt_alone_goes_with_the_weights_that_it_was_judged_with(
    approved: Clone, capsys: pytest.CaptureFixture[str]
) -> None:
    """The champion's adapter and the new words. That no rollout shows what they are rendered to is
    said."""
    settings = reports.PromptSettings(name="terse", system="Look it up. Be terse.", max_turns=2)
    params = config.load()
    served = champions.of_params(approved, params)
    scripted = clones.run_again(approved, approved.root.parent / "script")
    data = scripted.script / "data"
    report = reports.read(reports.PromptReport, data / "prompt/report.json").model_copy(
        update={"winner": settings, "found": True}
    )
    reports.write(report, data / "prompt/report.json")
    reports.write(settings, data / "prompt/prompt.json")
    train = reports.read(reports.TrainReport, data / "train/report.json")
    reports.write(
        train.model_copy(update={"trained": False, "weights": "none", "path": None, "sha256": None}),
        data / "train/report.json",
    )
    assert clones.decide(data, params).candidate == "champion_new_prompt"
    for name in ("rollouts.parquet", "shown.parquet"):  # no rollout had these words
        (data / "challenger" / name).unlink()
        shutil.copy(data / "baseline/rollouts.parquet", data / "challenger" / name)
    record = ladder_clone.run_ladder(scripted)
    assert record.champion_version == number(approved)
    assert cli.main(["export", record.name, "exports/words"]) == 0
    folder = approved.root / "exports/words"
    assert (folder / "system_prompt.txt").read_text() == settings.system
    assert manifest(folder).weights.sha256 == served.champion.weights_sha256 == files.tree_sha256(folder / "adapter")
    assert json.loads((folder / "sampling.json").read_text())["max_turns"] == 2
    why = f"o recorded opening was compared: run {record.name} recorded no tokens of a rollout with it"
    assert f"warning: n{why}" in capsys.readouterr().err
    assert f"**N{why}.**" in (folder / "README.md").read_text()
    assert (manifest(folder).openings_compared, manifest(folder).not_compared) == (0, why.partition(": ")[2])


@pytest.mark.story
def test_a_given_base_model_is_named_and_not_copied(
    here: Clone, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its bytes must still be those of the run. Merged, it is inside."""
    scripted = clones.run_again(here, tmp_path / "script")
    policy, given = scripted.script / "data/policy", tmp_path / "given"
    (policy / "model").rename(given)
    pointer = reports.read(reports.PolicyReport, policy / "report.json").model_copy(
        update={"kind": "given", "model": str(given)}
    )
    reports.write(pointer, policy / "report.json")
    scripted.set_params(policy={"model": str(given), "architecture": {}, "warm_start": {}})
    name = ladder_clone.run_ladder(scripted).name
    assert cli.main(["export", name, "exports/named"]) == 0
    folder = here.root / "exports/named"
    made = manifest(folder)
    assert (made.base.kind, made.base.name, made.base.path, made.base.verified) == ("given", str(given), None, True)
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["adapter", "tokenizer"]
    assert (flags(folder)[""], flags(folder)["--tokenizer"]) == (str(given), "./tokenizer")
    assert cli.main(["export", name, "exports/whole", "--merge"]) == 0
    assert theirs(here.root / "exports/whole") == ours(here, name)
    (given / "config.json").write_text((given / "config.json").read_text() + "\n")
    assert cli.main(["export", name, "exports/changed"]) == 2
    assert "config.json has SHA-256" in capsys.readouterr().err
    assert not (here.root / "exports/changed").exists()


@pytest.mark.story
def test_a_warm_started_base_model_is_inside_and_what_it_was_made_of_is_named(
    here: Clone, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run made it, so the package holds it; the audit goes on to the model that was given."""
    scripted = clones.run_again(here, tmp_path / "script")
    policy, given = scripted.script / "data/policy", tmp_path / "given"
    shutil.copytree(policy / "model", given)
    (given / "config.json").write_text((given / "config.json").read_text() + "\n")
    of = {"kind": "warm_started", "base": str(given), "base_sha256": files.tree_sha256(given), "weights": "lora"}
    pointer = reports.read(reports.PolicyReport, policy / "report.json").model_copy(update=of)
    reports.write(pointer, policy / "report.json")
    warm = {"weights": "lora", "lr": 5e-4, "steps": 48}
    scripted.set_params(policy={"model": str(given), "architecture": {}, "warm_start": warm})
    name = ladder_clone.run_ladder(scripted).name
    assert cli.main(["export", name, "exports/made"]) == 0
    folder = here.root / "exports/made"
    made = manifest(folder)
    assert (made.base.kind, made.base.path, made.base.verified) == ("warm_started", "base", True)
    assert files.tree_sha256(folder / "base") == pointer.sha256
    capsys.readouterr()
    assert cli.main(["audit", name]) == 0
    assert f"base model {given}" in capsys.readouterr().out
    (given / "config.json").write_text("{}")
    assert cli.main(["audit", name]) == 1
    assert f"the model {given}" in capsys.readouterr().out


def test_a_chat_endpoint_has_its_weights_itself(
    here: Clone, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The prompt is what changes there; the request goes to that address and model."""
    scripted = clones.run_again(here, tmp_path / "script")
    server = {"kind": "chat", "url": "https://api.example.com/v1", "model": "m-1"}
    scripted.set_params(policy={"server": server, "architecture": {}, "warm_start": {}})
    data = scripted.script / "data"
    shutil.rmtree(data / "policy/model")
    reports.write(
        reports.PolicyReport(kind="served", model="m-1", sha256="0" * 64, num_parameters=0), data / "policy/report.json"
    )
    train = reports.read(reports.TrainReport, data / "train/report.json")
    reports.write(
        train.model_copy(update={"trained": False, "weights": "none", "path": None, "sha256": None}),
        data / "train/report.json",
    )
    prompt = reports.read(reports.PromptReport, data / "prompt/report.json").model_copy(update={"found": True})
    reports.write(prompt, data / "prompt/report.json")
    clones.decide(data, config.load())
    name = ladder_clone.run_ladder(scripted).name
    assert cli.main(["export", name, "exports/served"]) == 0
    folder = here.root / "exports/served"
    text = (folder / "README.md").read_text()
    assert "model `m-1` at https://api.example.com/v1" in text
    assert "curl -s https://api.example.com/v1/chat/completions" in text
    assert "vllm serve" not in text
    assert json.loads((folder / "request.json").read_text())["model"] == "m-1"
    assert manifest(folder).openings_compared == 0
    assert "**No recorded opening was compared: a chat endpoint renders its openings itself.**" in text
    assert cli.main(["export", name, "exports/merged", "--merge"]) == 2
    assert "the weights of 'm-1' are at its endpoint" in capsys.readouterr().err


def test_full_weights_are_one_whole_model(ladder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And an agent without a system prompt has none."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = clones.make(tmp_path / "a", ladder, full=True)
    record = ladder_clone.run_ladder(scripted)
    monkeypatch.chdir(scripted.root)
    assert cli.main(["export", record.name, "exports/full"]) == 0
    folder = scripted.root / "exports/full"
    assert theirs(folder) == ours(scripted.clone, record.name)
    made = manifest(folder).weights
    assert (made.kind, made.path, made.dtype) == ("full", "model", "float32")
    assert made.moved
    assert made.moved.by_cast == 0 < made.moved.by_training
    assert (folder / "system_prompt.txt").read_text() == ""
    assert [message["role"] for message in json.loads((folder / "request.json").read_text())["messages"]] == ["user"]


def test_the_beginning_stays_what_the_first_promotion_replaced(
    approved: Clone, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A later run with another policy, cut off before its baseline, was taken for the beginning:
    its random weights were exported."""
    first = records.load_all(approved)[0]
    assert cli.main(["export", "0", "exports/before"]) == 0
    acts.rollback(approved, "tiny", people.signer("Ada"), "odd words")
    cut_off_after_policy(approved, tmp_path)
    assert cli.main(["export", "champion", "exports/after"]) == 0
    before, after = (manifest(approved.root / "exports" / name) for name in ("before", "after"))
    assert (after.base.sha256, after.origin.version, after.origin.run) == (before.base.sha256, 0, first.name)
    assert after.openings_compared == before.openings_compared > 0
    assert after.not_compared is None
    assert "no recorded opening" not in capsys.readouterr().err


def cut_off_after_policy(clone: Clone, folder: Path) -> records.RunRecord:
    """The newest run, whose settings made another policy, and which came no further."""
    params = config.load()
    params = params.model_copy(update={"policy": params.policy.model_copy(update={"seed": 99})})
    stage_folder = clones.run_again(clone, folder / "other").script / "data/policy"
    for path in (stage_folder / "model").glob("*.safetensors"):
        save_file(
            {name: torch.randn_like(one) for name, one in load_file(path).items()}, path, metadata={"format": "pt"}
        )
    pointer = reports.read(reports.PolicyReport, stage_folder / "report.json")
    reports.write(
        pointer.model_copy(update={"sha256": files.tree_sha256(stage_folder / "model")}), stage_folder / "report.json"
    )
    plan = runs.plan(clone, params, champions.of_params(clone, params))
    with pytest.raises(KeyboardInterrupt), runs.start(clone, plan) as run:  # noqa: PT012
        shutil.copytree(stage_folder, run.tree / "data/policy", dirs_exist_ok=True)
        repro.dvc(run.tree, "commit", "--force", "--quiet", "policy")
        raise KeyboardInterrupt
    at = Revision(clone, run.record.revision or "")
    assert "data/policy" in at.outs
    assert "data/baseline/report.json" not in at.outs
    return run.record


def test_the_beginning_is_what_a_run_measured(here: Clone, tmp_path: Path) -> None:
    """Before any promotion, too; and never a run whose bytes are gone."""
    first = records.load_all(here)[0]
    later = cut_off_after_policy(here, tmp_path)
    assert later.started >= first.started
    assert agents.find(here, "champion").run == first.name
    records.save(here, first.model_copy(update={"bytes_removed": records.now()}))
    with pytest.raises(
        UserError, match=r"no run of this clone that still has its bytes measured its base policy. Start one: \S+ run"
    ):
        agents.find(here, "champion")


@pytest.mark.story
def test_what_was_rolled_back_is_not_approved(approved: Clone, capsys: pytest.CaptureFixture[str]) -> None:
    """It called itself approved, with no word of the rollback. Approved again, it is."""
    promoted = number(approved)
    acts.rollback(approved, "tiny", people.signer("Ada"), "harmful answers")
    for which, name in ((str(promoted), "number"), (run_name(approved), "run")):
        assert cli.main(["export", which, f"exports/{name}"]) == 0
        made = manifest(approved.root / "exports" / name)
        assert not made.approved
        assert (made.origin.version, made.origin.withdrawn) == (promoted, True)
        assert made.origin.standing.startswith("rolled back by ada on ")
        assert ": harmful answers; before that approved by ada on " in made.origin.standing
        assert "warning: not approved: rolled back by ada on" in capsys.readouterr().err
        text = (approved.root / "exports" / name / "README.md").read_text()
        assert text.startswith(f"# tiny, champion {promoted}\n\n**Not approved any more: rolled back by ada on ")
        assert (
            json.loads((approved.root / "exports" / name / "request.json").read_text())["model"] == f"tiny-{promoted}"
        )
    assert not agents.find(approved, "0").withdrawn
    people.approve(approved, run_name(approved), "Ada", "it was not this")
    again = agents.find(approved, "champion")
    assert (again.version, again.withdrawn) == (number(approved), False)
    assert again.standing.startswith("champion; approved by ada on ")
    assert again.standing.endswith("it was not this")


def test_what_is_to_be_typed_is_whole(here: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the program and the settings: those of this process, or of the run."""
    monkeypatch.setenv(commands.PROGRAM, "./rft")
    monkeypatch.setenv(commands.SETTINGS, "--params other.yaml")
    record = records.load_all(here)[0]
    with pytest.raises(UserError, match=r"see \./rft runs$"):
        agents.find(here, "7")
    records.save(here, record.model_copy(update={"revision": None, "settings": ["--set", "train.steps=4"]}))
    with pytest.raises(UserError, match=r"start it again: \./rft run --set train\.steps=4$"):
        agents.find(here, record.name)
    for model in (None, "other"):
        with pytest.raises(UserError, match=r"Start one: \./rft run --params other\.yaml$"):
            agents.find(here, "champion", model)


# -- what must not be exported ---------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["2", "exports/x"], "tiny has no champion 2: its champion is the beginning"),
        (["previous", "exports/x"], "tiny is at the beginning, so there is no champion before it"),
        (["nothing", "exports/x"], "no run named 'nothing'"),
        (["champion", "exports/x", "--model", "other"], "no run of this clone made a model 'other'. There are: tiny."),
        (["champion", "recipes"], "recipes exists already. Name a folder that does not: nothing is written over."),
        (["champion", "data/x"], "lies in data/, where the ladder writes"),
        (["champion", ".rft/x"], "lies in .rft/, where the ladder writes"),
        (["champion", "elsewhere"], "Git does not ignore it: every later run would take it along"),
    ],
)
def test_wrong_input_is_one_message(
    here: Clone, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    before = sorted(here.root.rglob("*"))
    assert cli.main(["export", *arguments]) == 2
    output = capsys.readouterr().err
    assert output.startswith("error: ")
    assert message in output
    assert [
        path
        for path in sorted(here.root.rglob("*"))
        if path not in before and "mlruns" not in path.parts and ".lock" not in path.name
    ] == []


def test_an_adapter_is_not_cast(here: Clone, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", run_name(here), "exports/x", "--dtype", "bfloat16"]) == 2
    assert "--dtype bfloat16 needs --merge" in capsys.readouterr().err
    assert not any((here.root / "exports").iterdir())


def test_a_run_without_an_agent_of_its_own(here: Clone, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = records.load_all(here)[0]
    records.save(here, record.model_copy(update={"revision": None, "state": "running"}))
    assert cli.main(["export", record.name, "exports/x"]) == 2
    assert "is not over: it is running" in capsys.readouterr().err
    scripted = ladder_clone.Scripted(here, tmp_path / "script")
    records.save(
        here,
        record.model_copy(
            update={"state": "failed", "message": "the grader is dead", "revision": scripted.git("rev-parse", "HEAD")}
        ),
    )
    assert cli.main(["export", record.name, "exports/x"]) == 2
    assert "came to no decision (failed: the grader is dead), so it has no agent" in capsys.readouterr().err


def test_changed_bytes_are_an_error_and_leave_nothing(here: Clone, capsys: pytest.CaptureFixture[str]) -> None:
    at = Revision(here, records.load_all(here)[0].revision or "")
    md5 = dict(at.files("data/train/weights"))["adapter_model.safetensors"]
    cached = here.dvc_cache / "files/md5" / md5[:2] / md5[2:]
    content = cached.read_bytes()
    cached.unlink()
    cached.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert cli.main(["export", run_name(here), "exports/x"]) == 3
    assert "was changed: its bytes are not those that data/train/weights" in capsys.readouterr().err
    assert not any((here.root / "exports").iterdir())
    assert not list(here.state.glob("agent-*"))


def test_tools_that_are_not_those_of_the_rollouts_are_not_exported(
    here: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An MCP server may list other tools today than it did when the agent was judged."""
    real = export._tools

    def changed(*arguments: Any) -> list[dict[str, Any]]:
        [tool] = real(*arguments)
        return [tool | {"function": tool["function"] | {"description": "Another tool."}}]

    monkeypatch.setattr(export, "_tools", changed)
    with pytest.raises(
        UserError, match=r"the policy was told '.*The value of a key.*now say '.*Another tool.*is not what was judged"
    ):
        exporting.write(agents.find(here, run_name(here)), here.root / "exports/x")
    assert not any((here.root / "exports").iterdir())


def test_a_registry_that_says_otherwise_is_believed_by_nobody(approved: Clone) -> None:
    before = agents.find(approved, "champion")
    client = tracking.client(approved)
    version = client.get_model_version_by_alias("tiny", "champion").version
    client.set_model_version_tag("tiny", version, "weights_sha256", "0" * 64)
    client.delete_registered_model_alias("tiny", "champion")
    assert agents.find(approved, "champion") == before


def test_a_full_disk_leaves_nothing(
    here: Clone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", "README.md")

    monkeypatch.setattr(vllm, "readme", full)
    assert cli.main(["export", run_name(here), "exports/x"]) == 3
    assert "the disk is full (README.md)" in capsys.readouterr().err
    assert not any((here.root / "exports").iterdir())
    assert not list(here.state.glob("agent-*"))


def test_a_part_of_ours_is_cleared_and_one_of_others_is_not(here: Clone, capsys: pytest.CaptureFixture[str]) -> None:
    ours_, theirs_ = here.root / "exports/a.part", here.root / "exports/b.part"
    for part in (ours_, theirs_):
        (part / "whole").mkdir(parents=True)
    (ours_ / exporting.MARK).touch()
    assert cli.main(["export", run_name(here), "exports/a"]) == 0
    assert not ours_.exists()
    assert cli.main(["export", run_name(here), "exports/b"]) == 2
    assert "b.part is in the way" in capsys.readouterr().err
    assert theirs_.exists()


def test_a_missing_byte_says_where_to_get_it(here: Clone) -> None:
    agent = agents.find(here, run_name(here))
    shutil.rmtree(here.dvc_cache / "files")
    with pytest.raises(InfrastructureError, match="dvc exp pull origin RUN"):
        exporting.write(agent, here.root / "exports/x")


# -- how answers are made --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("serve", "message"),
    [
        (
            config.Serve(method="majority", k=5, over="output_json"),
            "most frequent final answer. Compare JSON without regard to",
        ),
        (config.Serve(method="majority", k=7, over="output_text"), "Compare texts without the whitespace"),
        (config.Serve(method="best_of_n", k=4), "`verify(messages, sample)`, in tools.py of the run's recipe"),
    ],
)
def test_how_answers_are_made_is_what_was_promoted(
    ladder: Path, ladder_recipe: Path, tmp_path: Path, serve: config.Serve, message: str
) -> None:
    """Whatever the settings say now."""
    shutil.copytree(ladder / "data/policy", tmp_path / "data/policy")
    (tmp_path / "data/champion").mkdir()
    origin = export.Origin(model="tiny", version=4, run="r", revision="c", standing="the champion")
    params = small_params(ladder_recipe, policy={"serve": {"method": "majority", "k": 3, "over": "output_text"}})
    with contextlib.chdir(tmp_path):
        for name, champion in (("served", reports.Champion(version=4, serve=serve)), ("single", reports.Champion())):
            reports.write(champion, Path("data/champion/champion.json"))
            Path(name).mkdir()
            export.write(params, Path(name), origin)
    sampling, readme = (tmp_path / "served" / name for name in ("sampling.json", "README.md"))
    assert manifest(tmp_path / "served").serve == serve
    assert json.loads(sampling.read_text())["serve"] == serve.model_dump()
    assert f"for each question, play {serve.k} dialogues side by side" in readme.read_text()
    assert message in readme.read_text()
    assert "serve" not in json.loads((tmp_path / "single/manifest.json").read_text())
    assert "serve" not in json.loads((tmp_path / "single/sampling.json").read_text())
    assert "## Answer" not in (tmp_path / "single/README.md").read_text()
