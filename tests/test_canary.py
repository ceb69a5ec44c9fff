"""A canary in every secret, a world that sings it back in every way, and then a search through all
that exists.

The clone is a real one (Git, DVC, MLflow, and once Prefect); its stages copy their files, but for
three. `baseline` really plays rollouts against a server that puts our own headers into its results,
its refusals, its errors and its reasons; `train` meets an outage; `traffic` has a bug.
"""

from __future__ import annotations

import base64
import json
import logging
import shutil
import sqlite3
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import at_hand
import ladder_clone
import people
import pytest

from rft import config, recipe, reports, secrets
from rft.errors import RftError
from rft.tools.lifetime import running
from tasks import dependencies
from tasks.ledger.policy import Enrol
from tasks.promotion import acts
from tasks.runs import records, repro
from tasks.runs.records import RunRecord
from tests import tiny_recipe

ROOT = Path(__file__).resolve().parents[1]
SECRETS = {
    "TOOL_KEY": "Bearer canary-tools-7f/3+a91c",
    "ENDPOINT_KEY": "canary-endpoint-0b~c44/2d",
    "LIFE_KEY": "session=canary-lifecycle-5e1f",
    "GRADER_KEY": "canary-grader-9a+d2/77e",
    "SIGNING_KEY": "whsec_" + base64.b64encode(b"canary-signing-31f0").decode(),
}


def _needles(secret: str) -> set[str]:
    """As it is, in a URL, in JSON, and the middle of its base64 at any alignment."""
    coded = {base64.b64encode(b"x" * shift + secret.encode())[4:-4].decode() for shift in range(3)}
    return {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], *coded}


NEEDLES = {
    needle
    for value in SECRETS.values()
    for part in (value, value.removeprefix("Bearer ").removeprefix("session=").removeprefix("whsec_"))
    for needle in _needles(part)
}

ROLLOUTS = '''
"""A baseline whose policy calls two tools and repeats what it hears; the report says what the grader said."""

import asyncio
import re
import shutil
from pathlib import Path

from rft import config, progress, recipe, reports
from rft.rollouts import log as rollout_log
from rft.rollouts.store import RolloutStore
from rft.types import Reading, Sampled, ToolCall
from rft.rollouts.runner import Plan, rollout_runner

SCRIPT = Path({script!r})
STAGE_FOLDER = Path("data/baseline")


class Parrot:
    blocks = False

    async def check_openings(self, openings, max_tokens):
        pass

    def open(self, openings, seeds, temperature, max_tokens):
        return [Dialogue(re.search("k[0-9]+", opening.messages[-1]["content"])[0]) for opening in openings]


class Dialogue:
    def __init__(self, key):
        self.prompt_ids, self.key, self.answer = (), key, None

    async def sample(self, max_new, deadline_s):
        if self.answer is None:
            arguments = '{{"key": "%s"}}' % self.key
            calls = (ToolCall("call_0_0", "lookup", arguments), ToolCall("call_0_1", "search", arguments))
            return Sampled("calls", Reading("", calls))
        return Sampled(self.answer, Reading(self.answer))

    def append(self, calls, results):
        self.answer = " ".join(result.output for result in results)
        return ()

    def close(self):
        pass


def run(params, stage="baseline"):
    ours = recipe.load(params.recipe)
    examples = sorted(ours.examples("validation", 2000, 0), key=lambda one: one.id)[:{examples}]
    work = progress.folder(stage, [params.baseline], [])
    with rollout_runner(params, ours) as runner, RolloutStore(work / "rollouts") as store:
        plan = Plan("baseline", "champion", ours.prompts.seed, 1.0, 1, 0)
        rows = runner.measure(Parrot(), examples, plan, store, progress.Reporter("baseline", len(examples)))
    text = " ".join([row.explanation for row in rows] + [row.messages for row in rows])
    progress.print_line("baseline", text)
    rollout_log.write(rows, STAGE_FOLDER / "rollouts.parquet")
    report = reports.read(reports.BaselineReport, SCRIPT / "data/baseline/report.json")
    reports.write(report.model_copy(update={{"reason": text}}), STAGE_FOLDER / "report.json")
    shutil.copy(SCRIPT / "data/baseline/timing.json", STAGE_FOLDER / "timing.json")
'''
OUTAGE = '''
"""No rollout of it has a score: the stage ends with what the server said last."""

from rft.stages import baseline


def run(params):
    section = params.rollout.model_copy(update={"max_unscored_share": 0.0, "pause_s": 0.0})
    baseline.run(params.model_copy(update={"rollout": section}), "train")
'''
BUG = '''
"""A stage with a bug: libraries log, warn and raise with the header in their words."""

import logging
import warnings

from rft import config


def run(params):
    section = params.traffic
    key = config.secret(params.tools.headers["Authorization"])
    for name in ("aiohttp.client", "httpx", "mcp.client"):
        logging.getLogger(name).error("POST with %s failed", {"Authorization": key})
    warnings.warn(key)
    print("sending", key, flush=True)
    raise RuntimeError("Illegal header value " + repr(key.encode()))
'''


