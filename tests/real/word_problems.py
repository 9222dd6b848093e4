"""Word problems of this project's own, for machines without the real files; answers are computed, not typed."""

import gzip
import random
from pathlib import Path

from dosematch.records import json_line

TEMPLATES = [
    ("A baker fills {a} trays with {b} rolls each and then sells {c} rolls. How many rolls are left?", lambda a, b, c: a * b - c),
    ("A bus with {c} passengers takes on {b} more at each of {a} stops. How many are on it then?", lambda a, b, c: c + a * b),
    ("A farm has {a} fields with {b} trees each and plants {c} more trees. How many trees has it?", lambda a, b, c: a * b + c),
    ("Ida reads {b} pages a day for {a} days of a book of {d} pages. How many pages remain?", lambda a, b, c: c),
]  # fmt: skip


def problems(source: str, n: int, seed: int) -> list[dict[str, str]]:
    """`n` different problems in the fields of a question file."""
    rng = random.Random(seed)
    rows: dict[str, dict[str, str]] = {}
    while len(rows) < n:
        a, b, c = rng.randint(4, 12), rng.randint(6, 20), rng.randint(2, 20)
        text, answer = TEMPLATES[len(rows) % len(TEMPLATES)]
        question = text.format(a=a, b=b, c=c, d=a * b + c)
        row = {"id": f"{source}/{len(rows)}", "source": source, "question": question, "answer": str(answer(a, b, c))}
        rows.setdefault(question, row)
    return list(rows.values())


def write_fixture(folder: Path) -> None:
    """Write the three files that the scale reads."""
    for name, n, seed in (("gsm8k_train.jsonl.gz", 40, 1), ("gsm8k_test.jsonl", 16, 2), ("math500.jsonl", 16, 3)):
        content = "".join(map(json_line, problems(name.split(".")[0], n, seed))).encode()
        (folder / name).write_bytes(gzip.compress(content, mtime=0) if name.endswith(".gz") else content)
