"""The doctor: a sound setup passes every check, and each check has an illness that it must tell,
with its remedy.

The tool servers are real ones on a socket, the policy is a real small model, trained for one step.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from flows import cli
from rft import config, doctor
from rft.doctor import Check, Finding, capacity, configuration, serving
from rft.doctor.finding import ok
from rft.doctor.setup import Setup
from rft.errors import ConfigError, InfrastructureError, UserError
from rft.grading import scripted
from rft.models import weights as model
from rft.trainer import logprobs
from tests import ladder, small_policy, tiny_recipe
from tests.sick_agents import (
    BASELINE,
    FEW,
    ROLLOUT,
    TRAIN,
    Agent,
    examine,
    serving_at,
    settings,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ready_server")]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_recipe.make(tmp_path_factory.mktemp("doctor"))


@pytest.fixture(scope="module")
def policy(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_policy.save(*small_policy.build(recipe, structured=False), tmp_path_factory.mktemp("policy") / "model")


# -- in order --------------------------------------------------------------------------------------
def test_a_sound_setup_passes_every_check(recipe: Path, policy: Path, tmp_path: Path):
    begun: list[str] = []
    with ladder.inside(tmp_path):
        found = examine(settings(recipe, policy={"model": str(policy)}, tools={"concurrency": 16}), begin=begun.append)
    assert {name: (one.status, one.words, one.remedy) for name, one in found.items() if one.status != "ok"} == {}
    assert list(found) == begun == [check.name for check in doctor.CHECKS]
    assert doctor.exit_code(list(found.values())) == 0
    assert found["tools"].facts["tools"]["lookup"]["calls"] == 16
    assert found["tools"].facts["tools"]["lookup"]["from"] == "the recipe"
    assert found["grader"].words.endswith(f"{4 + len(tiny_recipe.EXPLOITS)} exploits refused")
    assert found["step"].facts["logprob_mismatch"] < 1e-3
    assert list(tmp_path.iterdir()) == []


def test_without_a_model(recipe: Path, tmp_path: Path):
    with ladder.inside(tmp_path):
        missing = examine(settings(recipe), "capacity")["capacity"]
        left_out = examine(settings(recipe), "capacity", use_model=False)["capacity"]
    assert (missing.status, left_out.status) == ("skipped", "skipped")
    assert missing.remedy == "Build it: rft stage run policy; or set policy.model."
    assert left_out.words == "looks at the model, which --no-model leaves out"


# -- the loop --------------------------------------------------------------------------------------
def test_a_check_can_neither_hang_nor_crash_the_doctor(recipe: Path):
    ended = threading.Event()

    def crashes(setup: Any) -> Finding:
        raise SystemExit(3)

    def outage(setup: Any) -> Finding:
        raise ExceptionGroup("tasks", [InfrastructureError("the server died.")])

    def hangs(setup: Any) -> Finding:
        ended.wait(20)
        return ok("too late")

    checks = [
        Check("hangs", hangs, 0.1),
        Check("crashes", crashes, 5),
        Check("outage", outage, 5),
        Check("after", lambda setup: ok("fine"), 5, ("outage",)),
        Check("last", lambda setup: ok("fine"), 5),
    ]
    began = time.monotonic()
    found = examine(settings(recipe), checks=checks)
    assert time.monotonic() - began < 5
    assert doctor.left_behind() == ["hangs"]
    ended.set()
    assert {name: (one.status, one.infrastructure) for name, one in found.items()} == {
        "hangs": ("fail", True),
        "crashes": ("fail", False),
        "outage": ("fail", True),
        "after": ("skipped", False),
        "last": ("ok", False),
    }
    assert "not finished within 0.1 s" in found["hangs"].words
    assert "SystemExit: 3" in found["crashes"].words
    assert f"{__file__}:" in found["crashes"].words
    assert found["outage"].words == "the server died."
    assert found["after"].words == "needs outage to pass first"
    assert doctor.exit_code(list(found.values())) == 2
    assert doctor.exit_code([found["outage"], found["last"]]) == 3


def test_only_takes_what_it_needs(recipe: Path):
    begun: list[str] = []
    examine(settings(recipe), "recipe", begin=begun.append)
    assert begun == ["configuration", "recipe"]
    with pytest.raises(UserError, match=r"--only tols: no such check\. Did you mean .tools.\?"):
        examine(settings(recipe), "tols")


# -- configuration ---------------------------------------------------------------------------------
def test_an_unknown_key_is_named_with_the_nearest_one(recipe: Path):
    found = examine(lambda: settings(recipe, train={"group_sise": 4}))
    assert found["configuration"].status == "fail"
    assert "unknown key 'train.group_sise'. Did you mean 'group_size'?" in found["configuration"].words
    assert {one.status for name, one in found.items() if name != "configuration"} == {"skipped"}
    assert doctor.exit_code(list(found.values())) == 2


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        (
            {"tools": {"where": "local", "server_url": "http://h", "version": "1"}},
            "fail",
            "tools.where = local, but tools.server_url",
        ),
        (
            {"tools": {"headers": {"Authorization": "env:RFT_TEST_NOT_THERE"}}},
            "fail",
            "not in the environment: RFT_TEST_NOT_THERE",
        ),
        ({"tools": {"mcp": [{"name": "a", "url": "http://h"}] * 2}}, "fail", "tools.mcp has two of the name 'a'"),
        (
            {"tools": {"mcp": [{"name": "a", "url": "http://h", "env": {"A": "1"}}]}},
            "warn",
            "env is written, but there is no command",
        ),
        ({"policy": {"server": {"kind": "chat", "url": "http://h", "model": "m"}}}, "warn", "chat gives no token ids"),
        (
            {
                "policy": {"model": "m", "server": {"kind": "vllm", "url": "http://h", "model": "m"}},
                "train": {"weights": "full"},
            },
            "fail",
            "takes LoRA adapters",
        ),
        ({"policy": {"tool_format": "mistral"}}, "fail", "the embedded policy speaks hermes"),
        (
            {"policy": {"model": "x", "architecture": {"layers": 2}}},
            "warn",
            "policy.architecture is written, but policy.model",
        ),
        ({"policy": {"threads": 4096}}, "warn", "policy.threads = 4096 is more than the "),
        ({"rollout": {"max_tokens": 2048}}, "fail", "more than the embedded policy's 1024 positions"),
        ({"rollout": {"max_turn_tokens": 200}}, "fail", "leaves no room"),
        (
            {"rollout": {"deadline_s": 3000}},
            "warn",
            "rollout.deadline_s = 3000 s is longer than rollout.group_deadline_s",
        ),
        ({"rollout": {"batch": 15}}, "warn", "end in a batch of 1"),
        ({"rollout": {"budget": {"tool_calls": 20}}}, "warn", "budget.tool_calls = 20 is never exceeded"),
        ({"train": {"weights": "full"}}, "warn", "train.lora is written, but train.weights = full"),
        ({"train": {"examples_per_step": 40}}, "warn", "train.examples_per_step = 40 is more than examples.train = 32"),
        ({"baseline": {"examples": 96}}, "warn", "baseline.examples = 96 is more than examples.validation = 12"),
        ({"traffic": {"file": "no/window.jsonl"}}, "warn", "traffic.file = no/window.jsonl is not there"),
    ],
)
def test_settings_that_contradict_each_other(recipe: Path, changes: dict[str, Any], status: str, message: str):
    found = examine(settings(recipe, **changes), "configuration")["configuration"]
    assert (found.status, message in found.words) == (status, True), found.words
    assert found.remedy


def test_resolved_settings_hold_every_key_and_no_secret(recipe: Path):
    params = settings(recipe, tools={"headers": {"Authorization": "env:RFT_TEST_TOKEN", "Accept": "text/plain"}})
    whole = configuration.resolved(params)
    assert whole["tools"]["headers"] == {"Authorization": "env:RFT_TEST_TOKEN", "Accept": "text/plain"}
    assert whole["train"]["from"] == "champion"
    assert config.parse(whole).rollout == params.rollout
    found = examine(lambda: settings(recipe, tools={"headers": {"Authorization": "Bearer canary-1"}}), "configuration")[
        "configuration"
    ]
    assert (found.status, "write env:NAME" in found.words, "canary" in found.words) == ("fail", True, False)


# -- recipe ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("examples.py", 'f"n-{number:04d}"', '"n"', "repeated ids"),
        ("examples.py", '"role": "user"', '"role": "system"', "the last message is the system's, expected the user's"),
        ("examples.py", "numbers[:count]]", "numbers[: count - 1]]", "gave 31 train examples, examples.train = 32"),
        ("examples.py", "random.Random(", "random.Rondom(", "has no attribute 'Rondom'"),
        (
            "grader.json",
            "endpoint",
            "endpiont",
            "'type' = 'endpiont' is not a grader. Did you mean 'endpoint'?",
        ),
        ("exploits.jsonl", "}", "", "exploits.jsonl"),
    ],
)
def test_a_recipe_that_the_stages_would_refuse(tmp_path: Path, file: str, old: str, new: str, message: str):
    made = tiny_recipe.make(tmp_path)
    text = (made / file).read_text()
    assert old in text
    (made / file).write_text(text.replace(old, new))
    found = examine(settings(made), "recipe")["recipe"]
    assert (found.status, message in found.words) == ("fail", True), found.words


def test_fresh_test_examples_are_tried_before_somebody_needs_them(tmp_path: Path):
    def found(folder: str, *edits: tuple[str, str]) -> Finding:
        made = tiny_recipe.make(tmp_path / folder)
        text = (made / "examples.py").read_text()
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        (made / "examples.py").write_text(text)
        return examine(settings(made), "recipe")["recipe"]

    same, none = ("numbers[block * count :]", "numbers"), ("seed, block=0)", "seed)")
    assert found("a").words.endswith("it offers blocks of test examples")
    shared = found("b", same)
    assert shared.status == "warn"
    assert "blocks of test examples share what should be fresh: lines of block 0 in block 1: 8 examples" in shared.words
    alone = found("c", same, none)
    assert alone.status == "ok"
    assert alone.words.endswith("so when the looks at these are spent, you need new ones")


def test_examples_for_the_smoke_test_are_read_long_before_the_promotion(tmp_path: Path):
    made = tiny_recipe.make(tmp_path)
    (made / "smoke.jsonl").write_text('{"messages": [{"role": "user", "content": "value of k0012"}]}\n{"messages"')
    found = examine(settings(made), "recipe")["recipe"]
    assert (found.status, f"{made}/smoke.jsonl:2: the file is cut off" in found.words) == ("fail", True), found.words


def test_row_tools_need_a_route(tmp_path: Path):
    made = tiny_recipe.make(tmp_path)
    text = (made / "examples.py").read_text()
    tool = '{"type": "function", "function": {"name": "weigh", "parameters": {"type": "object"}}}'
    assert "value(key), item)" in text
    (made / "examples.py").write_text(text.replace("value(key), item)", f"value(key), item, ({tool},))"))
    found = examine(settings(made), "recipe")["recipe"]
    assert "examples bring the tools ['weigh'], which nothing serves; there are ['lookup']" in found.words
    served = settings(made, tools={"endpoints": [{"name": "weigh", "server_url": "http://127.0.0.1:1/weigh"}]})
    assert examine(served, "recipe")["recipe"].status == "ok"


def test_a_function_that_asks_for_the_trace_id_gives_up_equal_bytes(tmp_path: Path):
    made = tiny_recipe.make(tmp_path)
    (made / "tools.py").write_text(
        (made / "tools.py").read_text().replace("def grade(sample, item):", "def grade(sample, item, trace_id):")
    )
    found = examine(settings(made), "recipe")["recipe"]
    assert (found.status, "grade asks for the trace id, which is new in every run" in found.words) == ("warn", True)


def test_rows_need_no_target(tmp_path: Path):
    """W11: a grader may know by itself what is right."""
    made = tiny_recipe.make(tmp_path)
    text = (made / "examples.py").read_text()
    assert "value(key), item)" in text
    (made / "examples.py").write_text(text.replace("value(key), item)", "None, item)"))
    assert examine(settings(made), "recipe")["recipe"].status == "ok"


def test_a_key_that_no_row_has(tmp_path: Path):
    """Of rows as they are. An `Example` says by itself what its target is."""
    own = tiny_recipe.make(tmp_path)
    file = own / "examples.py"
    file.write_text(file.read_text().replace("[example(options, number) for", "[example(options, number).row() for"))
    made = settings(own, examples={"train": 20, "validation": 8, "test": 8, "keys": {"target": "targt"}})
    assert (
        "examples.keys.target = 'targt' names nothing: no row of train has it. Did you mean 'target'?"
        in examine(made, "recipe")["recipe"].words
    )


def test_a_policy_needs_a_model_or_demonstrations(tmp_path: Path):
    made = tiny_recipe.make(tmp_path)
    (made / "demonstrations.py").unlink()
    found = examine(settings(made), "recipe")["recipe"]
    assert "nothing to make a policy from" in found.words


# -- the policy's server ---------------------------------------------------------------------------
def test_a_policy_server_is_asked_for_one_turn(recipe: Path, policy: Path):
    class Endpoint(Agent):
        async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            if request.path == "/v1/models":
                return web.json_response({"data": [{"id": "other"}]})
            return web.json_response({"choices": [{"message": {"content": "4711"}, "finish_reason": "stop"}]})

    def server(kind: str, url: str) -> config.Params:
        chosen = config.PolicyServer.model_validate({"kind": kind, "url": url, "model": "m", "retries": 0})
        params = settings(recipe, policy={"model": str(policy)})
        return params.model_copy(update={"policy": params.policy.model_copy(update={"server": chosen})})

    def checked(params: config.Params) -> Finding:
        return serving.check(Setup(lambda: params))

    with serving_at(Endpoint().answer) as tools:
        assert checked(server("chat", tools["server_url"])).words.startswith("chat m: a turn of text in")
        with pytest.raises(ConfigError, match=r"policy\.server\.model = 'm', but .* serves \['other'\]"):
            checked(server("vllm", tools["server_url"]))
    dead = examine(server("vllm", "http://127.0.0.1:9"), "server")["server"]
    assert (dead.status, dead.infrastructure) == ("fail", True)
    assert "Is that server running?" in dead.words


def test_a_policy_server_with_too_short_a_context_is_found(recipe: Path):
    """It was met when a stage had graded what was cut, and the doctor was green."""

    class Endpoint(Agent):
        async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            if request.path == "/v1/models":
                return web.json_response({"data": [{"id": "m", "context_length": 100}]})
            usage = {"prompt_tokens": 7000, "completion_tokens": 1}
            return web.json_response(
                {"choices": [{"message": {"content": "4711"}, "finish_reason": "stop"}], "usage": usage}
            )

    with serving_at(Endpoint().answer) as tools:
        server = {"kind": "chat", "url": tools["server_url"], "model": "m"}
        found = examine(settings(recipe, policy={"server": server}, rollout={"max_tokens": None}), "server")["server"]
        assert found.status == "fail"
        assert "opening alone has 7000 tokens, and rollout.max_tokens is 100" in found.words
        found = examine(settings(recipe, policy={"server": server}, rollout={"max_tokens": 200}), "server")["server"]
        assert "rollout.max_tokens = 200, but the server takes 100" in found.words


def test_the_other_checks_do_without_a_limit_that_the_server_sets(recipe: Path, policy: Path):
    server = {"kind": "vllm", "url": "http://127.0.0.1:9", "model": "m"}
    found = examine(
        settings(recipe, policy={"model": str(policy), "server": server}, rollout={"max_tokens": None}),
        "template",
        "capacity",
    )
    assert {found[name].status for name in ("configuration", "template", "capacity")} <= {"ok", "warn"}, found
    assert found["template"].facts["max_tokens"] == 256, "the model's positions"
    assert found["capacity"].facts["memory"]["keys and values"] == 0, "the server's own"


def test_what_a_server_echoes_of_our_secrets_is_not_shown(recipe: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RFT_TEST_TOKEN", "canary-4711")

    async def echo(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(text=f"who is {request.headers.get('X-Token')}?", status=400 if body else 200)

    def tells(setup: Setup) -> Finding:
        raise UserError("the key canary-4711 is wrong")

    with serving_at(echo) as tools:
        params = settings(recipe, tools=tools | {"headers": {"X-Token": "env:RFT_TEST_TOKEN"}})
        found = examine(params, "tools")
    found |= examine(
        params, checks=[Check("tells", tells, 5), Check("facts", lambda setup: ok("", key=["canary-4711"]), 5)]
    )
    assert "who is" in found["tools"].words
    assert found["tells"].words == "the key [secret RFT_TEST_TOKEN] is wrong"
    assert found["facts"].facts == {"key": ["[secret RFT_TEST_TOKEN]"]}
    assert "canary" not in repr(found)


# -- the model -------------------------------------------------------------------------------------
def broken(policy: Path, folder: Path, old: str, new: str) -> Path:
    """The policy's folder with another chat template; weights are linked."""
    folder.mkdir()
    for file in policy.iterdir():
        (folder / file.name).symlink_to(file)
    template = folder / "chat_template.jinja"
    text = template.read_text()
    assert old in text
    template.unlink()
    template.write_text(text.replace(old, new))
    return folder


