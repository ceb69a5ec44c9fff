"""The figure of the grader: how many of the scripted cheats does it accept?"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.measure import Figure, Part

ROOT = Path(__file__).resolve().parents[1]


def icd10_exploits(args: list[str]) -> Figure:
    """Exploits that recipes/icd10's grader accepts, of at least 12 that were tried, with real tools
    and the real grader."""
    from rft import config, recipe
    from rft.grading.preflight import preflight

    params = config.load(ROOT / "params.yaml")
    results = preflight(params, recipe.load(config.Recipe(path=str(ROOT / "recipes" / "icd10")))).exploits
    for result in results:
        print(
            f"{'ACCEPTED' if result.accepted else 'refused':9}{result.mean_score:7.3f}  limit {result.limit:.3f}  "
            f"{result.name}",
            file=sys.stderr,
        )
    accepted = [result.name for result in results if result.accepted]
    parts = (
        Part("exploits accepted", len(accepted), "exploits", at_most=0, n=len(results), reason=", ".join(accepted)),
        Part("exploits tried", len(results), "exploits", at_least=12),
    )
    return Figure(parts)


FIGURES = {"icd10_exploits": icd10_exploits}
