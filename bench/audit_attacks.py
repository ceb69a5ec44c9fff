"""What somebody can do to a clone to change how its past looks: tricks for `audit_tamper`.

Each case says what is asked afterwards, and which link it breaks. The audit must name that very
link by its source and its target. `RUN` and `COMMIT` in a pattern stand for the attacked run and
its revision. If the ledger itself is damaged, no audit is possible: then the error must hold the
words of `says`.

A run is named by its place in audit_world.CHOSEN, beginning with 1. The 3rd trained on the 2nd's
weights, on examples of its window. The 5th is only a prompt, on the 3rd's weights. The 4th and the
10th start from a given base model. The 6th had uncommitted edits. Nobody asked to promote the 9th.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.audit_scene import Scene, dumped
from tasks.ledger import chain, memory, remote
from tasks.runs.artifacts import PROFILE, WEIGHTS, WINDOW
from tasks.runs.git import git, git_bytes

PROMPT_ALONE, BEFORE, TRAINED, GIVEN, ON_WEIGHTS, EDITED, ROLLED_BACK, REFUSED, UNASKED = 1, 2, 3, 4, 5, 6, 7, 8, 9
SERVED_GIVEN, OPENED, STOPPED, WAITING = 10, 11, 12, 13
Trick = Callable[[Scene], object]
BROKEN = ("altered", "missing")


@dataclass(frozen=True)
class Case:
    name: str
    place: int
    """The place of the attacked run."""
    attack: Trick
    breaks: tuple[tuple[str, str], ...] = ()
    """The audit must name one of these links: patterns of its source and of its target."""
    says: str = ""
    """Words of the error that ends the audit if the ledger cannot be read."""
    asks: str = "version"
    """`version` of that run, `run`, or `entry:KIND` of that run."""
    states: tuple[str, ...] = BROKEN


def every(scene: Scene) -> Iterator[Case]:
    yield from cache(scene)
    yield from removed(scene)
    yield from objects(scene)
    yield from refs(scene)
    yield from revisions(scene)
    yield from shown(scene)
    yield from ledger(scene)
    yield from others(scene)


# -- DVC's cache -----------------------------------------------------------------------------------
def _wrote(stage: str, path: str) -> tuple[tuple[str, str], ...]:
    return ((f"stage:RUN/{stage}", f"bytes:RUN/{path}"),)


def _outs(scene: Scene, place: int) -> Iterator[tuple[str, str, str, str]]:
    """Yield (stage, its output, path, MD5) for files, lists of folders, and files in folders."""
    for stage, row in scene.lock(place)["stages"].items():
        for out in row["outs"]:
            yield stage, out["path"], out["path"], out["md5"]
            if out["md5"].endswith(".dir"):
                for inside in json.loads(scene.object(out["md5"]).read_bytes()):
                    yield stage, out["path"], f"{out['path']}/{inside['relpath']}", inside["md5"]


def _once(scene: Scene, place: int) -> Iterator[tuple[str, str, str, str]]:
    """Leave out bytes that another output has, too: then the links of both break."""
    found = [*_outs(scene, place)]
    md5s = [md5 for *_, md5 in found]
    yield from (each for each in found if md5s.count(each[3]) == 1)


def cache(scene: Scene) -> Iterator[Case]:
    for place in (TRAINED, GIVEN):
        for stage, out, path, md5 in _once(scene, place):
            name = f"a bit of {path} of run {place}"
            yield Case(name, place, lambda s, md5=md5: s.flip(md5), _wrote(stage, out))
    for stage, out, path, md5 in [*_once(scene, UNASKED)][::3]:
        name = f"the last bit of {path} of a run that nobody asked to promote"
        yield Case(name, UNASKED, lambda s, md5=md5: s.flip(md5, 1.0), _wrote(stage, out), asks="run")
    for path in (WEIGHTS, PROFILE, WINDOW):
        breaks = (("stage:RUN/*", "bytes:RUN/data/champion"), ("version:*", "weights:*"))
        md5 = scene.at(ON_WEIGHTS).outs[path].md5
        yield Case(f"a bit of the champion's {path}", ON_WEIGHTS, lambda s, md5=md5: s.flip(md5), breaks)
        yield Case(f"{path} of the champion, gone", ON_WEIGHTS, lambda s, md5=md5: s.remove(md5), breaks)
    stage, out, path, md5 = next(each for each in _once(scene, BEFORE) if each[2].endswith("adapter/model.bin"))
    name = "a bit of the weights that the version's weights were trained on"
    breaks = ((f"stage:{scene.run(BEFORE)}/{stage}", f"bytes:{scene.run(BEFORE)}/{out}"),)
    yield Case(name, TRAINED, lambda s, md5=md5: s.flip(md5), breaks)
    listed = scene.entry("registration", TRAINED).entry.act.examples  # type: ignore[union-attr]
    breaks = ((_entry(scene, "registration", TRAINED), f"bytes:list/{listed.md5}"),)
    yield Case("a bit of the list of examples", TRAINED, lambda s: s.flip(listed.md5), breaks)
    yield Case("the list of examples, emptied", TRAINED, lambda s: s.write(s.object(listed.md5), b""), breaks)
    yield Case("the list of examples, removed", TRAINED, lambda s: s.remove(listed.md5), breaks)


def removed(scene: Scene) -> Iterator[Case]:
    for stage, out, path, md5 in _once(scene, TRAINED):
        name = f"{path}, removed here and at the remote"
        yield Case(name, TRAINED, lambda s, md5=md5: s.remove(md5), _wrote(stage, out))
    for stage, out, path, md5 in [*_once(scene, GIVEN)][::4]:
        name = f"{path} of the given model's run, emptied"
        yield Case(name, GIVEN, lambda s, md5=md5: s.write(s.object(md5), b""), _wrote(stage, out))


def _entry(scene: Scene, kind: str, place: int) -> str:
    return f"entry:{scene.entry(kind, place).entry.number}"


# -- Git's objects ---------------------------------------------------------------------------------
_IN_REVISION = (
    "params.yaml",
    "dvc.lock",
    "dvc.yaml",
    "data/engine/PINS.json",
    "data/engine/train.json",
    "data/environment.json",
    "data/champion/champion.json",
    "data/champion/weights.dvc",
    "data/registration/opening.json",
    "data/registration/registration.json",
    "recipes/tiny/grader.json",
    "recipes/tiny/tools.py",
    "recipes/tiny/examples.py",
    "rft/rows.py",
    "rft/stages/train.py",
)


def objects(scene: Scene) -> Iterator[Case]:
    """Put other bytes under the name of an object: Git itself does not check."""
    revision = (("run:RUN", "revision:COMMIT"),)
    for path in _IN_REVISION:
        name = f"{path} of the revision, overwritten under its name in Git"
        blob = scene.blob(scene.revision(TRAINED), path)
        yield Case(name, TRAINED, lambda s, blob=blob: s.overwrite(blob, _shifted), revision)
    for path in ("params.yaml", "dvc.lock", "data/environment.json"):
        name = f"{path} of the revision, gone from Git"
        blob = scene.blob(scene.revision(TRAINED), path)
        yield Case(name, TRAINED, lambda s, blob=blob: _lose(s, blob), revision)
    for path in ("", "recipes", "data"):
        tree = scene.blob(scene.revision(TRAINED), path)
        name = f"folder {path or 'of all'} of the revision, overwritten under its name in Git"
        yield Case(name, TRAINED, lambda s, tree=tree: s.overwrite(tree, _shifted), revision)
    began = git(scene.root, "rev-parse", f"{scene.revision(TRAINED)}^1")
    tree = scene.blob(began, "")
    code = (("revision:COMMIT", f"code:{began}"),)
    yield Case("the commit that the run began at, overwritten", TRAINED, lambda s: s.overwrite(began, _shifted), code)
    yield Case("the commit that the run began at, gone", TRAINED, lambda s: _lose(s, began), code)
    yield Case("the folder of the commit that the run began at, gone", TRAINED, lambda s: _lose(s, tree), code)
    alone = scene.revision(UNASKED)
    name = "the commit of a revision that nobody asked to promote, overwritten"
    yield Case(name, UNASKED, lambda s: s.overwrite(alone, _shifted), revision, asks="run")
    for place in (TRAINED, EDITED):  # it is a parent in the ledger, so reading the chain finds it
        commit = scene.revision(place)
        text = commit[:10]
        name = f"the commit of run {place}'s revision"
        yield Case(f"{name}, overwritten", place, lambda s, commit=commit: s.overwrite(commit, _shifted), says=text)
        yield Case(f"{name}, gone", place, lambda s, commit=commit: _lose(s, commit), says=text)


def _shifted(content: bytes) -> bytes:
    """Change one letter in the middle."""
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def _lose(scene: Scene, name: str) -> None:
    (scene.root / ".git/objects" / name[:2] / name[2:]).unlink()


# -- refs and records ------------------------------------------------------------------------------
def refs(scene: Scene) -> Iterator[Case]:
    run = (("*", "run:RUN"),)
    for place in (PROMPT_ALONE, TRAINED, GIVEN, EDITED, REFUSED, WAITING):
        asks = "run" if place in (REFUSED, WAITING) else "version"
        other = scene.revision(BEFORE)
        head = git(scene.root, "rev-parse", "main")
        yield Case(
            f"ref of run {place} on another run's revision",
            place,
            lambda s, place=place, other=other: s.move(place, other),
            run,
            asks=asks,
        )
        yield Case(
            f"ref of run {place} on a commit of main",
            place,
            lambda s, place=place, head=head: s.move(place, head),
            run,
            asks=asks,
        )
        yield Case(f"run {place} recorded anew with other params", place, _reparam(place), run, asks=asks)
        yield Case(f"run {place}: another revision in its record", place, _rerecord(place), run, asks=asks)
    for place in (UNASKED, OPENED, STOPPED):
        yield Case(f"ref of run {place} on main's commit", place, _on_main(place), run, asks="run")
        yield Case(f"run {place}: another revision in its record", place, _rerecord(place), run, asks="run")


def _reparam(place: int) -> Trick:
    def attack(scene: Scene) -> None:
        params = git_bytes(scene.root, "show", f"{scene.revision(place)}:params.yaml")
        scene.move(
            place, scene.rewrite(place, {"params.yaml": params.replace(b"num_bootstrap: ", b"num_bootstrap: 9")})
        )

    return attack


def _rerecord(place: int) -> Trick:
    def attack(scene: Scene) -> None:
        file = scene.clone.runs / f"{scene.run(place)}.json"
        told = json.loads(file.read_text()) | {"revision": scene.revision(BEFORE)}
        scene.write(file, json.dumps(told).encode())

    return attack


def _on_main(place: int) -> Trick:
    return lambda scene: scene.move(place, git(scene.root, "rev-parse", "main"))


# -- a revision that was written anew --------------------------------------------------------------
def revisions(scene: Scene) -> Iterator[Case]:
    """Rewrite the revision of a run that no signed entry names. All unsigned names of it are forged
    to fit, but the revision must not be consistent in itself."""

    def case(name: str, attack: Callable[[Scene], dict[str, bytes | None]], *breaks: tuple[str, str]) -> Case:
        def forged(scene: Scene) -> None:
            scene.forge(UNASKED, scene.rewrite(UNASKED, attack(scene)))

        return Case(f"{name}, all unsigned names forged", UNASKED, forged, breaks, asks="run")

    for section, key in _KEYS:
        yield case(
            f"{section}.{key} changed",
            lambda s, section=section, key=key: {"params.yaml": _param(s, section, key)},
            ("stage:RUN/*", "parameters:*"),
            ("entry:*", "run:RUN"),  # for a setting that no stage of this clone reads
        )
    engine = ("data/engine/PINS.json", "data/engine/gate.json")
    for path in (*engine, "rft/errors.py", "rft/files.py", "rft/stopping.py", "rft/__main__.py"):
        yield case(f"{path} replaced", lambda s, path=path: {path: b"# another\n"}, ("stage:RUN/*", "code:files/*"))
    for path in ("tools.py", "grader.json", "examples.py", "exploits.jsonl"):
        where = f"recipes/tiny/{path}"
        yield case(f"{where} replaced", lambda s, where=where: {where: b"# another\n"}, ("stage:RUN/*", "recipe:*"))
    yield case(
        "environment.json replaced",
        lambda s: {"data/environment.json": _environment(s)},
        ("revision:*", "environment:RUN"),
    )
    yield case("environment.json removed", lambda s: {"data/environment.json": None}, ("revision:*", "environment:RUN"))
    of_champion = ("stage:RUN/*", "bytes:RUN/data/champion")
    yield case("champion.json changed", lambda s: {"data/champion/champion.json": _champion(s)}, of_champion)
    yield case("the champion's weights are others", lambda s: {f"{WEIGHTS}.dvc": _pointer(s)}, of_champion)
    declared = ("revision:*", "stage:RUN/*")
    for what, found, put in (
        ("a command", b"cmd: exec rft-stage train", b"cmd: exec rft-stage other"),
        ("a dependency", b"      - data/engine/train.json\n", b""),
        ("an output", b"      - data/gate/timing.json\n", b""),
        ("a setting", b"      - drift\n", b""),
    ):
        yield case(f"dvc.yaml: {what} changed", _replaced("dvc.yaml", found, put), declared)
        if what == "a command":
            yield case(f"dvc.lock: {what} changed", _replaced("dvc.lock", found, put), declared)
    for stage in scene.lock(UNASKED)["stages"]:
        yield case(
            f"dvc.lock: an output of {stage} is another run's",
            _swapped(stage),
            ("stage:*", "bytes:*"),
            ("stage:*", "*"),
        )
    for stage, path in (("drift", "data/traffic/report.json"), ("train", "data/baseline/report.json")):
        yield case(
            f"dvc.lock: {stage} read another {path}",
            _dep(stage, path),
            (f"stage:RUN/{stage}", f"bytes:RUN/{path}"),
        )
    for stage in ("traffic", "policy", "gate"):
        yield case(
            f"dvc.lock: {stage} ran other code", _dep(stage, "rft/__main__.py"), (f"stage:RUN/{stage}", "code:*")
        )
    for stage in ("drift", "train"):
        yield case(f"dvc.lock: {stage} had other settings", _setting(stage), (f"stage:RUN/{stage}", "parameters:*"))
    for path, key, value in _EDITS:
        yield case(f"{path}: {key} edited, and dvc.lock with it", _edited(path, key, value), ("stage:*", "*"))


_KEYS = (
    ("traffic", "min_conversations"),
    ("drift", "max_bad_share"),
    ("examples", "seed"),
    ("policy", "seed"),
    ("rollout", "max_turns"),
    ("baseline", "k"),
    ("prompt", "rounds"),
    ("train", "steps"),
    ("challenger", "k"),
    ("gate", "min_gain"),
    ("tools", "retries"),
)
_EDITS = (
    ("data/traffic/report.json", "num_conversations", 7),
    ("data/traffic/report.json", "sha256", "0" * 64),
    ("data/drift/report.json", "reason", "all is well"),
    ("data/examples/report.json", "counts", {"train": 1, "validation": 1, "test": 1}),
    ("data/baseline/report.json", "reason", "ready"),
    ("data/prompt/report.json", "reason", "none better"),
    ("data/train/report.json", "reason", "90 steps"),
    ("data/train/report.json", "sha256", "0" * 64),
    ("data/challenger/report.json", "test_sha256", "0" * 64),
    ("data/challenger/report.json", "arms", []),
    ("data/gate/decision.json", "hashes", {}),
)


def _show(scene: Scene, path: str) -> bytes:
    return git_bytes(scene.root, "show", f"{scene.revision(UNASKED)}:{path}")


def _yaml(content: bytes) -> Any:
    import yaml

    return yaml.load(content, yaml.CSafeLoader)


def _param(scene: Scene, section: str, key: str) -> bytes:
    params = _yaml(_show(scene, "params.yaml"))
    params[section][key] += 1
    return dumped(params)


def _environment(scene: Scene) -> bytes:
    told = json.loads(_show(scene, "data/environment.json"))
    told["starts"][0]["packages"] |= {"annotated-types": "9.9.9"}
    return json.dumps(told).encode()


def _champion(scene: Scene) -> bytes:
    told = json.loads(_show(scene, "data/champion/champion.json"))
    told["prompt"]["system"] = "Say anything."
    return json.dumps(told).encode()


def _pointer(scene: Scene) -> bytes:
    pointer = _yaml(_show(scene, f"{WEIGHTS}.dvc"))
    pointer["outs"][0]["md5"] = scene.at(GIVEN).outs["data/train/weights"].md5
    return dumped(pointer)


def _replaced(path: str, found: bytes, put: bytes) -> Callable[[Scene], dict[str, bytes | None]]:
    def attack(scene: Scene) -> dict[str, bytes | None]:
        content = _show(scene, path)
        assert found in content, found
        return {path: content.replace(found, put, 1)}

    return attack


def _swapped(stage: str) -> Callable[[Scene], dict[str, bytes | None]]:
    """Replace the first output of a stage by another run's, only in the stage's own row."""

    def attack(scene: Scene) -> dict[str, bytes | None]:
        lock = _yaml(_show(scene, "dvc.lock"))
        others = [scene.lock(place) for place in (TRAINED, GIVEN)]
        pairs = [
            pair
            for other in others
            for pair in zip(lock["stages"][stage]["outs"], other["stages"][stage]["outs"], strict=True)
        ]
        mine, theirs = next(
            pair for pair in pairs if pair[0]["md5"] != pair[1]["md5"] and "profile" not in pair[0]["path"]
        )
        mine |= {"md5": theirs["md5"], "size": theirs["size"]}
        return {"dvc.lock": dumped(lock)}

    return attack


def _dep(stage: str, path: str) -> Callable[[Scene], dict[str, bytes | None]]:
    def attack(scene: Scene) -> dict[str, bytes | None]:
        lock = _yaml(_show(scene, "dvc.lock"))
        row = next(each for each in lock["stages"][stage]["deps"] if each["path"] == path)
        row["md5"] = "0" * 32
        return {"dvc.lock": dumped(lock)}

    return attack


def _setting(stage: str) -> Callable[[Scene], dict[str, bytes | None]]:
    def attack(scene: Scene) -> dict[str, bytes | None]:
        lock = _yaml(_show(scene, "dvc.lock"))
        section = lock["stages"][stage]["params"]["params.yaml"][stage]
        key = next(key for key, value in section.items() if isinstance(value, int | float))
        section[key] += 1
        return {"dvc.lock": dumped(lock)}

    return attack


def _edited(path: str, key: str, value: object) -> Callable[[Scene], dict[str, bytes | None]]:
    """Change a value of a report, and its hash everywhere in dvc.lock."""

    def attack(scene: Scene) -> dict[str, bytes | None]:
        told = json.loads(scene.object(scene.at(UNASKED).outs[path].md5).read_bytes())
        return {"dvc.lock": scene.relocked(UNASKED, path, json.dumps(told | {key: value}).encode())}

    return attack


# -- what is shown ---------------------------------------------------------------------------------
_TAGS = (
    "rft.champion",
    "rft.ledger",
    "entry",
    "revision",
    "run",
    "approved_by",
    "reason",
    "prompt_sha256",
    "weights",
    "weights_sha256",
    "dvc.lock_sha256",
    "dvc.path",
    "dvc.md5",
    "prompt",
    "prompt_version",
)


def shown(scene: Scene) -> Iterator[Case]:
    file = (("alias:file/given", "version:given@*"),)
    for where, value in _FIELDS:
        name = f"champion file: {'.'.join(where)} edited"
        yield Case(name, SERVED_GIVEN, lambda s, where=where, value=value: _served(s, where, value), file)
    path = ".rft/champion/given.json"
    yield Case("champion file: no JSON", SERVED_GIVEN, lambda s: s.write(s.root / path, b"{"), file)
    alias = (("alias:mlflow/given@*", "version:given@*"),)
    yield Case("@champion moved by hand", SERVED_GIVEN, lambda s: _alias(s, "champion", GIVEN), alias)
    yield Case("@previous moved by hand", GIVEN, lambda s: _alias(s, "previous", SERVED_GIVEN), alias)
    yield Case("@champion removed", SERVED_GIVEN, lambda s: _unalias(s, "champion"), alias)
    yield Case("@previous removed", GIVEN, lambda s: _unalias(s, "previous"), alias)
    prompt = (*alias, ("alias:mlflow*", "*"))
    yield Case("the prompt's @champion moved by hand", SERVED_GIVEN, _prompt_alias, prompt)
    version = (("alias:mlflow/*/*", "version:*"),)
    for tag in _TAGS:
        yield Case(f"tag {tag} of the registered version changed", GIVEN, _retagged(tag), version)
    yield Case("the registered version deleted", GIVEN, _unregister, (*version, *alias))
    run = (("alias:mlflow-run/RUN", "run:RUN"),)
    for place in (TRAINED, UNASKED):
        for tag in ("run", "git_commit", "revision", "dvc.lock_sha256"):
            yield Case(
                f"tag {tag} of run {place} in MLflow changed",
                place,
                lambda s, place=place, tag=tag: _tag_run(s, place, tag),
                run,
                asks="run",
            )
        yield Case(
            f"run {place} deleted in MLflow", place, lambda s, place=place: _delete_run(s, place), run, asks="run"
        )


_FIELDS = (
    (("ledger",), "0" * 64),
    (("act",), 1),
    (("previous",), 0),
    (("revision",), "0" * 40),
    (("champion", "version"), 1),
    (("champion", "run"), "20250101-0000-0000"),
    (("champion", "prompt", "system"), "Say anything."),
    (("champion", "weights_sha256"), "0" * 64),
    (("champion", "base_sha256"), "0" * 64),
    (("champion", "weights_path"), "elsewhere"),
    (("champion", "profile_sha256"), "0" * 64),
)


def _served(scene: Scene, where: tuple[str, ...], value: object) -> None:
    file = scene.root / ".rft/champion/given.json"
    told: Any = json.loads(file.read_text())
    inside = told
    for key in where[:-1]:
        inside = inside[key]
    assert inside[where[-1]] != value
    inside[where[-1]] = value
    scene.write(file, json.dumps(told).encode())


def _alias(scene: Scene, alias: str, place: int) -> None:
    scene.mlflow().set_registered_model_alias("given", alias, scene.registered(place).version)


def _unalias(scene: Scene, alias: str) -> None:
    scene.mlflow().delete_registered_model_alias("given", alias)


def _prompt_alias(scene: Scene) -> None:
    scene.mlflow().set_prompt_alias("given-prompt", "champion", int(scene.registered(GIVEN).tags["prompt_version"]))


def _retagged(tag: str) -> Trick:
    def attack(scene: Scene) -> None:
        found = scene.registered(GIVEN)
        assert tag in found.tags, (tag, found.tags)
        value = (
            str(scene.number(SERVED_GIVEN)) if tag == "rft.champion" else "1" if tag == "prompt_version" else "another"
        )
        scene.mlflow().set_model_version_tag("given", found.version, tag, value)

    return attack


def _unregister(scene: Scene) -> None:
    client, found = scene.mlflow(), scene.registered(GIVEN)
    for alias in found.aliases:
        client.delete_registered_model_alias("given", alias)
    client.delete_model_version("given", found.version)


def _mlflow_run(scene: Scene, place: int) -> str:
    return json.loads((scene.clone.runs / f"{scene.run(place)}.json").read_text())["mlflow_run_id"]


def _tag_run(scene: Scene, place: int, tag: str) -> None:
    scene.mlflow().set_tag(_mlflow_run(scene, place), tag, "another")


def _delete_run(scene: Scene, place: int) -> None:
    scene.mlflow().delete_run(_mlflow_run(scene, place))


# -- the ledger ------------------------------------------------------------------------------------
def ledger(scene: Scene) -> Iterator[Case]:
    """Damage the ledger: an audit must end when it reads it. `ledger_tamper` is its own figure."""
    for kind in ("registration", "request", "approval", "promotion", "override"):
        place = EDITED
        each = scene.entry(kind, place)
        rows = git(scene.root, "ls-tree", each.commit.tree).splitlines()
        own = {row.split("\t")[1]: row.split()[2] for row in rows}
        shared = {"policy.yaml", "allowed_signers"} if kind != "approval" else set[str]()
        for file, blob in own.items():
            if file not in shared:
                name = f"{file} of the {kind}, overwritten under its name in Git"
                yield Case(name, place, lambda s, blob=blob: s.overwrite(blob, _shifted), says=blob[:10])
        commit, tree = each.commit.id, each.commit.tree
        yield Case(
            f"commit of the {kind}, overwritten", place, lambda s, c=commit: s.overwrite(c, _shifted), says=commit[:10]
        )
        yield Case(f"commit of the {kind}, gone", place, lambda s, c=commit: _lose(s, c), says=commit[:10])
        yield Case(
            f"tree of the {kind}, overwritten", place, lambda s, t=tree: s.overwrite(t, _shifted), says=tree[:10]
        )
    yield from _suspected(scene)
    last = scene.ledger.stored[-1].entry.number
    for back in (1, 10, 40):
        to = scene.ledger.stored[-1 - back].commit.id
        text = f"entry {last}"
        yield Case(f"rewound by {back}", EDITED, lambda s, to=to: _point(s, to), says=text)
    for place in (BEFORE, GIVEN):
        to = scene.entry("request", place).commit.id
        text = "was cut or rewound"
        name = f"rewound to the request of run {place}, and what was seen last is deleted"
        yield Case(name, place, lambda s, to=to: _forgotten(s, to), says=text)
    yield Case("the ledger's ref removed", EDITED, lambda s: _unref(s), says="is gone")
    revision = scene.revision(EDITED)
    tree = scene.blob(revision, "")
    yield Case("the ledger's ref on a run", EDITED, lambda s: _point(s, revision), says=tree[:10])
    yield Case("what was seen last, forged", EDITED, lambda s: s.write(memory.path(s.clone), b"{}"), says="seen.json")
    yield Case("another genesis in infra/ledger.yaml", EDITED, _repin, says=remote.FILE)


def _suspected(scene: Scene) -> Iterator[Case]:
    """An owner says that an approver's key fell into other hands. Nothing was altered, but what the
    key approved since then is doubtful."""
    from tasks.ledger import keys
    from tasks.ledger.policy import Compromised
    from tasks.promotion import acts
    from tests import people

    for place in (PROMPT_ALONE, BEFORE, TRAINED, GIVEN, ON_WEIGHTS, SERVED_GIVEN):
        each = scene.entry("approval", place)
        key = keys.fingerprint(keys.signer(each.files[chain.SIGNATURE].decode()))
        if scene.ledger.state.policy.person_of(key) == "ada":
            continue
        change = Compromised(key=key, since=each.entry.number)

        def mark(scene: Scene, change: Compromised = change) -> None:
            acts.change(scene.clone, change, people.signer("ada"), "a laptop was stolen", lambda _: None)

        version = (("version:*", f"entry:{scene.number(place)}"),)
        name = f"the key that approved run {place}, marked as compromised"
        yield Case(name, place, mark, version, states=("doubtful",))


def _point(scene: Scene, commit: str) -> None:
    git(scene.root, "update-ref", chain.REF, commit)


def _forgotten(scene: Scene, commit: str) -> None:
    _point(scene, commit)
    memory.path(scene.clone).unlink()


def _unref(scene: Scene) -> None:
    git(scene.root, "update-ref", "-d", chain.REF)


def _repin(scene: Scene) -> None:
    file = scene.root / remote.FILE
    text = file.read_text()
    genesis = scene.ledger.state.genesis
    assert genesis in text
    scene.write(file, text.replace(genesis, "0" * 64).encode())


# -- windows, base models --------------------------------------------------------------------------
def others(scene: Scene) -> Iterator[Case]:
    from bench.audit_world import GIVEN as folder

    base = (("stage:RUN/policy", "base model:*"),)
    file = f"{folder}/model.safetensors"
    yield Case(
        "a bit of the base model", GIVEN, lambda s: s.write(s.root / file, b"a model that somebody gave uS"), base
    )
    yield Case("a file more in the base model", GIVEN, lambda s: s.write(s.root / folder / "more.bin", b"x"), base)
    yield Case("a file of the base model, renamed", GIVEN, lambda s: (s.root / file).rename(s.root / f"{file}2"), base)
    yield Case("the base model's folder, moved", GIVEN, lambda s: (s.root / folder).rename(s.root / "elsewhere"), base)
    window = (("stage:RUN/traffic", "window:*"),)
    for place in (TRAINED, GIVEN):
        path = f"data/inbox/window-{place:03}.jsonl"
        name = f"the window of run {place}"
        put = b'{"conversation_id": "c-1"}\n'
        states = (*BROKEN, "not verifiable")  # the next window may have taken its name
        yield Case(f"{name}, replaced", place, lambda s, p=path, b=put: s.write(s.root / p, b), window, states=states)
        yield Case(f"{name}, gone", place, lambda s, p=path: (s.root / p).unlink(), window, states=states)
