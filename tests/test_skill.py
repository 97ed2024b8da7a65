"""SKILL.md files: read tolerantly, what is wrong named with line and fix, and what they come to in rules."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dialogd.protocol.rules import REVIEW, STANDARD, USUAL, Board, Kind, Phase
from dialogd.templates.skill import KEYS, Terms, front_matter, read, terms_of
from tests.support.cases import cases

PLAIN = """# Dyad Research

**Position**: two of seven

## Overview

Two agents look at one question.

It ends in one text.

## Agents

### Agent 1: Alpha (lead)

Knows the field.

**Personality:** curious, fast
**Responsibilities:**
- find sources
- name what
  is missing

### Beta
- **Personality**: sceptical
- **Responsibilities**: check every source
- **Tools**: a web search

## Workflow

1. **DISCOVERY** (2 rounds): both look, alone.
   - each for itself
2. **ANALYSIS**: what was found
3. EXCHANGE: `RESULTS` go to the other
4. **COMPARISON** - where they differ
5. **SYNTHESIS**

## Communication Protocol

- **READY_TO_SHARE**: done looking
- `RESULTS`: what was found
- ACKNOWLEDGE - seen
- **DISCREPANCY** — two things that cannot both be true
* **CONSENSUS**: agreed
- **ESCALATE:** to the person
- **INSTRUCTION**: do this next
- **QUERY**: asks
- **RESPONSE**: answers

Messages are short.

## Success Criteria

- [ ] both **agree**
- every source
  was opened

## Error Handling

1. **Timeout**: go on alone
2. No source: say so

## Examples

```
## Agents

### Nobody
```
"""


def terms(text: str, name: str = "mine") -> Terms:
    """What a text comes to."""
    return terms_of(read(text, name))


def test_a_plain_skill_without_front_matter_reads_as_other_programs_expect() -> None:
    assert read(PLAIN, "dyad").as_json() == {
        "position": "two of seven",
        "overview": "Two agents look at one question.\n\nIt ends in one text.",
        "agents": [
            {
                "name": "Alpha (lead)",
                "personality": "curious, fast",
                "responsibilities": ["find sources", "name what is missing"],
            },
            {"name": "Beta", "personality": "sceptical", "responsibilities": ["check every source"]},
        ],
        "workflow": [
            {"phase": "DISCOVERY", "description": "both look, alone. each for itself"},
            {"phase": "ANALYSIS", "description": "what was found"},
            {"phase": "EXCHANGE", "description": "`RESULTS` go to the other"},
            {"phase": "COMPARISON", "description": "where they differ"},
            {"phase": "SYNTHESIS", "description": ""},
        ],
        "communicationProtocol": [
            {"type": "READY_TO_SHARE", "description": "done looking"},
            {"type": "RESULTS", "description": "what was found"},
            {"type": "ACKNOWLEDGE", "description": "seen"},
            {"type": "DISCREPANCY", "description": "two things that cannot both be true"},
            {"type": "CONSENSUS", "description": "agreed"},
            {"type": "ESCALATE", "description": "to the person"},
            {"type": "INSTRUCTION", "description": "do this next"},
            {"type": "QUERY", "description": "asks"},
            {"type": "RESPONSE", "description": "answers"},
        ],
        "successCriteria": ["both agree", "every source was opened"],
        "errorHandling": ["Timeout: go on alone", "No source: say so"],
    }


def test_a_plain_skill_comes_to_rules() -> None:
    found = terms(PLAIN)
    assert found.problems == ()
    assert [note.what for note in found.notes] == ["field of Beta 'tools' is ignored"]
    assert ([part.name for part in found.cast], found.least, found.most) == (["Alpha", "Beta"], 2, 2)
    assert found.cast[0].role.specialization == "Knows the field."
    assert found.cast[0].role.permissions == USUAL
    rules = found.rules
    assert rules.phases[:2] == (
        Phase("DISCOVERY", "both look, alone. each for itself", 2),
        Phase("ANALYSIS", "what was found"),
    )
    assert [*rules.kinds][:2] == ["READY_TO_SHARE", "RESULTS"]
    assert len(rules.kinds) == 9
    assert (rules.order, rules.verdict, rules.template) == ("alternate", "mutual", "mine")


FULL = """---
name: trio # the name
description: >
  Three agents,
  one text.
