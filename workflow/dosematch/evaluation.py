"""Greedy evaluation of whole panels (thinker-spec 12)."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from dosematch.episodes.episode import Context
from dosematch.grading import Grader
from dosematch.identity import sha1_12
from dosematch.prompts import Prompts
from dosematch.questions import Question
from dosematch.rollout.engine import Completion, Engine, Request
from dosematch.settings import Evaluation, TrainSettings

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
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Prompts,
    evaluation: Evaluation,
    questions: Sequence[Question],
) -> list[Completion]:
    """Greedy Fast completions in the order of `questions`; sorting by prompt length happens inside and is undone."""
    requests = [Request(prompts.fast_ids(tokenizer, question.text), evaluation.max_tokens) for question in questions]
    order = list(range(len(requests)))
    if evaluation.sort == "prompt_length_descending":
        order.sort(key=lambda i: -len(requests[i].prompt_ids))
    sorted_completions = engine.generate([requests[i] for i in order], batch_size=evaluation.batch_size)
    restored = dict(zip(order, sorted_completions, strict=True))
    return [restored[i] for i in range(len(requests))]


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
            "text": tokenizer.decode(list(completion.token_ids), skip_special_tokens=True),
            "token_ids": list(completion.token_ids),
            "n_tokens": len(completion.token_ids),
            "finish_reason": completion.finish_reason,
        }
        for index, (question, completion) in enumerate(zip(questions, completions, strict=True))
    ]


def accuracy_row(
    context: Context, grader: Grader, settings: TrainSettings, questions: Sequence[Question]
) -> dict[str, Any]:
    """Accuracy, mean length (tokens) and share of truncated completions on a development panel."""
    completions = generate_greedy(context.engine, context.tokenizer, context.prompts, settings.evaluation, questions)
    pairs = [(context.text(c), question.answer) for c, question in zip(completions, questions, strict=True)]
    correct = sum(grade.correct for grade in grader.grade_many(pairs))
    return {
        "n": len(questions),
        "correct": correct,
        "accuracy": correct / len(questions),
        "mean_length": fmean(len(completion.token_ids) for completion in completions),
        "clipped_ratio": fmean(completion.finish_reason == "length" for completion in completions),
    }
