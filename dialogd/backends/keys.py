"""Which of the person's variables a backend may see, and which of them are secrets. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import urlsplit

from dialogd.errors import BadInput

SHORTEST_SECRET = 16  # characters; shorter values stand in texts by accident


@dataclass(frozen=True, slots=True)
class Own:
    """The variables of one backend: keys that are billed, addresses that the text goes to, and the rest."""

    keys: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return self.keys + self.addresses + self.rest


_OPENAI = Own(
    ("OPENAI_API_KEY",), ("OPENAI_BASE_URL",), ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_CUSTOM_HEADERS")
)

# A backend without a line here sees no key at all: rehearsal, command, acp.
OWN: Mapping[str, Own] = MappingProxyType(
    {
        "anthropic": Own(
            ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"), ("ANTHROPIC_BASE_URL",), ("ANTHROPIC_CUSTOM_HEADERS",)
        ),
        "openai": _OPENAI,
        "gpt": _OPENAI,
        "grok": Own(("XAI_API_KEY",), ("XAI_BASE_URL",)),
        "ollama": Own(("OLLAMA_API_KEY",), ("OLLAMA_HOST",), ("OLLAMA_CONTEXT_LENGTH",)),
        "claude-code": Own(
            ("ANTHROPIC_API_KEY",), ("ANTHROPIC_BASE_URL",), ("CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CONFIG_DIR")
        ),
        "codex": Own(("OPENAI_API_KEY",), ("OPENAI_BASE_URL",), ("CODEX_HOME",)),
        "gemini": Own(
            ("GEMINI_API_KEY", "GOOGLE_API_KEY"), ("GOOGLE_GEMINI_BASE_URL",),
            ("GEMINI_CLI_HOME", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION"),
        ),
        "opencode": Own(
            ("OPENCODE_API_KEY",), ("OPENCODE_BASE_URL",),
            ("OPENCODE_CONFIG", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"),
        ),
    }
)  # fmt: skip

# How to reach programs and the network from here; nobody's secret, and not taken from a project's `.env`.
MACHINE = (
    "PATH", "HOME", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "all_proxy",
    "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
)  # fmt: skip

_SECRET = re.compile(r"(?:^|_)(?:API_?KEY|ACCESS_KEY|TOKEN|PASSWORD|SECRET\w*)$", re.I)


def own(name: str) -> Own:
    """The variables of the backend `name`, with or without a variant."""
    return OWN.get(name.partition(":")[0], Own())


def variables_for(name: str, environment: Mapping[str, str], dotenv: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that the backend `name` may see: its own, the environment's before `.env`'s, and `MACHINE`.

    What follows a colon in the name, or `model`, names opencode's provider.

    Raises `BadInput` where `.env` names the address for a key that stands in the environment: a folder that somebody
    else made must not decide where the person's key goes.
    """
    mine = own(name)
    named = next((key for key in mine.addresses if (dotenv or {}).get(key) and not environment.get(key)), "")
    held = next((key for key in mine.keys if environment.get(key)), "")
    if named and held:
        raise BadInput(
            f"{named} stands in .env and {held} in the environment: the key is not sent to an address of the folder's",
            fix=f"put {named} into the environment too, or {held} into .env and not into the environment",
        )
    merged = {**(dotenv or {}), **{key: value for key, value in environment.items() if value}}
    found = {key: merged[key] for key in mine.names if merged.get(key)}
    return found | {key: environment[key] for key in MACHINE if environment.get(key)}


def secrets(environment: Mapping[str, str], dotenv: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Every value whose variable's name marks it as a key, the longest first: they must not be written anywhere."""
    known = {key for line in OWN.values() for key in line.keys}
    found = {
        value.strip()
        for source in (environment, dotenv or {})
        for key, value in source.items()
        if (key in known or _SECRET.search(key)) and len(value.strip()) >= SHORTEST_SECRET
    }
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def address(name: str, variables: Mapping[str, str]) -> str:
    """Scheme, host and port of the backend's address variable, or ""."""
    return bare(next(filter(None, (variables.get(key, "") for key in own(name).addresses)), ""))


def bare(url: str) -> str:
    """Scheme, host and port of a URL, without passwords and tokens."""
    if not url:
        return ""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = f":{parts.port}" if parts.port else ""
        host = parts.hostname or ""
    except ValueError:
        return "an address that cannot be read"
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"


def unused(names: Iterable[str], variables: Mapping[str, str], pays: str) -> tuple[str, ...]:
    """The keys of these backends that are set and do not pay."""
    keys = dict.fromkeys(key for name in names for key in own(name).keys)
    return tuple(key for key in keys if variables.get(key) and key not in pays)
