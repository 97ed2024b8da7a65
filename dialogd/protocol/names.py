"""Names and fields of ours as programs of others know them: the one mapping, through which every door passes.

Inside, a dialog is not begun, under way, deciding or over; what runs on it is starting, running, waiting, asleep or
ended. Readers of `--json`, events and MCP get the names below as well, or in their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dialogd.protocol import lifecycle
from dialogd.protocol.state import Dialog

# -- Where a dialog stands, and what it allows ------------------------------------------------------------------------

LIFECYCLE = {
    "not begun": ("dormant", ("start", "configure", "add agent")),
    "under way": ("streaming", ("post", "read", "vote", "stop")),
    "deciding": ("converging", ("vote", "moderate", "decide")),
    "over": ("collapsed", ("harvest", "reset")),
}


def lifecycle_of(dialog: Dialog | None) -> str | None:
    """Where a dialog stands: dormant, streaming, converging, collapsed; None without one."""
    return LIFECYCLE[lifecycle.where(dialog)][0] if dialog is not None else None


def allowed(dialog: Dialog | None) -> list[str]:
    """What is allowed now: the words of the lifecycle, then the person's commands."""
    if dialog is None:
        return []
    return [*dict.fromkeys((*LIFECYCLE[lifecycle.where(dialog)][1], *lifecycle.commands(dialog)))]


# -- Sessions and their agents, as hosts of MCP servers know them -----------------------------------------------------

SESSIONS = ("initializing", "spawning_agents", "running", "completing", "completed", "error", "timeout")
OPEN_SESSIONS = SESSIONS[:4]
AGENTS = ("idle", "thinking", "executing", "failed", "stopped")


def session_state(dialog: Dialog | None, state: str) -> str:
    """One of `SESSIONS` for what runs on a dialog: `state` is starting, running, waiting, asleep or ended."""
    outcome = dialog.state.outcome if dialog is not None else None
    if outcome is not None:
        return {"time": "timeout", "error": "error"}.get(outcome.cause, "completed")
    if state == "starting":
        return "spawning_agents" if dialog is not None else "initializing"
    if state == "asleep" or dialog is None:
        return "error"
    return "completing" if dialog.state.closing else "running"


def agent_state(dialog: Dialog, agent: str, healths: Mapping[str, Mapping[str, Any] | None]) -> str:
    """One of `AGENTS`: `healths` holds the agents with a daemon, None for one that does not answer."""
    if agent in dialog.state.absent or agent in dialog.state.debts.failed:
        return "failed"
    if dialog.state.outcome is not None or agent not in healths:
        return "stopped"
    working = (healths[agent] or {}).get("working_on")
    return str(working.get("state") or "thinking") if working else "idle"


# -- What programs call the words that they send ----------------------------------------------------------------------

WORDS = ("text", "message", "content")


def worded(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What a program sent, with its words under `name`, whichever of `WORDS` it calls them."""
    other = next((one for one in WORDS if one in given), name) if name not in given else name
    return {name if one == other else one: value for one, value in given.items()}
