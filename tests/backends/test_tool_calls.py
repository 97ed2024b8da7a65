"""A turn in several requests: what a model thought before it called a tool goes back to it as it was sealed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dialogd.backends import Request
from dialogd.backends.tools import ApprovalQueue, Toolbox
from tests.backends.apis import FORMS, make, outcome, request
from tests.support.standin import Fail, Say, StandIn, Use, in_order

THOUGHT = "The others may be away. I look first: \u201ewho is here?\u201c " * 4


def with_tools(journal: list[str] | None = None, **changes: Any) -> Request:
    """A turn whose model may call the tools of its own dialog; the kinds of what is noted come into the journal."""
    turn = request(**changes)

    async def record(kind: str, **fields: Any) -> None:
        if journal is not None:
            journal.append(kind)

    def tell(kind: str, **fields: Any) -> None:
        """Nobody watches."""

    return Request(
        turn.dialog,
        turn.agent,
        turn.turn,
        turn.file,
        turn.prompt,
        allowance=turn.allowance,
        tokens=turn.tokens,
        tools=Toolbox((), turn.dialog, turn.agent, 5, ApprovalQueue("A", tell), record, tell),
    )


@pytest.mark.parametrize("form", FORMS)
async def test_thoughts_before_a_call_go_back_unchanged(form: str) -> None:
    uses = (
        Use("sessions_list", {}, say="Let me look.", thinking=THOUGHT),
        Use("sessions_list", {}, thinking="Once more."),
    )
    with StandIn(in_order(*uses, Say("Postgres.", thinking="Now I know."))) as server:
        backend = make(form, server)
        got = await outcome(backend, with_tools())
        await backend.close()
        assert (got.error, got.text) == (None, "Let me look.\n\nPostgres.")
        assert len(server.calls) == 3
        last = json.dumps(server.calls[-1].body, ensure_ascii=False)
        assert THOUGHT in last
        assert "Once more." in last


@pytest.mark.parametrize("form", [form for form in FORMS if form != "chat"])
async def test_thoughts_that_nobody_is_shown_go_back_too(form: str) -> None:
    with StandIn(in_order(Use("sessions_list", {}, thinking=THOUGHT, is_sealed=True), Say("Postgres."))) as server:
        backend = make(form, server)
        got = await outcome(backend, with_tools())
        await backend.close()
        assert (got.error, got.text) == (None, "Postgres.")
        assert THOUGHT not in json.dumps(server.calls[-1].body, ensure_ascii=False)


@pytest.mark.parametrize("form", FORMS)
async def test_what_was_said_before_a_request_that_fails_is_kept_whole(form: str) -> None:
    with StandIn(in_order(Use("sessions_list", {}, say="Let me look."), Fail(400))) as server:
        backend = make(form, server)
        got = await outcome(backend, with_tools())
        await backend.close()
        assert (got.failed.partial, got.failed.is_whole) == ("Let me look.", True)


async def test_a_request_that_its_call_has_made_too_dear_is_not_sent() -> None:
    message = Use("sessions_send", {"to": "B", "text": "one word and " * 1000}, say="Let me ask.", tokens_in=500)
    for tokens, requests in ((3000, 1), (30_000, 2)):
        journal: list[str] = []
        with StandIn(in_order(message, Say("Postgres."))) as server:
            backend = make("messages", server)
            got = await outcome(backend, with_tools(journal, tokens=tokens))
            await backend.close()
            assert (journal, len(server.calls)) == (["result"], requests)
            if requests == 1:
                assert (got.failed.kind, got.failed.partial, got.failed.is_whole) == ("limit", "Let me ask.", True)
