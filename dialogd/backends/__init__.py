"""Backends write agents' replies: a protocol, a table, one file per backend; their variables, and their prices."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

from dialogd.errors import BackendError, BadInput

if TYPE_CHECKING:
    from dialogd.backends.parts import Prompt
    from dialogd.backends.tools import Toolbox
    from dialogd.protocol.model import Participant
    from dialogd.protocol.state import Dialog


@dataclass(frozen=True, slots=True)
class Kind:
    """One line of the table: what is known of a backend before its module is loaded."""

    target: str  # the module here, and the class in it
    title: str  # what an agent is called in headings (`Codex B`)
    family: str  # agents of one family are twins: `auto` seats different ones
    vendor: str = ""  # who sees the text; "" when nobody outside this machine does
    model: str = ""  # the default one; "" where there is none, or the program itself chooses
    keys: tuple[str, ...] = ()  # of the person's variables that it may see, those that are billed
    addresses: tuple[str, ...] = ()  # those by which the text goes elsewhere
    variables: tuple[str, ...] = ()  # and the rest
    project: str = "nothing"  # what it may do to the project directory
    has: str = ""  # what it is told that it has to look at; "" where that is not known
    variant: str = ""  # its `Options.variant` unless something follows the colon (presets of one class)

    @property
    def may_see(self) -> tuple[str, ...]:
        return self.keys + self.addresses + self.variables


NOTHING = "nothing but what is written here, and what you know: no files, no tools to look anything up"
_FILES = "read and search it; you can neither change it nor run anything"
_OPENAI = Kind(
    "apis:OpenAI", "GPT", "gpt", "OpenAI", "gpt-6.1-sol", ("OPENAI_API_KEY",), ("OPENAI_BASE_URL",),
    ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_CUSTOM_HEADERS"),
)  # fmt: skip

# A new backend is one file and one line here. One without variables sees no key at all.
BACKENDS: Mapping[str, Kind] = MappingProxyType(
    {
        "rehearsal": Kind("rehearsal:Rehearsal", "Claude", "rehearsal"),
        "command": Kind("command:Command", "Agent", "command", project="whatever the command does"),
        "anthropic": Kind(
            "apis:Anthropic", "Claude", "claude", "Anthropic", "claude-opus-5-5",
            ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"), ("ANTHROPIC_BASE_URL",), ("ANTHROPIC_CUSTOM_HEADERS",),
        ),
        "openai": _OPENAI,
        "gpt": replace(_OPENAI, variant="gpt"),
        "grok": Kind(
            "apis:OpenAI", "Grok", "grok", "xAI", "grok-4.7", ("XAI_API_KEY",), ("XAI_BASE_URL",), variant="grok"
        ),
        "ollama": Kind(
            "apis:OpenAI", "Local", "ollama", "", "", ("OLLAMA_API_KEY",), ("OLLAMA_HOST",),
            ("OLLAMA_CONTEXT_LENGTH",), variant="ollama",
        ),
        "claude-code": Kind(
            "coding_clis:ClaudeCode", "Claude", "claude", "Anthropic", "", ("ANTHROPIC_API_KEY",),
            ("ANTHROPIC_BASE_URL",), ("CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CONFIG_DIR"),
            project="reads files",
            has=f"the project in the current folder: {_FILES}",
        ),
        "codex": Kind(
            "coding_clis:Codex", "Codex", "gpt", "OpenAI", "", ("OPENAI_API_KEY",), ("OPENAI_BASE_URL",),
            ("CODEX_HOME",),
            project="reads files, runs commands in a read-only sandbox without network",
            has="the project in the current folder: read and search it, by commands that change nothing",
        ),
        "gemini": Kind(
            "coding_clis:Gemini", "Gemini", "gemini", "Google", "", ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
            ("GOOGLE_GEMINI_BASE_URL",), ("GEMINI_CLI_HOME", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION"),
            project="reads files",
            has=f"the project in the current folder: {_FILES}",
        ),
        "opencode": Kind(
            "coding_clis:OpenCode", "OpenCode", "opencode", "the provider that opencode is set up for", "",
            ("OPENCODE_API_KEY",), ("OPENCODE_BASE_URL",),
            ("OPENCODE_CONFIG", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"),
            project="reads files",
            has=f"the project that is named below: {_FILES}",
        ),
        "acp": Kind(
            "acp:ACP", "Agent", "acp", "whoever the agent asks",
            project="runs what it contains (hooks, servers, scripts), and whatever the agent does without asking; what"
            " it asks for is refused",
            has="the project in the current folder: read and search it, and change nothing",
        ),
        "live": Kind(
            "live:Live", "Live", "live", "whoever the session asks",
            project="whatever the session may do: it keeps its own permissions, with write access to its project",
            has="the project of your session: look there, with what your session may do",
        ),
    }
)  # fmt: skip

CODING = frozenset({"claude-code", "codex", "gemini", "opencode"})  # their first start is a trial (readonly_proof.py)
WRITING = CODING | {"command"}  # those that can work in a folder and write nowhere else
SHELLS = WRITING - {"gemini", "opencode"}  # those that can run commands there, and so the tests
BOXED = frozenset({"gemini", "opencode", "command"})  # those of them that do so in a sandbox of ours alone
SERVICES = frozenset({"anthropic", "openai", "gpt", "grok"})  # they speak to whatever address they are given
WITH_TOOLS = SERVICES | {"ollama"}  # they call tools


@dataclass(frozen=True, slots=True)
class Workspace:
    """A git worktree that a turn may change: in `path`, and nowhere else."""

    path: Path
    git_dir: Path  # where git keeps the worktree
    common_dir: Path  # and the repository
    # What an agent must never write: dialog file, lock, their folder, state directory, shared temporary folder, home.
    forbidden: tuple[Path, ...] = ()
    seen: tuple[Path, ...] = ()  # folders that can be read wherever they lie, as by the gate
    kit: Mapping[Path, Path] = field(default_factory=dict)  # places in `path`, and what stands there, to be read

    @property
    def guarded(self) -> tuple[Path, ...]:
        """Everything outside that must stay as it is."""
        return (self.git_dir, self.common_dir, *self.forbidden)

    def check(self, own: Sequence[Path] = ()) -> None:
        """Raise `BackendError` when something guarded lies where the agent could write: in `path`, or one of `own`."""
        if not self.path.is_dir():
            raise BackendError(f"there is no worktree at {self.path}", fix="go on with `dialogd build --continue`")
        for root in (path.resolve() for path in (self.path, *own)):
            for path in self.guarded:
                if path.resolve().is_relative_to(root):
                    raise BackendError(
                        f"{path} lies in {root}, where the agent could write it",
                        fix="keep the dialog, its state directory and git's own folders outside of worktrees",
                        kind="unsafe",
                    )

    @property
    def shown(self) -> dict[Path, Path]:
        """The parts of the kit for which there is a place: an agent may have put a link or a file there."""
        return {
            place: source for place, source in self.kit.items()
            if place.resolve() == place and (not place.exists() or place.is_dir() == source.is_dir())
        }  # fmt: skip

    def confined(
        self,
        command: Sequence[str],
        own: Sequence[Path] = (),
        read: Sequence[Path] = (),
        *,
        pinned: Sequence[Path] = (),
        hidden: Sequence[Path] = (),
        cwd: Path | None = None,
    ) -> list[str]:
        """The words that run `command` (in `cwd`, else `path`) in a sandbox: `path` and `own` can be written.

        `read`, and what the words name, is there to be read, wherever it lies; `pinned` files of `own` stay as they
        are.
        """
        from dialogd.backends.command import confined

        roots = [path.resolve() for path in (self.path, *own)]
        words = [Path(word) for word in command if word.startswith("/") and Path(word).exists()]
        named = [path.resolve() for path in words]
        around = [path.parent for path in (*named, *words)]
        around += [path.parent for path in around if path.name == "bin" and path.parent.name != ".local"]  # its library
        cwd = (cwd or self.path).resolve()
        there = [*(path.resolve() for path in read), *named, *around, cwd]
        there = [path for path in there if not any(path.is_relative_to(root) for root in roots)]
        guarded = [path for path in self.guarded if not any(path.resolve().is_relative_to(one) for one in hidden)]
        fixed = [*there, self.git_dir, self.common_dir, *guarded, self.path / ".git", *pinned]
        return confined(
            command, cwd=cwd, writable=roots, read_only=fixed, hidden=hidden, shown=self.shown, network=True
        )


@dataclass(frozen=True, slots=True)
class Request:
    """One turn that is asked for."""

    dialog: Dialog
    agent: Participant
    turn: int
    file: Path
    prompt: Callable[[], Prompt]  # renders, once asked, everything a model needs
    re: str = ""  # with `chain` the name of the entry that opened the debt
    chain: str = ""
    question: str = ""  # the closing question, where that is asked and no turn; a backend with a session asks it there
    lacking: str = ""  # what the first reply lacked, where it is asked for once more
    allowance: float | None = None  # what this turn may cost in US dollars, None without a budget
    tokens: int | None = None  # and how many tokens it may use
    reads: int = 0  # the tokens that its recent calls have read
    until: float = math.inf  # when the turn times out (monotonic)
    tools: Toolbox | None = None  # what the model may call, for a backend in `WITH_TOOLS`
    workspace: Workspace | None = None  # where a backend in `WRITING` may write; None: nowhere

    def less(self, usd: float, tokens: int) -> Request:
        """It with the rest of its budget after so many dollars and tokens."""
        allowance = None if self.allowance is None else max(self.allowance - usd, 0.0)
        return replace(self, allowance=allowance, tokens=None if self.tokens is None else max(self.tokens - tokens, 0))


@dataclass(frozen=True, slots=True)
class Usage:
    """What one call used; None where unknown."""

    model: str = ""
    tokens_in: int | None = None  # all that was read, `cached` and `cache_write` included
    tokens_out: int | None = None
    cached: int | None = None
    cache_write: int | None = None
    usd: float | None = None  # where the service itself names a price; else it is worked out from the tokens
    estimated: bool = False  # the numbers were not reported
    calls: int = 1  # 0 until a model was asked


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that starts to run, by its name; "" once it has ended."""

    name: str = ""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of a turn to which somebody else replies, after so many knocks."""

    what: str  # `knocked`, `opened`, `replied`, `silent`, or `waiting` for their user, as `text` says
    knocks: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class NextRequest:
    """One request of a turn is over and another is about to go out: the last `Usage` was that of the first, in full."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a backend is set up; "" and 0 mean its default."""

    variant: str = ""  # what follows the colon (`rehearsal:deadlock`)
    command: str = ""
    model: str = ""
    project: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)  # what a command gets on top of the clean environment
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)  # those of the person's that it may see
    max_tokens: int = 0
    effort: str = ""
    base_url: str = ""
    api: str = ""
    state: Path | None = None  # a folder of this agent's own (0700), for what may be lost: session ids, proofs
    resume: str = ""  # a session of the person's to go on from, `last` for the most recent one
    session: str = ""  # the open session that is the agent: `claude:PID:START`
    trust_project: bool = False  # let what the project contains run: hooks, servers, plugins, scripts
    price: str = ""  # `IN/OUT[/CACHED]` in dollars per million tokens, or `free`
    secrets: tuple[str, ...] = field(default=(), repr=False)  # the person's: taken out of what is quoted or kept


