"""Serve a recipe's tools and grader over HTTP, as a stage does.

Prints 'listening HOST:PORT' when ready.

  rft serve-tools recipes/icd10 --port 8100
  curl -s localhost:8100/health
  curl -s localhost:8100/tools/search -d '{"arguments": "{\\"query\\": \\"angina\\"}"}'

Set RFT_TOOL_KEY to ask for a bearer key. To train on a server that runs elsewhere, name it in params.yaml: tools.server_url.
"""

from __future__ import annotations

import argparse


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE_FOLDER", help="a folder with examples.py and tools.py")
    parser.add_argument("--options", default="{}", metavar="JSON", help="the recipe's options, as in params.yaml (default: {})")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", default=0, type=int, help="0, the default, takes a free port")


def run(options: argparse.Namespace) -> int:
    from rft import toolserver

    toolserver.run(options.recipe, options.options, options.host, options.port)
    return 0
