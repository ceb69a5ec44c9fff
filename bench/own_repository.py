"""The figures of an agent in somebody else's repository, with the installed wheel.

The first figure goes the whole way, and the second counts what an upgrade repeats. A foreign
program (tasks.py, flows/, rft/, DVC with a pipeline and an experiment, a hook, a filter, a package
that tools import) becomes a workspace with two agents. The wheel is built from HEAD and installed
into its own environment; no checkout of ours is on the path. Each step is a command, as a user
types it. In the end the program is compared with what it was: files, refs, and entries of DVC's
cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import yaml

from bench.measure import Figure, Part

ROOT = Path(__file__).resolve().parents[1]
AGENTS = ("refunds", "billing")
QUICK = {
    "policy": {"warm_start": {"demonstrations": 1600, "steps": 200}},
    "baseline": {"examples": 16, "k": 3},
    "prompt": {"rounds": 1, "confirm_k": 2},
    "train": {"steps": 12, "validation_examples": 0},
    "challenger": {"k": 1, "shown": 0},
}
PROGRAM = {
    "tasks.py": "raise SystemExit('tasks.py of the user')\n",
    "rft/__init__.py": "raise SystemExit('rft of the user')\n",
    "flows/__init__.py": "raise SystemExit('flows of the user')\n",
    "flows/pipeline.py": "raise SystemExit('flows.pipeline of the user')\n",
    "agent/money.py": "def cents(text):\n    return round(float(text) * 100)\n",
    "data/in.csv": "a,b\n1,2\n",
    "infra/schedule.yaml": "of: the user\n",
    "tests/test_it.py": "def test_it():\n    pass\n",
    "Makefile": "all:\n\techo of the user\n",
    "dvc.yaml": "stages: {count: {cmd: wc -l < data/in.csv > out.txt, deps: [data/in.csv], outs: [out.txt]}}\n",
    ".gitignore": "out.txt\n*.log\n",
    ".gitattributes": "*.big filter=shout\n",
    "model.big": "large\n",
}
SCHEDULE = '{cron: "* * * * *", window: "data/inbox/*.jsonl"}'
NAMED = {"rft.yaml", ".gitignore"}
"""What `rft init` says that it writes, if DVC is in use already."""
LIMIT_S = 900.0


@dataclass
class World:
    place: Path
    root: Path
    failures: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.place / "hook.log"

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("RFT_", "MLFLOW_", "PREFECT_"))
        }
        path = f"{self.place / 'env/bin'}:{os.environ['PATH']}"
        return kept | {"PATH": path, "PYTHONPATH": ".", "HOME": str(self.place), "OMP_NUM_THREADS": "1"}

    def start(self, *arguments: str, at: str = ".") -> subprocess.Popen[str]:
        out = (self.place / "commands.txt").open("a")
        return subprocess.Popen(
            ["rft", *arguments], cwd=self.root / at, env=self.environment, stdout=out, stderr=out, text=True
        )

    def rft(self, *arguments: str, at: str = ".") -> str:
        """Run a verb to its end. A failure is counted, with its output."""
        _say(f"rft {' '.join(arguments)}")
        begun = time.monotonic()
        done = subprocess.run(
            ["rft", *arguments],
            cwd=self.root / at,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        named = " ".join(word for word in arguments if "/" not in word or word.startswith("agents/"))
        self.seconds[named[:40]] = time.monotonic() - begun
        if done.returncode:
            self.failures.append(f"rft {' '.join(arguments)}: {done.returncode}: {done.stderr.strip()[-400:]}")
            _say(self.failures[-1])
        return done.stdout

    def git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=user", "-c", "user.email=user@localhost")
        command = ["git", *identity, *arguments]
        return subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True).stdout.strip()

    def dvc(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "dvc", *arguments]
        subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True)


def own_repository(args: list[str]) -> Figure:
    """Two agents in another program's repository, with the wheel alone: failures, and files, refs
    and cache entries of the user's that changed (0)."""
    with _world() as world:
        begun = time.monotonic()
        before = _theirs(world)
        _make_agents(world)
        _run_and_approve(world)
        fired = _schedules(world)
        world.rft(
            "--agent",
            "refunds",
            "runs",
            "gc",
            "--yes",
            "--set",
            "run.retention={cache_days: 0, work_days: 0, logs_days: 0}",
        )
        restored, num_lines = _back_up(world)
        changed = _changed(before, _theirs(world))
        minutes = (time.monotonic() - begun) / 60
        for line in (*world.failures, *changed, *restored):
            _say(line)
        return Figure(
            (
                Part("failures", len(world.failures), "commands", at_most=0, reason="; ".join(world.failures)[:500]),
                Part(
                    "files, refs and cache entries of the user's that changed",
                    len(changed),
                    "",
                    at_most=0,
                    n=len(before),
                ),
                Part("schedules that fired", fired, "agents", at_least=len(AGENTS)),
                Part("lines of the restored audit that differ", len(restored), "lines", at_most=0, n=num_lines),
                Part("minutes", minutes, "min"),
            ),
            {"seconds": {name: round(each, 1) for name, each in world.seconds.items()}},
        )


