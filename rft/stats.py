"""Compute intervals over examples with several rollouts each.

The intervals are of means, paired gains, quantiles and ratios. A gate that trusts a number without
an interval promotes noise. Ours come from a seeded bootstrap on numpy alone. The data have two
levels: examples, which differ in difficulty, and rollouts of one example, which differ because the
policy samples. These rules hold throughout:

- *None is unscored*, not zero: it is left out, and an example without any score is dropped (`n`
  counts those that are left).
- Every example weighs the same, whatever the number of its scored rollouts.
- *Two levels.* A mean is bootstrapped by drawing examples and then rollouts within them. Done
  naively, that counts the rollouts' noise twice, because an example's observed mean already holds
  it. So the spread between examples is shrunk by what the second level adds (Davison and Hinkley
  1997, section 3.8). For quantiles and ratios of pooled rollouts, whole examples are drawn, with
  all their rollouts.
- *Far tails.* 2,000 draws say little about the ends at a one-sided level below 1 %. So the gate's
  question has Student's interval on the differences of example means, which hold the noise of both
  levels.
- *Paired.* Two arms are compared on the same examples, matched by id. Differing ids are an error,
  not an intersection.
- *Seeds are crossed with examples.* Every seed of training has the same examples, so
  `gain_over_seeds` draws both independently. With few seeds the interval is right about examples
  and too narrow about seeds; the factor sqrt(S / (S - 1)) corrects a part of that.
- The order of examples and of rollouts never matters, to the last bit: rows are sorted first, and
  no sum goes through a threaded library.

Quantiles are nearest-rank (an observed value), so that P95 of a count is a count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rft.types import Metric

Scores = Sequence[float | None]
"""The rollouts of one example; None = unscored."""
ById = Mapping[str, Scores]
Floats = NDArray[np.float64]

NUM = 2000
CONFIDENCE = 0.95
_CHUNK = 2_000_000  # values drawn at a time: bounds memory at some tens of MB whatever the number of examples


# -- means and paired gains ------------------------------------------------------------------------
def mean_interval(rows: Iterable[Scores], num: int = NUM, seed: int = 0, confidence: float = CONFIDENCE) -> Metric:
    """Average over examples the means over their rollouts. `mean_interval([[1.0, 0.0], [None,
    1.0]]).value == 0.75`."""
    return _gain([(scores, ()) for row in rows if (scores := _scored(row))], num, seed, confidence)


def paired_gain(a: ById, b: ById, num: int = NUM, seed: int = 0, confidence: float = CONFIDENCE) -> Metric:
    """Compute mean(a) - mean(b) over the examples with a score in both arms."""
    return _gain(_pairs(a, b), num, seed, confidence)


def gain_over_seeds(
    seeds: Sequence[tuple[ById, ById]], num: int = NUM, seed: int = 0, confidence: float = CONFIDENCE
) -> Metric:
    """Average the paired gains of several trainings, each an (a, b) on the same examples. `n`
    counts seeds x examples."""
    scored = [{id for id in a if _scored(a[id]) and _scored(b[id])} for a, b in map(_same_ids, seeds)]
    ids = sorted(id for id in scored[0] if all(id in other for other in scored)) if scored else []
    if not ids:
        raise ValueError("no example has a score in both arms of every seed")
    gains = np.array([[_mean(a[id]) - _mean(b[id]) for id in ids] for a, b in seeds])
    value = float(gains.mean())
    num_seeds, num_examples = gains.shape
    if num_seeds > 1:
        gains = gains + (math.sqrt(num_seeds / (num_seeds - 1)) - 1) * (gains.mean(axis=1, keepdims=True) - value)
    rng = np.random.default_rng(seed)
    replicates = [
        gains[rng.integers(num_seeds, size=num_seeds)][:, rng.integers(num_examples, size=num_examples)].mean()
        for _ in range(num)
    ]
    return _metric(value, np.array(replicates), confidence, gains.size)


# -- example means alone ---------------------------------------------------------------------------
def t_gain(a: ById, b: ById, confidence: float = CONFIDENCE) -> Metric:
    """Compute mean(a) - mean(b), with Student's interval on the differences of example means. A
    single example has no interval."""
    gains = paired_differences(a, b)
    _need(gains.tolist())
    value, n = math.fsum(gains) / len(gains), len(gains)
    if n == 1:
        return Metric(value=value, n=1)
    low, high = t_interval(gains, confidence)
    return Metric(value=value, low=min(low, value), high=max(high, value), n=n)


def paired_differences(a: ById, b: ById) -> Floats:
    """Compute mean(a) - mean(b) of each example with a score in both arms, in order of size."""
    _same_ids((a, b))
    return np.array(sorted(_mean(a[id]) - _mean(b[id]) for id in a if _scored(a[id]) and _scored(b[id])))


def t_interval(values: Floats, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Compute Student's interval of the mean of at least two values."""
    mean, error = _mean_and_error(values)
    half = t_quantile((1 - confidence) / 2, len(values) - 1) * error
    return mean - half, mean + half


