"""Write dvc.yaml from what each stage needs.

Run `python -m tasks.dependencies --write` after an import changed. A test compares.

A stage depends on:
- the modules of `rft` that it imports, directly or through others, at the top of a file or inside a
  function, or that it starts by name as a process ("rft.tools.server");
- the modules that its recipe imports;
- its recipe's folder, and the files that it reads.

So a comment in the trainer does not repeat the warm start, and no change of code is missed, as
lists written by hand would miss it. The modules enter a run as a file of hashes
(tasks/runs/engine.py). The sections of params.yaml are found in the same way: every
`params.<section>` in the code that `run` can reach by name. Several stages read section `examples`,
so they depend on its keys (`params.examples.<key>`): a larger test set does not repeat a training.

Two things cannot be read from the code: which files a stage reads (rft/needs.py, where the engine
reads it too), and which files it leaves (the table below). Where a stage leaves a `timing.json`,
its outputs are listed as single files, so that wall times never enter another hash.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rft import needs

_WHOLE = "*"
_BY_KEY = ("examples", "drift")
"""In these sections a stage depends on the keys that it reads, not on the whole section."""
_ALSO_BY_KEY = {"examples": ("train", "policy")}
"""Further sections by key, for one stage. From them `examples` learns which dialogues to choose,
and which ones a warm start has seen."""


@dataclass(frozen=True)
class Outputs:
    """A stage's description, and the files that it leaves in data/<stage>."""

    description: str
    leaves: tuple[str, ...]


STAGES = {
    "traffic": Outputs(
        "pin a window of production conversations and normalize it",
        ("conversations", "current_profile.json", "reference_profile.json", "references", "report.json"),
    ),
    "drift": Outputs("is the data still like production? continue, refresh or stop", ("report.json",)),
    "examples": Outputs(
        "train, validation and test, from the recipe or from graded traffic",
        ("train.jsonl", "validation.jsonl", "test.jsonl", "imitated.json", "keys.json", "profile.json", "report.json"),
    ),
    "policy": Outputs("the base model: built or warm-started here, or a pointer to the given one", ("",)),
    "baseline": Outputs(
        "how good is the agent today, and would RFT help at all?", ("report.json", "rollouts.parquet", "timing.json")
    ),
    "prompt": Outputs(
        "does a better prompt or setting do? Cheaper than weights, so it goes first",
        ("report.json", "prompt.json", "rollouts.parquet", "timing.json"),
    ),
    "train": Outputs(
        "RFT with the real tools and the real grader",
        ("report.json", "weights", "metrics.jsonl", "rollouts.parquet", "timing.json"),
    ),
    "challenger": Outputs(
        "champion, champion with the new prompt, challenger: on the same frozen test examples",
        ("report.json", "rollouts.parquet", "shown.json", "shown.parquet", "timing.json"),
    ),
    "gate": Outputs(
        "is the challenger better, and nothing else worse? promote, reject or inconclusive",
        ("decision.json", "request.json", "timing.json"),
    ),
}

_HEADER = """\
# The ladder, as a table of contents, written by agent-rft: `rft upgrade` writes it anew, so nothing is
# changed here. A run executes these one by one (`rft run`); `dvc repro` does the same by hand, with
# params.yaml alone. There DVC wants every section or key that a stage depends on: a section that you
# leave to its defaults is written `policy: {}`. `rft stage run NAME --params FILE` wants nothing of the kind.
"""
_MARK = "# sha256 of what follows: "


def modules(root: Path, stage: str, recipe: Path | None = None) -> list[str]:
    """List the paths below `root` of all modules of `rft` that this stage may load, including those
    that the recipe's own modules import."""
    found: set[Path] = set()
    waiting = [root / "rft" / "__main__.py", _module(root, f"rft.stages.{stage}")]
    if recipe is not None and needs.RECIPE in needs.NEEDS[stage].files:
        waiting += [path for file in sorted(recipe.rglob("*.py")) for path in _imports(root, file)]
    while waiting:
        path = waiting.pop()
        if path is None or path in found or not path.exists() or _is_only_docstring(path):
            continue
        found.add(path)
        if path.name != "__main__.py":  # it names every stage, and loads only one
            waiting += _imports(root, path)
    return sorted(path.relative_to(root).as_posix() for path in found)


