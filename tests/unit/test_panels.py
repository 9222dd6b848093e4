import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from dosematch.errors import UserError
from dosematch.identity import sha1_12
from dosematch.questions.files import read_questions
from dosematch.questions.manifest import check_frozen, read_manifest, write_manifest
from dosematch.questions.panels import PreparedQuestions, build_questions, stratified_order, write_questions
from dosematch.questions.question import Question
from dosematch.questions.settings import parse_settings

DATA_DIR = Path(os.environ.get("DATA_DIR", "../shared/data"))
SYNTHETIC: dict[str, Any] = {
    "kind": "synthetic",
    "seed": 3,
    "sources": {"chain": {"2": 0.5, "3": 0.5}, "short": {"2": 1}, "hard": {"3": 1}},
    "panels": {
        "val350": {"chain": 35},
        "conf500": {"chain": 50},
        "fresh500": {"chain": 50},
        "ext240": {"hard": 4, "short": 20},
    },
    "parent": 10,
    "stencil": 60,
    "pool": 30,
    "pool_overlap": {"conf500": 3, "fresh500": 2},
}


def build(settings: dict[str, Any]) -> PreparedQuestions:
    return build_questions(parse_settings(json.dumps(settings)))


def hashes(questions: list[Question]) -> list[str]:
    return [sha1_12(question.text) for question in questions]


def reversed_keys(value: Any) -> Any:
    return {k: reversed_keys(v) for k, v in reversed(value.items())} if isinstance(value, dict) else value


