"""Question-cluster bootstrap of paired differences (thinker-spec 13)."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

CHUNK_ELEMENTS = 1 << 18  # drawn indices held at once: 2 MiB, which stays in the cache of a core
FLOAT32_EXACT = 1 << 24  # float32 counts whole numbers exactly up to here


def cluster_weights(clusters: int, resamples: int, rng_seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield chunks [rows, clusters] of the multinomial weight matrix [resamples, clusters].

    Each row says how often each cluster is drawn when `clusters` of them are drawn with replacement, unstratified.
    The matrix depends on the three arguments alone, not on how it is cut into chunks.
    """
    rng = np.random.default_rng(rng_seed)
    rows_per_chunk = max(1, CHUNK_ELEMENTS // clusters)
    for start in range(0, resamples, rows_per_chunk):
        rows = min(rows_per_chunk, resamples - start)
        drawn = rng.integers(clusters, size=(rows, clusters))
        drawn += np.arange(0, rows * clusters, clusters)[:, None]  # one bincount then serves all rows
        yield np.bincount(drawn.ravel(), minlength=rows * clusters).reshape(rows, clusters)


def bootstrap_sums(differences: NDArray[np.integer], resamples: int, rng_seed: int) -> NDArray[np.float64]:
    """Sums of resampled cluster differences, whole numbers: float64 [resamples, contrasts].

    `differences` is int [contrasts, clusters], all seeds of a question summed, so that they travel together. All
    contrasts share one weight matrix and one matrix product per chunk. Raises `ValueError` when there is no cluster.
    """
    clusters = differences.shape[1]
    if clusters == 0:
        raise ValueError("the bootstrap needs at least one cluster")
    bound = clusters * int(np.abs(differences).max(initial=0))
    columns = np.ascontiguousarray(differences.T, dtype=np.float32 if bound < FLOAT32_EXACT else np.float64)
    chunks = (weights.astype(columns.dtype) @ columns for weights in cluster_weights(clusters, resamples, rng_seed))
    return np.concatenate(list(chunks)).astype(np.float64)


def percentile_intervals(
    differences: NDArray[np.integer], seeds: int, resamples: int, rng_seed: int, level: float
) -> NDArray[np.float64]:
    """Percentile intervals of `100 * sum(difference) / N` in percentage points: float64 [contrasts, 2].

    `differences` int [contrasts, clusters] sums the paired differences of `seeds` seeds, so `N = seeds * clusters`;
    `level` is the coverage, 0.95 for 2.5 % to 97.5 %, by `numpy.percentile` with linear interpolation.
    """
    statistics = 100.0 * bootstrap_sums(differences, resamples, rng_seed) / (seeds * differences.shape[1])
    tail = 50.0 * (1.0 - level)
    return np.percentile(statistics, [tail, 100.0 - tail], axis=0, method="linear").T
