"""How well and how fast `dialogd recall` finds the right decision among 10,000 archived turns.

    .venv/bin/python scripts/bench_recall.py
    .venv/bin/python scripts/bench_recall.py --quick  # among 1,000 turns, to see that it works
    .venv/bin/python scripts/bench_recall.py --json

Writes an archive of made-up dialogs (the same ones every time), among them 20 whose decisions are asked for: ten in
words that the decision uses, ten in other words. The others are about like things and share words with them.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import own_python  # noqa: F401 - another Python is told which one to use

from dialogd.memory import Memory
from dialogd.store.disk import StateDir
from tests.support.past import BEGAN, Past

TURNS, QUICK = 10_000, 1_000
LOOKED_AT = 20  # places of a ranking

# Topic, decision, question; the first ten are asked in the decision's words, the others in words of their own.
KNOWN = """\
Where should user sessions live?
User sessions are kept in Postgres, one row each, for thirty days; a nightly job removes expired rows.
what did we decide about user sessions?

Tabs or spaces in the new repository
Spaces, four of them, written by the formatter; nobody reviews whitespace by hand any more.
tabs or spaces?

How do we version the public API
The public API is versioned in the path, /v1 and /v2; a version lives at least eighteen months after its successor.
how is the public API versioned?

Retry policy for the payment provider
Calls to the payment provider are retried three times with exponential backoff and jitter, and only with an
idempotency key.
what is the retry policy for the payment provider?

Feature flags: own table or a service
Feature flags stay in our own table; no external flag service until there are more than fifty flags.
do we use an external service for feature flags?

Rate limits for anonymous visitors
Anonymous visitors get sixty requests a minute per address, counted in memory at the edge.
what rate limit do anonymous visitors have?

Which license does the client library get
The client library is published under the MIT license, the server stays closed.
which license did we choose for the client library?

Do we write migrations by hand
Migrations are written by hand in SQL, reviewed like code, and each has a tested way back.
are migrations written by hand?

Image thumbnails: on upload or on demand
Thumbnails are made on demand and cached for a year; uploads only store the original.
when are image thumbnails made?

Monorepo for the mobile apps
Both mobile apps move into one monorepo with shared modules; releases stay separate.
monorepo for mobile apps?

Handling of passwords at rest
Credentials are hashed with Argon2id, 64 MB and three passes, and rehashed at the next login when parameters change.
how do we protect what people log in with when somebody steals the database?

On-call at night
Nobody is woken before seven unless customers cannot pay; everything else waits for the morning shift.
which incidents justify getting an engineer out of bed?

Message queue or database table for jobs
Background jobs go through a table with SKIP LOCKED; no broker until we pass a thousand jobs a second.
why don't we run RabbitMQ for asynchronous work?

Search in the help pages
Full-text search of the help pages uses SQLite FTS5 shipped with the site; no Elasticsearch cluster.
how can customers look something up in the documentation?

Deleting an account
Personal data is erased thirty days after a customer closes the account; invoices are kept ten years because the law
says so.
what happens to a person's records once they leave us?

Two-factor for administrators
Administrators must use a hardware security key; text messages are not accepted as a second factor.
may staff with elevated rights confirm their login by SMS?

Currency arithmetic
Amounts are integers in cents, never floating point; rounding happens once, at the end, half to even.
how is money represented in the code to avoid wrong sums?

Time zones in reports
Everything is stored in UTC; reports show the zone of the office that the reader belongs to.
which clock do the statistics go by for colleagues abroad?

Code review size
A change has at most four hundred lines; larger ones are split before anybody looks at them.
how big may a pull request be?

