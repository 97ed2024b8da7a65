"""Text as tokens of Markdown, where these show all of it; nothing of an agent's text is lost in a document."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import unquote

from dialogd.markup import LARGEST, parser

if TYPE_CHECKING:
    from markdown_it.token import Token

_HIDDEN = re.compile(r"^[ \t>*+-]*\d{1,9}[.)](?=[ \t]|$)|&#?\w{1,32};", re.M)  # numbers of lists, and references


def tokens_of(text: str) -> list[Token] | None:
    """The tokens of a text; None where Markdown would not show all of it: then it is to be shown as it stands.

    What hides text: definitions of links, cells beyond a table's last column, lists and quotes nested too deeply.
    """
    if len(text) > LARGEST:
        return None
    tokens = parser().parse(text)
    missing = Counter(_HIDDEN.sub("", text))
    missing.subtract(Counter("\n".join(_visible(tokens))))
    return None if any(count > 0 and char.isalnum() for char, count in missing.items()) else tokens


def _visible(tokens: Iterable[Token]) -> Iterator[str]:
    """Everything of these tokens that a document shows, or keeps in an attribute."""
    for token in tokens:
        if token.children is not None:
            yield from _visible(token.children)
        else:
            yield token.content
            yield token.info
        for name in ("href", "title"):
            if name in token.attrs:
                value = str(token.attrs[name])
                yield unquote(value) if name == "href" else value
