"""A trial of every way to reach the person; loaded only when it is asked for."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

from dialogd.alerts import Alert, Bell, Channel, Event, Webhook, chosen, why_no_desktop
from dialogd.cli.checks import Fact
from dialogd.config import HOOKS, Settings
from dialogd.errors import DialogdError


def try_all(settings: Settings) -> list[tuple[str, str, str, str]]:
    """Name, target, error and fix of each channel, after a test alert; all at the same time."""
    return asyncio.run(_try_all(settings))


async def _try_all(settings: Settings) -> list[tuple[str, str, str, str]]:
    return list(await asyncio.gather(*(_try(way, settings) for way in chosen(settings))))


async def _try(way: Channel, settings: Settings) -> tuple[str, str, str, str]:
    error = fix = ""
    try:
        await way.deliver(_trial(way, settings))
    except DialogdError as problem:
        error, fix = str(problem), problem.fix
    finally:
        if isinstance(way, Webhook):
            await way.close()
    here = "this terminal" if sys.stdout.isatty() else "no terminal here"
    return way.name, here if isinstance(way, Bell) else way.target, error, fix


def _trial(way: Channel, settings: Settings) -> Alert:
    """A test alert of the kind that the channel is for."""
    kinds: dict[str, Event] = {"on_stalled": "stalled", "on_error": "error", "on_end": "end", "on_event": "entry"}
    return Alert(
        event=kinds.get(way.name, "question"),
        dialog="test",
        topic="a test of dialogd alerts",
        file=str(settings.file),
        agent="A",
        turn=1,
        text="This is a test: nobody needs you.",
        reason="a test: nobody needs you",
        url="http://localhost:3001/",
        at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def facts(settings: Settings) -> Iterator[Fact]:
    """For `dialogd doctor`: whether the desktop can be reached, and which channels are set up."""
    why, fix = why_no_desktop()
    if settings.desktop == "off":
        yield Fact("desktop", "ok", "no notifications: desktop = off")
    elif why:
        yield Fact("desktop", "warning" if settings.desktop == "on" else "absent", f"no notifications: {why}", fix)
    else:
        yield Fact("desktop", "ok", "shows notifications")
    hooks = [f"{way.name} to {way.target}" for way in chosen(settings) if way.name in HOOKS]
    bell = "the bell rings" if settings.bell else "no bell"
    yield Fact("alerts", "ok", "; ".join([bell, *hooks, "try them: dialogd alerts test"]))
