"""Rewards of completions: right answers, or a coin as a control."""

import hashlib

from dosematch.episodes.episode import Reward
from dosematch.grading import Grader


def answer_reward(grader: Grader) -> Reward:
    """True when the grader finds the text's answer correct."""

    def reward(text: str, gold: str) -> bool:
        return grader.grade(text, gold).correct

    return reward


def random_reward(study: str, seed: int, run: int) -> Reward:
    """A fair coin that ignores the reference answer and is the same for the same text (a control, not a method)."""

    def reward(text: str, gold: str) -> bool:  # noqa: ARG001  the point of the control
        return hashlib.sha256(f"{study}/{seed}/{run}/{text}".encode()).digest()[0] < 128

    return reward
