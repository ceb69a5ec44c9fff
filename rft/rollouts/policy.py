"""The protocols of a policy. Our own engine (rft/sampling/engine.py) and servers
(rft/sampling/remote) implement them.

    policy.open(openings, ...)  ->  one Dialogue per rollout
    dialogue.sample(...)        ->  the next assistant turn
    dialogue.append(...)        ->  the tokens that the tool results become

A policy can be written, and loaded, without the loop, tools or graders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from rft.types import Opening, Sampled, ToolCall, ToolResult


class PolicyFailed(Exception):
    """The sampler or its server gave no turn: infrastructure."""


class Dialogue(Protocol):
    """One rollout's side of a policy."""

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """Tokens of the opening; empty for a policy without tokens."""
        ...

    async def sample(self, max_new: int, deadline_s: float) -> Sampled:
        """Sample the next assistant turn, cut after `deadline_s` of its own sampling. Raises
        PolicyFailed, at the latest after `deadline_s` of waiting for a server. Nobody else watches
        this clock."""
        ...

    def append(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> tuple[int, ...] | None:
        """Append the results and return their tokens. None, and nothing appended, if they do not
        fit into the context."""
        ...

    def close(self) -> None:
        """Free what the rollout holds: no further turn is asked for. May be called twice."""
        ...


@runtime_checkable
class ReadsAhead(Protocol):
    """A dialogue whose policy is elsewhere: other rollouts need the event loop meanwhile."""

    async def read_ahead(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> None:
        """Make tokens of long results outside of the event loop, before they are appended."""
        ...


class Policy(Protocol):
    blocks: bool
    """Sampling blocks the event loop, so grades wait for the end of the batch."""

    async def check_openings(self, openings: Sequence[Opening], max_context_tokens: int | None) -> None:
        """Check, before a stage's first batch, that each opening leaves room for an answer. Raises
        UserError naming the example."""
        ...

    def open(
        self,
        openings: Sequence[Opening],
        seeds: Sequence[Sequence[int]],
        temperature: float,
        max_context_tokens: int | None,
    ) -> Sequence[Dialogue]:
        """Open one dialogue per opening. `max_context_tokens` bounds each context; None: the
        policy's own limit does."""
        ...
