"""`dialogd plan`: the plan of a dialog, at any time; on request with a text that a model writes from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from dialogd.backends.seats import Seat, saved_cast
from dialogd.cli import options
from dialogd.cli.cast import read_cast
from dialogd.cli.terminal import as_json, line, plain, remark, show
from dialogd.config import Settings
from dialogd.errors import BadInput, DialogdError, Refused
from dialogd.protocol.header import AGENT_ID
from dialogd.protocol.model import USER, Agent
from dialogd.protocol.state import Dialog
from dialogd.store.folders import StateDir
from dialogd.views import plan_files as keeping
from dialogd.views.plan import draw_up, has_spoken
from dialogd.views.plan_files import keep, place, write
from dialogd.views.plan_page import as_json as facts_of
from dialogd.views.plan_page import markdown

if TYPE_CHECKING:
    from dialogd.views.plan import Plan, Synthesis

SYNTHESIZE = "--synthesize"
ANYBODY = "*"  # what stands for `--synthesize` without an agent


class PlanCommand(TyperCommand):
    """The command whose `--synthesize` may stand alone, or before an agent."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a bare `--synthesize` its value."""
        return super().parse_args(ctx, list(_with_values(args)))


def _with_values(words: Sequence[str]) -> Iterator[str]:
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else ""
        names_agent = bool(AGENT_ID.fullmatch(following)) and not Path(following).exists()
        yield f"{SYNTHESIZE}={ANYBODY}" if word == SYNTHESIZE and not names_agent else word


def plan(
    path: Annotated[str | None, typer.Argument(metavar="FILE", help="The dialog file. Default: as --file.")] = None,
    *,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Where to write it; `-` prints it. Default: beside the dialog file."),
    ] = None,
    synthesize: Annotated[
        str | None, typer.Option(SYNTHESIZE, metavar="[AGENT]", help="Let a model write a unified plan, in one call.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(metavar="NAME[:MODEL]", help="Which model that is. Default: the agent's own.")
    ] = None,
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Write the plan of a dialog: what was decided, by whom, who disagrees, what is open, what comes next.

    As Markdown and JSON, from the dialog's marks, without a model; also of a dialog that has not ended. With --json
    the paths as JSON; with `--out - --json` the plan itself.
    """
    settings = options.settings_for(path if path is not None else file)
    dialog = options.dialog_at(options.log_of(settings))
    if not has_spoken(dialog):
        raise _silent(settings, dialog)
    where = settings.file.parent.resolve() / settings.file.name
    drawn = draw_up(dialog, str(where))
    if synthesize is not None:
        drawn = dataclasses.replace(drawn, synthesis=_synthesis(settings, drawn, synthesize, backend))
    elif backend is not None:
        raise BadInput("--backend is for --synthesize", fix="add --synthesize, or leave --backend out")
    if out == "-":
        show(plain(as_json(facts_of(drawn)) if json else markdown(drawn).removesuffix("\n")))
        return
    folder = Path.cwd() / Path(out).expanduser() if out else _place(settings)
    page, facts = write(drawn, folder, datetime.now(UTC))
    show(as_json({"markdown": str(page), "json": str(facts)}) if json else plain(f"{page}\n{facts}"))


def _silent(settings: Settings, dialog: Dialog) -> Refused:
    """Why there is no plan: nobody spoke, or only some whose names the header does not know."""
    names = dict.fromkeys(line(entry.name) for entry in dialog.entries[1:] if entry.is_turn and entry.by == USER)
    person = {line(dialog.entries[0].name), "User", ""} if dialog.entries else set()
    strangers = [name for name in names if name not in person]
    if not strangers:
        return Refused(
            f"no agent has spoken in {settings.file}", fix="a plan needs a word of theirs: dialogd status says why"
        )
    agents = ", ".join(f"{agent.id} ({agent.name})" for agent in dialog.header.agents)
    seats = ", ".join(f"{chr(ord('A') + number)} = {name}" for number, name in enumerate(strangers[:26]))
    return Refused(
        f"no agent has spoken in {settings.file}: its turns are by {', '.join(strangers)}, its agents are {agents}",
        fix=f"where they are agents, say so in its header: **Agents:** {seats}",
    )


def _place(settings: Settings) -> Path:
    """Where plans of this file go."""
    return place(settings.file, StateDir(settings.state_dir), settings.plan)


def leave(settings: Settings, dialog: Dialog) -> Path | None:
    """Leave the plan of a dialog that has ended, where plans are wanted; gives the page's path, None without one.

    What keeps it from being written is a remark: the dialog has ended all the same.
    """
    if not settings.plan or dialog.state.outcome is None:
        return None
    try:
        pair = keep(dialog, settings.file, _place(settings), datetime.now(UTC))
    except DialogdError as error:
        remark(plain(f"note: no plan was left: {error}; {error.fix}"))
        return None
    return pair[0] if pair else None


def disown(settings: Settings, dialog: Dialog) -> None:
    """Say in the plan of a result that it was rejected; what keeps it from being written is a remark."""
    try:
        page = keeping.disown(dialog, settings.file, _place(settings))
    except DialogdError as error:
        remark(plain(f"note: the plan of the rejected result stays as it is: {error}; {error.fix}"))
        return
    if page is not None:
        remark(plain(f"note: the plan of that result says so now: {page}"))


def _synthesis(settings: Settings, drawn: Plan, agent: str, backend: str | None) -> Synthesis:
    """What the agent's model writes. Raises `BadInput`, `BackendError`."""
    import asyncio

    from dialogd.agent.player import player, prepare
    from dialogd.views.plan_files import synthesize

    me = _agent(drawn.dialog, agent)
    seat = _seat(settings, drawn.dialog, me, backend)
    own = options.settings_for(
        str(settings.file),
        id=me.id,
        backend=seat.backend or None,
        model=seat.model or None,
        command=seat.command or None,
        project=seat.project or None,
    )
    plays = player(own, drawn.dialog, StateDir(own.state_dir), own.file)
    remark(plain(f"{me.id}: {plays.remarks[0]}; one call"))

    async def call() -> Synthesis:
        try:
            await prepare(plays, drawn.dialog)
            wait, secrets = own.retry_wait, plays.options.secrets
            return await synthesize(plays.backend, drawn, me, own.file, retry_wait=wait, secrets=secrets)
        finally:
            await plays.backend.close()

    return asyncio.run(call())


def _agent(dialog: Dialog, wanted: str) -> Agent:
    """The agent that is named, else the first of the header."""
    agents = dialog.header.agents
    found = next((a for a in agents if wanted in (ANYBODY, a.id) or a.id.casefold() == wanted.casefold()), None)
    if found is None:
        raise BadInput(f"this dialog has no agent {wanted!r}", fix=f"name one of: {', '.join(a.id for a in agents)}")
    return found


def _seat(settings: Settings, dialog: Dialog, me: Agent, backend: str | None) -> Seat:
    """Which backend answers: the one that was named, else that of the agent's seat, else what the settings say."""
    if backend is not None:
        return read_cast(None, [f"{me.id}={backend}"])[0]
    cast = saved_cast(StateDir(settings.state_dir), settings.file)
    if cast is not None and cast.dialog == dialog.id:
        return next((seat for seat in cast.seats if seat.id == me.id), Seat(me.id))
    return Seat(me.id)
