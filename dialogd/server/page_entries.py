"""Entries as the page shows them: safe HTML, their words first, then what their marks say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

from pydantic import BaseModel

from dialogd.protocol import build, marks
from dialogd.protocol.board import AGAINST, CONCEDED, FOR, latest, positions
from dialogd.protocol.build import Finding, findings
from dialogd.protocol.certificate import own_words
from dialogd.protocol.marks import MARKS, prose, read_reply
from dialogd.protocol.model import AGREED, SYSTEM, USER, Condition, Entry, Mark, Said
from dialogd.protocol.rules import REVIEW, SEVERITIES, Build
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import dollars
from dialogd.views.markup import fill, rendered, safe, so_far, to_html
from dialogd.views.words import BLOCK, Context, Wording, context_of, row_of, worded, words_of

LAST = 100  # entries that the page begins with
MOST = 500  # entries of one answer
TONES = 10  # colours; agents beyond share them, and are told apart by their names
WATCHED = 1000  # of the last entries: those whose showing may change while a page is open

template = partial(fill, Path(__file__).parent / "templates")

_IN_WORDS = {
    Condition.BY_HAND: "Written by hand.",
    Condition.EDITED: "Edited after it was written; it counts as it now stands.",
    Condition.DAMAGED: "Cut or overwritten after it was written; it counts for nothing.",
    Condition.UNFINISHED: "Not finished yet: somebody is typing at the end of the file.",
}
_TAG = re.compile(r"<h([1-6])>(.*?)</h\1>|<(a) [^>]*></a>|<th></th>|<pre>|</pre>|<table>|</table>|<a href=\"http", re.S)
_REPLACED = {
    "<th></th>": "<td></td>",
    "<pre>": '<div class="code"><pre tabindex="0">',
    "</pre>": "</pre></div>",
    "<table>": '<div class="wide" tabindex="0" role="group" aria-label="Table"><table>',
    "</table>": "</table></div>",
    '<a href="http': '<a target="_blank" href="http',
}


class PageMark(BaseModel):
    """A mark: its name, the proposal that it names, its value."""

    name: str
    ref: str
    value: str


class PageEntry(BaseModel):
    """One entry. `html` is all of it, ready to be shown; `version` changes whenever that does.

    `tokens_in`, `tokens_out`, `ms` and `usd` are as the frame says, "" when it does not.
    """

    index: int
    id: str
    number: int
    by: str
    name: str
    html: str = ""
    marks: list[PageMark]
    turn: list[str] | None
    condition: str
    struck: bool
    at: str = ""
    ms: str = ""
    tokens_in: str = ""
    tokens_out: str = ""
    usd: str = ""
    model: str = ""
    chain: str
    version: str


class PageEntries(BaseModel):
    """Some entries, out of `total`. `anchor` is the `chain` of the entry before the first one asked for."""

    dialog: str = ""
    total: int = 0
    anchor: str = ""
    entries: list[PageEntry] = []


@dataclass(frozen=True, slots=True)
class Seats:
    """The agents' colours and names; seats never change during a dialog."""

    seats: Mapping[str, int]
    names: Mapping[str, str]

    def tone(self, who: str) -> str:
        """The class that colours what `who` wrote."""
        if who in (USER, SYSTEM):
            return "person" if who == USER else "system"
        return f"agent-{self.seats[who] % TONES}" if who in self.seats else "system"

    def name(self, who: str) -> str:
        """What `who` is called; the person is `you`."""
        return {USER: "you", SYSTEM: "dialogd"}.get(who) or self.names.get(who, who)


def cast(dialog: Dialog) -> Seats:
    """Everybody who takes or took part, in order of arrival; those who leave keep their seats."""
    agents = (*dialog.header_as_written.agents, *dialog.header.agents)
    names = {agent.id: agent.name for agent in agents}
    seats: dict[str, int] = {}
    for who in (*(agent.id for agent in dialog.header_as_written.agents), *_came(dialog), *names):
        seats.setdefault(who, len(seats))
    return Seats(seats, names)


def _came(dialog: Dialog) -> Iterator[str]:
    """The ids of those who joined later, by invitation or by taking a turn, in order."""
    for entry in dialog.entries:
        if entry.is_turn and entry.by != USER:
            yield entry.by
        yield from (mark.value.split("=")[0].strip() for mark in entry.marks if mark.name == "INVITE")


# -- An entry's marks -------------------------------------------------------------------------------------------------

RECENT = 1000  # of the last entries: those in which it is looked for who stands behind which proposal
MOST_STANDINGS = 200  # proposals, the latest ones


