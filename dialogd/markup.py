"""Markdown as HTML that can be shown anywhere: rendered, then reduced to a few harmless elements.

Both steps are needed: the renderer passes no HTML on but does pass remote images; the sanitiser alone would let an
agent write markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

LARGEST = 200_000  # characters of one text that are rendered; the rest is shown as it stands

_TAGS = frozenset(
    {
        "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre",
        "s", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
    }
)  # fmt: skip
_ATTRIBUTES = {"a": {"href", "title"}, "code": {"class"}, "ol": {"start"}}
_SCHEMES = {"http", "https", "mailto"}


@lru_cache(maxsize=1)
def parser() -> MarkdownIt:
    """The one parser: CommonMark with tables and strikethrough, without HTML."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")


@lru_cache(maxsize=4096)
def to_html(text: str) -> str:
    """The text as HTML: no script, no image, no style, nothing that loads anything; links open nothing by themselves.

    Entries never change, so what was rendered once is kept.
    """
    import nh3

    rendered = parser().render(text[:LARGEST])
    if len(text) > LARGEST:
        rendered += f"<p>{nh3.clean_text(text[LARGEST:])}</p>"
    return _reduced(rendered)


def of_tokens(tokens: Sequence[Token]) -> str:
    """What the parser made of a text as HTML, as safe as `to_html`; for those who look at the tokens first."""
    return _reduced(parser().renderer.render(tokens, parser().options, {}))


def _reduced(rendered: str) -> str:
    import nh3

    return nh3.clean(
        rendered,
        tags=set(_TAGS),
        attributes={tag: set(names) for tag, names in _ATTRIBUTES.items()},
        url_schemes=_SCHEMES,
        link_rel="noopener noreferrer nofollow",
    )
