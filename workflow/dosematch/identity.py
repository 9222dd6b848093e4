"""Content identity of questions (thinker-spec 3.2)."""

import hashlib
import unicodedata


def sha1_12(text: str) -> str:
    """First 12 lowercase hex digits of the SHA-1 of the raw UTF-8 text, unnormalised (thinker-spec 3.2)."""
    return hashlib.sha1(text.encode("utf-8")).hexdigest()[:12]


def sha1_12_norm(text: str) -> str:
    """`sha1_12` after Unicode NFC and whitespace collapse; reported beside it, never decides (thinker-spec 3.2)."""
    return sha1_12(" ".join(unicodedata.normalize("NFC", text).split()))
