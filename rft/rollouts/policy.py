"""What the loop asks of a policy, whoever samples: our own engine (rft/sampling/engine.py), or a
server (rft/sampling/remote).

    policy.open(openings, ...)  ->  a Dialogue per rollout
    dialogue.sample(...)        ->  the next assistant turn
    dialogue.append(...)        ->  the tokens that the tool results become

It knows neither the loop nor tools nor graders, so a policy can be written, and loaded, without
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rft.types import Opening, Sampled, ToolCall, ToolResult


class PolicyFailed(Exception):
    """The sampler or its server gave no turn: infrastructure."""


class Dialogue(Protocol):
    """One rollout's side of a policy."""

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The opening's tokens; empty for a policy without tokens."""
        ...

    async def sample(self, max_new: int, deadline_s: float) -> Sampled:
        """The next assistant turn, cut after `deadline_s` of its own sampling. Raises PolicyFailed,
        at the latest after `deadline_s` of waiting for a server. Nobody else watches this clock."""
        ...

    def append(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> tuple[int, ...] | None:
        """The tokens that the results become, or None, appending nothing, when they do not fit into
        the context."""
        ...

    def close(self) -> None:
        """No further turn will be asked for. May be called twice."""
        ...


class Policy(Protocol):
    blocks: bool
    """Sampling holds up the event loop, so nothing else may be under way while it runs: grades wait
    for the end of the batch."""

    async def check_openings(self, openings: Sequence[Opening], max_tokens: int | None) -> None:
        """Raises UserError naming the example whose opening leaves no room for an answer. Asked
        once before a stage's first batch."""
        ...

    def open(
        self, openings: Sequence[Opening], seeds: Sequence[Sequence[int]], temperature: float, max_tokens: int | None
    ) -> Sequence[Dialogue]:
        """One dialogue an opening; `max_tokens` bounds the whole context of each. None: by what the
        policy itself takes."""
        ...
