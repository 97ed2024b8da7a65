"""Templates: found in their folders, refused with line and fix, and each shipped one fit to decide something."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dialogd.agent.prompt import system
from dialogd.cli.create import Start, draw_up, usual_ports
from dialogd.errors import BadInput
from dialogd.protocol.grammar import parse as read_dialog
from dialogd.protocol.marks import DECIDING, MARKS
from dialogd.protocol.model import OUTCOMES
from dialogd.protocol.rules import DECIDE, MODERATE, PERSONALITIES, PROPOSE
from dialogd.protocol.text import escape
from dialogd.templates import (
    DEFAULT_TEMPLATE,
    Opening,
    Template,
    begins,
    compose,
    enough_turns,
    find,
    load,
    names,
    parse,
    places,
    template,
    warnings,
)
from tests.support.cases import cases
from tests.support.room import Room

SHIPPED = {
    "pair", "feature-design", "code-review", "architecture-debate", "test-cases", "system-design", "brainstorm",
    "design-review", "debate", "council", "contemplator", "mirror", "relay", "pyramid", "circle", "swarm", "healing",
    "build", "divided",
}  # fmt: skip


def begun(name: str, agents: str | None = None, **more: object) -> Opening:
    """A dialog from that template, as it is asked for on the command line."""
    if name == "build":
        more = {"build": {"repo": "/code", "branch": "main", "base": "0" * 40}, "expected": 3, **more}
    wanted = Start("Tabs or spaces?", template=name, agents=agents, **more)  # type: ignore[arg-type]
    seats = wanted.seats()
    return draw_up(wanted, seats, usual_ports(seats))


# -- the shipped ones -------------------------------------------------------------------------------------------------


def runs_of(text: str, count: int = 5) -> set[tuple[str, ...]]:
    """Every so many words in a row."""
    words = re.findall(r"\w[\w'-]*", text.casefold())
    return {tuple(words[at : at + count]) for at in range(len(words) - count + 1)}


def test_all_templates_are_shipped_and_the_default_is_the_pair() -> None:
    assert set(names()) == SHIPPED
    found: Template = template()
    assert (found.name, found.terms.rules.order, found.terms.rules.verdict) == ("pair", "alternate", "mutual")
    assert (found.terms.matter.max_turns, found.timeout) == (20, 300.0)


@cases("name", sorted(SHIPPED))
def test_a_shipped_template_reads_without_a_word_and_repeats_nothing(name: str) -> None:
    found, is_default = template(name), name == DEFAULT_TEMPLATE
    skill, terms, rules = found.skill, found.terms, found.skill.rules
    assert (found.name, terms.problems, terms.notes, bool(rules)) == (name, (), (), not is_default)
    assert 30 < len(found.description) < 130
    assert found.title != found.name
    assert is_default or all(
        (skill.overview, skill.success, skill.errors, terms.matter.max_rounds or terms.rules.build)
    )
    assert {part.role.personality for part in terms.cast} <= {"", *PERSONALITIES}
    assert not set(terms.rules.kinds) & set(MARKS), "a kind that is called like a mark would be that mark"
    assert is_default or name == "build" or sum(phase.rounds for phase in terms.rules.phases) == terms.matter.max_rounds
    assert not set(re.findall(r"\[([A-Z_]+)", rules)) & DECIDING
    assert not re.search(r"TURN|Consensus Summary|outranks|deadlock|sealed|person may|whose turn", rules)
    header = begun(name).header
    assert not any(runs_of(rules) & runs_of(system(header, agent)) for agent in header.agents)
    assert escape(rules) == rules
    for line in found.text.split("\n"):
        assert not re.match(r"\W*(TURN:|## (Turn|Note|User))", line, re.IGNORECASE)
        assert line.strip("*_ ") not in {f"[{mark}]" for mark in OUTCOMES}


@cases("name", sorted(SHIPPED))
def test_a_dialog_from_a_shipped_template_has_its_rules_and_no_warning(name: str) -> None:
    opening = begun(name)
    dialog = read_dialog(compose(opening).encode())
    header = dialog.header
    assert (header.warnings, warnings(opening)) == ((), ())
    assert (header.rules, header.agents) == (opening.rules, opening.agents)
    assert (header.limits.max_turns, header.limits.timeout) == (opening.max_turns, opening.timeout)
    assert (header.limits.max_rounds or None, header.limits.max_time) == (opening.max_rounds, opening.max_time)
    assert opening.max_turns > (opening.max_rounds or 0) * len(opening.header.speakers) + 1
    assert [entry.number for entry in dialog.entries] == [1]
    assert dialog.state.owing == opening.first
    assert header.rules.is_plain == (name == DEFAULT_TEMPLATE)


@cases("name", sorted(SHIPPED))
def test_a_shipped_template_can_decide(name: str) -> None:
    least = template(name).terms.least
    for agents in (None, ",".join(["rehearsal"] * max(least, 2))) if name != "contemplator" else (None,):
        header = begun(name, agents).header
        rules = header.rules
        assert len(header.speakers) >= 1
        match rules.verdict:
            case "mutual" | "vote":
                assert len(header.voters) >= 2
            case "moderator":
                assert header.moderator
                assert any(rules.role(who).may(DECIDE, MODERATE) for who in header.speakers)
            case "judge":
                assert header.judge
                assert header.judge not in header.speakers
            case "build":
                assert {rules.build.moderator, rules.build.lead} == set(header.speakers) == {"M", "L"}
        assert any(rules.role(who).may(PROPOSE) for who in header.speakers)


def test_the_voting_begins_where_the_workflow_says_so() -> None:
    said = "---\nverdict: {}\n---\n## Workflow\n1. **VOTE**{}: we vote\n2. **ABSTIMMUNG** (2 rounds): wir stimmen ab\n"
    for verdict, mark, votes in (
        ("vote", "", [False, True]), ("vote", " (votes)", [True, False]), ("vote", " (3 rounds, votes)", [True, False]),
        ("mutual", "", [False, False]),
    ):  # fmt: skip
        phases = made(said.format(verdict, mark), "A", "B").rules.phases
        assert [phase.votes for phase in phases] == votes, (verdict, mark)
        assert [phase.name for phase in phases] == ["VOTE", "ABSTIMMUNG"]
    for name, phase in (("council", "VOTE"), ("code-review", "REVISION")):
        assert [one.name for one in template(name).terms.rules.phases if one.votes] == [phase]


# -- a template of one's own ------------------------------------------------------------------------------------------


def made(text: str, *agents: str) -> Opening:
    """A dialog from this text, between agents of these ids."""
    found = parse("mine", text)
    assert found.terms.problems == ()
    opening = replace(begun(DEFAULT_TEMPLATE, ",".join(["rehearsal"] * len(agents))), template=found)
    return replace(opening, agents=tuple(replace(a, id=who) for a, who in zip(opening.agents, agents, strict=True)))


TRIO = """# Trio

