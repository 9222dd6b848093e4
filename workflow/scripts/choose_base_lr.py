"""Compares the base learning rates of a sweep by the accuracy of their tail averages on the development panel."""

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from dosematch.cli import run
from dosematch.records import read_json, read_jsonl, write_text


def main(
    curves: Annotated[list[Path], typer.Argument(help="development curves, each beside its train_meta.json")],
    out: Annotated[Path, typer.Option()],
) -> None:
    """Write one row per rate, mean over seeds, the best first; of equal rates the smaller one."""
    finals = []
    for path in curves:
        meta, last = read_json(path.with_name("train_meta.json")), read_jsonl(path)[-1]
        finals.append({"base_lr": meta["base_lr"], "seed": meta["seed"], "accuracy": last["accuracy"]})
    table = pd.DataFrame(finals).pivot(index="base_lr", columns="seed", values="accuracy").add_prefix("seed")
    table.insert(0, "mean_accuracy", table.mean(axis=1))
    table = table.reset_index().sort_values(["mean_accuracy", "base_lr"], ascending=[False, True])
    write_text(out, table.to_csv(index=False))
    print(table.to_string(index=False))


if __name__ == "__main__":
    run(main)
