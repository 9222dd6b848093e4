"""Boxes, the fallback, verdicts, normalisation (thinker-spec 4)."""

import time
from fractions import Fraction

import pytest

from dosematch.answers import extract_answer, last_box, normalise, parse_verdict, plain_number, split_unit

HOSTILE = [
    "\\boxed{" * 150_000,
    "\\boxed{" * 80_000 + "}" * 80_000,
    "\\" * 1_000_000,
    "\\boxed" + " " * 1_000_000,
    "answer" + " " * 1_000_000,
    "answer is " * 100_000,
    "$" * 1_000_000,
    "\\(" * 500_000,
    "9" * 1_000_000,
    "1,234" * 200_000,
    "\\frac{1" * 150_000,
    "-" * 1_000_000,
]


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"So $\boxed{\frac{\sqrt{5}}{2}}$.", r"\frac{\sqrt{5}}{2}"),
        (r"First \boxed{12}, no: \boxed{17}.", "17"),
        (r"\boxed{12} and then \boxed{1", "12"),
        (r"\boxed{128", None),
        (r"Domain: \boxed{\left\{x>0\right.}", r"\left\{x>0\right."),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{a \} b}", r"a \} b"),
        (r"\boxed {7}", "7"),
        (r"\boxed 7.", "7"),
        (r"\fbox{$\frac{1}{6}$}", r"$\frac{1}{6}$"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\boxed{}", ""),
        (r"} \boxed{3} }", "3"),
        (r"\\boxed{3}", "3"),
        (r"\begin{matrix}1\\{2}\end{matrix}", None),
        (r"\boxedness{3}", None),
        ("boxed{3}", None),
        ("", None),
    ],
)
def test_last_box(text: str, content: str | None) -> None:
    assert last_box(text) == content


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"The answer is 3. So \boxed{4}", ("4", True)),
        (r"\boxed{ }", (None, True)),
        ("The answer is 42.", ("42", False)),
        ("The answer is 3 + 4 = 7 apples. There were 9 before.", ("7", False)),
        ("the answer is 1. No, the ANSWER IS: 2\nDone 3.", ("2", False)),
        (r"The answer is $\frac{1}{2}$ of it.", (r"\frac{1}{2}", False)),
        (r"The answer is \frac{1}{2}.", (r"\frac{1}{2}", False)),
        ("The answer is $18.", ("18", False)),
        ("The answer is Tuesday.", ("Tuesday", False)),
        ("I add 3 and 4 to get 7\nA: 7", ("7", False)),
        ("It costs 1,234.50 in all", ("1,234.50", False)),
        ("5-3 makes 2, less 9-8", ("8", False)),
        ("we get x = -3", ("-3", False)),
        (r"so it is \frac{3}{4}", (r"\frac{3}{4}", False)),
        ("I cannot solve this.", (None, False)),
        (r"There are 12, the answer is \boxed{128", (None, False)),
        ("", (None, False)),
    ],
)
def test_extract_answer(text: str, expected: tuple[str | None, bool]) -> None:
    assert extract_answer(text) == expected


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: f"{text[:12]!r}")
def test_hostile_text_takes_linear_time(text: str) -> None:
    start = time.process_time()
    extract_answer(text)
    parse_verdict(text)
    assert time.process_time() - start < 3


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (r"Yes, but step 3 divides by zero: \boxed{No}", "No"),
        (r"\boxed{\text{yes.}}", "Yes"),
        (r"\boxed{YES}", "Yes"),
        (r"\boxed{ **no** }", "No"),
        (r"\boxed{No} or rather \boxed{Yes}", "Yes"),
        (r"\boxed{Yes/No}", "Invalid"),
        (r"\boxed{Yes", "Invalid"),
        (r"\boxed{not sure}", "Invalid"),
        (r"\boxed{}", "Invalid"),
        ("Yes", "Invalid"),
    ],
)
def test_parse_verdict(text: str, verdict: str) -> None:
    assert parse_verdict(text) == verdict


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\left( 1,\, 2 \right]", "(1,2]"),
        (r"\dfrac{3}{7}", r"\frac37"),
        (r"\tfrac 3{7}", r"\frac{3}{7}"),
        (r"\frac\pi2", r"\frac{\pi}{2}"),
        (r"\text{Tuesday}", "Tuesday"),
        (r"\textbf{\text{(C)}}", "C"),
        (r"\$18", "18"),
        ("$x$", "x"),
        ("10{,}000", "10000"),
        (r"1,\!234,\!567", "1,234,567"),
        (r"10\,080", "10080"),
        ("42.", "42"),
        (r"45^\circ", "45"),
        (r"60^{\circ}", "60"),
        (r"\frac{45^\circ}{2}", r"\frac{45}{2}"),
        ("1011_{2}", "1011_2"),
        ("−7", "-7"),
        ("2π", r"2\pi"),
        (r"\displaystyle\frac{1}{2}\,", r"\frac12"),
        (r"1\text{ or }2", "1, 2"),
        ("1, 2, and 3", "1,2,3"),
        (r"3\%", "3 %"),
    ],
)
def test_normalise_unifies_spellings(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("12,34", "1234"),
        ("3,5,7", "357"),
        ("(1,234)", "(1234)"),
        (r"\frac12", r"\frac21"),
        ("[2,5)", "[2,5]"),
        (r"2\%", "2"),
        (r"12\text{ cm}", "12"),
        (r"\sin x", r"\sinx"),
        (r"\leftarrow", "arrow"),
        (r"1\\ 2", r"1\2"),
        ("2^{10}", "2^{11}"),
        ("x^{2}3", "x^{23}"),
        (r"\log_{2}8", r"\log_{28}"),
        ("a b", "c d"),
    ],
)
def test_normalise_keeps_differences(one: str, other: str) -> None:
    assert normalise(one) != normalise(other)


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        (r"12\text{ cm}", ("12", "cm")),
        (r"12\text{ cm}^2", ("12", "cm^2")),
        (r"15 square meters", ("15", "square meter")),
        (r"35\%", ("35", "%")),
        (r"5\mathrm{km}", ("5", "km")),
        (r"\text{Tuesday}", ("Tuesday", "")),
        ("12x", ("12x", "")),
        ("3 x", ("3x", "")),
        ("7", ("7", "")),
    ],
)
def test_split_unit(answer: str, parts: tuple[str, str]) -> None:
    assert split_unit(answer) == parts


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("033", Fraction(33)),
        ("-.25", Fraction(-1, 4)),
        ("5.", Fraction(5)),
        (r"-3\frac{1}{2}", Fraction(-7, 2)),
        (r"\frac{-3}{6}", Fraction(-1, 2)),
        ("-6/4", Fraction(-3, 2)),
        (r"0.1\overline{6}", Fraction(1, 6)),
        (r"-.\overline{3}", Fraction(-1, 3)),
        (r"\frac{1}{0}", None),
        ("1/00", None),
        ("1e999999999", None),
        (".", None),
        ("x", None),
        ("1_000", None),
        ("٣", None),
        ("", None),
    ],
)
def test_plain_number(text: str, value: Fraction | None) -> None:
    assert plain_number(text) == value
