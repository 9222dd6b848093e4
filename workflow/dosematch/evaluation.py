"""Greedy evaluation of whole panels (thinker-spec 12)."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from dosematch.answers import extract_answer, parse_verdict
from dosematch.episodes.episode import Context, decoded, without
from dosematch.grading import Grader
from dosematch.identity import sha1_12
from dosematch.prompts import Prompts, encode
from dosematch.questions import Question
from dosematch.rollout.engine import Completion, Generator, Request
from dosematch.settings import Evaluation, TrainSettings

VERIFY_SLOW = pa.schema(
    [
        ("index", pa.int32()),
        ("sha1_12", pa.string()),
        ("verify_text", pa.string()),
        ("verify_token_ids", pa.list_(pa.int32())),
        ("verdict", pa.string()),
        ("missing_fast_box", pa.bool_()),
        ("triggered", pa.bool_()),
        ("slow_text", pa.string()),
        ("slow_token_ids", pa.list_(pa.int32())),
        ("slow_finish_reason", pa.string()),
    ]
)
COMPLETIONS = pa.schema(
    [
        ("index", pa.int32()),
        ("sha1_12", pa.string()),
        ("question_id", pa.string()),
        ("prompt_sha1", pa.string()),
        ("text", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("n_tokens", pa.int32()),
        ("finish_reason", pa.string()),
    ]
)


def generate_greedy(
    engine: Generator,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Prompts,
    evaluation: Evaluation,
    questions: Sequence[Question],
) -> list[Completion]:
    """Greedy Fast completions in the order of `questions`."""
    requests = [Request(prompts.fast_ids(tokenizer, question.text), evaluation.max_tokens) for question in questions]
    return complete(engine, evaluation, requests)


def complete(engine: Generator, evaluation: Evaluation, requests: Sequence[Request]) -> list[Completion]:
    """Run requests in evaluation batches; sorting by prompt length happens inside and is undone."""
    order = list(range(len(requests)))
    if evaluation.sort == "prompt_length_descending":
        order.sort(key=lambda i: -len(requests[i].prompt_ids))
    sorted_completions = engine.generate([requests[i] for i in order], batch_size=evaluation.batch_size)
    restored = dict(zip(order, sorted_completions, strict=True))
    return [restored[i] for i in range(len(requests))]


def triggers(verdict: str, has_box: bool) -> bool:
    """Whether Slow replaces Fast: an explicit No, or a Fast answer without a box (thinker-spec 12)."""
    return verdict == "No" or not has_box


def verify_slow_rows(
    engine: Generator,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Prompts,
    evaluation: Evaluation,
    questions: Sequence[Question],
    fast: Sequence[Completion],
) -> list[dict[str, Any]]:
    """Reference-free Verify -> Slow after given Fast completions, one row per question under `VERIFY_SLOW`.

    Every answer is verified, also boxless ones; only triggered ones are solved again.
    """
    eos = tokenizer.eos_token_id
    ask_verify, ask_slow = encode(tokenizer, prompts.verify), encode(tokenizer, prompts.slow)
    dialogues = [
        prompts.fast_ids(tokenizer, question.text) + without(completion.token_ids, eos) + ask_verify
        for question, completion in zip(questions, fast, strict=True)
    ]
    checks = complete(engine, evaluation, [Request(ids, evaluation.verify_max_tokens) for ids in dialogues])
    boxes = [extract_answer(decoded(tokenizer, completion.token_ids))[1] for completion in fast]
    verify_texts = [decoded(tokenizer, check.token_ids) for check in checks]
    verdicts = [parse_verdict(text) for text in verify_texts]
    again = [i for i, verdict in enumerate(verdicts) if triggers(verdict, boxes[i])]
    requests = [
        Request(dialogues[i] + without(checks[i].token_ids, eos) + ask_slow, evaluation.slow_max_tokens) for i in again
    ]
    slow = dict(zip(again, complete(engine, evaluation, requests), strict=True))
    return [
        {
            "index": i,
            "sha1_12": sha1_12(question.text),
            "verify_text": verify_texts[i],
            "verify_token_ids": list(checks[i].token_ids),
            "verdict": verdicts[i],
            "missing_fast_box": not boxes[i],
            "triggered": i in slow,
            "slow_text": decoded(tokenizer, slow[i].token_ids) if i in slow else None,
            "slow_token_ids": list(slow[i].token_ids) if i in slow else None,
            "slow_finish_reason": slow[i].finish_reason if i in slow else None,
        }
        for i, question in enumerate(questions)
    ]


def completion_rows(
    questions: Sequence[Question],
    completions: Sequence[Completion],
    tokenizer: PreTrainedTokenizerBase,
    prompts: Prompts,
) -> list[dict[str, Any]]:
    """Rows of `completions/<panel>.parquet` under the schema `COMPLETIONS`."""
    return [
        {
            "index": index,
            "sha1_12": sha1_12(question.text),
            "question_id": question.id,
            "prompt_sha1": prompts.sha1,
            "text": decoded(tokenizer, completion.token_ids),
            "token_ids": list(completion.token_ids),
            "n_tokens": len(completion.token_ids),
            "finish_reason": completion.finish_reason,
        }
        for index, (question, completion) in enumerate(zip(questions, completions, strict=True))
    ]


def accuracy_row(
    context: Context, grader: Grader, settings: TrainSettings, questions: Sequence[Question]
) -> dict[str, Any]:
    """One point of the development curve: Fast and Verify -> Slow accuracy, verdicts, mean length, truncation."""
    engine, tokenizer, prompts = context.engine, context.tokenizer, context.prompts
    fast = generate_greedy(engine, tokenizer, prompts, settings.evaluation, questions)
    rows = verify_slow_rows(engine, tokenizer, prompts, settings.evaluation, questions, fast)
    first = [grader.grade(context.text(c.token_ids), q.answer).correct for c, q in zip(fast, questions, strict=True)]
    final = [
        grader.grade(row["slow_text"], question.answer).correct if row["triggered"] else right
        for row, question, right in zip(rows, questions, first, strict=True)
    ]
    n = len(questions)
    return {
        "n": n,
        "correct": sum(first),
        "accuracy": sum(first) / n,
        "verify_slow_accuracy": sum(final) / n,
        "triggered": sum(row["triggered"] for row in rows),
        "verdicts": {name: sum(row["verdict"] == name for row in rows) for name in ("Yes", "No", "Invalid")},
        "mean_length": fmean(len(completion.token_ids) for completion in fast),
        "clipped_ratio": fmean(completion.finish_reason == "length" for completion in fast),
    }
