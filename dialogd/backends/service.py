"""What backends of model APIs share: whose key goes where, how much may be asked, the reply as it arrives."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import SplitResult, urlsplit

from dialogd.backends import Found, Request, Usage
from dialogd.backends.parts import CHARACTERS_PER_TOKEN, Prompt, tokens_of
from dialogd.errors import BadInput
from dialogd.prices import Price

MAX_TOKENS = 8192  # of one reply, thinking included
LEAST_TOKENS = 16  # some services refuse to be asked for fewer
CONNECT = 10.0  # seconds
SILENCE = 600.0  # seconds without a byte; how long a turn may take is the dialog's own limit
UPDATE = 2_000  # characters after which what has been used is told again

# A key goes to its own vendor: whatever is asked for, these hosts get the key in this variable and no other.
HOSTS: Mapping[str, tuple[str, str]] = {
    "api.anthropic.com": ("Anthropic", "ANTHROPIC_API_KEY"),
    "api.openai.com": ("OpenAI", "OPENAI_API_KEY"),
    "api.x.ai": ("xAI", "XAI_API_KEY"),
    "openrouter.ai": ("OpenRouter", "OPENROUTER_API_KEY"),
    "api.groq.com": ("Groq", "GROQ_API_KEY"),
    "api.mistral.ai": ("Mistral", "MISTRAL_API_KEY"),
    "api.deepseek.com": ("DeepSeek", "DEEPSEEK_API_KEY"),
    "generativelanguage.googleapis.com": ("Google", "GEMINI_API_KEY"),
}

# Tokens that a model can take in and write together, by how its name begins; the first that fits.
WINDOWS: tuple[tuple[str, int], ...] = (
    *(
        (f"claude-{old}", 200_000)
        for old in ("haiku-4", "opus-4-0", "opus-4-1", "opus-4-5", "sonnet-4-0", "sonnet-4-5")
    ),
    ("claude-", 1_000_000),
    ("gpt-5.5", 1_000_000),
    ("gpt-6", 1_000_000),
    ("gpt-5", 400_000),
    ("grok-4.", 500_000),
    ("grok-4", 256_000),
)
WINDOW = 100_000  # of a model that nobody here knows


@dataclass(frozen=True, slots=True)
class Service:
    """Who is asked, and with what.

    vendor    who answers, in words: `Anthropic`, `localhost:1234`
    url       the base URL
    key       "" where none is needed
    variable  where the key stands, or should
    more      further secrets of the person's
    """

    vendor: str
    url: str
    key: str = field(repr=False)
    variable: str
    model: str
    more: tuple[str, ...] = field(default=(), repr=False)

    @property
    def host(self) -> str:
        """The URL's host and port, without what may stand before them."""
        return host_of(self.url)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The key, a password in the URL, and what else the person holds."""
        return tuple(secret for secret in (self.key, urlsplit(self.url).password or "", *self.more) if secret)

    @property
    def transport(self) -> dict[str, Any]:
        """How its client is built: nobody is sent elsewhere with dialog and key; plain HTTP needs no certificates."""
        plain = {"verify": False} if self.url.lower().startswith("http:") else {}
        return {"follow_redirects": False, **plain}

    @property
    def is_official(self) -> bool:
        """True for a vendor's own address, False for a gateway, a local server, anything else."""
        return vendor_of(self.url) is not None


def service_of(url: str, keys: tuple[str, ...], variables: Mapping[str, str], model: str, beside: str = "") -> Service:
    """The service at `url` with the key that may go there.

    That is the vendor's own at an address in `HOSTS`, else the first that is set of those in `keys`. `beside` is an
    address that the person set together with `keys`: they may go there, whoever is at it.
    Raises `BadInput` for a URL or key that cannot be one, and where a vendor's key is missing.
    """
    parts = _split(url)
    if not parts.hostname or parts.scheme not in ("http", "https"):
        raise BadInput(f"{url!r} is not the address of a service", fix="write it like http://localhost:8000/v1")
    vendor, own = vendor_of(url) or (host_of(url), "")
    if own and own not in keys:
        keys = (own, *keys) if same_host(url, beside) else (own,)
    variable = next((name for name in keys if variables.get(name, "").strip()), keys[0] if keys else "")
    key = variables.get(variable, "").strip()
    if own and not key:
        raise BadInput(f"no key for {vendor}", fix=f"put {variable} into the environment or into .env")
    if not key.isascii() or any(not character.isprintable() or character == " " for character in key):
        raise BadInput(f"{variable} holds characters that no key has", fix="copy the key anew, in one line")
    return Service(vendor, url.strip().rstrip("/"), key, variable, model)


def vendor_of(url: str) -> tuple[str, str] | None:
    """Name and key variable of the vendor whose own address this is, or None."""
    host = (_split(url).hostname or "").lower()
    return next((HOSTS[known] for known in HOSTS if host == known or host.endswith(f".{known}")), None)


