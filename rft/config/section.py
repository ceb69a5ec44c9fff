"""The base of all sections of params.yaml: frozen, and an unknown key is an error.

A key that came in a later version is written down only where it is set (`Grown`). So the settings
of a run that does not use the key stay the same, byte for byte. No stage runs again because of it,
and the thresholds and looks in a ledger still match.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer


class Section(BaseModel):
    # Most of our processes read few sections. To build all of them would take 50 ms.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Grown(Section):
    """A section that got new keys after version 0.1."""

    LATER: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _without_unset(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        unset = {
            key
            for key in self.LATER
            if getattr(self, key) == type(self).model_fields[key].get_default(call_default_factory=True)
        }
        return {key: value for key, value in write(self).items() if key not in unset}
