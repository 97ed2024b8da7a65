"""Model APIs by their official SDKs: Anthropic's Messages; OpenAI's Responses and Chat Completions, with presets.

`anthropic` is Claude; `openai` any server that speaks OpenAI's language, with presets for OpenAI, xAI and Ollama.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from dialogd.backends import Found, Options, Request, Usage
from dialogd.backends import service as services
from dialogd.backends.parts import Prompt
from dialogd.backends.prices import FREE, Price, price_of
from dialogd.backends.service import API, Exchange, Service, StreamedReply, StreamError, Thoughts, Use, is_loopback
from dialogd.errors import BadInput
from dialogd.protocol.model import digest

if TYPE_CHECKING:
    from anthropic.types import RawMessageStreamEvent
    from openai.types.chat import ChatCompletionChunk
    from openai.types.responses import ResponseStreamEvent

    from dialogd.backends.tools import OfferedTool, ToolResult

# -- Anthropic ---------------------------------------------------------------------------------------------------------

ANTHROPIC_URL = "https://api.anthropic.com"
ANTHROPIC_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")


class Anthropic(API):
    """Asks `options.model`, with at most `options.max_tokens` per reply, at `options.effort`.

    The address is `options.base_url`, else ANTHROPIC_BASE_URL, else Anthropic's own. The key is ANTHROPIC_API_KEY,
    else ANTHROPIC_AUTH_TOKEN, from `options.variables` only.
    Raises `BadInput` for an invalid address, and for a missing key.
    """

    name = "anthropic"
    costs = True
    sdk = ("anthropic", "AsyncAnthropic", "AnthropicError")
    unasked: ClassVar[Mapping[str, str]] = {"webhook_key": ""}
    headers = "ANTHROPIC_CUSTOM_HEADERS"
    stops: ClassVar[Mapping[str, str]] = {
        "end_turn": "done", "stop_sequence": "done", "max_tokens": "length", "pause_turn": "pause", "tool_use": "tool",
        "model_context_window_exceeded": "window",
    }  # fmt: skip

    def __init__(self, options: Options) -> None:
        elsewhere = options.variables.get("ANTHROPIC_BASE_URL", "").strip()
        url = options.base_url or elsewhere or ANTHROPIC_URL
        service = services.service_of(url, ANTHROPIC_KEYS, options.variables, options.model, beside=elsewhere)
        super().__init__(options, service, price_of(options.model, "Anthropic", options.price))

    @staticmethod
    def probe(variables: Mapping[str, str], _variant: str = "") -> Found:
        return services.key_found(variables, ANTHROPIC_KEYS, "anthropic")

    def question(self, request: Request, prompt: Prompt, most: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": most,
            "system": [_cached(prompt.system)],
            "messages": [{"role": "user", "content": _blocks(prompt)}],
        }
        return body | ({"output_config": {"effort": self._options.effort}} if self._options.effort else {})

    def with_tools(
        self, body: dict[str, Any], offered: Sequence[OfferedTool], so_far: Sequence[Exchange], *, may_call: bool
    ) -> dict[str, Any]:
        """That body with tools. What came of calls ends in a breakpoint of the cache, for the next request."""
        messages = list(body["messages"])
        for said, results in so_far:
            told = [
                {"type": "tool_result", "tool_use_id": use.id, "content": one.text or "(nothing)"}
                | ({"is_error": True} if one.is_error else {})
                for use, one in results
            ]
            blocks = [block for block in said if block and block.get("text") != ""]
            messages += [{"role": "assistant", "content": blocks}, {"role": "user", "content": told}]
        if so_far:
            messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        tools = [{"name": one.name, "description": one.description, "input_schema": one.schema} for one in offered]
        return body | {"messages": messages, "tools": tools} | ({} if may_call else {"tool_choice": {"type": "none"}})

    def create(self, client: Any) -> Any:
        return client.messages.create

    def reading(self, reply: StreamedReply) -> Callable[[Any], str]:
        return lambda event: _read_message(event, reply) if event is not None else ""

    def own_headers(self, omit: object) -> dict[str, Any]:
        """The person's headers, and the key in the header where older gateways look for it."""
        service = self.service
        is_old = service.key and services.vendor_of(service.url) is None and service.variable != ANTHROPIC_KEYS[1]
        return super().own_headers(omit) | ({"X-Api-Key": service.key} if is_old else {})


