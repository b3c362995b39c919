"""The yardstick: a million random tuples pushed on a heap and popped again."""

from __future__ import annotations

import heapq
import random
import time


def heap_seconds(count: int = 1_000_000) -> float:
    """CPU seconds of the plain loop."""
    dice = random.Random(1)
    began = time.process_time()
    heap: list[tuple[float, int]] = []
    for i in range(count):
        heapq.heappush(heap, (dice.random(), i))
    while heap:
        heapq.heappop(heap)
    return time.process_time() - began
