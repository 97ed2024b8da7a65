"""The `rehearsal` backend: scripted agents. Their lines are templates in `scripts/`; the dialog says which is next."""

from __future__ import annotations

import asyncio
import math
import re
import tomllib
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dialogd.backends import FREE, Backend, Found, Options, Price, Request, Usage, Workspace
from dialogd.errors import BackendError, BadInput
from dialogd.protocol.marks import AGAINST, CONTROLS
from dialogd.protocol.model import ANY, USER, Entry, turn_number
from dialogd.protocol.rules import CRITIQUE, DECIDE, MODERATE, POST, PROPOSE, VOTE
from dialogd.protocol.state import Dialog, Proposal
from dialogd.store.disk import write_over

if TYPE_CHECKING:
    from jinja2 import Environment

LOOK_BACK = 16  # entries, and proposals: a rehearsal measures the machinery, so it must weigh the same in a long dialog
QUOTE = 80  # characters
SLOW_SECONDS = 6.0
LONGEST = 3600.0

_LABEL = re.compile(r"^\s*\*\*\w[\w ]*:\*\*", re.M)
_HARMLESS = str.maketrans({"[": "(", "]": ")", "|": "/", "“": "’", "”": "’", '"': "’", "#": " ", "*": " ", "`": "’"})


@cache
def script() -> Mapping[str, Any]:
    """Everything in `scripts/`: the values by name, and under `lines` the templates."""
    found: dict[str, Any] = {"lines": {}}
    for path in sorted((Path(__file__).parent / "scripts").glob("*.toml")):
        read = tomllib.loads(path.read_text(encoding="utf-8"))
        found["lines"] |= read.pop("lines", {})
        found |= read
    return found