@dataclass(frozen=True, slots=True)
class Stand:
    """How some stand to a proposal, in a word (`for`, `against`, `signed by`), and who they are, as ids."""

    how: str
    who: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stands:
    """A proposal as it stands now: its state in a word, "" while it is open, and who stands how to it."""

    ref: str
    state: str
    stands: tuple[Stand, ...]


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
    known = findings(dialog) if dialog.state.table.findings else ()
    context = context_of(dialog, cast(dialog).name)
    return Talk(context, standings(dialog), known, dialog.state.build.rules)


def standings(dialog: Dialog) -> Mapping[str, Stands]:
    """Who stands behind which proposal now, by its number: of the latest ones, as their marks say."""
    table = dialog.state.table
    if not table.proposals:
        return {}
    decided = {one.ref: "vetoed" if one.method == "veto" else one.outcome for one in table.decisions}
    newest = next((one.ref for one in reversed(table.proposals) if one.sha), "")
    held: dict[str, dict[str, str]] = {}
    for (agent, ref), position in latest(positions(dialog, RECENT)).items():
        held.setdefault(ref, {})[agent] = position.stance
    found = {}
    for made in table.proposals[-MOST_STANDINGS:]:
        signs = table.standing is not None and table.standing.proposal.ref == made.ref
        state = decided.get(made.ref, "" if signs or not made.sha else "replaced" if made.ref != newest else "cleared")
        signers = [who for who, _ in table.standing.signers] if signs and table.standing is not None else []
        stances = {made.by: FOR, **held.get(made.ref, {})}
        stands = [Stand("signed by", tuple(signers))] if signers else []
        for stance, how in ((FOR, "for"), (AGAINST, "against"), (CONCEDED, "gave it up")):
            who = [agent for agent, held_now in stances.items() if held_now == stance and agent not in signers]
            stands += [Stand(how, tuple(who))] if who else []
        found[made.ref] = Stands(made.ref, state, tuple(stands))
    return found


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
            if " ".join(words.split()) == " ".join(text.split()):
                text, body, terms = words, "", f"instead of {instead[1]}" if instead else terms
        shown.append(Shown(one, text, terms, row.makes and bool(one.mark.ref), log, one.points))
    return EntryShown(body, tuple(_reviewed(shown, entry, talk)))


_INSTEAD = re.compile(r"Instead of ((?:P\d+(?:, )?)+):\n\n")
_OF_REVIEWS = ("TASK", "DECIDE", "APPROVED")  # the record, the reviewer's choice, and the approval of a tree


def _reviewed(shown: Sequence[Shown], entry: Said, talk: Talk) -> Iterator[Shown]:
    """What a review says in one block: what it decides, its points, its findings, what it resolves."""
    here = [mark for mark in entry.marks if mark.name in REVIEW]
    about = {one.words.mark.name: one for one in shown if one.words.task and one.words.mark.name in _OF_REVIEWS}
    choice = about.get("DECIDE")
    if not here and choice is None:
        is_told = entry.by == SYSTEM and any(one.words.task for one in shown)  # the record says what is asked
        yield from (one for one in shown if one.words.task or one.words.tone != "asks" or not is_told)
        return
    folded = sorted(about.values(), key=lambda one: _OF_REVIEWS.index(one.words.mark.name))
    others = [one for one in shown if one not in folded and one.words.mark not in here]
    by = talk.known.name(entry.by)
    first = (
        folded[0] if folded else Shown(Wording(here[0], "", BLOCK, by, "reviewed", tone="asks" * (entry.by == SYSTEM)))
    )
    counted = first.text if first is not choice and choice else ""  # by the daemon, beside the reviewer's own reason
    terms = [first.terms, counted, *(one.terms for one in folded[1:])]
    score = next((_score(mark, talk) for mark in reversed(here) if marks.fields_of(mark) and _scores(mark)), ())
    raised = iter([one for one in talk.findings if one.entry == entry.id and entry.id])
    found = [next(raised, None) or build.finding(marks.fields_of(m)) for m in here if REVIEW[m.name].numbers]
    facts = "; ".join(one.words.facts for one in folded if one.words.facts)  # the exact tree stands in the approval
    yield replace(
        first,
        words=replace(first.words, facts=facts),
        text=choice.text if choice else first.text,
        terms=" · ".join(dict.fromkeys(filter(None, terms))),
        points=first.points if first.points is not None else _sum(score, talk),
        score=score,
        found=tuple(sorted(found, key=lambda one: (not one.blocks, _gravity(one), one.number))),
        mended=tuple(_resolved(mark, talk) for mark in here if REVIEW[mark.name].resolves),
    )
    yield from others


