"""The smoke test of a scripted agent, for tests that promote one.

The policy of a scripted clone (tests/ladder_clone.py) is some bytes that no engine loads.
For such an agent the smoke test is scripted too; every other agent plays the real one. Python
imports this file by itself where its folder is in PYTHONPATH, so it holds for the commands that
tests start.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys

NAME = "tasks.promotion.smoke"


class _Scripted(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        self.real, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return self.real.create_module(spec)

    def exec_module(self, module):
        self.real.exec_module(module)
        real, smoke = module.play, module.Smoke

        def play(agent, tree, on_line, *rest):
            if not (tree / "data/policy/model.bin").exists():
                return real(agent, tree, on_line, *rest)
            on_line("[smoke] scripted")
            return smoke(source="scripted", examples=4, solved=4, mean_reward=1.0, stop_reasons={}, seconds=0.0)

        module.play = play


if NAME not in sys.modules:
    sys.meta_path.insert(0, _Scripted())
if os.environ.get("RFT_TEST_DISTURB"):  # Python imports one sitecustomize
    from tests.disturbed import sitecustomize as _  # noqa: F401
