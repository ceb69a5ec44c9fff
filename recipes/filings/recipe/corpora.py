"""The filings of a run's options: invented ones (statements.py), or your CSV files (tables.py)."""

from __future__ import annotations

import functools
import json
from typing import Any

from . import names, tables
from .filings import Corpus, Entry, Filing
from .options import Options
from .printing import pages
from .statements import Profile, forms, profile, reports, shown_by


def corpus(options: Options) -> Corpus:
    """Return the filings of these options. Raises UserError for CSV files that cannot be read."""
    return _corpus(json.dumps(options.of_filings(), sort_keys=True))


@functools.lru_cache(maxsize=8)
def _corpus(settings: str) -> Corpus:
    options = Options.model_validate_json(settings)
    return _invented(options) if options.folder is None else tables.corpus(options)


def corpus_of(item: dict[str, Any]) -> Corpus:
    """Return the filings that a row is about."""
    metadata = item.get("metadata") or {}
    found = corpus(Options.model_validate(metadata.get("options") or {}))
    if found.sha256 != metadata.get("sha256", ""):
        raise ValueError(
            "the CSV files changed since the examples were made from them. Run the stage `examples` again."
        )
    return found


def _invented(options: Options) -> Corpus:
    families = names.families(options.companies, options.near_duplicate_share)
    entries: list[Entry] = []
    docs: dict[str, list[str]] = {}
    profiles: dict[str, Profile] = {}
    for name in families:
        profiles[name] = profile(name, options)
        docs[name] = []
        for period, form in forms(profiles[name]):
            doc = f"10K-{100_000 + (len(entries) * 611_953 + 7919) % 900_000}"
            docs[name].append(doc)
            entries.append(Entry(doc, name, period, form))

    def make(company: str) -> tuple[Filing, ...]:
        known = profiles[company]
        made: list[Filing] = []
        for doc, (period, form), report in zip(docs[company], forms(known), reports(known), strict=True):
            made.append(Filing(doc, company, period, form, pages(known, report, form, options)))
        return tuple(made)

    items = (item for shown in shown_by(options).values() for item in shown)
    return Corpus(entries, make, families, tuple(dict.fromkeys(items)))