def _blocks(prompt: Prompt) -> list[dict[str, Any]]:
    """One block per part, with the cache breakpoint on the last one that never changes.

    The next turn's request has these blocks again, then some new ones, then another `now`. The cache is looked up from
    its breakpoint backwards, block by block and up to twenty of them, for what was written at an earlier breakpoint:
    so blocks are never merged, else their borders would move, and the few that are new never hide the old ones.
    """
    texts = [f"{part.text}\n\n" for part in prompt.parts]
    blocks = [{"type": "text", "text": text} for text in texts[:-1]]
    blocks += [_cached(text) for text in texts[-1:]]
    return [*blocks, {"type": "text", "text": prompt.now}]


def _cached(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}


# What of a block is sent back with what came of the calls in it; thoughts belong to them, and are signed.
_KEPT: Mapping[str, tuple[str, ...]] = {
    "text": ("type", "text"),
    "thinking": ("type", "thinking", "signature"),
    "redacted_thinking": ("type", "data"),
    "tool_use": ("type", "id", "name", "input"),
}


def _read_message(event: RawMessageStreamEvent, reply: StreamedReply) -> str:
    """Take an event into the reply; gives the text that it brought. Thinking is counted and left out."""
    block = reply.said[-1] if reply.said else {}
    if event.type == "content_block_delta":
        for name in ("text", "thinking", "signature", "partial_json") if block else ():
            if isinstance(piece := getattr(event.delta, name, None), str):
                block[name] = block.get(name, "") + piece
        if event.delta.type == "text_delta":
            return reply.add(event.delta.text)
        reply.written += len(getattr(event.delta, "thinking", ""))
    elif event.type == "content_block_start" and reply.may_use:
        begun = event.content_block.to_dict()
        reply.said.append({name: begun[name] for name in _KEPT.get(str(begun["type"]), ()) if name in begun})
    elif event.type == "content_block_stop" and block.get("type") == "tool_use":
        written = block.pop("partial_json", "") or json.dumps(block["input"])
        reply.uses.append(Use(str(block["id"]), str(block["name"]), written))
        block["input"] = _object(written)
    elif event.type in ("message_start", "message_delta"):
        told: Any = event.message.usage if event.type == "message_start" else event.usage
        if told.input_tokens is not None:  # the service counts cache reads and writes separately
            cached, written = told.cache_read_input_tokens or 0, told.cache_creation_input_tokens or 0
            tokens = told.input_tokens + cached + written
            reply.usage = replace(reply.usage, tokens_in=tokens, cached=cached, cache_write=written)
        if event.type == "message_delta":
            details, reply.stop = event.delta.stop_details, event.delta.stop_reason or ""
            reply.detail = (details.explanation or details.category or "") if details else ""
            reply.usage = replace(reply.usage, tokens_out=told.output_tokens, estimated=False)
    return ""


def _object(written: str) -> dict[str, Any]:
    """Arguments as they are sent back: the service takes only an object, the model may have written anything."""
    try:
        found = json.loads(written)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


# -- Ollama: where it listens, and which models it has ----------------------------------------------------------------

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


def models(url: str) -> list[str] | None:
    """The models that chat and run here, newest first; None without an answer. Asks this machine only."""
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


def probe_ollama(variables: Mapping[str, str]) -> Found:
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


# -- The `openai` backend ---------------------------------------------------------------------------------------------

