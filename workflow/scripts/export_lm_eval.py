"""Writes the graded panels of one evaluated checkpoint as lm-eval's `results_*.json` and `samples_*.jsonl`."""

from pathlib import Path
from typing import Annotated

from typer import Option

from dosematch.cli import run
from dosematch.errors import UserError
from dosematch.evaluation_record import in_panel_order
from dosematch.interchange.writers import lm_eval_results, lm_eval_samples
from dosematch.prompts import load_prompts
from dosematch.questions.files import read_questions
from dosematch.records import read_json, read_parquet, write_json, write_jsonl


def main(
    arm_dir: Annotated[Path, Option(help="folder of an arm and seed: record, completions, grades")],
    panels: Annotated[Path, Option(help="folder of panels")],
    prompts: Annotated[Path, Option(help="the prompt file that it was evaluated with")],
    out: Annotated[Path, Option(help="folder to write to")],
) -> None:
    """Write a samples file per panel, named by the checkpoint's digest instead of a time, and the results file."""
    record, texts = read_json(arm_dir / "eval_6panel_bs50.json"), load_prompts(prompts)
    samples = {}
    for panel in record["panels"]:
        questions = read_questions(panels / f"{panel}.jsonl")
        files = [arm_dir / folder / f"{panel}.parquet" for folder in ("completions", "grades")]
        completions, grades = (in_panel_order(questions, read_parquet(path), path) for path in files)
        if other := [row for row in completions if row["prompt_sha1"] != texts.sha1]:
            raise UserError(f"{files[0]}: prompt_sha1: row {other[0]['index']} was generated without {prompts}")
        if [row["correct"] for row in grades] != record["panels"][panel]["per_item_correct"]:
            raise UserError(f"{files[1]}: correct: differs from panels.{panel} of the record")
        samples[panel] = lm_eval_samples(questions, completions, grades, texts.fast, record["eval"]["max_tokens"])
    name = record["checkpoint_sha256"][:12]
    for panel, rows in samples.items():
        write_jsonl(out / f"samples_{panel}_{name}.jsonl", rows)
    write_json(out / f"results_{name}.json", lm_eval_results(record, samples))
    print(f"{len(samples)} panels, {sum(map(len, samples.values()))} samples in {out}")


if __name__ == "__main__":
    run(main)
