"""Entries as the page shows them: safe HTML, their words first, then what their marks say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

from dialogd.protocol import build, marks
from dialogd.protocol.board import AGAINST, CONCEDED, FOR, latest, positions
from dialogd.protocol.build import Finding
from dialogd.protocol.certificate import own_words
from dialogd.protocol.marks import MARKS, prose, read_reply
from dialogd.protocol.model import SYSTEM, USER, Condition, Entry, Mark, Said
from dialogd.protocol.rules import REVIEW, SEVERITIES, Build
from dialogd.protocol.state import Dialog, Proposal
from dialogd.protocol.text import dollars, in_words, moment_of
from dialogd.views.markup import fill, rendered, safe, so_far, to_html
from dialogd.views.words import BLOCK, Context, Wording, context_of, row_of, worded, words_of

LAST = 100  # entries that the page begins with
MOST = 500  # entries of one answer
TONES = 10  # colours; agents beyond share them, and are told apart by their names
RECENT = 1000  # of the last entries: those whose showing may change, and in which it is looked for who stands where
MOST_STANDINGS = 200  # proposals, the latest ones

template = partial(fill, Path(__file__).parent / "templates")

_CONDITIONS = {
    Condition.BY_HAND: "Written by hand.",
    Condition.EDITED: "Edited after it was written; it counts as it now stands.",
    Condition.DAMAGED: "Cut or overwritten after it was written; it counts for nothing.",
    Condition.UNFINISHED: "Not finished yet: somebody is typing at the end of the file.",
}


Part = dict[str, Any]  # what the page reads as JSON


@dataclass(frozen=True, slots=True)
class Seats:
    """The agents' colours and names; seats never change during a dialog."""

    seats: Mapping[str, int]
    names: Mapping[str, str]

    def tone(self, who: str) -> str:
        """The class that colours what `who` wrote."""
        if who == USER:
            return "person"
        return f"agent-{self.seats[who] % TONES}" if who in self.seats else "system"

    def name(self, who: str) -> str:
        """What `who` is called; the person is `you`."""
        return {USER: "you", SYSTEM: "dialogd"}.get(who) or self.names.get(who, who)


def cast(dialog: Dialog) -> Seats:
    """Everybody who takes or took part, as the header names them, then in order of arrival."""
    known = (*dialog.header_as_written.agents, *dialog.header.agents)
    came = dict.fromkeys((*(agent.id for agent in known), *(one.by for one in dialog.turns if one.by != USER)))
    return Seats({who: seat for seat, who in enumerate(came)}, {agent.id: agent.name for agent in known})


# -- Who stands behind a proposal -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stands:
    """A proposal as it stands now: its state in a word, "" while it is open, and who stands how to it, as ids."""

    state: str
    stands: tuple[tuple[str, tuple[str, ...]], ...]


def state_of(dialog: Dialog, made: Proposal) -> str:
    """What a text that nobody decided is: open (""), replaced by another one, or cleared from the table."""
    table = dialog.state.table
    if not made.sha or (table.standing is not None and table.standing.proposal.ref == made.ref):
        return ""
    newest = next(one.ref for one in reversed(table.proposals) if one.sha)
    return "cleared" if made.ref == newest else "replaced"


def standings(dialog: Dialog) -> Mapping[str, Stands]:
    """Who stands behind which proposal now, by its number: of the latest ones, as their marks say."""
    table = dialog.state.table
    if not table.proposals:
        return {}
    decided = {one.ref: "vetoed" if one.method == "veto" else one.outcome for one in table.decisions}
    held: dict[str, dict[str, str]] = {}
    for (agent, ref), position in latest(positions(dialog, RECENT)).items():
        held.setdefault(ref, {})[agent] = position.stance
    found = {}
    for made in table.proposals[-MOST_STANDINGS:]:
        on_table = table.standing if table.standing is not None and table.standing.proposal.ref == made.ref else None
        signers = tuple(who for who, _ in on_table.signers) if on_table is not None else ()
        stances = {made.by: FOR, **held.get(made.ref, {})}
        sides = [("signed by", signers)]
        for stance, how in ((FOR, "for"), (AGAINST, "against"), (CONCEDED, "gave it up")):
            sides.append((how, tuple(who for who, now in stances.items() if now == stance and who not in signers)))
        state = decided.get(made.ref) or state_of(dialog, made)
        found[made.ref] = Stands(state, tuple(side for side in sides if side[1]))
    return found


