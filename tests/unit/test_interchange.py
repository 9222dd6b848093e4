"""Results of other tools: every format, every refusal, and the paired comparison (docs/compare.md)."""

import json
import math
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from dosematch.errors import UserError
from dosematch.evaluation import COMPLETIONS
from dosematch.evaluation_record import GRADES, evaluation_record
from dosematch.identity import sha1_12
from dosematch.interchange.compare import compare_evaluations, render_comparison, summary_lines
from dosematch.interchange.items import Row, choose_items
from dosematch.interchange.readers import read_evaluation
from dosematch.prompts import load_prompts
from dosematch.questions.question import Question
from dosematch.records import read_json, read_jsonl, write_json, write_jsonl, write_parquet
from dosematch.statistics import paired
from dosematch.statistics.bootstrap import percentile_intervals
from dosematch.statistics.settings import StatisticsSettings

ROOT = Path(__file__).parents[2]
FIXTURES = Path(__file__).parent / "fixtures"
LM_EVAL, INSPECT = FIXTURES / "lm_eval", FIXTURES / "inspect"
OPTIONS = StatisticsSettings(resamples=200)
PROMPTS = ROOT / "config/prompts/micro.yaml"


def compare(a: Any, b: Any, chosen: bool = False) -> dict[str, Any]:
    return compare_evaluations((a, b), ("A", "B"), OPTIONS, chosen)


