"""Serve a recipe's tools and grader over HTTP, as a stage does.

Prints 'listening HOST:PORT' when ready.

  rft stage tools recipes/icd10 --port 8100
  curl -s localhost:8100/health
  curl -s localhost:8100/tools/search -d '{"arguments": "{\\"query\\": \\"angina\\"}"}'

Set RFT_TOOL_KEY to require a bearer key. A --host that other machines can reach needs one. To train
with a server that runs elsewhere, name it in params.yaml: tools.server_url.
"""

from __future__ import annotations

import argparse
import ipaddress
import os

from rft.errors import UserError
from rft.tools import interpreter
from rft.tools import server as toolserver


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE_FOLDER", help="a folder with examples.py and tools.py")
    parser.add_argument(
        "--options", default="{}", metavar="JSON", help="the recipe's options, as in params.yaml (default: {})"
    )
    parser.add_argument(
        "--state",
        default="{}",
        metavar="JSON",
        help="tools.state of params.yaml, such as '{\"ttl_s\": 600}' (default: {})",
    )
    parser.add_argument("--python", metavar="FILE", help="recipe.python of params.yaml: the interpreter that runs it")
    parser.add_argument(
        "--source", action="append", default=[], metavar="PATH", help="one of recipe.sources; repeatable"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", default=0, type=_port, help="port to listen on (default: 0, any free port)")


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{number} is not a port: give a number from 0 to 65535")
    return number


def run(options: argparse.Namespace) -> int:
    if not _is_loopback(options.host) and not os.environ.get(toolserver.KEY):
        raise UserError(
            f"--host {options.host} lets other machines call these tools. "
            f"Set {toolserver.KEY} to a key that they must send, or leave --host out."
        )
    if options.python is not None:
        where = ("--host", options.host, "--port", str(options.port), "--options", options.options)
        sources = [word for source in options.source for word in ("--source", source)]
        command = interpreter.command(options.python, options.recipe, *where, "--state", options.state, *sources)
        os.execv(command[0], command)
    toolserver.run(options.recipe, options.options, options.host, options.port, options.state, options.source)
    return 0


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