VENDORS = ("OpenAI", "xAI")
THOUGHTS = ("reasoning_content", "reasoning")  # what servers of Chat Completions call them; no part of OpenAI's own


class Preset(NamedTuple):
    """A variant: its vendor and their own address, the variable that names another, and the one that holds the key."""

    vendor: str = ""
    url: str = "https://api.openai.com/v1"
    elsewhere: str = "OPENAI_BASE_URL"
    key: str = "OPENAI_API_KEY"


PRESETS: Mapping[str, Preset] = {
    "": Preset(),
    "gpt": Preset("OpenAI"),
    "grok": Preset("xAI", "https://api.x.ai/v1", "XAI_BASE_URL", "XAI_API_KEY"),
    "ollama": Preset("", "", "OLLAMA_HOST", "OLLAMA_API_KEY"),
}


class OpenAI(API):
    """Asks `options.model`, with at most `options.max_tokens` per reply, at `options.effort`.

    Variants: `gpt` and `grok` are OpenAI and xAI, at their own address or at one that you name for them (then it gets
    their key: a gateway of yours); `ollama` is this machine's; without one it is any server (LM Studio, vLLM,
    OpenRouter). The address is `options.base_url`, else OPENAI_BASE_URL (XAI_BASE_URL, OLLAMA_HOST).
    Keys come from `options.variables`, and go to their vendor alone: see `service.HOSTS`. Another address gets
    OPENAI_API_KEY only where OPENAI_BASE_URL names that address, too; else no key at all.
    `options.api` is `responses` or `chat`; by default the vendors' own addresses are asked for responses.
    Raises `BadInput` for an invalid address, a missing key, and without a model to choose.
    """

    sdk = ("openai", "AsyncOpenAI", "OpenAIError")
    unasked: ClassVar[Mapping[str, str]] = {"admin_api_key": "", "webhook_secret": ""}
    headers = "OPENAI_CUSTOM_HEADERS"
    stops: ClassVar[Mapping[str, str]] = {
        "stop": "done", "max_output_tokens": "length", "content_filter": "refusal", "tool_calls": "tool",
        "function_call": "tool",
    }  # fmt: skip

    def __init__(self, options: Options) -> None:
        if options.variant not in PRESETS:
            raise BadInput(f"the openai backend has no {options.variant!r}", fix="choose gpt, grok or ollama")
        self.name = options.variant or "openai"
        self.costs = options.variant != "ollama"
        service = _service(options)
        price: Price | None = FREE
        if self.costs or options.price:
            price = price_of(service.model, PRESETS[options.variant].vendor or service.vendor, options.price)
        super().__init__(options, service, price)
        if not self.costs:
            length = options.variables.get("OLLAMA_CONTEXT_LENGTH", "").strip()
            window = int(length) if length.isdecimal() and len(length) < 9 else 0
            self.room = max(window - self.most_out, window // 2) or ROOM
        self.api = options.api or ("responses" if service.is_at(*VENDORS) else "chat")

    @staticmethod
    def probe(variables: Mapping[str, str], variant: str) -> Found:
        """Look for the variant's key, or for an Ollama on its port."""
        if variant == "ollama":
            return probe_ollama(variables)
        preset = PRESETS[variant]
        found = services.key_found(variables, (preset.key,), "openai")
        url = variables.get(preset.elsewhere, "").strip()
        if found.version and not found.here and url and services.vendor_of(url) is None:
            return Found(True, f"{preset.elsewhere} names {services.host_of(url)}, no key", version=found.version)
        return found

    def question(self, request: Request, prompt: Prompt, most: int) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model}
        effort = self._options.effort
        if self.service.is_at("OpenAI"):
            # OpenAI finds a prompt's beginning again by itself; this leads an agent's calls to where it was seen.
            body["prompt_cache_key"] = digest(f"{request.dialog.id}\n{request.agent.id}")[:32]
        if self.api == "chat":
            body["messages"] = [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.body}]
            body["stream_options"] = {"include_usage": True}
            body["max_completion_tokens" if self.service.is_at(*VENDORS) else "max_tokens"] = most
            return body | ({"reasoning_effort": effort} if effort else {})
        body |= {"instructions": prompt.system, "input": prompt.body, "max_output_tokens": most}
        body["store"] = False  # else the vendor keeps the dialog for a month
        return body | ({"reasoning": {"effort": effort}} if effort else {})

    def with_tools(
        self, body: dict[str, Any], offered: Sequence[OfferedTool], so_far: Sequence[Exchange], *, may_call: bool
    ) -> dict[str, Any]:
        """That body with tools, and the calls so far. Thoughts go back as the service has sealed them."""
        choice: dict[str, Any] = {} if may_call else {"tool_choice": "none"}
        tools = [{"name": one.name, "description": one.description, "parameters": one.schema} for one in offered]
        if self.api == "chat":
            functions = [{"type": "function", "function": tool} for tool in tools]
            messages = list(body["messages"])
            for said, results in so_far:
                messages += said
                messages += [{"role": "tool", "tool_call_id": use.id, "content": _told(told)} for use, told in results]
            return body | {"messages": messages, "tools": functions} | choice
        flat = [{"type": "function", "strict": False} | tool for tool in tools]
        choice["include"] = ["reasoning.encrypted_content"]  # nothing is stored: thoughts come back with their calls
        if so_far:
            items: list[dict[str, Any]] = [{"role": "user", "content": body["input"]}]
            for said, results in so_far:
                items += said
                items += [
                    {"type": "function_call_output", "call_id": use.id, "output": _told(told)} for use, told in results
                ]
            choice["input"] = items
        return body | {"tools": flat} | choice

    def create(self, client: Any) -> Any:
        return client.chat.completions.create if self.api == "chat" else client.responses.create

    def reading(self, reply: StreamedReply) -> Callable[[Any], str]:
        """The function that adds an event to the reply; local models' thoughts are left out."""
        if self.api != "chat":
            return lambda event: _read_event(event, reply) if event is not None else ""
        thoughts, asked, thought = Thoughts(reply), dict[int, Use](), dict[str, str]()

        def read(chunk: Any) -> str:
            if chunk is not None:
                return thoughts.without(_read_chunk(chunk, reply, asked, thought))
            rest = thoughts.rest()
            if asked:
                reply.uses = [use._replace(id=use.id or f"call_{at}") for at, use in sorted(asked.items())]
                calls = [
                    {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments or "{}"}}
                    for id_, name, arguments in reply.uses
                ]
                reply.said = [{**thought, "role": "assistant", "content": reply.text or None, "tool_calls": calls}]
            return rest

        return read

    def own_headers(self, omit: object) -> dict[str, Any]:
        """The person's headers, including organisation and project, where their OpenAI key goes; else none."""
        own: dict[str, Any] = {"OpenAI-Organization": omit, "OpenAI-Project": omit}
        if self.service.variable == "OPENAI_API_KEY":
            own |= super().own_headers(omit)
            for header, name in (("OpenAI-Organization", "OPENAI_ORG_ID"), ("OpenAI-Project", "OPENAI_PROJECT_ID")):
                if value := self._options.variables.get(name, "").strip():
                    own[header] = value
        return own