def standings_shown(dialog: Dialog | None) -> Part:
    """Who stands behind which proposal, by its number: its state in a word, "" while it is open, and the words."""
    if dialog is None:
        return {}
    players = cast(dialog)
    return {
        ref: {"state": now.state, "html": template("standing.html", now=now, players=players)}
        for ref, now in standings(dialog).items()
    }


# -- An entry's marks -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Talk:
    """What of a dialog its entries are shown with."""

    known: Context
    standings: Mapping[str, Stands] = field(default_factory=dict)
    findings: Sequence[Finding] = ()
    build: Build | None = None


@dataclass(frozen=True)
class Shown:
    """A mark as it is shown: its words, with the text of the block, and what belongs to a task or a build.

    `acts`: the reader can do something about its proposal; `log` is what a gate said. `score` has each part, its points
    and the most that it may have; `found` are a review's findings, the gravest first, `mended` earlier ones.
    """

    words: Wording
    text: str = ""
    terms: str = ""
    acts: bool = False
    log: str = ""
    points: int | None = None
    score: tuple[tuple[str, int, int], ...] = ()
    found: tuple[Finding, ...] = ()
    mended: tuple[Finding, ...] = ()

    @property
    def about(self) -> str:
        """What such a mark means, "" for a kind of the dialog's own."""
        name = self.words.mark.name
        return MARKS[name].meaning if name in MARKS else ""


@dataclass(frozen=True)
class EntryShown:
    """An entry's words and its marks; `body` is Markdown, without what a block shows."""

    body: str
    marks: tuple[Shown, ...]

    def of(self, rank: str) -> list[Shown]:
        """The marks of one rank."""
        return [mark for mark in self.marks if mark.words.rank == rank]


def talk_of(dialog: Dialog) -> Talk:
    """What this dialog's entries are shown with."""
    found = dialog.state.table.findings
    return Talk(context_of(dialog, cast(dialog).name), standings(dialog), found, dialog.state.build.rules)


_INSTEAD = re.compile(r"Instead of ((?:P\d+(?:, )?)+):\n\n")


def in_ranks(entry: Said, body: str, talk: Talk) -> EntryShown:
    """The entry's words and marks as they are shown."""
    shown = []
    for one in worded(entry, talk.known, entry.marks):
        row, text, terms, log = row_of(one.mark.name), one.text, one.terms, ""
        if one.mark.value == build.to_confirm(talk.known.proposed.get(entry.id, ())):
            continue  # the tasks stand above
        if row.body == "summary" and (summary := marks.summary_of(body)):
            text, body = summary, marks.before_summary(body)
        elif row.body == "log" and entry.by == SYSTEM:
            log, body = body, ""
        elif row.body == "same":
            instead = _INSTEAD.match(body)
            words = body[instead.end() :] if instead else body
            if words.split() == text.split():
                text, body, terms = words, "", f"instead of {instead[1]}" if instead else terms
        shown.append(Shown(one, text, terms, row.makes and bool(one.mark.ref), log, one.points))
    return EntryShown(body, tuple(_reviewed(shown, entry, talk)))


def _reviewed(shown: Sequence[Shown], entry: Said, talk: Talk) -> Iterator[Shown]:
    """What a review says in one block: what it decides, its points, its findings, what it resolves."""
    here = [mark for mark in entry.marks if mark.name in REVIEW]
    folded = [one for one in shown if one.words.task and one.words.tone in ("good", "bad")]
    if not here and len(folded) < 2:
        is_told = entry.by == SYSTEM and any(one.words.task for one in shown)  # the record says what is asked
        yield from (one for one in shown if one.words.task or one.words.tone != "asks" or not is_told)
        return
    by = talk.known.name(entry.by)
    first = (
        folded[0] if folded else Shown(Wording(here[0], "", BLOCK, by, "reviewed", tone="asks" * (entry.by == SYSTEM)))
    )
    terms = [*(one.text for one in folded[1:]), *(one.terms for one in folded)]
    score = next((score for mark in reversed(here) if (score := _score(mark, talk))), ())
    points = [one.points for one in folded if one.points is not None]
    raised = iter([one for one in talk.findings if one.entry == entry.id and entry.id])
    found = [next(raised, None) or build.finding(marks.fields_of(m)) for m in here if REVIEW[m.name].numbers]
    facts = "; ".join(one.words.facts for one in folded if one.words.facts)  # the exact tree stands in the approval
    yield replace(
        first,
        words=replace(first.words, facts=facts),
        terms=" · ".join(dict.fromkeys(filter(None, terms))),
        points=points[0] if points else _sum(score, talk),
        score=score,
        found=tuple(sorted(found, key=lambda one: (not one.blocks, _gravity(one), one.number))),
        mended=tuple(_resolved(mark, talk) for mark in here if REVIEW[mark.name].resolves),
    )
    yield from (one for one in shown if one not in folded and one.words.mark not in here)


