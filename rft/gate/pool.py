"""Choose the slices that the gate judges: those with enough examples, and the rest as one.

A handful of examples cannot show a loss, and with ten handfuls one looks like a loss by chance. So
slices under `gate.min_slice` are pooled. A single example is not a pool: its difference has no
spread to be judged by. That is an error. The doctor and stage `examples` find it, as soon as the
test examples are known; where only the settings changed, any later stage does.

These checks never change what a stage writes, so the settings are not called `params` here
(rft/grading/margins.py says why).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rft import config
from rft.errors import UserError
from rft.formatting import counted
from rft.reports.gate import POOLED


@dataclass(frozen=True, slots=True)
class Judged:
    """The slices that share one veto: `Judged("small slices", {"fax": 3, "phone": 9})`."""

    name: str
    slices: Mapping[str, int]
    """Slice -> test examples."""

    @property
    def what(self) -> str:
        """Name the slices of a pool; empty for a single slice."""
        if len(self.slices) == 1:
            return ""
        return "together " + ", ".join(f"{name} ({count})" for name, count in self.slices.items())


def judged(counts: Mapping[str, int], min_slice: int) -> list[Judged]:
    """List the slices, and the pool of the small ones after them. Raises UserError for a pool of
    one example."""
    ordered = dict(sorted(counts.items()))
    small = {name: count for name, count in ordered.items() if count < min_slice}
    found = [Judged(f"slice {name}", {name: count}) for name, count in ordered.items() if name not in small]
    if sum(small.values()) == 1:
        (name,) = small
        raise UserError(
            f"params.yaml: slice '{name}' has 1 test example, and no other slice has fewer than gate.min_slice = "
            f"{min_slice} with which it could be judged together. Raise examples.test until it has more, name the "
            f"group in examples.keys.slice by which no example stands alone, or raise gate.min_slice above "
            f"{counted(min(count for one, count in ordered.items() if one != name), 'example')}."
            if len(ordered) > 1
            else f"params.yaml: slice '{name}' has 1 test example, and there is no other. Raise examples.test."
        )
    if len(small) > 1:
        return [*found, Judged(POOLED, small)]
    return found + [Judged(f"slice {name}", {name: count}) for name, count in small.items()]


def check(settings: config.Params, counts: Mapping[str, int]) -> None:
    """Raise UserError for test examples whose slices cannot be judged."""
    judged(counts, settings.gate.min_slice)
