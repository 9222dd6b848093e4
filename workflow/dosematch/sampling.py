"""Counter-based randomness: a uniform is a pure function of its use, so order and resume change no token."""

import hashlib
import json

import numpy as np


def uniforms(
    n: int, *, study: str, seed: int, run: int, step: int, question: str, stage: str, rollout: int
) -> np.ndarray:
    """The first `n` uniforms in [0, 1) of one rollout, one per token position (float64 [n]).

    Arms are not part of the key: two arms that sample the same question at the same step share their random numbers.
    """
    key = philox_key(study=study, seed=seed, run=run, step=step, question=question, stage=stage, rollout=rollout)
    bits = np.random.Philox(key=key).random_raw(n)
    return (bits >> np.uint64(11)) * 2.0**-53


def philox_key(**counter: str | int) -> np.ndarray:
    """The 128-bit Philox key of a named counter (uint64 [2])."""
    message = json.dumps(counter, sort_keys=True).encode()
    return np.frombuffer(hashlib.blake2b(message, digest_size=16).digest(), dtype="<u8").astype(np.uint64)
