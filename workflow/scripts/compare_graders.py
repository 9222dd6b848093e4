"""How often public graders agree with ours and with the recorded verdicts; run it in the environment graders.lock."""

import gzip
import importlib.util
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

GRADED = {"gsm8k": "graded_gsm8k_openai_samples.jsonl.gz", "math": "graded_math_qwen_cot.jsonl.gz"}


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
        own = our_verdicts(rows, ours, scratch)
        for grader, verdict in {"dosematch": None, **graders()}.items():
            found = [safely(verdict, row["prediction"], row["gold"]) for row in rows] if verdict else own
            recorded = share([row["verdict"] for row in rows], found)
            print(f"| {name} ({len(rows)}) | {grader} | {recorded} | {share(own, found)} |", flush=True)


def our_verdicts(rows: list[dict[str, Any]], python: str, scratch: Path) -> list[bool]:
    """`flexible` of `make grade` on the rows."""
    pairs, out = scratch / "pairs.jsonl", scratch / "graded.jsonl"
    lines = [json.dumps({"id": row["id"], "gold": row["gold"], "model_output": row["prediction"]}) for row in rows]
    pairs.write_text("\n".join(lines) + "\n", encoding="ascii")
    script = Path(__file__).with_name("grade_pairs.py")
    subprocess.run([python, str(script), "--pairs", str(pairs), "--out", str(out)], check=True, stdout=sys.stderr)
    return [json.loads(line)["flexible"] for line in out.read_text(encoding="ascii").splitlines()]


def graders() -> dict[str, Callable[[str, str], bool]]:
    """Verdict functions of (completion, gold), each as its package is meant to be called."""
    from math_verify import parse, verify
    from mathruler.grader import extract_boxed_content, grade_answer

    harness = lm_eval_math()
    return {
        "math-verify": lambda text, gold: verify(parse(f"${gold}$"), parse(text)),
        "mathruler": lambda text, gold: grade_answer(extract_boxed_content(text), gold),
        "lm-eval hendrycks_math": lambda text, gold: harness.is_equiv(
            harness.remove_boxed(harness.last_boxed_only_string(text)), gold
        ),
    }


def lm_eval_math() -> ModuleType:
    """The module with the harness's MATH equivalence, without the rest of the harness and what that imports."""
    sys.modules.setdefault("datasets", ModuleType("datasets")).Dataset = object  # type: ignore[attr-defined]
    harness = importlib.util.find_spec("lm_eval")
    assert harness is not None and harness.submodule_search_locations is not None
    path = Path(harness.submodule_search_locations[0]) / "tasks/hendrycks_math/utils.py"
    spec = importlib.util.spec_from_file_location("hendrycks_math_utils", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def safely(verdict: Callable[[str, str], bool], text: str, gold: str) -> bool:
    """The verdict, False where the grader raises (mathruler and the harness do on text without a box)."""
    try:
        return bool(verdict(text, gold))
    except Exception:
        return False


def share(one: list[bool], other: list[bool]) -> str:
    """Agreement as `equal/all`."""
    return f"{sum(a == b for a, b in zip(one, other, strict=True))}/{len(one)}"


if __name__ == "__main__":
    typer.run(main)
