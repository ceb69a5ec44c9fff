"""The protocols that a policy implements.

    policy.open(openings, ...)  ->  one Dialogue per rollout
    dialogue.sample(...)        ->  the next assistant turn
    dialogue.append(...)        ->  the tokens that the tool results become

Our own engine (rft/sampling/engine.py) and servers (rft/sampling/remote) implement them. A policy
can be written, and loaded, without the loop, tools or graders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from rft.types import Opening, Sampled, ToolCall, ToolResult


class PolicyFailed(Exception):
    """The sampler or its server gave no turn. It is an infrastructure failure."""


class Dialogue(Protocol):
    """What a policy holds for one rollout."""

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """Tokens of the opening; empty for a policy without tokens."""
        ...

    async def sample(self, max_new: int, deadline_s: float) -> Sampled:
        """Sample the next assistant turn, cut after `deadline_s` seconds of its own sampling.
        Raises PolicyFailed if a server fails, or takes longer than that. No other code watches this
        clock."""
        ...

    def append(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> tuple[int, ...] | None:
        """Append the results and return their tokens. If they do not fit into the context, append
        nothing and return None."""
        ...

    def close(self) -> None:
        """Free what the rollout holds, because no further turn follows. May be called twice."""
        ...


@runtime_checkable
class ReadsAhead(Protocol):
    """A dialogue of a policy in another process. Other rollouts need the event loop meanwhile."""

    async def read_ahead(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> None:
        """Turn long results into tokens outside of the event loop, before they are appended."""
        ...


class Policy(Protocol):
    blocks: bool
    """Whether sampling blocks the event loop. Grades then wait for the end of the batch."""

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
        """Open one dialogue per opening. `max_context_tokens` limits each context; None: only the
        policy's own limit does."""
        ...
