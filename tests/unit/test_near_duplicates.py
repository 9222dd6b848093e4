"""Near-duplicate detectors: planted copies, and the properties that hold for any questions."""

import re

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from dosematch.audit import audit_ancestry, repeated
from dosematch.identity import sha1_12, sha1_12_norm
from dosematch.near_duplicates import (
    DETECTORS,
    find_copies,
    ngrams,
    number_template,
    planted,
    planted_scores,
    tokens,
    unseen,
)
from dosematch.questions.manifest import PanelEntry
from dosematch.questions.question import Question
from dosematch.statistics.paired import Items
from dosematch.statistics.policies import policy_totals
from dosematch.statistics.settings import StudySettings
from dosematch.streams import build_stream

WORDS = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnrs"]
LONG = [" ".join(WORDS[n : n + 12]) + f" has {n + 3} parts and -{n + 5} more, {WORDS[n]} says." for n in range(40)]
text = st.lists(st.sampled_from(["a", "sum", "of", "x", "12", "-3", "Find", "+", "the", "1,000", "2.5"]), min_size=1)
texts = st.lists(text.map(" ".join), min_size=1, max_size=6)


def hit(panel: str, training: str) -> set[str]:
    """The detectors that call `training` a copy of `panel`."""
    return {name for name, hits in find_copies([panel], [training]).items() if hits[0]}


def test_every_kind_of_planted_copy_is_found_by_its_detectors_and_by_no_stricter_one() -> None:
    question = LONG[0]
    copies = planted(question)
    assert hit(question, copies["exact"]) == set(DETECTORS)
    assert hit(question, copies["re-spaced"]) == set(DETECTORS) - {"exact"}
    assert "template" in hit(question, copies["renumbered"])
    assert not {"exact", "normalised"} & hit(question, copies["renumbered"])


def test_a_renumbered_problem_is_found_by_its_template_only() -> None:
    box = "A box has sides 3, 4, 5; find its diagonal."
    assert hit(box, "A box has sides 6, 8, 10; find its diagonal.") == {"template"}
    assert hit(box, "A box has sides -6, 8, 10; find its diagonal.") == set()
    assert hit("Compute 12+7.", "Compute 13+7.") == set()


def test_planted_recall_and_precision_count_what_was_planted() -> None:
    scores = planted_scores(LONG)
    assert scores["exact"]["exact"] == {"planted": 20, "found": 20, "false": 0, "recall": 1.0, "precision": 1.0}
    assert scores["exact"]["re-spaced"]["recall"] == scores["exact"]["renumbered"]["recall"] == 0.0
    assert scores["exact"]["re-spaced"]["precision"] is None  # it calls nothing a copy
    assert scores["normalised"]["re-spaced"]["recall"] == scores["template"]["renumbered"]["recall"] == 1.0
    sums = [f"What is the result of adding {n} and {n + 7} here?" for n in range(10)]
    assert planted_scores(sums)["template"]["renumbered"]["precision"] == 0.5  # one generator, one template


def test_a_question_shorter_than_n_has_no_ngram_and_is_counted_as_unseen() -> None:
    seven, eight = "one two three four five six seven", "one two three four five six seven eight"
    assert "8gram" not in hit(seven, seven)
    assert "8gram" in hit(eight, eight)
    assert "13gram" not in hit(eight, eight)
    assert unseen([seven, eight, "2 + 2"]) == {"8gram": 2, "13gram": 3, "template": 1}


def test_half_of_the_8grams_decides() -> None:
    panel = " ".join(WORDS[:15])  # eight 8-grams
    assert "8gram" in hit(panel, " ".join(WORDS[:11]))  # four of them
    assert "8gram" not in hit(panel, " ".join(WORDS[:10]))
    assert "13gram" in hit(panel, " ".join(WORDS[:13]))
    assert "13gram" not in hit(panel, " ".join(WORDS[:12]))


@given(texts, texts, text.map(" ".join))
def test_a_further_training_question_never_removes_a_hit_and_order_does_not_matter(
    panel: list[str], training: list[str], further: str
) -> None:
    before, after = find_copies(panel, training), find_copies(panel, [*training, further])
    backwards = find_copies(panel, training[::-1])
    for name in DETECTORS:
        for index in range(len(panel)):
            assert set(before[name][index]) <= set(after[name][index])
            assert sorted(len(training) - 1 - place for place in backwards[name][index]) == before[name][index]
            assert set(before["exact"][index]) <= set(before["normalised"][index])