def t_below(values: Floats, limit: float) -> float:
    """Test that the mean lies below a limit: the one-sided p-value of Student's t for at least two
    values."""
    from scipy.special import stdtr

    mean, error = _mean_and_error(values)
    if error == 0:
        return 1.0 if mean >= limit else 0.0
    return float(stdtr(len(values) - 1, (mean - limit) / error))


def t_quantile(level: float, freedom: int) -> float:
    """Return how many standard errors a one-sided level is away. `t_quantile(0.025, 95)` is
    1.985."""
    from scipy.special import stdtrit

    return float(-stdtrit(freedom, level))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values of several tests so that comparing each with a level keeps the chance of any
    false one at that level. `holm([0.01, 0.04, 0.03]) == [0.03, 0.06, 0.06]`."""
    adjusted, reached = [0.0] * len(p_values), 0.0
    for step, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        reached = max(reached, min(1.0, (len(p_values) - step) * p_values[i]))
        adjusted[i] = reached
    return adjusted


# -- pooled rollouts -------------------------------------------------------------------------------
def quantile_interval(
    rows: Iterable[Scores], q: float, num: int = NUM, seed: int = 0, confidence: float = CONFIDENCE
) -> Metric:
    """Compute a quantile over all rollouts, `q` in [0, 1]."""
    kept = sorted(scores for row in rows if (scores := _scored(row)))
    _need(kept)
    weights = _weights(len(kept), num, seed)
    return _metric(percentile([x for row in kept for x in row], q), _quantiles(kept, weights, q), confidence, len(kept))


def quantile_difference(
    a: ById, b: ById, q: float = 0.95, num: int = NUM, seed: int = 0, confidence: float = CONFIDENCE
) -> Metric:
    """Compute the quantile of a's rollouts minus that of b's, drawing examples in pairs."""
    pairs = _pairs(a, b)
    weights = _weights(len(pairs), num, seed)
    value = percentile([x for row, _ in pairs for x in row], q) - percentile([x for _, row in pairs for x in row], q)
    replicates = _quantiles([row for row, _ in pairs], weights, q) - _quantiles([row for _, row in pairs], weights, q)
    return _metric(value, replicates, confidence, len(pairs))


def relative_difference(a: ById, b: ById, num: int = NUM, seed: int = 0, confidence: float = CONFIDENCE) -> Metric:
    """Compute mean(a) / mean(b) - 1, drawing examples in pairs. Raises ValueError when b's mean is
    zero."""
    pairs = _pairs(a, b)
    means = np.array([(_mean(x), _mean(y)) for x, y in pairs])
    total = means.sum(axis=0)
    if total[1] == 0:
        raise ValueError("relative to a mean of zero")
    rng = np.random.default_rng(seed)
    drawn = np.array([means[rng.integers(len(pairs), size=len(pairs))].sum(axis=0) for _ in range(num)])
    drawn = drawn[drawn[:, 1] != 0]
    return _metric(float(total[0] / total[1] - 1), drawn[:, 0] / drawn[:, 1] - 1, confidence, len(pairs))


def percentile(values: Iterable[float], q: float) -> float:
    """Find the smallest observed value that a share `q` of all do not exceed (nearest rank).
    `percentile([1, 2, 3, 9], 0.95) == 9`."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("a percentile of nothing")
    return float(ordered[_rank(q, len(ordered)) - 1])


# -- shares, best of k, power ----------------------------------------------------------------------
def exact_interval(count: int, n: int, confidence: float = CONFIDENCE) -> Metric:
    """Compute Clopper and Pearson's interval of a share. At any n, each end misses the true share
    with a probability of at most (1 - confidence) / 2."""
    if not 0 <= count <= n or n == 0:
        raise ValueError(f"{count} of {n} is not a share")

    def upper(count: int) -> float:
        if count == 0:
            return limit_of_none(n, confidence)
        if count == n:
            return 1.0
        from scipy.stats import beta  # takes a second to load, and most decisions do not need it

        return float(beta.ppf((1 + confidence) / 2, count + 1, n - count))

    return Metric(value=count / n, low=1 - upper(n - count), high=upper(count), n=n)