def _scores(mark: Mark) -> bool:
    return not (REVIEW[mark.name].numbers or REVIEW[mark.name].resolves)


def _sum(score: Sequence[tuple[str, int, int]], talk: Talk) -> int | None:
    """What the parts come to, of a hundred; None where one is missing."""
    if len(score) < (len(talk.build.criteria) if talk.build else len(build.PARTS)):
        return None
    return round(100 * sum(got for _, got, _ in score) / sum(most for _, _, most in score))


def _score(mark: Mark, talk: Talk) -> tuple[tuple[str, int, int], ...]:
    if talk.build is None:
        return tuple((name, round(value), 100) for name, value in build.parts_of(marks.fields_of(mark)).items())
    points = build.points(talk.build, [mark])
    most = talk.build.criteria
    return tuple((name.replace("_", " "), points[name], most[name]) for name in most if name in points)


def _gravity(one: Finding) -> int:
    word = one.severity.casefold()
    return SEVERITIES.index(word) if word in SEVERITIES else len(SEVERITIES)


def _resolved(mark: Mark, talk: Talk) -> Finding:
    number, *how = marks.fields_of(mark)
    match = re.search(r"\d{1,6}", number)
    own = int(match[0]) if match else 0
    known = next((one for one in talk.findings if one.number == own), Finding(own, "", 0))
    return replace(known, resolved=" | ".join(how) or "resolved")


def as_streamed(found: Sequence[Mark], summary: str, next_ref: str) -> Iterator[Mark]:
    """The marks of a reply that is still being written, with the numbers that they will get."""
    number = int(next_ref[1:])
    for mark in found:
        makes = row_of(mark.name).makes and not mark.ref
        if makes or (mark.name in AGREED and summary):
            yield replace(mark, ref=f"P{number}") if makes else Mark("CONSENSUS_PROPOSED", "", f"P{number}")
            number += 1
        else:
            yield mark


def at_first(who: str, found: Sequence[Mark]) -> Mapping[str, Stands]:
    """How the proposals that `who` is making stand, once they are made."""
    made = [mark for mark in found if row_of(mark.name).makes]
    return {m.ref: Stands(m.ref, "", (Stand("for" if m.value else "signed by", (who,)),)) for m in made}


class PageWriting(BaseModel):
    """The turn that an agent writes, as far as it has come: `chars` characters of it are in `html`."""

    by: str
    turn: int = 0
    chars: int = 0
    html: str = ""


class PageStanding(BaseModel):
    """Who stands behind a proposal now: its state in a word, "" while it is open, and the words as HTML."""

    state: str
    html: str


class PageHit(BaseModel):
    """A place where searched words stand: the entry's anchor, who said it, and the words with what is around them."""

    anchor: str
    name: str
    tone: str
    before: str
    words: str
    after: str


class PageHits(BaseModel):
    """Where searched words stand, from the beginning on; of more than `total` says, the last ones."""

    total: int
    hits: list[PageHit]


