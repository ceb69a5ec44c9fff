"""Check the recipe: it loads, its splits do not leak, and every tool that a row names is served.

These are the checks of stage `examples` (rft/stages/examples.py), made before any stage runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from rft import rows, smoke
from rft.doctor.finding import Finding, fail, together, warn
from rft.doctor.setup import Setup
from rft.errors import UserError
from rft.gate import pool
from rft.grading import margins
from rft.rollouts.prompting import too_many_turns
from rft.rollouts.serving import without_verify
from rft.stages import examples
from rft.tools.signatures import TRACE_ID, described, schemas
from rft.types import Example


def check(setup: Setup) -> Finding:
    recipe = setup.recipe
    _ = recipe.grader, recipe.prompts  # each raises with file, key and remedy
    margins.check(setup.params)
    smoke.of_recipe(setup.params)  # which would otherwise be read only at the promotion
    try:
        exploits = recipe.exploits
    except json.JSONDecodeError as error:
        return fail(
            f"{recipe.folder}/exploits.jsonl: not JSON lines: {error}",
            "Write one JSON object per line; fix the line that it names.",
        )
    counts = {split: len(found) for split, found in setup.rows.items()}
    problems: list[Finding] = []
    for split, found in setup.rows.items():
        problems += _rows(setup, split, found)
    problems += [
        *_keys(setup),
        *_leaks(setup),
        *_blocks(setup),
        *_slices(setup),
        *_routes(setup),
        *_policy(setup),
        *_prompts(setup),
        *_unequal(setup),
        *_exploits(setup),
    ]
    sizes = ", ".join(f"{count} {split}" for split, count in counts.items())
    description = f"{recipe.name}: {sizes}, apart from each other; {len(exploits)} exploits; {_fresh(setup)}"
    return together(problems, description, examples=counts)


def _exploits(setup: Setup) -> Iterator[Finding]:
    if not setup.recipe.exploits:
        yield warn(
            f"{setup.recipe.folder}: no exploits.jsonl, so only the engine's own probes are tried on the grader",
            "Write one line for each way to please your grader without doing the task; `rft new` shows how.",
        )


def _rows(setup: Setup, split: str, found: Sequence[Example]) -> Iterator[Finding]:
    file, section = f"{setup.recipe.folder}/examples.py", setup.params.examples
    asked = section.num_test if split == "test" else getattr(section, split)
    if len(found) != asked:
        description = f"{file} gave {len(found)} {split} examples, examples.{split} = {asked}"
        yield fail(description, f"Lower examples.{split} to what it has.")


def _keys(setup: Setup) -> Iterator[Finding]:
    for split, found in setup.rows.items():
        try:
            rows.check_named(found, setup.params.examples.keys, split)
        except UserError as error:
            yield fail(str(error), "")


def _unequal(setup: Setup) -> Iterator[Finding]:
    """Warn of functions that take the trace id, which is new in every run."""
    if asking := [name for name, asked in described(setup.recipe).asks.items() if TRACE_ID in asked]:
        yield warn(
            f"{setup.recipe.folder}/tools.py: {', '.join(asking)} asks for the trace id, which is new in every run: "
            "equal seeds give equal bytes only where it does not show in what these return",
            "Keep the argument where a tool needs state per rollout; else remove it.",
        )


def _leaks(setup: Setup) -> Iterator[Finding]:
    """Find repeated ids, texts that are in two splits, and targets that an earlier split has."""
    try:
        examples.check_leakage(setup.rows, setup.params.examples.disjoint_targets)
    except UserError as error:
        yield fail(str(error), "")


def _blocks(setup: Setup) -> Iterator[Finding]:
    """Try the next block of test examples, before somebody needs it."""
    section = setup.params.examples
    if not setup.recipe.offers_blocks:
        return
    two = section.model_copy(update={"blocks": max(2, section.blocks)})
    try:
        examples.check_blocks(examples.tested(setup.recipe, two), section.disjoint_targets)
    except UserError as error:
        yield warn(str(error), "")


def _fresh(setup: Setup) -> str:
    if setup.recipe.offers_blocks:
        return "it offers blocks of test examples"
    return "it offers no blocks of test examples, so when the looks at these are spent, you need new ones"


def _slices(setup: Setup) -> Iterator[Finding]:
    """Find a slice that the gate could not judge."""
    try:
        pool.check(setup.params, Counter(row.slice for row in examples.once(setup.rows["test"])))
    except UserError as error:
        yield fail(str(error), "")


def _routes(setup: Setup) -> Iterator[Finding]:
    """Find tools that nothing serves. A row may bring a tool's schema, but the tool's address comes
    from the recipe or from params.yaml."""
    tools = setup.params.tools
    named = {_name(tool) for found in setup.rows.values() for row in found for tool in row.tools or ()}
    own = {_name(tool) for tool in schemas(setup.recipe)}
    routes = own | {endpoint.name for endpoint in tools.endpoints}
    lost = sorted(named - routes)
    if lost and not tools.mcp:  # an MCP server lists its tools when it is asked
        yield fail(
            f"examples bring the tools {lost}, which nothing serves; there are {sorted(routes)}",
            "Add each to tools.endpoints with its server_url, or to the recipe's TOOLS.",
        )
    for endpoint in tools.endpoints:
        if endpoint.parameters is None and endpoint.name not in named | own:
            yield warn(
                f"tools.endpoints {endpoint.name} has no parameters, and no example brings its schema: no policy "
                "will see it",
                "Write its JSON schema under parameters.",
            )
    defaults = sorted(set(setup.recipe.prompts.seed.tool_defaults) - routes - named)
    if defaults and not tools.mcp:
        description = f"prompts.json: seed.tool_defaults names the tools {defaults}; there are {sorted(routes)}"
        yield fail(description, "Fix the name.")


def _policy(setup: Setup) -> Iterator[Finding]:
    policy = setup.params.policy
    if policy.model is None and policy.server is None and not (setup.recipe.folder / "demonstrations.py").exists():
        yield fail(
            f"nothing to make a policy from: policy.model is null, and {setup.recipe.folder} has no demonstrations.py",
            "Name a model in policy.model, or write demonstrations for the embedded policy.",
        )


def _prompts(setup: Setup) -> Iterator[Finding]:
    for what, remedy in too_many_turns(setup.params, setup.recipe):
        yield fail(what, remedy)
    for what, remedy in without_verify(setup.params, setup.recipe):
        yield fail(what, remedy)


def _name(tool: dict[str, object]) -> str:
    function = tool.get("function", tool)
    return str(function.get("name", "?")) if isinstance(function, dict) else "?"
