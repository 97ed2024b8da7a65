"""Text as the numbers that a BERT model takes: WordPiece, lower case, without accents."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping

LONGEST = 100  # characters of a word; a longer one is unknown
MOST = 20_000  # characters of a text that are looked at

_CJK = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


def read_vocabulary(text: str) -> dict[str, int]:
    """A `vocab.txt`: one piece per line, its number is that of the line, from 0."""
    return {piece.rstrip("\r"): number for number, piece in enumerate(text.split("\n")) if piece}


def tokens(text: str, vocabulary: Mapping[str, int], most: int) -> list[int]:
    """The numbers of a text, `[CLS]` and `[SEP]` around them, at most `most` in all."""
    numbers: list[int] = []
    for word in _words(text[:MOST]):
        numbers += _pieces(word, vocabulary)
        if len(numbers) >= most - 2:
            break
    return [vocabulary["[CLS]"], *numbers[: most - 2], vocabulary["[SEP]"]]


def _words(text: str) -> Iterator[str]:
    """Words and signs, each sign and each Chinese character alone."""
    word = ""
    for char in unicodedata.normalize("NFD", text.lower()):
        kind = unicodedata.category(char)
        if kind == "Mn" or (kind[0] == "C" and not char.isspace()):
            continue
        alone = _is_sign(char, kind) or _is_cjk(char)
        if (char.isspace() or alone) and word:
            yield word
            word = ""
        if alone:
            yield char
        elif not char.isspace():
            word += char
    if word:
        yield word


def _is_sign(char: str, kind: str) -> bool:
    return kind[0] == "P" or (char.isascii() and char.isprintable() and not char.isalnum() and not char.isspace())


def _is_cjk(char: str) -> bool:
    code = ord(char)
    return code >= 0x3400 and any(first <= code <= last for first, last in _CJK)


def _pieces(word: str, vocabulary: Mapping[str, int]) -> list[int]:
    """The longest pieces that a word is made of, from its beginning; one unknown where it is made of none."""
    unknown, found, start = vocabulary["[UNK]"], [], 0
    if len(word) > LONGEST:
        return [unknown]
    while start < len(word):
        for end in range(len(word), start, -1):
            number = vocabulary.get(word[start:end] if start == 0 else f"##{word[start:end]}")
            if number is not None:
                found.append(number)
                start = end
                break
        else:
            return [unknown]
    return found
