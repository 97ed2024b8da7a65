"""The page's templates, filled in: everything is escaped and can be seen, unless it was made safe before."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dialogd.protocol.text import visible

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).parent / "templates"


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        finalize=_seen,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )


def _seen(value: Any) -> Any:
    """A value as it is shown; what is HTML already was made of texts that can be seen."""
    return visible(value) if type(value) is str else value


def fill(name: str, **values: Any) -> str:
    """The template of that name under `templates/`, with these values."""
    return _environment().get_template(name).render(**values)


def safe(html: str) -> Any:
    """HTML that `markup.to_html` or a template has made: it is put in as it stands."""
    from markupsafe import Markup

    return Markup(html)
