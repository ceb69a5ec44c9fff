"""Every run that one can ask about: the ledger, a ref or a record of this clone names it."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.audit.context import Context
from tasks.runs import records


@dataclass(frozen=True)
class Known:
    name: str
    commit: str | None
    """Its revision; None while it is not over."""


def runs(ctx: Context) -> dict[str, Known]:
    """Return the runs, oldest first. The ledger overrides a ref, and a ref overrides a record."""
    found = {record.name: Known(record.name, record.revision) for record in records.load_all(ctx.clone)}
    found |= {name: Known(name, refs[0][1]) for name, refs in ctx.refs.items()}
    found |= {each.act.run: Known(each.act.run, each.act.revision) for each in ctx.state.requests.values()}
    found |= {made.run: Known(made.run, made.revision) for made in ctx.state.promotions.values() if made.run}
    return dict(sorted(found.items()))
