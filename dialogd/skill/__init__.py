"""Skills: Markdown files in the form of SKILL.md that say who works together, and how. Pure: text in, values out.

    read(text, name) -> Skill     never fails; what is wrong stands in `problems`, with line and fix

`front.py` reads the front matter, `sections.py` the sections, `terms.py` what both come to in dialogd's own words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from dialogd.protocol.redact import redact
from dialogd.protocol.text import clean
from dialogd.skill import sections as parts
from dialogd.skill.front import Problem, Written, front_matter

LONGEST_LINE = 5_000  # characters

__all__ = ["Problem", "Skill", "Written", "read"]


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill as it is written. `front` holds the front matter's values by key; `problems` are in order of lines.

    `position` is its place in a hierarchy of skills: as the file says, else its title, else its name.
    """

    name: str
    title: str
    position: str
    overview: str
    agents: tuple[parts.Member, ...]
    workflow: tuple[parts.Step, ...]
    messages: tuple[parts.Message, ...]
    success: tuple[str, ...]
    errors: tuple[str, ...]
    rules: str
    opening: str
    opening_line: int
    front: Mapping[str, Written]
    problems: tuple[Problem, ...]

    def as_json(self) -> dict[str, Any]:
        """What other programs read of it."""
        return {
            "position": self.position,
            "overview": self.overview,
            "agents": [
                {
                    "name": member.name,
                    "personality": joined(member.fields.get("personality")),
                    "responsibilities": list(listed(member.fields.get("responsibilities"))),
                }
                for member in self.agents
            ],
            "workflow": [{"phase": step.name, "description": step.description} for step in self.workflow],
            "communicationProtocol": [{"type": m.name, "description": m.description} for m in self.messages],
            "successCriteria": list(self.success),
            "errorHandling": list(self.errors),
        }


def read(text: str, name: str) -> Skill:
    """Read a skill; `name` counts where the front matter gives none."""
    whole = clean(text.removeprefix("\ufeff")).split("\n")
    lines = [line if len(line) <= LONGEST_LINE else redact(line)[0][:LONGEST_LINE] for line in whole]
    front = front_matter(lines)
    title, intro, found = parts.split(lines, front.end)
    by_name = {section.name: section for section in reversed(found)}

    def of(section: str) -> parts.Section:
        return by_name.get(section, parts.Section(section, 0, ()))

    said = joined(front.values.get("name")) or name
    place = joined(front.values.get("position")) or _position((*intro, *of("overview").lines))
    overview = of("overview").text or "\n".join(line for _, line in intro).strip("\n")
    return Skill(
        name=said,
        title=title,
        position=place or title or said,
        overview=_without_position(overview),
        agents=tuple(parts.members(of("agents"))),
        workflow=tuple(parts.steps(of("workflow"))),
        messages=tuple(parts.messages(of("communication protocol"))),
        success=parts.points(of("success criteria")),
        errors=parts.points(of("error handling")),
        rules=of("rules").text,
        opening=of("opening").text,
        opening_line=of("opening").line,
        front=MappingProxyType(dict(front.values)),
        problems=(*front.problems, *_sections(found), *_lines(whole)),
    )


def joined(written: Written | None) -> str:
    """A value as one text; the points of a list after one another."""
    value = written.value if written else ""
    return value if isinstance(value, str) else "; ".join(value)


def listed(written: Written | None) -> tuple[str, ...]:
    """A value as a list; a text is its only point."""
    value = written.value if written else ()
    return tuple(value) if not isinstance(value, str) else (value,) if value else ()


def _sections(found: Sequence[parts.Section]) -> Iterator[Problem]:
    """Sections that are there twice, and names that are nearly right."""
    seen: set[str] = set()
    for section in found:
        close = get_close_matches(section.name, parts.SECTIONS, n=1, cutoff=0.85)
        if section.name in parts.SECTIONS and section.name in seen:
            what = f"the section `## {section.name.title()}` is there twice"
            yield Problem(section.line, what, "make one of the two")
        elif close and section.name not in parts.SECTIONS:
            yield Problem(section.line, f"unknown section {section.name!r}", f"did you mean `## {close[0].title()}`?")
        seen.add(section.name)


def _lines(lines: Sequence[str]) -> Iterator[Problem]:
    """Keys, which a template must not carry into dialogs; lines that nobody would read."""
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST_LINE:
            yield Problem(number, f"a line of {len(line):,} characters", f"break it: up to {LONGEST_LINE:,} are read")
        if redact(line)[1]:
            yield Problem(number, "there is something like a key in it", "take it out: keys belong into .env")


def _position(lines: Sequence[parts.Line]) -> str:
    return next((where for _, line in lines if (where := _place(line))), "")


def _place(line: str) -> str:
    name, colon, where = line.replace("*", "").replace("_", "").partition(":")
    return where.strip() if colon and name.strip(" -\t").casefold() == "position" else ""


def _without_position(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not _place(line)).strip("\n")