def limit_of_none(n: int, confidence: float = CONFIDENCE) -> float:
    """Compute the upper end of `exact_interval(0, n)`: the largest share that is possible after
    none of n. `limit_of_none(288)` is 0.0127."""
    return -math.expm1(math.log((1 - confidence) / 2) / n)


def enough_to_rule_out(share: float, confidence: float = CONFIDENCE) -> int | None:
    """Find the smallest n for which `exact_interval(0, n)` ends at or below this share. None: for a
    share of zero, or next to it, no n is enough."""
    if share < 1e-12:
        return None
    near = 1 if share >= 1 else math.ceil(math.log((1 - confidence) / 2) / math.log1p(-share))
    found = (n for n in (near - 1, near) if n > 0 and limit_of_none(n, confidence) <= share)
    return next(found, near + 1)  # the quotient may be rounded either way


def shares(rows: Iterable[Sequence[bool | None]]) -> dict[str, float]:
    """Compute the shares of examples that are always failed, always solved, or mixed; None =
    unscored. RFT learns from the mixed ones."""
    kept = [scored for row in rows if (scored := [x for x in row if x is not None])]
    _need(kept)
    n, failed, solved = len(kept), sum(not any(row) for row in kept), sum(all(row) for row in kept)
    return {"always_failed": failed / n, "always_solved": solved / n, "mixed": (n - failed - solved) / n}


def max_at_k(rows: Iterable[Scores], ks: Iterable[int]) -> list[tuple[int, float]]:
    """Average over examples the expected best of k rollouts: `max_at_k([[0.0, 1.0]], [1, 2]) ==
    [(1, 0.5), (2, 1.0)]`.

    The estimate is unbiased: of all C(n, k) ways to choose k of an example's n scores, the i-th
    smallest is the best in C(i-1, k-1). An example with fewer than k scores counts with its best,
    which keeps the curve monotone.
    """
    kept = [sorted(scores) for row in rows if (scores := _scored(row))]
    _need(kept)
    return [(k, math.fsum(_best_of(row, min(k, len(row))) for row in kept) / len(kept)) for k in ks]


def minimum_detectable(se: float, power: float = 0.8, confidence: float = CONFIDENCE) -> float:
    """Compute the smallest true effect that an interval with this standard error separates from
    zero with this power."""
    normal = NormalDist()
    return (normal.inv_cdf((1 + confidence) / 2) + normal.inv_cdf(power)) * se


def standard_error(metric: Metric, confidence: float = CONFIDENCE) -> float:
    """Recover the standard error from the width of the interval."""
    if metric.low is None or metric.high is None:
        raise ValueError("a metric without an interval has no standard error")
    return (metric.high - metric.low) / (2 * NormalDist().inv_cdf((1 + confidence) / 2))


# -- the machine -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Padded:
    """Ragged rows as a matrix; row i holds `counts[i]` values, then zeros."""

    values: Floats
    counts: NDArray[np.int64]
    means: Floats
    noise: Floats  # variance that redrawing a row's rollouts adds to its mean

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[float]]) -> _Padded:
        counts = np.array([len(row) for row in rows], dtype=np.int64)
        values = np.zeros((len(rows), max(1, int(counts.max()))))
        for i, row in enumerate(rows):
            values[i, : len(row)] = row
        safe = np.maximum(counts, 1)
        means = values.sum(axis=1) / safe
        present: NDArray[np.bool_] = np.arange(values.shape[1]) < counts[:, None]
        deviations = np.where(present, values - means[:, None], 0.0)
        variance = (deviations**2).sum(axis=1) / safe
        return cls(values, counts, means, variance / safe)

    def redrawn(self, examples: NDArray[np.int64], rng: np.random.Generator) -> Floats:
        """Redraw the rollouts of each drawn example; return their mean minus the example's."""
        width = self.values.shape[1]
        if width == 1:
            return np.zeros(examples.shape)
        counts: NDArray[np.int64] = np.maximum(self.counts[examples], 1)
        picks = (rng.random((*examples.shape, width)) * counts[..., None]).astype(np.int64)
        drawn: Floats = self.values[examples[..., None], picks]
        drawn[np.arange(width) >= counts[..., None]] = 0.0
        return drawn.sum(axis=-1) / counts - self.means[examples]


