"""Great Expectations on real tables: each contract breaks on its own fault, and an expectation that
raises is our failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import scripted_windows as windows

from rft.config import Drift
from rft.errors import InfrastructureError
from rft.reports import Contract, Conversation, FeatureDrift
from rft.windows import contracts

STATISTICS = [
    FeatureDrift(
        feature="vocabulary", group="input", statistic="total_variation", effect=0.31, threshold=0.15,
        p_value=0.0005, q_value=0.001, n_reference=2000, n_current=100, drifted=True, detail="'denies' 0.1% -> 2.3%",
    )
]  # fmt: skip


def check(rows: list[dict[str, Any]], docs: Path, **settings: Any) -> dict[tuple[str, str], Contract]:
    conversations = [Conversation.model_validate(row) for row in rows]
    found = contracts.check(
        conversations, contracts.KnownTools(frozenset({"lookup"})), STATISTICS, Drift(**settings), docs
    )
    return {(one.column, one.name): one for one in found}


def broken(found: dict[tuple[str, str], Contract]) -> list[tuple[str, str]]:
    return [key for key, one in found.items() if not one.success]


def test_a_sound_window_holds_every_contract(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = check(windows.rows(100), tmp_path / "docs")
    assert broken(found) == []
    assert len(found) == 11
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")  # no progress bars


def test_contracts_come_in_one_order(tmp_path: Path) -> None:
    rows = windows.rows(60)
    assert list(check(rows, tmp_path / "a")) == list(check(rows, tmp_path / "b"))


STRANGE_TOOL = [{"role": "user", "content": "a"}, windows.call(0, 1, "rm"), {"role": "assistant", "content": "b"}]
NOT_ASSISTANT = windows.conversation(3)["messages"][:-1]
SPOILT: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
    ({"latency_s": None}, [("latency_s", "column_values_to_not_be_null")]),
    ({"latency_s": -3.0}, [("latency_s", "column_values_to_be_between")]),
    ({"latency_s": 99_999.0}, [("latency_s", "column_values_to_be_between")]),
    ({"tool_errors": None}, [("tool_errors", "column_values_to_not_be_null")]),
    ({"tool_errors": -1}, [("tool_errors", "column_values_to_be_between")]),
    ({"messages": NOT_ASSISTANT}, [("last_role", "column_values_to_be_in_set")]),
    ({"messages": [{"role": "assistant", "content": "hello"}]}, [("input_words", "column_values_to_be_between")]),
    ({"messages": STRANGE_TOOL}, [("tool", "column_values_to_be_in_set")]),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), SPOILT)
def test_each_contract_breaks_on_its_own_fault_alone(
    tmp_path: Path, changes: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    rows = windows.rows(100)
    for n in range(10):
        rows[n] |= changes
    found = check(rows, tmp_path / "docs")
    assert broken(found) == expected
    assert found[expected[0]].observed.startswith("10 of ")


def test_the_declared_share_of_bad_values_is_allowed(tmp_path: Path) -> None:
    rows = windows.rows(100)
    for n, (changes, _) in enumerate(SPOILT):
        rows[n] |= changes
    assert len(broken(check(rows, tmp_path / "docs", max_bad_share=0.0))) == 7
    assert broken(check(rows, tmp_path / "docs", max_bad_share=0.1)) == []


def test_an_id_twice_is_never_allowed(tmp_path: Path) -> None:
    rows = windows.rows(100)
    rows[1]["conversation_id"] = rows[0]["conversation_id"]
    assert broken(check(rows, tmp_path / "docs", max_bad_share=0.5)) == [
        ("conversation_id", "column_values_to_be_unique")
    ]


def test_a_window_without_tool_calls_has_no_tool_contract(tmp_path: Path) -> None:
    found = check(windows.rows(60, calls=0), tmp_path / "docs")
    assert ("tool", "column_values_to_be_in_set") not in found
    assert broken(found) == []


def test_data_docs_show_contracts_and_statistics_and_are_written_anew(tmp_path: Path) -> None:
    docs = tmp_path / "deep" / "docs"
    check(windows.rows(60), docs)
    (docs / "stale.html").write_text("old")
    check(windows.rows(60), docs)
    assert (docs / "index.html").exists()
    assert not (docs / "stale.html").exists()
    assert [path.name for path in docs.parent.iterdir()] == ["docs"]
    (page,) = (docs / "validations" / "statistics").rglob("*.html")
    assert (
        "vocabulary: &#39;denies&#39; 0.1% -&gt; 2.3%" in page.read_text()
        or "vocabulary: 'denies' 0.1% -> 2.3%" in page.read_text()
    )


def test_an_expectation_that_breaks_is_our_failure_not_drift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_no_column(settings: Drift, tools: Any) -> list[Any]:
        from great_expectations import expectations as gxe

        return [gxe.ExpectColumnValuesToBeInSet(column="nowhere", value_set=["x"])]

    monkeypatch.setattr(contracts, "_on_calls", on_no_column)
    with pytest.raises(
        InfrastructureError, match=r"could not check expect_column_values_to_be_in_set on nowhere: .*This is not drift"
    ):
        check(windows.rows(60), tmp_path / "docs")
    assert not (tmp_path / "docs").exists()