def _score(mark: Mark, talk: Talk) -> tuple[tuple[str, int, int], ...]:
    """The parts of a score, each with its points and the most that it may have; () for another mark."""
    if REVIEW[mark.name].numbers or REVIEW[mark.name].resolves:
        return ()
    if talk.build is None:
        return tuple((name, round(value), 100) for name, value in build.parts_of(marks.fields_of(mark)).items())
    points, most = build.points(talk.build, [mark]), talk.build.criteria
    return tuple((name.replace("_", " "), points[name], most[name]) for name in most if name in points)


def _sum(score: Sequence[tuple[str, int, int]], talk: Talk) -> int | None:
    """What the parts come to, of a hundred; None where one is missing."""
    if len(score) < (len(talk.build.criteria) if talk.build else len(build.PARTS)):
        return None
    return round(100 * sum(got for _, got, _ in score) / sum(most for _, _, most in score))


def _gravity(one: Finding) -> int:
    word = one.severity.casefold()
    return SEVERITIES.index(word) if word in SEVERITIES else len(SEVERITIES)


def _resolved(mark: Mark, talk: Talk) -> Finding:
    own, how = build.number_of(mark), marks.fields_of(mark)[1:]
    known = next((one for one in talk.findings if one.number == own), Finding(own, "", 0))
    return replace(known, resolved=" | ".join(how) or "resolved")


# -- Entries as HTML --------------------------------------------------------------------------------------------------


def window(dialog: Dialog | None, after: int | None, before: int | None, limit: int) -> Part:
    """The first entries after index `after`, else the last ones, before index `before` if given.

    `anchor` is the `chain` of the entry before the first one.
    """
    if dialog is None:
        return {"dialog": "", "total": 0, "anchor": "", "entries": []}
    total = len(dialog.entries)
    end = total if before is None else max(0, min(before, total))
    start = max(0, end - limit)
    if after is not None:
        start = max(0, min(after + 1, end))
        end = min(end, start + limit)
    players, talk = cast(dialog), talk_of(dialog)
    return {
        "dialog": dialog.id,
        "total": total,
        "anchor": dialog.entries[start - 1].chain[:16] if start else "",
        "entries": [as_shown(dialog.entries[index], index, players, talk) for index in range(start, end)],
    }


