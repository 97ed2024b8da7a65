"""Templates: Markdown files that a dialog starts from; found by name in a few folders, or named by their path.

A template is a SKILL.md with front matter in dialogd's own words. It is looked for, in this order,

    in ./.dialogd/templates         NAME.md
    in the user's config directory  templates/NAME.md
    in ./skills                     NAME/SKILL.md and */NAME/SKILL.md
    in the package                  dialogd/templates_data in a wheel, templates/ beside the package in a checkout

so that a user's own template replaces the package's of that name. Without a name it is always the package's `pair`.
"""

from __future__ import annotations

import os
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from dialogd.errors import BadInput
from dialogd.protocol.model import Limits
from dialogd.protocol.rules import Role, Rules
from dialogd.protocol.text import is_blank, one_line
from dialogd.templates.skill import CastMember, Skill, Terms, read, terms_of

DEFAULT_TEMPLATE = "pair"
LARGEST = 200_000  # bytes of one template
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_BY_PATH = ("a folder", "a file")
_CONSENSUS = re.compile(r"\[CONSENSUS(?!_(?:REACHED|PROPOSED)\b)[^\]\n]{0,40}\]?")
_ALONE = re.compile(r"(?<![^\W_])independent", re.IGNORECASE)


@dataclass(frozen=True)
class Template:
    """One template. `text` is the whole file, `source` where it was found, `hides` the file of that name it replaces.

    Both are files as people name them.
    """

    text: str
    skill: Skill
    terms: Terms
    source: str = ""
    hides: str = ""

    @property
    def name(self) -> str:
        return self.skill.name

    @property
    def title(self) -> str:
        """The first line of its dialogs."""
        return self.skill.title or self.name

    @cached_property
    def description(self) -> str:
        """What it is for, in a line: as its front matter says, else the first paragraph of its overview."""
        written = self.skill.front.get("description")
        said = written.value if written and isinstance(written.value, str) else ""
        return " ".join((said or self.skill.overview.partition("\n\n")[0]).split())

    @property
    def timeout(self) -> float:
        """How long one reply may take, in seconds: as the template says, else its board, else the usual time."""
        board = self.terms.rules.board
        return self.terms.timeout or (board.contribution_timeout if board else None) or Limits().timeout

    @property
    def seats(self) -> int:
        """The number of agents when the person names none: those that are described, or two."""
        most = self.terms.most or max(self.terms.least, len(self.terms.cast), 2)
        return max(self.terms.least, min(len(self.terms.cast) or 2, most))

    @property
    def ids(self) -> str:
        """The ids of its seats, a letter each: those of a build are M and L."""
        return "ML" if self.needs_repository else string.ascii_uppercase

    @property
    def needs_repository(self) -> bool:
        """True for a build, which carries work out."""
        return self.terms.rules.build is not None

    @property
    def is_fixed(self) -> bool:
        """True when exactly the described agents take part."""
        return self.terms.most is not None and self.terms.least == self.terms.most

    @property
    def how_many(self) -> str:
        """How many agents take part: `3`, `2+`, `2-4`."""
        least, most = self.terms.least, self.terms.most
        return f"{least}+" if most is None else str(least) if least == most else f"{least}-{most}"

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks for its user: that it hides another, ends by a mark of its own, lets others read independent work."""
        found = []
        if self.hides:
            found.append(
                f"the template {self.name} is {self.source}; another of that name is left aside: -t {self.hides}"
            )
        alone = next((s.name for s in self.skill.workflow if _ALONE.search(f"{s.name} {s.description}")), "")
        if alone and self.seats > 1 and not {"order", "sealed"} & set(self.skill.front):
            found.append(
                f"the phase {one_line(alone, 60)} speaks of independent work, and the agents answer one after another,"
                " each reading what was said: `order: parallel` in the template's front matter has them answer at once,"
                " `sealed: true` keeps the first answers from each other"
            )
        own = _CONSENSUS.search(self.text)
        if own or "CONSENSUS" in self.terms.rules.kinds:
            what = f"{own[0] if own else 'CONSENSUS'} of the template {self.name} ends nothing here"
            found.append(
                f"{what}: agents agree by [CONSENSUS_REACHED] below a `## Consensus Summary`; write that instead"
            )
        return tuple(found)

    def part(self, seat: int) -> CastMember | None:
        """The agent of that seat (from 0); None where the template describes none.

        Further seats repeat the described agents, with a number after the name.
        """
        cast = self.terms.cast
        if not cast:
            return None
        round_, index = divmod(seat, len(cast))
        return cast[index] if not round_ else replace(cast[index], name=f"{cast[index].name} {round_ + 1}")

    def rules(self, ids: Sequence[str], given: Mapping[str, str | int] = MappingProxyType({})) -> Rules:
        """The rules of a dialog between agents of these ids, by seats; `given` are those of a build."""
        parts = {agent: part for seat, agent in enumerate(ids) if (part := self.part(seat)) is not None}
        judge = next((agent for agent, part in parts.items() if part.name == self.terms.judge), "")
        build = self.terms.rules.build
        if build is not None:
            by_name = {part.name: agent for agent, part in parts.items()}
            both = {"moderator": by_name.get(build.moderator, ""), "lead": by_name.get(build.lead, "")}
            build = replace(build, **both, **dict(given))  # type: ignore[arg-type]
        roles = {agent: part.role for agent, part in parts.items() if part.role != Role()}
        rules = replace(self.terms.rules, judge=judge, build=build, roles=MappingProxyType(roles))
        return replace(rules, template="") if self.name == DEFAULT_TEMPLATE else rules

    def opening(self, topic: str, question: str) -> str:
        """What turn 1 says: the template's words, and the question."""
        asked = f"**Question:**\n{question}"
        if not self.skill.opening:
            return asked
        text = string.Template(self.skill.opening).safe_substitute(topic=topic, question=question)
        holds_it = "question" in string.Template(self.skill.opening).get_identifiers()
        return text if holds_it else f"{text}\n\n{asked}"

    def usable(self) -> Template:
        """The template itself. Raises `BadInput` with line and fix when the file has a problem."""
        for problem in self.terms.problems[:1]:
            more = len(self.terms.problems) - 1
            rest = f" (and {more} more: dialogd templates show {self.source})" if more else ""
            raise BadInput(f"{self.source}, line {problem.line}: {problem.what}{rest}", fix=problem.fix)
        return self


