"""Great Expectations on real tables: each contract breaks on its own fault, and an expectation that
raises is our failure."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scripted_windows as windows

from rft.config import Drift
from rft.drift import contracts
from rft.errors import InfrastructureError, UserError
from rft.reports import Contract, FeatureDrift, Manifest, Unread
from rft.traffic import columns

STATISTICS = [
    FeatureDrift(
        feature="vocabulary", group="input", statistic="total_variation", effect=0.31, threshold=0.15,
        p_value=0.0005, q_value=0.001, n_reference=2000, n_current=100, drifted=True, detail="'denies' 0.1% -> 2.3%",
    )
]  # fmt: skip


def check(rows: list[dict[str, Any]], docs: Path, **settings: Any) -> dict[tuple[str, str], Contract]:
    found = contracts.check(
        [columns.of_rows(rows)],
        contracts.KnownTools(frozenset({"lookup"})),
        STATISTICS,
        Drift(**settings),
        docs,
    )
    return {(one.column, one.name): one for one in found}


def broken(found: dict[tuple[str, str], Contract]) -> list[tuple[str, str]]:
    return [key for key, one in found.items() if not one.success]


@pytest.mark.slow
def test_a_sound_window_holds_every_contract(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = check(windows.rows(100), tmp_path / "docs")
    assert broken(found) == []
    assert len(found) == 11
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")  # no progress bars


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_declared_share_of_bad_values_is_allowed(tmp_path: Path) -> None:
    rows = windows.rows(100)
    for n, (changes, _) in enumerate(SPOILT):
        rows[n] |= changes
    assert len(broken(check(rows, tmp_path / "docs", max_bad_share=0.0))) == 7
    assert broken(check(rows, tmp_path / "docs", max_bad_share=0.1)) == []


@pytest.mark.slow
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


# -- snapshots -------------------------------------------------------------------------------------
def parts(folder: Path, rows: list[dict[str, Any]], size: int) -> list[Path]:
    """Write a snapshot of `size` conversations per part."""
    whole = columns.of_rows(rows)
    paths: list[Path] = []
    for start in range(0, len(rows), size):
        paths.append(folder / f"part-{len(paths):05d}.parquet")
        pq.write_table(whole.slice(start, size), paths[-1])
    return paths


def check_parts(window: list[Path], docs: Path, manifest: Manifest | None = None, **settings: Any) -> list[Contract]:
    tools = contracts.KnownTools(frozenset({"lookup"}))
    return contracts.check(window, tools, STATISTICS, Drift(**settings), docs, manifest)


def manifest(**changes: Any) -> Manifest:
    made = Manifest(sources=[], parts=[], sha256="", num_rows=100, num_conversations=100, num_with_feedback=0)
    return made.model_copy(update=changes)


@pytest.mark.slow
def test_counts_are_summed_over_pieces_and_decided_on_the_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One piece is bad as a whole; of the window it is 10 %."""
    rows = windows.rows(100)
    for row in rows[40:50]:
        row["latency_s"] = -3.0
    window = parts(tmp_path, rows, 10)
    at_once = check_parts(window, tmp_path / "docs", max_bad_share=0.1)
    monkeypatch.setattr(contracts, "PIECE", 10)
    in_pieces = check_parts(window, tmp_path / "docs", max_bad_share=0.1)
    assert in_pieces == at_once
    assert all(one.success for one in in_pieces)
    assert "10 of 100 bad, such as -3.0" in [one.observed for one in in_pieces]


@pytest.mark.slow
def test_a_few_bad_rows_in_each_piece_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contracts, "PIECE", 7)
    rows = windows.rows(60)
    for row in rows[::6]:
        row |= {"messages": STRANGE_TOOL, "tool_errors": None}
    found = check_parts(parts(tmp_path, rows, 20), tmp_path / "docs", max_bad_share=0.15)
    assert {one.column: one.observed for one in found if not one.success} == {
        "tool_errors": "10 of 60 bad",
        "tool": "10 of 60 bad, such as rm",
    }


@pytest.mark.slow
def test_a_table_of_many_pieces_has_one_page_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contracts, "PIECE", 10)
    docs = tmp_path / "docs"
    check_parts(parts(tmp_path, windows.rows(60), 10), docs)
    (page,) = (docs / "validations" / "conversations").rglob("*.html")
    assert "conversations: 60 rows, counts summed over 6 pieces" in page.read_text()
    pages = sorted(path.parts[-4] for path in (docs / "validations").rglob("*.html"))
    assert pages == ["conversations", "statistics", "tool_calls"]


@pytest.mark.slow
def test_a_column_of_the_owner_may_not_be_empty(tmp_path: Path) -> None:
    (part,) = parts(tmp_path, windows.rows(60), 60)
    table = pq.read_table(part)
    plans = pa.array(["free"] * 50 + [None] * 10, pa.string())
    pq.write_table(table.append_column("own_age", pa.array([30.0] * 60)).append_column("own_plan", plans), part)
    found = check_parts([part], tmp_path / "docs")
    assert [(one.name, one.column, one.observed) for one in found if not one.success] == [
        ("column_values_to_not_be_null", "own_plan", "10 of 60 bad")
    ]
    assert len(found) == 13


