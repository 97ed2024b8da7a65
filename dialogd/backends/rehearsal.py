"""The `rehearsal` backend: scripted agents for trying everything out; no model is asked, and each reply says so."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from types import MappingProxyType

from dialogd.backends import Found, Options, Request, Usage
from dialogd.backends import rehearsal_lines as lines
from dialogd.backends import rehearsal_quarrel as quarrel
from dialogd.backends import rehearsal_rules as rules
from dialogd.backends.rehearsal_scene import Scene
from dialogd.errors import BackendError, BadInput
from dialogd.prices import FREE, Price

SLOW_SECONDS = 6.0
LONGEST = 3600.0


class Rehearsal:
    """Plays a scenario, `options.variant`: consensus (default), deadlock, endless, ask, error, slow.

    Deterministic: what is said follows from the dialog alone, so daemons may come and go. `slow` streams the
    consensus word by word over six seconds; `slow=0.5` over half a second.
    Raises `BadInput` for another variant.
    """

    name = "rehearsal"
    model = "rehearsal"
    costs = False
    price: Price | None = FREE
    most_out = 2_000
    room = 0
    secrets: tuple[str, ...] = ()

    def __init__(self, options: Options) -> None:
        scenario, given, seconds = (options.variant or "consensus").partition("=")
        script = SCENARIOS.get(scenario)
        if script is None or (given and scenario != "slow"):
            raise BadInput(f"unknown rehearsal {options.variant!r}", fix=f"choose one of: {', '.join(SCENARIOS)}")
        self._script = script
        self._seconds = 0.0 if scenario != "slow" else _seconds(seconds) if given else SLOW_SECONDS

    async def reply(self, request: Request) -> AsyncGenerator[str | Usage, None]:
        """Stream the next lines of the script. Raises `BackendError` in the scenario `error`, always."""
        if request.question:
            yield means_it(request.prompt().parts[-1].text, request.question)
            yield Usage(model=self.model, usd=0.0)
            return
        scene = Scene(request)
        text = "\n\n".join(part for part in (lines.OPENING, lines.heard(scene), self._script(scene)) if part)
        pieces = re.findall(r"\S+\s*" if self._seconds else r"(?s).+?(?:\n\n|$)", text)
        for piece in pieces:
            if self._seconds:
                await asyncio.sleep(self._seconds / len(pieces))
            yield piece
        yield Usage(model=self.model, usd=0.0)

    async def close(self) -> None:
        """Nothing is kept between replies."""


def means_it(reply: str, question: str) -> str:
    """The answer of a scripted agent to a closing question: what its reply says, without a reason."""
    lines = []
    for asked in question.split("\n"):
        forms = [form for form in re.findall(r"`(\[[^`]*\])`", asked) if not form.startswith("[RESERVATION")]
        lines += [form for form in forms if re.search(rf"{re.escape(form[:-1])}\s*[|\]]", reply)][:1]
    return "\n".join(lines)


def probe(_variables: Mapping[str, str], _variant: str) -> Found:
    """It is always here."""
    return Found(True, "scripted lines, no model")


def consensus(scene: Scene) -> str:
    """Propose, object, concede over a summary, sign; whichever the dialog needs next. With rules, what they ask for."""
    if not scene.request.dialog.header.rules.is_plain:
        return rules.speak(scene)
    standing = scene.state.standing
    if standing is not None:
        return lines.wait(scene) if standing.signed_by(scene.me.id) else lines.sign(scene, standing)
    if scene.state.question:
        return lines.wait(scene)
    if scene.draft is not None:
        return lines.amend(scene, scene.draft)
    if scene.lead is None and scene.earlier is not None:
        return lines.settle(scene, scene.earlier)
    if scene.lead is None:
        return lines.propose(scene) if scene.first_in_line else lines.demand(scene)
    if not scene.raised and scene.lead.by != scene.me.id:
        return lines.object_to(scene, scene.lead)
    return lines.settle(scene, scene.lead)


def ask(scene: Scene) -> str:
    """As consensus, but the second to speak first asks the person."""
    asked = scene.state.question or any(entry.mark("QUESTION_FOR_USER") for entry in scene.spoken)
    if scene.spoken and not asked and not scene.points and not scene.state.base and scene.first_in_line:
        return lines.ask_the_person(scene)
    return consensus(scene)


def deadlock(scene: Scene) -> str:
    """Two positions that nobody leaves; from the fifth agent turn on, a call to end it."""
    if len(scene.spoken) >= 4:
        return quarrel.call_deadlock(scene)
    if scene.lead is None:
        return lines.propose(scene)
    if scene.lead.by == scene.me.id:
        return quarrel.hold_first(scene, scene.lead)
    return quarrel.hold_second(scene, scene.lead)


def endless(scene: Scene) -> str:
    """One more side of the matter, for ever."""
    return quarrel.one_more_side(scene)


def error(scene: Scene) -> str:
    """No lines at all."""
    raise BackendError(
        "rehearsal:error fails on purpose",
        fix=f"start {scene.me.id} with another backend, for example --backend rehearsal",
    )


SCENARIOS: Mapping[str, Callable[[Scene], str]] = MappingProxyType(
    {
        "consensus": consensus,
        "deadlock": deadlock,
        "endless": endless,
        "ask": ask,
        "error": error,
        "slow": consensus,
    }
)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= LONGEST:
        raise BadInput(f"rehearsal:slow={text} is no number of seconds", fix="write it like rehearsal:slow=0.5")
    return seconds
