"""The supplement: all records of a study in one reproducible archive, and rebuilding them from it (thinker-spec 15)."""

import io
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from dosematch.errors import UserError
from dosematch.evaluation_record import TOTALS, regrade_counts, suite_total, verify_slow_record
from dosematch.identity import sha1_12
from dosematch.questions.files import first_problem
from dosematch.questions.question import Question
from dosematch.records import sha256_file, write_atomically
from dosematch.reporting.tables import all_tables
from dosematch.statistics.paired import where
from dosematch.statistics.settings import StudySettings
from dosematch.statistics.summary import build_summary

INDEX = "supplement.json"
TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # the earliest that the format knows
METHOD = zipfile.ZIP_BZIP2  # its blocks are wider than deflate's window: a fifth smaller for the long lists of items
LOST = ("timeout", "error")  # outcomes of the grader, not of the answer: another day may decide them
Record = Mapping[str, Any]


class Index(BaseModel):
    """What the archive holds: study settings, gold answers by identity, and the names of its records."""

    settings: StudySettings
    golds: dict[str, str]
    summary: str
    ancestry: str
    evals: list[str]
    training: list[str]
    tables: list[str]


def collect_golds(panels: Mapping[str, Sequence[Question]]) -> dict[str, str]:
    """Gold answers by identity; raises `UserError` for one question with two different golds."""
    golds: dict[str, str] = {}
    for panel, questions in panels.items():
        for question in questions:
            identity = sha1_12(question.text)
            if golds.setdefault(identity, question.answer) != question.answer:
                raise UserError(
                    f"panel {panel}: question {identity} has the gold answers {golds[identity]!r} and "
                    f"{question.answer!r}, so its grades cannot be rebuilt"
                )
    return golds