def write_source(path: Path, name: str, n: int, level_of=lambda i: 1 + i % 5) -> str:
    rows = [
        {
            "id": f"{name}/{i}",
            "source": name,
            "question": f"{name} question {i}?",
            "answer": str(i),
            "level": level_of(i),
        }
        for i in range(n)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def file_settings(tmp_path) -> dict[str, Any]:
    sources = {"math": 200, "math500": 20, "gsm8k": 30, "amc23": 5}
    return {
        "kind": "files",
        "seed": 0,
        "sources": {name: [write_source(tmp_path / f"{name}.jsonl", name, n)] for name, n in sources.items()},
        "panels": {
            "val350": {"math": 20},
            "math500": {"math500": 20},
            "conf500": {"math": 25},
            "fresh500": {"math": 25},
            "ext240": {"amc23": 4, "gsm8k": 20},
        },
        "parent": 10,
        "stencil": 40,
        "pool_overlap": {"conf500": 25, "fresh500": 25},
    }


@pytest.mark.parametrize("kind", ["synthetic", "files"])
def test_sets_have_their_sizes_and_overlap_only_where_the_settings_say_so(kind, file_settings):
    settings = SYNTHETIC if kind == "synthetic" else file_settings
    prepared = build(settings)
    sets = {name: set(hashes(questions)) for name, questions in (prepared.panels | prepared.pools).items()}
    for name, questions in (prepared.panels | prepared.pools).items():
        assert len(sets[name]) == len(questions)
    for name, parts in settings["panels"].items():
        assert len(sets[name]) == sum(parts.values())
    assert (len(sets["parent"]), len(sets["stencil"])) == (settings["parent"], settings["stencil"])
    assert len(sets["pool"]) == (30 if kind == "synthetic" else 200 - 20 - 10 - 40)
    for a, b in combinations(sets, 2):
        expected = settings["pool_overlap"].get(a, 0) if b == "pool" else 0
        assert len(sets[a] & sets[b]) == expected, (a, b)


@pytest.mark.parametrize("kind", ["synthetic", "files"])
def test_key_order_in_the_settings_changes_nothing(kind, file_settings):
    settings = SYNTHETIC if kind == "synthetic" else file_settings
    assert build(reversed_keys(settings)) == build(settings)


def test_file_order_changes_nothing(file_settings):
    before = build(file_settings)
    path = Path(file_settings["sources"]["math"][0])
    lines = path.read_text().splitlines(keepends=True)
    random.Random(0).shuffle(lines)
    path.write_text("".join(lines))
    assert build(file_settings) == before


def test_another_seed_gives_other_questions_and_a_resized_pool_leaves_the_panels_alone():
    before = build(SYNTHETIC)
    assert build(SYNTHETIC | {"seed": 4}).panels != before.panels
    assert build(SYNTHETIC | {"stencil": 61, "pool": 40, "parent": 11}).panels == before.panels


def test_largest_part_of_a_panel_comes_first(file_settings):
    assert [q.source for q in build(SYNTHETIC).panels["ext240"]] == ["short"] * 20 + ["hard"] * 4
    gsm8k = sorted(sha1_12(f"gsm8k question {i}?") for i in range(30))[:20]
    assert hashes(build(file_settings).panels["ext240"])[:20] == gsm8k


def test_every_cut_of_the_training_source_is_level_stratified(file_settings):
    prepared = build(file_settings)
    for questions in (prepared.panels["val350"], prepared.panels["conf500"], prepared.pools["stencil"]):
        counts = Counter(question.level for question in questions)
        assert all(abs(counts[level] - len(questions) / 5) <= 1 for level in range(1, 6))


def test_stratified_order_keeps_every_question_and_unequal_levels_in_proportion():
    levels = [1] * 100 + [2] * 300 + [None] * 10
    questions = [Question(id=str(i), text=f"q{i}", answer="0", source="s", level=v) for i, v in enumerate(levels)]
    order = stratified_order(questions, seed=1)
    assert sorted(hashes(order)) == sorted(hashes(questions))
    for start in range(0, 400, 41):
        counts = Counter(question.level for question in order[start : start + 41])
        assert abs(counts[1] - 10) <= 2 and abs(counts[2] - 30) <= 2 and abs(counts[None] - 1) <= 1
    assert stratified_order(questions, seed=2) != order


def test_duplicates_are_kept_once_and_counted_and_other_sources_win_over_the_training_source(file_settings):
    path = Path(file_settings["sources"]["math"][0])
    lines = path.read_text().splitlines(keepends=True)
    planted = Path(file_settings["sources"]["math500"][0]).read_text().splitlines(keepends=True)[:2]
    path.write_text("".join([*lines, *lines[:3], *planted]))
    prepared = build(file_settings)
    everything = hashes([q for q in sum((prepared.panels | prepared.pools).values(), []) if q.source == "math"])
    assert len(set(everything)) == 200
    assert not set(hashes(prepared.panels["math500"])) & set(hashes(prepared.pools["pool"]))
    notes = prepared.manifest()["val350"].notes
    assert notes == "math: 205 rows, 3 duplicates dropped, 2 dropped that another source holds"


def test_too_small_a_source_is_named(file_settings):
    with pytest.raises(UserError, match="stencil needs 400 of source math, which has"):
        build(file_settings | {"stencil": 400})


def test_manifest_lists_identities_in_panel_order(tmp_path):
    prepared = build(SYNTHETIC)
    write_questions(prepared, tmp_path)
    manifest = read_manifest(tmp_path / "panels" / "manifest.json")
    assert manifest.keys() == SYNTHETIC["panels"].keys()
    for name, entry in manifest.items():
        assert entry.sha1_12 == hashes(read_questions(tmp_path / "panels" / f"{name}.jsonl"))
        assert entry.n == len(entry.sha1_12)
        assert all(re.fullmatch("[0-9a-f]{12}", identity) for identity in entry.sha1_12)
    assert manifest["ext240"].source == "20 short + 4 hard"
    for name, pool in prepared.pools.items():
        assert read_questions(tmp_path / "pools" / f"{name}.jsonl") == pool


def test_frozen_manifest_refuses_other_panels_and_another_order(tmp_path):
    frozen = tmp_path / "frozen.json"
    manifest = build(SYNTHETIC).manifest()
    write_manifest(frozen, manifest)
    check_frozen(manifest, frozen)
    with pytest.raises(UserError, match="frozen.json: panel .* differs from the frozen one in [0-9]+ identities"):
        check_frozen(build(SYNTHETIC | {"seed": 4}).manifest(), frozen)
    turned = manifest["conf500"].model_copy(update={"sha1_12": manifest["conf500"].sha1_12[::-1]})
    with pytest.raises(UserError, match="panel conf500 differs from the frozen one in the order of identities"):
        check_frozen(manifest | {"conf500": turned}, frozen)
    with pytest.raises(UserError, match="panel conf500 is only in the frozen manifest"):
        check_frozen({name: entry for name, entry in manifest.items() if name != "conf500"}, frozen)
    with pytest.raises(UserError, match="absent.json: No such file"):
        check_frozen(manifest, tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pols": 1}, "pols: Extra inputs are not permitted"),
        ({"kind": "hub"}, "does not match any of the expected tags"),
        ({"pool": None}, "pool: Input should be a valid integer"),
        ({"panels": {"a b": {"chain": 1}}}, "panels.a b"),
        ({"panels": {"val350": {"chain": 0}}}, "panels.val350.chain: Input should be greater than 0"),
        ({"panels": {"val350": {"math": 5}}, "pool_overlap": {}}, "sources: 'math' is not defined"),
        ({"training_source": "math"}, "sources: 'math' is not defined"),
        ({"pool_overlap": {"conf500": 51}}, "pool_overlap.conf500: 51 is more than the panel has"),
        ({"pool_overlap": {"conf": 1}}, "pool_overlap.conf: 1 is more than the panel has"),
        ({"pool_overlap": {"conf500": 31}}, "pool_overlap: more questions than the pool has"),
    ],
)
def test_wrong_settings_end_in_one_line_that_names_the_key(change, message):
    with pytest.raises(UserError, match=re.escape(message)) as raised:
        parse_settings(json.dumps(SYNTHETIC | change))
    assert "\n" not in str(raised.value)