def test_a_template_that_changes_the_past(recipe: Path, policy: Path, tmp_path: Path):
    """Tool results are shortened once a later message stands behind them."""
    changed = broken(
        policy,
        tmp_path / "model",
        "message.content + '\\n</tool",
        "(message.content if loop.last else '...') + '\\n</tool",
    )
    found = examine(settings(recipe, policy={"model": str(changed)}), "template")["template"]
    assert found.status == "fail"
    assert found.words.startswith("tool calls: ")
    assert "training template" in found.remedy


def test_prompts_that_ask_for_more_turns_than_a_rollout_has(tmp_path: Path):
    recipe = tiny_recipe.make(tmp_path)
    (recipe / "prompts.json").write_text(json.dumps({"seed": {"name": "seed", "system": ""}, "max_turns": [2, 4]}))
    with ladder.inside(tmp_path):
        found = examine(settings(recipe), "recipe")["recipe"]
        assert found.status == "fail"
        assert f"{recipe}/prompts.json: max_turns asks for 4 turns, and rollout.max_turns = 3" in found.words
        assert "Set rollout.max_turns to at least 4" in found.remedy
        assert examine(settings(recipe, rollout={"max_turns": 4}), "recipe")["recipe"].status == "ok"


def test_the_best_of_several_rollouts_needs_a_verify(tmp_path: Path):
    recipe = tiny_recipe.make(tmp_path)
    policy = {"serve": {"method": "best_of_n", "k": 4}}
    with ladder.inside(tmp_path):
        found = examine(settings(recipe, policy=policy), "recipe")["recipe"]
        assert (found.status, "has no verify(messages, sample)" in found.words) == ("fail", True), found.words
        assert found.remedy.startswith("Write it so that it returns a finite number")
        (recipe / "tools.py").write_text((recipe / "tools.py").read_text() + "\n\ndef verify(messages, sample): ...\n")
        again = tiny_recipe.make(tmp_path, "other")
        (again / "tools.py").write_text((recipe / "tools.py").read_text())
        assert examine(settings(again, policy=policy), "recipe")["recipe"].status == "ok"