def around(dialog: Dialog | None, wanted: str, limit: int) -> Part:
    """The entries around the one of that id (`7`, `4.1`); none where there is no such entry."""
    entries = dialog.entries if dialog is not None else ()
    index = next((index for index, entry in enumerate(entries) if entry.id == wanted), None)
    if dialog is None or index is None:
        return {**window(None, None, None, 0), "dialog": dialog.id if dialog else "", "total": len(entries)}
    return window(dialog, max(-1, index - limit // 2 - 1), None, limit)


def as_shown(entry: Entry, index: int, players: Seats, talk: Talk | None = None) -> Part:
    """One entry, rendered.

    `version` changes whenever its HTML does; `failed` are the agents of whom it says that they failed.
    """
    talk = talk or Talk(Context(players.name))
    page = {
        "index": index,
        "number": entry.number,
        "condition": entry.condition.value,
        "chain": entry.chain[:16],
        "version": version(entry, [one for one in talk.findings if one.entry == entry.id]),
        "failed": [who for who, *_ in entry.failures],
    }
    # A daemon keeps marks out of the body; a person writes them between the words.
    is_typed = entry.frame is None or entry.condition is not Condition.SOUND
    body = prose(entry.body) if is_typed else entry.body
    words = body if entry.turn is not None else own_words(body)
    is_own = entry.by == USER and entry.condition is Condition.BY_HAND  # nobody wonders at that
    condition, ranks = _CONDITIONS.get(entry.condition, ""), in_ranks(entry, words, talk)
    # What a daemon wrote under the words that ended the dialog: its turns, its duration, its outcome.
    closing = [f"{name}: {value}" for name, value in re.findall(r"^\*\*(.+?):\*\* (.*)$", body[len(words) :], re.M)]
    blocks = [mark.words.facts for mark in ranks.of(BLOCK) if not mark.words.task]
    whose = f"From {entry.from_session}, not from you." if entry.from_session else ""
    hash_ = f"hash {page['chain']}" if page["chain"] else ""
    html = template(
        "entry.html",
        entry=entry,
        page=page,
        called="You" if entry.by == USER and entry.name.casefold() == "user" else entry.name,
        shown=ranks,
        anchor=anchor_of(entry),
        tone="system" if entry.from_session else players.tone(entry.by),
        initial="Y" if entry.is_persons else "" if entry.by == SYSTEM else entry.by[:2],
        next=_next(entry, players),
        odd=["" if is_own else condition, entry.notice, whose],
        facts=list(filter(None, [condition * is_own, *_figures(entry), *closing, *blocks, hash_])),
        **_with(players, talk.standings),
    )
    return {**page, "html": html}


def anchor_of(entry: Entry) -> str:
    """The id of its element on the page: `t7`, `n4.1`."""
    return f"{'t' if entry.is_turn else 'n'}{entry.id}"


def _with(players: Seats, known: Mapping[str, Stands]) -> dict[str, Any]:
    """What the templates of an entry need besides its own values."""
    return {"players": players, "standings": known, "markdown": markdown, "inline": inline}


def _next(entry: Entry, players: Seats) -> str:
    """Who is next, where that does not go without saying."""
    named = entry.turn or ()
    is_plain = len(players.seats) <= 2 and USER not in named
    if not named or not entry.is_turn or is_plain:
        return ""
    return f"next: {', '.join(map(players.name, named))}"


def _figures(entry: Entry) -> Iterator[str]:
    """Tokens, cost, time and model by an entry's frame, each in a few words; unknown ones are left out."""
    if (frame := entry.frame) is None:
        return
    if frame.tokens_in and frame.tokens_out:
        counts = (_figure(text) for text in (frame.tokens_in, frame.tokens_out))
        yield "{} in, {} out".format(*(f"{about}{number:,.0f}" for about, number in counts))
    about, usd = _figure(frame.usd)
    yield f"{about}{dollars(usd)}" if usd else ""
    _, took = _figure(frame.ms)
    yield in_words(took / 1000) if took else ""
    yield frame.model


def _figure(text: str) -> tuple[str, float]:
    """`about ` or "", and the number of a frame's attribute; 0 where it is none."""
    match = re.fullmatch(r"(~?)(\d{1,12}(?:\.\d{1,12})?)", text)
    return ("about " if match[1] else "", float(match[2])) if match else ("", 0.0)


def version(entry: Entry, found: Sequence[Finding] = ()) -> str:
    """A word that changes when the entry is shown differently; "" for one as its daemon wrote it.

    `found` are its findings: what is resolved of them is shown.
    """
    later = "-".join(["withdrawn"] * (not entry.counts) + [f"resolved-{one.number}" for one in found if one.resolved])
    if entry.condition is Condition.SOUND:
        return later
    text = f"{entry.body}\n{entry.marks}\n{entry.turn}"
    return f"{entry.condition.value}-{crc32(text.encode('utf-8', 'replace')):x}{later}".replace(" ", "-")


def changed(dialog: Dialog) -> tuple[int, dict[str, str]]:
    """The first index considered, and by index the version of each entry not shown as its daemon wrote it."""
    first, raised = max(0, len(dialog.entries) - RECENT), dict[str, list[Finding]]()
    for one in dialog.state.table.findings:
        raised.setdefault(one.entry, []).append(one)
    found = ((at, version(entry, raised.get(entry.id, ()))) for at, entry in enumerate(dialog.entries[first:], first))
    return first, {str(at): word for at, word in found if word}


def as_written(dialog: Dialog, who: str, turn: int, text: str, chars: int) -> Part:
    """The turn that `who` writes as it will be shown, as far as that can be told from its beginning."""
    reply = read_reply(text if text.endswith("\n") else so_far(text), dialog.header.rules.kinds)
    players, number = cast(dialog), int(dialog.state.table.next_ref[1:])
    streamed: list[Mark] = []  # with the numbers that they will get
    for mark in reply.marks:
        is_new = row_of(mark.name).makes and not mark.ref
        streamed.append(replace(mark, ref=f"P{number}") if is_new else mark)
        number += is_new
    said = Said("", turn, who, players.name(who), so_far(f"{reply.body}\n"), tuple(streamed), (who,))
    made = {mark.ref: Stands("", (("for", (who,)),)) for mark in streamed if row_of(mark.name).makes}
    html = template(
        "writing.html",
        by=who,
        called=players.name(who),
        turn=turn,
        tone=players.tone(who),
        initial=who[:2],
        is_cut=chars > len(text),
        shown=in_ranks(said, said.body, talk_of(dialog)),
        # Of the text of a moment nothing is kept.
        **{**_with(players, made), "markdown": lambda words: safe(presentable(rendered(words)))},
    )
    return {"by": who, "turn": turn, "html": html}


def found(dialog: Dialog | None, words: str, limit: int) -> Part:
    """Where these words stand in the dialog, whatever their case, in text or mark: at most so many, the last ones."""
    wanted, hits = " ".join(words.split()), []
    if dialog is None or not wanted:
        return {"total": 0, "hits": []}
    players, look = cast(dialog), re.compile(re.escape(wanted), re.I)
    for entry in dialog.entries:
        said = " ".join((entry.name, words_of(entry), *(f"{mark.ref} {mark.value}" for mark in entry.written)))
        text = " ".join(said.split())
        if (hit := look.search(text)) is None:
            continue
        at, end = hit.span()
        hits.append(
            {
                "anchor": anchor_of(entry),
                "name": "You" if entry.is_persons else entry.name,
                "tone": "system" if entry.from_session else players.tone(entry.by),
                "before": text[max(0, at - 60) : at],
                "words": text[at:end],
                "after": text[end : end + 100],
            }
        )
    return {"total": len(hits), "hits": hits[-limit:]}


# -- Texts as parts of the page ---------------------------------------------------------------------------------------


def fragment(name: str, **values: Any) -> str:
    """The template `panels/NAME.html` with these values, with `markdown` and `when` to write texts and times."""
    return template(f"panels/{name}.html", markdown=markdown, when=when, **values)


def when(at: str) -> str:
    """A time of the file for people, `2026-11-21 19:00 UTC`; anything else unchanged, cut short."""
    moment = moment_of(at)
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if moment is not None else at[:40]


def markdown(text: str) -> Any:
    """Markdown as a part of the page: sanitised, with its headings below the panel's."""
    return safe(presentable(to_html(text)))


def inline(text: str) -> Any:
    """Markdown for the middle of a line, where it is one paragraph."""
    html = presentable(to_html(text)).strip()
    is_one = html.startswith("<p>") and html.endswith("</p>") and html.count("<p>") == 1
    return safe(html[3:-4] if is_one else html)


_TAG = re.compile(r"<h([1-6])>(.*?)</h\1>|<(a) [^>]*></a>|<th></th>|<pre>|</pre>|<table>|</table>|<a href=\"http", re.S)
_REPLACED = {
    "<th></th>": "<td></td>",
    "<pre>": '<div class="code"><pre tabindex="0">',
    "</pre>": "</pre></div>",
    "<table>": '<div class="wide" tabindex="0" role="group" aria-label="Table"><table>',
    "</table>": "</table></div>",
    '<a href="http': '<a target="_blank" href="http',
}


def presentable(html: str) -> str:
    """The HTML of `to_html` as part of a page: headings below the entry's own, wide elements in scrollable boxes."""
    level = 3

    def replaced(match: re.Match[str]) -> str:
        nonlocal level
        if match[3]:
            return ""  # nobody can see or click a link without words
        if match[1] is None:
            return _REPLACED[match[0]]
        text = presentable(match[2])
        if not text.strip():
            return ""
        level = min(int(match[1]) + 3, level + 1, 6)
        return f"<h{level}>{text}</h{level}>"

    return _TAG.sub(replaced, html)
