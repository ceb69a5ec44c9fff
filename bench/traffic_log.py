"""Write a log of simulated traffic of any size, in our own format (docs/traffic.md).

Users come back: a few write much, most write little. The bodies of conversations are drawn from a
pool, so that a gigabyte takes seconds to write. Each row has its own id, time and user. The same
seed and size give the same bytes.

    write(path, num_bytes)      returns the number of rows
"""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

USERS = 20_000
_POOL = 8_000
_BEGAN = datetime(2026, 3, 2, tzinfo=UTC)
_TOOLS = ("find_order", "search", "refund", "track")


def write(path: Path, num_bytes: int, seed: int = 0) -> int:
    """Write whole rows until there are at least `num_bytes`."""
    draw = random.Random(seed)
    bodies = [_body(draw) for _ in range(_POOL)]
    written, count = 0, 0
    with path.open("wb") as file:
        while written < num_bytes:
            time = _BEGAN + timedelta(seconds=count * 0.7)
            user = int(USERS * draw.random() ** 3)
            head = f'{{"conversation_id": "c-{count:09d}", "time": "{time.isoformat()}", "user_id": "u-{user}", '
            written += file.write(head.encode() + draw.choice(bodies))
            count += 1
    return count


def _body(draw: random.Random) -> bytes:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You help the customers of a shop. " + _words(random.Random(1), 60)},
        {"role": "user", "content": _words(draw, draw.randint(15, 120))},
    ]
    for number in range(draw.randint(0, 4)):
        arguments = json.dumps({"number": draw.randint(1, 9999), "query": _words(draw, 3)})
        function = {"name": draw.choice(_TOOLS), "arguments": arguments}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        found = [{"id": draw.randint(1, 99), "text": _words(draw, 12)} for _ in range(draw.randint(0, 3))]
        reply = json.dumps({"status": "ok", "items": found}) if draw.random() < 0.9 else _words(draw, 20)
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": reply})
    messages.append({"role": "assistant", "content": _words(draw, draw.randint(10, 90)).capitalize() + "."})
    row: dict[str, Any] = {"messages": messages, "latency_s": round(draw.lognormvariate(0.5, 0.6), 3), "tool_errors": 0}
    if draw.random() < 0.05:
        row["feedback"] = messages[-1]["content"] if draw.random() < 0.7 else _words(draw, 8)
    return json.dumps(row).encode()[1:] + b"\n"


def _words(draw: random.Random, count: int) -> str:
    return " ".join(_VOCABULARY[int(len(_VOCABULARY) * draw.random() ** 2)] for _ in range(count))


def _vocabulary() -> list[str]:
    draw = random.Random(7)
    return ["".join(draw.choice("aeiounrstlmdkp") for _ in range(draw.randint(2, 10))) for _ in range(5000)]


_VOCABULARY = _vocabulary()
