"""Which backends are available here, and which one an agent gets."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from dialogd import backends
from dialogd.backends import BACKENDS, CODING, FREE, SERVICES, Found, Price, kind_of, price_of, probe
from dialogd.backends.apis import host_of, vendor_of
from dialogd.backends.coding_agent import VERSION_WAIT
from dialogd.errors import BadInput, DialogdError

SCENARIOS = frozenset({"rehearsal"})  # what follows the colon is a scenario
COMMANDS = frozenset({"command", "acp"})  # what follows the colon is a command line
LOOK_SECONDS = VERSION_WAIT + 1.0


def survey(
    names: Iterable[str], environment: Mapping[str, str], dotenv: Mapping[str, str], base_url: str = ""
) -> dict[str, Found]:
    """Probe these backends in parallel, each with its own variables."""
    answers: dict[str, Found] = {}

    def look(name: str) -> None:
        base = name.partition(":")[0]
        try:
            variables = backends.variables_for(name, environment, dotenv, base_url)
            found = probe(name if base in SCENARIOS | COMMANDS else base, variables)
            if base_url and base in SERVICES:
                found = _elsewhere(base, found, variables, base_url)
        except DialogdError as error:
            found = Found(False, str(error), fix=error.fix)
        except (ImportError, OSError) as error:
            fix = "check the installation of dialogd and of the program"
            found = Found(False, f"cannot be looked at: {error}", fix=fix)
        answers[name] = found

    wanted = tuple(dict.fromkeys(names))
    threads = [threading.Thread(target=look, args=(name,), daemon=True) for name in wanted]
    deadline = time.monotonic() + LOOK_SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
    slow = Found(False, f"no answer within {LOOK_SECONDS:g} s", fix="run it once by hand, and see what it waits for")
    return {name: answers.get(name, slow) for name in wanted}


def _elsewhere(base: str, found: Found, variables: Mapping[str, str], base_url: str) -> Found:
    """What was found, for another address: a vendor's own needs that vendor's key, any other perhaps none."""
    known = vendor_of(base_url)
    if known and not variables.get(known[1]):
        return Found(False, f"no key for {known[0]}", fix=f"put {known[1]} into the environment or into .env")
    if known:
        return Found(True, f"a key in {known[1]}", f"the key in {known[1]}", found.version)
    if base == "openai" or not found.here:
        return Found(base != "anthropic", f"{host_of(base_url)}, no key", version=found.version, fix=found.fix)
    return found


# -- `auto` -----------------------------------------------------------------------------------------------------------

AUTO = "auto"

# Fixed, so that daemons started apart choose the same way. In a family the first that is here is taken: a program with
# a login of its own before a key that is billed.
FAMILIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "claude": ("claude-code", "anthropic"),
        "gpt": ("codex", "gpt"),
        "gemini": ("gemini",),
        "grok": ("grok",),
        "opencode": ("opencode",),
        "local": ("ollama",),
    }
)
LAST_RESORT = "rehearsal"
LIVE = "live"  # whoever replies there
# What is said where nobody asked for a rehearsal, and nothing else is here.
NO_MODEL = (
    "REHEARSAL: no model is here. The agents speak scripted lines: nobody thinks about it, nothing comes of it.",
    "To get one: Claude Code, Codex or another coding agent, a key in .env, or Ollama: see `dialogd doctor`.",
    "What follows only shows how a dialog goes. Ctrl-C ends it.",
)
CHOSEN = frozenset({AUTO, "claude"})  # names that stand for whichever backend is here

LOCAL = frozenset({"rehearsal", "ollama"})  # families whose text stays here
TRUSTING = frozenset({*CODING, "acp"})  # backends that may run what a project contains
RUNS_PROJECT = "what the project contains may run: its hooks, servers, plugins and scripts (--trust-project)"
HERE = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # an Ollama told to listen everywhere is here too
_METERED = re.compile(r"\bkeys?\b|_API_KEY|_AUTH_TOKEN")


@dataclass(frozen=True, slots=True)
class Choice:
    """The backend that an agent gets."""

    backend: str  # a name of the table; a scenario follows its colon, nothing else does
    why: str  # in words: `2.1.330, logged in`
    pays: str = "nobody"  # `your Claude subscription`, `the key in XAI_API_KEY`
    vendor: str = ""  # who sees the text; "" when nobody outside this machine does
    twins: tuple[str, ...] = ()  # the ids of agents that get the same family by themselves
    here: bool = True  # it can be used now, else `fix` says what to do
    fix: str = ""
    model: str = ""  # what followed the colon, "" for the default one
    idle: tuple[str, ...] = ()  # keys that are set and not used, because a login pays

    @property
    def family(self) -> str:
        """Agents of one family are twins."""
        return kind_of(self.backend).family

    def is_last_resort(self, name: str) -> bool:
        """True when it is a rehearsal, and whoever said `name` asked for none."""
        return self.backend == LAST_RESORT and name.partition(":")[0] != LAST_RESORT

    @property
    def is_metered(self) -> bool:
        """True when a key pays for every token."""
        return bool(_METERED.search(self.pays)) or "logged in with a key" in self.why

    def required(self) -> Choice:
        """The choice itself. Raises `BadInput` when it cannot be used now."""
        if not self.here:
            fix = self.fix or "see what is here: dialogd doctor"
            raise BadInput(f"the backend {self.backend} cannot be used here: {self.why}", fix=fix)
        return self


def resolve(
    name: str,
    seat: int,
    variables: Mapping[str, str],
    found: Callable[[str], Found],
    *,
    agents: Sequence[str] = (),
    base_url: str = "",
) -> Choice:
    """Which backend `name` comes to in that seat (from 0); the same wherever and in whichever order it is asked.

    `auto` takes the families that are here, those with a login or key first, one by seat; `claude` Claude Code, else
    the key. What follows the colon is a model, but for rehearsal, command and acp. Raises `BadInput` for an unknown
    name.
    """
    candidates(name)  # refuses an unknown one
    base, _, detail = name.partition(":")
    twins: tuple[str, ...] = ()
    look = None if base in CHOSEN else found(name)
    if base == "claude":
        base = _first(FAMILIES["claude"], found)
        if not (look := found(base)).here:  # a key would do as well
            key = found(FAMILIES["claude"][1])
            look = Found(False, f"{look.why}, and {key.why}", fix=f"{look.fix}; or {key.fix}")
    elif base == AUTO:
        here = [family for family, members in FAMILIES.items() if any(found(member).here for member in members)]
        # An address that is asked without a login or key, a gateway's, may let nobody in.
        ways_in = {f for f in here if any(look.here and look.pays != "nobody" for look in map(found, FAMILIES[f]))}
        here.sort(key=lambda family: family not in ways_in)
        base = _first(FAMILIES[here[seat % len(here)]], found) if here else LAST_RESORT
        if here:
            twins = tuple(who for at, who in enumerate(agents) if at != seat and (at - seat) % len(here) == 0)
    look = look or found(base)
    kind = kind_of(base)
    choice = Choice(base, look.why, look.pays, kind.vendor, twins, look.here, look.fix)
    address = backends.bare(base_url) or backends.address(kind, variables)
    is_moved = choice.is_metered or base in SERVICES or kind.family in LOCAL  # a login goes to its own vendor
    if is_moved and address and not (kind.family in LOCAL and urlsplit(address).hostname in HERE):
        known = vendor_of(address)
        choice = replace(choice, vendor=known[0] if known else f"whoever runs {address}")
    if look.here and not choice.is_metered:
        rivals = next((members for members in FAMILIES.values() if base in members), (base,))
        choice = replace(choice, idle=backends.unused(rivals, variables, look.pays))
    if base in SCENARIOS:
        return replace(choice, backend=f"{base}:{detail}" if detail else base)
    return replace(choice, model="" if base in COMMANDS else detail)


def _first(members: Sequence[str], found: Callable[[str], Found]) -> str:
    return next((member for member in members if found(member).here), members[0])


def choose(
    name: str,
    seat: int,
    environment: Mapping[str, str],
    dotenv: Mapping[str, str],
    *,
    agents: Sequence[str] = (),
    base_url: str = "",
) -> Choice:
    """`resolve` on this machine: probes what `name` needs, in parallel. Usually takes well under a second."""
    found = survey(candidates(name), environment, dotenv, base_url)
    return resolve(name, seat, {**dotenv, **environment}, found.__getitem__, agents=agents, base_url=base_url)


def candidates(name: str) -> tuple[str, ...]:
    """The backends to probe to resolve `name`. Raises `BadInput` for an unknown name."""
    base, _, detail = name.partition(":")
    if base == AUTO and detail:
        raise BadInput(f"{name!r}: auto takes no model", fix="name the backend too, such as claude:claude-sonnet-5-5")
    if base == AUTO:
        return (*(member for members in FAMILIES.values() for member in members), LAST_RESORT)
    if base == "claude":
        return FAMILIES["claude"]
    if base not in BACKENDS:
        raise BadInput(f"unknown backend {base!r}", fix=f"choose one of: {', '.join(known_names())}")
    return (name,)


def seat_of(agent: str, agents: Sequence[str] = ()) -> int:
    """The seat of an agent, from 0: its place among the dialog's agents, else its letter, else the first."""
    ids = [who.casefold() for who in agents]
    if agent.casefold() in ids:
        return ids.index(agent.casefold())
    return ord(agent.upper()) - ord("A") if len(agent) == 1 and agent.isascii() and agent.isalpha() else 0