# -- the world -------------------------------------------------------------------------------------
def _escaped(text: str) -> str:
    """Letter by letter, as JSON allows it: no header stands in these bytes."""
    return '{"output": "' + "".join(f"\\u{ord(letter):04x}" for letter in text) + '"}'


TOOL = [  # status, body; of the n-th example
    lambda sung: (200, json.dumps({"output": sung})),
    lambda sung: (200, json.dumps({"output": base64.b64encode(sung.encode()).decode()})),
    lambda sung: (200, json.dumps({"output": {"you sent": quote(sung, safe="")}})),
    lambda sung: (200, _escaped(sung)),
    lambda sung: (403, json.dumps({"output": f"forbidden: {sung}"})),
    lambda sung: (404, f"<html>no page for {sung}</html>"),
    lambda sung: (302, sung),
    lambda sung: (500, f"<html>a bug with {sung}</html>"),
    lambda sung: (200, f"<html>{sung}</html>"),
    lambda sung: (200, json.dumps({"output": "fine"})),
]
GRADER = [
    lambda sung: (200, json.dumps({"score": 0.5, "reason": f"you are {sung}", "sub_scores": {sung[:400]: 1.0}})),
    lambda sung: (500, f"a bug with {sung}"),
    lambda sung: (200, json.dumps({"score": sung})),
    lambda sung: (400, sung),
]


class Echo(BaseHTTPRequestHandler):
    """Sings the headers that it hears, each time another way."""

    def do_GET(self) -> None:
        self._answer(200, "{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        server: Any = self.server
        server.received |= {value for value in self.headers.values() if "canary" in value}
        sung = json.dumps({name: value for name, value in self.headers.items() if "canary" in value})
        songs = GRADER if "sample" in body else TOOL
        # every fifth key is in validation
        number = int(body["item"]["id"].removeprefix("n-")) // 5 if "item" in body else 0
        self._answer(*songs[number % len(songs)](sung))

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body.encode())))
        if status == 302:
            self.send_header("Location", f"/elsewhere?{quote(body)}")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def echo() -> Iterator[ThreadingHTTPServer]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.received = set()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


# -- the clone -------------------------------------------------------------------------------------
def make(folder: Path, url: str) -> ladder_clone.Scripted:
    """A scripted clone with the whole engine, but for the stages."""
    scripted = ladder_clone.make(folder)
    for path in sorted((ROOT / "rft").rglob("*.py")):
        place = scripted.root / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        if not (path.parent.name == "stages" and path.stem in dependencies.STAGES):
            shutil.copy2(path, place)
    scripts = {
        "baseline": ROLLOUTS.format(script=str(scripted.script), examples=len(TOOL)),
        "train": OUTAGE,
        "traffic": BUG,
    }
    for stage, text in scripts.items():
        (scripted.root / "rft/stages" / f"{stage}.py").write_text(text.strip() + "\n")
    grader = {"type": "endpoint", "name": "echo", "url": f"{url}/grade", "headers": {"X-Grader-Key": "env:GRADER_KEY"}}
    (scripted.root / "recipes/tiny/grader.json").write_text(json.dumps(grader))
    scripted.set_params(
        rollout={"max_unscored_share": 1.0, "refill": 0.0, "max_tokens": 512},
        policy={"server": {"kind": "chat", "url": url, "model": "parrot"}},  # which reads any tool
        tools={
            "server_url": url,
            "version": "1",
            "retries": 0,
            "headers": {"Authorization": "env:TOOL_KEY", "X-Tenant": "ward 7"},
            "endpoints": [
                {
                    "name": "search",
                    "server_url": f"{url}/search",
                    "headers": {"X-Api-Key": "env:ENDPOINT_KEY"},
                    "parameters": PARAMETERS,
                }
            ],
            "lifecycle": {"end_url": f"{url}/end", "headers": {"Cookie": "env:LIFE_KEY"}},
            "signing_secret": "env:SIGNING_KEY",
        },
    )
    (scripted.root / "dvc.yaml").write_text(dependencies.render(scripted.root))
    scripted.git("add", "--all")
    scripted.git("commit", "--quiet", "--message", "the world")
    return scripted


