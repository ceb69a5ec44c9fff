"""Our side of the figure `parity_trl`, without TRL: a loss that does not depend on the layout, jobs
that the peer can read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import parity, peer


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return parity.make_networks(tmp_path_factory.mktemp("parity"))


def test_packed_or_side_by_side_is_the_same_loss(networks: dict[str, Any]) -> None:
    for case in parity.cases_of(3, networks):
        if case.cap is not None or case.algorithm == "dpo":
            packed, plain = (parity.ours(replace(case, packing=packing), networks) for packing in (True, False))
            assert packed.distance(plain) < parity.BOUND, case.name


def test_a_job_is_what_trl_reads(networks: dict[str, Any]) -> None:
    """Lists as long as the completions; importance weights up to the cap, and some at it."""
    case = next(case for case in parity.cases_of(1, networks) if case.cap is not None)
    job = case.job()
    for name in ("own", "old", "reference", "importance"):
        assert [len(row) for row in job[name]] == [len(row) for row in job["completion"]]
    weights = [weight for row in job["importance"] for weight in row]
    assert max(weights) == parity.CAP
    assert min(weights) < 1


def test_a_peer_that_fails_is_a_figure_that_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise peer.PeerFailed("trl: exit code 1")

    monkeypatch.setattr(peer, "run", fails)
    found = parity.compare(tmp_path, seeds=1)
    assert found.holds is False
    assert found.parts[0].reason == "trl: exit code 1"
