"""What holds for every text: nothing raises, boxes round-trip, numbers are read exactly (thinker-spec 4)."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from dosematch.answers import extract_answer, last_box, normalise, parse_verdict, plain_number, split_unit
from dosematch.grading import compare_as_text

PIECES = st.sampled_from(
    ["\\boxed", "\\fbox", "{", "}", "\\{", "\\}", "\\", "$", "\\frac", "\\text", "\\left", "\\right", "\\overline", "^",
     "_", "answer is ", "yes", "no", " or ", ",", ".", "/", "-", "12", "000", "x", " ", "\n", "\\circ", "%", "é", "½"]
)  # fmt: skip
LATEX_SOUP = st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join))
BALANCED = st.recursive(
    st.text(st.sampled_from("ab1+ "), max_size=5) | st.sampled_from([r"\{", r"\}", r"\\"]),
    lambda inner: st.lists(inner | inner.map(lambda content: f"{{{content}}}"), max_size=4).map("".join),
)


@given(LATEX_SOUP, LATEX_SOUP)
def test_nothing_raises(text: str, gold: str) -> None:
    answer, has_box = extract_answer(text)
    assert has_box == (last_box(text) is not None)
    assert answer is None or answer
    assert parse_verdict(text) in {"Yes", "No", "Invalid"}
    for function in (normalise, split_unit, plain_number):
        function(text)
    compare_as_text(text, gold)


@given(LATEX_SOUP.filter(lambda text: "box" not in text), BALANCED, st.text(st.sampled_from("ab1 \n$"), max_size=8))
def test_last_box_round_trips_over_balanced_braces(before: str, content: str, after: str) -> None:
    boxed = f" \\boxed{{{content}}}{after}"
    assert last_box(boxed) == content
    assert last_box("\\boxed{0} " + before.replace("\\", "") + boxed) == content


@given(BALANCED)
def test_an_unclosed_box_holds_nothing(content: str) -> None:
    assert last_box(f"\\boxed{{{content}") is None


@given(LATEX_SOUP)
def test_an_answer_equals_itself_and_its_spaced_form(answer: str) -> None:
    assert normalise(answer) == normalise(f"  {answer}\n")


@given(st.fractions(), st.booleans())
def test_fractions_are_read_exactly(value: Fraction, slash: bool) -> None:
    top, bottom = value.numerator, value.denominator
    assert plain_number(f"{top}/{bottom}" if slash else normalise(rf"\dfrac{{{top}}}{{{bottom}}}")) == value


@given(st.integers(0, 10**12))
def test_thousands_separators_change_nothing(value: int) -> None:
    for spelling in (f"{value:,}", f"{value:,}".replace(",", "{,}"), f"{value:,}".replace(",", r"\,")):
        assert plain_number(normalise(spelling)) == value
