"""Where Ollama listens, and which models it has; for the `ollama` preset of the `openai` backend."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from urllib.parse import urlsplit

from dialogd.backends import Found
from dialogd.backends.service import is_loopback

PORT = 11434
PATIENCE = 0.3  # seconds; it is on this machine
ROOM = 8_000  # tokens of a prompt: Ollama leaves out the beginning of a longer one, and says nothing


def address(variables: Mapping[str, str]) -> str:
    """The base URL that OLLAMA_HOST names (`host`, `host:port`, a URL), or the usual one."""
    named = variables.get("OLLAMA_HOST", "").strip() or "127.0.0.1"
    url = named if "://" in named else f"http://{named}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "127.0.0.1", parts.port
    except ValueError:
        return url  # refused, with its name, by whoever uses it
    host = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # where it listens is not where to ask
    host = f"[{host}]" if ":" in host else host
    default = {"http": 80, "https": 443}[parts.scheme] if "://" in named and parts.scheme in ("http", "https") else PORT
    return f"{parts.scheme}://{host}:{port or default}{parts.path.rstrip('/')}/v1"


def room(variables: Mapping[str, str], most_out: int) -> int:
    """Tokens that a prompt may have: OLLAMA_CONTEXT_LENGTH without the reply, where that is set."""
    length = variables.get("OLLAMA_CONTEXT_LENGTH", "").strip()
    window = int(length) if length.isdecimal() and len(length) < 9 else 0
    return max(window - most_out, window // 2) if window else ROOM


def models(url: str) -> list[str] | None:
    """The models that can talk and run here, the newest first; None where nobody answers. Asks this machine only."""
    if not is_loopback(url):
        return None
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE)
    try:
        connection.request("GET", "/api/tags")
        found = json.loads(connection.getresponse().read(1_000_000))["models"]
        names = [str(model["name"]) for model in found]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None
    finally:
        connection.close()
    return [name for name in names if "embed" not in name and not name.endswith("cloud")]


def probe(variables: Mapping[str, str]) -> Found:
    """Look whether Ollama answers, and has a model."""
    url = address(variables)
    host = urlsplit(url).netloc
    if not is_loopback(url):
        return Found(True, f"OLLAMA_HOST names {host}, which is not this machine: it was not asked")
    found = models(url)
    if found is None:
        return Found(False, f"nobody answers on {host}", fix="start it: ollama serve")
    if not found:
        return Found(False, f"Ollama on {host} has no model", fix="get one, such as: ollama pull qwen3")
    return Found(True, f"Ollama on {host} with {', '.join(found[:3])}")