PARAMETERS = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}


def run_ladder(scripted: ladder_clone.Scripted) -> RunRecord:
    """A recorded run as `rft run` makes it, but for Prefect: files put there up to the baseline,
    the baseline real, an outage in training."""
    from tasks.stage_runner import drive_stage, recorded, write_page

    params = config.load(scripted.root / "params.yaml")
    with pytest.raises(RftError) as failed, recorded(scripted.clone, params, None) as run:  # noqa: PT012 - the run must be left by the failure
        shutil.copytree(scripted.script / "data", run.tree / "data", dirs_exist_ok=True)
        for stage in ("baseline", "train", "challenger", "gate"):
            shutil.rmtree(run.tree / "data" / stage)
        repro.dvc(run.tree, "commit", "--force", "--quiet", "traffic", "drift", "examples", "policy")
        drive_stage(run, "baseline", reports.BaselineReport, lambda report: report.sampled.metrics)
        write_page(run.clone, run.record, run.tree)
        drive_stage(run, "train", reports.TrainReport, lambda report: {})
    assert "have no score" in str(failed.value), str(failed.value)
    [record] = records.load_all(scripted.clone)
    bob = acts.enrolled(Enrol, name="bob", roles=["author"], key=people.signer("Bob").key.public)
    owner = acts.enrolled(Enrol, name="ada", roles=["owner"], key=people.signer("Ada").key.public)
    acts.change(scripted.clone, owner, people.signer("Ada"), "the first")
    acts.change(scripted.clone, bob, people.signer("Ada"), f"he knows {SECRETS['TOOL_KEY']}")
    return record


# -- the search ------------------------------------------------------------------------------------
def everything(scripted: ladder_clone.Scripted) -> Iterator[tuple[str, str]]:
    """(where, text) of all that exists: files, and what is packed, compressed or columnar in
    them."""
    import pyarrow.parquet as pq

    yield (
        "git",
        subprocess.run(
            ["git", "cat-file", "--batch-all-objects", "--batch", "--unordered"],
            cwd=scripted.root,
            capture_output=True,
            check=True,
        ).stdout.decode("utf-8", "replace"),
    )
    for path in sorted(one for one in scripted.root.rglob("*") if one.is_file() and not one.is_symlink()):
        content = path.read_bytes()
        name = str(path.relative_to(scripted.root))
        yield name, content.decode("utf-8", "replace")
        if content.startswith(b"PAR1"):
            yield f"{name} (rows)", json.dumps(pq.read_table(path).to_pylist(), ensure_ascii=False, default=str)
        elif content.startswith(b"SQLite format 3"):
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
                yield f"{name} (dump)", "\n".join(database.iterdump())
            database.close()
        elif content[:2] in (b"\x1f\x8b", b"\x78\x9c"):
            yield f"{name} (unpacked)", zlib.decompress(content, wbits=47).decode("utf-8", "replace")


def found(texts: Mapping[str, str]) -> list[str]:
    return [f"{where}: {needle}" for where, text in texts.items() for needle in sorted(NEEDLES) if needle in text]


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    factory, streams = logging.getLogRecordFactory(), (sys.stdout, sys.stderr)
    yield
    logging.setLogRecordFactory(factory)
    sys.stdout, sys.stderr = streams
    secrets.forget()