def around(dialog: Dialog | None, wanted: str, limit: int) -> PageEntries:
    """The entries around the one of that id (`7`, `4.1`); none where there is no such entry."""
    found = (index for index, entry in enumerate(dialog.entries if dialog else ()) if entry.id == wanted)
    index = next(found, None)
    if dialog is None or index is None:
        return PageEntries(dialog=dialog.id if dialog else "", total=len(dialog.entries) if dialog else 0)
    return window(dialog, max(-1, index - limit // 2 - 1), None, limit)


def window(dialog: Dialog | None, after: int | None, before: int | None, limit: int) -> PageEntries:
    """The first entries after index `after`, else the last ones, before index `before` if given."""
    if dialog is None:
        return PageEntries()
    total = len(dialog.entries)
    end = total if before is None else max(0, min(before, total))
    start = max(0, end - limit)
    if after is not None:
        start = max(0, min(after + 1, end))
        end = min(end, start + limit)
    players, talk = cast(dialog), talk_of(dialog)
    return PageEntries(
        dialog=dialog.id,
        total=total,
        anchor=_chain(dialog.entries[start - 1]) if start else "",
        entries=[as_shown(dialog.entries[index], index, players, talk) for index in range(start, end)],
    )


def as_shown(entry: Entry, index: int, players: Seats, talk: Talk | None = None, *, is_past: bool = False) -> PageEntry:
    """One entry, rendered; `is_past`: of an earlier dialog, without controls."""
    frame = entry.frame
    facts = (
        {name: getattr(frame, name) for name in ("at", "ms", "tokens_in", "tokens_out", "usd", "model")}
        if frame
        else {}
    )
    shown = PageEntry(
        index=index,
        id=entry.id,
        number=entry.number,
        by=entry.by,
        name="You" if entry.by == USER and entry.name.casefold() == "user" else entry.name,
        marks=[PageMark(name=m.name, ref=m.ref, value=m.value) for m in entry.marks],
        turn=list(entry.turn) if entry.turn is not None else None,
        condition=entry.condition.value,
        struck=not entry.counts,
        chain=_chain(entry),
        version=version(entry, [one for one in talk.findings if one.entry == entry.id] if talk else ()),
        **facts,
    )
    # A daemon keeps marks out of the body; a person writes them between the words.
    is_typed = frame is None or entry.condition is not Condition.SOUND
    body = prose(entry.body) if is_typed else entry.body
    is_own = entry.by == USER and entry.condition is Condition.BY_HAND  # nobody wonders at that
    words = body if entry.turn is not None else own_words(body)
    ranks = in_ranks(entry, words, talk or Talk(Context(players.name)))
    shown.html = template(
        "entry.html",
        entry=shown,
        shown=ranks,
        is_past=is_past,
        anchor=f"{'past-' if is_past else 't' if entry.is_turn else 'n'}{entry.id}",
        tone="system" if entry.from_session else players.tone(entry.by),
        initial="Y" if entry.is_persons else "" if entry.by == SYSTEM else entry.by[:2],
        next=_next(entry, players),
        odd=[
            "" if is_own else _IN_WORDS.get(entry.condition, ""),
            entry.notice,
            f"From {entry.from_session}, not from you." * bool(entry.from_session),
        ],
        facts=[
            *([_IN_WORDS[entry.condition]] if is_own else []),
            *figures(shown),
            *_closing(body, words),
            *_of_blocks(ranks),
            *([f"hash {entry.chain}"] if entry.chain else []),
        ],
        **_with(players, talk),
    )
    return shown


def _of_blocks(ranks: EntryShown) -> list[str]:
    """What is told of its blocks on demand."""
    return [mark.words.facts for mark in ranks.of(BLOCK) if mark.words.facts and not mark.words.task]


def _closing(body: str, words: str) -> list[str]:
    """What a daemon wrote under the words that ended the dialog: its turns, its duration, its outcome."""
    return [f"{name}: {value}" for name, value in re.findall(r"^\*\*(.+?):\*\* (.*)$", body[len(words) :], re.M)]


def _with(players: Seats, talk: Talk | None) -> dict[str, Any]:
    """What the templates of an entry need besides its own values."""
    return {
        "players": players,
        "standings": talk.standings if talk is not None else {},
        "markdown": markdown,
        "inline": inline,
    }


def fragment(name: str, **values: Any) -> str:
    """The template `panels/NAME.html` with these values, with `markdown` and `when` to write texts and times."""
    return template(f"panels/{name}.html", markdown=markdown, when=when, **values)


def when(at: str) -> str:
    """A time of the file for people, `2026-11-21 19:00 UTC`; anything else unchanged, cut short."""
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        return at[:40]
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if moment.tzinfo else f"{moment:%Y-%m-%d %H:%M}"


def markdown(text: str) -> Any:
    """Markdown as a part of the page: sanitised, with its headings below the panel's."""
    return safe(presentable(to_html(text)))


def inline(text: str) -> Any:
    """Markdown for the middle of a line, where it is one paragraph."""
    html = presentable(to_html(text)).strip()
    is_one = html.startswith("<p>") and html.endswith("</p>") and html.count("<p>") == 1
    return safe(html[3:-4] if is_one else html)


def _next(entry: Entry, players: Seats) -> str:
    """Who is next, where that does not go without saying."""
    named = entry.turn or ()
    is_plain = len(players.seats) <= 2 and USER not in named
    if not entry.is_turn or is_plain or entry.mark("QUESTION_FOR_USER") is not None:
        return ""
    return f"next: {', '.join(players.name(who) for who in named)}" if named else ""


def as_written(dialog: Dialog, who: str, turn: int, text: str, chars: int) -> PageWriting:
    """The turn that `who` writes as it will be shown, as far as that can be told from its beginning."""
    reply = read_reply(text if text.endswith("\n") else so_far(text), dialog.header.rules.kinds)
    players, talk, number = cast(dialog), talk_of(dialog), dialog.state.table.next_ref
    streamed = tuple(as_streamed(reply.marks, reply.summary, number))
    said = Said("", turn, who, players.name(who), so_far(f"{reply.body}\n"), streamed, (who,))

    def fresh(words: str) -> Any:
        return safe(presentable(rendered(words)))  # of the text of a moment nothing is kept

    html = template(
        "writing.html",
        by=who,
        called=players.name(who),
        turn=turn,
        tone=players.tone(who),
        initial=who[:2],
        is_cut=chars > len(text),
        shown=in_ranks(said, said.body, talk),
        **{**_with(players, talk), "markdown": fresh, "standings": at_first(who, streamed)},
    )
    return PageWriting(by=who, turn=turn, chars=chars, html=html)


def standings_shown(dialog: Dialog | None) -> dict[str, PageStanding]:
    """Who stands behind which proposal, by its number."""
    if dialog is None:
        return {}
    players = cast(dialog)
    return {
        ref: PageStanding(state=now.state, html=template("standing.html", now=now, players=players))
        for ref, now in standings(dialog).items()
    }


def found(dialog: Dialog | None, words: str, limit: int) -> PageHits:
    """Where these words stand in the dialog, whatever their case, in text or mark."""
    wanted, players, hits = " ".join(words.split()), cast(dialog) if dialog else None, []
    if dialog is None or players is None or not wanted:
        return PageHits(total=0, hits=[])
    look = re.compile(re.escape(wanted), re.I)  # in the text as it stands: in another case it may be longer
    for entry in dialog.entries:
        said = " ".join((entry.name, words_of(entry), *(f"{mark.ref} {mark.value}" for mark in entry.written)))
        text = " ".join(said.split())
        if (hit := look.search(text)) is None:
            continue
        at, end = hit.span()
        anchor = f"{'t' if entry.is_turn else 'n'}{entry.id}"
        name = "You" if entry.is_persons else entry.name
        around_it = (text[max(0, at - 60) : at], text[at:end], text[end : end + 100])
        hits.append((anchor, name, "system" if entry.from_session else players.tone(entry.by), *around_it))
    named = ("anchor", "name", "tone", "before", "words", "after")
    return PageHits(total=len(hits), hits=[PageHit(**dict(zip(named, hit, strict=True))) for hit in hits[-limit:]])


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


def figures(entry: PageEntry) -> Iterator[str]:
    """Tokens, cost, time and model of an entry, each in a few words; unknown ones are left out."""
    if entry.tokens_in and entry.tokens_out:
        yield f"{_number(entry.tokens_in)} in, {_number(entry.tokens_out)} out"
    if amount := _figure(entry.usd):
        yield f"{amount[0]}{dollars(amount[1])}"
    if took := _figure(entry.ms):
        seconds = took[1] / 1000
        yield f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if entry.model:
        yield entry.model


def _figure(text: str) -> tuple[str, float] | None:
    """`about ` or "", and the number of a frame's attribute; None where it is no number."""
    match = re.fullmatch(r"(~?)(\d{1,12}(?:\.\d{1,12})?)", text)
    return ("about " if match[1] else "", float(match[2])) if match else None


def _number(text: str) -> str:
    figure = _figure(text)
    return f"{figure[0]}{figure[1]:,.0f}" if figure else text


def version(entry: Entry, found: Sequence[Finding] = ()) -> str:
    """A word that changes when the entry is shown differently; "" for one as its daemon wrote it.

    `found` are its findings: what is resolved of them is shown.
    """
    struck = "-".join(["struck"] * (not entry.counts) + [f"resolved-{one.number}" for one in found if one.resolved])
    if entry.condition is Condition.SOUND:
        return struck
    text = f"{entry.body}\n{entry.marks}\n{entry.turn}"
    return f"{entry.condition.value}-{crc32(text.encode('utf-8', 'replace')):x}{struck}".replace(" ", "-")


def changed(dialog: Dialog) -> tuple[int, dict[str, str]]:
    """The first index considered, and by index the version of each entry not shown as its daemon wrote it."""
    first, raised = max(0, len(dialog.entries) - WATCHED), dict[str, list[Finding]]()
    for one in findings(dialog) if dialog.state.table.findings else ():
        raised.setdefault(one.entry, []).append(one)
    entries = enumerate(dialog.entries[first:], first)
    found = ((index, version(entry, raised.get(entry.id, ()))) for index, entry in entries)
    return first, {str(index): word for index, word in found if word}


def _chain(entry: Entry) -> str:
    return entry.chain[:16]
