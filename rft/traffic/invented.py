"""Write invented traffic: a recipe's simulated conversations, with the dates of a log.

A simulator makes the conversations. Here they get ids and times, spread over the days of a window,
and become a file in the form of docs/traffic.md.
"""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rft import files

DAY_S = 24 * 3600


def write(
    path: Path,
    start: datetime.date,
    days: int,
    num: int,
    conversations: Iterable[Mapping[str, Any]],
    rng: random.Random,
) -> None:
    """Write the first `num` conversations as JSON lines, ordered by time; the file is whole or
    absent. Times are drawn from `rng` before the first conversation is asked for.

    Raises ValueError if there are fewer conversations.
    """
    midnight = datetime.datetime.combine(start, datetime.time(), datetime.UTC)
    seconds = sorted(rng.randrange(days * DAY_S) for _ in range(num))
    rest = iter(conversations)
    with files.replacing(path) as part, part.open("w", encoding="utf-8") as file:
        for n, second in enumerate(seconds):
            time = (midnight + datetime.timedelta(seconds=second)).isoformat().replace("+00:00", "Z")
            if (dialogue := next(rest, None)) is None:
                raise ValueError(f"{path}: {num} conversations were asked for, and there are {n}")
            file.write(json.dumps({"conversation_id": f"{start:%Y%m%d}-{n:05d}", "time": time, **dialogue}) + "\n")
