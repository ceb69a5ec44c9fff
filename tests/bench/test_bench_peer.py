"""The peer environment and the script that runs in it, as far as it can be tested without the peer:
the same prompts, tools and rewards as ours."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bench import peer, speed_trl, trl_peer, trl_step
from rft import config, recipe
from rft.chat.renderer import Chat
from rft.grading import budget
from rft.reports import PromptSettings
from rft.tools.signatures import schemas
from rft.types import GradeStatus, Scored, ToolCall
from tests import small_policy, tiny_recipe

ICD10 = Path(__file__).resolve().parents[2] / "recipes" / "icd10"


# -- the environment -------------------------------------------------------------------------------
@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for environments that ask for nothing but one small wheel."""
    wheel = tmp_path / "small_thing-1.0-py3-none-any.whl"
    about = "small_thing-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("small_thing.py", "import sys; print(sys.prefix)")
        made.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: small-thing\nVersion: 1.0\n")
        made.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(f"{about}/RECORD", "")
    monkeypatch.setattr(peer, "WORK", tmp_path)
    monkeypatch.setattr(peer, "PEERS", {"bare": (str(wheel),)})
    monkeypatch.setattr(peer, "_torch", lambda: str(wheel))
    return tmp_path


@pytest.mark.slow
def test_an_environment_is_built_once_and_again_for_other_requirements(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreter = peer.python("bare")
    peer.run("bare", ["-m", "small_thing"], bare / "log.txt", 60)
    assert (bare / "log.txt").read_text().strip() == str(bare / "bare") != sys.prefix
    mark = bare / "bare" / "mark"
    mark.touch()
    assert peer.python("bare") == interpreter
    assert mark.exists()
    monkeypatch.setattr(peer, "PEERS", {"bare": (str(bare / "missing.whl"),)})
    with pytest.raises(peer.PeerFailed, match="cannot be installed"):
        peer.python("bare")
    assert not mark.exists()
    assert not list((bare / "bare").glob("ready-*"))  # what could not be built is not taken for built


BROUGHT_BY_TRL = ("accelerate", "datasets", "transformers")
LOADED = """
import importlib, importlib.metadata, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
owners = importlib.metadata.packages_distributions()
files = {name.split(".")[0]: str(getattr(one, "__file__", "")) for name, one in sys.modules.items()}
installed = {name for name, file in files.items() if "site-packages" in file}
print(*{owners[name][0] for name in installed if name in owners}, sep="\\n")
"""


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is not a package
        return False


def test_trls_environment_has_what_our_modules_load_there() -> None:
    """A module of ours once moved to another library, and the figure failed where nobody looked."""
    scripts = [ast.parse(Path(script.__file__).read_text(encoding="utf-8")) for script in (trl_peer, trl_step)]
    imports = [node for script in scripts for node in ast.walk(script) if isinstance(node, ast.ImportFrom)]
    ours = {
        f"{node.module}.{alias.name}"
        for node in imports
        if (node.module or "").split(".")[0] in ("rft", "bench")
        for alias in node.names
    }
    modules = {name if _is_module(name) else name.rpartition(".")[0] for name in ours} | {"recipes.icd10"}
    done = subprocess.run([sys.executable, "-c", LOADED, *sorted(modules)], capture_output=True, text=True, check=True)
    there = {"torch", *BROUGHT_BY_TRL, *(Requirement(one).name for one in peer.PEERS["trl"])}
    unseen = list(there)
    while unseen:
        try:
            wanted = [Requirement(one) for one in importlib.metadata.requires(unseen.pop()) or ()]
        except importlib.metadata.PackageNotFoundError:  # TRL itself is not in ours
            continue
        new = {one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})} - there
        there |= new
        unseen += new
    declared = {Requirement(one).name for one in importlib.metadata.requires("agent-rft") or ()}
    loaded, named, given = ({canonicalize_name(one) for one in each} for each in (done.stdout.split(), declared, there))
    assert "pydantic" in loaded & named
    assert loaded & named <= given


def test_a_script_that_fails_or_hangs_says_where_its_output_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "python", lambda name: Path(sys.executable))
    (tmp_path / "broken.py").write_text("raise SystemExit('other openings than ours')")
    with pytest.raises(peer.PeerFailed, match=r"log\.txt: other openings than ours"):
        peer.run("trl", [tmp_path / "broken.py"], tmp_path / "log.txt", 60)
    (tmp_path / "slow.py").write_text("import time; time.sleep(60)")
    with pytest.raises(peer.PeerFailed, match=r"no end within 0\.5 s"):
        peer.run("trl", [tmp_path / "slow.py"], tmp_path / "log.txt", 0.5)


# -- the same agent --------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    return small_policy.build(tiny_recipe.make(tmp_path_factory.mktemp("recipe")))[1]


def theirs(chat: Chat, messages: list[dict[str, Any]], start: bool) -> list[int]:
    """As TRL renders: other tools are passed, and ours stand in the template."""
    template = trl_peer.template_for_trl(chat.tokenizer.chat_template, chat.tools)
    text = chat.tokenizer.apply_chat_template(
        messages, tools=[{}], chat_template=template, tokenize=False, add_generation_prompt=start
    )
    return chat.encode(text)


