"""What pyright sees of transformers: that it is there.

Without this file it reads 2,700 files for our twenty imports of it, a third of its time.
"""

from typing import Any

def __getattr__(name: str) -> Any: ...