def _is_only_docstring(path: Path) -> bool:
    """Say whether a package's `__init__` holds only a docstring, whose change must not repeat a
    warm start."""
    return path.name == "__init__.py" and all(
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in tree(path).body
    )


def sections(root: Path, stage: str) -> list[str]:
    """List the sections of params.yaml, or keys of sections, that the stage's `run` may read."""
    from rft.config import Params

    known = {name: info.alias or name for name, info in Params.model_fields.items()}
    by_key = (*_BY_KEY, *_ALSO_BY_KEY.get(stage, ()))
    used: dict[str, set[str]] = {}  # section -> the keys that are read, "" for the whole
    for definition in _reached(root, stage):
        for section, key in _mentioned(definition).settings:
            used.setdefault(section, set()).add(key if section in by_key else "")
    found: list[str] = []
    for name in known:
        keys = used.get(name, set())
        found += [known[name]] if "" in keys else [f"{known[name]}.{key}" for key in sorted(keys)]
    return found


def _reached(root: Path, stage: str) -> Iterator[ast.AST]:
    """Yield every function, class and constant that `rft.stages.<stage>.run` can reach by name.

    Imports would be too coarse: a stage may import a module for one function. It must not run again
    because of a setting that only the rest of that module reads.
    """
    waiting = [(_module(root, f"rft.stages.{stage}"), "run")]
    seen: set[tuple[Path | None, str]] = set()
    while waiting:
        path, name = waiting.pop()
        if path is None or (path, name) in seen:
            continue
        seen.add((path, name))
        names, imported = _names(root, path)
        if name in imported:  # a re-export
            waiting += imported[name]
        if (definition := names.get(name)) is None:
            continue
        yield definition
        found = _mentioned(definition)
        for used in found.names:
            waiting += imported.get(used, [(path, used)])
        for owner, used in found.attributes:
            waiting += [(module, used) for module, of in imported.get(owner, []) if of == _WHOLE]


@dataclass(frozen=True)
class Mentioned:
    """The names and settings that a piece of code mentions."""

    names: tuple[str, ...]
    attributes: tuple[tuple[str, str], ...]
    """`owner.name`, where the owner is a name."""
    settings: tuple[tuple[str, str], ...]
    """(section, key) of `params.section.key`; no key where the whole section is read."""


@cache
def _mentioned(code: ast.AST) -> Mentioned:
    nodes = [*ast.walk(code)]
    dotted = [node for node in nodes if isinstance(node, ast.Attribute)]
    keys = {node.value: node.attr for node in dotted}
    return Mentioned(
        tuple({node.id: None for node in nodes if isinstance(node, ast.Name)}),
        tuple({(node.value.id, node.attr): None for node in dotted if isinstance(node.value, ast.Name)}),
        tuple({(node.attr, keys.get(node, "")): None for node in dotted if _is_params(node.value)}),
    )


@cache
def _names(root: Path, path: Path) -> tuple[dict[str, ast.AST], dict[str, list[tuple[Path | None, str]]]]:
    """Return a module's top-level definitions, and what its imports bind: name -> (module, name
    there)."""
    code = tree(path)
    defined: dict[str, ast.AST] = {}
    for node in code.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {target.id: node for target in targets if isinstance(target, ast.Name)}
    imported: dict[str, list[tuple[Path | None, str]]] = {}
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom):
            base = _base(root, path, node)
            for alias in node.names:
                whole = _module(root, f"{base}.{alias.name}")
                found = (whole, _WHOLE) if whole else (_module(root, base), alias.name)
                imported[alias.asname or alias.name] = [found]
    return defined, imported


