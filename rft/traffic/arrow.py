"""Arrow's functions on columns. They are made when the module is loaded, so that no type checker
knows their names; here they have one place and no type."""

from __future__ import annotations

from typing import Any

import pyarrow.compute

pc: Any = pyarrow.compute
