"""Arrow's functions on columns. pyarrow makes them when it is loaded, so type checkers do not know
their names. Here they have one place and no type."""

from __future__ import annotations

from typing import Any

import pyarrow.compute

pc: Any = pyarrow.compute
