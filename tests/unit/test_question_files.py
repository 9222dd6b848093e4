import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dosematch.errors import UserError
from dosematch.questions.files import read_questions
from dosematch.questions.question import Question

ROW = {"id": "a/1", "source": "A", "question": "What is\u2028$1+1$?", "answer": "2", "level": 3, "subject": "Algebra"}
QUESTION = Question(id="a/1", text="What is\u2028$1+1$?", answer="2", source="A", level=3)


def lines(*rows: object) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def test_plain_gzip_and_parquet_files_give_the_same_questions_in_file_order(tmp_path):
    rows = [ROW, ROW | {"id": "a/2", "level": None}]
    (tmp_path / "q.jsonl").write_bytes(lines(*rows))
    (tmp_path / "q.jsonl.gz").write_bytes(gzip.compress(lines(*rows)))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "q.parquet")
    expected = [QUESTION, QUESTION.model_copy(update={"id": "a/2", "level": None})]
    for name in ("q.jsonl", "q.jsonl.gz", "q.parquet"):
        assert read_questions(tmp_path / name) == expected


def test_panels_written_by_the_workflow_read_back(tmp_path):
    (tmp_path / "q.jsonl").write_bytes(lines(QUESTION.model_dump()))
    assert read_questions(tmp_path / "q.jsonl") == [QUESTION]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": None}, "line 2: answer: Input should be a valid string"),
        ({"answer": 27.0}, "line 2: answer: Input should be a valid string"),
        ({"question": ""}, "line 2: question: String should have at least 1 character"),
        ({"level": "Level 5"}, "line 2: level: Input should be a valid integer"),
    ],
)
def test_wrong_value_names_file_line_and_key(tmp_path, change, message):
    (tmp_path / "q.jsonl").write_bytes(lines(ROW, ROW | change))
    with pytest.raises(UserError, match=f"q.jsonl: {message}"):
        read_questions(tmp_path / "q.jsonl")


@pytest.mark.parametrize("key", ["id", "source", "question", "answer"])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_missing_field_names_file_place_and_key(tmp_path, key, kind):
    row = {name: value for name, value in ROW.items() if name != key}
    path = tmp_path / f"q.{kind}"
    if kind == "jsonl":
        path.write_bytes(lines(row))
    else:
        pq.write_table(pa.Table.from_pylist([row]), path)
    with pytest.raises(UserError, match=f"q.{kind}: (line|row) 1: {key}: Field required"):
        read_questions(path)


@pytest.mark.parametrize("line", [b"{", b"[1]", b"", b'{"id": "\\ud800"}', b"\xff\xfe"])
def test_line_that_is_no_row_names_file_and_line(tmp_path, line):
    (tmp_path / "q.jsonl").write_bytes(lines(ROW) + line + b"\n" + lines(ROW))
    with pytest.raises(UserError, match="q.jsonl: line 2: ") as raised:
        read_questions(tmp_path / "q.jsonl")
    assert "\n" not in str(raised.value)


def test_truncated_or_foreign_files_end_in_one_line(tmp_path):
    packed = gzip.compress(lines(*[ROW] * 50))
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "plain.jsonl.gz").write_bytes(lines(ROW))
    (tmp_path / "bent.jsonl.gz").write_bytes(packed[:20] + b"\x00" * 8 + packed[28:])
    pq.write_table(pa.Table.from_pylist([ROW]), tmp_path / "q.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "q.parquet").read_bytes()[:-20])
    (tmp_path / "q.csv").write_text("id,question\n")
    names = ["cut.jsonl.gz", "plain.jsonl.gz", "bent.jsonl.gz", "cut.parquet", "q.csv", "absent.jsonl"]
    for name in names:
        with pytest.raises(UserError, match=name) as raised:
            read_questions(tmp_path / name)
        assert "\n" not in str(raised.value)
