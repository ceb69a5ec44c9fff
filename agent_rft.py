"""Start agent-rft with its own packages on the import path, and nobody else's.

Other programs use the names `rft`, `tasks` and `flows`, too: a user's repository may have a
`tasks.py`, or its environment another package named `rft`. Python imports those first where the
current folder or PYTHONPATH comes first. So each process of ours starts in this module, which has
the name of the distribution:

    rft            the command line
    rft-stage      one stage of the ladder, as DVC starts it: the engine in RFT_ENGINE, else ours
    python -P -s agent_rft.py MODULE ...    a child process: a tool server, a smoke test
    agent_rft.retrain                       the flow, as Prefect's runner loads it for `rft up`: it
                                            puts the current folder first on the import path

Each takes the current folder, PYTHONPATH and the user's own site-packages off the import path, then
makes sure that the packages lie beside this file. Nothing of ours is imported before that.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import site
import sys
from importlib.machinery import PathFinder

HERE = os.path.dirname(os.path.realpath(__file__))
ENGINE = "RFT_ENGINE"
"""The folder that holds the engine of a run, if it is not this one. A worktree of a development
clone has an engine of its own, with the user's edits."""
FLOWS = "RFT_FLOWS"
"""The folder that holds the flows of `rft up`, if it is not this one. Prefect imports the module
`agent_rft` of the current folder, which may be a clone."""


def rft() -> int:
    _own_path(HERE, "rft", "tasks", "flows")
    from flows.cli import main

    return main()


def stage() -> int:
    _own_path(os.environ.get(ENGINE) or HERE, "rft")
    from rft.__main__ import main

    return main()


def __getattr__(name: str) -> object:
    if name != "retrain":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _own_path(os.environ.get(FLOWS) or HERE, "rft", "tasks", "flows")
    from flows.pipeline import retrain

    return retrain


def _own_path(folder: str, *packages: str, on_path: bool = True) -> None:
    """Take foreign folders off the import path, and put ours on it. Ends the process if a package
    of ours is missing, or would come from elsewhere."""
    foreign = {os.path.realpath(place) for place in os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    foreign |= {os.getcwd(), os.path.realpath(site.getusersitepackages())}
    kept = [place for place in sys.path if place and os.path.realpath(place) not in foreign - {folder}]
    sys.path[:] = kept if folder in kept or not on_path else [folder, *kept]
    for package in packages:
        found = importlib.util.find_spec(package)
        file = os.path.realpath(found.origin) if found and found.origin else ""
        place = os.path.dirname(os.path.dirname(file)) or "nowhere"
        if place != os.path.realpath(folder):
            sys.exit(
                f"error: agent-rft lies in {folder}, but its package {package!r} comes from {place}: another "
                "distribution has that name. Install agent-rft into an environment of its own: pipx install agent-rft"
            )


class _Alone:
    """Finds the engine, and nothing else that lies beside it. A child may run under the user's own
    interpreter (recipe.python), whose packages come first."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        return PathFinder.find_spec(name, [HERE]) if name == "rft" else None


if __name__ == "__main__":
    sys.meta_path.insert(0, _Alone())  # type: ignore[arg-type]
    _own_path(HERE, "rft", on_path=False)
    sys.argv.pop(0)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
