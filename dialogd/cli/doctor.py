"""`dialogd doctor`: who can take part here, whether dialogs can be held, and what an earlier daemon left behind."""

from __future__ import annotations

import json as jsonlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from dialogd.backends import BACKENDS, Found, Kind, auto
from dialogd.backends.seats import start_again
from dialogd.backends.service import holds
from dialogd.cli import options
from dialogd.cli.checks import CHECKS, Fact
from dialogd.cli.terminal import as_json, plain, show
from dialogd.config import Settings, dotenv
from dialogd.store.folders import StateDir
from dialogd.store.leftovers import Leftover, find, reap
from dialogd.store.registry import Running

Reap = Annotated[bool, typer.Option("--reap", help="End and remove what an earlier daemon left behind.")]
Sessions = Annotated[
    bool,
    typer.Option(
        "--reap-sessions",
        help="Remove the sessions that coding agents have of dialogs of yours; opencode takes three seconds for each.",
    ),
]
MARKS = {"ok": "ok", "absent": "--", "warning": "??", "problem": "!!"}
KINDS = {
    "process": "commands whose daemon is gone",
    "registration": "entries of daemons that are gone",
    "seat": "locks of seats that nobody holds",
    "folder": "temporary folders older than a day",
    "session": "sessions that dialogd had coding agents make for dialogs",
}
LISTED = 5  # leftovers of one kind that are named


def doctor(
    clear: Reap = False, sessions: Sessions = False, file: options.FileOption = None, json: options.JsonOption = False
) -> None:
    """Look at this machine: backends, who pays, ports, file, lock, clock; each problem with its fix.

    Exit code 1 when no dialog can be held here. `--` is not here and does no harm, `??` deserves a look, `!!` must be
    mended first.
    """
    settings = options.settings_for(file)
    facts = [*everything(settings)]
    left = _left(settings)
    wanted = [leftover for leftover in left if (sessions if leftover.kind == "session" else clear)]
    taken = {leftover: reap(leftover) for leftover in wanted}
    sound = all(fact.state != "problem" for fact in facts)
    if json:
        show(as_json(_facts(facts, left, taken, sound=sound)))
    else:
        width = max(len(fact.name) for fact in facts)
        show(plain("\n".join(line for fact in facts for line in _lines(fact, width))))
        state = StateDir(settings.state_dir)
        gone = [item.daemon for item in left if item.daemon is not None]
        starts = {daemon: start_again(state, Path(daemon.file), None, daemon.id) for daemon in gone}
        show(plain("\n".join(_about(left, taken, starts, width))))
    raise typer.Exit(0 if sound else 1)


def everything(settings: Settings) -> Iterator[Fact]:
    """All facts, in the order in which they are shown; looked up at the same time, in under two seconds as a rule."""
    from concurrent.futures import ThreadPoolExecutor

    from dialogd.cli import alert_trial

    checking = (*CHECKS, alert_trial.facts)
    with ThreadPoolExecutor(len(checking) + 1) as pool:
        checks = [pool.submit(list, check(settings)) for check in checking]  # generators: they run in the pool
        backends = pool.submit(list, _backends(settings))
        first, *rest = checks
        yield from first.result()
        yield from backends.result()
        for check in rest:
            yield from check.result()


def _backends(settings: Settings) -> Iterator[Fact]:
    """Every line of the table, and whom `auto` would seat as A and B."""
    environment, own = os.environ, dotenv(Path.cwd())
    names = [f"acp:{settings.command}" if name == "acp" else name for name in BACKENDS]
    found = auto.survey(names, environment, own, state=settings.state_dir)
    proofs = _proofs(StateDir(settings.state_dir))
    variables = {**own, **environment}
    looks = dict(zip(BACKENDS, (found[name] for name in names), strict=True))
    for name, kind in BACKENDS.items():
        estimate = _estimate(name, auto.resolve(name, 0, variables, looks.__getitem__), settings)
        yield _backend(name, kind, looks[name], proofs, estimate)
    for hold in holds(StateDir(settings.state_dir).agents):
        fix = "wait until then, or give agents another key: one on this key fails at once where its turn ends before"
        yield Fact("held", "warning", f"{hold.host} {hold.words}", fix, {"seconds": round(hold.left)})
    for seat, who in enumerate("AB"):
        choice = auto.resolve(auto.AUTO, seat, variables, looks.__getitem__, agents="AB")
        yield Fact(f"auto {who}", "ok", auto.introduce(choice, settings.project))
        if choice.twins and who == "A":
            yield Fact(
                "twins", "warning", auto.warning_of("AB", choice.family), "log in to another one, or set its key"
            )


