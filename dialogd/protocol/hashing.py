"""The hash by which entries and texts are named: the first 64 bits of SHA-256, in hex."""

from __future__ import annotations

import hashlib


def digest(text: str | bytes) -> str:
    """Sixteen hex digits of SHA-256 (FIPS 180-4) over the UTF-8 bytes."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:16]
