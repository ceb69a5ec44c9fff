"""What is checked right before a promotion's entry: the agent runs, and its weights are signed.

The weights folder is signed with the machine key in OpenSSF's format (signing.py), so that
everybody who serves it can verify it without us. The smoke test (smoke.py) plays a few examples
with the real tools and grader. It does not judge how good the agent is: the gate did. It finds what
no hash shows, such as a tool server that is gone. The weights are signed first, because the
recipe's code runs in the same folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from rft import stage_files
from tasks.ledger import chain
from tasks.ledger.keys import Key
from tasks.promotion import agents, signing, smoke
from tasks.promotion.agents import Agent


@dataclass(frozen=True)
class Checked:
    smoke: str
    signature: bytes | None
    """The weights folder's signature, as model signing writes it; None: no weights of its own."""

    @property
    def signature_sha256(self) -> str | None:
        return None if self.signature is None else hashlib.sha256(self.signature).hexdigest()

    @property
    def files(self) -> dict[str, bytes]:
        return {} if self.signature is None else {chain.WEIGHTS: self.signature}


def check(agent: Agent, machine: Key, report_line: Callable[[str], None]) -> Checked:
    """Sign the weights, and play the smoke test. Raises InfrastructureError when the agent does not
    run as it did before the gate."""
    with agents.laid_out(agent, *smoke.EXAMPLES) as tree:
        path = agent.served.champion.weights_path
        signature = signing.sign(tree / stage_files.folder("champion") / path, machine.file) if path else None
        played = smoke.play(agent, tree, report_line)
    return Checked(played.description, signature)
