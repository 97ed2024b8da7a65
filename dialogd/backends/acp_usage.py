"""What a turn of an ACP agent used, from the several ways in which agents say it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dialogd.backends import Usage
from dialogd.backends.parts import tokens_of

if TYPE_CHECKING:
    from acp.schema import PromptResponse
    from acp.schema import Usage as Reported


def account(guess: Usage, response: PromptResponse, text: str, usd: float | None) -> Usage:
    """The turn's usage: reported, else `guess` with the reply's size; `usd` where the agent says dollars."""
    if response.usage is not None:
        return replace(_reported(guess.model, response.usage), usd=usd)
    counted = _quota(response.field_meta or {})
    if counted is not None:
        return Usage(guess.model, *counted, usd=usd)
    return replace(guess, tokens_out=tokens_of(text), usd=usd)


def _reported(model: str, usage: Reported) -> Usage:
    """Some agents count cached tokens and thoughts in, others beside; the total tells which."""
    read, written = usage.cached_read_tokens or 0, usage.cached_write_tokens or 0
    tokens_in, tokens_out, thoughts = usage.input_tokens, usage.output_tokens, usage.thought_tokens or 0
    if tokens_in + tokens_out + read + written <= usage.total_tokens:
        tokens_in += read + written
    if tokens_in + tokens_out + thoughts <= usage.total_tokens:
        tokens_out += thoughts
    return Usage(model, tokens_in, tokens_out, usage.cached_read_tokens, usage.cached_write_tokens)


def _quota(meta: dict[str, Any]) -> tuple[int, int] | None:
    """What Gemini says, in a place of its own."""
    quota = meta.get("quota")
    count = quota.get("token_count") if isinstance(quota, dict) else None
    if not isinstance(count, dict):
        return None
    tokens = count.get("input_tokens"), count.get("output_tokens")
    return (tokens[0], tokens[1]) if isinstance(tokens[0], int) and isinstance(tokens[1], int) else None