def test_an_opening_that_does_not_fit(policy: Path, tmp_path: Path):
    recipe = tiny_recipe.make(tmp_path)
    (recipe / "prompts.json").write_text(
        json.dumps({"seed": {"name": "seed", "system": "look it up and answer " * 8, "max_turns": 3}})
    )
    with_room = examine(settings(recipe, policy={"model": str(policy)}), "template")["template"]
    longest = with_room.facts["longest_opening"]
    full = settings(recipe, policy={"model": str(policy)}, rollout={"max_tokens": longest, "max_turn_tokens": 8})
    assert f"takes {longest} tokens, rollout.max_tokens = {longest}" in examine(full, "template")["template"].words
    tight = settings(recipe, policy={"model": str(policy)}, rollout={"max_tokens": longest + 20, "max_turn_tokens": 30})
    found = examine(tight, "template")["template"]
    assert found.status == "warn"
    assert "no room for one turn" in found.words
    beyond = settings(recipe, policy={"model": str(policy)}, rollout={"max_tokens": 300})
    assert "more than the model's 256 positions" in examine(beyond, "template")["template"].words


def test_a_model_that_is_none(recipe: Path, tmp_path: Path):
    found = examine(settings(recipe, policy={"model": str(tmp_path)}), "template", "capacity")
    assert {found[name].status for name in ("template", "capacity")} == {"fail"}
    assert "cannot be loaded" in found["capacity"].words


