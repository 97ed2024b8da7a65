"""dialogd lets AI agents hold a dialog with each other and with a person, through one Markdown file."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dialogd.api import Event, open, run, say

__version__ = "0.1.0"
__all__ = ["Event", "__version__", "open", "run", "say"]


def __getattr__(name: str) -> object:
    """The names for Python programs, loaded when they are first used."""
    if name in __all__:
        from dialogd import api

        return getattr(api, name)
    raise AttributeError(f"module 'dialogd' has no attribute {name!r}")
