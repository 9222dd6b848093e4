"""A checkpoint's graded panels in the form of lm-evaluation-harness: `results_*.json` and `samples_*.jsonl`."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from dosematch.evaluation_record import Rows
from dosematch.interchange.items import text_digest
from dosematch.questions.question import Question

METRIC = "math_verify"
FILTER = "none"


def lm_eval_samples(
    questions: Sequence[Question], completions: Rows, grades: Rows, prompt: str, max_tokens: int
) -> Rows:
    """Lines of `samples_<panel>_*.jsonl`; completions and grades in panel order, `prompt` holds `{question}`."""
    rows = []
    for index, (question, completion, grade) in enumerate(zip(questions, completions, grades, strict=True)):
        doc, text = dict(sorted(question.model_dump().items())), prompt.replace("{question}", question.text)
        settings = {"until": [], "do_sample": False, "temperature": 0.0, "max_gen_toks": max_tokens}
        rows.append(
            {
                "doc_id": index,
                "doc": doc,
                "target": question.answer,
                "arguments": {"gen_args_0": {"arg_0": text, "arg_1": settings}},
                "resps": [[completion["text"]]],
                "filtered_resps": [grade["extracted"] or ""],
                "filter": FILTER,
                "metrics": [METRIC],
                "doc_hash": text_digest(json.dumps(doc, indent=2, ensure_ascii=False)),
                "prompt_hash": text_digest(text),
                "target_hash": text_digest(question.answer),
                METRIC: float(grade["correct"]),
            }
        )
    return rows


def lm_eval_results(record: Mapping[str, Any], samples: Mapping[str, Rows]) -> dict[str, Any]:
    """The content of `results_*.json` for panels with at least one item; accuracies with their standard errors."""
    sizes = {task: len(rows) for task, rows in samples.items()}
    shares = {task: sum(row[METRIC] for row in rows) / len(rows) for task, rows in samples.items()}
    return {
        "results": {task: _task_results(task, share, sizes[task]) for task, share in shares.items()},
        "group_subtasks": {},
        "configs": {task: {"task": task, "output_type": "generate_until", "num_fewshot": 0} for task in samples},
        "versions": dict.fromkeys(samples, 1),
        "n-shot": dict.fromkeys(samples, 0),
        "higher_is_better": {task: {METRIC: True} for task in samples},
        "n-samples": {task: {"original": n, "effective": n} for task, n in sizes.items()},
        "config": {"model": "dosematch", "model_args": dict(record["eval"]), "grader": record["grader"]},
        "model_name": f"{record['arm']}-seed{record['seed']}",
        "model_sha": record["checkpoint_sha256"],
        "task_hashes": {
            task: text_digest("".join(row["doc_hash"] + row["prompt_hash"] + row["target_hash"] for row in rows))
            for task, rows in samples.items()
        },
    }


def _task_results(task: str, share: float, n: int) -> dict[str, Any]:
    error = math.sqrt(share * (1 - share) / (n - 1)) if n > 1 else "N/A"
    keys = (f"{METRIC},{FILTER}", f"{METRIC}_stderr,{FILTER}")
    return {"alias": task, "sample_len": n, keys[0]: share, keys[1]: error}
