"""The base of all sections of params.yaml: frozen, and an unknown key is an error."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    # Most processes of ours read a few sections: the others are never built, which takes 50 ms.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
