"""The process that does the mathematics of grading: JSON lines in, JSON lines out, started and killed by `grading`.

Only this process imports sympy and math-verify. It parses answers with the LaTeX grammar alone: math-verify's reader
of plain expressions ends in `eval`, which model text must never reach.
"""

import json
import resource
import sys
import time

from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Basic, I, Pow, Symbol, postorder_traversal
from sympy.functions.combinatorial.factorials import CombinatorialFunction

LARGEST_ARGUMENT = 10_000
DECIMALS = 12  # where a decimal meets an exact value: 3.141593 is not pi
CPU_SECONDS = 30  # the parent's wall clock stops a request long before; this ends a worker whose parent has died
LATEX = LatexExtractionConfig(
    boxed_match_priority=-1,
    normalization_config=NormalizationConfig(basic_latex=True, malformed_operators=True, nits=True, boxed="none"),
)
IMAGINARY_UNIT = {Symbol("i", real=is_real): I for is_real in (False, True)}  # the grammar reads i as a symbol
# What sympy is known to raise on odd input; anything else ends the worker and is graded "error" by the parent.
SYMPY_FAULTS = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)


def compare(answer: str, gold: str) -> str:
    """Outcome of one comparison of normalised LaTeX: correct, wrong, unparsable, or error (of gold or of sympy)."""
    gold_side, answer_side = read(gold), read(answer)
    try:
        if not answer_side or any(map(is_too_large, answer_side)):
            return "unparsable"
        if not gold_side or any(map(is_too_large, gold_side)):
            return "error"
        gold_side, answer_side = ([item.xreplace(IMAGINARY_UNIT) for item in side] for side in (gold_side, answer_side))
        # verify unwraps `x=5` on one side only, so both orders are asked
        orders = [(gold_side, answer_side), (answer_side, gold_side)]
        equal = any(
            verify(*order, float_rounding=DECIMALS, timeout_seconds=None, raise_on_error=True) for order in orders
        )
    except SYMPY_FAULTS:
        return "error"
    return "correct" if equal else "wrong"


def read(latex: str) -> list[Basic]:
    """Parse LaTeX without evaluating it; an empty list when the grammar refuses it."""
    return parse(f"${latex}$", [LATEX], fallback_mode="no_fallback", parsing_timeout=None)


def is_too_large(expression: Basic) -> bool:
    """Whether a tree holds a power or factorial that sympy could not evaluate in reasonable time.

    Inner nodes come first, so that an argument is only evaluated once everything in it is known to be small.
    """
    for node in postorder_traversal(expression):
        if isinstance(node, (Pow, CombinatorialFunction)):
            argument = node.exp if isinstance(node, Pow) else node.args[0]
            if argument.is_number and abs(argument) > LARGEST_ARGUMENT:
                return True
    return False


def main(memory_bytes: int) -> None:
    """Serve requests until stdin closes; the first line out says that the imports and one comparison are done."""
    limit(resource.RLIMIT_AS, memory_bytes)
    reply(compare("x+1", "1+x"))
    for line in sys.stdin:
        limit(resource.RLIMIT_CPU, int(time.process_time()) + CPU_SECONDS)
        reply(compare(**json.loads(line)))


def limit(kind: int, amount: int) -> None:
    """Lower a soft limit; a hard limit set from outside is kept."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (amount if hard == resource.RLIM_INFINITY else min(amount, hard), hard))


def reply(outcome: str) -> None:
    """Write one line at once."""
    print(json.dumps({"outcome": outcome}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