@dataclass(frozen=True, slots=True)
class Found:
    """Whether a backend can be used on this machine, found without calling any service."""

    here: bool
    why: str  # in words: `claude 2.1.330 on PATH, logged in`, `no key`
    pays: str = "nobody"  # `your Claude subscription`, `the key in ANTHROPIC_API_KEY`
    version: str = ""  # of the program or library, "" where there is none
    fix: str = ""  # what to do when it is not here


@runtime_checkable
class Backend(Protocol):
    """Anything that can answer. It never sees the lock or the peers, and writes nothing to the dialog.

    `reply` yields text as it comes, `Usage` whenever it knows more (the last one counts, also when the call fails
    later or is cancelled), `Tool` when one begins to run and when it has ended, `Delivery` where somebody else
    replies, and `NextRequest` between two requests that are billed. It raises `BackendError` and nothing else.
    Cancelling the task that iterates it ends the call and all that it started before the cancellation returns. The
    class also has `probe(variables, variant) -> Found`; where somebody else replies, `is_opened` says whether they are
    at the turn.
    """

    name: str
    model: str
    costs: bool = False  # a call costs money: the file is read in full before it
    price: Price | None  # None when unknown
    most_out: int = 0  # tokens that one reply may have at most, 0 when nobody knows
    room: int = 0  # tokens that the prompt may have, 0 without a limit
    secrets: tuple[str, ...] = ()  # keys it holds: they are taken out of everything it says

    def reply(self, request: Request) -> AsyncGenerator[str | Usage | Tool | Delivery | NextRequest, None]: ...

    async def prepare(self) -> None:
        """Prove what it has to before its first call: usually nothing. Raises `BackendError` when it cannot."""

    async def prepare_to_write(self) -> None:
        """Prove that it writes in a workspace and nowhere else. Raises `BackendError` (`unsafe`) when it cannot."""
        fix = f"start it with --backend {', '.join(sorted(WRITING))}"
        raise BadInput(f"who leads a build works in a worktree, and {self.name} cannot", fix=fix)

    async def close(self) -> None:
        """Give back what is kept between replies: usually nothing."""


