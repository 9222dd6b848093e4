"""The supplement: reproducible bytes, a size limit, and rebuilding every count from it alone (thinker-spec 15, C33)."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dosematch.errors import UserError
from dosematch.identity import sha1_12
from dosematch.questions.question import Question
from dosematch.records import read_json, write_json, write_jsonl, write_text
from dosematch.reporting.supplement import collect_golds, expect, regrade, write_supplement
from dosematch.reporting.tables import all_tables
from dosematch.statistics.settings import StudySettings
from dosematch.statistics.summary import build_summary

from .fixtures import synthetic_study as study

ROOT = Path(__file__).parents[2]
EVAL = "arms/{}/seed{}/eval_6panel_bs50.json"
ONE = EVAL.format("std_rlvr_cont", 42)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder of results and the index of its supplement."""
    folder = tmp_path_factory.mktemp("results")
    evals = {EVAL.format(record["arm"], record["seed"]): record for record in study.evaluations()}
    for name, record in evals.items():
        write_json(folder / name, record)
    logs = {
        f"arms/{arm}/seed{seed}/training.jsonl": study.training_rows(arm, seed) for arm, seed in study.trained_runs()
    }
    for name, rows in logs.items():
        write_jsonl(folder / name, rows)
    settings = StudySettings.model_validate(study.settings())
    write_json(folder / "audit/ancestry.json", study.ancestry())
    write_json(
        folder / "summary.json", build_summary(list(evals.values()), study.ancestry(), study.training(), settings)
    )
    tables = {f"tables/{table.name}.csv": table.csv() for table in all_tables(read_json(folder / "summary.json"))}
    for name, text in tables.items():
        write_text(folder / name, text)
    identities = [study.identity(panel, index) for panel, n in study.PANELS.items() for index in range(n)]
    index = {
        "settings": study.settings(),
        "golds": dict.fromkeys(identities, "7"),
        "summary": "summary.json",
        "ancestry": "audit/ancestry.json",
        "evals": list(evals),
        "training": list(logs),
        "tables": list(tables),
    }
    return folder, index


def pack(out: Path, results: tuple[Path, dict[str, Any]], limit: int = 2_000_000) -> Path:
    folder, index = results
    write_supplement(out, folder, [path for path in folder.rglob("*") if path.is_file()], index, limit)
    return out


def tampered(out: Path, results: tuple[Path, dict[str, Any]], member: str, change: Any) -> Path:
    """A supplement of which one JSON member was changed."""
    source = pack(out.with_name("sound.zip"), results)
    with zipfile.ZipFile(source) as sound, zipfile.ZipFile(out, "w") as changed:
        for name in sound.namelist():
            content = sound.read(name)
            if name == member:
                value = json.loads(content)
                change(value)
                content = json.dumps(value).encode()
            changed.writestr(name, content)
    return out