def plain(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def refusal(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(UserError) as raised:
        call(*arguments, **options)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("side", ["a", "b"])
def test_lm_eval_files_give_its_own_accuracies(side: str) -> None:
    results = read_json(next((LM_EVAL / side).glob("results_*.json")))["results"]
    items = read_evaluation(LM_EVAL / side).values()
    for task, metric in (("sums_choice", "acc"), ("sums_answer", "exact_match")):
        right = [item.correct for item in items if item.task == task]
        assert len(right) == 12
        assert sum(right) / 12 == pytest.approx(results[task][f"{metric},none"])
        assert {item.metric for item in items if item.task == task} == {f"{metric},none"}


def test_lm_eval_runs_compare_as_the_binomial_test_says() -> None:
    made = compare(read_evaluation(LM_EVAL / "a"), read_evaluation(LM_EVAL / "b"))
    right = {}
    for side in ("a", "b"):
        rows = read_jsonl(next((LM_EVAL / side).glob("samples_sums_choice_*")))
        right[side] = [row["acc"] == 1.0 for row in rows]
    wins = sum(x and not y for x, y in zip(right["a"], right["b"], strict=True))
    losses = sum(y and not x for x, y in zip(right["a"], right["b"], strict=True))
    row = next(row for row in made["tasks"] if row["task"] == "sums_choice")
    assert (row["wins"], row["losses"]) == (wins, losses) and wins + losses > 0
    assert row["p_exact"] == pytest.approx(binomtest(wins, wins + losses).pvalue)
    assert made["checked"] == {"prompt": 24, "gold": 24, "doc": 24}
    assert made["pooled"]["n"] == 24 and made["pooled"]["wins"] == wins


def test_filters_and_metrics_must_be_chosen_where_there_are_several() -> None:
    folder = LM_EVAL / "options"
    assert "has filters strict-match, flexible-extract; choose one with FILTER=" in refusal(read_evaluation, folder)
    assert "has metrics acc, acc_norm; choose one with METRIC=" in refusal(read_evaluation, folder, tasks=["sums_norm"])
    results = read_json(next(folder.glob("results_*.json")))["results"]
    for name in ("strict-match", "flexible-extract"):
        items = read_evaluation(folder, filters=[name], tasks=["sums_filters"]).values()
        share = sum(item.correct for item in items) / 12
        assert share == pytest.approx(results["sums_filters"][f"exact_match,{name}"])
    for name in ("acc", "acc_norm"):
        items = read_evaluation(folder, metrics=[name], tasks=["sums_norm"]).values()
        assert sum(item.correct for item in items) / 12 == pytest.approx(results["sums_norm"][f"{name},none"])
    assert "has no task sums" in refusal(read_evaluation, folder, tasks=["sums"])


def test_inspect_logs_as_json_and_as_archive() -> None:
    for side in ("a", "b"):
        items = read_evaluation(INSPECT / side)
        assert len(items) == 12 and {item.metric for item in items.values()} == {"match"}
    log = read_json(next((INSPECT / "a").glob("*.json")))
    accuracy = log["results"]["scores"][0]["metrics"]["accuracy"]["value"]
    made = compare(read_evaluation(INSPECT / "a"), read_evaluation(INSPECT / "b"))
    assert made["tasks"][0]["a_correct"] / 12 == pytest.approx(accuracy)
    assert made["checked"] == {"prompt": 12, "gold": 12, "doc": 0}
    assert "id sums/0: epoch 2" in refusal(read_evaluation, INSPECT / "epochs")


def test_inspect_logs_that_cannot_be_paired_are_refused(tmp_path: Path) -> None:
    log = read_json(next((INSPECT / "a").glob("*.json")))
    write_json(tmp_path / "error.json", {**log, "status": "error"})
    assert "status: the evaluation ended with 'error'" in refusal(read_evaluation, tmp_path / "error.json")
    log["samples"][4]["scores"]["match"]["value"] = "P"
    write_json(tmp_path / "partial.json", log)
    assert "id sums/4: match: must be 0 or 1, not 'P'" in refusal(read_evaluation, tmp_path / "partial.json")
    archive = next((INSPECT / "b").glob("*.eval")).read_bytes()
    (tmp_path / "cut.eval").write_bytes(archive[: len(archive) // 2])
    assert "cut.eval: unreadable" in refusal(read_evaluation, tmp_path / "cut.eval")


def lighteval_rows(new: bool) -> list[dict[str, Any]]:
    """Documented columns, written by hand: lighteval itself is not installed here."""
    if not new:
        return [
            {"example": f"q{i}", "full_prompt": f"Q: q{i}", "gold": ["x"], "metrics": {"em": float(i % 2)}}
            for i in range(6)
        ]
    return [
        {
            "doc": {"id": str(i), "query": f"q{i}", "choices": ["x", "y"], "gold_index": [0], "task_name": "arc"},
            "model_response": {"text": ["x"]},
            "metric": {"em": float(i % 2), "tokens": 7 + i},
        }
        for i in range(6)
    ]


@pytest.mark.parametrize("new", [True, False])
def test_lighteval_details(tmp_path: Path, new: bool) -> None:
    path = tmp_path / "details_arc|0_2026-12-07T10-00-00.0.parquet"
    pq.write_table(pa.Table.from_pylist(lighteval_rows(new)), path)
    items = read_evaluation(path)
    assert [item.correct for item in items.values()] == [False, True] * 3
    assert list(items)[3] == ("arc|0", "3") and {item.metric for item in items.values()} == {"em"}


@pytest.mark.parametrize("text", ["1,0", "true,False", "1.0,0.0"])
def test_csv_and_json_lines_are_the_same_items(tmp_path: Path, text: str) -> None:
    right, wrong = text.split(",")
    (tmp_path / "a.csv").write_bytes(f"\ufeffid,correct,gold\r\nq1,{right},3\r\nq2,{wrong},4\r\n".encode())
    path = plain(tmp_path / "b.jsonl", [{"id": "q2", "correct": 0, "gold": 4}, {"id": "q1", "correct": True}])
    made = compare(read_evaluation(tmp_path / "a.csv"), read_evaluation(path))
    assert (made["tasks"][0]["a_correct"], made["tasks"][0]["b_correct"], made["checked"]["gold"]) == (1, 1, 1)


@pytest.mark.parametrize("value", ["NaN", "0.5", '"true"', "2", "null", "[1]", "Infinity"])
def test_scores_other_than_0_and_1_are_refused_with_their_id(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"id": "q1", "correct": 1}}\n{{"id": "q2", "correct": {value}}}\n')
    assert "a.jsonl: line 2: id q2: correct: must be 0 or 1, not " in refusal(read_evaluation, path)


def test_csv_words_are_refused_with_their_id(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,correct\nq1,1\nq2,yes\n")
    assert "a.csv: row 2: id q2: correct: must be 0 or 1, not 'yes'" in refusal(read_evaluation, tmp_path / "a.csv")


def test_items_that_cannot_be_paired_are_refused(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"id": f"q{i}", "correct": i % 2, "prompt": f"p{i}", "gold": "g"} for i in range(4)]
    a = read_evaluation(plain(tmp_path / "a.jsonl", rows))
    twice = plain(tmp_path / "b.jsonl", [*rows, rows[2]])
    assert "line 5: id q2: given twice, first in" in refusal(read_evaluation, twice)
    fewer = read_evaluation(plain(tmp_path / "b.jsonl", rows[:2]))
    assert "B: id q2: is missing (2 in all)" in refusal(compare, a, fewer)
    assert "A: id q2: is missing (2 in all)" in refusal(compare, fewer, a)
    for key in ("prompt", "gold"):
        other = [rows[0], {**rows[1], key: "another"}, *rows[2:]]
        b = read_evaluation(plain(tmp_path / "b.jsonl", other))
        assert f"id q1: has another {key} than" in refusal(compare, a, b)
    with_metric = choose_items([Row("t", "1", {"acc": 1}, "x")]), choose_items([Row("t", "1", {"f1": 1}, "y")])
    assert "choose with METRIC=" in refusal(compare, *with_metric)
    assert compare(*with_metric, chosen=True)["tasks"][0]["n"] == 1


def test_a_changed_lm_eval_document_is_refused(tmp_path: Path) -> None:
    shutil.copytree(LM_EVAL / "b", tmp_path / "b")
    path = next((tmp_path / "b").glob("samples_sums_choice_*"))
    rows = read_jsonl(path)
    write_jsonl(path, [*rows[:5], {**rows[5], "doc_hash": "0"}, *rows[6:]])
    assert "sums_choice/5: has another doc" in refusal(
        compare, read_evaluation(LM_EVAL / "a"), read_evaluation(tmp_path / "b")
    )


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    for name, content in (("a.json", b"{}"), ("a.csv", b"x,y\n1,2\n"), ("a.jsonl", b""), ("b.eval", b"PK\x03\x04")):
        (tmp_path / name).write_bytes(content)
        assert name in refusal(read_evaluation, tmp_path / name)
    assert "absent" in refusal(read_evaluation, tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    assert "holds no evaluation file" in refusal(read_evaluation, tmp_path / "empty")


PAIRS = st.lists(st.tuples(st.sampled_from("xyz"), st.booleans(), st.booleans()), min_size=1, max_size=40)


def sides(pairs: list[tuple[str, bool, bool]]) -> tuple[list[Row], list[Row]]:
    a = [Row(task, str(i), {"acc": x}, "a") for i, (task, x, _) in enumerate(pairs)]
    b = [Row(task, str(i), {"acc": y}, "b") for i, (task, _, y) in enumerate(pairs)]
    return a, b


@given(PAIRS, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=12)
def test_order_does_not_matter_and_sides_are_symmetric(pairs: Any, rng: random.Random) -> None:
    a, b = sides(pairs)
    made = compare(choose_items(a), choose_items(b))
    assert compare(choose_items(rng.sample(a, len(a))), choose_items(rng.sample(b, len(b)))) == made
    swapped = compare(choose_items(b), choose_items(a))
    for one, other in zip(made["tasks"], swapped["tasks"], strict=True):
        assert (one["wins"], one["losses"], one["pp"]) == (other["losses"], other["wins"], -other["pp"])
        assert (one["p_exact"], one["p_holm"]) == (other["p_exact"], other["p_holm"])
        assert one["ci"] == pytest.approx([-value for value in reversed(other["ci"])], abs=1e-9)
    same = compare(choose_items(a), choose_items(a))
    assert all((row["net"], row["p_exact"], row["ci"]) == (0, 1.0, [0.0, 0.0]) for row in same["tasks"])


def test_the_page_escapes_names() -> None:
    a, b = sides([("<b>", True, False)])
    made = compare_evaluations((choose_items(a), choose_items(b)), ("<i>", "B"), OPTIONS)
    page = render_comparison(made)
    assert "<b>" not in page and "<i>" not in page and "&lt;b&gt;" in page
    assert summary_lines(made)[0].startswith("<b>: A 100.00 %, B 0.00 % of 1; +100.00 points")


def run_script(name: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "workflow/scripts" / name), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow")}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def arm(folder: Path, name: str, right: dict[str, list[bool]]) -> dict[str, Any]:
    """An evaluated checkpoint's folder as the workflow leaves it; its record."""
    sha1 = load_prompts(PROMPTS).sha1
    panels = {}
    for panel, outcomes in right.items():
        questions = [
            Question(id=f"{panel}/{i}", text=f"{panel}: {i} + 1", answer=str(i + 1), source="s")
            for i in range(len(outcomes))
        ]
        write_jsonl(folder / "panels" / f"{panel}.jsonl", [question.model_dump() for question in questions])
        completions, grades = [], []
        for i, (question, correct) in enumerate(zip(questions, outcomes, strict=True)):
            answer = question.answer if correct else "0"
            same = {"index": i, "sha1_12": sha1_12(question.text)}
            made = {"question_id": question.id, "prompt_sha1": sha1, "text": rf"\boxed{{{answer}}}"}
            completions.append({**same, **made, "token_ids": [1], "n_tokens": 1, "finish_reason": "stop"})
            outcome = {"outcome": "correct" if correct else "wrong", "correct": correct, "strict": correct}
            grades.append(
                {**same, "extracted": answer, "has_box": True, "extraction": "boxed", **outcome, "grader": "g"}
            )
        write_parquet(folder / name / "completions" / f"{panel}.parquet", completions, COMPLETIONS)
        write_parquet(folder / name / "grades" / f"{panel}.parquet", grades, GRADES)
        panels[panel] = (completions, grades)
    identity = {"arm": name, "seed": 1, "run": 0, "checkpoint_sha256": sha1_12(name) * 5}
    suites = {"all6": list(right), "within": list(right)}
    record = evaluation_record(identity, {"max_tokens": 8, "temperature": 0.0}, suites, panels)
    write_json(folder / name / "eval_6panel_bs50.json", record)
    return record


def test_an_exported_study_compares_as_the_study_does(tmp_path: Path) -> None:
    rng = random.Random(3)
    names, sizes = ("one", "two"), {"alpha": 30, "beta": 15}
    rights = [{panel: [rng.random() < 0.6 for _ in range(n)] for panel, n in sizes.items()} for _ in names]
    records = [arm(tmp_path, name, right) for name, right in zip(names, rights, strict=True)]
    for name in names:
        options = ["--arm-dir", tmp_path / name, "--panels", tmp_path / "panels", "--prompts", PROMPTS]
        done = run_script("export_lm_eval.py", *options, "--out", tmp_path / "out" / name)
        assert done.returncode == 0, done.stderr
    out = tmp_path / "made.json"
    done = run_script("compare_results.py", "--a", tmp_path / "out/one", "--b", tmp_path / "out/two", "--out", out)
    assert done.returncode == 0, done.stderr
    made = read_json(out)
    assert out.with_suffix(".html").is_file() and len(done.stdout.splitlines()) == 4
    assert made["checked"] == {"prompt": 45, "gold": 45, "doc": 45}
    items = paired.collect_items(records, list(sizes))
    one, two = (paired.correctness(record, list(sizes))[None] for record in records)
    for row, panels in [(made["tasks"][0], ["alpha"]), (made["tasks"][1], ["beta"]), (made["pooled"], list(sizes))]:
        keep = items.keep(panels)
        study = paired.compare(one, two, keep).as_dict()
        assert {key: row[key] for key in study} == study
        differences = paired.cluster_differences(one, two, keep)[None]
        assert row["ci"] == percentile_intervals(differences, 1, 4000, 0, 0.95)[0].tolist()
    for name, right in zip(names, rights, strict=True):
        results = read_json(next((tmp_path / "out" / name).glob("results_*.json")))["results"]
        share = sum(right["alpha"]) / 30
        assert results["alpha"]["math_verify,none"] == pytest.approx(share)
        assert results["alpha"]["math_verify_stderr,none"] == pytest.approx(math.sqrt(share * (1 - share) / 29))


def test_the_export_refuses_other_prompts(tmp_path: Path) -> None:
    arm(tmp_path, "one", {"alpha": [True, False]})
    other = ROOT / "config/prompts/qwen3.yaml"
    options = ["--arm-dir", tmp_path / "one", "--panels", tmp_path / "panels", "--prompts", other]
    done = run_script("export_lm_eval.py", *options, "--out", tmp_path / "out")
    assert done.returncode == 1 and "alpha.parquet: prompt_sha1: row 0" in done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "out").exists()


def test_the_script_ends_refusals_in_one_line(tmp_path: Path) -> None:
    a, b = (plain(tmp_path / f"{name}.jsonl", [{"id": name, "correct": 1}]) for name in "ab")
    done = run_script("compare_results.py", "--a", a, "--b", b, "--out", tmp_path / "out.json")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "b.jsonl: id a: is missing" in done.stderr
    assert not (tmp_path / "out.json").exists()