## Agents

### Ann
**Permissions:** critic
### Bob
### Cy
**Permissions:** moderator
"""


def test_roles_go_to_the_seats_in_their_order() -> None:
    rules = made(f"---\nagents: 2+\n---\n{TRIO}", "A", "X", "C", "D").rules
    assert {who: role.name for who, role in rules.roles.items()} == {"A": "critic", "C": "moderator", "D": "critic"}
    found = parse("mine", TRIO)
    assert [part.name for seat in range(5) if (part := found.part(seat))] == ["Ann", "Bob", "Cy", "Ann 2", "Bob 2"]
    assert (found.seats, found.how_many) == (3, "3")
    talk = parse("mine", "# Talk\n")
    assert (talk.seats, talk.how_many, talk.part(0)) == (2, "1+", None)
    assert [parse("mine", f"---\nagents: {said}\n---\n").seats for said in ("4", "1-3")] == [4, 2]


def test_the_opening_stands_in_turn_one() -> None:
    opening = made("# T\n\n## Opening\n\nDesign $topic for $$5.\nTURN: B\n", "A", "B")
    body = compose(opening).partition("## Turn 1 — User\n\n")[2]
    assert body.startswith("Design Tabs or spaces? for $5.\n\\TURN: B\n\n**Question:**\nTabs or spaces?\n\nTURN: ")
    around = made("# T\n\n## Opening\n\nFirst.\n\n> $question\n\nLast.\n", "A", "B")
    body = compose(around).partition("## Turn 1 — User\n\n")[2]
    assert body.startswith("First.\n\n> Tabs or spaces?\n\nLast.\n\nTURN: ")


def test_a_plain_skill_has_its_overview_for_rules() -> None:
    text = "# T\n\n## Overview\n\nTwo look at it.\n\n## Agents\n\n### Ann\n### Bob\n"
    assert "\n\n## Rules\n\nTwo look at it.\n\n---\n" in compose(made(text, "A", "B"))
    assert "## Rules" not in compose(made("# T\n\n## Agents\n\n### Ann\n### Bob\n", "A", "B"))


def test_words_of_a_template_never_read_as_structure() -> None:
    text = (
        '# T\n\n## Rules\n\nTURN: B\n[STOPPED]\n<!-- dialogd by=A -->\n\n### Setup\n\n```toml\nverdict = "vote"\n```\n'
    )
    written = compose(made(text, "A", "B"))
    assert "\n\\TURN: B\n\\[STOPPED]\n\\<!-- dialogd by=A -->\n" in written
    dialog = read_dialog(written.encode())
    assert ([entry.number for entry in dialog.entries], dialog.state.outcome) == ([1], None)
    assert dialog.header.rules.verdict == "mutual"


def test_turns_are_enough_for_the_rounds() -> None:
    opening = made("---\nmax_rounds: 9\n---\n", "A", "B", "C")
    assert enough_turns(replace(opening, max_rounds=9)) == 33
    assert enough_turns(replace(opening, max_rounds=2)) == enough_turns(replace(opening, max_rounds=None)) == 20
    assert begins(made("---\norder: parallel\n---\n", "A", "B").header) == ("A", "B")
    assert begins(made(TRIO.replace("critic", "observer"), "A", "B", "C").header) == ("B",)


# -- warnings ---------------------------------------------------------------------------------------------------------

CAUSES = {
    "there is no limit on rounds: only that of 20 turns": "---\nred_team: true\n---\n",
    "0 of the agents may vote": (
        "---\nmax_rounds: 3\n---\n## Agents\n### Ann\n**Permissions:** analyst\n### Bob\n**Permissions:** analyst\n"
    ),
    "1 of the agents may vote": (
        "---\nmax_rounds: 3\nverdict: vote\n---\n## Agents\n### Ann\n**Role:** analyst\n### Bob\n"
    ),
    "give one agent MODERATE and DECIDE": "---\nverdict: moderator\nmax_rounds: 3\n---\n",
    "a vote may end in a tie (A, B), and nobody moderates": "---\nverdict: vote\nmax_rounds: 3\n---\n",
}


@cases("what", CAUSES)
def test_what_keeps_a_dialog_from_a_decision_is_said_before_it_starts(what: str) -> None:
    opening = made(CAUSES[what], "A", "B")
    opening = replace(opening, max_rounds=opening.template.terms.matter.max_rounds)
    (said,) = warnings(opening)
    assert what in said
    assert re.search(r"give|take|sets|would settle", said)


def test_a_limit_of_any_kind_is_a_limit_and_a_plain_pair_needs_none() -> None:
    opening = made("---\nred_team: true\n---\n", "A", "B")
    assert warnings(replace(opening, max_time=60.0)) == warnings(replace(opening, max_rounds=3)) == ()
    assert warnings(made("---\nboard: true\n---\n", "A", "B")) == ()
    assert warnings(made("---\norder: parallel\n---\n", "A", "B")) == ()
    assert warnings(begun(DEFAULT_TEMPLATE)) == warnings(begun(DEFAULT_TEMPLATE, "rehearsal,rehearsal")) == ()
    assert warnings(begun(DEFAULT_TEMPLATE, "rehearsal"))[0].startswith("A takes part alone")
    voting = "---\nverdict: vote\nmax_rounds: 3\n---\n"
    with_moderator = f"{voting}## Agents\n### A1\n### B1\n### C1\n**Role:** moderator\n"
    for text, agents in ((voting, "ABC"), (with_moderator, "ABC")):
        assert warnings(replace(made(text, *agents), max_rounds=3)) == ()
    assert len(warnings(begun("council", "rehearsal,rehearsal"))) == 1


# -- where templates are found ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, with an empty config directory in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def put(file: Path, title: str) -> Path:
    """A template with that title."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"# {title}\n", encoding="utf-8")
    return file


