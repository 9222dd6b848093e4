"""Draw Figures 1 and 2 and the training curves of a study as SVG and PNG."""

from pathlib import Path
from typing import Annotated

from typer import Option

from dosematch.cli import run
from dosematch.errors import UserError
from dosematch.records import read_json, read_jsonl
from dosematch.reporting.figures import figure1, figure2, save, training_curves


def main(
    summary: Annotated[Path, Option(help="summary.json of compare_arms.py")],
    out_dir: Annotated[Path, Option(help="folder for {figure1,figure2,training_curves}.{svg,png}")],
    curves: Annotated[list[Path] | None, Option(help="arms/ARM/seedS/val500_curve.jsonl; repeat the option")] = None,
    training: Annotated[list[Path] | None, Option(help="training.jsonl of one arm and seed; repeat the option")] = None,
) -> None:
    """Draw all figures."""
    record = read_json(summary)
    measured = {run_of(path): read_jsonl(path) for path in curves or []}
    figures = {
        "figure1": figure1(record),
        "figure2": figure2(record, [row for path in training or [] for row in read_jsonl(path)]),
        "training_curves": training_curves(measured, record["arm_order"]),
    }
    for name, figure in figures.items():
        save(figure, out_dir / f"{name}.svg", out_dir / f"{name}.png")


def run_of(path: Path) -> tuple[str, int]:
    """Arm and seed of a curve, from the two folders that hold it: arms/ARM/seedS/."""
    seed = path.parent.name.removeprefix("seed")
    if not seed.isdigit():
        raise UserError(f"{path}: the folder of a curve must be named seed<number>")
    return path.parent.parent.name, int(seed)


if __name__ == "__main__":
    run(main)
