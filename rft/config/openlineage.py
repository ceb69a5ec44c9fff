"""`run.openlineage`: where a run's lineage events go while it goes on.

To a file or to a server, one of the two. As everywhere, a secret is named (`env:NAME`) and never
written out, and mistakes that can be seen here are errors before a run begins: later, an event that
is not taken is only a line on the console.
"""

from __future__ import annotations

from pydantic import field_validator, model_validator

from rft import secrets
from rft.config.notify import check_url
from rft.config.section import Section


class OpenLineage(Section):
    """Where OpenLineage events of a run go: its beginning and end, and those of each stage with
    what it read and wrote. A receiver that fails never fails a run."""

    file: str | None = None
    """File to which each event is appended as a line of JSON, relative to the clone. Set either
    `file` or `url`."""
    url: str | None = None
    """Address to which each event is posted, such as http://marquez:5000/api/v1/lineage; `env:NAME`
    where the address itself is secret."""
    headers: dict[str, str] = {}
    """Static headers for `url`. A value `env:NAME` is read from the environment and never written
    down."""

    @field_validator("url")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value is not None and not secrets.VARIABLE.fullmatch(value):
            check_url(value)
        return value

    @model_validator(mode="after")
    def _where(self) -> OpenLineage:
        if (self.file is None) == (self.url is None):
            raise ValueError("set either file or url")
        if self.file is not None and not self.file.strip():
            raise ValueError("name a file, such as .rft/openlineage.ndjson")
        if self.headers and self.url is None:
            raise ValueError("headers are sent to a url, and there is none")
        return self