def upgrade(args: list[str]) -> Figure:
    """A wheel with a higher version and a changed module of `train`: stages that run again without
    need, and changes of ledger, champion and audit (0)."""
    with _world() as world:
        _make_agents(world, AGENTS[:1])
        at = ("--agent", AGENTS[0])
        world.rft(*at, "run")
        _approve(world, AGENTS[0])
        world.rft(*at, "run")  # now the changes by the new champion have run
        before = [world.rft("ledger"), world.rft(*at, "champion")]
        module = "rft/trainer/loop.py"
        _install(world, _wheel(world.place / "next", "9.9.9", {module: "\nNEXT_VERSION = True\n"}))
        told = world.rft(*at, "upgrade", "--check")
        named = {line.split()[0] for line in told.splitlines() if "would run again" in line}
        can_load = _loading(world, module)
        world.rft(*at, "upgrade")
        differing = sum(
            one != other for one, other in zip(before, [world.rft("ledger"), world.rft(*at, "champion")], strict=True)
        )
        audit = world.rft(*at, "audit")
        world.rft(*at, "run")
        ran = _ran(world)
        wrong = ran ^ can_load
        return Figure(
            (
                Part("stages that ran again or not, and should not or should", len(wrong), "stages", at_most=0, n=9),
                Part("stages that --check names wrongly", len(named ^ can_load), "stages", at_most=0, n=9),
                Part("ledger and champion: what says something else", differing, "", at_most=0, n=2),
                Part("broken links of the champion's audit", audit.count("BROKEN"), "links", at_most=0),
                Part("failures", len(world.failures), "commands", at_most=0, reason="; ".join(world.failures)[:500]),
            ),
            {"ran": sorted(ran), "can load it": sorted(can_load), "named": sorted(named)},
        )


def _ran(world: World) -> set[str]:
    """Return the stages that really ran in the newest run."""
    every = [json.loads(path.read_text()) for path in (world.root / ".rft/runs").glob("*.json")]
    newest = max(every, key=lambda record: record["started"])
    return {stage for stage, how in newest["stages"].items() if how == "ran"}


# -- the steps -------------------------------------------------------------------------------------
def _make_agents(world: World, agents: tuple[str, ...] = AGENTS) -> None:
    world.rft("init")
    for name in agents:
        world.rft("new", f"agents/{name}")
        params = world.root / f"agents/{name}/params.yaml"
        raw = yaml.safe_load(params.read_text())
        for section, keys in QUICK.items():
            raw[section] = {**(raw.get(section) or {}), **keys}
        raw["recipe"]["sources"] = ["agent/money.py"]
        params.write_text(yaml.safe_dump(raw))
        tools = params.parent / "recipe/tools.py"
        begin = "from __future__ import annotations\n"
        tools.write_text(tools.read_text().replace(begin, f"{begin}\nimport money  # noqa: F401\n", 1))
    schedules = "".join(f"  {name}: {SCHEDULE}\n" for name in agents)
    with (world.root / "rft.yaml").open("a") as file:
        file.write(f"slots: 2\nschedules:\n{schedules}")
    world.git("add", "--all")
    world.git("commit", "--quiet", "--message", "Agents")