position: "three: of seven"
agents: 2-4
order: Round Robin
verdict: judge
judge: cy
first: [Ann, Bob Ross]
max_turns: 1,000
max-rounds: 5
max_time: 1h 30m
timeout: 90 seconds
sealed: yes
red_team: true
objections: on
review: false
threshold: 3/4
quorum: 50%
escalation_threshold: 2
guidelines: |
  Be kind.
  Be brief.
words: 50 words
labels: names
question_defaults: true
board:
  round_limit: 3
license: MIT
metadata: {author: somebody}
---
# Trio

## Agents

### Ann
**Permissions:** critic
**Backend:** claude:opus
**Weight:** 2.5
**Priority:** -3

### Bob Ross
**Role:** synthesizer
**Specialization:** colours

### Cy
**Permissions:**
- READ_ALL
- decide

## Opening

Talk about $topic. It costs $$5.
"""


def test_every_key_of_the_front_matter_is_read() -> None:
    found = terms(FULL)
    assert found.problems == ()
    assert [(note.line, note.what) for note in found.notes] == [
        (31, "key 'license' is ignored"),
        (32, "key 'metadata' is ignored"),
    ]
    rules = found.rules
    assert (rules.template, rules.order, rules.verdict, found.judge) == ("trio", "round-robin", "judge", "Cy")
    assert (found.least, found.most, found.first) == (2, 4, ("Ann", "Bob Ross"))
    fixed = found.matter
    assert (fixed.max_turns, fixed.max_rounds, fixed.max_time, fixed.timeout) == (1000, 5, 5400.0, 90.0)
    assert (rules.sealed, rules.red_team, rules.objections, rules.review) == (True, True, True, False)
    assert (rules.threshold, rules.quorum) == (0.75, 0.5)
    assert rules.escalation_threshold == 2
    assert (rules.guidelines, dict(found.more)) == (
        "Be kind. Be brief.",
        {"labels": "names", "words": "50 words", "question_defaults": True},
    )
    assert rules.board == Board(round_limit=3)
    ann, bob, cy = found.cast
    assert (ann.role.name, ann.role.permissions, ann.backend) == ("critic", STANDARD["critic"], "claude:opus")
    assert (ann.role.weight, ann.role.priority) == (2.5, -3)
    assert (bob.name, bob.role.permissions, bob.role.specialization) == (
        "Bob Ross", STANDARD["synthesizer"], "colours",
    )  # fmt: skip
    assert (cy.role.name, cy.role.permissions) == ("", {"READ_ALL", "DECIDE"})
    skill = read(FULL, "x")
    assert (skill.name, skill.position, skill.opening) == (
        "trio", "three: of seven", "Talk about $topic. It costs $$5.",
    )  # fmt: skip


def test_no_key_is_forgotten() -> None:
    written = {key.replace("-", "_") for key in front_matter(FULL.split("\n")).values}
    assert set(KEYS) - {"build"} <= written


WRONG = {
    "unknown key 'verdikt'": ("---\nname: x\nverdikt: vote\n---\n", 3, "did you mean `verdict`?"),
    "verdict: 'votes' is none of mutual, vote, moderator, judge; did you mean vote?": (
        "---\nverdict: votes\n---\n", 2, "templates.md",
    ),
    "max_rounds: '0' is not between": ("---\nmax_rounds: 0\n---\n", 2, "templates.md"),
    "max_time: 'soon' is not a duration": ("---\nmax_time: soon\n---\n", 2, "templates.md"),
    "sealed: Input should be a valid boolean": ("---\nsealed: perhaps\n---\n", 2, "templates.md"),
    "threshold: Input should be less than or equal to 1": ("---\nthreshold: 3/2\n---\n", 2, "templates.md"),
    "agents: '4-2' is no number": ("---\nagents: 4-2\n---\n", 2, "templates.md"),
    "board: 'round_limits' is nothing that a template may say of a board; did you mean round_limit?": (
        "---\nboard:\n  round_limits: 5\n---\n", 2, "templates.md",
    ),
    "board: round_limit: Input should be a valid integer": ("---\nboard: [round_limit: x]\n---\n", 2, "templates.md"),
    "judge: no agent is called Judge": ("---\nverdict: judge\n---\n", 2, "## Agents"),
    "first: no agent is called Zed": ("---\nfirst: Zed\n---\n## Agents\n### Ann\n", 2, "## Agents"),
    "agents: 2 are described": ("---\nagents: 1\n---\n## Agents\n### Ann\n### Bob\n", 2, "templates.md"),
    "front matter without an end": ("---\nname: x\n", 1, "`---`"),
    "'just words' is no `key: value`": ("---\njust words\n---\n", 2, "one key per line"),
    "this is no YAML: mapping values are not allowed here": ("---\nname: x\nwords: a: b\n---\n", 3, "quotes"),
    "this is no YAML: a character or an escape in it is none": ('---\nwords: "\\UFFFFFFFF"\n---\n', 2, "quotes"),
    "anchors and aliases of YAML are not read": ("---\nname: &a x\nwords: *a\n---\n", 2, "write it out"),
    "or it is nested too deeply": ("---\nname: x\nmetadata: " + 4_900 * "[" + 4_900 * "]" + "\n---\n", 2, "quotes"),
    "front matter of 20,0": ("---\nname: x\n" + 10_000 * "#\n" + "---\n", 1, "up to 20,000"),
    "words: {'a': 'b'} is no text": ("---\nwords: {a: b}\n---\n", 2, "templates.md"),
    "unknown section 'workflows'": ("# x\n\n## Workflows\n", 3, "did you mean `## Workflow`?"),
    "unknown field of Ann 'responsibilites'": ("## Agents\n### Ann\n**Responsibilites:** x\n", 3, "`responsibilities`"),
    "; did you mean VOTE?": (
        "## Agents\n### Ann\n**Permissions:** READ_ALL, votes\n", 3, "templates.md",
    ),
    "weight of Ann: Input should be greater than 0": ("## Agents\n### Ann\n**Weight:** 0\n", 3, "templates.md"),
    "two agents are called ann": ("## Agents\n### Ann\n### ann\n", 3, "name of its own"),
    "'User' is no name for an agent": ("## Agents\n### User\n", 2, "### Architect"),
    "backend of Ann names a program": ("## Agents\n### Ann\n**Backend:** command:rm -rf x\n", 3, "--agent Ann="),
    "the opening holds a $name": ("## Opening\n\nTalk about $topick\n", 2, "$topic, $question"),
    "something like a key": ("# x\n\nsk-ant-" + "a1" * 20 + "\n", 3, ".env"),
}  # fmt: skip


@cases("what", WRONG)
def test_what_is_wrong_is_named_with_its_line_and_a_fix(what: str) -> None:
    text, line, fix = WRONG[what]
    (problem,) = terms(text).problems
    assert what in problem.what
    assert (problem.line, fix in problem.fix) == (line, True), problem


def test_all_problems_of_a_file_come_in_the_order_of_its_lines() -> None:
    found = terms("---\norder: x\nverdict: y\n---\n## Agents\n### Ann\n**Weight:** no\n## Agent\n").problems
    assert [problem.line for problem in found] == [2, 3, 7, 8]


@cases(
    ("line", "value"),
    [
        ("k: c# is no comment", "c# is no comment"),
        (r'k: "line\nbreak \"x\""', 'line\nbreak "x"'),
        ('k: [a, "b, c", d]', ("a", "b, c", "d")),
        ("k:\n  - a\n  - 'b: c'", ("a", "b: c")),
        ("k: >-\n  one\n  two\n\n", "one two"),
        ("k:\n  a: 1\n  # no\n  B-c: 'x'", {"a": "1", "b_c": "x"}),
        ("k:", ""),
        ("k: {a: [1, 2], b: {c: {d: e}}}", {"a": "1, 2", "b": "c: d: e"}),
        ("k: [a: b, yes, 1_000, 2026-01-01, ~]", ("a: b", "yes", "1_000", "2026-01-01", "~")),
        ("k: !!python/object/apply:os.system [date]", ("date",)),
        (r'k: "a\e[2Jb"', "a\ufffd[2Jb"),
    ],
)
def test_front_matter_is_read_as_yaml_reads_it(line: str, value: object) -> None:
    front = front_matter(["---", *line.split("\n"), "---", "rest"])
    assert (front.problems, list(front.values)) == ((), ["k"])
    assert front.values["k"].value == value


def test_what_follows_the_front_matter_keeps_its_lines() -> None:
    assert [a.line for a in read("\ufeff---\nname: x\n---\n\n## Agents\n### Ann\n", "x").agents] == [6]
    assert [a.line for a in read("## Agents\r\n### Ann\r\n", "x").agents] == [2]


def test_steps_and_messages_are_found_in_other_forms_too() -> None:
    text = (
        "## Workflow\n\n### Phase 1: GATHER (3 rounds)\nAll of it.\n\n### 2. JUDGE\n\n"
        "## Communication Protocol\n\n| Type | Meaning |\n|---|---|\n| `ASK` | a question |\n| TELL | an answer |\n\n"
        "- **Format 2**: JSON\n- prose that names nothing\n"
    )
    found = terms(text)
    assert found.rules.phases == (Phase("GATHER", "All of it.", 3), Phase("JUDGE"))
    assert dict(found.rules.kinds) == {"ASK": Kind("a question"), "TELL": Kind("an answer")}
    assert (found.problems, [note.line for note in found.notes]) == ((), [15])
    long = terms("## Workflow\n1. Read the question with great care and patience, twice\n2. Answer: now\n").rules.phases
    assert long == (
        Phase("STEP 1", "Read the question with great care and patience, twice"),
        Phase("Answer", "now"),
    )


def test_a_review_has_its_kinds_of_contribution() -> None:
    kinds = terms(
        "---\nreview: true\n---\n## Communication Protocol\n- **SCORE**: 0 to 100\n- **ASK**: a\n"
    ).rules.kinds
    assert [*kinds] == ["FINDING", "RESOLVED", "SCORE", "ASK"]
    assert kinds["SCORE"] == replace(REVIEW["SCORE"], meaning="0 to 100")


def test_without_a_position_the_title_is_the_position_and_the_name_comes_last() -> None:
    assert read("---\nposition: a\n---\n# T\n\n## Overview\nPosition: b\n", "x").position == "a"
    assert read("# T\n\n## Overview\n- **Position**: b\nmore\n", "x").position == "b"
    assert read("# T\n", "x").position == "T"
    assert read("words\n", "x").position == "x"
    assert read("# T\n\nIntro.\n", "x").overview == "Intro."


@given(st.text(st.sampled_from("#-*:|>`_[]() \n\tabAB1{}'\"$,") | st.characters(), max_size=200))
def test_no_text_makes_reading_fail(text: str) -> None:
    for whole in (text, f"---\n{text}", f"---\n{text}\n---\n## Agents\n### Ann\n{text}\n## Workflow\n{text}\n"):
        found = terms(whole)
        assert all(problem.line >= 0 and problem.what for problem in found.problems)
