"""`run.openlineage`: where a run's lineage events go while it works.

They go to a file or to a server. As everywhere, params.yaml names a secret (`env:NAME`) and never
holds it. Mistakes that can be seen here are errors before a run begins. Later, an event that the
receiver refuses is only a line on the console.
"""

from __future__ import annotations

from pydantic import field_validator, model_validator

from rft import secrets
from rft.config.notify import check_url
from rft.config.section import Section


class OpenLineage(Section):
    """Where OpenLineage events of a run go. They tell when the run and each stage begin and end,
    and what a stage read and wrote. A failure of the receiver never fails a run."""

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