def _run_and_approve(world: World) -> None:
    started = {name: world.start("--agent", name, "run") for name in AGENTS}
    begun = time.monotonic()
    for name, process in started.items():
        if process.wait(LIMIT_S):
            world.failures.append(f"run of {name}: {process.returncode}")
    world.seconds["two runs at once"] = time.monotonic() - begun
    for name in AGENTS:
        _approve(world, name)
        audit = world.rft("--agent", name, "audit")
        if "BROKEN" in audit:
            world.failures.append(f"audit of {name}: a broken link")
    world.rft("ledger", "verify")


def _approve(world: World, name: str) -> None:
    [row] = [row for row in json.loads(world.rft("agents", "--json")) if row["name"] == name]
    run, _, ended = row["last run"].partition(": ")
    if not ended.startswith("promote"):
        world.failures.append(f"the gate of {name} said {ended}")
    world.rft("--agent", name, "approve", run, "--reason", "it is better", "--key", str(world.place / "key"))


def _schedules(world: World) -> int:
    """Serve both schedules until a run of each has started and ended. Return how many did."""
    _say("rft up")
    told = len((world.place / "commands.txt").read_text())
    up = world.start("up", "--port", "4321")
    deadline, fired = time.monotonic() + 240, set[str]()
    while time.monotonic() < deadline and len(fired) < len(AGENTS) and up.poll() is None:
        runs = [json.loads(path.read_text()) for path in (world.root / ".rft/runs").glob("*.json")]
        over = [run["agent"] for run in runs if run["ended"]]
        fired = {name for name in AGENTS if over.count(name) > 1}
        time.sleep(1)
    up.send_signal(signal.SIGINT)
    if up.wait(120):
        world.failures.append(f"rft up: {up.returncode}")
    if "Finished in state Failed" in (world.place / "commands.txt").read_text()[told:]:
        world.failures.append("a scheduled run failed")
    return len(fired)


def _back_up(world: World) -> tuple[list[str], int]:
    """Back up, and restore elsewhere. Return the lines in which the audits differ, and how many
    there are."""
    world.rft("backup", "make", str(world.place / "saved"))
    world.rft("backup", "restore", str(world.place / "saved"), str(world.place / "restored"))
    audits = [world.rft("audit", f"{name}@champion") for name in AGENTS]
    there = World(world.place, world.place / "restored", world.failures, world.seconds)
    again = [there.rft("audit", f"{name}@champion") for name in AGENTS]
    one = [line.replace(str(world.root), "") for line in "\n".join(audits).splitlines()]
    other = [line.replace(str(there.root), "") for line in "\n".join(again).splitlines()]
    return [f"{before} / {after}" for before, after in zip_longest(one, other) if before != after], len(one)


