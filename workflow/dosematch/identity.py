"""Content identity of questions: one hash decides, two looser ones are only reported (thinker-spec 3.2)."""

import hashlib
import unicodedata


def sha1_12(text: str) -> str:
    """First 12 lowercase hex digits of the SHA-1 of the raw UTF-8 text, unnormalised (thinker-spec 3.2)."""
    return hashlib.sha1(text.encode("utf-8")).hexdigest()[:12]


def sha1_12_norm(text: str) -> str:
    """`sha1_12` after Unicode NFC and whitespace collapse; reported beside it, never decides (thinker-spec 3.2)."""
    return sha1_12(" ".join(unicodedata.normalize("NFC", text).split()))


def sha1_12_alnum(text: str) -> str:
    """`sha1_12` of the casefolded letters and digits alone: a hint at near-duplicates, which may be wrong.

    It ignores signs and operators, so `$x+1$` and `$x-1$` share it.
    """
    folded = unicodedata.normalize("NFC", text).casefold()
    return sha1_12("".join(character for character in folded if character.isalnum()))