NOBODY_ELSE = "nobody outside this machine sees anything"


def introduce(choice: Choice, project: Path | None = None, *, trusts: bool = False) -> str:
    """What an agent is and why, who pays, who sees what, and whether the project's own programs run; on one line."""
    kind = kind_of(choice.backend)
    model = choice.model or kind.model
    pays = "nobody pays" if choice.pays == "nobody" else f"paid by {choice.pays}"
    idle = f" ({' and '.join(choice.idle)} {'is' if len(choice.idle) == 1 else 'are'} not used)" if choice.idle else ""
    what = f"{choice.backend} {model}".strip()
    runs = f"; {RUNS_PROJECT}" if trusts and choice.backend in TRUSTING else ""
    return f"{what} ({choice.why}) — {pays}{idle}; {seen(choice, project)}{runs}"


def seen(choice: Choice, project: Path | None) -> str:
    """Who sees which text."""
    kind = kind_of(choice.backend)
    if not choice.vendor:
        is_here = kind.family in LOCAL
        return NOBODY_ELSE if is_here else "who sees the dialog is its own matter"
    if project is None:
        return f"{choice.vendor} sees the dialog"
    if kind.project == "nothing":
        return f"{choice.vendor} sees the dialog, and the notes of {project}"
    return f"{choice.vendor} sees {project}, and the dialog"