def kind_of(name: str) -> Kind:
    """The table's line for `name`, with or without a variant. Raises `BadInput` for an unknown one."""
    base = name.partition(":")[0]
    if base not in BACKENDS:
        raise BadInput(f"unknown backend {base!r}", fix=f"choose one of: {', '.join(sorted(BACKENDS))}")
    return BACKENDS[base]


def class_of(kind: Kind) -> Any:
    module, _, name = kind.target.partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def load_backend(name: str, options: Options) -> Backend:
    """Build the backend `name` (`rehearsal:deadlock`). Raises `BadInput` for an unknown one, and for its options."""
    kind = kind_of(name)
    if options.project is not None and not options.project.is_dir():
        why = f"the project {str(options.project)!r} is not a directory"
        raise BadInput(why, fix="name an existing directory with --project")
    variant = name.partition(":")[2] or options.variant or kind.variant
    backend: Backend = class_of(kind)(replace(options, variant=variant, model=options.model or kind.model))
    return backend


def probe(name: str, variables: Mapping[str, str]) -> Found:
    """Check whether the backend `name` can be used here; calls no service, takes well under a second."""
    kind = kind_of(name)
    found: Found = class_of(kind).probe(variables, name.partition(":")[2] or kind.variant)
    return found


def writers() -> dict[str, str]:
    """Every backend, with what keeps it from leading a build here: "" for those that can, and prove it at the start."""
    from dialogd.backends.command import missing

    lacking = f"it writes in a sandbox alone, and {missing()}" if missing() else ""
    why = dict.fromkeys(BACKENDS, "it answers, and has no hands to write files with")
    why |= {"acp": "nothing keeps it to one folder"}
    return why | {name: lacking if name in BOXED else "" for name in WRITING}


