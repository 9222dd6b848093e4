"""How often public graders agree with ours and with the recorded verdicts; run it in the environment graders.lock."""

import gzip
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from importlib.metadata import files
from operator import eq
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

GRADED = {"gsm8k": "graded_gsm8k_openai_samples.jsonl.gz", "math": "graded_math_qwen_cot.jsonl.gz"}
Row = dict[str, Any]


def main(
    data: Annotated[Path, typer.Option(help="folder with graded answers")] = Path("../shared/data"),
    ours: Annotated[str, typer.Option(help="python of the study's environment")] = sys.executable,
    scratch: Annotated[Path, typer.Option(help="folder for our rows")] = Path("results/bench"),
) -> None:
    """Print a table: per file and grader, agreement with the recorded verdict and with our flexible score."""
    logging.disable(logging.CRITICAL)
    scratch.mkdir(parents=True, exist_ok=True)
    print("| answers | grader | agrees with record | agrees with ours |\n|---|---|---|---|")
    for name, file in GRADED.items():
        rows = [json.loads(line) for line in gzip.decompress((data / file).read_bytes()).splitlines()]
        own = our_rows(rows, ours, scratch)
        recorded, flexible = [row["verdict"] for row in rows], [row["flexible"] for row in own]
        verdicts = {"dosematch": flexible} | {
            grader: [safely(verdict, row, mine["extracted"]) for row, mine in zip(rows, own, strict=True)]
            for grader, verdict in graders().items()
        }
        for grader, found in verdicts.items():
            equal, ours_equal = (sum(map(eq, found, other)) for other in (recorded, flexible))
            print(f"| {name} ({len(rows)}) | {grader} | {equal} | {ours_equal} |")


def our_rows(rows: list[Row], python: str, scratch: Path) -> list[Row]:
    """What `make grade` says of the rows."""
    pairs, out = scratch / "pairs.jsonl", scratch / "graded.jsonl"
    lines = [json.dumps({"id": row["id"], "gold": row["gold"], "model_output": row["prediction"]}) for row in rows]
    pairs.write_text("\n".join(lines) + "\n", encoding="ascii")
    script = Path(__file__).with_name("grade_pairs.py")
    subprocess.run([python, str(script), "--pairs", str(pairs), "--out", str(out)], check=True, stdout=sys.stderr)
    return [json.loads(line) for line in out.read_text(encoding="ascii").splitlines()]


def graders() -> dict[str, Callable[[Row, str], bool]]:
    """Verdicts on (row, answer that we extracted): math-verify reads the text itself, the others compare answers."""
    from math_verify import parse, verify
    from mathruler.grader import grade_answer

    harness = lm_eval_math()
    return {
        "math-verify": lambda row, _: verify(parse(f"${row['gold']}$"), parse(row["prediction"])),
        "mathruler": lambda row, answer: grade_answer(answer, row["gold"]),
        "lm-eval hendrycks_math": lambda row, answer: harness.is_equiv(answer, row["gold"]),
    }


def lm_eval_math() -> ModuleType:
    """The module with the harness's MATH equivalence, without the rest of the harness and what that imports."""
    sys.modules.setdefault("datasets", ModuleType("datasets")).Dataset = object  # type: ignore[attr-defined]
    (path,) = (file for file in files("lm_eval") or [] if str(file).endswith("tasks/hendrycks_math/utils.py"))
    return SourceFileLoader("hendrycks_math_utils", str(path.locate())).load_module()


def safely(verdict: Callable[[Row, str], bool], row: Row, answer: str) -> bool:
    """The verdict, False where the grader raises."""
    with suppress(Exception):
        return bool(verdict(row, answer))
    return False


if __name__ == "__main__":
    typer.run(main)
