"""A look at many backends at once, each with its own variables and no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from dialogd import keys
from dialogd.backends import Found, probe
from dialogd.backends.cli_probe import MEMORY, VERSION_WAIT
from dialogd.backends.service import host_of, vendor_of
from dialogd.errors import BadInput, DialogdError

SCENARIOS = frozenset({"rehearsal"})  # what follows the colon is a scenario
COMMANDS = frozenset({"command", "acp"})  # what follows the colon is a command line
SERVICES = frozenset({"anthropic", "openai", "gpt", "grok"})  # they speak to whatever address they are given
LOOK_SECONDS = VERSION_WAIT + 1.0


def variables_for(
    name: str, environment: Mapping[str, str], dotenv: Mapping[str, str], base_url: str = ""
) -> dict[str, str]:
    """The variables that the backend `name` may see; at the address of a known vendor, that vendor's key too."""
    found, base = keys.variables_for(name, environment, dotenv), name.partition(":")[0]
    known = vendor_of(base_url or keys.address(base, found)) if base in SERVICES else None
    key = (environment.get(known[1]) or dotenv.get(known[1], "")) if known else ""
    return found | ({known[1]: key} if known and key else {})


def survey(
    names: Iterable[str],
    environment: Mapping[str, str],
    dotenv: Mapping[str, str],
    base_url: str = "",
    state: Path | None = None,
) -> dict[str, Found]:
    """Look at these backends at once, each with its own variables; whoever needs over `LOOK_SECONDS` is not here.

    What programs said of themselves is remembered in the state directory `state`.
    """
    memory = {MEMORY: str(state)} if state else {}
    answers: dict[str, Found] = {}

    def look(name: str) -> None:
        try:
            variables = variables_for(name, environment, dotenv, base_url=base_url)
        except BadInput as error:
            answers[name] = Found(False, str(error), fix=error.fix)
        else:
            answers[name] = _looked(name, variables | memory, base_url)

    wanted = tuple(dict.fromkeys(names))
    threads = [threading.Thread(target=look, args=(name,), daemon=True) for name in wanted]
    deadline = time.monotonic() + LOOK_SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
    slow = Found(False, f"no answer within {LOOK_SECONDS:g} s", fix="run it once by hand, and see what it waits for")
    return {name: answers.get(name, slow) for name in wanted}


def _looked(name: str, variables: Mapping[str, str], base_url: str) -> Found:
    base = name.partition(":")[0]
    try:
        found = probe(name if base in SCENARIOS | COMMANDS else base, variables)
    except DialogdError as error:
        return Found(False, str(error), fix=error.fix)
    except (ImportError, OSError) as error:
        return Found(False, f"cannot be looked at: {error}", fix="check the installation of dialogd and of the program")
    return _elsewhere(base, found, variables, base_url) if base_url and base in SERVICES else found


def _elsewhere(base: str, found: Found, variables: Mapping[str, str], base_url: str) -> Found:
    """What was found, at an address of the person's: a vendor's own needs that vendor's key, any other perhaps none."""
    known = vendor_of(base_url)
    if known and not variables.get(known[1]):
        return Found(False, f"no key for {known[0]}", fix=f"put {known[1]} into the environment or into .env")
    if known:
        return Found(True, f"a key in {known[1]}", f"the key in {known[1]}", found.version)
    if base == "openai" or not found.here:
        return Found(base != "anthropic", f"{host_of(base_url)}, no key", version=found.version, fix=found.fix)
    return found