def _service(options: Options) -> Service:
    """The service's address and key."""
    variables, preset = options.variables, PRESETS[options.variant]
    if options.variant == "ollama":
        url = options.base_url or address(variables)
        service = services.service_of(url, (), variables, options.model)
        found = [options.model] if options.model else models(url)
        if not found:
            raise BadInput(
                "no model was found in Ollama", fix="start it, get a model (`ollama pull qwen3`), or name one"
            )
        return replace(service, vendor="Ollama", model=found[0])
    elsewhere = variables.get(preset.elsewhere, "").strip()
    url = options.base_url or elsewhere or preset.url
    is_theirs = bool(options.variant) or services.same_host(url, elsewhere)
    return services.service_of(url, (preset.key,) if is_theirs else (), variables, options.model, beside=elsewhere)


def _told(told: ToolResult) -> str:
    """A result as a text: neither API has a place that says it is an error."""
    return f"error: {told.text}" if told.is_error else told.text or "(nothing)"


def _read_chunk(
    chunk: ChatCompletionChunk, reply: StreamedReply, asked: dict[int, Use], thought: dict[str, str]
) -> str:
    """Add a chunk to the reply, to the calls that are asked for, and to what was thought; returns its text."""
    if chunk.usage is not None:
        read, written = chunk.usage.prompt_tokens_details, chunk.usage.completion_tokens
        _count(reply, chunk.usage.prompt_tokens, written, read)
    if not chunk.choices:
        return ""
    choice = chunk.choices[0]
    reply.stop = choice.finish_reason or reply.stop
    reply.detail += choice.delta.refusal or ""
    for piece in (choice.delta.tool_calls or ()) if reply.may_use else ():
        use, more = asked.get(piece.index, Use("", "", "")), piece.function
        name, arguments = (more.name or "", more.arguments or "") if more is not None else ("", "")
        asked[piece.index] = Use(use.id or piece.id or "", use.name + name, use.arguments + arguments)
    for name in THOUGHTS:
        words = getattr(choice.delta, name, None)
        if isinstance(words, str) and words:
            thought[name] = thought.get(name, "") + words
            reply.written += len(words)
    return choice.delta.content or ""


