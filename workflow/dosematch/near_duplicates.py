"""Detectors of copied questions beyond the exact text: reported beside the exact audit, deciding nothing by default.

Every detector asks whether one training question resembles one panel question, so a further training question only ever
adds hits, and the order of questions does not matter.

- exact, normalised: equal `sha1_12`, equal `sha1_12_norm`; exact is contained in normalised.
- 13gram: one run of 13 tokens in common. 8gram: one training question holds half of the panel question's runs of 8.
  A question of fewer than n tokens has no run of n, so this detector cannot see it, not even an exact copy of it.
- template: equal normalised text once every number is `#`, signs kept. A template of fewer than `TEMPLATE_WORDS`
  words is not compared: `# + #` would match every sum.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from dosematch.identity import sha1_12, sha1_12_norm

TOKEN = re.compile(r"\d+|[^\W\d_]+")
WORD = re.compile(r"[^\W\d_]{2,}")
NUMBER = re.compile(r"\d+(?:,\d{3}(?!\d))*(?:\.\d+)?")
TEMPLATE_WORDS = 5
NGRAMS = {"8gram": (8, 0.5), "13gram": (13, 0.0)}  # detector -> n, share of the panel question's n-grams
DETECTORS = ("exact", "normalised", "8gram", "13gram", "template")
PLANTED = ("exact", "re-spaced", "renumbered")


def tokens(text: str) -> list[str]:
    """Runs of digits and runs of letters after NFC and casefolding; punctuation, signs and white space are dropped."""
    return TOKEN.findall(unicodedata.normalize("NFC", text).casefold())


def ngrams(text: str, n: int) -> frozenset[tuple[str, ...]]:
    """The distinct runs of `n` tokens; empty for a text of fewer than `n` tokens."""
    found = tokens(text)
    return frozenset(tuple(found[start : start + n]) for start in range(len(found) - n + 1))


def number_template(text: str) -> str | None:
    """Normalised text with every number as `#`, or None where fewer than `TEMPLATE_WORDS` words would be left."""
    template = NUMBER.sub("#", " ".join(unicodedata.normalize("NFC", text).split()))
    return template if len(WORD.findall(template)) >= TEMPLATE_WORDS else None


KEYS: dict[str, Callable[[str], str | None]] = {
    "exact": sha1_12,
    "normalised": sha1_12_norm,
    "template": number_template,
}


def find_copies(panel: Sequence[str], training: Sequence[str]) -> dict[str, list[list[int]]]:
    """For every detector and panel question the training questions that hit it: `{detector: [[place, ...], ...]}`.

    Places are indices into `training`, ascending. One pass over each side through an index, not over all pairs.
    """
    found = {name: _equal(panel, training, key) for name, key in KEYS.items()}
    found |= {name: _overlapping(panel, training, n, share) for name, (n, share) in NGRAMS.items()}
    return {name: found[name] for name in DETECTORS}


def unseen(panel: Iterable[str]) -> dict[str, int]:
    """How many panel questions are too short for each detector that has a least length."""
    texts = list(panel)
    counts = {name: sum(not ngrams(text, n) for text in texts) for name, (n, _) in NGRAMS.items()}
    return counts | {"template": sum(number_template(text) is None for text in texts)}


def _equal(panel: Sequence[str], training: Sequence[str], key: Callable[[str], str | None]) -> list[list[int]]:
    places: dict[str, list[int]] = {}
    for place, text in enumerate(training):
        if (value := key(text)) is not None:
            places.setdefault(value, []).append(place)
    return [list(places.get(key(text) or "", ())) for text in panel]


def _overlapping(panel: Sequence[str], training: Sequence[str], n: int, share: float) -> list[list[int]]:
    grams = [ngrams(text, n) for text in panel]
    holders: dict[tuple[str, ...], list[int]] = {}
    for index, own in enumerate(grams):
        for gram in own:
            holders.setdefault(gram, []).append(index)
    found: list[list[int]] = [[] for _ in panel]
    for place, text in enumerate(training):
        shared = Counter(index for gram in ngrams(text, n) for index in holders.get(gram, ()))
        for index, count in shared.items():
            if count >= share * len(grams[index]):
                found[index].append(place)
    return found


def planted(text: str) -> dict[str, str]:
    """The three planted copies of a question: exact, re-spaced, and with one added to every whole run of digits."""
    return {
        "exact": text,
        "re-spaced": " " + text.replace(" ", " \n "),
        "renumbered": re.sub(r"\d+", lambda run: str(int(run[0]) + 1), text),
    }


def planted_scores(panel: Sequence[str]) -> dict[str, dict[str, dict[str, float | int | None]]]:
    """Recall and precision of every detector on copies of every second panel question, by kind of copy.

    `{detector: {kind: {planted, found, false, recall, precision}}}`:
    found counts planted questions hit by their own copy, false the other questions that are hit. A renumbered copy of a
    question without digits is not planted; a ratio of nothing is null.
    """
    scores: dict[str, dict[str, dict[str, float | int | None]]] = {name: {} for name in DETECTORS}
    for kind in PLANTED:
        copies = {index: planted(text)[kind] for index, text in enumerate(panel) if index % 2 == 0}
        if kind != "exact":
            copies = {index: text for index, text in copies.items() if text != panel[index]}
        places = list(copies)
        for name, hits in find_copies(panel, list(copies.values())).items():
            found = sum(index in [places[place] for place in hits[index]] for index in places)
            false = sum(bool(hit) for index, hit in enumerate(hits) if index not in copies)
            scores[name][kind] = {
                "planted": len(places),
                "found": found,
                "false": false,
                "recall": found / len(places) if places else None,
                "precision": found / (found + false) if found + false else None,
            }
    return scores