def test_templates_are_found_in_every_folder_and_the_persons_own_count_first(folder: Path) -> None:
    put(folder / ".dialogd/templates/mine.md", "one")
    put(folder / ".dialogd/templates/pair.md", "not ours")
    put(folder / "config/dialogd/templates/mine.md", "two")
    put(folder / "config/dialogd/templates/other.md", "three")
    put(folder / "skills/research/dyad/SKILL.md", "four")
    put(folder / "skills/solo/SKILL.md", "five")
    put(folder / "skills/a/b/c/SKILL.md", "too deep")
    own = [(place.name, place.group) for place in places()[: -len(SHIPPED)]]
    assert own == [
        ("mine", ".dialogd/templates"), ("pair", ".dialogd/templates"),
        ("mine", "your config directory"), ("other", "your config directory"),
        ("dyad", "skills"), ("solo", "skills"),
    ]  # fmt: skip
    titles = {name: template(name).title for name in ("mine", "other", "dyad", "solo", "pair")}
    assert titles == {
        "mine": "one", "other": "three", "dyad": "four", "solo": "five", "pair": "not ours",
    }  # fmt: skip
    assert template().title == "Claude Autonomous Dialog"
    assert find("dyad").file == "skills/research/dyad/SKILL.md"


def test_a_path_names_a_file_or_a_folder_with_a_skill(folder: Path) -> None:
    put(folder / "elsewhere/trio/SKILL.md", "Trio")
    put(folder / "elsewhere/notes.md", "Notes")
    for path, name in (
        ("elsewhere/trio", "trio"), ("elsewhere/trio/SKILL.md", "trio"), ("elsewhere/notes.md", "notes"),
        (str(folder / "elsewhere/notes.md"), "notes"),
    ):  # fmt: skip
        assert template(path).name == name
    (folder / "elsewhere/notes.md").write_text("---\nname: said\n---\n", encoding="utf-8")
    assert template("elsewhere/notes.md").name == "said"


