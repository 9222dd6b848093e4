"""Where questions come from."""

from dosematch.questions.question import Question

__all__ = ["Question"]