def test_trl_reads_our_openings(chat: Chat) -> None:
    opening = [{"role": "system", "content": " be brief ."}, {"role": "user", "content": " angina"}]
    assert theirs(chat, opening, start=True) == chat.prompt_ids(opening)


def test_a_dialogue_goes_on_from_its_own_tokens(chat: Chat) -> None:
    """What TRL asks of a template, and ours alone does not give: the line break behind a message is
    one token with what follows."""
    call = {"type": "function", "function": {"name": "search", "arguments": {}}}
    spoken = [{"role": "user", "content": "dummy"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    answered = [*spoken, {"role": "tool", "name": "search", "content": " I20"}]
    before, after = theirs(chat, spoken, start=False), theirs(chat, answered, start=True)
    assert after[: len(before)] == before
    plain = chat.encode(chat.render(spoken, start=False))
    assert chat.encode(chat.render(answered))[: len(plain)] != plain
    assert after[len(before) :] == chat.tool_result_ids([ToolCall("call_0_0", "search", "{}")], [" I20"])


@pytest.fixture(scope="module")
def icd10() -> Any:
    return recipe.load(config.Recipe(path=str(ICD10)))


@pytest.fixture(scope="module")
def item(icd10: Any) -> str:
    return json.dumps(icd10.examples("train", 1, 0)[0].row())


@pytest.mark.slow
def test_the_environment_fills_in_the_prompts_defaults_and_refuses_as_we_do(icd10: Any, item: str) -> None:
    prompt = PromptSettings(name="p", system="", tool_defaults={"search": {"k": 1}})
    agent = trl_peer.environment(icd10, prompt, schemas(icd10))()
    assert agent.reset(item=item) is None
    assert len(agent.search(" cholera").splitlines()) == 1
    assert len(agent.search(" cholera", k=2).splitlines()) == 2
    assert agent.search(" cholera", k=99).startswith("Error: invalid arguments for search")
    assert agent.lookup("nothing").startswith("no such code")


def assistant(*calls: str, content: str = "") -> dict[str, Any]:
    made = [{"type": "function", "function": {"name": name, "arguments": {"query": " x"}}} for name in calls]
    return {"role": "assistant", "content": content, **({"tool_calls": made} if made else {})}


def test_the_reward_is_the_graders_under_our_budget(icd10: Any, item: str) -> None:
    limits = config.Rollout(max_tool_calls=8, budget=config.Budget(tool_calls=4, weight=0.5))
    rewards = trl_peer.reward(icd10, limits)
    right = json.dumps({"codes": json.loads(item)["target"]})
    answer = assistant(content=right)
    done = [
        [answer],
        [
            assistant("search", "search", "search"),
            {"role": "tool", "content": " x"},
            assistant("search", "search", "search"),
            answer,
        ],
        [assistant(*["search"] * 9), answer],  # one call too many: our rollouts end there
        [assistant("search")],
        [assistant(content="{")],
    ]
    over = budget.reward(Scored(1.0, GradeStatus.ok, True), budget.Use(("search",) * 6, 0, 3, 0.0), limits.budget)
    assert over == 0.75
    assert rewards(completions=done, item=[item] * len(done), trainer_state=None) == [1.0, over, 0.0, 0.0, 0.0]


def test_turns_end_with_the_one_that_calls_too_often() -> None:
    messages = [
        assistant("search"),
        {"role": "tool", "content": " x"},
        assistant("search", "lookup"),
        assistant(content="done"),
    ]
    assert [len(turn.calls) for turn in trl_peer.turns_of(messages, max_calls=3)] == [1, 2, 0]
    assert [len(turn.calls) for turn in trl_peer.turns_of(messages, max_calls=2)] == [1, 2]


# -- the figure's arithmetic -----------------------------------------------------------------------
def test_the_floor_counts_a_groups_prompt_once_and_learning_only_what_was_learned_from() -> None:
    def row(trained: bool) -> dict[str, Any]:
        return {
            "step": 1,
            "example_id": "a",
            "ids": [0] * 10,
            "loss_mask": [False] * 6 + [True] * 4,
            "trained": trained,
        }

    once = speed_trl.flop([row(False)], body=100, head=10, attention=0)
    assert once == 2 * (100 * 10 + 10 * 4)
    assert speed_trl.flop([row(False), row(False)], 100, 10, 0) - once == 2 * (100 * 4 + 10 * 4)
    assert speed_trl.flop([row(True)], 100, 10, 0) - once == 6 * (100 * 10 + 10 * 4)
    assert speed_trl.flop([row(True)], 0, 0, 1) == 8 * 10**2


def test_the_headline_is_all_steps_over_all_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_trl, "_floor_s", lambda run: 0.1)

    def run(*seconds: float, tokens: float = 40.0) -> Any:
        return SimpleNamespace(steps_s=list(seconds), tokens=[tokens] * len(seconds))

    headline, same, *_ = speed_trl._speed([(run(1, 1), run(12, 4)), (run(1, 3), run(16, 16))])
    assert (headline.value, headline.low, headline.high, headline.holds) == (8.0, 8.0, 8.0, True)
    assert same.holds
    _, longer, *_ = speed_trl._speed([(run(1), run(8, tokens=60))])
    assert not longer.holds  # theirs had more to do: that is not a comparison