@given(texts, texts)
def test_the_index_finds_what_comparing_all_pairs_finds(panel: list[str], training: list[str]) -> None:
    found = find_copies(panel, training)
    for index, own in enumerate(panel):
        for n, name, share in ((8, "8gram", 0.5), (13, "13gram", 0.0)):
            common = [len(ngrams(own, n) & ngrams(other, n)) for other in training]
            enough = [place for place, k in enumerate(common) if k and k >= share * len(ngrams(own, n))]
            assert found[name][index] == enough


@given(text, st.lists(st.sampled_from([" ", "\n", "\t", "  "]), min_size=30, max_size=30))
def test_spacing_never_changes_the_normalised_identity_or_the_template(words: list[str], gaps: list[str]) -> None:
    spaced = "".join(word + gap for word, gap in zip(words, gaps * len(words), strict=False))
    assert sha1_12_norm(spaced) == sha1_12_norm(" ".join(words))
    assert number_template(spaced) == number_template(" ".join(words))
    assert tokens(spaced) == tokens(" ".join(words))


@given(text.map(" ".join), st.integers(0, 200), st.sampled_from("0123456789+-"))
def test_one_changed_digit_or_sign_always_changes_the_normalised_identity(before: str, place: int, new: str) -> None:
    places = [match.start() for match in re.finditer(r"[0-9+-]", before)]
    assume(places)
    at = places[place % len(places)]
    assume(before[at] != new)
    assert sha1_12_norm(before[:at] + new + before[at + 1 :]) != sha1_12_norm(before)


def question(number: int, words: str) -> Question:
    return Question(id=str(number), text=words, answer="1", source="test")


def test_repeated_questions_and_conflicting_answers_are_listed() -> None:
    panel = [question(0, "q1"), question(1, "q2"), question(2, " q1"), question(3, "q3"), question(4, "q3")]
    panel[4] = panel[4].model_copy(update={"answer": "5"})
    assert repeated(panel) == [
        {"ids": ["0", "2"], "answers": ["1", "1"], "conflicting": False},
        {"ids": ["3", "4"], "answers": ["1", "5"], "conflicting": True},
    ]


def test_ancestry_names_seed_place_step_and_detector_of_a_near_duplicate() -> None:
    panel = [question(n, words) for n, words in enumerate(LONG[:3])]
    stencil = [question(9, "something else altogether"), question(10, planted(LONG[1])["re-spaced"])]
    stream = build_stream(7, 3, stencil, [question(11, LONG[30])], frozenset())
    entry = PanelEntry(n=3, source="test", sha1_12=[sha1_12(q.text) for q in panel], sha1_12_norm=None)
    audit = audit_ancestry({"conf": entry}, [question(12, LONG[2])], [stream], {"conf": panel})
    step = next(item.step for item in stream.items if item.question == stencil[1].text)
    (match,) = audit["near_duplicates"]["matches"]
    assert (match["train_seed"], match["panel"], match["index"]) == (7, "conf", 1)
    assert match["steps"] == {name: [step] for name in DETECTORS[1:]}
    counts = audit["near_duplicates"]["panels"]["conf"]
    assert counts["exact"] == {"parent": 1, "stream": {"7": 0}}
    assert counts["normalised"] == {"parent": 1, "stream": {"7": 1}}


def test_four_policies_drop_nothing_a_pair_an_item_and_the_near_duplicates() -> None:
    settings = StudySettings.model_construct(
        seeds=[1, 2], suites={"all": ["p"]}, contrasts=[], panels=["p"], suite_order=["all"]
    )
    items = Items(panel=np.array(["p"] * 4), sha1_12=np.array(list("abcd")))
    right = {"arm": {1: np.array([1, 1, 0, 1], bool), 2: np.array([1, 0, 0, 1], bool)}}
    matches = [{"sha1_12": "b", "steps": {"13gram": [4]}}, {"sha1_12": "d", "steps": {"template": [4]}}]
    ancestry = {"exposed": [{"train_seed": 1, "sha1_12": "a"}], "near_duplicates": {"matches": matches}}
    totals = policy_totals(right, items, ancestry, settings)
    assert {name: entry["arms"]["arm"]["all"] for name, entry in totals.items()} == {
        "keep": {"correct": 5, "n": 8},
        "drop_pair": {"correct": 4, "n": 7},
        "drop_both": {"correct": 3, "n": 6},
        "drop_near": {"correct": 2, "n": 4},
    }
