"""List the features of a profile: what is counted of a conversation, and in which bins.

There are three groups. The group *input* is what people ask: its length, its words and phrases,
the recipe's categories (such as the chapter mix) and the owner's columns. The group *agent* is what
our side did: which tools with which arguments, how often, in how many turns. It also covers how
slowly, with how many errors, and under which prompt. The group *performance* is what became of the
conversation: refused, graded, corrected. A profile of training examples has the first group only.

    feature          group        column          bins                              statistic
    input_words      input        input_words     whole numbers, then 10 % apart    wasserstein_sd
    vocabulary       input        a sample        256 hash buckets, every word      total_variation
    phrasing         input        a sample        hashed words in order             classifier_auc
    meaning          input        a sample        sentence embeddings               mmd
    (the recipe's)   input        messages        the categories                    total_variation
    own_NAME         input        own_NAME        numbers: rft/drift/bins.py        wasserstein_sd
                                                  categories: their values          total_variation
    tool_mix         agent        tools           names of the tools called         total_variation
    num_tool_calls   agent        num_tool_calls  whole numbers                     wasserstein_sd
    num_turns        agent        num_turns       whole numbers                     wasserstein_sd
    tool_errors      agent        tool_errors     0, 1, 2, 3 or more                total_variation
    latency_s        agent        latency_s       a quarter of an octave            psi
    argument_shapes  agent        calls           shapes of a call's arguments      total_variation
    argument_errors  agent        calls           fits the tool's schema, or how not total_variation
    reply_shapes     agent        replies         shapes of a tool's reply          total_variation
    system_prompt    agent        system          hashes of the system prompt       total_variation
    tool_schemas     agent        offered         hashes of the tools offered       total_variation
    refused          performance  refused         answered, refused                 total_variation
    graded           performance  grade           graded, not graded                total_variation
    corrected        performance  grade           as answered, corrected            total_variation

Bins do not depend on the window, so two profiles can be compared without the rows. A column that is
wholly null gives a feature with n = 0. `argument_errors` exists only where schemas are known, and
`meaning` only with an embedder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import pyarrow as pa

from rft import config
from rft.config import Params
from rft.drift import arguments
from rft.drift.labels import Name, shown
from rft.recipe import Recipe
from rft.reports import FeatureGroup, Statistic
from rft.traffic.schema import OWN

Form = Literal["fixed", "adaptive", "labels"]
"""How a column is counted: in given bins, in bins that fit the numbers, or by value."""

_WHOLE = tuple(k + 0.5 for k in range(32))
_WORD_EDGES = (*_WHOLE, *(round(32.5 * 1.1**k, 2) for k in range(1, 90)))
_SECOND_EDGES = tuple(round(0.01 * 2 ** (k / 4), 6) for k in range(73))
_ERROR_COUNTS = ("0", "1", "2", "3 or more")
_REFUSED = ("answered", "refused")
_GRADED = ("not graded", "graded")
GRADES = ("as answered", "corrected")

SAMPLED = ("vocabulary", "phrasing", "meaning")
"""Features that are counted on the sample."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a profile counts. It is pickled for the processes that count.

    `own`: the owner's columns and their kinds. `recipe` and `keys`: how to load a recipe that names
    its own features. `tools`: name and JSON schema, as JSON, of each known tool.
    """

    own: tuple[tuple[str, str], ...] = ()
    text_sample: int = 2000
    recipe: config.Recipe | None = None
    keys: config.Keys | None = None
    tools: tuple[tuple[str, str], ...] = ()
    embedder: str | None = None
    groups: tuple[FeatureGroup, ...] = ("input", "agent", "performance")

    def inputs_only(self) -> Plan:
        """Return the plan for training examples, which have no columns of a log."""
        return replace(self, groups=("input",), own=())


def plan_of_inputs(params: Params, loaded: Recipe) -> Plan:
    """Make the plan of training examples, which have no columns of a log."""
    has_features = loaded.names_features
    return Plan(
        text_sample=params.drift.text_sample,
        recipe=params.recipe.model_copy(update={"path": str(loaded.folder)}) if has_features else None,
        keys=loaded.keys if has_features else None,
        embedder=params.drift.embedder,
        groups=("input",),
    )


def plan_of(params: Params, loaded: Recipe, schemas: Sequence[Mapping[str, Any]] = ()) -> Plan:
    """Make the plan of a run. `schemas`: the recipe's tools as Chat-Completions tools. Endpoints of
    params.yaml that declare their arguments take precedence over them."""
    functions = {tool["name"]: tool for tool in (schema.get("function", schema) for schema in schemas)}
    functions |= {
        endpoint.name: endpoint.model_dump() for endpoint in params.tools.endpoints if endpoint.parameters is not None
    }
    return replace(
        plan_of_inputs(params, loaded),
        own=tuple(sorted(params.traffic.columns.items())),
        tools=tuple((str(tool["name"]), json.dumps(tool.get("parameters") or {})) for tool in functions.values()),
        groups=Plan().groups,
    )


@dataclass(frozen=True, slots=True)
class Spec:
    """One feature that is counted over a column.

    `prepare` makes the column of the snapshot countable; `name` names a distinct value of it. If
    `values` are fixed, there can be no others.
    """

    name: str
    column: str
    group: FeatureGroup
    statistic: Statistic
    form: Form
    edges: tuple[float, ...] = ()
    values: tuple[str, ...] = ()
    prepare: Callable[[pa.Array], pa.Array] = lambda column: column
    name_of: Name = shown


def specs(plan: Plan) -> list[Spec]:
    """List the features that are counted over whole columns."""
    found = [_numbers("input_words", "input", _WORD_EDGES)]
    for name, kind in plan.own:
        is_number = kind == "number"
        form: Form = "adaptive" if is_number else "labels"
        statistic: Statistic = "wasserstein_sd" if is_number else "total_variation"
        found.append(Spec(OWN + name, OWN + name, "input", statistic, form))
    found += [
        _labels("tool_mix", "agent", "tools"),
        _numbers("num_tool_calls", "agent", _WHOLE),
        _numbers("num_turns", "agent", _WHOLE),
        _labels("tool_errors", "agent", "tool_errors", _ERROR_COUNTS, name_of=_num_errors),
        Spec("latency_s", "latency_s", "agent", "psi", "fixed", edges=_SECOND_EDGES),
        _labels("argument_shapes", "agent", "calls"),
    ]
    if plan.tools:
        schemas = {name: json.loads(text) for name, text in plan.tools}
        fits = partial(arguments.outcome, tools=schemas)
        found.append(_labels("argument_errors", "agent", "calls", arguments.OUTCOMES, name_of=fits))
    found += [
        _labels("reply_shapes", "agent", "replies"),
        _labels("system_prompt", "agent", "system"),
        _labels("tool_schemas", "agent", "offered"),
        _labels("refused", "performance", "refused", _REFUSED, name_of=_refused),
        _labels("graded", "performance", "grade", _GRADED, prepare=_is_valid, name_of=_graded),
        _labels("corrected", "performance", "grade", GRADES),
    ]
    return [spec for spec in found if spec.group in plan.groups]


def _numbers(name: str, group: FeatureGroup, edges: tuple[float, ...]) -> Spec:
    return Spec(name, name, group, "wasserstein_sd", "fixed", edges=edges)


def _labels(name: str, group: FeatureGroup, column: str, values: tuple[str, ...] = (), **more: Any) -> Spec:
    return Spec(name, column, group, "total_variation", "labels", values=values, **more)


def _num_errors(count: int) -> str:
    return _ERROR_COUNTS[min(max(count, 0), 3)]


def _refused(value: bool) -> str:
    return _REFUSED[value]


def _is_valid(column: pa.Array) -> pa.Array:
    return column.is_valid()


def _graded(value: bool) -> str:
    return _GRADED[value]


def columns_of(plan: Plan) -> list[str]:
    """List the columns of a snapshot that the plan reads for every conversation."""
    needed = ["draw", "pick", "group", "time", *(spec.column for spec in specs(plan))]
    return list(dict.fromkeys([*needed, "messages"] if plan.recipe else needed))


def names(plan: Plan) -> set[str]:
    """Return the names of our own features, which a recipe may not use."""
    return {*SAMPLED, *(spec.name for spec in specs(replace(plan, groups=Plan().groups)))} | {"argument_errors"}