def family_of(name: str) -> str:
    """The family of the backend of that name; "" for `auto`, and for an unknown name."""
    base = name.partition(":")[0]
    return base if base in FAMILIES else BACKENDS[base].family if base in BACKENDS else ""


def twins(families: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """The groups of agents of the same family; scripts, programs, live seats and what is unknown don't count."""
    groups: dict[str, list[str]] = {}
    for who, family in families.items():
        if family not in ("", LAST_RESORT, LIVE, *COMMANDS):
            groups.setdefault(family, []).append(who)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def warning_of(group: Sequence[str], family: str) -> str:
    who = f"{', '.join(group[:-1])} and {group[-1]}"
    return f"{who} are of one family ({family}): they tend to agree; another one objects better (--agents claude,grok)"


def price_for(choice: Choice, model: str = "", price: str = "", *, agents: Path | None = None) -> Price | None:
    """The price of its tokens; None when unknown. `price` is the person's.

    A program chooses its model itself: the one when it was proved last (`agents` remembers it), before that the one
    that its family's API asks. Raises `BadInput` for a bad price.
    """
    from dialogd.backends.readonly_proof import last_model

    kind = kind_of(choice.backend)
    if not price and choice.backend in COMMANDS:
        return None
    if not price and kind.family in LOCAL:
        return FREE
    named = model or choice.model or kind.model
    if not named and choice.backend in CODING:
        family = (BACKENDS[member].model for member in FAMILIES.get(kind.family, ()))
        named = (last_model(agents, choice.backend) if agents else "") or next(filter(None, family), "")
    vendor = choice.vendor if choice.backend == "openai" else kind.vendor  # it speaks to anybody
    return price_of(named, vendor, price)


def known_names() -> tuple[str, ...]:
    """Everything that may be named as a backend."""
    return (*sorted(CHOSEN), *sorted(BACKENDS))
