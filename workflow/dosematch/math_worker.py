"""The process that does the mathematics of grading: JSON lines in, JSON lines out, started and ended by `math_process`.

It imports sympy and math-verify once and forks a child for every comparison, so that every verdict starts from the same
state, whatever was graded before, and a child that is killed costs nothing but its own answer. It parses answers with
the LaTeX grammar alone: math-verify's reader of plain expressions ends in `eval`, which model text must never reach.
"""

import gc
import json
import math
import os
import resource
import select
import signal
import sys

from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Add, Basic, I, Mul, Number, Pow, Symbol, postorder_traversal
from sympy.functions.combinatorial.factorials import CombinatorialFunction

LARGEST_ARGUMENT = 10_000  # of exponents and factorials
LARGEST_BITS = 1 << 18  # of an exact number, about 79,000 digits
DECIMALS = 12  # where a decimal meets an exact value: 3.141593 is not pi
LATEX = LatexExtractionConfig(
    boxed_match_priority=-1,
    normalization_config=NormalizationConfig(basic_latex=True, malformed_operators=True, nits=True, boxed="none"),
)
IMAGINARY_UNIT = {Symbol("i", real=is_real): I for is_real in (False, True)}  # the grammar reads i as a symbol
# What sympy is known to raise on odd input; anything else ends the child and is graded "error" by the loop.
SYMPY_FAULTS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
# What loads the lazy parts of the grammar and of sympy before the first fork: algebra, sets, intervals, matrices.
WARM_UP = [
    ("x+1", "1+x"),
    (r"\sqrt{12}", r"2\sqrt{3}"),
    (r"\{3,1\}", r"\{1,3\}"),
    ("[2,5)", "[2,5]"),
    ("2x+4y-3=0", "y=1"),
    (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1&3\end{pmatrix}"),
    (r"\pm 3", "-3, 3"),
]


def compare(answer: str, gold: str) -> str:
    """Outcome of one comparison of normalised LaTeX.

    correct, wrong, unparsable, timeout (out of memory) or error (of the gold answer or of sympy).
    """
    try:
        gold_side, answer_side = read(gold), read(answer)
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
    except MemoryError:
        return "timeout"
    except SYMPY_FAULTS:
        return "error"
    return "correct" if equal else "wrong"


def read(latex: str) -> list[Basic]:
    """Parse LaTeX without evaluating it; an empty list when the grammar refuses it or it nests too deeply."""
    try:
        return parse(f"${latex}$", [LATEX], fallback_mode="no_fallback", parsing_timeout=None)
    except RecursionError:
        return []


def is_too_large(expression: Basic) -> bool:
    """Whether a tree holds a power or factorial that sympy could not evaluate in reasonable time.

    Inner nodes come first, so that an argument is only evaluated once everything in it is known to be small.
    """
    bits: dict[Basic, float] = {}
    for node in postorder_traversal(expression):
        if not isinstance(node, Basic):  # a matrix, whose entries have been seen
            continue
        if isinstance(node, (Pow, CombinatorialFunction)):
            argument = node.exp if isinstance(node, Pow) else node.args[0]
            if argument.is_number and not abs(argument) <= LARGEST_ARGUMENT:
                return True
        bits[node] = size_in_bits(node, bits)
        if bits[node] > LARGEST_BITS:
            return True
    return False


def size_in_bits(node: Basic, bits: dict[Basic, float]) -> float:
    """Upper estimate of the exact number that `node` becomes, from its arguments' `bits`; symbols count 1."""
    if isinstance(node, Number):
        return max(1.0, *(math.log2(abs(part) + 1) for part in (getattr(node, "p", 1), getattr(node, "q", 1))))
    if isinstance(node, Pow) and node.exp.is_number and node.base.is_number:
        return bits.get(node.base, 1.0) * max(1.0, float(abs(node.exp)))
    if isinstance(node, CombinatorialFunction) and node.args[0].is_number:
        argument = float(abs(node.args[0]))
        return argument * math.log2(argument + 2)
    parts = [bits.get(argument, 1.0) for argument in node.args]
    return sum(parts) if isinstance(node, (Add, Mul)) else max(parts, default=1.0)


def main(memory_bytes: int, cpu_seconds: float, wall_seconds: float) -> None:
    """Serve requests until stdin closes; the first line out says that the imports and some comparisons are done."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)  # a hard limit set from outside is kept
    resource.setrlimit(
        resource.RLIMIT_AS, (memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard), hard)
    )
    for answer, gold in WARM_UP:
        compare(answer, gold)
    gc.collect()
    gc.freeze()  # a child's collection then leaves the shared pages alone
    reply({"outcome": "correct", "cpu_seconds": 0.0, "peak_bytes": 0})
    for line in sys.stdin:
        reply(compare_in_child(json.loads(line), cpu_seconds, wall_seconds))


def compare_in_child(request: dict[str, str], cpu_seconds: float, wall_seconds: float) -> dict[str, str | float]:
    """The outcome of a request with what it cost; a child over a limit is a timeout, a child that dies an error."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # The timer counts this process's own computing, whatever else the machine does; unhandled, it kills at once.
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        os.write(writer, compare(**request).encode())
        os._exit(0)
    os.close(writer)
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    silent = not poller.poll(1000 * wall_seconds)
    if silent:
        os.kill(child, signal.SIGKILL)
    outcome = os.read(reader, 64).decode()
    os.close(reader)
    _, status, usage = os.wait4(child, 0)
    killed = silent or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF)
    return {
        "outcome": outcome or ("timeout" if killed else "error"),
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss * 1024,
    }


def reply(result: dict[str, str | float]) -> None:
    """Write one line at once."""
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
