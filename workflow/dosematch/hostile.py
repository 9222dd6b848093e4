r"""Completions made to hurt a grader: what the tests and the benchmark of grading feed it (thinker-spec 4).

Every kind is a few patterns over a few sizes, so that one more size or pattern is one more number or line.
"""

from collections.abc import Iterator, Mapping, Sequence

DEPTHS = (10, 60, 150, 480)
LENGTHS = (50, 300, 990, 100_000, 1_000_000)
COUNTS = (5, 40, 150, 10_000)
EXPONENTS = (4, 7, 9, 30)  # powers of ten

# `{n}` is 10 to an exponent, written out
EXPRESSIONS = {
    "power": [
        "9^{{{n}}}",
        "({n}^{{{n}}})^{{{n}}}",
        "9^{{9^{{9^{{{n}}}}}}}",
        "(-{n})^{{-{n}}}",
        "0.5^{{{n}}}",
        "x^{{{n}}}",
    ],
    "expansion": ["(x+y+z)^{{{n}}}", "(1+\\sqrt{{2}})^{{{n}}}", "(x+1)^{{{n}}}-(1+x)^{{{n}}}", "(2+i)^{{{n}}}"],
    "factorial": ["{n}!", "(({n})!)!", "\\frac{{{n}!}}{{({n}-1)!}}", "\\binom{{{n}}}{{500}}", "\\binom{{2x}}{{{n}}}"],
    "function": [
        "\\sin({n}^{{{n}}})",
        "e^{{e^{{{n}}}}}",
        "\\log_{{{n}}}({n}!)",
        "\\lfloor e^{{{n}}} \\rfloor",
        "\\Gamma({n})",
        "\\sqrt[{n}]{{{n}}}",
        "\\gcd({n}!, {n})",
        "{n} \\mod 7",
        "\\arctan({n}^{{{n}}})",
    ],
    "endless": [
        "\\sum_{{k=1}}^{{{n}}} \\frac{{1}}{{k}}",
        "\\prod_{{k=1}}^{{{n}}} k",
        "\\int_0^{{{n}}} x^{{x^x}} dx",
        "\\lim_{{x \\to \\infty}} (1+\\frac{{1}}{{x}})^{{x^{{{n}}}}}",
        "\\sum_{{k=1}}^{{\\infty}} \\sin(k^{{{n}}})",
        "\\int_{{-\\infty}}^{{\\infty}} e^{{-x^{{{n}}}}} \\sin(x^x) dx",
    ],
}
NESTED = {  # opening, core, closing, repeated `depth` times on either side
    "braces": ("{", "1", "}"),
    "parentheses": ("(", "x", ")"),
    "fractions": (r"\frac{1}{1+", "x", "}"),
    "roots": (r"\sqrt{2+", "2", "}"),
    "powers": ("2^{", "2", "}"),
    "absolute": (r"\left|x-", "1", r"\right|"),
    "sets": (r"\{", "1", r"\}"),
    "intervals": ("[", "1,2", "]"),
    "text": (r"\text{", "a", "}"),
    "functions": (r"\sin(", "x", ")"),
    "boxes": (r"\boxed{", "5", "}"),
    "minus": ("-(", "5", ")"),
}
REPEATED = {  # repeated to a length
    "digits": "9",
    "zeros": "0",
    "commas": ",",
    "carets": "^",
    "backslashes": "\\",
    "open braces": "{",
    "minus": "-",
    "closing": "}",
    "boxes": r"\boxed",
    "answer is": "answer is ",
    "spaces": " ",
    "lines": "\n",
    "dollars": "$",
    "nul": "\0",
    "thousands": "1,000",
    "fraction": r"\frac",
    "words": "or and ",
    "fullwidth": "９",
    "joiners": "\u200d",
    "slashes": "1/",
}
LISTS = {  # items, joined by commas and put between two ends; or a matrix
    "set": (r"\{", r"\}"),
    "tuple": ("(", ")"),
    "plain": ("", ""),
    "union": (r"(0,1)\cup\{", r"\}"),
}
CODE = [
    "__import__('os').system('touch {path}')",
    'eval(\'open("{path}","w")\')',
    "exec(\"open('{path}','w')\")",
    "(lambda: open('{path}','w'))()",
    "().__class__.__base__.__subclasses__()",
    "[open('{path}','w') for _ in (1,)]",
    "x.__init__.__globals__['os'].system('touch {path}')",
    "Symbol('x').func(open('{path}','w'))",
    "1 if open('{path}','w') else 2",
    "sympify(\"open('{path}','w')\")",
    'parse_expr(\'open("{path}","w")\')',
    r"\input{{{path}}}",
    r"\write18{{touch {path}}}",
    r"\def\a{\a\a}\a",
    r"\newcommand{\b}{\b\b}\b",
    r"\loop\iftrue\repeat",
    r"\csname boxed\endcsname{5}",
    r"\let\x\boxed \x{5}",
    "{{ ''.__class__ }}",
    "${7*7}",
    "`touch {path}`",
    "$(touch {path})",
    "'; DROP TABLE items; --",
    "%n%s%x",
    "f'{open}'",
]
UNICODE = [
    "５",
    "٥",
    "५",
    "⁵",
    "Ⅴ",
    "⑤",
    "𝟓",
    "５．０",
    "１／２",
    "\u202e5\u202c",
    "\u200f5",
    "5\u200b",
    "\ufeff5",
    "5\x00",
    "\x005",
    "\ud800",
    "5\udfff",
    "5\u0301",
    "½",
    "√25",
    "∞−∞",
    "x̄",
    "五",
    "5\x1b[31m",
    "\U0001f600",
    "ﬁve",
    "İ",
    "ß",
    "5\x85",
    "5\u2028",
    "（５）",
    "｛５｝",
]


