"""Templates: Markdown files that a dialog starts from; in the wheel inside the package, in a checkout beside it.

A template may open with front matter, one `key: value` per line between two `---` lines:

    name, description   for lists
    order, verdict      who speaks next; what ends the dialog
    max_turns, timeout  limits, as people write them

All are optional. The rest is the beginning of a dialog, with `$names` that `Template.fill` replaces (`$$` is a `$`).
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from dialogd.errors import BadInput
from dialogd.protocol.model import Limits
from dialogd.protocol.units import count, seconds

DEFAULT_TEMPLATE = "pair"
_KEYS = ("name", "description", "order", "verdict", "max_turns", "timeout")


@dataclass(frozen=True, slots=True)
class Template:
    """One template; `text` is what stands after the front matter. `timeout` in seconds."""

    name: str
    text: str
    description: str = ""
    order: str = "alternate"
    verdict: str = "mutual"
    max_turns: int = Limits().max_turns
    timeout: float = Limits().timeout

    def fill(self, values: Mapping[str, str]) -> str:
        """Put `values` into the text. Raises `BadInput` for a `$name` without a value."""
        try:
            return string.Template(self.text).substitute(values)
        except (KeyError, ValueError) as error:
            raise BadInput(
                f"template {self.name!r} cannot be filled: {error}",
                fix="use the names of templates/pair.md, `$$` for `$`",
            ) from None


def names() -> tuple[str, ...]:
    """The names of all templates, sorted."""
    return tuple(sorted(file.name.removesuffix(".md") for file in _folder().iterdir() if file.name.endswith(".md")))


def template(name: str = DEFAULT_TEMPLATE) -> Template:
    """Read a template by its name. Raises `BadInput` for an unknown one and for front matter that makes no sense."""
    if name not in names():
        raise BadInput(f"unknown template {name!r}", fix=f"choose one of: {', '.join(names())}")
    return parse(name, (_folder() / f"{name}.md").read_bytes().decode("utf-8"))


def parse(name: str, text: str) -> Template:
    """Read a template's text; `name` counts where the front matter gives none. Raises `BadInput`."""
    if not text.startswith("---\n"):
        return Template(name, text)
    front, found, rest = text[4:].partition("\n---\n")
    if not found:
        raise BadInput(f"template {name!r}: front matter without an end", fix="close it with a line of `---`")
    keys = dict(_pair(name, line) for line in front.split("\n") if line.strip())
    limits = Template(name, "")
    try:
        return Template(
            name=keys.get("name", name),
            text=rest.lstrip("\n"),
            description=keys.get("description", ""),
            order=keys.get("order", limits.order),
            verdict=keys.get("verdict", limits.verdict),
            max_turns=count(keys.get("max_turns", limits.max_turns)),
            timeout=seconds(keys.get("timeout", limits.timeout)),
        )
    except ValueError as error:
        raise BadInput(f"template {name!r}: {error}", fix="correct that line of its front matter") from None


def _pair(name: str, line: str) -> tuple[str, str]:
    key, colon, value = (part.strip() for part in line.partition(":"))
    if not colon or key not in _KEYS:
        raise BadInput(f"template {name!r}: {line!r} is not understood", fix=f"write `key: value`, key one of {_KEYS}")
    return key, value


def _folder() -> Traversable:
    """Where the templates lie: `dialogd/templates_data` in a wheel, `templates` beside the package in a checkout."""
    package = files("dialogd")
    for folder in (package / "templates_data", package / ".." / "templates"):
        if folder.is_dir():
            return folder
    raise BadInput("the templates are missing from this installation", fix="install dialogd again")
