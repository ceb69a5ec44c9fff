"""Run a tool server around a stage: start it, wait for its health, and always stop it.

    with running(recipe, params.tools) as endpoint:
        ...                                   # endpoint.url, endpoint.headers

Without `tools.server_url` the recipe's own server (rft/tools/server.py) is started as a process, on
a free port and with a random key. Only this process knows the port and key, and no output shows
them. The server stops at every exit, and dies with us if we are killed. If it dies first, the stage
ends with one InfrastructureError, because it could only collect unscored rollouts. With
`tools.server_url` nothing is started, and that server must answer, with any HTTP status. With
`tools.where: local` the server is started too, because the recipe's `grade` is called there.

Enter the block in a thread that lives as long as the block: the kernel's death signal watches the
thread that started the process.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_urlsafe
from typing import IO

import httpx

from rft import commands, config, files, secrets
from rft.errors import ConfigError, InfrastructureError
from rft.process import last_output, tail
from rft.recipe import Recipe
from rft.secrets import Secrets
from rft.tools import interpreter
from rft.tools import local as local_tools
from rft.tools.server import KEY
from rft.tools.signatures import described
from rft.wire import headers
from rft.wire.client import ToolEndpoint, http_address

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 5.0
LOG_BYTES = 2**20
RAISED = "Traceback (most recent call last)"


def log_of(recipe: Recipe) -> Path:
    """Return the file that keeps the end of the server's output if a tool or `grade` raised."""
    return (files.state() / "logs" / f"tool-server-{recipe.name}.log").resolve()


@contextmanager
def running(recipe: Recipe, tools: config.Tools) -> Iterator[ToolEndpoint]:
    """Run the recipe's server, or use the external one. Raises InfrastructureError when it does not
    start or answer, or dies in the block."""
    local_tools.check(tools)
    if recipe.python is not None and tools.where == "local":
        what = f"tools.where = 'local' calls functions here, and recipe.python = {recipe.python!r} runs them elsewhere"
        raise ConfigError(f"params.yaml: {what}. Set tools.where to http.")
    keeps_state = described(recipe).keeps_state
    _check_state(recipe, tools, keeps_state)
    static, sent = headers.resolve(tools.headers, "params.yaml (tools.headers)")
    if tools.server_url is not None:
        yield _external(tools.server_url, static, sent, tools.timeout_s)
        return
    with tempfile.TemporaryFile() as output:
        process = _Process(recipe, output, tools.state, keeps_state)
        try:
            sent |= Secrets(process.headers.values())
            endpoint = ToolEndpoint(
                process.wait_until_healthy(),
                static | process.headers,
                process.raise_if_dead,
                sent,
                process.last_output,
                keeps_state=keeps_state,
            )
            try:
                yield endpoint
            except Exception:
                process.raise_if_dead()  # a dead server is the cause, and the block's own error stays chained
                raise
            process.raise_if_dead()
        finally:
            process.stop()
            process.keep_log()


def _check_state(recipe: Recipe, tools: config.Tools, keeps_state: bool) -> None:
    """Raises ConfigError if no server would keep the recipe's state, or if tools.state has no
    effect."""
    if keeps_state and tools.where == "local" and tools.server_url is None:
        what = f"{recipe.folder}/tools.py keeps state for each rollout (setup), which workers do not share"
        raise ConfigError(f"params.yaml: tools.where = 'local': {what}. Set it to http.")
    if tools.state != config.RolloutState() and (not keeps_state or tools.server_url is not None):
        why = f"{recipe.folder}/tools.py has no setup(rollout)"
        if tools.server_url is not None:
            why = "the server at tools.server_url keeps its own"
        raise ConfigError(f"params.yaml: tools.state has no effect: {why}. Remove it.")


def _external(url: str, static: dict[str, str], sent: Secrets, timeout_s: float) -> ToolEndpoint:
    http_address(url, "params.yaml: tools.server_url")
    try:
        httpx.get(url, headers=static, timeout=min(timeout_s, START_DEADLINE_S), trust_env=False)
    except httpx.HTTPError as error:
        raise InfrastructureError(
            f"params.yaml: tools.server_url = {url!r} does not answer: {error}. Start that server, or remove the key "
            "to use the recipe's own."
        ) from None
    return ToolEndpoint(url.rstrip("/"), static, secrets=sent)


class _Process:
    """The recipe's server. Its output goes to a file without a name. We read it with `pread`, which
    does not move the writer's position."""

    def __init__(self, recipe: Recipe, output: IO[bytes], state: config.RolloutState, keeps_state: bool) -> None:
        self._recipe = recipe
        self._stops_in_s = STOP_DEADLINE_S + (state.teardown_s if keeps_state else 0.0)
        self._output = output
        self._stopped = False
        key = token_urlsafe(32)
        secrets.add(KEY, key)
        self.headers = {"Authorization": f"Bearer {key}"}
        sources = [word for source in recipe.sources for word in ("--source", source)]
        command = interpreter.command(recipe.python, str(recipe.folder), *sources)
        options = recipe.options.model_dump_json(by_alias=True)
        self._process = subprocess.Popen(
            [*command, "--options", options, "--state", state.model_dump_json(), "--parent", str(os.getpid())],
            env=os.environ | {KEY: key},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,  # Ctrl-C is for the stage, which then stops the server itself
        )

    def wait_until_healthy(self) -> str:
        deadline = time.monotonic() + START_DEADLINE_S
        with httpx.Client(timeout=5, trust_env=False) as client:  # a new one loads certificates, 32 ms of a core
            while time.monotonic() < deadline:
                if self._process.poll() is not None:
                    raise self._trouble(f"did not start: exit code {self._process.returncode}")
                if found := re.search(r"^listening (\S+)$", tail(self._output, LOG_BYTES), re.MULTILINE):
                    url = f"http://{found[1]}"
                    try:
                        if client.get(f"{url}/health").status_code == 200:
                            return url
                    except httpx.HTTPError:
                        pass  # ask again until the deadline
                time.sleep(0.02)
        raise self._trouble(f"was not healthy within {START_DEADLINE_S:g} s")

    def raise_if_dead(self) -> None:
        if not self._stopped and (code := self._process.poll()) is not None:
            raise self._trouble(f"died in the middle: exit code {code}")

    def keep_log(self) -> None:
        """Write the server's output to a file, without secrets, if the recipe's own code raised."""
        text = tail(self._output, LOG_BYTES)
        if RAISED in text:
            path = log_of(self._recipe)
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{os.getpid()}.part")
            part.write_text(secrets.redact(text), encoding="utf-8")
            os.replace(part, path)

    def stop(self) -> None:
        self._stopped = True
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(self._stops_in_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()

    def _trouble(self, what: str) -> InfrastructureError:
        alone = commands.toolserver(self._recipe.folder, self._recipe.python, self._recipe.sources)
        return InfrastructureError(
            f"the tool server of {self._recipe.folder} {what}.\n{last_output(self.last_output())}\n"
            f"Try it alone: {alone}; then run the stage again."
        )

    def last_output(self) -> str:
        return secrets.redact(tail(self._output).strip())
