"""The traffic report: a window of production conversations, and how they are distributed."""

from __future__ import annotations

from typing import Any, Literal

from rft.reports.base import Report, added


class Conversation(Report):
    """One production conversation, normalized. `feedback` is a person's corrected answer, if there
    is one."""

    conversation_id: str
    time: str  # ISO 8601, UTC
    messages: list[dict[str, Any]]
    latency_s: float | None = None  # None: not logged
    tool_errors: int | None = None
    feedback: Any | None = None
    unit: str | None = added(None)  # who `traffic.unit` says it belongs to


FeatureGroup = Literal["input", "agent", "performance"]
Statistic = Literal["wasserstein_sd", "psi", "total_variation", "classifier_auc", "mmd"]


class Feature(Report):
    """One column of a profile, as counts over bins.

    Numeric: inner `edges`, and one more count than edges. Category: `values` with their counts.
    Text: a `sample` of conversations, each as hashes of its words. Embedding: a `sample`, each as
    base64 of little-endian float16. `n` conversations had a value, `nulls` had none.

    `cells` are the counts per group of units (rft/traffic/schema.py), from which noise is drawn:
    for each group, alternately a bin and its count. They are empty in a profile of an earlier
    version; then every conversation counts as its own unit. `days` are the same per day. They show
    how a window differs from itself, and are empty where all conversations are from one day.
    """

    kind: Literal["numeric", "category", "text", "embedding"]
    group: FeatureGroup
    statistic: Statistic
    counts: list[int] = []
    edges: list[float] = []
    values: list[str] = []
    cells: list[list[int]] = added([])
    days: list[list[int]] = added([])
    sample: list[str] = []
    model: str = added("")  # of an embedding
    mean: float | None = None
    sd: float | None = None
    n: int
    nulls: int = 0


class Profile(Report):
    """The distribution of a window of traffic, or of the examples that a champion was trained
    on."""

    source: str
    num_conversations: int
    features: dict[str, Feature]


class Source(Report):
    """One file of a log, as it was ingested."""

    name: str
    format: str
    sha256: str  # of its bytes as they lie there, compressed or not
    num_bytes: int
    num_rows: int  # lines, or records


class Part(Report):
    """One Parquet file of a snapshot."""

    name: str
    sha256: str
    num_rows: int


class Unread(Report):
    """A line or record that is not a conversation, and why."""

    source: str
    line: int
    why: str


class Manifest(Report):
    """What a snapshot holds, and what it leaves out of its log.

    `sha256` names the log: the hash of its one file, or of the list of names and hashes.
    `rejected`, `ignored_keys` and `redacted` count rows by reason, key and rule. `unread` names the
    first unreadable ones.
    """

    sources: list[Source]
    parts: list[Part]
    sha256: str
    unit: str | None = None
    columns: dict[str, str] = {}
    first: str = ""
    last: str = ""
    num_rows: int
    num_conversations: int
    num_with_feedback: int
    rejected: dict[str, int] = {}
    unread: list[Unread] = []
    ignored_keys: dict[str, int] = {}
    redacted: dict[str, int] = {}


class TrafficReport(Report):
    source: str
    sha256: str
    first: str
    last: str
    num_rows: int
    num_conversations: int
    num_with_feedback: int
    rejected: dict[str, int] = {}  # reason -> rows, none silently
    unread: list[Unread] = added([])  # the first of them
    ignored_keys: dict[str, int] = {}  # key that the format does not know -> rows
    redacted: dict[str, int] = added({})  # rule of traffic.redact -> what it replaced
    sources: list[Source] = added([])
    snapshot_sha256: str = added("")  # of the manifest that the run read
    reference: str = ""  # whose profile the window is compared with
