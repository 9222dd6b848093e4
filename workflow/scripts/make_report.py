"""Write the self-contained HTML report of a study."""

from pathlib import Path
from typing import Annotated

from typer import Option

from dosematch.cli import run
from dosematch.records import read_json, write_text
from dosematch.reporting.html import render_report
from dosematch.statistics.settings import parse_settings

CAPTIONS = {
    "figure1.svg": "Figure 1. Correct answers per arm and suite, in percent; dots are single seeds, dashed lines the "
    "parent.",
    "figure2.svg": "Figure 2. (a) Accuracy after Verify→Slow, and the share of items that triggered it. (b) Gradient "
    "norm before clipping of every update, seeds pooled: quartiles and extremes; colours tell after how many steps an "
    "update comes, since the norm of a mean over several steps is not comparable with that of one.",
    "training_curves.svg": "Training curves. Accuracy on the development panel, which no table uses, of the single "
    "pass and after Verify→Slow (dashed); thin lines are single seeds, thick lines their mean, grey lines other arms.",
}


def main(
    summary: Annotated[Path, Option(help="summary.json of compare_arms.py")],
    figures_dir: Annotated[Path, Option(help="folder with {figure1,figure2,training_curves}.svg")],
    evals: Annotated[list[Path], Option(help="eval_6panel_bs50.json of one arm and seed; repeat the option")],
    ancestry: Annotated[Path, Option(help="audit/ancestry.json")],
    settings: Annotated[str, Option(help="study settings as JSON text, the same as for compare_arms.py")],
    out: Annotated[Path, Option(help="report.html to write")],
    meta: Annotated[list[Path] | None, Option(help="train_meta.json of one arm and seed; repeat the option")] = None,
    regraded: Annotated[Path | None, Option(help="regrade.json of regrade.py")] = None,
) -> None:
    """Write the report; its tables are made from the summary."""
    page = render_report(
        summary=read_json(summary),
        evals=[read_json(path) for path in evals],
        ancestry=read_json(ancestry),
        metas=[read_json(path) for path in meta or []],
        settings=parse_settings(settings),
        regraded=read_json(regraded) if regraded else None,
        figures={caption: figures_dir / name for name, caption in CAPTIONS.items()},
    )
    write_text(out, page)


if __name__ == "__main__":
    run(main)