@cache
def _templates() -> Environment:
    from jinja2 import DictLoader, Environment, StrictUndefined  # the survey of backends needs none of it

    options = {"auto_reload": False, "trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
    found = Environment(loader=DictLoader(script()["lines"]), autoescape=False, **options)  # type: ignore[arg-type]
    found.filters["called"] = lambda agent, scene: scene.name(agent)
    found.globals.update(script(), quote=quote)
    return found


def quote(text: str, limit: int = QUOTE) -> str:
    """The beginning of a text on one line, fit to stand between “ and ” and in a mark."""
    head = _LABEL.sub(" ", text[: 10 * limit])
    plain = "".join(c if c.isprintable() else " " for c in head).translate(_HARMLESS)
    flat = " ".join(plain.split()).strip("’ ").removesuffix(".")
    return flat if len(flat) <= limit else flat[: limit - 1].rsplit(" ", 1)[0].rstrip(",;:. ") + "…"


def _recent(dialog: Dialog) -> list[Entry]:
    recent = islice(reversed(dialog.entries), LOOK_BACK)
    return [entry for entry in recent if turn_number(entry.id) > dialog.state.base and entry.counts][::-1]


class Scene:
    """What an agent sees of the dialog since that was opened, or opened again, as far as `LOOK_BACK` reaches."""

    def __init__(self, request: Request) -> None:
        self.dialog, self.me, self.turn = request.dialog, request.agent, request.turn
        self.state, self.rules, self.agents = self.dialog.state, self.dialog.header.rules, self.dialog.header.agents
        self.role = self.rules.role(self.me.id)
        self.seat = next((i for i, agent in enumerate(self.agents) if agent.id == self.me.id), 0)

    # Each part is read when a script asks for it.
    recent = cached_property(lambda s: _recent(s.dialog))
    spoken = cached_property(lambda s: [entry for entry in s.recent if entry.is_turn and entry.by != USER])
    raised = cached_property(lambda s: [e for e in s.spoken if any(mark.name in AGAINST for mark in e.marks)])
    points = cached_property(
        lambda s: [e for e in s.recent if e.is_turn and e.by == USER and e.number > 1 and e.body.strip()]
    )
    last = cached_property(lambda s: s.spoken[-1].number if s.spoken else 1)
    answered = cached_property(lambda s: s.spoken[-1].number if s.spoken else max(s.turn - 1, 1))
    proposals = cached_property(lambda s: list(islice(reversed(s.state.table.proposals), LOOK_BACK)))  # newest first
    plain = cached_property(lambda s: [proposal for proposal in s.proposals if not proposal.sha])
    new = cached_property(lambda s: [proposal for proposal in s.plain if s.turn_of(proposal) > s.state.base])
    draft = cached_property(lambda s: next((proposal for proposal in s.proposals if proposal.sha), None))
    lead = cached_property(lambda s: s.new[-1] if s.new else None)
    first = cached_property(lambda s: next((p for p in s.new[::-1] if p.text == script()["plan"]), None))
    earlier = cached_property(lambda s: next((proposal for proposal in s.plain if proposal not in s.new), None))
    own = cached_property(lambda s: s.objection(s.seat - 1))  # the second seat has the first one
    other = cached_property(lambda s: s.objection(s.seat + len(s.spoken)))

    own_findings = cached_property(lambda s: [f for f in s.state.table.blocking if f.by == s.me.id])

    @property
    def attempt(self) -> Mapping[str, Any]:
        """What the script has for the attempt at the task that is due, the last one for those beyond it."""
        task = self.state.build.due_of(self.me.id)[1]
        asked = task.description if task is not None else ""
        known = next((one["attempts"] for one in script()["tasks"] if one["description"] == asked), None)
        found = known[min(task.iteration, len(known)) - 1] if task is not None and known else {}
        return {"said": "", "finding": "", "files": {}} | found

    @property
    def polls(self) -> list[Any]:
        """The votes that this agent has still to give."""
        return [poll for poll in self.state.polls.open if all(one.agent != self.me.id for one in poll.ballots)]

    @staticmethod
    def objection(number: int) -> Mapping[str, str]:
        known: list[Mapping[str, str]] = script()["objections"]
        return known[number % len(known)]

    def line(self, name: str, proposal: object = None) -> str:
        """The line of that name; `proposal` is what it is about."""
        return _templates().get_template(name).render(s=self, p=proposal)

    @cached_property
    def topic(self) -> str:
        question = self.dialog.entries[0].body if self.dialog.entries else ""
        return quote(self.dialog.header.topic or question) or "this question"

    @property
    def fresh(self) -> str:
        """What the person said, in a turn or a note, since an agent last spoke; "" when they said nothing.

        A note that changes a limit, pauses and the like says nothing, nor does a session that holds a seat.
        """
        for entry in islice(reversed(self.dialog.entries), LOOK_BACK):
            if entry.is_turn and entry.by != USER:
                break
            is_act = not entry.is_turn and any(mark.name in CONTROLS for mark in entry.marks)
            is_act |= bool(entry.from_session) or not entry.counts
            if entry.by == USER and entry.number != 1 and entry.body.strip() and not is_act:
                return quote(entry.body)
        return ""

    @property
    def is_first_in_line(self) -> bool:
        """True unless somebody before this agent owes a turn of the same round."""
        owing = [who for who in self.state.owing if who not in (USER, ANY)]
        return not owing or owing[0] == self.me.id or self.me.id not in owing

    @property
    def signers(self) -> str:
        standing = self.state.table.standing
        return " and ".join(self.name(who) for who, _ in standing.signers) if standing else ""

    @property
    def missing(self) -> str:
        """Who has not signed the text that stands."""
        standing = self.state.table.standing
        return ", ".join(agent.name for agent in self.agents if standing and not standing.signed_by(agent.id))

    def name(self, agent: str) -> str:
        """What an agent is called; the person is `the person`."""
        if agent == USER:
            return "the person"
        return next((a.name for a in self.agents if a.id == agent), agent)

    def turn_of(self, proposal: Proposal) -> int:
        return turn_number(proposal.entry)

    def since(self, proposal: Proposal) -> list[Entry]:
        """What was objected, and said by the person, since a proposal."""
        return [entry for entry in (*self.raised, *self.points) if entry.number > self.turn_of(proposal)]

    def claim(self, entry: Entry) -> str:
        """What an entry objects, or says."""
        mark = None if entry.by == USER else next((mark for mark in entry.marks if mark.name in AGAINST), None)
        return quote(mark.value if mark and mark.value else entry.body)

    def known(self, entry: Entry) -> Mapping[str, str]:
        """The scripted objection that an entry raises; empty fields for any other."""
        known = (*script()["objections"], script()["for_the_person"])
        claim = "" if entry.by == USER else self.claim(entry)
        found: Mapping[str, str] = next((one for one in known if one["claim"] == claim), {})
        return found or dict.fromkeys(known[0], "")


# -- What is said next ------------------------------------------------------------------------------------------------


def consensus(s: Scene) -> str:
    """Propose, object, concede over a summary, sign; whichever the dialog needs next. With rules, what they ask for."""
    if not s.rules.is_plain:
        return _by_the_rules(s)
    if line := _piece(s):
        return line
    if (standing := s.state.table.standing) is not None:
        return s.line("wait" if standing.signed_by(s.me.id) else "sign", standing.proposal)
    if s.state.questions.text:
        return s.line("wait")
    if s.draft is not None:
        return s.line("amend", s.draft)
    if s.lead is None and s.earlier is None:
        return s.line("propose" if s.is_first_in_line else "demand")
    objects = s.lead is not None and not s.raised and s.lead.by != s.me.id
    return s.line("object" if objects else "settle", s.lead or s.earlier)


def _piece(s: Scene) -> str:
    """The next line of the piece about one question, while nobody has said anything that is not in it; else ""."""
    texts, is_sealed = script(), bool(s.dialog.entries) and len(s.dialog.entries[0].turn or ()) > 1
    if (s.dialog.header.topic or s.topic) not in texts["topics"] or len(s.agents) != 2:
        return ""
    if s.points or s.state.base or s.state.limits.max_turns <= 6 + is_sealed:  # sealed answers take a turn more
        return ""
    if any(not entry.body.startswith(texts["opening"]) for entry in s.spoken) or (
        s.spoken and s.spoken[-1].by == s.me.id
    ):
        return ""
    shop = s.agents[0].id if is_sealed else s.spoken[0].by if s.spoken else s.me.id
    part, count = "shop" if s.me.id == shop else "gateway", sum(entry.by == shop for entry in s.spoken)
    proposals = s.state.table.proposals
    after, now = [count, len(s.spoken) - count], (part, len(proposals))
    text = next((p["text"] for p in texts["piece"] if now == (p["part"], p["proposals"]) and after in p["after"]), "")
    refs = [p.ref for p in (*sorted(proposals[:2], key=lambda one: one.by != shop), *proposals[2:])]
    return _templates().from_string(text).render(refs=refs, last=s.last)


def _by_the_rules(s: Scene) -> str:
    """The line that the rules of the dialog ask for, with a reservation where they ask for one."""
    said = [_in_office(s) or _in_role(s)]
    if s.rules.objections and s.role.may(VOTE):
        said.append(f"[RESERVATION: {script()['reservations'][s.seat % 4]}]")
    text, _, marks = "\n".join(said).partition("\n[")
    return f"{text.rstrip()}\n\n[{marks}" if marks else text


def _in_office(s: Scene) -> str:
    """What only this agent is asked for now: to judge, to decide, to argue against, to vote, to sum up; or ""."""
    state, newest = s.state, s.draft or s.lead
    if s.me.id == s.rules.judge and s.rules.verdict == "judge":
        return s.line("judge")
    if state.escalation.to == s.me.id and newest is not None:
        return s.line("escalation", newest)
    if state.table.red_team:
        return s.line("red_team")
    if s.polls and s.role.may(VOTE):
        return s.line("vote", state.polls.open[0])  # the others are left to those who know more of them
    return s.line("closing") if state.closing else ""


def _in_role(s: Scene) -> str:
    rules, role, lead, standing = s.rules, s.role, s.lead, s.state.table.standing
    is_new, is_mutual = all(entry.by != s.me.id for entry in s.spoken), rules.verdict == "mutual"
    if rules.review and role.may(POST, CRITIQUE) and "FINDING" in rules.kinds and is_new:
        return s.line("review")
    if is_mutual and standing is not None and role.may(VOTE) and not standing.signed_by(s.me.id):
        return s.line("sign", standing.proposal)
    if rules.verdict == "moderator" and role.may(DECIDE, MODERATE) and (newest := s.draft or lead):
        answered = {entry.by for entry in s.spoken if entry.number > s.turn_of(newest)} - {s.me.id}
        return s.line("decision" if answered or len(s.agents) < 3 else "unanswered", newest)
    if role.may(PROPOSE) and (lead is None or is_new):
        return s.line("position")
    if is_mutual and role.may(PROPOSE) and standing is None:
        return s.line("settle", lead)
    return s.line("critique" if role.may(CRITIQUE) else "synthesis" if role.may(POST) else "nothing", lead)


def ask(s: Scene) -> str:
    """As consensus, but the second to speak first asks the person."""
    asked = s.state.questions.text or any(entry.mark("QUESTION_FOR_USER") for entry in s.spoken)
    if s.spoken and not asked and not s.points and not s.state.base and s.is_first_in_line:
        return s.line("ask", s.lead)
    return consensus(s)


def deadlock(s: Scene) -> str:
    """Two positions that nobody leaves; from the fifth agent turn on, a call to end it."""
    if len(s.spoken) >= 4:
        return s.line("deadlock", s.first)
    if s.first is None and s.is_first_in_line:
        return s.line("propose")
    if s.first is not None and s.first.by == s.me.id:
        return s.line("hold_first", s.first)
    is_held = s.first is not None and any(entry.by == s.me.id for entry in s.spoken)
    return s.line("hold_second" if is_held else "counter", s.first)


def build(s: Scene) -> str:
    """Both seats of a build, as far as a script goes: plan, carry out, review, sum up; any other dialog: consensus."""
    due, task = s.state.build.due_of(s.me.id)
    if not s.state.build:
        return consensus(s)
    line = f"build {due.value[0] if due else ''}"
    return s.line(line if line in script()["lines"] else "build else", task)


def error(s: Scene) -> str:
    """No lines at all."""
    raise BackendError(
        "rehearsal:error fails on purpose",
        fix=f"start {s.me.id} with another backend, for example --backend rehearsal",
    )


SCENARIOS: Mapping[str, Callable[[Scene], str]] = {
    "consensus": consensus,
    "deadlock": deadlock,
    "endless": lambda s: s.line("endless"),  # one more side of the matter, for ever
    "ask": ask,
    "build": build,
    "error": error,
    "slow": consensus,
}


class Rehearsal(Backend):
    """Plays a scenario, `options.variant`: what is said follows from the dialog alone, so daemons may come and go.

    `slow` streams the consensus word by word over six seconds; `slow=0.5` over half a second.
    """

    name = "rehearsal"
    model = "rehearsal"
    price: Price | None = FREE
    most_out = 2_000

    def __init__(self, options: Options) -> None:
        scenario, given, seconds = (options.variant or "consensus").partition("=")
        if scenario not in SCENARIOS or (given and scenario != "slow"):
            raise BadInput(f"unknown rehearsal {options.variant!r}", fix=f"choose one of: {', '.join(SCENARIOS)}")
        self._scenario = SCENARIOS[scenario]
        self._seconds = 0.0 if scenario != "slow" else _seconds(seconds) if given else SLOW_SECONDS

    @staticmethod
    def probe(_variables: Mapping[str, str], _variant: str) -> Found:
        return Found(True, "scripted lines, no model")

    async def reply(self, request: Request) -> AsyncGenerator[str | Usage, None]:
        """Stream the next lines of the script. Raises `BackendError` in the scenario `error`, always."""
        if request.question:
            yield means_it(request.prompt().parts[-1].text, request.question)
            yield Usage(model=self.model, usd=0.0)
            return
        scene = Scene(request)
        if request.workspace is not None:
            await self.prepare_to_write()
            carry_out(scene.attempt["files"], request.workspace)
        heard = scene.line("heard") if scene.fresh else ""
        text = "\n\n".join(part for part in (script()["opening"], heard, self._scenario(scene)) if part)
        pieces = re.findall(r"\S+\s*" if self._seconds else r"(?s).+?(?:\n\n|$)", text)
        for piece in pieces:
            if self._seconds:
                await asyncio.sleep(self._seconds / len(pieces))
            yield piece
        yield Usage(model=self.model, usd=0.0)

    async def prepare_to_write(self) -> None:
        """Raise `BackendError` in a scenario without files."""
        if self._scenario is not build:
            raise BackendError("these scripted lines carry nothing out", fix="dialogd build --rehearse", kind="unsafe")


def carry_out(files: Mapping[str, str], where: Workspace) -> None:
    """Write these files in a worktree, each anew: no link that lies there is followed. Raises `BackendError`."""
    where.check()
    try:
        for name, text in files.items():
            write_over(text.encode(), where.path / name, durable=False)
    except OSError as error:
        fix = "make room there, or begin another rehearsal"
        raise BackendError(f"{where.path}: {error.strerror}", fix=fix) from error


def means_it(reply: str, question: str) -> str:
    """The answer of a scripted agent to a closing question: what its reply says, without a reason."""
    lines = []
    for asked in question.split("\n"):
        forms = [form for form in re.findall(r"`(\[[^`]*\])`", asked) if not form.startswith("[RESERVATION")]
        lines += [form for form in forms if re.search(rf"{re.escape(form[:-1])}\s*[|\]]", reply)][:1]
    return "\n".join(lines)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= LONGEST:
        raise BadInput(f"rehearsal:slow={text} is no number of seconds", fix="write it like rehearsal:slow=0.5")
    return seconds