@pytest.mark.story
@pytest.mark.usefixtures("planted")
def test_no_canary_is_found_anywhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with echo() as server:
        scripted = make(tmp_path / "a", f"http://127.0.0.1:{server.server_port}")
        record = run_ladder(scripted)
    captured = capfd.readouterr()
    # with the run's own settings it is in the cache
    bug = scripted.rft("stage", "run", "traffic", "--set", "traffic.min_conversations=51")
    texts = dict(everything(scripted)) | {
        "our stdout": captured.out,
        "our stderr": captured.err,
        "bug, stdout": bug.stdout,
        "bug, stderr": bug.stderr,
    }
    assert found(texts) == []

    # the world was told, so it could sing; and the search looked where something is: its mark is in
    # each of these places. Git has none: the message of a failed run stays out of it
    assert getattr(server, "received", set()) == {value for name, value in SECRETS.items() if name != "SIGNING_KEY"}
    assert (record.state, bug.returncode) == ("failed", 1), bug.stdout + bug.stderr
    assert "RuntimeError: Illegal header value" in bug.stderr
    marked = {where.split(" (")[0] for where, text in texts.items() if "[secret" in text}
    run = record.name
    places = [f".rft/{path}" for path in (f"logs/{run}/baseline.log", f"logs/{run}/train.log", f"runs/{run}.json")]
    places.append("git")  # a reason in the ledger
    places += [f".rft/reports/{run}.html", ".rft/logs/by-hand/traffic.log", "our stdout", "bug, stdout", "bug, stderr"]
    assert [place for place in places if place not in marked] == []
    assert any(
        where.startswith(".dvc/cache/") and where.endswith("(rows)") and "[secret" in text
        for where, text in texts.items()
    )
    assert any(
        where.endswith("mlflow.db (dump)") and "env:TOOL_KEY" in text and "ward 7" not in text
        for where, text in texts.items()
    )


@pytest.mark.story
@pytest.mark.usefixtures("planted")
def test_prefect_is_told_none(tmp_path: Path) -> None:
    """The flow ends with the bug's words, which Prefect keeps in its database."""
    scripted = make(tmp_path / "a", "http://127.0.0.1:9")
    home = scripted.clone.state / "prefect"
    at_hand.history(home)
    failed = scripted.rft("run", PREFECT_HOME=str(home))
    assert failed.returncode == 1, failed.stderr
    texts = dict(everything(scripted)) | {"stdout": failed.stdout, "stderr": failed.stderr}
    assert found(texts) == []
    assert "[secret" in failed.stderr
    assert any(
        where.startswith(".rft/prefect/") and where.endswith("(dump)") and "[secret" in text
        for where, text in texts.items()
    )


@pytest.mark.slow
def test_the_key_of_our_own_server_is_a_secret_too(tmp_path: Path) -> None:
    ours = recipe.load(config.Recipe(path=str(tiny_recipe.make(tmp_path))))
    with running(ours, config.Tools()) as endpoint:
        assert secrets.redact(str(endpoint.headers)) == "{'Authorization': 'Bearer [secret RFT_TOOL_KEY]'}"
        assert endpoint.headers["Authorization"] not in repr(endpoint)


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    """In a file, a packed file, a database, a column, a Git object."""
    import gzip

    import pyarrow as pa
    import pyarrow.parquet as pq

    scripted = ladder_clone.make(tmp_path / "a")
    key = SECRETS["GRADER_KEY"]
    places = {
        ".rft/a.txt": key,
        ".rft/b.txt": base64.b64encode(f"({key})".encode()).decode(),
        ".rft/c.txt": quote(key, safe=""),
    }
    for name, text in places.items():
        (scripted.root / name).parent.mkdir(exist_ok=True)
        (scripted.root / name).write_text(text)
    with gzip.open(scripted.root / ".rft/d.gz", "wt") as file:
        file.write(key)
    pq.write_table(pa.table({"text": [key * 9]}), scripted.root / ".rft/e.parquet", compression="zstd")
    with sqlite3.connect(scripted.root / ".rft/f.db") as database:
        database.execute("create table t (text)")
        database.execute("insert into t values (?)", (key,))
    database.close()
    subprocess.run(
        ["git", "hash-object", "-w", "--stdin"], cwd=scripted.root, input=key.encode(), capture_output=True, check=True
    )
    where = {one.split(":")[0].split(" (")[0] for one in found(dict(everything(scripted)))}
    assert {*places, ".rft/d.gz", ".rft/e.parquet", ".rft/f.db", "git"} <= where
