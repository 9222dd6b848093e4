import hashlib
import os
from pathlib import Path

import pytest

from dosematch.identity import sha1_12, sha1_12_alnum, sha1_12_norm
from dosematch.questions.files import read_questions

DATA_DIR = Path(os.environ.get("DATA_DIR", "../shared/data"))
PUBLISHED = {"4b62363e395a": "35", "b3f80a40762a": "128", "f84aa7fb39da": "160", "2469e33f6edb": "-2"}


def test_identity_is_the_start_of_the_sha1_of_the_utf8_bytes():
    text = "Café: $\\sqrt{3}$\n"
    assert sha1_12(text) == hashlib.sha1(text.encode()).hexdigest()[:12]
    assert sha1_12("abc") == "a9993e364706"


@pytest.mark.parametrize("other", [" What is 2?", "What is 2? ", "What  is 2?", "what is 2?", "What is 2 ?"])
def test_identity_sees_every_character(other):
    assert sha1_12(other) != sha1_12("What is 2?")


def test_normalised_identity_ignores_whitespace_and_unicode_composition_only():
    assert sha1_12_norm(" Cafe\u0301\n\tis  2 ") == sha1_12_norm("Caf\u00e9 is 2") == sha1_12("Caf\u00e9 is 2")
    assert sha1_12_norm("cafe is 2") != sha1_12_norm("Cafe is 2")


def test_alphanumeric_identity_ignores_signs_and_case():
    assert sha1_12_alnum("$x + 1$") == sha1_12_alnum("X-1")
    assert sha1_12_alnum("x+1") != sha1_12_alnum("x+2")


def test_published_exposed_identities_are_those_of_real_math_questions():
    path = DATA_DIR / "math_train_12k.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    found = {identity: q.answer for q in read_questions(path) if (identity := sha1_12(q.text)) in PUBLISHED}
    assert found.keys() == PUBLISHED.keys()
    assert all(PUBLISHED[identity] in answer for identity, answer in found.items())
