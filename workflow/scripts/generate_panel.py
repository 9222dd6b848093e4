"""Generates the greedy completions of one checkpoint on all panels and stores them with their token ids."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from dosematch.cli import run
from dosematch.evaluation import COMPLETIONS, VERIFY_SLOW, completion_rows, generate_greedy, verify_slow_rows
from dosematch.policy import load_policy, load_tokenizer
from dosematch.questions.files import read_questions
from dosematch.records import write_parquet
from dosematch.runtime import prepare_runtime, start_engine
from dosematch.settings import EvalSettings

log = logging.getLogger(__name__)


def main(
    panels: Annotated[list[Path], typer.Argument(help="panel files")],
    settings: Annotated[str, typer.Option(help="JSON of EvalSettings")],
    weights: Annotated[Path, typer.Option(help="model.safetensors of the checkpoint")],
    out_dir: Annotated[Path, typer.Option()],
    verify_slow: Annotated[Path, typer.Option(help="file of the Verify -> Slow continuation")],
) -> None:
    """Write one Parquet file per panel, and the Verify -> Slow continuation of one of them."""
    chosen = EvalSettings.model_validate_json(settings)
    prepare_runtime(chosen.runtime)
    model = load_policy(weights.parent, chosen.runtime.dtype, chosen.runtime.device)
    tokenizer = load_tokenizer(weights.parent)
    engine = start_engine(chosen.runtime, model, tokenizer, chosen.evaluation.batch_size)
    for panel in panels:
        questions = read_questions(panel)
        completions = generate_greedy(engine, tokenizer, chosen.prompts, chosen.evaluation, questions)
        rows = completion_rows(questions, completions, tokenizer, chosen.prompts)
        write_parquet(out_dir / f"{panel.stem}.parquet", rows, COMPLETIONS)
        if panel.stem == chosen.verify_slow_panel:
            again = verify_slow_rows(engine, tokenizer, chosen.prompts, chosen.evaluation, questions, completions)
            write_parquet(verify_slow, again, VERIFY_SLOW)
        log.info("%s: %d completions, %d tokens", panel.stem, len(rows), sum(row["n_tokens"] for row in rows))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    run(main)
