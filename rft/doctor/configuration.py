"""Check the settings: read strictly, secrets present, and no key that another makes meaningless.

A key of params.yaml that another key makes meaningless is as bad as a misspelt one: the run goes
on, but not as its owner thinks. `_contradictions` is the table of such pairs. rft/config refuses
what is wrong within one section when it reads the file.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rft import commands, config, stage_files, threads
from rft.doctor import rate
from rft.doctor.finding import Finding, fail, ok, together, warn
from rft.doctor.setup import Setup
from rft.formatting import counted
from rft.grading import budget
from rft.rollouts import determinism
from rft.tools import unlearned
from rft.traffic.addresses import is_address


def prompt(setup: Setup) -> Finding:
    """Raise ConfigError if the embedded policy would be shown what it has never learned to read.
    The checks of tools and grader still run."""
    unlearned.check(setup.params)
    return ok("what a run shows the policy is what it can read")


def check(setup: Setup) -> Finding:
    params = setup.params  # raises ConfigError: unknown keys with the nearest name, wrong values
    problems = [*_secrets(setup), *_contradictions(params), *_unused(params)]
    return together(
        problems, f"read strictly; {len(setup.variables())} secrets by name", written=sorted(written(params))
    )


def resolved(params: config.Params) -> dict[str, Any]:
    """Return all settings, defaults included. Secrets are `env:NAME`, because a file that holds one
    is refused."""
    return params.model_dump(mode="json", by_alias=True)


def _secrets(setup: Setup) -> Iterator[Finding]:
    missing = [name for name in setup.variables() if name not in os.environ]
    if missing:
        yield fail(
            f"not in the environment: {', '.join(missing)}",
            f"Export {' and '.join(missing)} and try again.",
            missing=missing,
        )


def _contradictions(params: config.Params) -> Iterator[Finding]:
    tools, rollout, train, policy, examples = params.tools, params.rollout, params.train, params.policy, params.examples
    if tools.where == "local" and tools.server_url:
        yield fail(
            "tools.where = local, but tools.server_url names a server",
            "Remove one of the two: local tools are the recipe's own functions.",
        )
    for name in sorted(name for name, count in Counter(one.name for one in tools.mcp).items() if count > 1):
        yield fail(f"tools.mcp has two of the name {name!r}", "Rename one of them.")
    if policy.server and policy.server.kind == "chat":
        yield warn(
            "policy.server.kind = chat gives no token ids: nothing will be trained, the prompt alone can be promoted",
            "Use vllm or sglang for a run that trains.",
        )
    elif policy.server and (
        train.weights == "full" or (train.from_ == "champion" and stage_files.champion().weights != "none")
    ):
        yield fail(
            "a policy.server takes LoRA adapters on the model that it was started with, and this run trains other "
            "weights",
            "Set train.weights: lora and train.from: policy, or sample in this process: policy.server: null.",
        )
    if policy.model is None and policy.tool_format not in ("auto", "hermes"):
        yield fail(
            f"policy.tool_format = {policy.tool_format}, but the embedded policy speaks hermes",
            "Remove policy.tool_format, or name a policy.model.",
        )
    positions = policy.architecture.max_positions
    if (
        policy.model is None
        and policy.server is None
        and rollout.max_tokens is not None
        and rollout.max_tokens > positions
    ):
        yield fail(
            f"rollout.max_tokens = {rollout.max_tokens} is more than the embedded policy's {positions} positions",
            "Name the model to train in policy.model. For the embedded policy: lower it, or raise "
            "policy.architecture.max_positions.",
        )
    if rollout.max_tokens is not None and rollout.max_turn_tokens >= rollout.max_tokens:
        yield fail(
            f"rollout.max_turn_tokens = {rollout.max_turn_tokens} leaves no room in rollout.max_tokens = "
            f"{rollout.max_tokens}",
            "Raise max_tokens, the whole context, or lower max_turn_tokens.",
        )
    if examples.source == "recipe":
        yield from _more_than(params, "train.examples_per_step", train.examples_per_step, "train")
    yield from _more_than(params, "baseline.examples", params.baseline.examples, "validation")
    yield from _more_than(params, "train.validation_examples", train.validation_examples, "validation")
    if policy.model is None and policy.server is None:
        yield from rate.of_training(train, policy.architecture.hidden)
        yield from rate.of_warm_start(policy.warm_start)
    yield from _threads(params)
    yield from _deadlines(params)
    yield from _uneven(train.examples_per_step * train.group, rollout.batch)
    for what, remedy in determinism.contradictions(params):
        yield fail(what, remedy)
    for what, remedy in budget.never_exceeded(rollout):
        yield warn(what, remedy)
    log = params.traffic.file
    if log and not is_address(log) and not Path(log).exists() and not glob.glob(log, recursive=True):
        remedy = f"Name the window when the run starts: {commands.command('run', '--window', 'FILE')}"
        yield warn(f"traffic.file = {log} is not there", remedy)


def _more_than(params: config.Params, key: str, wanted: int, split: str) -> Iterator[Finding]:
    there = getattr(params.examples, split)
    if wanted > there:
        yield warn(
            f"{key} = {wanted} is more than examples.{split} = {there}", f"Raise examples.{split}, or lower {key}."
        )


def _threads(params: config.Params) -> Iterator[Finding]:
    """Warn of more threads than processors: they would wait for each other."""
    own, given = params.policy.threads, os.environ.get(threads.GIVEN, "")
    name, asked = ("policy.threads", own) if own else (threads.GIVEN, int(given) if given.isdecimal() else 0)
    if asked > (there := threads.cores()):
        description = f"{name} = {asked} is more than the {counted(there, 'processor')} that this process may use"
        yield warn(description, "Lower it, or leave it out: the threads would wait for each other.")


def _deadlines(params: config.Params) -> Iterator[Finding]:
    """Warn of an inner deadline that is later than an outer one: it never takes effect."""
    rollout = params.rollout
    ladder = {
        "tools.timeout_s": params.tools.timeout_s,
        "rollout.turn_deadline_s": rollout.turn_deadline_s,
        "rollout.deadline_s": rollout.deadline_s,
        "rollout.group_deadline_s": rollout.group_deadline_s,
    }
    pairs = (
        ("tools.timeout_s", "rollout.deadline_s"),
        ("rollout.turn_deadline_s", "rollout.deadline_s"),
        ("rollout.deadline_s", "rollout.group_deadline_s"),
    )
    for inner, outer in pairs:
        if ladder[inner] > ladder[outer]:
            yield warn(
                f"{inner} = {ladder[inner]:g} s is longer than {outer} = {ladder[outer]:g} s",
                f"Lower {inner}, or raise {outer}.",
            )


def _uneven(rollouts: int, batch: int) -> Iterator[Finding]:
    rest = rollouts % batch
    if rollouts > batch and 0 < rest <= batch // 4:
        yield warn(
            f"a step's {rollouts} rollouts (train.examples_per_step x group_size) end in a batch of {rest}, where "
            f"rollout.batch = {batch}",
            "Choose rollout.batch so that it divides them: a nearly empty batch takes as long as a full one.",
        )


def _unused(params: config.Params) -> Iterator[Finding]:
    """Warn of keys in the file that another key turns off."""
    tools, policy = params.tools, params.policy
    off = {
        "train.lora": (params.train.weights == "full", "train.weights = full"),
        "policy.architecture": (policy.model is not None, "policy.model names a model"),
        "policy.warm_start": (
            policy.model is not None and policy.warm_start.weights is None,
            "policy.model names a model, which is warm-started only with policy.warm_start.weights",
        ),
        "tools.local_workers": (tools.where == "http", "tools.where = http"),
        "tools.lifecycle.headers": (
            not (tools.lifecycle.start_url or tools.lifecycle.end_url),
            "no lifecycle URL is given",
        ),
    }
    there = written(params)
    for key, (is_off, why) in off.items():
        if is_off and key in there:
            yield warn(f"{key} is written, but {why}", f"Remove {key}, or what turns it off.")
    for server in tools.mcp:
        for key, other in (("headers", "url"), ("env", "command")):
            if getattr(server, key) and getattr(server, other) is None:
                yield warn(f"tools.mcp {server.name}: {key} is written, but there is no {other}", f"Remove {key}.")


def written(section: config.Section, prefix: str = "") -> set[str]:
    """Return the keys that the file itself holds, sections and leaves."""
    found: set[str] = set()
    for name in section.model_fields_set:
        key = prefix + (type(section).model_fields[name].alias or name)
        found.add(key)
        value = getattr(section, name)
        if isinstance(value, config.Section):
            found |= written(value, key + ".")
    return found
