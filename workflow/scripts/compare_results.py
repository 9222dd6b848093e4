"""Compares two evaluations of the same items that any tool wrote, with the study's paired statistics."""

from pathlib import Path
from typing import Annotated

from typer import Option

from dosematch.cli import run
from dosematch.errors import UserError
from dosematch.interchange.compare import compare_evaluations, render_comparison, summary_lines
from dosematch.interchange.readers import read_evaluation
from dosematch.records import write_json, write_text
from dosematch.statistics.settings import StatisticsSettings


def main(
    a: Annotated[Path, Option(help="evaluation A: a file, or a folder of them")],
    b: Annotated[Path, Option(help="evaluation B")],
    out: Annotated[Path, Option(help="JSON to write; a page of the same name ends in .html")],
    metric: Annotated[list[str] | None, Option(help="the metric or scorer to take; may be repeated")] = None,
    filter: Annotated[list[str] | None, Option(help="the filter of lm-eval to take; may be repeated")] = None,
    task: Annotated[list[str] | None, Option(help="compare only this task; may be repeated")] = None,
) -> None:
    """Print a line per task, and write the comparison as JSON and as a page."""
    if out.suffix != ".json":
        raise UserError(f"--out {out}: must end in .json")
    choices = metric or [], filter or [], task or []
    sides = read_evaluation(a, *choices), read_evaluation(b, *choices)
    result = compare_evaluations(sides, (str(a), str(b)), StatisticsSettings(), chosen=bool(metric or filter))
    write_json(out, result)
    write_text(out.with_suffix(".html"), render_comparison(result))
    print("\n".join(summary_lines(result)))


if __name__ == "__main__":
    run(main)