def test_every_count_is_rebuilt_from_the_archive(results: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    found = regrade(pack(tmp_path / "supplement.zip", results))
    assert (found["evaluations"], found["answers"], found["tables"]) == (6, 6 * sum(study.PANELS.values()), 7)
    assert found["bytes"] == (tmp_path / "supplement.zip").stat().st_size


def set_at(path: str, value: Any) -> Any:
    def change(record: Any) -> None:
        *parents, last = path.split("/")
        for key in parents:
            record = record[int(key) if isinstance(record, list) else key]
        record[int(last) if isinstance(record, list) else last] = value

    return change


@pytest.mark.parametrize(
    ("member", "path", "value", "message"),
    [
        (ONE, "panels/sec500/correct", 1, r"arm std_rlvr_cont seed 42: panels\.sec500\.correct: recorded 1, rebuilt"),
        (
            ONE,
            "panels/sec500/per_item_extracted",
            ["7"] * 50,
            r"panels\.sec500, recorded wrong: \d+ of \d+ answers grade",
        ),
        (
            ONE,
            "panels/sec500/per_item_extracted",
            ["8"] * 50,
            r"panels\.sec500, recorded right: 0 of \d+ answers grade",
        ),
        (ONE, "totals/all6/correct", 0, r"totals\.all6\.correct: recorded 0"),
        (ONE, "val350_verify_slow/triggers/both", 99, r"val350_verify_slow\.triggers\.both: recorded 99"),
        (
            ONE,
            "val350_verify_slow/confusion_matrix/fast_right/no",
            99,
            r"confusion_matrix\.fast_right\.no: recorded 99",
        ),
        (ONE, "val350_verify_slow/slow_wins", 99, r"slow_wins: recorded 99"),
        (ONE, "val350_verify_slow/per_item_slow_extracted", ["8"] * 35, r"val350_verify_slow, recorded right: 0 of"),
        ("summary.json", "contrasts/0/wins", 999, r"summary\.json: contrasts\.0\.wins: recorded 999, rebuilt"),
        ("summary.json", "training_diagnostics/std_rlvr_cont/42/mixed", 1, r"std_rlvr_cont\.42\.mixed: recorded 1"),
    ],
)
def test_the_first_difference_is_named(
    results: tuple[Path, dict[str, Any]], tmp_path: Path, member: str, path: str, value: Any, message: str
) -> None:
    archive = tampered(tmp_path / "changed.zip", results, member, set_at(path, value))
    with pytest.raises(UserError, match=message):
        regrade(archive)


def test_a_changed_table_is_named(results: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, index = results
    lines = (folder / "tables/table1.csv").read_text().splitlines()
    write_text(tmp_path / "table1.csv", "\n".join([*lines[:2], lines[2] + "0", *lines[3:]]))
    sound = pack(tmp_path / "sound.zip", results)
    with zipfile.ZipFile(sound) as archive, zipfile.ZipFile(tmp_path / "changed.zip", "w") as changed:
        for name in archive.namelist():
            if name != "supplement.json":
                changed.writestr(name, archive.read(name))
        changed.write(tmp_path / "table1.csv", "other/table1.csv")
        changed.writestr("supplement.json", json.dumps({**index, "tables": ["other/table1.csv"]}))
    with pytest.raises(UserError, match=r"other/table1\.csv: 2: recorded"):
        regrade(tmp_path / "changed.zip")


def test_answers_lost_by_the_grader_are_not_held_against_the_record(
    results: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    def lose(record: Any) -> None:
        panel = record["panels"]["val500"]
        index = panel["per_item_correct"].index(False)
        panel["per_item_extracted"][index], panel["per_item_outcome"][index] = "7", "timeout"

    assert regrade(tampered(tmp_path / "changed.zip", results, ONE, lose))["evaluations"] == 6


def test_the_same_records_give_the_same_bytes(results: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    first = pack(tmp_path / "first.zip", results)
    for path in results[0].rglob("*.json"):
        os.utime(path, (1, 1))
    assert pack(tmp_path / "second.zip", results).read_bytes() == first.read_bytes()
    names = zipfile.ZipFile(first).namelist()
    assert names == sorted(names)


def test_the_limit_is_named_and_nothing_written(results: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"supplement\.zip: the supplement has [\d,]+ bytes, above the limit of 5,000"):
        pack(tmp_path / "supplement.zip", results, limit=5_000)
    assert not list(tmp_path.iterdir())
    size = pack(tmp_path / "supplement.zip", results).stat().st_size
    pack(tmp_path / "exact.zip", results, limit=size)


def test_files_outside_the_root_are_refused(results: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    write_text(tmp_path / "stranger.txt", "x")
    with pytest.raises(UserError, match=r"stranger\.txt: is outside"):
        write_supplement(tmp_path / "s.zip", results[0], [tmp_path / "stranger.txt"], {}, 10**6)


def test_two_golds_for_one_question_are_refused() -> None:
    def question(answer: str) -> Question:
        return Question(id="q", text="How many?", answer=answer, source="s")

    assert collect_golds({"a": [question("1")], "b": [question("1")]}) == {sha1_12("How many?"): "1"}
    with pytest.raises(UserError, match=r"panel b: question .* has the gold answers '1' and '2'"):
        collect_golds({"a": [question("1")], "b": [question("2")]})


def test_expect_names_the_first_key() -> None:
    expect("x: ", {"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]})
    with pytest.raises(UserError, match=r"^x: a\.1\.b: recorded 2, rebuilt 3$"):
        expect("x: ", {"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]})
    with pytest.raises(UserError, match=r"^x: a: recorded \[1\], rebuilt \[1, 2\]$"):
        expect("x: ", {"a": [1]}, {"a": [1, 2]})


def test_damaged_archives_end_in_one_line(results: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    write_text(tmp_path / "no.zip", "no archive")
    done = call("regrade.py", "--supplement", tmp_path / "no.zip")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "no.zip" in done.stderr
    with zipfile.ZipFile(tmp_path / "foreign.zip", "w") as archive:
        archive.writestr("supplement.json", json.dumps({**results[1], "golds": None}))
    with pytest.raises(UserError, match=r"foreign\.zip: supplement\.json: golds: "):
        regrade(tmp_path / "foreign.zip")
    with zipfile.ZipFile(tmp_path / "empty.zip", "w") as archive:
        archive.writestr("supplement.json", json.dumps({**results[1], "evals": ["missing.json"]}))
    with pytest.raises(UserError, match=r"empty\.zip: missing\.json"):
        regrade(tmp_path / "empty.zip")


def call(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "workflow" / "scripts" / script), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow")}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_the_scripts_pack_and_regrade(results: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, index = results
    for panel, n in study.PANELS.items():
        texts = [study.question_text(panel, i) for i in range(n)]
        rows = [{"id": f"{panel}/{i}", "text": text, "answer": "7", "source": "s"} for i, text in enumerate(texts)]
        write_jsonl(tmp_path / f"{panel}.jsonl", rows)
    options = [f"--{name}={folder / path}" for name in ("evals", "training", "tables") for path in index[name]]
    options += [f"--{name}={folder / index[name]}" for name in ("summary", "ancestry")]
    options += [f"--panels={tmp_path / f'{panel}.jsonl'}" for panel in study.PANELS]
    options += [f"--settings={json.dumps(index['settings'])}", f"--root={folder}"]
    done = call("make_supplement.py", *options, f"--out={tmp_path / 's.zip'}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "s.zip").read_bytes() == pack(tmp_path / "t.zip", results).read_bytes()
    done = call("regrade.py", "--supplement", tmp_path / "s.zip", "--out", tmp_path / "regrade.json")
    assert done.returncode == 0, done.stderr
    assert read_json(tmp_path / "regrade.json")["evaluations"] == 6