def test_a_part_of_another_version_is_named(tmp_path: Path) -> None:
    window = parts(tmp_path, windows.rows(60), 30)
    pq.write_table(pq.read_table(window[1]).drop_columns(["latency_s"]), window[1])
    with pytest.raises(UserError, match=r"part-00001.parquet: has no column 'latency_s'\. .* ingest the log again"):
        check_parts(window, tmp_path / "docs")
    assert not (tmp_path / "docs").exists()


UNREAD = [Unread(source="log.jsonl", line=7, why="not JSON")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "column_and_observed"),
    [
        ({"num_rows": 102, "rejected": {"not JSON": 2}, "unread": UNREAD}, None),  # 2 of 102: below 2 %
        (
            {"num_rows": 103, "rejected": {"not JSON": 3}, "unread": UNREAD},
            ("rows_to_be_readable", "3 of 103 bad, such as log.jsonl:7 (not JSON)"),
        ),
        ({"num_rows": 200, "rejected": {"repeated": 60, "continued": 40}}, None),  # read, and not needed
        ({"unit": "user_id", "rejected": {"no unit": 2}}, None),
        ({"unit": "user_id", "rejected": {"no unit": 3}}, ("rows_to_name_their_unit", "3 of 100 bad")),
    ],
)
def test_rows_that_did_not_become_conversations_are_few(
    tmp_path: Path, changes: dict[str, Any], column_and_observed: tuple[str, str] | None
) -> None:
    found = check_parts(parts(tmp_path, windows.rows(60), 60), tmp_path / "docs", manifest(**changes))
    assert found[0].column == "log"
    assert [(one.name, one.observed) for one in found if not one.success] == (
        [column_and_observed] if column_and_observed else []
    )
    assert len(found) == 12 + ("unit" in changes)


# -- Data Docs -------------------------------------------------------------------------------------
@pytest.mark.slow
def test_data_docs_are_written_anew(tmp_path: Path) -> None:
    docs = tmp_path / "deep" / "docs"
    check(windows.rows(60), docs)
    (docs / "stale.html").write_text("old")
    check(windows.rows(60), docs)
    assert (docs / "index.html").exists()
    assert not (docs / "stale.html").exists()
    assert [path.name for path in docs.parent.iterdir()] == ["docs"]


def statistics_page(docs: Path, statistics: list[FeatureDrift]) -> str:
    tables = [columns.of_rows(windows.rows(60))]
    found = contracts.check(tables, contracts.KnownTools(frozenset({"lookup"})), statistics, Drift(), docs)
    assert all(one.success for one in found)  # drift breaks no contract
    (page,) = (docs / "validations" / "statistics").rglob("*.html")
    return html.unescape(page.read_text())


@pytest.mark.slow
def test_data_docs_show_each_feature_with_number_threshold_and_verdict(tmp_path: Path) -> None:
    (drifted,) = STATISTICS
    still = drifted.model_copy(update={"against": "window", "effect": 0.1, "drifted": False})
    unknown = drifted.model_copy(
        update={"feature": "manners", "effect": None, "q_value": None, "drifted": False, "detail": "no reference yet"}
    )
    page = statistics_page(tmp_path / "docs", [drifted, still, unknown])
    assert "vocabulary against train: total_variation at most 0.150, or q at least 0.01" in page
    assert "0.310, q 0.0010: drifted. 'denies' 0.1% -> 2.3%" in page
    assert "vocabulary against window: total_variation at most 0.150" in page
    assert "0.100, q 0.0010: not drifted." in page
    assert "not tested: no reference yet" in page
    assert "Unsuccessful Expectations" in page


EVIL = "<script>alert(1)</script>"


@pytest.mark.slow
def test_nothing_of_a_log_runs_in_a_page(tmp_path: Path) -> None:
    rows = windows.rows(60)
    strange = [{"role": "user", "content": "a"}, windows.call(0, 1, EVIL), windows.call(1, 1, f"wiki.{EVIL}")]
    for n, row in enumerate(rows[:10]):
        row |= {"conversation_id": f"{EVIL}{n // 2}", "messages": [*strange, {"role": "user", "content": "b"}]}
    statistics = [STATISTICS[0].model_copy(update={"feature": EVIL, "detail": EVIL})]
    log = manifest(num_rows=200, unit=EVIL, unread=[Unread(source=EVIL, line=1, why=EVIL)])
    tables = [columns.of_rows(rows)]
    tools = contracts.KnownTools(frozenset({"lookup"}), prefixes=("wiki.",))
    found = contracts.check(tables, tools, statistics, Drift(), tmp_path / "docs", log)
    assert sum(EVIL in one.observed for one in found if not one.success) == 3  # a report holds what was there
    pages = [path.read_text() for path in (tmp_path / "docs").rglob("*.html")]
    assert len(pages) == 9
    assert not any(EVIL in page for page in pages)


# -- failures of the check itself ------------------------------------------------------------------
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


def test_an_expectation_of_ours_that_breaks_is_no_drift_either(tmp_path: Path) -> None:
    """It finds two records for one feature, which a report never holds."""
    tables = [columns.of_rows(windows.rows(60))]
    with pytest.raises(
        InfrastructureError, match=r"could not check expect_feature_not_to_drift on vocabulary: .*This is not drift"
    ):
        contracts.check(tables, contracts.KnownTools(frozenset({"lookup"})), STATISTICS * 2, Drift(), tmp_path / "docs")
    assert not (tmp_path / "docs").exists()
