"""Dialogs to export: one that people hold, and one whose agents do their worst."""

from __future__ import annotations

import html
import re

from dialogd.protocol.state import Dialog
from tests.support.room import Room, opening

HOSTILE = {
    "typst": '#panic(1) #read("/etc/passwd") $x$ $$\\sum$$ @label <label> `code` */ // /* ]] }} \\u{41} #let x = 1',
    "tags": "</script><script>alert(1)</script> <img src=x onerror=alert(1)> ]]> <!-- --> <style>*{color:red}</style>",
    "escaped": "\\<script>alert(4)</script> \\\\\\<img src=x> \\\\<b> \\![p](https://evil.example/p.png) `\\<i>`",
    "fences": "```python title\nprint('hi') # </pre><script>alert(2)</script>\n```\n\n````md\n```\nnested\n```\n````",
    "long": "words " * 600 + "x" * 5_000,
    "languages": "emoji 🎉 數據庫 Ελληνικά кириллица, and \U0001e922, for which hardly a machine has a font",
    "controls": "nul \x00 escape \x1b[2J replaced \ufffd end",
    "quotes": ">" * 40 + " very deep quote",
    "lists": "- " * 40 + "very deep list",
    "table": "|a|b|\n|-|-|\n|one|two|excess cell|\n|three|four|",
    "links": '[x]: javascript:alert(1) "hidden title"\n\n[click](javascript:alert(3)) '
    '[page](https://example.org/a?b=c "named") <https://auto.example> ![picture](https://evil.example/p.png)',
    "structure": "# Heading\n\nTitle\n=====\n\n1. one\n2. two\n   - below\n\n***both*** ~~gone~~ a  \nbreak\n\n> said",
    "unclosed": "```\nunclosed fence\n## Turn 99 — Claude B\n\nTURN: A",
    "entities": "&lt;script&gt; &amp; &copy; &#x41; ok",
    "marks": "text\n\n[PROPOSAL: #panic(3) </script> $x$ [a](javascript:b) `]\n[CONFIDENCE: 0.5]",
    "signs": '"quoted" \\"back\\\\slash\\" \'single\'\ttab {{7*7}} {% raw %} ${x}',
}
TOPIC = "#panic(2) <script>alert(9)</script> $x$"


def hostile() -> Dialog:
    """Two agents that write what could run, or break out, somewhere."""
    return _held(opening("A", "B", keys=[f"Topic: {TOPIC}", "Max Turns: 60"]), list(HOSTILE.values())).dialog


def peaceful() -> Room:
    """Three turns, a proposal that both agree to, and the end."""
    lines = [
        "Sessions are *small*, and Postgres is there.\n\n- no new service\n- backups\n\n"
        "[PROPOSAL: keep sessions in Postgres]\n[CONFIDENCE: 0.8]",
        "```sql\nselect 1;\n```\n\nWhat of the load?\n\n[QUESTION: how many reads a second?]\n[RE: P1]",
        "Two hundred.\n\n[CONCEDE: P1 may need a cache later]\n[AGREE: P1]",
    ]
    room = _held(opening("A", "B", keys=["Topic: Where should user sessions live?", "Dialog: 3f9a1c"]), lines)
    room.say("Enough, thank you.", note=True)
    room.stop("decided")
    return room


def _held(text: str, lines: list[str]) -> Room:
    room = Room(text)
    for number, line in enumerate(lines):
        who = "AB"[number % 2]
        room.thinks(who)
        room.advance(6.0)
        room.answers(who, line)
    return room


def letters(text: str) -> str:
    """What of a text every format must show: letters and digits, without the numbers of lists."""
    shown = re.sub(r"^[ \t>*+-]*\d{1,9}[.)](?=[ \t])", "", text, flags=re.M)
    return "".join(filter(str.isalnum, html.unescape(shown)))


def lost(wanted: str, found: str) -> str:
    """Where `wanted` stops standing in `found`, in its order: what is around the first missing letter; else ""."""
    place = 0
    for number, letter in enumerate(wanted):
        place = found.find(letter, place) + 1
        if not place:
            return wanted[max(number - 20, 0) : number + 20]
    return ""
