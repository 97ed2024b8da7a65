"""A dialog exported as a document: Markdown, HTML, PDF or JSON."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dialogd.errors import BadInput, DialogdError, NotInstalled
from dialogd.protocol import board
from dialogd.protocol.board import positions
from dialogd.protocol.certificate import certify
from dialogd.protocol.model import AGREED, Condition, Entry, digest
from dialogd.protocol.money import in_dollars, in_tokens, total
from dialogd.protocol.names import lifecycle_of
from dialogd.protocol.state import Dialog, Spent
from dialogd.protocol.text import dollars, in_words, listed, many, one_line
from dialogd.views.flow import flow
from dialogd.views.markup import fill, safe, to_html
from dialogd.views.plan import Plan
from dialogd.views.plan_page import date, document, guarded, inline, summary, table
from dialogd.views.standing import entry_fields
from dialogd.views.words import sentences, words_of

STATES = {
    Condition.EDITED: "changed after it was written",
    Condition.DAMAGED: "damaged: it counts for nothing",
    Condition.UNFINISHED: "unfinished",
}
WITHDRAWN = "withdrawn by the person: its marks do not count"


@dataclass(frozen=True, slots=True)
class Piece:
    """One entry. `anchor` is `t7` or `n7-2`, `caption` its time, `note` its condition, `told` its marks in words."""

    anchor: str
    title: str
    caption: str
    is_withdrawn: bool
    note: str
    text: str
    told: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """All of it, in the order of the page: the decision first, figures and hashes last.

    `summary` is Markdown: what came of it, without a title. `proposals` are rows: number, by, text, what became of it.
    `records` are rows of every entry's figures and hash, `rules` what the file's header says, without its Setup.
    """

    title: str
    kind: str
    facts: tuple[tuple[str, str], ...]
    summary: str
    proposals: tuple[tuple[str, ...], ...]
    parts: tuple[Piece, ...]
    attachments: tuple[tuple[str, str], ...]
    rules: tuple[str, ...]
    records: tuple[tuple[str, ...], ...]
    header: str
    dialog: Dialog


PROPOSALS = ("number", "by", "proposal", "what became of it", "for", "against")
RECORDS = ("entry", "by", "time", "took", "model", "tokens in, out", "cost", "hash")
_SETUP = re.compile(r"^## Setup[ \t]*\n.*?(?=^## |^---[ \t]*$|\Z)", re.M | re.S)


def draw_up(dialog: Dialog, attachments: Mapping[str, str]) -> Document:
    """The document of a dialog; links to attachments lead to its appendix."""
    names, plan = tuple(attachments), Plan(dialog)
    return Document(
        title=" ".join((dialog.header.topic or dialog.header.title or "A dialog").split()),
        kind="A rehearsal: no model was asked" if dialog.is_rehearsed else "",
        facts=tuple((name, value) for name, value in _facts(plan) if value),
        summary=summary(plan),
        proposals=tuple(_proposals(plan)),
        parts=tuple(_part(plan, entry, names) for entry in dialog.entries),
        attachments=tuple((name, attachments[name]) for name in names),
        rules=tuple(_rules(dialog)),
        records=tuple(_record(plan, entry) for entry in dialog.entries),
        header=re.sub(r"\n{3,}", "\n\n", _SETUP.sub("", dialog.header.text)).strip("\n-"),
        dialog=dialog,
    )


def anchor_of(name: str) -> str:
    """The unique anchor of an attachment in the document."""
    stem = name.removesuffix(".md")
    plain = re.sub(r"[^0-9A-Za-z]+", "-", stem).lower()
    return f"attachment-{plain}" if plain == stem else f"attachment-{plain}-{digest(name)[:6]}"


def _facts(plan: Plan) -> Iterator[tuple[str, str]]:
    """Who took part, when, and what it took."""
    dialog, state = plan.dialog, plan.dialog.state
    here = {agent.id for agent in dialog.header.agents}
    cast = [agent.id for agent in dialog.everybody]
    yield "Participants", listed([plan.name(who) + ("" if who in here else " (left)") for who in cast])
    end = dialog.entry(state.outcome.entry) if state.outcome else None
    yield "Began", date(plan.began)
    yield "Ended", date(end.at) if end else ""
    took = f" in {in_words(round(plan.seconds))}" if plan.seconds else ""
    yield "Turns", f"{state.turns_in_words if state.base else state.number}{took}"
    spent = total(state.spent)
    is_known = spent.entries > spent.unknown or spent.tokens
    yield "Cost", f"{in_dollars(spent)}, {in_tokens(spent)} tokens" if is_known else ""
    yield (
        "Approved",
        f"by the person{f' on {date(plan.approved.at)}' if plan.approved.at else ''}" if plan.approved else "",
    )


def _proposals(plan: Plan) -> Iterator[tuple[str, ...]]:
    texts = {p.ref for p in plan.dialog.state.table.proposals if p.sha}
    for p in board.proposals(plan.dialog):
        stands = p.decision or ("not chosen" if plan.outcome in AGREED else "open")
        said = f"the text that stands in turn {p.entry}" if p.ref in texts else " ".join(p.text.split())
        sides = (listed([plan.name(who) for who in side]) for side in (p.supporters, p.opponents))
        yield p.ref, plan.name(p.agent), said, stands, *sides


def _rules(dialog: Dialog) -> Iterator[str]:
    """What the dialog was held by, in words."""
    rules, limits = dialog.header.rules, dialog.state.limits
    if rules.template:
        yield f"By the template {rules.template}."
    yield {
        "mutual": "It ends when everybody has signed the same text.",
        "vote": f"By vote: {rules.threshold:.0%} of the votes decide, if {rules.quorum:.0%} of the voters vote.",
        "moderator": "The moderator decides.",
        "judge": f"{rules.judge or 'A judge'} decides between the positions.",
        "build": "Tasks are carried out by one agent and reviewed by another.",
    }.get(rules.verdict, "")
    most = [f"at most {many(limits.max_turns, 'turn')}", f"{in_words(limits.timeout)} for a turn"]
    most += [f"{in_words(limits.max_time)} in all"] if limits.max_time else []
    most += [dollars(limits.budget)] if limits.budget else []
    yield f"Its limits: {', '.join(most)}."
    if dialog.header.is_unattended:
        yield "Nobody was at the table: what the agents would have asked the person had to be answered without them."


def _part(plan: Plan, entry: Entry, attachments: tuple[str, ...]) -> Piece:
    notes = [WITHDRAWN if entry.is_struck else "", STATES.get(entry.condition, ""), entry.notice]
    kind = f"Turn {entry.number}" if entry.is_turn else "Note"
    who = entry.from_session or plan.name(entry.by)
    return Piece(
        anchor=f"t{entry.number}" if entry.is_turn else f"n{entry.id.replace('.', '-')}",
        title=f"{kind} — {who[:1].upper()}{' '.join(who[1:].split())}" if who.strip() else kind,
        caption=date(entry.at) if entry.frame is not None else "written by hand",
        is_withdrawn=entry.is_struck,
        note="; ".join(note for note in notes if note),
        text=linked(words_of(entry), attachments),
        told=sentences(entry, plan.name),
    )


def _record(plan: Plan, entry: Entry) -> tuple[str, ...]:
    """The figures and the hash of an entry."""
    frame = entry.frame
    name = f"turn {entry.number}" if entry.is_turn else f"note {entry.id}"
    by = plan.name(entry.by)
    if frame is None:
        return name, by, "by hand", "", "", "", "", entry.chain
    took = in_words(int(frame.ms) / 1000) if re.fullmatch(r"[0-9]{1,12}", frame.ms) else ""
    tokens = f"{frame.tokens_in or '?'}, {frame.tokens_out or '?'}" if frame.tokens_in or frame.tokens_out else ""
    return name, by, date(frame.at), took, frame.model, tokens, _usd(frame.usd), entry.chain


def _usd(text: str) -> str:
    try:
        return f"{'about ' if text[0] == '~' else ''}{dollars(float(text.lstrip('~')))}" if text else ""
    except (ValueError, OverflowError):
        return text


def linked(text: str, attachments: tuple[str, ...]) -> str:
    """The text with links to attachments replaced by links into the document."""
    for name in attachments:
        if name in text:
            text = re.sub(rf"\]\([^()\s]*\.d/{re.escape(name)}\)", f"](#{anchor_of(name)})", text)
    return text


# -- A dialog as HTML -------------------------------------------------------------------------------------------------

HASHES = (
    "Each hash is that of an entry and of the one before it. They show what was changed afterwards, not who wrote it:"
    " `dialogd verify` checks them."
)


def as_html(made: Document) -> str:
    """One page, readable on a screen and on paper. Its policy allows its own style and nothing else."""
    folder = Path(__file__).parent
    css = (folder / "export.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return fill(
        folder,
        "export.html",
        document=made,
        policy=safe(f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"),
        css=safe(css),
        columns=PROPOSALS,
        record_columns=RECORDS,
        hashes=HASHES,
        anchor_of=anchor_of,
        markdown=lambda text: safe(to_html(text)),
    )


# -- The page, printed ------------------------------------------------------------------------------------------------

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
LONGEST = 300.0  # seconds that a browser may take
_INSTEAD = "export to html, open the page in a browser and print it to a file"


def as_pdf(page: str) -> bytes:
    """The HTML printed by WeasyPrint, else by a browser that is installed; neither loads anything for it.

    Raises `NotInstalled` where there is neither, `DialogdError` where printing fails.
    """
    try:
        from weasyprint import HTML
    except (ImportError, OSError):  # it needs Pango, a library of the system
        return _by_browser(page)

    def refuse(url: str, *_: object, **__: object) -> dict[str, object]:
        raise ValueError(f"nothing is loaded: {url}")

    return bytes(HTML(string=page, url_fetcher=refuse).write_pdf())


def _by_browser(page: str) -> bytes:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise NotInstalled(
            "a PDF is printed by WeasyPrint or by Chromium, and neither is installed",
            fix=f"pip install 'dialogd[pdf]'; or {_INSTEAD}",
        )
    with tempfile.TemporaryDirectory(prefix="dialogd-pdf-") as name:
        folder = Path(name)
        source, made = folder / "page.html", folder / "page.pdf"
        source.write_bytes(page.encode("utf-8", "replace"))
        # A profile of its own: a browser that is open would take the address and print nothing.
        command = [
            program,
            "--headless",
            "--disable-gpu",
            "--no-pdf-header-footer",
            f"--user-data-dir={folder / 'user'}",
        ]
        command += ["--no-sandbox"] if os.geteuid() == 0 else []  # root has no sandbox, and its browser will not start
        command += [f"--print-to-pdf={made}", source.as_uri()]
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
        try:
            process.wait(LONGEST)
        except subprocess.TimeoutExpired as error:
            raise DialogdError(f"{program} printed no PDF in {LONGEST:.0f} seconds", fix=_INSTEAD) from error
        finally:
            with suppress(ProcessLookupError):  # its helpers too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if not made.is_file():
            raise DialogdError(f"{program} printed no PDF", fix=_INSTEAD)
        return made.read_bytes()


# -- A dialog as JSON -------------------------------------------------------------------------------------------------

VERSION = 1


def as_json(dialog: Dialog, attachments: Mapping[str, str]) -> str:
    """One JSON object; ends with a newline."""
    return json.dumps(facts(dialog, attachments), ensure_ascii=True, indent=1) + "\n"


def facts(dialog: Dialog, attachments: Mapping[str, str]) -> dict[str, Any]:
    """The dialog as one object of plain values."""
    certificate = certify(dialog)
    return {
        "v": VERSION,
        "dialog": dialog.id,
        "topic": dialog.header.topic,
        "header": _header(dialog),
        "state": _state(dialog),
        "entries": [_entry(entry) for entry in dialog.entries],
        "proposals": [asdict(proposal) for proposal in board.proposals(dialog)],
        "decisions": [asdict(decision) for decision in board.decisions(dialog)],
        "positions": [asdict(position) for position in positions(dialog)],
        "messages": [asdict(message) for message in flow(dialog)],
        "certificate": certificate.as_json() if certificate is not None else None,
        "attachments": [{"name": name, "text": text} for name, text in attachments.items()],
    }


def _header(dialog: Dialog) -> dict[str, Any]:
    header = dialog.header
    return {
        "title": header.title,
        "started": header.started,
        "agents": [{"id": a.id, "name": a.name, "url": a.url, "role": a.role} for a in header.agents],
        "limits": asdict(header.limits),
        "text": header.text,
        "warnings": list(header.warnings),
    }


def _state(dialog: Dialog) -> dict[str, Any]:
    state, outcome = dialog.state, dialog.state.outcome
    return {
        "phase": lifecycle_of(dialog),
        "turn": state.number,
        "turn_of": list(state.owing),
        "paused": state.paused,
        "question": state.questions.text,
        "asker": state.questions.asker,
        "rounds": state.floor.rounds,
        "limits": asdict(state.limits),
        "outcome": None if outcome is None else {**asdict(outcome), "failed": outcome.failed},
        "approved": state.approved,
        "vetoed": list(state.table.vetoed),
        "spent": {who: _spent(spent) for who, spent in state.spent.items()},
        "total": _spent(total(state.spent)),
    }


def _spent(spent: Spent) -> dict[str, Any]:
    """The spending of an entry: null for unknown."""
    return {
        "usd": None if spent.entries == spent.unknown else spent.usd,
        "tokens_in": None if spent.uncounted and not spent.tokens else spent.tokens_in,
        "tokens_out": None if spent.uncounted and not spent.tokens else spent.tokens_out,
        "exact": spent.exact and not spent.unknown,
    }


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        **entry_fields(entry),
        "marks": [{"name": m.name, "ref": m.ref, "value": m.value, "line": str(m)} for m in entry.written],
        "notice": entry.notice,
        "line": entry.line,
        "chain": entry.chain,
        "frame": None if entry.frame is None else {**asdict(entry.frame), "re": entry.re},
    }


# -- A dialog as one Markdown document --------------------------------------------------------------------------------

ALL = 1_000_000_000  # characters: nothing is cut
# Signs of a heading that would not be shown, or change how others are. Behind these, `inline` sees to tags and images.
_EATEN = re.compile(
    r"\\(?=[!-/:-@[-`{-~])|[*~](?! )|(?<=\S)[*~]|(?<![^\W_])_(?! )|(?<=\S)_(?![^\W_])"
    r"|`|\[|&(?=#?\w+;)|(?<!#)#++$"
)


def as_markdown(made: Document) -> str:
    """The whole document; ends with a newline."""
    records = "\n".join(table(RECORDS, [tuple(map(guarded, row)) for row in made.records]))
    names = {"line": lambda text: inline(guarded(text), ALL), "heading": _shown, "anchor_of": anchor_of}
    return document("export.md.jinja", d=made, records=records, hashes=HASHES, **names) + "\n"


def _shown(title: str) -> str:
    """A title escaped for a Markdown heading; a single bracket needs no escaping."""
    title = one_line(title, ALL)
    links = title.rfind("](")

    def kept(match: re.Match[str]) -> str:
        is_alone = match[0] == "[" and match.start() > links
        return match[0] if is_alone else "".join(f"\\{sign}" for sign in match[0])

    return _EATEN.sub(kept, title)


# -- The formats that a dialog can be exported to, and the one function for all of them -------------------------------

FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "md": "text/markdown; charset=utf-8",
        "html": "text/html; charset=utf-8",
        "pdf": "application/pdf",
        "json": "application/json",
    }
)
NONE: Mapping[str, str] = MappingProxyType({})
PART = 40  # characters of a topic, and of an id, in a file's name


def export(dialog: Dialog, to: str, *, attachments: Mapping[str, str] = NONE) -> bytes:
    """The dialog as a document of its own; `to` is one of `FORMATS`, `attachments` are texts by name.

    Raises `BadInput` for another format, `NotInstalled` for a PDF where nothing prints one.
    """
    if to not in FORMATS:
        raise BadInput(f"nothing is exported as {to!r}", fix=f"name one of: {', '.join(FORMATS)}")
    if to == "json":
        return as_json(dialog, attachments).encode()
    made = draw_up(dialog, attachments)
    if to == "pdf":
        return as_pdf(as_html(made))
    return (as_markdown if to == "md" else as_html)(made).encode("utf-8", "replace")


def file_name(dialog: Dialog, to: str) -> str:
    """`TOPIC-DIALOG.FORMAT`: a name that is valid on every system and in HTTP headers."""
    parts = (_plain(dialog.header.topic.lower()) or "dialog", _plain(dialog.id))
    return f"{'-'.join(filter(None, parts))}.{to}"


def _plain(text: str) -> str:
    return re.sub(r"[^0-9A-Za-z]+", "-", text).strip("-")[:PART].strip("-")