def _backend(name: str, kind: Kind, found: Found, proofs: Iterable[str], estimate: str) -> Fact:
    """One backend: here or not and why, who pays, its model, price and estimate, what it may do to a project."""
    price = _price(kind) if found.here else ""
    is_cli = kind.project.startswith("reads")
    proven = found.version in proofs
    more: dict[str, object] = {
        "here": found.here,
        "version": found.version,
        "pays": found.pays,
        "vendor": kind.vendor,
        "model": kind.model,
        "price": price,
        "estimate": estimate,
        "project": kind.project,
        "proven": proven if is_cli and found.here else None,
    }
    if not found.here:
        is_keyed = kind.model and name in auto.SERVICES  # a key is all that it lacks: this model is what it would ask
        return Fact(name, "absent", f"{found.why}; model {kind.model}" if is_keyed else found.why, found.fix, more)
    parts = [
        found.why,
        "nobody pays" if found.pays == "nobody" else f"{found.pays} pays",
        f"model {kind.model} ({price})" if kind.model else "",
        estimate,
        f"to the project: {kind.project}",
        ("proven not to write" if proven else "not proven yet: the first start does that") if is_cli else "",
    ]
    return Fact(name, "ok", "; ".join(filter(None, parts)), more=more)


def _estimate(name: str, choice: auto.Choice, settings: Settings) -> str:
    """What `run` would say that a dialog of two such agents may cost; "" where no key pays for its tokens."""
    from dialogd.backends.seats import Seat
    from dialogd.cli.cost import estimate_of, prices_of
    from dialogd.cli.create import Wanted, draw_up, usual_ports

    seats = (Seat("A", name), Seat("B", name))
    choices = {seat.id: choice for seat in seats}
    prices = prices_of(seats, choices, settings) if choice.here else {}
    if not prices:
        return ""
    if None in prices.values():
        return "estimate of a dialog: no price known, name it with --price IN/OUT"
    opening = draw_up(Wanted("a topic"), seats, usual_ports(seats), settings)
    return estimate_of(opening, seats, choices, settings, {})


def _price(kind: Kind) -> str:
    """What the default model costs, in words."""
    if not kind.model:
        return ""
    from dialogd.backends.prices import price_of

    price = price_of(kind.model, kind.vendor)
    if price is None:
        return "price unknown: --price IN/OUT"
    return f"${price.tokens_in:g} in, ${price.tokens_out:g} out per million tokens"


def _proofs(state: StateDir) -> frozenset[str]:
    """The versions of programs that were seen to refuse every write, as far as that is remembered."""
    from dialogd.backends.canary import MEMORY

    try:
        rows = jsonlib.loads((state.agents / MEMORY).read_text(encoding="utf-8"))
        return frozenset(str(row["version"]) for row in rows.values() if row.get("safe") is True and row["version"])
    except (OSError, ValueError, KeyError, AttributeError):
        return frozenset()


def _left(settings: Settings) -> tuple[Leftover, ...]:
    return find(StateDir(settings.state_dir))


def _lines(fact: Fact, width: int) -> Iterator[str]:
    """A fact as text: one line, and its fix."""
    text = f"{MARKS[fact.state]}  {fact.name:{width}}  {fact.text}"
    if fact.fix and fact.state == "absent":
        yield f"{text}: {fact.fix}"
        return
    yield text
    if fact.fix:
        yield f"    {'':{width}}  fix: {fact.fix}"


def _about(
    left: Iterable[Leftover], taken: Mapping[Leftover, bool], starts: Mapping[Running, str], width: int
) -> Iterator[str]:
    """What is left behind, by kind, and what became of it; how each daemon that is gone can be started again."""
    found = list(left)
    if not found:
        yield f"ok  {'leftovers':{width}}  none"
    for kind, words in KINDS.items():
        some = [item for item in found if item.kind == kind]
        if not some:
            continue
        gone = sum(taken.get(item, False) for item in some)
        done = f"; {gone} of {len(some)} taken away" if any(item in taken for item in some) else ""
        yield f"--  {'leftovers':{width}}  {len(some)} {words}{done}"
        for item in some[:LISTED]:
            yield f"    {'':{width}}  {item.what}"
            if item.daemon is not None and (again := starts.get(item.daemon)):
                yield f"    {'':{width}}  start it again: {again}"
    untaken = {item.kind for item in found if item not in taken}
    if untaken - {"session"}:
        yield f"    {'':{width}}  fix: dialogd doctor --reap"
    if "session" in untaken:
        yield f"    {'':{width}}  they do no harm; to remove them: dialogd doctor --reap-sessions"


def _facts(
    facts: Iterable[Fact], left: Iterable[Leftover], taken: Mapping[Leftover, bool], *, sound: bool
) -> dict[str, object]:
    return {
        "ok": sound,
        "facts": [{"name": f.name, "state": f.state, "text": f.text, "fix": f.fix, **f.more} for f in facts],
        "leftovers": [
            {"kind": item.kind, "what": item.what, "pid": item.pid or None, "path": str(item.path or "") or None,
             "reaped": taken.get(item)}
            for item in left
        ],
    }  # fmt: skip