def _gain(pairs: Sequence[tuple[Sequence[float], Sequence[float]]], num: int, seed: int, confidence: float) -> Metric:
    """Bootstrap mean(a) - mean(b), where an empty b is zero. The essay explains the shrinkage."""
    _need(pairs)
    pairs = sorted(pairs)
    n = len(pairs)
    a, b = _Padded.from_rows([row for row, _ in pairs]), _Padded.from_rows([row for _, row in pairs])
    gains = a.means - b.means
    value = math.fsum(gains) / n
    noise, between = float((a.noise + b.noise).mean()), float(gains.var())
    keep = math.sqrt(max(0.0, n / max(1, n - 1) - noise / between)) if between > 0 else 0.0
    centres = value + keep * (gains - value)
    rng_examples, rng_a, rng_b = (np.random.default_rng([seed, stream]) for stream in range(3))
    chunk = max(1, _CHUNK // (n * max(a.values.shape[1], b.values.shape[1])))
    replicates: list[Floats] = []
    for start in range(0, num, chunk):
        examples = rng_examples.integers(n, size=(min(chunk, num - start), n))
        replicates.append((centres[examples] + a.redrawn(examples, rng_a) - b.redrawn(examples, rng_b)).mean(axis=1))
    return _metric(value, np.concatenate(replicates), confidence, n)


def _mean_and_error(values: Floats) -> tuple[float, float]:
    n = len(values)
    mean = math.fsum(values) / n
    return mean, math.sqrt(math.fsum((values - mean) ** 2) / (n - 1) / n)


def _metric(value: float, replicates: Floats, confidence: float, n: int) -> Metric:
    low, high = np.quantile(replicates, [(1 - confidence) / 2, (1 + confidence) / 2])
    # A constant sample may miss its own mean by a rounding error.
    return Metric(value=value, low=min(float(low), value), high=max(float(high), value), n=n)


def _weights(n: int, num: int, seed: int) -> Floats:
    """Count how often each of n examples is drawn, in each of num replicates."""
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=num).astype(np.float64)


def _quantiles(rows: Sequence[Sequence[float]], weights: Floats, q: float) -> Floats:
    """Compute a nearest-rank quantile of the pooled rollouts for each replicate. It sums whole
    numbers only, so it is exact in any order."""
    values, inverse = np.unique(np.array([x for row in rows for x in row], dtype=np.float64), return_inverse=True)
    histogram = np.zeros((len(rows), len(values)))
    np.add.at(histogram, (np.repeat(np.arange(len(rows)), [len(row) for row in rows]), inverse.ravel()), 1)
    reached = np.cumsum(weights @ histogram, axis=1)
    ranks = np.maximum(1, np.ceil(np.round(q * reached[:, -1], 9)))
    return values[(reached >= ranks[:, None]).argmax(axis=1)]


def _rank(q: float, n: int) -> int:
    if not 0 <= q <= 1:
        raise ValueError(f"a quantile of {q}: give a share between 0 and 1")
    return max(1, math.ceil(round(q * n, 9)))


def _best_of(ordered: Sequence[float], k: int) -> float:
    n = len(ordered)
    return math.fsum(x * (math.comb(i, k - 1) / math.comb(n, k)) for i, x in enumerate(ordered))


def _pairs(a: ById, b: ById) -> list[tuple[tuple[float, ...], tuple[float, ...]]]:
    _same_ids((a, b))
    pairs = [(x, y) for id in sorted(a) if (x := _scored(a[id])) and (y := _scored(b[id]))]
    _need(pairs)
    return sorted(pairs)


def _same_ids(arms: tuple[ById, ById]) -> tuple[ById, ById]:
    a, b = arms
    if differing := set(a) ^ set(b):
        raise ValueError(
            f"two arms must hold the same examples; {len(differing)} are in one only, such as {min(differing)!r}"
        )
    return arms


def _scored(row: Scores) -> tuple[float, ...]:
    return tuple(sorted(float(x) for x in row if x is not None))


def _mean(row: Scores) -> float:
    scores = _scored(row)
    return math.fsum(scores) / len(scores)


def _need(rows: Sequence[object]) -> None:
    if not rows:
        raise ValueError("no example has a score: there is nothing to estimate")
