r"""Reads answers in model text: the last box, the fallback without one, verdicts, LaTeX normalisation (thinker-spec 4).

Everything here is string work in linear time: model text can be long and hostile, and is never evaluated.
"""

import re
from fractions import Fraction
from typing import Literal

Verdict = Literal["Yes", "No", "Invalid"]

# `\{` and `\}` are characters, not grouping braces; a doubled backslash before the command is a model's slip.
BOX_TOKEN = re.compile(
    r"\\{1,2}(?:boxed|fbox)(?![A-Za-z])\s*(?:(?P<open>\{)|(?P<bare>-?[0-9]+|[A-Za-z]))?|\\.|[{}]", re.S
)
NUMBER = re.compile(
    r"(?:(?<![\w)}\]])-)?(?:\\[dt]?frac\{[0-9]+\}\{[0-9]+\}|[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?(?:/[0-9]+)?|\.[0-9]+)"
)
ANSWER_IS = re.compile(r"answer\s+is", re.I)
SENTENCE_END = re.compile(r"\n|\.(?=\s|$)")
MATH_DELIMITER = re.compile(r"\$+|\\[()\[\]]")
WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")


def last_box(text: str) -> str | None:
    r"""Content of the complete `\boxed{...}` (or `\fbox{...}`) that opens last, None without one (thinker-spec 4).

    A box inside a box therefore wins over the outer one, and a box that is never closed does not count. Without
    braces TeX boxes the next token: `\boxed 7` holds 7.
    """
    best: slice | None = None
    open_braces: list[int | None] = []  # where a box's content starts, None for any other brace
    for token in BOX_TOKEN.finditer(text):
        if token["open"]:
            open_braces.append(token.end())
        elif token["bare"]:
            best = slice(*token.span("bare"))
        elif token[0] == "{":
            open_braces.append(None)
        elif token[0] == "}" and open_braces:
            start = open_braces.pop()
            if start is not None and (best is None or start > best.start):
                best = slice(start, token.start())
    return text[best] if best else None


def extract_answer(text: str) -> tuple[str | None, bool]:
    r"""The answer in a completion, and whether it stood in a box (thinker-spec 4).

    Without a box: the last number or expression of the sentence after the last "answer is", else the last number. An
    empty box holds no answer; a box that was opened and never closed means that the text was cut, so nothing in it is
    taken for an answer.
    """
    box = last_box(text)
    if box is not None:
        return box.strip() or None, True
    if any(token["open"] for token in BOX_TOKEN.finditer(text)):
        return None, False
    _, *tails = ANSWER_IS.split(text)
    stated = _stated_answer(SENTENCE_END.split(tails[-1], maxsplit=1)[0]) if tails else None
    return stated or _last_number(text), False


def _stated_answer(sentence: str) -> str | None:
    pieces = MATH_DELIMITER.split(sentence)
    if len(pieces) >= 3:
        return pieces[1::2][-1].strip()
    if WORD.search(sentence):
        return _last_number(sentence) or sentence.strip(" :*")
    return sentence.strip(" :*$")


def _last_number(text: str) -> str | None:
    numbers = NUMBER.findall(text)
    return numbers[-1] if numbers else None


def parse_verdict(text: str) -> Verdict:
    """Yes or No as the last box says it, in any case or wrapping; anything else is Invalid (thinker-spec 4)."""
    word = normalise(last_box(text) or "").strip("!'\"*").casefold()
    return "Yes" if word == "yes" else "No" if word == "no" else "Invalid"