Backups of the production data
A full copy every night to another provider, and a restore is rehearsed on the first Monday of each month.
how sure are we that we could recover after losing the data centre?"""

THINGS = (
    "invoices", "training sessions", "audit logs", "product images", "chat messages", "search queries", "user profiles",
    "shipping labels", "price lists", "access tokens", "mail templates", "metrics", "crash reports", "customer notes",
    "gift cards", "session recordings", "discount codes", "warehouse counts", "help articles", "partner contracts",
    "payment reminders", "mobile builds", "test fixtures", "translations", "feature requests", "support tickets",
    "database dumps", "login attempts", "newsletter signups", "delivery slots", "loyalty points", "tax tables",
)  # fmt: skip
PLACES = (
    "Postgres", "Redis", "object storage", "a table of its own", "the data warehouse", "SQLite", "plain files",
    "the mail provider", "a queue", "the edge cache", "a spreadsheet", "the vendor's service",
)  # fmt: skip
SPANS = ("a day", "a week", "thirty days", "ninety days", "a year", "eighteen months", "ten years")
WHO = ("the platform group", "support", "the night shift", "whoever wrote it", "the release manager", "two reviewers")
TOPICS = (
    "Where should {thing} live?", "How long do we keep {thing}?", "Who may change {thing}?", "{Thing}: build or buy",
    "Are {thing} reviewed before release?", "How are {thing} versioned?", "Retry policy for {thing}",
    "Moving {thing} out of {place}", "Rate limits on {thing}", "What to do when {thing} are lost",
)  # fmt: skip
DECISIONS = (
    "{Thing} are kept in {place} for {span}; a job removes what has expired.",
    "{Thing} move to {place}; the old copy stays readable for {span}.",
    "{who} may change {thing}, everybody else asks first; every change is logged for {span}.",
    "We buy it: {thing} go to {place}, and the contract runs {span}.",
    "{Thing} get a version number in the path, and old versions live {span}.",
    "Requests for {thing} are retried twice with backoff, then {who} gets a mail.",
    "{Thing} are limited to {number} a minute, counted in {place}.",
    "{Thing} are reviewed by {who}; nothing is released by hand.",
    "When {thing} are lost they are restored from {place}; a rehearsal takes place once in {span}.",
)
SAYINGS = (
    "I would keep {thing} in {place}: we run it already, and somebody knows how to restore it.",
    "The cost is not the storage, it is the person who looks after {place} at night.",
    "Measured last month: {number} requests a second on {thing}, and {place} answered in four milliseconds.",
    "My objection is {span}: nobody asked the customers how long they expect {thing} to be there.",
    "If {who} owns it, then {who} has to be in the room. Otherwise we decide over their heads.",
    "What breaks first? The login page reads {thing} on every request, so a slow {place} is a slow site.",
    "I looked at how the payment code does it, and it retries without a key. We should not copy that.",
    "Agreed on the small start. The way back is what I miss: who moves {thing} out of {place} again?",
    "A review after {span} costs an hour, a wrong choice costs a quarter.",
    "The database is not the bottleneck; the report for abroad is, and it is about {thing}.",
    "I concede the point about {place}. What remains is who pays for {span} of storage.",
)  # fmt: skip


def archive(turns: int) -> Iterator[tuple[Past, str]]:
    """Dialogs with so many turns together, each with the question that asks for it, "" for the others."""
    dice = random.Random(20261122)
    known = [(number, *_case(lines)) for number, lines in enumerate(KNOWN.split("\n\n"))]
    places = {dice.randrange(20, turns - 500): case for case in known}
    written, count = 0, 0
    while written < turns or places:
        due = next((at for at in sorted(places) if written >= at), None)
        if due is None:
            topic, decision, question, name = _topic(dice), _filled(DECISIONS, dice), "", f"d{count:05x}"
        else:
            number, topic, decision, question = places.pop(due)
            name = f"k{number:02d}"
        said = [" ".join(_filled(SAYINGS, dice) for _ in range(dice.randint(2, 5))) for _ in range(dice.randint(5, 11))]
        began = BEGAN + timedelta(hours=3 * count)
        yield Past(name, topic, f"We have to settle this. {topic}", said, decision, began), question
        written += len(said) + 3
        count += 1


def _case(lines: str) -> tuple[str, str, str]:
    topic, *decision, question = lines.split("\n")
    return topic, " ".join(decision), question


def _topic(dice: random.Random) -> str:
    return _filled(TOPICS, dice)


def _filled(templates: Sequence[str], dice: random.Random) -> str:
    thing = dice.choice(THINGS)
    words = {"place": dice.choice(PLACES), "span": dice.choice(SPANS), "who": dice.choice(WHO)}
    text = dice.choice(templates).format(
        thing=thing, Thing=thing[0].upper() + thing[1:], number=dice.randint(2, 900), **words
    )
    return text[0].upper() + text[1:]


def measured(memory: Memory, right: dict[str, str]) -> dict[str, object]:
    """Where each right decision stands, and how long the questions took."""
    ranks, times, work = [], [], []
    memory.recall("warm up", 1)
    for question, dialog in right.items():
        began, worked = time.perf_counter(), time.process_time()
        found = [decision.dialog for decision in memory.recall(question, LOOKED_AT)]
        times.append(1000 * (time.perf_counter() - began))
        work.append(1000 * (time.process_time() - worked))
        ranks.append(found.index(dialog) + 1 if dialog in found else None)
    return {
        "ranks": ranks,
        "first": sum(rank == 1 for rank in ranks),
        "in_three": sum(rank is not None and rank <= 3 for rank in ranks),
        "mrr": round(statistics.fmean(1 / rank if rank else 0.0 for rank in ranks), 3),
        "p50_ms": round(statistics.median(times), 1),
        "max_ms": round(max(times), 1),
        "cpu_ms": round(statistics.median(work), 1),
    }


def bench(folder: Path, turns: int, tell: Callable[[str], None]) -> dict[str, object]:
    """Fill an archive, index it, ask."""
    state = StateDir(folder / "state")
    right, dialogs, written = {}, 0, 0
    for past, question in archive(turns):
        (state.archive / f"{past.id}.md").write_bytes(past.file())
        dialogs, written = dialogs + 1, written + len(past.said) + 3
        if question:
            right[question] = past.id
    memory = Memory(state.root)
    began = time.perf_counter()
    memory.rebuild()
    seconds = time.perf_counter() - began
    size = sum(path.stat().st_size for path in state.memory.glob("index.sqlite*"))
    facts = {"turns": written, "dialogs": dialogs, "index_s": round(seconds, 1), "index_mb": round(size / 1e6, 1)}
    tell(f"{written} turns in {dialogs} dialogs, indexed in {seconds:.1f} s, {size / 1e6:.1f} MB")
    return {**facts, "questions": [*right], **measured(memory, right)}


def main() -> None:
    """Run it and print a table, or JSON."""
    parser = argparse.ArgumentParser(description="Bench `dialogd recall`.")
    parser.add_argument("--turns", type=int, default=TURNS, help="how many turns the archive holds")
    parser.add_argument("--quick", action="store_const", dest="turns", const=QUICK, help=f"{QUICK:,} turns")
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-recall-") as folder:
        results = bench(Path(folder), wanted.turns, lambda text: print(text, file=sys.stderr))
    print(json.dumps(results, indent=2) if wanted.json else "\n".join(_table(results)))


def _table(results: dict[str, object]) -> Iterator[str]:
    yield "| question | place |\n| --- | --- |"
    for question, rank in zip(results["questions"], results["ranks"], strict=True):  # type: ignore[call-overload]
        yield f"| {question} | {rank or '–'} |"
    for title, name in TITLES:
        yield f"| **{title}** | {results[name]} |"


TITLES = (
    ("first place", "first"),
    ("among the first three", "in_three"),
    ("mean reciprocal rank", "mrr"),
    ("ms per question, median", "p50_ms"),
    ("ms, slowest", "max_ms"),
    ("ms of one core", "cpu_ms"),
)

if __name__ == "__main__":
    main()