def test_a_model_too_large_for_this_machine(recipe: Path, policy: Path, monkeypatch: pytest.MonkeyPatch):
    params = settings(recipe, policy={"model": str(policy)})
    need = sum(examine(params, "capacity")["capacity"].facts["memory"].values())
    for free, status in ((need * 2, "ok"), (need * 1.1, "warn"), (need * 0.9, "fail")):
        monkeypatch.setattr(capacity, "available_memory", lambda device, free=free: int(free))
        found = examine(params, "capacity", "step")
        assert found["capacity"].status == status
    assert "memory: about" in found["capacity"].words
    assert found["step"].status == "skipped"
    assert doctor.exit_code(list(found.values())) == 2


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("rollout.batch", {"rollout": ROLLOUT | {"batch": 4096}}),
        ("train.microbatch_tokens", {"train": TRAIN | {"microbatch_tokens": 65_536, "examples_per_step": 256}}),
    ],
)
def test_what_is_too_large_is_named_with_a_value_that_fits(
    recipe: Path, policy: Path, monkeypatch: pytest.MonkeyPatch, key: str, changes: dict[str, Any]
):
    """A reader who follows the advice passes the check."""
    params = settings(recipe, policy={"model": str(policy)}, **changes)
    need = sum(examine(params, "capacity")["capacity"].facts["memory"].values())
    smallest = sum(
        examine(settings(recipe, policy={"model": str(policy)}), "capacity")["capacity"].facts["memory"].values()
    )
    free = smallest + (need - smallest) // 2
    monkeypatch.setattr(capacity, "available_memory", lambda device: free)
    found = examine(params, "capacity")["capacity"]
    section, name = key.split(".")
    advice = re.search(rf"Lower {key} from (\d+) to (\d+): about ", found.remedy)
    assert found.status == "fail"
    assert advice is not None
    assert int(advice[1]) == changes[section][name]
    lower = settings(recipe, policy={"model": str(policy)}, **{section: changes[section] | {name: int(advice[2])}})
    assert examine(lower, "capacity")["capacity"].status == "ok"