def render(root: Path) -> str:
    """Return the text of dvc.yaml."""
    _names.cache_clear()  # the files may have changed since the last time
    lines = ["stages:\n"]
    for stage, outputs in STAGES.items():
        lines.append(f"  {stage}:\n    desc: {outputs.description!r}\n    cmd: exec rft-stage {stage}\n    deps:\n")
        lines += [f"      - {path}\n" for path in (*needs.NEEDS[stage].files, *needs.engine(stage))]
        lines.append("    params:\n")
        lines += [f"      - {section}\n" for section in sections(root, stage)]
        lines.append("    outs:\n")
        lines += [f"      - {path.removesuffix('/')}\n" for path in needs.leaves(stage, *outputs.leaves)]
    text = "".join(lines)
    return f"{_HEADER}{_MARK}{hashlib.sha256(text.encode()).hexdigest()[:16]}\n{text}"


def is_edited(text: str) -> bool:
    """Say whether somebody has changed a dvc.yaml since agent-rft, in any version, wrote it. A file
    without a mark is from an earlier version, and counts as unchanged."""
    _, mark, rest = text.partition(_MARK)
    sha256, _, content = rest.partition("\n")
    return bool(mark) and hashlib.sha256(content.encode()).hexdigest()[:16] != sha256


def _imports(root: Path, file: Path) -> Iterator[Path | None]:
    yield from (_module(root, name) for name in _named(root, file, tree(file)))


@cache
def _named(root: Path, file: Path, code: ast.Module) -> tuple[str, ...]:
    """Return what a file may load: its imports, and modules named in texts ("rft.tools.server")."""
    texts = (node.value for node in ast.walk(code) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return tuple(dict.fromkeys([*imported(root, file, code), *(text for text in texts if text.startswith("rft."))]))


def imported(root: Path, file: Path, within: ast.AST) -> Iterator[str]:
    """Yield every dotted name that the code `within` a file imports, at any depth: modules, and
    names that may be modules."""
    for node in ast.walk(within):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(root, file, node)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _base(root: Path, file: Path, node: ast.ImportFrom) -> str:
    """Resolve relative imports: `from .loss import x` in rft/losses/grpo.py is rft.losses.loss."""
    if not node.level:
        return node.module or ""
    folder = file.parents[node.level - 1]
    if not folder.is_relative_to(root):
        return ""
    return ".".join([*folder.relative_to(root).parts, *([node.module] if node.module else [])])


def _module(root: Path, name: str) -> Path | None:
    parts = name.split(".")
    if parts[0] != "rft" or not all(part.isidentifier() for part in parts):
        return None
    path = root.joinpath(*parts)
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()), None)


def tree(file: Path) -> ast.Module:
    return _parsed(file.read_text(encoding="utf-8"), str(file))


@cache
def _parsed(text: str, file: str) -> ast.Module:
    """Parse a file once: the nine stages share most of their modules."""
    return ast.parse(text, filename=file)


def _is_params(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id == "params") or (
        isinstance(node, ast.Attribute) and node.attr == "params"
    )


def main(arguments: Iterable[str] | None = None) -> int:
    description = "Compute dvc.yaml from the imports of the stages."
    parser = argparse.ArgumentParser(prog="python -m tasks.dependencies", description=description)
    help_text = "write dvc.yaml (without it: compare, exit code 1 when it differs)"
    parser.add_argument("--write", action="store_true", help=help_text)
    options = parser.parse_args(None if arguments is None else list(arguments))
    root = Path.cwd()
    text, path = render(root), root / "dvc.yaml"
    if options.write:
        path.write_text(text, encoding="utf-8")
        return 0
    if path.exists() and path.read_text(encoding="utf-8") == text:
        print("dvc.yaml is up to date.")
        return 0
    print("dvc.yaml does not say what the stages import. Write it: python -m tasks.dependencies --write")
    return 1


if __name__ == "__main__":
    sys.exit(main())
