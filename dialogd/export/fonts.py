"""Which characters no font of this machine shows: a PDF would hold boxes in their place."""

from __future__ import annotations

import struct
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

# What Typst's own fonts show, as good as all of it: Latin, Greek, Cyrillic; punctuation to geometric shapes.
_EMBEDDED = (range(0x0530), range(0x1E00, 0x2600))
_SHOWN = frozenset("LNPS")  # first letters of the categories that have a glyph of their own


def missing(text: str, fonts: Iterable[str]) -> str:
    """The characters of a text, each once, that neither Typst's own fonts nor these font files show."""
    wanted = {
        ord(char)
        for char in set(text)
        if unicodedata.category(char)[0] in _SHOWN and not any(ord(char) in known for known in _EMBEDDED)
    }
    for path in sorted(set(fonts)):
        if not wanted:
            break
        wanted -= _shown_by(Path(path), wanted)
    return "".join(map(chr, sorted(wanted)))


def in_words(chars: str, most: int = 6) -> str:
    """Characters for a person, by kind: `3 of HANGUL (U+AD6D …)`; themselves they cannot be shown."""
    kinds: dict[str, list[str]] = {}
    for char in chars:
        kinds.setdefault(unicodedata.name(char, "UNKNOWN").split(" ")[0].split("-")[0], []).append(f"U+{ord(char):04X}")
    named = [f"{len(codes)} of {kind} ({codes[0]}{' …' if len(codes) > 1 else ''})" for kind, codes in kinds.items()]
    return ", ".join(named[:most]) + (f" and {len(named) - most} more kinds" if len(named) > most else "")


def _shown_by(path: Path, wanted: set[int]) -> set[int]:
    """Which of these code points a font file has a glyph for; none, where it cannot be read."""
    try:
        data = path.read_bytes()
        starts = [0]
        if data[:4] == b"ttcf":
            count = struct.unpack_from(">I", data, 8)[0]
            starts = list(struct.unpack_from(f">{min(count, 64)}I", data, 12))
        return {code for start in starts for table in _tables(data, start) for code in _within(data, table, wanted)}
    except (OSError, struct.error):
        return set()


def _tables(data: bytes, start: int) -> Iterator[int]:
    """Offsets of the character tables of the font that begins at `start`."""
    for number in range(struct.unpack_from(">H", data, start + 4)[0]):
        tag, _, offset, _ = struct.unpack_from(">4sIII", data, start + 12 + 16 * number)
        if tag == b"cmap":
            for entry in range(struct.unpack_from(">H", data, offset + 2)[0]):
                yield offset + struct.unpack_from(">I", data, offset + 8 + 8 * entry)[0]


def _within(data: bytes, table: int, wanted: set[int]) -> Iterator[int]:
    """The wanted code points in one character table; formats 4 and 12 are those that fonts use."""
    form = struct.unpack_from(">H", data, table)[0]
    if form == 12:
        count = struct.unpack_from(">I", data, table + 12)[0]
        for first, last, _ in struct.iter_unpack(">III", data[table + 16 : table + 16 + 12 * count]):
            yield from (code for code in wanted if first <= code <= last)
    elif form == 4:
        half = struct.unpack_from(">H", data, table + 6)[0] // 2
        ends = struct.unpack_from(f">{half}H", data, table + 14)
        firsts = struct.unpack_from(f">{half}H", data, table + 16 + 2 * half)
        for first, last in zip(firsts, ends, strict=True):
            yield from (code for code in wanted if first <= code <= last < 0xFFFF)