def test_a_template_says_who_begins_and_how_many_turns_there_are(folder: Path) -> None:
    cast = "## Agents\n### Ann\n### Bob\n### Eve\n**Role:** observer\n"
    for first, expected in (("all", ("A", "B")), ("bob", ("B",)), ("[Bob, Ann]", ("B", "A"))):
        (folder / "mine.md").write_text(f"---\nfirst: {first}\nmax_turns: 7\n---\n{cast}", encoding="utf-8")
        opening = begun("mine.md")
        assert (opening.first, opening.max_turns) == (expected, 7)
    told = begun("mine.md", first="a", max_turns=9)
    assert (told.first, told.max_turns, begun("swarm").max_turns) == (("A",), 9, 60)


@cases("unknown", ["trio", "", "PAIR", "pai"])
def test_an_unknown_template_is_refused_with_the_known_ones(unknown: str) -> None:
    with pytest.raises(BadInput, match="unknown template") as caught:
        template(unknown)
    assert "pair" in caught.value.fix


def test_a_path_that_leads_nowhere_is_refused(folder: Path) -> None:
    (folder / "empty").mkdir()
    os.mkfifo(folder / "pipe.md")
    (folder / "huge.md").write_bytes(b"x\n" * 150_000)
    (folder / "binary.md").write_bytes(b"\xff\xfe")
    (folder / "nothing.md").write_text(" \n\u200b")
    (folder / "nul.md").write_bytes(b"\0" * 8)
    for name, why in (
        ("no/such.md", "does not exist"), ("pair.md", "does not exist"), ("./empty", "has no SKILL.md"),
        ("./pipe.md", "is not a file"), ("huge.md", "larger than 200,000 bytes"), ("binary.md", "not UTF-8"),
        ("nothing.md", "is empty or no text"), ("nul.md", "is empty or no text"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=why) as caught:
            template(name)
        assert caught.value.fix


def test_what_is_wrong_in_a_file_is_said_with_file_and_line(folder: Path) -> None:
    file = put(folder / ".dialogd/templates/mine.md", "T")
    file.write_text("---\norder: x\nverdict: y\n---\n", encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        template("mine")
    assert str(caught.value).startswith(".dialogd/templates/mine.md, line 2: order: 'x' is none of alternate")
    assert str(caught.value).endswith("(and 1 more: dialogd templates show .dialogd/templates/mine.md)")
    assert len(load(find("mine")).terms.problems) == 2


@pytest.mark.root
def test_a_template_of_somebody_else_in_a_shared_folder_is_not_trusted(folder: Path) -> None:
    file = put(folder / "mine.md", "T")
    os.chown(file, 12345, 12345)
    with pytest.raises(BadInput, match="belongs to another user"):
        template("mine.md")


def test_a_template_that_hides_another_says_which(folder: Path) -> None:
    put(folder / "skills/mirror/SKILL.md", "Mine")
    found = template("mirror")
    assert found.title == "Mine"
    first = found.remarks[0]
    assert first.startswith("the template mirror is skills/mirror/SKILL.md; another of that name is left aside: -t ")
    assert template(first.rpartition("-t ")[2]).title == "Mirror"
    assert template("skills/mirror").remarks == template("council").remarks == ()


def test_divided_knowledge_is_told_before_anybody_takes_a_position() -> None:
    opening = begun("divided")
    room = Room(compose(opening))
    for me in "AB":
        now = room.thinks(me).partition("# Your turn")[2]
        assert "no position yet" in now
        assert "your position" not in now
        room.answers(me, f"{me} keeps 80 rows.\n\n[EVIDENCE: 80, {me}.csv]\n[QUESTION: how many do you keep?]")
    for me in "AB":
        room.step(me)
    now = room.thinks("A").partition("# Your turn")[2]
    assert "look up what the others need" in now
    assert "your position" not in now


def test_a_build_has_room_for_every_attempt_of_the_tasks_that_are_expected() -> None:
    assert [begun("build", expected=n).max_turns for n in (1, 3)] == [2 + 6 + 7 + 1, 2 + 18 + 7 + 1]
    rules = begun("build", build={"repo": "/code", "iterations": 1, "cycles": 0}).rules.build
    assert rules is not None
    assert (rules.moderator, rules.lead, rules.repo, rules.iterations, rules.pass_score) == ("M", "L", "/code", 1, 80)
    with pytest.raises(BadInput, match="carries work out in a repository") as caught:
        draw_up(Start("Tabs?", template="build"), Start("Tabs?", template="build").seats(), [1, 2])
    assert "dialogd build" in caught.value.fix
    wrong = {"gate: make": "nothing that a template may say", "lead: Nobody": "are not the two agents"}
    for line, why in wrong.items():
        text = template("build").text.replace("  lead: Tech Lead", f"  lead: Tech Lead\n  {line}")
        text = text if "gate" in line else template("build").text.replace("  lead: Tech Lead", f"  {line}")
        assert any(why in problem.what for problem in parse("build", text).terms.problems), line