def write_supplement(out: Path, root: Path, files: Iterable[Path], index: Mapping[str, Any], max_bytes: int) -> None:
    """Write the zip of `files`, named relative to `root`, with `index` as supplement.json.

    The same contents give the same bytes: members are sorted and carry no date or owner. Raises `UserError` naming the
    size and the limit, and writes nothing, when the archive is larger than `max_bytes`; also for a file outside `root`.
    """
    members = {INDEX: (json.dumps(index, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()}
    for path in files:
        members[member_name(path, root)] = path.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", METHOD) as archive:
        for name in sorted(members):
            info = zipfile.ZipInfo(name, TIMESTAMP)
            info.compress_type, info.create_system, info.external_attr = METHOD, 3, 0o644 << 16
            archive.writestr(info, members[name])
    size = buffer.tell()
    if size > max_bytes:
        raise UserError(f"{out}: the supplement has {size:,} bytes, above the limit of {max_bytes:,} (--max-bytes)")

    def write(target: Path) -> None:
        target.write_bytes(buffer.getvalue())

    write_atomically(out, write)


def member_name(path: Path, root: Path) -> str:
    """A file's name in the archive; raises `UserError` for a file outside `root`."""
    if not path.resolve().is_relative_to(root.resolve()):
        raise UserError(f"{path}: is outside the folder {root} that the supplement is made from")
    return path.resolve().relative_to(root.resolve()).as_posix()


def regrade(supplement: Path) -> dict[str, Any]:
    """Rebuild every count from the archive alone and compare it with the recorded one (C33).

    Every extracted answer is graded again, every record's counts are rebuilt from its items, the summary from the
    records, and the tables from the summary. Returns `{evaluations, answers, tables, bytes, sha256}`; raises
    `UserError` naming the first difference.
    """
    try:
        archive = zipfile.ZipFile(supplement)
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{supplement}: {error}") from None
    with archive:
        read = partial(_member, archive, supplement)
        index = _index(read(INDEX), supplement)
        evals = [json.loads(read(name)) for name in index.evals]
        for record in evals:
            check_record(record, index.golds, index.settings)
        rows = [json.loads(line) for name in index.training for line in read(name).splitlines()]
        ancestry, recorded = json.loads(read(index.ancestry)), json.loads(read(index.summary))
        rebuilt = json.loads(json.dumps(build_summary(evals, ancestry, rows, index.settings), sort_keys=True))
        expect(f"{index.summary}: ", recorded, rebuilt)
        tables = {f"{table.name}.csv": table.csv() for table in all_tables(rebuilt)}
        for name in index.tables:
            expect(f"{name}: ", read(name).decode().splitlines(), tables[Path(name).name].splitlines())
    answers = sum(panel["n"] for record in evals for panel in record["panels"].values())
    counts = {"evaluations": len(evals), "answers": answers, "tables": len(index.tables)}
    return counts | {"bytes": supplement.stat().st_size, "sha256": sha256_file(supplement)}


def _index(text: bytes, supplement: Path) -> Index:
    try:
        return Index.model_validate_json(text)
    except ValidationError as error:
        raise UserError(f"{supplement}: {INDEX}: {first_problem(error)}") from None


def _member(archive: zipfile.ZipFile, supplement: Path, name: str) -> bytes:
    try:
        return archive.read(name)
    except (KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{supplement}: {name}: {error}") from None


def check_record(record: Record, golds: Mapping[str, str], settings: StudySettings) -> None:
    """Grade a record's answers again and rebuild its counts; raises `UserError` naming the first difference."""
    place = f"evaluation of {where(record)}: "
    for name, panel in record["panels"].items():
        lists = [panel[f"per_item_{column}"] for column in ("sha1", "extracted", "correct", "outcome")]
        items = [item[:3] for item in zip(*lists, strict=True) if item[3] not in LOST]
        _expect_grades(f"{place}panels.{name}", items, golds)
        correct = sum(panel["per_item_correct"])
        rebuilt = {"n": len(panel["per_item_sha1"]), "correct": correct, "accuracy": correct / panel["n"]}
        expect(f"{place}panels.{name}.", {key: panel[key] for key in rebuilt}, rebuilt)
    totals = {total: suite_total(record["panels"], settings.suites, suite) for total, suite in TOTALS.items()}
    expect(f"{place}totals.", record["totals"], totals)
    if settings.verify_slow_panel:
        _check_verify_slow(record, settings.verify_slow_panel, golds, place)


def _check_verify_slow(record: Record, panel: str, golds: Mapping[str, str], place: str) -> None:
    key = f"{panel}_verify_slow"
    recorded, fast = record[key], record["panels"][panel]
    columns = [recorded[f"per_item_{name}"] for name in ("sha1", "slow_extracted", "slow_correct", "triggered")]
    _expect_grades(place + key, [item[:3] for item in zip(*columns, strict=True) if item[3]], golds)
    lists = (recorded["per_item_verdict"], recorded["per_item_missing_fast_box"])
    verify = [
        {"verdict": verdict, "missing_fast_box": boxless, "triggered": verdict == "No" or boxless}
        for verdict, boxless in zip(*lists, strict=True)
    ]
    fast_rows = [
        {"sha1_12": sha1, "correct": right}
        for sha1, right in zip(fast["per_item_sha1"], fast["per_item_correct"], strict=True)
    ]
    slow = [
        {"extracted": extracted, "correct": right}
        for extracted, right in zip(recorded["per_item_slow_extracted"], recorded["per_item_slow_correct"], strict=True)
    ]
    expect(f"{place}{key}.", recorded, verify_slow_record(fast_rows, verify, slow))


def _expect_grades(place: str, items: Sequence[tuple[str, str | None, bool]], golds: Mapping[str, str]) -> None:
    """Grade (identity, answer, recorded correct) again: all recorded right must be right, and no recorded wrong."""
    parts = {right: [item for item in items if item[2] == right] for right in (True, False)}
    panels = {
        f"{place}, recorded {'right' if right else 'wrong'}": {
            "per_item_sha1": [identity for identity, _, _ in chosen],
            "per_item_extracted": [extracted for _, extracted, _ in chosen],
        }
        for right, chosen in parts.items()
    }
    counts = regrade_counts({"panels": panels}, golds)
    for (name, found), right in zip(counts.items(), parts, strict=True):
        expected = found["n"] if right else 0
        if found["correct"] != expected:
            raise UserError(f"{name}: {found['correct']} of {found['n']} answers grade correct, not {expected}")


def expect(place: str, recorded: Any, rebuilt: Any) -> None:
    """Raise `UserError` naming the first key, below `place`, in which two JSON values differ."""
    if isinstance(recorded, dict) and isinstance(rebuilt, dict) and recorded.keys() == rebuilt.keys():
        for key in sorted(recorded):
            expect(f"{place}{key}.", recorded[key], rebuilt[key])
    elif isinstance(recorded, list) and isinstance(rebuilt, list) and len(recorded) == len(rebuilt):
        for position, pair in enumerate(zip(recorded, rebuilt, strict=True)):
            expect(f"{place}{position}.", *pair)
    elif recorded != rebuilt:
        raise UserError(f"{place.rstrip('.: ')}: recorded {_short(recorded)}, rebuilt {_short(rebuilt)}")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