def test_a_full_disk_is_the_worlds(recipe: Path, policy: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(capacity.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    found = examine(settings(recipe, policy={"model": str(policy)}), "capacity")["capacity"]
    assert (found.status, found.infrastructure) == ("fail", True)
    assert "dvc cache dir" in found.remedy


def test_the_estimate_counts_what_peft_wraps(recipe: Path, policy: Path):
    params = settings(recipe, policy={"model": str(policy)})
    learner = model.trainable(model.load(str(policy), params.policy, small_policy.device())[0], params.train)
    counted = examine(params, "capacity")["capacity"].facts
    trained = sum(parameter.numel() for parameter in learner.parameters() if parameter.requires_grad)
    assert counted["memory"]["adapter"] == 4 * trained
    assert counted["parameters"] == sum(parameter.numel() for parameter in learner.parameters()) - trained


@pytest.mark.parametrize(
    ("train", "status", "message"),
    [
        ({"weights": "full", "lr": 1e-3}, "ok", "trained weights changed by one step"),
        (
            {"weights": "full", "lr": 1e-30},
            "fail",
            "one step moves 0.00% of the weights that are sampled with",
        ),
        ({"lr": 1e-30}, "fail", "train.lr = 1e-30 is lost in rounding"),
        ({"weights": "full", "lr": 1e-11, "steps": 80}, "fail", "most of train.lr = 1e-11 is lost in rounding"),
        # no rounding takes it, but it is far too low to learn anything
        ({"lr": 1e-6, "steps": 80, "dtype": "bfloat16"}, "warn", "trained weights changed by one step"),
    ],
)
def test_one_step_must_change_the_weights(recipe: Path, policy: Path, train: dict[str, Any], status: str, message: str):
    model = {"model": str(policy), "dtype": train.get("dtype", "float32")}
    section = {key: value for key, value in train.items() if key != "dtype"}
    found = examine(settings(recipe, policy=model, train=section), "step")["step"]
    assert (found.status, message in found.words) == (status, True), found.words


def test_a_step_whose_effect_is_not_sampled_with_is_a_failure(
    recipe: Path, policy: Path, monkeypatch: pytest.MonkeyPatch
):
    """What merging an adapter into bfloat16 does."""
    params = settings(recipe, policy={"model": str(policy), "dtype": "bfloat16"}, train={"lr": 1e-4})
    assert examine(params, "step")["step"].facts["effect_kept"] >= 0.99
    monkeypatch.setattr(model, "sampler_copy", model.merged_copy)
    found = examine(params, "step")["step"]
    assert found.status == "fail"
    assert "what one step learns and what reaches the sampler is 0." in found.words
    assert found.facts["effect_kept"] < 0.99


def test_a_step_that_moves_the_base_or_disagrees_is_a_failure(
    recipe: Path, policy: Path, monkeypatch: pytest.MonkeyPatch
):
    params = settings(recipe, policy={"model": str(policy)})
    trainable, own = model.trainable, logprobs.own_logprobs

    def thawed(network: Any, section: config.Train) -> Any:
        learner = trainable(network, section)
        learner.base_model.model.model.norm.weight.requires_grad_(True)
        return learner

    def hotter(network: Any, planned: Any, temperature: float) -> Any:
        return own(network, planned, 2 * temperature)

    monkeypatch.setattr(model, "trainable", thawed)
    assert "the step changed model.norm.weight, a weight of the base model" in examine(params, "step")["step"].words
    monkeypatch.undo()
    monkeypatch.setattr(logprobs, "own_logprobs", hotter)
    assert "sampler and trainer differ by up to" in examine(params, "step")["step"].words


TEXT = st.builds(
    lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
    st.integers(1, 5),
    st.integers(0, 5),
)
NUMBER = st.builds(
    lambda kind, low, more: {"type": kind, "minimum": low, "exclusiveMaximum": low + more},
    st.sampled_from(["integer", "number"]),
    st.integers(-50, 50),
    st.integers(1, 9),
)
CHOICE = st.builds(
    lambda values: {"enum": values}, st.lists(st.text(max_size=3) | st.integers(), min_size=1, max_size=3)
)
OTHER = st.sampled_from(
    [
        {"type": "boolean"},
        {"type": "null"},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"const": 3},
        {"$ref": "#/$defs/d"},
    ]
)
SCHEMAS = st.recursive(
    TEXT | NUMBER | CHOICE | OTHER,
    lambda inner: (
        st.builds(lambda items, least: {"type": "array", "items": items, "minItems": least}, inner, st.integers(0, 2))
        | st.builds(
            lambda known: {"type": "object", "properties": known, "required": sorted(known)},
            st.dictionaries(st.text(max_size=3), inner, max_size=3),
        )
    ),
    max_leaves=5,
)


@hypothesis_settings(max_examples=40)
@given(st.dictionaries(st.sampled_from("abc"), SCHEMAS, max_size=3))
def test_the_smallest_arguments_fit_their_schema(properties: dict[str, Any]):
    schema = {
        "type": "object",
        "properties": properties,
        "required": sorted(properties),
        "$defs": {"d": {"type": "integer", "minimum": 2}},
    }
    Draft202012Validator(schema).validate(scripted.smallest(schema))


def test_a_schema_without_end_is_cut():
    endless = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    assert isinstance(scripted.smallest(endless), dict)
    assert scripted.smallest({}) == scripted.smallest(None) == {}


# -- the screen ------------------------------------------------------------------------------------
@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with the tiny recipe, as far as the doctor looks."""
    for file, text in {"dvc.yaml": "stages: {}\n", ".dvc/config": "", "params.yaml": yaml.safe_dump(written())}.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    tiny_recipe.make(tmp_path)
    who = ("-c", "user.name=a", "-c", "user.email=a@localhost")
    for command in (("init", "-q"), ("add", "params.yaml"), (*who, "commit", "-qm", "start")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path / "tiny")
    return tmp_path


def written() -> dict[str, Any]:
    return {
        "recipe": {"path": "tiny"},
        "gate": tiny_recipe.gate(),
        "examples": FEW,
        "rollout": ROLLOUT,
        "baseline": BASELINE,
        "train": TRAIN,
        "traffic": {"file": "params.yaml"},
        "tools": {"concurrency": 4},
    }


def table_end(capsys: pytest.CaptureFixture[str]) -> str:
    return re.sub(r"\S+(?= doctor --set)", "rft", capsys.readouterr().out.strip().splitlines()[-1].split(". ")[-1])


def test_the_verb_draws_a_table_or_json(place: Path, capsys: pytest.CaptureFixture[str]):
    (place / "tiny/tools.py").write_text((place / "tiny/tools.py").read_text() + 'print("hello")\n')
    assert cli.main(["doctor", "--no-model", "--json"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report["ok"] is True
    names = [check.name for check in doctor.CHECKS]
    assert [one["name"] for one in report["checks"]] == [*names, "gate", "signing", "ledger", "remote"]
    assert set(report["checks"][0]) == {"name", "status", "words", "remedy", "seconds", "facts", "infrastructure"}
    assert "[doctor] tools\n[doctor] tools: calls the tools, 4 to lookup\n" in printed.err
    assert cli.main(["doctor", "--only", "configuration", "--set", "train.steps=0"]) == 2
    table = capsys.readouterr().out
    assert "✗  configuration" in table
    assert "Not ready: configuration." in table
    assert cli.main(["doctor", "--only", "configuration", "--set", "baseline.examples=99"]) == 0
    table = capsys.readouterr().out
    assert "! configuration: Raise examples.validation, or lower baseline.examples." in table
    assert "In order, but look at configuration: configuration. To look at the rest: " in table
    assert cli.main(["doctor", "--only", "signing", "--set", "train.steps=3"]) == 0
    assert table_end(capsys) == "To look at the rest: rft doctor --set train.steps=3", "none of them read the settings"


def test_the_verb_shows_what_holds(place: Path, capsys: pytest.CaptureFixture[str]):
    """Findings N16: with what each key means, and whether it was set."""
    assert cli.main(["doctor", "--show-resolved", "--set", "train.steps=7"]) == 0
    text = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "steps: 7 # set. Optimizer steps. Each one learns from new rollouts." in lines
    assert "processes: 1 # default. Learner processes, one per GPU." in lines
    whole = yaml.safe_load(text)
    assert whole["train"]["steps"] == 7
    assert whole["drift"]["max_bad_share"] == 0.02
    assert cli.main(["doctor", "--show-resolved", "--set", "train.stepz=7"]) == 2
    assert "Did you mean 'steps'?" in capsys.readouterr().err
    assert cli.main(["doctor", "--only", "tols"]) == 2
    with pytest.raises(ConfigError):
        config.load(place / "missing.yaml")
