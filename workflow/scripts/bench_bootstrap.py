"""Benchmark of the question-cluster bootstrap against scipy.stats.bootstrap at the study's size."""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when numpy loads; scipy's resampling takes one thread as well

import platform
from functools import partial
from pathlib import Path
from statistics import median
from timeit import timeit
from typing import Annotated

import numpy as np
import scipy
from numpy.typing import NDArray
from typer import Option

from dosematch.cli import run
from dosematch.records import write_json
from dosematch.statistics.bootstrap import percentile_intervals

VALUES, SHARES = [-2, -1, 0, 1, 2], [0.01, 0.06, 0.86, 0.06, 0.01]  # paired differences of two seeds, as in the study
TARGET = 50  # times faster than scipy
BATCHES = {"scipy_default": None, "scipy_batch_100": 100}  # 100 rows stay in cache: the fastest setting found for scipy


def main(
    out: Annotated[Path, Option(help="JSON to write")],
    contrasts: int = 60,
    clusters: int = 2590,
    seeds: int = 2,
    resamples: int = 4000,
    runs: Annotated[int, Option(help="paired runs: each times all of ours, then some of scipy's")] = 9,
    subset: Annotated[int, Option(help="contrasts timed with scipy per run; its time is scaled to all")] = 3,
) -> None:
    """Time both on the same made-up contrasts in one process, in turn, and write medians and ratios."""
    data = np.random.default_rng(1).choice(VALUES, (contrasts, clusters), p=SHARES)
    percentile_intervals(data, seeds, 10, 0, 0.95)  # first calls load libraries; that is not what is timed
    times: dict[str, list[float]] = {"ours": [], **{name: [] for name in BATCHES}}
    for _ in range(runs):
        times["ours"].append(timeit(lambda: percentile_intervals(data, seeds, resamples, 0, 0.95), number=1))
        for name, batch in BATCHES.items():
            spent = timeit(partial(scipy_intervals, data[:subset], seeds, resamples, batch), number=1)
            times[name].append(spent * contrasts / subset)
    ratios = {name: median(b / a for a, b in zip(times["ours"], times[name], strict=True)) for name in BATCHES}
    record = {
        "sizes": {"contrasts": contrasts, "clusters": clusters, "seeds": seeds, "resamples": resamples},
        "protocol": f"{runs} paired runs in one process; scipy timed on {subset} contrasts per run and scaled to all",
        "threads": 1,
        "median_seconds": {name: median(values) for name, values in times.items()},
        "median_ratio_to_ours": ratios,
        "target_ratio": TARGET,
        "target_met": ratios["scipy_default"] >= TARGET,
        "load_average": os.getloadavg()[0],
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__},
    }
    write_json(out, record)
    print(f"{out}: median seconds {record['median_seconds']}, ratios {ratios}")


def scipy_intervals(data: NDArray[np.int64], seeds: int, resamples: int, batch: int | None) -> None:
    """The same statistic by scipy, vectorised, percentile interval; one call per contrast."""
    for row in data.astype(float):
        scipy.stats.bootstrap(
            (row,),
            lambda sample, axis: 100 / seeds * sample.mean(axis=axis),
            n_resamples=resamples,
            method="percentile",
            batch=batch,
            rng=np.random.default_rng(0),
        )


if __name__ == "__main__":
    run(main)
