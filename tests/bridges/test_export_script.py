"""docs/export-from-openai.py, run by OpenAI's own client against a server of this machine: what it
writes is what `rft new --from` reads, it goes on where it was, and says what it could not have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import local_servers
import pytest
from aiohttp import web
from jobs import job, row

from rft import bridges

SCRIPT = Path(__file__).resolve().parents[2] / "docs/export-from-openai.py"
EVAL: dict[str, Any] = {"object": "eval", "id": "eval_1", "name": "n", "data_source_config": {}, "testing_criteria": []}
RUN: dict[str, Any] = {"object": "eval.run", "id": "evalrun_1", "eval_id": "eval_1", "status": "completed"}
RUN["data_source"] = {"type": "completions", "source": {"type": "file_id", "id": "file-ev"}}


class Service:
    """What OpenAI answers. `ended`: Evals are gone."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.ended = False

    async def answer(self, request: web.Request) -> web.Response:
        path = request.path.removeprefix("/v1")
        self.asked[path] += 1
        if path.startswith("/evals") and self.ended:
            return web.json_response({"error": {"message": "Evals have been shut down."}}, status=404)
        if path.startswith("/files/"):
            numbers = range(30) if "train" in path else range(100, 110)
            return web.Response(body="".join(json.dumps(row(n)) + "\n" for n in numbers).encode())
        listed: dict[str, list[Any]] = {
            "/fine_tuning/jobs": [job(), job() | {"id": "ftjob-2"}],
            "/evals": [EVAL],
            "/evals/eval_1/runs": [RUN],
            "/evals/eval_1/runs/evalrun_1/output_items": [
                {"object": "eval.run.output_item", "id": f"i{n}"} for n in "ab"
            ],
            "/chat/completions": [{"object": "chat.completion", "id": "c1", "choices": []}],
            "/chat/completions/c1/messages": [{"id": "m", "role": "user", "content": "hello"}],
        }
        if path not in listed:
            return web.json_response({"error": {"message": "no such thing"}}, status=404)
        return web.json_response({"object": "list", "data": listed[path], "has_more": False})


@pytest.fixture
def service() -> Iterator[tuple[Service, str]]:
    here, app = Service(), web.Application()
    app.router.add_get("/{path:.*}", here.answer)
    with local_servers.serving(app) as address:
        yield here, f"{address}/v1"


def exported(url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "sk-none"}
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_what_is_exported_can_be_imported(service: tuple[Service, str], tmp_path: Path) -> None:
    here, url = service
    done = exported(url, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == {
        *("jobs/ftjob-1.json", "jobs/ftjob-2.json", "files/file-train.jsonl", "files/file-valid.jsonl"),
        "files/file-ev.jsonl",
        *("evals/eval_1/eval.json", "evals/eval_1/runs.json", "evals/eval_1/items-evalrun_1.jsonl"),
        "stored_completions.jsonl",
    }
    imported = bridges.read(f"openai:{tmp_path / 'out/jobs/ftjob-1.json'}", tmp_path / "out/files")
    assert len(imported.rows["train"]) == 30
    [stored] = (tmp_path / "out/stored_completions.jsonl").read_text().splitlines()
    assert json.loads(stored)["messages"][0]["content"] == "hello"
    assert here.asked["/files/file-train/content"] == 1, "two jobs name it"
    assert exported(url, tmp_path / "out").returncode == 0
    assert here.asked["/files/file-train/content"] == 1, "what is there is not fetched again"


@pytest.mark.slow
def test_after_evals_have_ended_the_rest_still_comes(service: tuple[Service, str], tmp_path: Path) -> None:
    here, url = service
    here.ended = True
    done = exported(url, tmp_path / "out")
    assert done.returncode == 1
    assert "Evals: " in done.stderr
    assert "shut down" in done.stderr
    assert (tmp_path / "out/stored_completions.jsonl").exists()


@pytest.mark.slow
def test_without_a_key_it_says_so(tmp_path: Path) -> None:
    without = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    command = [sys.executable, str(SCRIPT), str(tmp_path / "out")]
    done = subprocess.run(command, env=without, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("Write the key into OPENAI_API_KEY.")
    assert "Traceback" not in done.stderr
