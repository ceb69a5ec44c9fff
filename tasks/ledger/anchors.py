"""Evidence from outside the chain that it is whole: the chain must hold every entry named here.

A chain that was cut, rewound or replaced is valid in itself. So it is compared with three things:
- the genesis that infra/ledger.yaml names;
- the head that this clone saw last (memory.py);
- the head at the time of each run, which the run's revision names in its message (`Ledger: NUMBER
  SHA256`).

To hide an entry, one must find and change all of them. A new kind of anchor is one more function in
ANCHORS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tasks.ledger import chain, remote
from tasks.ledger.chain import Stored
from tasks.ledger.entry import Genesis
from tasks.ledger.objects import Damaged
from tasks.ledger.remote import Shared
from tasks.runs.clone import Clone

TRAILER = "Ledger"
_TRAILER = re.compile(rf"^{TRAILER}: (\d{{1,9}}) ([0-9a-f]{{64}})$", re.MULTILINE)


class CloneBehind(Damaged):
    """Something names a ledger, or an entry of it, that this clone does not have. The ledger was
    cut, or must be fetched first."""


@dataclass(frozen=True)
class Known:
    number: int
    entry: str
    where: str
    """What names the entry, and the remedy if it is wrong."""


def revisions(clone: Clone) -> Iterator[Known]:
    """Yield the entries that the run revisions of this clone name. In a message the last such line
    counts."""
    form = "--format=%(refname)%00%(contents)%00"
    found = clone.git("--no-replace-objects", "for-each-ref", form, "refs/exps").split("\0")
    for ref, message in zip(found[::2], found[1::2], strict=False):
        if lines := _TRAILER.findall(message):
            number, entry = lines[-1]
            name = ref.strip()
            yield Known(int(number), entry, f"run revision {name} (of another ledger? git update-ref -d {name})")


ANCHORS: list[Callable[[Clone], Iterable[Known]]] = [revisions]


def assert_known(clone: Clone, stored: list[Stored]) -> None:
    """Raise Damaged when something names an entry that the chain does not hold."""
    for anchor in ANCHORS:
        for known in anchor(clone):
            if known.number > len(stored):
                raise CloneBehind(
                    f"the ledger ends with entry {len(stored)}, but entry {known.number} ({known.entry[:16]}) is named "
                    f"by {known.where}: it was cut or rewound, or is not here yet. Fetch it whole from your remote or "
                    f"another clone: git fetch THAT_CLONE {chain.REF}:{chain.REF}"
                )
            there = stored[known.number - 1].entry.id if known.number else "none"
            if there != known.entry:
                raise Damaged(
                    f"entry {known.number} of the ledger is {there[:16]}, but {known.entry[:16]} is named by "
                    f"{known.where}: the chain was rewritten or replaced. Compare it with another clone's."
                )


def assert_genesis(shared: Shared, stored: list[Stored], restarted: bool = False) -> None:
    """Raise Damaged when the ledger is not the one that infra/ledger.yaml names. Also when it was
    restarted since, unless `restarted` accepts that."""
    newest = chain.genesis(stored)
    if shared.genesis in (None, newest.entry.id):
        return
    if shared.genesis not in {each.entry.id for each in stored if isinstance(each.entry.act, Genesis)}:
        raise CloneBehind(
            f"the ledger begins with genesis {newest.entry.id[:16]}, but this checkout ({remote.FILE}, or rft.yaml) "
            f"names {shared.genesis[:16]}: it is another ledger, or its restart is not here yet. Fetch that one: "
            f"git fetch THAT_CLONE {chain.REF}:{chain.REF}"
        )
    if not restarted:
        raise Damaged(chain.restart(newest))
