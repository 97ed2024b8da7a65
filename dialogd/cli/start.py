"""`dialogd start`: one agent's daemon, in this terminal or, with --detach, in the background."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Annotated

import typer

from dialogd import person
from dialogd.backends.auto import LAST_RESORT, LIVE, family_of
from dialogd.backends.seats import Cast, saved_cast, start_flags
from dialogd.cli import options
from dialogd.cli.cast import AGREES, SEATS, warn_of_twins
from dialogd.cli.client import daemons, healths
from dialogd.cli.launch import end, spawn, until_ready
from dialogd.cli.terminal import plain, remark, show
from dialogd.config import Settings
from dialogd.errors import BadInput, DialogdError
from dialogd.protocol.header import AGENT_ID, LOOPBACK_URL
from dialogd.protocol.model import RESERVED, WHY_RESERVED
from dialogd.store.caller import is_inside, process_key
from dialogd.store.folders import StateDir
from dialogd.store.registry import Running
from dialogd.templates.opening import alone

Port = Annotated[str | None, typer.Option(metavar="N", help="Where it listens. Default: A on 3001, B on 3002 …")]
Peer = Annotated[
    list[str] | None,
    typer.Option(
        "--peer",
        metavar="URL",
        help="Another agent's daemon, URL or ID=URL. Default: from the running daemons, else the file.",
    ),
]
Backend = Annotated[str | None, typer.Option(metavar="NAME", help="What writes the replies. Default: what is here.")]
Command = Annotated[str | None, typer.Option(metavar="CMD", help="The program of the `command` backend.")]
Model = Annotated[str | None, typer.Option(metavar="M", help="The model the backend is to use.")]
Name = Annotated[str | None, typer.Option(metavar="N", help="The agent's name in headings.")]
Role = Annotated[str | None, typer.Option(metavar="TEXT", help="The agent's role: a known one, or a text.")]
Project = Annotated[str | None, typer.Option(metavar="DIR", help="The folder the agent works in.")]
Repo = Annotated[str | None, typer.Option(metavar="DIR", help="Of a build's lead: the repository that it works on.")]
Gate = Annotated[str | None, typer.Option(metavar="CMD", help="Of a build's lead: the command that tests its work.")]
GateSees = Annotated[
    list[str] | None,
    typer.Option(metavar="DIR", help="Of a build's lead: a folder that the gate can read, as .venv; repeat it."),
]
MaxTokens = Annotated[int | None, typer.Option(min=16, metavar="N", help="Tokens one reply may have. Default: 8192.")]
Effort = Annotated[str | None, typer.Option(metavar="LEVEL", help="How hard the model thinks: low, medium, high …")]
BaseUrl = Annotated[str | None, typer.Option(metavar="URL", help="Another address of the service.")]
Api = Annotated[str | None, typer.Option(metavar="API", help="For OpenAI-compatible services: chat or responses.")]
Resume = Annotated[
    str | None,
    typer.Option("--resume", metavar="SESSION", help="claude-code: join with the context of a session of yours."),
]
GoOn = Annotated[bool, typer.Option("--continue", help="claude-code: the same, with your most recent session.")]
Session = Annotated[
    str | None, typer.Option(metavar="KEY", help="live: the open session; `dialogd live join` finds it.")
]
Price = Annotated[
    str | None, typer.Option(metavar="PRICE", help="Dollars per million tokens: IN/OUT[/CACHED], or free.")
]
Budget = Annotated[
    str | None, typer.Option(metavar="AMOUNT", help="What this agent may spend in one dialog: $1.50, 200k tokens.")
]
Digest = Annotated[bool, typer.Option("--digest", help="Sum up what no longer fits the model's window, in a note.")]
LogFormat = Annotated[str | None, typer.Option(metavar="FORMAT", help="`text`, or `json`: one object per line.")]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Run in the background; returns once it answers.")]
Debug = Annotated[bool, typer.Option("--debug", help="Say more in the log; show tracebacks.")]

# Options that are settings of the same name.
OWN = (
    "port", "backend", "command", "model", "name", "role", "pace", "project", "max_tokens", "effort", "base_url", "api",
    "session", "trust_project", "repo", "gate", "gate_sees", "price", "budget", "digest", "log_format", "debug",
)  # fmt: skip


def start(  # noqa: PLR0913 - every option of the command is an argument
    agent: Annotated[str | None, typer.Argument(metavar="ID", help="The agent: A. Default: DIALOGD_ID.")] = None,
    *,
    port: Port = None,
    peer: Peer = None,
    backend: Backend = None,
    command: Command = None,
    model: Model = None,
    name: Name = None,
    role: Role = None,
    pace: options.Pace = None,
    project: Project = None,
    max_tokens: MaxTokens = None,
    effort: Effort = None,
    base_url: BaseUrl = None,
    api: Api = None,
    resume: Resume = None,
    go_on: GoOn = False,
    session: Session = None,
    trust_project: options.TrustProject = False,
    repo: Repo = None,
    gate: Gate = None,
    gate_sees: GateSees = None,
    price: Price = None,
    budget: Budget = None,
    digest: Digest = False,
    file: options.FileOption = None,
    log_format: LogFormat = None,
    debug: Debug = False,
    detach: Detach = False,
    plan: options.Plan = None,
) -> None:
    """Run one agent's daemon, in a terminal of its own.

    Until Ctrl-C or `dialogd stop`. The dialog file may come later.
    """
    given = locals()
    flags = {name: given[name] or None for name in OWN}
    flags["resume"] = "last" if go_on else resume
    settings = options.settings_for(file, id=agent, plan=plan, **flags)
    if not settings.id:
        raise BadInput("which agent should this daemon speak for?", fix="name it: dialogd start A; or set DIALOGD_ID")
    cast = _cast_of_run(settings)
    if cast is None:
        person.own_words(options.log_of(settings), "start", settings.id)
    urls = peers(settings, peer or ())
    is_of_session = settings.backend == LIVE and bool(settings.session)
    if is_of_session and not is_inside(os.getpid(), settings.session):
        remark(f"{settings.id}: {AGREES}")
    if detach:
        _detached(settings, urls)
        return
    if is_of_session:
        from dialogd.cli.seat import take

        settings = take(settings)
    from dialogd.daemon import serve

    if sys.stderr.isatty():  # nobody reads it where `run` starts agents, and it costs them time
        _warn(settings)
    code = serve(settings, urls, cast, may_rehearse=cast is not None or not _is_beside_agents(settings))
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # taking the SDKs apart in memory would take longer than all else that a stop does


def _is_beside_agents(settings: Settings) -> bool:
    """Whether agents that are no rehearsal run in this dialog already."""
    answers = healths(daemons(settings, settings.file)).values()
    return any(family_of(str(answer.get("backend") or LAST_RESORT)) != LAST_RESORT for answer in answers if answer)


def _cast_of_run(settings: Settings) -> Cast | None:
    """The cast of the `run` or `ask` that this process was started by; None where somebody else did.

    A session that holds a seat of the dialog starts no other agent of it, but by a `run` or `ask` of its own.
    """
    cast = saved_cast(StateDir(settings.state_dir), settings.file)
    return cast if cast is not None and cast.by and cast.by == process_key(os.getppid()) else None


def detached(settings: Settings, urls: Mapping[str, str]) -> Running:
    """Start a daemon with these settings in the background, and wait until it answers."""
    logs = StateDir(settings.state_dir).logs
    key = StateDir(settings.state_dir).dialog(settings.file).name
    words = ["start", settings.id, "--file", str(settings.file), *chain(*start_flags(settings, urls))]
    child = spawn(settings.id, words, logs / f"{settings.id}-{key}.out")
    try:
        return until_ready({child.id: child}, settings, [settings.backend])[child.id]
    except BaseException:  # a Ctrl-C while it starts ends it too
        end([child])
        raise


def _detached(settings: Settings, urls: Mapping[str, str]) -> None:
    """Start the same command in the background, and say how it is."""
    daemon = detached(settings, urls)
    show(plain(f"{daemon.id} runs: pid {daemon.pid}, port {daemon.port}, log {daemon.log}"))
    remark(f"end it with: dialogd stop, or kill {daemon.pid}")
    with suppress(DialogdError, OSError):  # the daemon runs, whatever cannot be said of it
        _warn(settings)


def _warn(settings: Settings) -> None:
    """Warn about what may prevent a decision: a single agent, or agents of one family."""
    with suppress(DialogdError, OSError):
        for text in alone(options.log_of(settings).read().header):
            remark(f"warning: {text}")
    answers = healths(daemons(settings, settings.file)).items()
    families = {daemon.id: family_of(str(answer.get("backend", ""))) for daemon, answer in answers if answer}
    warn_of_twins({**families, settings.id: families.get(settings.id) or family_of(settings.backend)}, only=settings.id)


def peers(settings: Settings, given: Sequence[str]) -> dict[str, str]:
    """Id -> URL of the peers in `--peer`; a bare URL belongs to the next agent without one. Raises `BadInput`."""
    named: dict[str, str] = {}
    bare: list[str] = []
    for text in given:
        agent, equals, url = text.partition("=")
        if equals and agent.upper() in RESERVED:
            raise BadInput(f"--peer {text!r}: the id {agent} is reserved: {WHY_RESERVED}", fix="name an agent: B=URL")
        if equals and not AGENT_ID.fullmatch(agent):
            raise BadInput(f"--peer {text!r}: {agent!r} is no agent's id", fix="write --peer B=http://localhost:3002")
        if equals:
            named[agent] = _loopback(url)
        else:
            bare.append(_loopback(text))
    try:
        agents = [agent.id for agent in options.log_of(settings).read().header.agents]
    except (DialogdError, OSError):
        agents = [*SEATS]  # while there is no dialog
    others = (who for who in agents if who != settings.id and who not in named)
    for url in bare:
        who = next(others, None)
        if who is None:
            raise BadInput(f"--peer {url}: the dialog has no further agent", fix="write --peer ID=URL")
        named[who] = url
    return named


def _loopback(url: str) -> str:
    """The URL in full; `3002` and `localhost:3002` will do."""
    full = url.strip()
    if re.fullmatch(r"\d{1,5}", full):
        full = f"localhost:{full}"
    if "://" not in full:
        full = f"http://{full}"
    match = LOOPBACK_URL.fullmatch(full)
    if match is None or not 0 < int(match[2]) < 65_536:
        raise BadInput(
            f"--peer {url!r} is not on this machine", fix="write a loopback address, such as http://localhost:3002"
        )
    return full.rstrip("/")