# -- What tokens cost -------------------------------------------------------------------------------------------------

DEAREST = 100_000.0  # dollars per million tokens; more is a slip of the pen
_PRICE = re.compile(r"[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}")

# Under which name the price list knows a vendor.
_PROVIDERS = MappingProxyType({"anthropic": "anthropic", "openai": "openai", "xai": "x-ai", "google": "google"})


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens. `cached` and `write` fall back to `tokens_in` where nothing else is known."""

    tokens_in: float
    tokens_out: float
    cached: float | None = None
    write: float | None = None
    source: str = ""
    over: int = 0  # a request with more tokens of input costs what `beyond` says, all of it
    beyond: Price | None = None

    def usd(self, tokens_in: int, tokens_out: int, cached: int = 0, cache_write: int = 0) -> float:
        """The cost of one request; `tokens_in` includes cached and written tokens."""
        if self.beyond is not None and tokens_in > self.over:
            return self.beyond.usd(tokens_in, tokens_out, cached, cache_write)
        rest = max(tokens_in - cached - cache_write, 0)
        read = self.tokens_in if self.cached is None else self.cached
        write = self.tokens_in if self.write is None else self.write
        return (rest * self.tokens_in + cached * read + cache_write * write + tokens_out * self.tokens_out) / 1e6


FREE = Price(0.0, 0.0, source="free")


def price_of(model: str, vendor: str, override: str = "") -> Price | None:
    """What `model` of `vendor` costs; None when nobody knows. Raises `BadInput` for a price that cannot be read.

    `override`, as people write it, counts before the price list.
    """
    if override.strip():
        return parse_price(override)
    provider, name = _PROVIDERS.get(vendor.lower()), model.strip().lower()
    return _listed(name, provider) if provider and name else None


def parse_price(text: str, what: str = "the price") -> Price:
    """Read `IN/OUT`, `IN/OUT/CACHED` (dollars per million tokens) or `free`. Raises `BadInput`, naming `what` it is."""
    if text.strip().lower() == "free":
        return FREE
    parts = [part.strip().removeprefix("$").strip() for part in text.split("/")]
    numbers = [float(part) if _PRICE.fullmatch(part) else math.inf for part in parts]
    if len(numbers) not in (2, 3) or max(numbers) > DEAREST:
        raise BadInput(
            f"{what} {text[:60]!r} cannot be read",
            fix="write IN/OUT or IN/OUT/CACHED in dollars per million tokens, such as 3/15 or 3/15/0.3; or free",
        )
    if not any(numbers):
        return FREE
    return Price(numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else None, source="given")


@lru_cache(maxsize=64)
def _listed(model: str, provider: str) -> Price | None:
    """Today's offline list price; None for a model that is not in it, or is not billed by tokens both ways."""
    try:
        from genai_prices.data_snapshot import get_snapshot

        _, found = get_snapshot().find_provider_model(model, None, provider, None)
    except (ImportError, LookupError):
        return None
    listed = found.get_prices(datetime.now(UTC))
    names = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")
    rates = [getattr(listed, name) for name in names]
    if rates[0] is None or rates[1] is None:
        return None
    starts = [tier.start for rate in rates for tier in getattr(rate, "tiers", ())]
    beyond = _at(rates, max(starts) + 1) if starts else None
    return replace(_at(rates, 0), over=min(starts, default=0), beyond=beyond)