SYMBOLS = str.maketrans(
    {
        "−": "-", "π": r"\pi ", "θ": r"\theta ", "∞": r"\infty ", "√": r"\sqrt ", "×": r"\times ", "·": r"\cdot ",
        "≤": r"\leq ", "≥": r"\geq ", "≠": r"\neq ", "∪": r"\cup ", "∩": r"\cap ", "²": "^2", "³": "^3",
        "°": r"^\circ ", "\u00a0": " ", "\u202f": " ", "\u2009": " ",
    }
)  # fmt: skip
TEXT_COMMAND = r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it|sf)|mbox|operatorname)\s*"
LIST_WORD = re.compile(r" ?,? ?(?:\\text\s*\{ ?(?:or|and) ?\}|(?<![A-Za-z\\])(?:or|and)(?![A-Za-z])) ?")
WRAPPED_TEXT = re.compile(TEXT_COMMAND + r"\{([^{}]*)\}")
ARGUMENT = r"(?:\{([^{}]*)\}|([0-9A-Za-z]|\\pi(?![A-Za-z])))"
REWRITES = [
    (re.compile(r"(?<=[0-9])(?:\{ ?, ?\}|, ?\\!) ?(?=[0-9]{3})"), ""),  # thousands
    # sizes, styles, spacing and dollar signs; the kept group protects the row break of a matrix
    (re.compile(r"\\(?:left|right)(?![A-Za-z])\.?|\\(?:displaystyle|textstyle|q?quad|[bB]igg?[lr]?)(?![A-Za-z])"), ""),
    (re.compile(r"(\\\\)|\\[,!;:>()\[\] ]|~|\\?\$"), r"\1"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\^ ?\{ ?\\circ ?\}|\^ ?\\circ(?![A-Za-z])|\\degree(?![A-Za-z])"), ""),
    # fractions: one command, braces around both arguments
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(rf"\\frac ?{ARGUMENT} ?{ARGUMENT}"), r"\\frac{\1\2}{\3\4}"),
    (re.compile(r"(?<=[_^])\{([0-9A-Za-z])\}(?![0-9])"), r"\1"),
    (re.compile(r"^ ?\(([A-Za-z])\) ?$"), r"\1"),  # an option letter
]
THOUSANDS = re.compile(r"(?<![0-9.,(\[{])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")  # outside brackets, which hold lists
LOOSE_SPACE = re.compile(r"(?<![A-Za-z]) | (?![A-Za-z])")


def normalise(answer: str) -> str:
    r"""One spelling for answers that differ only in LaTeX form, so that `==` compares them (thinker-spec 4).

    Unifies white space, sizes and styles, fraction commands, text wrappers, dollar and degree signs, thousands
    separators, Unicode symbols and final punctuation. Values and units are left as they are.
    """
    answer = " ".join(answer.translate(SYMBOLS).split())
    answer = LIST_WORD.sub(",", answer)
    n_unwrapped = 1
    while n_unwrapped:  # inside out
        answer, n_unwrapped = WRAPPED_TEXT.subn(r"\1", answer)
    for pattern, replacement in REWRITES:
        answer = pattern.sub(replacement, answer)
    answer = THOUSANDS.sub(lambda match: match[0].replace(",", ""), answer)
    # a space means something only between letters: `\sin x`, words
    return LOOSE_SPACE.sub("", answer).rstrip(".,;")


UNIT = re.compile(
    r" ?(?:\\(?:text|textrm|mbox)\s*\{([^{}]*)\}|\\mathrm\s*\{([A-Za-z ]{2,})\}|(\\?%)"
    r"|(?<=[0-9}]) ([A-Za-z]{2,}[A-Za-z ]*))(\^\{?[0-9]\}?)?$"
)


def split_unit(answer: str) -> tuple[str, str]:
    r"""Normalised value and unit of an answer such as `12\text{ cm}`, `35\%` or `15 square meters`; no unit is ""."""
    answer = " ".join(answer.split()).rstrip("$. ")
    match = UNIT.search(answer)
    value = normalise(answer[: match.start()]) if match else ""
    if not match or not value:
        return normalise(answer), ""
    return value, normalise("".join(filter(None, match.groups()))).casefold().rstrip("s")


INTEGER_OR_DECIMAL = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)")
FRACTION = re.compile(r"([+-]?)([0-9]*)\\frac\{([+-]?[0-9]+)\}\{(0*[1-9][0-9]*)\}|([+-]?[0-9]+)/(0*[1-9][0-9]*)")
REPEATING = re.compile(r"([+-]?)([0-9]*)\.([0-9]*)\\overline\{([0-9]+)\}")


def plain_number(normalised: str) -> Fraction | None:
    r"""Exact value of an integer, decimal, repeating decimal, fraction or mixed number (3\frac{1}{2}), else None."""
    if match := INTEGER_OR_DECIMAL.fullmatch(normalised):
        return Fraction(match[0])
    if match := FRACTION.fullmatch(normalised):
        sign, whole, top, bottom, slash_top, slash_bottom = match.groups()
        if slash_top:
            return Fraction(int(slash_top), int(slash_bottom))
        return _signed(sign, int(whole or 0) + Fraction(int(top), int(bottom)))
    if match := REPEATING.fullmatch(normalised):
        sign, whole, fixed, period = match.groups()
        repeated = Fraction(int(period), 10 ** len(fixed) * (10 ** len(period) - 1))
        return _signed(sign, Fraction(f"{whole or 0}.{fixed or 0}") + repeated)
    return None


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value