# -- what is the user's ----------------------------------------------------------------------------
def _theirs(world: World) -> dict[str, str]:
    """Return everything that is the user's, by name: files, refs, settings, experiments, entries of
    the cache."""
    found: dict[str, str] = {}
    for name in (*PROGRAM, ".dvc/config", ".dvcignore", "dvc.lock", "out.txt", ".git/config", ".git/hooks/pre-commit"):
        path = world.root / name
        if name not in NAMED:
            found[f"file {name}"] = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "none"
    for line in world.git("for-each-ref", "--format=%(refname) %(objectname)").splitlines():
        ref, commit = line.split(" ")
        if ref.startswith(("refs/tags/", "refs/remotes/")) or world.git("log", "-1", "--format=%s", commit).startswith(
            "dvc:"
        ):
            found[f"ref {ref}"] = commit
    for path in sorted((world.root / ".dvc/cache").rglob("*")):
        if path.is_file() and _is_theirs(world, path):
            found[f"cache {path.relative_to(world.root)}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    for line in world.log.read_text().splitlines() if world.log.exists() else ():
        if ".rft" in line:
            found[f"hook or filter in {line}"] = "ran"
    return found


def _is_theirs(world: World, path: Path) -> bool:
    known = world.place / "theirs.txt"
    if not known.exists():
        every = sorted((world.root / ".dvc/cache").rglob("*"))
        known.write_text("".join(f"{each.relative_to(world.root)}\n" for each in every if each.is_file()))
    return str(path.relative_to(world.root)) in known.read_text().splitlines()


def _changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


# -- the place -------------------------------------------------------------------------------------
@contextmanager
def _world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="rft-own-") as folder:
        world = World(Path(folder), Path(folder) / "program")
        venv.create(world.place / "env", symlinks=True, with_pip=True)
        (site,) = (world.place / "env").glob("lib/python*/site-packages")
        # the packages that the wheel needs, in the versions of this environment
        (site / "packages.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
        _install(world, _wheel(world.place / "now"))
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(world.place / "key")], check=True)
        _make_program(world)
        yield world


def _make_program(world: World) -> None:
    for name, text in PROGRAM.items():
        (world.root / name).parent.mkdir(parents=True, exist_ok=True)
        (world.root / name).write_text(text)
    world.git("init", "--quiet", "--initial-branch", "main")
    world.git("config", "user.name", "user")
    world.git("config", "user.email", "user@localhost")
    hook = world.root / ".git/hooks/pre-commit"
    hook.write_text(f'#!/bin/sh\necho "pre-commit $PWD" >> {world.log}\n')
    hook.chmod(0o755)
    shout = f"sh -c 'echo \"filter $PWD\" >> {world.log}; cat'"
    for name, value in (("smudge", shout), ("clean", "cat"), ("required", "true")):
        world.git("config", f"filter.shout.{name}", value)
    world.dvc("init", "--quiet")
    world.git("add", "--all")
    world.git("commit", "--quiet", "--message", "a program")
    world.dvc("repro", "--quiet")
    world.git("add", "--all")
    world.git("commit", "--quiet", "--message", "a result")
    (world.root / "data/in.csv").write_text("a,b\n1,2\n3,4\n")
    world.dvc("exp", "run", "--quiet", "--name", "more-rows")
    world.git("checkout", "--quiet", ".")
    world.dvc("checkout", "--quiet")
    world.git("tag", "v1")
    world.git("clone", "--quiet", "--bare", ".", str(world.place / "origin.git"))
    world.git("remote", "add", "origin", str(world.place / "origin.git"))
    world.git("fetch", "--quiet", "origin")


def _wheel(folder: Path, version: str | None = None, more: dict[str, str] | None = None) -> Path:
    """Build a wheel of HEAD. `version` and `more` (module -> added text) make a different one."""
    tree = folder / "tree"
    tree.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)
    settings = tree / "pyproject.toml"
    if version:
        settings.write_text(settings.read_text().replace('version = "0.1.0"', f'version = "{version}"', 1))
    for name, text in (more or {}).items():
        (tree / name).write_text((tree / name).read_text() + text)
    build = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder), str(tree))
    subprocess.run([sys.executable, *build], check=True)
    shutil.rmtree(tree)
    (made,) = folder.glob("*.whl")
    return made


def _install(world: World, wheel: Path) -> None:
    pip = (str(world.place / "env/bin/python"), "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall")
    subprocess.run([*pip, str(wheel)], check=True)


def _loading(world: World, module: str) -> set[str]:
    from tasks import dependencies
    from tasks.dependencies import STAGES

    recipe = world.root / "agents/refunds/recipe"
    return {stage for stage in STAGES if module in dependencies.modules(ROOT, stage, recipe)}


def _say(message: str) -> None:
    print(f"[figure] {message}", file=sys.stderr, flush=True)


FIGURES = {"own_repository": own_repository, "upgrade": upgrade}