def test_unreadable_manifest_names_panel_and_key(tmp_path):
    path = tmp_path / "manifest.json"
    path.write_text('{"val": {"n": 2, "source": "s", "sha1_12": ["0123456789ab"]}}')
    with pytest.raises(UserError, match="manifest.json: val: .*n is not the number of identities"):
        read_manifest(path)
    path.write_text('{"val": {"n": 1, "source": "s", "sha1_12": ["0123456789AB"]}}')
    with pytest.raises(UserError, match="manifest.json: val.sha1_12.0: "):
        read_manifest(path)


def test_real_files_rebuild_the_sizes_of_the_study():
    if not (DATA_DIR / "math_train_12k.jsonl.gz").exists():
        pytest.skip(f"{DATA_DIR} is absent")
    files = {
        "math": "math_train_12k.jsonl.gz",
        "math500": "math500.jsonl",
        "gsm8k": "gsm8k_test.jsonl",
        "amc23": "amc23.jsonl",
    }
    cuts = {name: {"math": n} for name, n in {"val350": 350, "sec500": 500, "conf500": 500, "fresh500": 500}.items()}
    prepared = build(
        {
            "kind": "files",
            "seed": 0,
            "sources": {name: [str(DATA_DIR / file)] for name, file in files.items()},
            "panels": cuts
            | {"math500": {"math500": 500}, "ext240": {"gsm8k": 200, "amc23": 40}, "val500": {"math": 500}},
            "parent": 100,
            "stencil": 600,
            "pool_overlap": {"conf500": 500, "fresh500": 500},
        }
    )
    six = [questions for name, questions in prepared.panels.items() if name != "val500"]
    assert len({identity for questions in six for identity in hashes(questions)}) == 2590
    assert len(prepared.pools["pool"]) == 11998 - 350 - 500 - 500 - 100 - 600


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--settings", "{"], "error: questions: Invalid JSON"),
        (["--settings", json.dumps(SYNTHETIC), "--frozen", "absent.json"], "error: absent.json: No such file"),
    ],
)
def test_script_ends_in_one_line_and_writes_nothing(tmp_path, arguments, message):
    script = Path(__file__).parents[2] / "workflow" / "scripts" / "prepare_questions.py"
    command = [sys.executable, str(script), "--out-dir", str(tmp_path / "out"), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith(message) and result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("used_by", ["parent", "stencil", "pool", "math500"])
def test_a_gold_that_fails_against_itself_stops_before_anything_is_written(tmp_path, file_settings, used_by):
    prepared = build(file_settings)
    broken = (prepared.pools | prepared.panels)[used_by][0]
    (path,) = file_settings["sources"][broken.source]
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    changed = [row | {"answer": r"\frac{1"} if row["id"] == broken.id else row for row in rows]
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in changed))
    script = Path(__file__).parents[2] / "workflow" / "scripts" / "prepare_questions.py"
    command = [sys.executable, str(script), "--out-dir", str(tmp_path / "out"), "--settings", json.dumps(file_settings)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"question {broken.id}: " in result.stderr and result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