@dataclass(frozen=True, slots=True)
class Location:
    """A template's file. `group` names its folder in words; `file` is the path for people.

    `hides` is the file of the next one of that name, "" without one.
    """

    name: str
    path: Path
    group: str
    hides: str = ""

    @property
    def is_by_path(self) -> bool:
        """True for a file that was named by its path, and lies in none of the folders of templates."""
        return self.group in _BY_PATH

    @property
    def file(self) -> str:
        """The path, from the working directory where it lies below."""
        try:
            return str(self.path.resolve().relative_to(Path.cwd()))
        except (ValueError, OSError, RuntimeError):  # a loop of links
            return str(self.path)


def names() -> tuple[str, ...]:
    """The names of the templates of the package, sorted."""
    return tuple(sorted(place.name for place in _packaged()))


def template(name: str | None = None) -> Template:
    """The template of that name, or at that path (a file, or a folder with a SKILL.md); the package's `pair` for None.

    Raises `BadInput` where there is none, where it cannot be read, and for what is wrong in it.
    """
    if name is None:
        return load(next(place for place in _packaged() if place.name == DEFAULT_TEMPLATE))
    return load(find(name)).usable()


def find(name: str) -> Location:
    """Where the template of that name lies, or the file at that path. Raises `BadInput`."""
    found = [place for place in places() if place.name == name]
    path = Path(name).expanduser()
    if found:
        return replace(found[0], hides=found[1].file if len(found) > 1 else "")
    if name and path.is_dir() and (path / "SKILL.md").exists():
        return Location(path.resolve().name, path / "SKILL.md", _BY_PATH[0])
    if name and path.is_file():
        return Location(path.resolve().parent.name if path.name == "SKILL.md" else path.stem, path, _BY_PATH[1])
    if "/" in name or name.endswith(".md"):
        missing = "has no SKILL.md" if path.is_dir() else "is not a file" if path.exists() else "does not exist"
        raise BadInput(f"template {name!r}: {path} {missing}", fix="check the path; `dialogd templates` lists names")
    known = ", ".join(dict.fromkeys(place.name for place in places()))
    raise BadInput(f"unknown template {name!r}", fix=f"choose one of: {known}; or name a file")


def load(place: Location) -> Template:
    """Read a template, sound or not. Raises `BadInput` for a file that cannot be read or trusted."""
    return replace(parse(place.name, _contents(place.path), place.file), hides=place.hides)


def parse(name: str, text: str, source: str = "") -> Template:
    """Read a template's text; `name` counts where the front matter gives none. Never fails: see its terms' problems."""
    skill = read(text, name)
    return Template(text, skill, terms_of(skill), source or name)


def places() -> tuple[Location, ...]:
    """Every template, in order of precedence; a name may occur twice."""
    from platformdirs import user_config_path

    here, config = Path.cwd(), user_config_path("dialogd") / "templates"
    skills = [*here.glob("skills/*/SKILL.md"), *here.glob("skills/*/*/SKILL.md")]
    return (
        *_in(here / ".dialogd" / "templates", ".dialogd/templates"),
        *_in(config, "your config directory"),
        *(Location(path.parent.name, path, "skills") for path in sorted(skills)),
        *_packaged(),
    )


def _packaged() -> Iterator[Location]:
    package = Path(str(files("dialogd")))
    for folder in (package / "templates_data", package.parent / "templates"):
        if folder.is_dir():
            return _in(folder, "package")
    raise BadInput("the templates are missing from this installation", fix="install dialogd again")


def _in(folder: Path, group: str) -> Iterator[Location]:
    """The templates of one folder, sorted; a folder that cannot be read has none."""
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix == ".md" and _NAME.fullmatch(path.stem))
    except OSError:
        return iter(())
    return iter([Location(path.stem, path, group) for path in found])


def _contents(path: Path) -> str:
    """The text of a file. Raises `BadInput` when it is no file, too large, somebody else's, or no text."""
    try:
        if not path.is_file():
            raise BadInput(f"template {path} is not a file", fix="name a Markdown file, or a folder with a SKILL.md")
        owner, trusted = path.stat().st_uid, (os.geteuid(), 0, path.parent.stat().st_uid)
        with path.open("rb") as source:
            data = source.read(LARGEST + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise BadInput(f"template {path} cannot be read: {error.strerror}", fix="check its permissions") from None
    except UnicodeDecodeError:
        raise BadInput(f"template {path} is not UTF-8 text", fix="save it as UTF-8") from None
    # In a shared folder such as /tmp anybody could leave one.
    for is_wrong, what, fix in (
        (owner not in trusted, "belongs to another user", "copy it, and look at it before you use it"),
        (is_blank(text) or "\0" in text, "is empty or no text", "write what the agents are to do into it"),
        (len(data) > LARGEST, f"is larger than {LARGEST:,} bytes", "make it shorter"),
    ):
        if is_wrong:
            raise BadInput(f"template {path} {what}", fix=fix)
    return text