def _at(rates: Sequence[Any], tokens: int) -> Price:
    now: list[float | None] = []
    for rate in rates:
        passed = [tier.price for tier in getattr(rate, "tiers", ()) if tokens > tier.start]
        found = passed[-1] if passed else getattr(rate, "base", rate)
        now.append(None if found is None else float(found))
    return Price(now[0] or 0.0, now[1] or 0.0, now[2], now[3], "list price")


# -- The person's variables: which of them a backend may see, and which are secrets -----------------------------------

SHORTEST_SECRET = 16  # characters; shorter values stand in texts by accident

# How to reach programs and the network from here; nobody's secret, and not taken from a project's `.env`.
MACHINE = (
    "PATH", "HOME", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "all_proxy",
    "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
)  # fmt: skip

_SECRET = re.compile(r"(?:^|_)(?:API_?KEY|ACCESS_KEY|TOKEN|PASSWORD|SECRET\w*)$", re.I)


def variables_for(
    name: str, environment: Mapping[str, str], dotenv: Mapping[str, str], base_url: str = ""
) -> dict[str, str]:
    """The variables that a backend may see: its own, the environment's before `.env`'s, and `MACHINE`.

    At the address of a known vendor it sees that vendor's key, too. Raises `BadInput` where `.env` names the address
    for a key that stands in the environment: a folder that somebody else made must not decide where that key goes.
    """
    kind = kind_of(name)
    named = next((key for key in kind.addresses if dotenv.get(key) and not environment.get(key)), "")
    held = next((key for key in kind.keys if environment.get(key)), "")
    if named and held:
        raise BadInput(
            f"{named} stands in .env and {held} in the environment: the key is not sent to an address of the folder's",
            fix=f"put {named} into the environment too, or {held} into .env and not into the environment",
        )
    merged = {**dotenv, **{key: value for key, value in environment.items() if value}}
    seen = [*kind.may_see]
    if name.partition(":")[0] in SERVICES:
        from dialogd.backends.apis import vendor_of

        known = vendor_of(base_url or address(kind, merged))
        seen += known[1:] if known else ()
    found = {key: merged[key] for key in seen if merged.get(key)}
    return found | {key: environment[key] for key in MACHINE if environment.get(key)}


def secrets(environment: Mapping[str, str], dotenv: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Every value whose variable's name marks it as a key, the longest first: they must not be written anywhere."""
    known = {key for kind in BACKENDS.values() for key in kind.keys}
    found = {
        value.strip()
        for key, value in (*environment.items(), *(dotenv or {}).items())
        if (key in known or _SECRET.search(key)) and len(value.strip()) >= SHORTEST_SECRET
    }
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def address(kind: Kind, variables: Mapping[str, str]) -> str:
    """Scheme, host and port of the address that a variable names for a backend, or ""."""
    return bare(next(filter(None, (variables.get(key, "") for key in kind.addresses)), ""))


def bare(url: str) -> str:
    """Scheme, host and port of a URL, without passwords and tokens."""
    if not url:
        return ""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port, host = f":{parts.port}" if parts.port else "", parts.hostname or ""
    except ValueError:
        return "an address that cannot be read"
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"


def unused(names: Iterable[str], variables: Mapping[str, str], pays: str) -> tuple[str, ...]:
    """The keys of these backends that are set and do not pay."""
    keys = dict.fromkeys(key for name in names for key in BACKENDS[name].keys)
    return tuple(key for key in keys if variables.get(key) and key not in pays)
