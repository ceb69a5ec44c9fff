"""Profile a window of traffic: count its features.

    of_parts(parts, plan, source)     a snapshot, part by part, in one process, several, or on Spark
    of_table(table, plan, source)     conversations in memory, in the columns of a snapshot
    of_examples(examples, plan, ..)   the inputs of training examples

The features are those of rft/drift/features.py. Counting has two passes. The first reads the
columns of every conversation, and the hashes by which a sample is chosen (rft/drift/counting.py).
The second reads the messages of that sample (rft/drift/sample.py). Whichever engine counts, and
however the rows are split, the profile has the same bytes. It holds no text of a conversation:
words are hashed. Names of tools, shapes of their arguments and values of declared categories are
kept as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rft import files, reports, stage_files
from rft.config import Params
from rft.drift import counting, owners
from rft.drift.counting import Partial
from rft.drift.engines import Engine
from rft.drift.features import Plan, columns_of
from rft.drift.parts import COUNT_ROWS, Task, choose, count_parts, read_texts, tasks_of
from rft.drift.sample import Sample, texts_of_table
from rft.errors import UserError
from rft.recipe import Recipe
from rft.reports import Feature, Profile
from rft.traffic import columns
from rft.traffic.texts import BUCKETS, word_hash, words
from rft.types import Example

if TYPE_CHECKING:
    from rft.drift.encoder import Encoder

PHRASES = 500
"""A profile keeps the words in order, or the meaning, of so many conversations of the sample."""
WORDS = 200
"""It keeps so many words of each. 500 conversations take at most 500 KB."""
_ROWS_PER_TASK = 100_000


# -- the whole -------------------------------------------------------------------------------------
def of_parts(parts: Sequence[Path], plan: Plan, source: str, engine: Engine | None = None) -> Profile:
    """Profile a snapshot by its Parquet parts, in the order of the log."""
    engine = engine or Engine()
    tasks = tasks_of(parts, 1 if engine.kind == "spark" else _ROWS_PER_TASK)
    total = counting.merged(engine.mapped(partial(count_parts, plan), tasks), plan)
    return finish(total, plan, source, _texts_of_parts(total.sample, tasks, engine))


def of_table(table: pa.Table, plan: Plan, source: str) -> Profile:
    """Profile conversations that are in memory, in the columns of a snapshot."""
    total = counting.partial(table.select(columns_of(plan)).to_batches(max_chunksize=COUNT_ROWS), plan)
    return finish(total, plan, source, texts_of_table(table, total.sample.row.tolist()))


def finish(total: Partial, plan: Plan, source: str, texts: Sequence[str]) -> Profile:
    """Make the profile from all counts. `texts`: what the user wrote, in the order of the
    sample."""
    found = counting.features(total, plan, _sampled(total.sample, texts, _encoder(plan)))
    return Profile(source=source, num_conversations=total.num_conversations, features=found)


def of_examples(examples: Sequence[Example], plan: Plan, source: str) -> Profile:
    """Profile the inputs of training examples, in the columns that a log would have."""
    rows = ({"conversation_id": one.id, "time": _NO_TIME, "messages": list(one.messages)} for one in examples)
    return of_table(columns.of_rows(rows), plan.inputs_only(), source)


_NO_TIME = "1970-01-01T00:00:00Z"
"""Examples have no time, and no feature uses it."""


def reference(params: Params, loaded: Recipe, plan: Plan) -> Profile:
    """Find the profile that a window is compared with: the champion's, or before the first
    promotion, that of the recipe's training examples."""
    champion = stage_files.champion()
    if champion.profile_path is not None:
        path = stage_files.folder("champion") / champion.profile_path
        found = reports.read(Profile, path)
        if champion.profile_sha256 not in (None, files.sha256(path)):
            named = f"{stage_files.path(reports.Champion)} names {champion.profile_sha256}"
            raise UserError(f"{path}: not the champion's profile: {named}. Restore it: dvc checkout {path}.dvc")
        return found
    examples = loaded.examples("train", params.examples.train, params.examples.seed)
    return of_examples(examples, plan, f"the training examples of recipe {loaded.name}")


# -- the sample ------------------------------------------------------------------------------------
def sampled_texts(parts: Sequence[Path], plan: Plan, engine: Engine | None = None) -> list[str]:
    """Return what the user wrote in the conversations of the sample."""
    return _sample(parts, plan, engine or Engine())[1]


def of_sample(parts: Sequence[Path], plan: Plan, engine: Engine | None = None) -> dict[str, Feature]:
    """Return the features of the sample alone."""
    return _sampled(*_sample(parts, plan, engine or Engine()), _encoder(plan))


def _sample(parts: Sequence[Path], plan: Plan, engine: Engine) -> tuple[Sample, list[str]]:
    tasks = tasks_of(parts, _ROWS_PER_TASK)
    chosen = Sample(plan.text_sample)
    for found in engine.mapped(partial(choose, plan.text_sample), tasks):
        chosen.merge(found)
    return chosen, _texts_of_parts(chosen, tasks, engine)


def _texts_of_parts(chosen: Sample, tasks: Sequence[Task], engine: Engine) -> list[str]:
    rows = chosen.by_part()
    wanted = [tuple((number, path, rows[number]) for number, path in task if number in rows) for task in tasks]
    texts: dict[tuple[int, int], str] = {}
    for found in engine.mapped(read_texts, [task for task in wanted if task]):
        texts |= found
    return chosen.in_order(texts)


def _sampled(chosen: Sample, texts: Sequence[str], encoder: Encoder | None) -> dict[str, Feature]:
    """Count words of the sample by hash, and keep those of its first conversations in order."""
    hashes = [[word_hash(word) for word in words(text)] for text in texts]
    counts_RB = np.zeros((owners.ROWS, BUCKETS), np.int64)  # a sample is too small to count its days
    for group, row in zip(chosen.groups.tolist(), hashes, strict=True):
        counts_RB[group] += np.bincount(np.array(row, np.int64) % BUCKETS, minlength=BUCKETS)
    vocabulary = Feature(
        kind="category",
        group="input",
        statistic="total_variation",
        n=len(hashes),
        values=[str(number) for number in range(BUCKETS)],
    )
    rows = [" ".join(map(str, row[:WORDS])) for row in hashes[:PHRASES]]
    phrasing = Feature(kind="text", group="input", statistic="classifier_auc", n=len(rows), sample=rows)
    found = {"vocabulary": vocabulary.model_copy(update=owners.fields(counts_RB)), "phrasing": phrasing}
    if encoder:
        meaning = Feature(
            kind="embedding",
            group="input",
            statistic="mmd",
            n=len(rows),
            sample=encoder.encoded(texts[:PHRASES]),
            model=encoder.name,
        )
        found["meaning"] = meaning
    return found


def _encoder(plan: Plan) -> Encoder | None:
    if plan.embedder is None:
        return None
    from rft.drift import encoder  # imported only here, because it loads torch

    return encoder.load(plan.embedder)
