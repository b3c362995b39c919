"""GPUs for each job with the largest sum of values: a dynamic program over the jobs.

Saxena et al., MASCOTS 2020. With P(j, K) the most that the first j jobs make of K GPUs,

    P(j, K) = max over k of P(j - 1, K - k) + value[j, k]

which takes jobs x GPUs x choices steps, and does not need gains that shrink with the number of GPUs. Values
are counted in steps of 2^-24, so that sums which are equal in truth compare as equal on every CPU.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NEVER = -(1 << 50)  # the worth of what cannot be: below any sum of values
SCALE = float(1 << 24)


def largest_sum(values: Floats, capacity: int) -> Ints | None:
    """The GPUs of each job; values[j, k] is what job j makes of k, and -inf if it does not run with k.

    None: there are too few GPUs for all jobs. Of equal sums, later jobs have fewer, and no job has GPUs that
    are worth nothing to it.

    >>> largest_sum(np.array([[-np.inf, 1.0, 1.9, 2.7], [-np.inf, 1.0, 1.2, 1.3]]), 4).tolist()
    [3, 1]
    """
    jobs, choices = values.shape
    worth = np.where(np.isfinite(values), np.rint(values * SCALE), NEVER).astype(np.int64)
    before = np.full(choices - 1 + capacity + 1, NEVER, dtype=np.int64)  # NEVER with less than 0 GPUs
    before[choices - 1 :] = 0
    chosen = np.zeros((jobs, capacity + 1), dtype=np.int64)
    for job in range(jobs):
        sums = sliding_window_view(before, choices)[:, ::-1] + worth[job]  # [K, k]: k for this job
        chosen[job] = sums.argmax(axis=1)
        before[choices - 1 :] = np.maximum(sums.max(axis=1), NEVER)
    if before[-1] < 0:
        return None
    shares, left = np.zeros(jobs, dtype=np.int64), capacity
    for job in reversed(range(jobs)):
        shares[job] = chosen[job, left]
        left -= int(shares[job])
    return shares
