"""From a reply to the entry that is written: read, rule, close, cut. Pure; the same inputs give the same bytes.

The order is part of the format: clean, redact, lift marks, rule, cut; `grammar.render` escapes and hashes.
"""

from __future__ import annotations

from dataclasses import dataclass

from dialogd.protocol.hashing import digest
from dialogd.protocol.marks import Reply, read_reply
from dialogd.protocol.model import SYSTEM, Agent, Debt, Dialog, Mark
from dialogd.protocol.order import next_agent
from dialogd.protocol.redact import redact
from dialogd.protocol.render import Draft
from dialogd.protocol.text import clean, one_line
from dialogd.protocol.verdict import Ruling, rule


@dataclass(frozen=True, slots=True)
class Written:
    """A draft entry, and what was too long for it: `overflow` goes to the file `attachment` beside the dialog."""

    draft: Draft
    outcome: str = ""
    why: str = ""
    attachment: str = ""
    overflow: str = ""


def received(text: str) -> tuple[Reply, int]:
    """A raw reply, cleaned, redacted and read; with the number of secrets that were taken out."""
    safe, secrets = redact(clean(text))
    return read_reply(safe), secrets


def agent_turn(
    dialog: Dialog,
    agent: Agent,
    debt: Debt,
    reply: Reply,
    *,
    attributes: tuple[tuple[str, str], ...],
    duration: str,
    folder: str,
) -> Written:
    """The turn by which `agent` pays `debt` in the dialog as it stands.

    `attributes` go to the frame (`at`, `ms`, `model` …). `duration` is the dialog's age in words, for the closing
    lines. `folder` is the name of the attachments' folder, as linked from the file.
    """
    ruling = rule(dialog, agent.id, reply)
    body, attachment, overflow = cut(reply.body, dialog.state.limits.max_message, folder)
    if dialog.size + len(body.encode("utf-8", "replace")) >= dialog.state.limits.max_size and ruling.turn is not None:
        why = f"the limit of {dialog.state.limits.max_size:,} bytes"
        ruling = Ruling(ruling.marks, None, "MAX_SIZE_REACHED", why)
    number = dialog.state.number + 1
    marks = ruling.marks
    if ruling.outcome:
        marks = (*marks, Mark(ruling.outcome))
        if ruling.outcome in ("CONSENSUS_REACHED", "DEADLOCK"):
            body = "\n\n".join(part for part in (body, closing_lines(number, duration, ruling.why)) if part)
    draft = Draft(
        by=agent.id,
        name=agent.name,
        number=number,
        body=body,
        marks=marks,
        turn=ruling.turn,
        attributes=(("re", debt.re), *attributes),
    )
    return Written(draft, ruling.outcome, ruling.why, attachment, overflow)


def closing_lines(turns: int, duration: str, outcome: str) -> str:
    """The lines that close a dialog which ended by agreement: turns, duration, outcome."""
    return f"---\n\n**Total turns:** {turns}\n**Duration:** {duration}\n**Outcome:** {outcome}"


def cut(body: str, limit: int, folder: str) -> tuple[str, str, str]:
    """Cut a body to `limit` code points; gives body, attachment name and the rest ("" twice when nothing is cut)."""
    if len(body) <= limit:
        return body, "", ""
    name = f"{digest(body)}.md"
    rest = len(body) - limit
    link = f"*({rest:,} more characters: [the whole text]({folder}/{name}))*"
    return f"{body[:limit]}\n\n{link}", name, body


def error_note(dialog: Dialog, agent: str, cause: str, fix: str, attributes: tuple[tuple[str, str], ...] = ()) -> Draft:
    """The note that says an agent failed: the person's turn between two, the next agent's among more.

    `attributes` go to its frame: `at`, and what the agent spent since its last entry.
    """
    words = (one_line(part).replace(" | ", " / ") for part in (cause, fix))
    mark = Mark("AGENT_ERROR", " | ".join((agent, *words)))
    failed = dialog.state.failed | {agent}
    if {a.id for a in dialog.header.agents} <= failed and len(dialog.header.agents) > 1:
        marks = (mark, Mark("STOPPED", "error: every agent failed"))
        return Draft(SYSTEM, "System", marks=marks, attributes=attributes)
    return Draft(SYSTEM, "System", marks=(mark,), turn=_passed_on(dialog, agent), attributes=attributes)


def stall_note(dialog: Dialog, agent: str, at: str) -> Draft:
    """The note that says an agent gave no answer in time; among more than two the turn goes on."""
    turn = _passed_on(dialog, agent) if len(dialog.header.agents) > 2 else None
    return Draft(SYSTEM, "System", marks=(Mark("STALLED", agent),), turn=turn, attributes=(("at", at),))


def _passed_on(dialog: Dialog, agent: str) -> tuple[str, ...]:
    """Whose turn it is when `agent` is passed over: the rest of the round, else the next; between two the person."""
    rest = tuple(who for who in dialog.state.owing if who != agent)
    if rest:
        return rest
    if len(dialog.header.agents) <= 2:
        return ("USER",)
    return (next_agent(dialog.header, dialog.state, agent),)