def host_of(url: str) -> str:
    """`localhost:1234`: where a URL leads, without user and password."""
    return _split(url).netloc.rpartition("@")[2]


def same_host(one: str, other: str) -> bool:
    """True when both URLs lead to the same host and port."""
    return bool(one) and bool(other) and host_of(one).lower() == host_of(other).lower()


def is_loopback(url: str) -> bool:
    """True when a URL leads to this machine."""
    host = _split(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
    except ValueError:
        return urlsplit("")
    return parts


def ambient_headers(variable: str) -> list[str]:
    """Names of the headers that an SDK takes from this process's environment by itself: to be taken out again."""
    return list(_headers(os.environ.get(variable, "")))


def own_headers(variables: Mapping[str, str], variable: str) -> dict[str, str]:
    """Headers that the person wants sent along, `Name: value` one to a line; never one that carries the key."""
    found = _headers(variables.get(variable, ""))
    return {name: value for name, value in found.items() if name.lower() != "authorization"}


def _headers(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.split("\n") if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def key_found(variables: Mapping[str, str], names: tuple[str, ...], package: str) -> Found:
    """What a look for a key in one of these variables, and for the SDK `package`, says."""
    from importlib import metadata

    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return Found(False, f"the package {package} is not installed", fix=f"pip install {package}")
    name = next((name for name in names if variables.get(name, "").strip()), "")
    if not name:
        return Found(False, "no key", version=version, fix=f"put {names[0]} into the environment or into .env")
    return Found(True, f"a key in {name}", pays=f"the key in {name}", version=version)


def window_of(model: str) -> int:
    """Tokens that a model can take in and write together; a cautious number for one that nobody here knows."""
    name = model.rpartition("/")[2]
    return next((window for start, window in WINDOWS if name.startswith(start)), WINDOW)


def most_out(request: Request, prompt: Prompt, most: int, price: Price | None) -> int:
    """How many tokens the reply may have, so that the turn stays within the request's budget; never below 16."""
    tokens_in = max(tokens_of(prompt.text), request.reads)
    if request.tokens is not None:
        most = min(most, request.tokens - tokens_in)
    if request.allowance is not None and price is not None:
        read = price.usd(tokens_in, 0)
        million = price.usd(tokens_in, 1_000_000) - read
        most = min(most, int((request.allowance - read) * 1_000_000 / million)) if million > 0 else most
    return max(most, LEAST_TOKENS)


@dataclass(slots=True)
class Reply:
    """A reply as it arrives.

    usage   what the service reported of its use, estimated until then
    most    tokens that it may have
    stop    the service's word for why it ended, "" as long as it has not
    detail  a refusal in the service's words
    """

    usage: Usage
    most: int
    stop: str = ""
    detail: str = ""
    parts: list[str] = field(default_factory=list)
    written: int = 0
    told: int = 0

    @classmethod
    def to(cls, prompt: Prompt, model: str, most: int) -> Reply:
        """The reply to a prompt, before anything of it is there."""
        return cls(Usage(model, tokens_of(prompt.text), 0, estimated=True), most)

    @property
    def text(self) -> str:
        """What has arrived."""
        return "".join(self.parts)

    def add(self, text: str) -> str:
        """Take a piece of the reply and give it back."""
        self.parts.append(text)
        self.written += len(text)
        return text

    def think(self, text: str) -> None:
        """Count a piece of the model's thinking: it is paid for, and no part of the reply."""
        self.written += len(text)

    @property
    def used(self) -> Usage:
        """What has been used so far: as reported, else the prompt and all that was written."""
        if not self.usage.estimated or not self.written:
            return self.usage
        return replace(self.usage, tokens_out=self.written // CHARACTERS_PER_TOKEN + 1)

    def news(self) -> Usage | None:
        """What has been used so far, when that is worth telling again."""
        if self.written - self.told < UPDATE:
            return None
        self.told = self.written
        return self.used


class Thoughts:
    """Keeps the thinking out that some local models write before their reply, as `<think>…</think>`."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._held: str | None = ""
        self._trims = False

    def without(self, text: str) -> str:
        """The part of the next piece that belongs to the reply; "" while nobody can know."""
        if self._held is not None:
            self._held += text
            text = self._opened(self._held)
        if self._trims:
            text = text.lstrip()
            self._trims = not text
        return self._reply.add(text)

    def rest(self) -> str:
        """What was held back to the end and is no thinking."""
        held, self._held = self._held or "", None
        if held.lstrip().startswith("<think>"):
            self._reply.think(held)
            return ""
        return self._reply.add(held)

    def _opened(self, held: str) -> str:
        """What follows the thinking, or all where there is none; "" until that is clear."""
        if "<think>".startswith(held.lstrip()[:7]):
            thought, end, held = held.partition("</think>")
            if not end:
                return ""
            self._reply.think(thought)
            self._trims = True
        self._held = None
        return held
