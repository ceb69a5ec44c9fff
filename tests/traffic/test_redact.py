"""What nobody may store is nowhere in a snapshot: not in texts, names or what was unreadable."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rft import config
from rft.errors import UserError
from rft.reports import Manifest
from rft.traffic import reading
from rft.traffic.ingest import ingest

RULES = {"email": r"[A-Za-z0-9._]+@[a-z.]+", "card": r"(?:[0-9]{4} ){3}[0-9]{4}"}
ALICE, BOB = "alice.b@example.com", "bob@example.com"
CARD = "4111 1111 1111 1111"


def row(number: int, **changes: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"I am {ALICE}"}, {"role": "assistant", "content": "done"}]
    return {"conversation_id": f"c-{number}", "time": "2026-03-02T08:14:05Z", "messages": messages} | changes


def made(place: Path, rows: list[Any], **settings: Any) -> tuple[Manifest, list[dict[str, Any]], str]:
    """Return the manifest, the rows, and all that the snapshot says."""
    content = "".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in rows)
    (place / "window.jsonl").write_text(content)
    given = {"min_conversations": 1, "processes": 1, "redact": RULES} | settings
    folder = ingest("window.jsonl", config.Traffic.model_validate(given), place, place / "snapshots")
    table = pq.read_table([folder / part.name for part in reading.manifest(folder).parts]).to_pylist()
    return reading.manifest(folder), table, (folder / "manifest.json").read_text() + str(table)


def hashed(name: str) -> str:
    return f"sha256:{hashlib.sha256(name.encode()).hexdigest()[:16]}"


@pytest.mark.parametrize(("unit", "form"), [("user", "{}"), ("user.id", '{{"id": {}}}')])
def test_a_unit_that_a_rule_matches_keeps_its_conversations_together_and_apart(
    unit: str, form: str, tmp_path: Path
) -> None:
    users = [ALICE, BOB, ALICE, "u-17", 4]
    key = unit.split(".")[0]
    rows = [row(n, **{key: json.loads(form.format(json.dumps(user)))}) for n, user in enumerate(users)]
    manifest, table, everything = made(tmp_path, rows, unit=unit)
    assert [found["unit"] for found in table] == [hashed(ALICE), hashed(BOB), hashed(ALICE), "u-17", "4"]
    assert [found["draw"] == table[0]["draw"] for found in table] == [True, False, True, False, False]
    assert "@" not in everything
    assert manifest.redacted == {"email": 5 + 3, "card": 0}  # texts and units


def test_the_exact_key_of_a_unit_comes_before_its_path(tmp_path: Path) -> None:
    rows = [row(1, **{"user.id": ALICE, "user": {"id": "other"}}), row(2, **{"user.id": "u", "user": {"id": BOB}})]
    _, table, everything = made(tmp_path, rows, unit="user.id")
    assert [found["unit"] for found in table] == [hashed(ALICE), "u"]
    assert "@" not in everything


def test_a_number_as_unit_is_hidden_as_its_text(tmp_path: Path) -> None:
    rules = {"phone": "[0-9]{9,}"}
    _, table, _ = made(tmp_path, [row(1, user=4915112345678), row(2, user="4915112345678")], unit="user", redact=rules)
    assert [found["unit"] for found in table] == [hashed("4915112345678")] * 2


def test_ids_and_categories_are_hidden_and_numbers_stay(tmp_path: Path) -> None:
    columns = {"who": "category", "price": "number"}
    rows = [row(1, conversation_id=f"chat of {BOB}", who=BOB, price=4.5), row(2, who="shop", price=2)]
    manifest, table, everything = made(tmp_path, rows, columns=columns)
    assert [found["conversation_id"] for found in table] == [hashed(f"chat of {BOB}"), "c-2"]
    assert [found["own_who"] for found in table] == [hashed(BOB), "shop"]
    assert [found["own_price"] for found in table] == [4.5, 2.0]
    assert "@" not in everything
    assert manifest.redacted["email"] == 2 + 2


def test_rows_of_a_hidden_id_are_joined_as_before(tmp_path: Path) -> None:
    longer = [*row(1)["messages"], {"role": "user", "content": "more"}, {"role": "assistant", "content": "ok"}]
    rows = [row(1, conversation_id=BOB), row(1, conversation_id=BOB, messages=longer), row(2, conversation_id=ALICE)]
    manifest, table, _ = made(tmp_path, rows)
    assert [(found["conversation_id"], found["num_messages"]) for found in table] == [
        (hashed(BOB), 4), (hashed(ALICE), 2),
    ]  # fmt: skip
    assert manifest.rejected == {"continued": 1}
    other = [row(1, conversation_id=BOB), row(1, conversation_id=BOB, messages=longer[2:])]
    manifest, _, everything = made(tmp_path, other)
    assert hashed(BOB) in manifest.unread[0].why
    assert "@" not in everything


def test_fragments_find_the_conversation_that_they_continue(tmp_path: Path) -> None:
    """Responses name the answer that they go on from: another name of the conversation."""

    def record(name: str, before: str | None, text: str) -> dict[str, Any]:
        answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]}
        return {
            "request": {"input": text, "previous_response_id": before},
            "response": {"id": name, "object": "response", "created_at": 1772439245, "status": "completed",
                         "previous_response_id": before, "output": [answer]},
        }  # fmt: skip

    rows = [record(BOB, None, "a question"), record("resp-2", BOB, "one more")]
    _, plain, _ = made(tmp_path, rows, redact={})
    assert [(found["conversation_id"], found["num_messages"]) for found in plain] == [(BOB, 4)]
    _, table, everything = made(tmp_path, rows)
    assert [(found["conversation_id"], found["num_messages"]) for found in table] == [(hashed(BOB), 4)]
    assert "@" not in everything


BAD = {
    "id": row(1, conversation_id=[ALICE]),
    "time": row(1, time=f"yesterday, said {ALICE}"),
    "messages": row(1, messages={"from": ALICE}),
    "a key": row(1, messages={ALICE: 1}),
    "role": row(1, messages=[{"role": ALICE, "content": "hello"}]),
    "cut in the middle": row(1, messages=[{"role": "nobody", "content": f"hello, it is {'x' * 4} {CARD}"}]),
    "JSON inside": row(1, messages=[{"role": "x", "content": json.dumps({"mail": ALICE})}]),
    "no object": json.dumps(f"{'.' * 26} {CARD}"),
    "half a pair": '{"conversation_id": ["' + ALICE + '\\ud800"]}',
}


@pytest.mark.parametrize("name", BAD)
def test_an_unreadable_row_is_named_without_what_a_rule_matches(name: str, tmp_path: Path) -> None:
    _, _, plain = made(tmp_path, [BAD[name], row(2)], redact={})
    quoted = ("@", "4111")
    assert name == "half a pair" or any(part in plain.split('"ignored_keys"')[0] for part in quoted)
    manifest, _, everything = made(tmp_path, [BAD[name], row(2)])
    assert [(found.line, bool(found.why)) for found in manifest.unread] == [(1, True)]
    assert not [part for part in quoted if part in everything], manifest.unread


def test_ignored_keys_are_named_without_it_too(tmp_path: Path) -> None:
    manifest, _, _ = made(tmp_path, [row(1, **{ALICE: 1, BOB: 2}), row(2, other=1)])
    assert manifest.ignored_keys == {"[email]": 2, "other": 1}


def test_other_formats_and_errors_quote_without_it(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [ALICE]}]}
    record = {"id": "r-1", "created": 1772439245, "object": "chat.completion", "choices": [{"message": ALICE}]}
    good = {
        "request": {"messages": chat["messages"][:1], "model": "m"},
        "response": record | {"choices": [{"message": {"role": "assistant", "content": "yes"}}]},
    }
    manifest, _, everything = made(tmp_path, [good, good | {"response": record}])
    assert len(manifest.unread) == 1
    assert "@" not in everything
    (tmp_path / "window.jsonl").write_text(f"{ALICE} wrote this\n" * 3)
    section = config.Traffic.model_validate({"min_conversations": 1, "redact": RULES})
    with pytest.raises(UserError, match=r"\[email\] wrote this") as raised:
        ingest("window.jsonl", section, tmp_path, tmp_path / "snapshots")
    assert "@" not in str(raised.value)