def hostile_completions(path: str = "/tmp/dosematch-was-here") -> dict[str, str]:
    """Completions by a name that says kind and size; code injections would create `path`."""
    return dict([*_boxed(path), *_long()])


def _boxed(path: str) -> Iterator[tuple[str, str]]:
    answers: list[tuple[str, str]] = []
    for kind, patterns in EXPRESSIONS.items():
        for number, pattern in enumerate(patterns):
            answers += [(f"{kind} {number}, 10^{e}", pattern.format(n=10**e)) for e in EXPONENTS]
    for kind, (opening, core, closing) in NESTED.items():
        answers += [(f"nested {kind} {n}", opening * n + core + closing * n) for n in DEPTHS]
    for kind, (opening, closing) in LISTS.items():
        answers += [(f"{kind} of {n}", opening + ",".join(map(str, range(n))) + closing) for n in COUNTS]
    answers += [(f"matrix {n}", matrix(n)) for n in (3, 12, 100)]
    answers += [(f"code {n}", code.replace("{path}", path)) for n, code in enumerate(CODE)]
    answers += [(f"unicode {n}", text) for n, text in enumerate(UNICODE)]
    for name, answer in answers:
        yield name, rf"So it is \boxed{{{answer}}}."


def _long() -> Iterator[tuple[str, str]]:
    for kind, piece in REPEATED.items():
        for length in LENGTHS:
            text = (piece * (length // len(piece) + 1))[:length]
            yield f"boxed {kind} {length}", rf"\boxed{{{text}}}"
            yield f"bare {kind} {length}", "The answer is " + text
    yield "ten to the ninth digits", "The answer is 10^{1000000000} digits: " + "7" * 1_000_000


def matrix(n: int) -> str:
    """An n by n matrix of distinct powers."""
    rows: Sequence[str] = ["&".join(f"{row}^{column}" for column in range(n)) for row in range(n)]
    return r"\begin{pmatrix}" + r"\\".join(rows) + r"\end{pmatrix}"


def kinds(completions: Mapping[str, str]) -> dict[str, int]:
    """How many completions there are of every kind, the first word of the name."""
    names = [name.split()[0] for name in completions]
    return {kind: names.count(kind) for kind in dict.fromkeys(names)}
