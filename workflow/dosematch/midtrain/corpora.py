"""Synthetic text on which a hidden thought can help: ledgers of modular arithmetic, shuffled cups, and filler (t5-spec 7).

Every document is a list of words, one token each. A problem belongs to one split by the hash of its words, so no two
splits share one, however many documents are drawn.
"""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from string import ascii_lowercase

OPEN, CLOSE, LEFT, RIGHT = "<t>", "</t>", "[", "]"
END, PAD = "<eos>", "<pad>"
LETTERS, DIGITS, CUPS = list(ascii_lowercase), list("0123456789"), list("rgbyk")
WORDS = [PAD, END, OPEN, CLOSE, LEFT, RIGHT, *"#@?=+-*:;.", "is", "and", *DIGITS, *LETTERS]
SPLITS = {"base": 50, "train": 75, "calibration": 85, "development": 90, "suite": 100}  # upper ends in hundredths
SUCCESSORS = 4  # letters that may follow a pair of letters in filler


@dataclass(frozen=True)
class Document:
    """Words of one document; `site` is the index that a thought would stand before, None in filler.

    `steps` are the true worked steps at that site, and `target` the word after it that they decide first.
    """

    id: str
    kind: str
    depth: int
    words: tuple[str, ...]
    site: int | None = None
    steps: tuple[str, ...] = ()
    target: int | None = None


@dataclass(frozen=True)
class Style:
    """How the documents of a split are written: depths, and how many show their steps, of which some are wrong."""

    ledger_depth: tuple[int, int]
    cups_depth: tuple[int, int]
    explicit: float
    corrupted: float


def split_of(words: tuple[str, ...]) -> str:
    """The one split that a problem may appear in."""
    place = int.from_bytes(hashlib.sha1(" ".join(words).encode()).digest()[:4], "big") % 100
    return next(split for split, end in SPLITS.items() if place < end)


def draw(kind: str, split: str, seed: int, index: int, style: Style) -> Document:
    """Document `index` of a kind; it depends on the arguments alone."""
    rng = random.Random(f"{seed}/{split}/{kind}/{index}")
    identity = f"{split}/{kind}/{index}"
    if kind == "filler":
        return Document(identity, kind, 0, filler(rng, rng.randint(30, 110)))
    problem = KINDS[kind]
    depth = rng.randint(*(style.ledger_depth if kind == "ledger" else style.cups_depth))
    while True:
        question, steps, answer, target = problem(rng, depth)
        if split_of(question) == split:
            break
    shown: list[str] = []
    if rng.random() < style.explicit:
        shown = [LEFT, *(w for step in steps for w in _perhaps_wrong(step, style.corrupted, rng)), RIGHT]
    words = (*question, *shown, *answer)
    flat = tuple(w for step in steps for w in step)
    return Document(identity, kind, depth, words, None if shown else len(question), flat, len(question) + target)


def ledger(rng: random.Random, depth: int) -> tuple[tuple[str, ...], list[list[str]], list[str], int]:
    """Assignments modulo 10, each on the one before: question, worked steps, answer, index of the decisive word in it.

    A step restates the values that it works on, `b 3 + 4 = 7`: without them a small model learns no step.
    """
    extra = rng.randint(0, 3)
    names = rng.sample(LETTERS, depth + extra)
    values = {names[0]: rng.randrange(10)}
    lines = [[names[0], "=", str(values[names[0]])]]
    steps = [list(lines[0])]
    for before, name in zip(names, names[1:depth], strict=False):
        sign = rng.choice("+-*")
        other = rng.choice([*values]) if rng.random() < 0.5 else str(rng.randrange(10))
        a, b = values[before], values[other] if other in values else int(other)
        values[name] = {"+": a + b, "-": a - b, "*": a * b}[sign] % 10
        lines.append([name, "=", before, sign, other])
        steps.append([name, str(a), sign, str(b), "=", str(values[name])])
    for name in names[depth:]:
        lines.insert(rng.randrange(len(lines) + 1), [name, "=", str(rng.randrange(10))])
    asked = names[depth - 1]
    question = ("#", *(word for line in lines for word in line), "?", asked)
    answer = f"is {values[asked]} and {asked} + 1 is {(values[asked] + 1) % 10} .".split()
    return question, steps, answer, 1


def cups(rng: random.Random, depth: int) -> tuple[tuple[str, ...], list[list[str]], list[str], int]:
    """Five coloured cups and `depth` swaps of two places; the steps are the order after every swap."""
    state = rng.sample(CUPS, len(CUPS))
    question = ["@", *(word for place, cup in enumerate(state, 1) for word in (cup, str(place))), ":"]
    steps = [list(state)]
    for _ in range(depth):
        i, j = rng.sample(range(len(CUPS)), 2)
        state[i], state[j] = state[j], state[i]
        question += [str(i + 1), str(j + 1)]
        steps.append(list(state))
    first, second = rng.sample(range(len(CUPS)), 2)
    answer = f"{first + 1} is {state[first]} and {second + 1} is {state[second]} .".split()
    return (*question, ";"), steps, answer, 2


KINDS: dict[str, Callable[[random.Random, int], tuple[tuple[str, ...], list[list[str]], list[str], int]]]
KINDS = {"ledger": ledger, "cups": cups}


def filler(rng: random.Random, length: int) -> tuple[str, ...]:
    """Second-order Markov text over the letters: no thought helps to predict it."""
    words = rng.choices(LETTERS, k=min(2, length))
    while len(words) < length:
        words.append(rng.choice(_successors(words[-2] + words[-1])))
    return (*words[:-1], ".")


@cache
def _successors(pair: str) -> str:
    return "".join(random.Random(f"filler/{pair}").choices(LETTERS, k=SUCCESSORS))


def _perhaps_wrong(step: list[str], share: float, rng: random.Random) -> list[str]:
    """The step, its last word replaced by another of its sort now and then, while the text goes on with the truth."""
    if rng.random() >= share:
        return step
    sort = DIGITS if step[-1] in DIGITS else CUPS
    return [*step[:-1], rng.choice([word for word in sort if word != step[-1]])]