def _read_event(event: ResponseStreamEvent, reply: StreamedReply) -> str:
    """Take an event into the reply; gives the text that it brought."""
    if event.type == "response.output_text.delta":
        return reply.add(event.delta)
    if event.type == "response.output_item.done" and reply.may_use:
        _take(event.item.to_dict(), reply)
    elif event.type == "response.refusal.delta":
        reply.detail += event.delta
    elif event.type in ("response.reasoning_text.delta", "response.reasoning_summary_text.delta"):
        reply.written += len(event.delta)
    elif event.type in ("response.completed", "response.incomplete", "response.failed"):
        if told := event.response.usage:
            _count(reply, told.input_tokens, told.output_tokens, told.input_tokens_details)
        if event.type == "response.failed":
            raise StreamError(event.response.error.to_dict() if event.response.error else {})
        why = event.response.incomplete_details
        reply.stop = "done" if event.type == "response.completed" else (why and why.reason) or "incomplete"
    elif event.type == "error":
        raise StreamError({"code": event.code, "message": event.message})
    return ""


def _take(item: dict[str, Any], reply: StreamedReply) -> None:
    """Keep a finished item as it is sent back with what came of the calls; nothing is stored at the service."""
    kind = item.get("type")
    if kind == "function_call":
        use = Use(str(item.get("call_id")), str(item.get("name")), str(item.get("arguments") or "{}"))
        reply.uses.append(use)
        reply.said.append({"type": kind, "call_id": use.id, "name": use.name, "arguments": use.arguments})
    elif kind == "reasoning" and item.get("encrypted_content"):
        reply.said.append({name: item[name] for name in ("type", "id", "summary", "encrypted_content") if name in item})
    elif kind == "message":
        text = "".join(str(part.get("text", "")) for part in item.get("content", ()))
        if text:
            phase = {"phase": item["phase"]} if item.get("phase") else {}
            reply.said.append({"role": "assistant", "content": text, **phase})


def _count(reply: StreamedReply, tokens_in: int, tokens_out: int, read: Any) -> None:
    cached, written = getattr(read, "cached_tokens", None), getattr(read, "cache_write_tokens", None)
    reply.usage = Usage(reply.usage.model, tokens_in, tokens_out, cached, written)
