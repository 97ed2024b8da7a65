"""Recalling decisions: which past ones answer a question, by its words and, where that is enabled, by its meaning.

By words: how much of the question a decision holds (rare words count more), and how well (bm25), with a share for what
was said in its dialog. By meaning: the angle between two vectors. Both orders are put together by reciprocal rank.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dialogd.memory.decided import cut
from dialogd.memory.store import has_fts
from dialogd.memory.values import DISCUSSED, Behind, Decision
from dialogd.memory.words import content, like, quoted

K = 60  # of reciprocal rank fusion: how little the first places differ
CLOSE = 0.25  # from this cosine on, meaning alone is enough to recall a decision
COVERED = 0.2  # from this part of the question's weight on, words alone are
TALK = 0.5  # from this part on, a turn is shown where nothing was decided
MOST = 400  # rows that one word may bring

# What counts less than a decision that stands.
_STATUS = {"approved": 1.0, "undecided": 0.95, "rejected": 0.9}
_SUPERSEDED = 0.9

Ranked = Mapping[int, float]  # cosine by the key of the decision


@dataclass(frozen=True, slots=True)
class _Match:
    """How a decision answers: the part of the question's weight that it holds, and its score by words, 0 to 1."""

    covered: float
    score: float


def recall(
    connection: sqlite3.Connection, question: str, limit: int, meaning: Ranked | None = None
) -> tuple[Decision, ...]:
    """The decisions that answer the question, best first; then, where there are too few, what was said about it.

    `meaning` is how close each decision is to the question, where that is known.
    """
    words = content(question)
    talk = _talk(connection, words)
    matches = _matches(connection, words, talk)
    found = _ranked(connection, matches, meaning or {})[:limit]
    known = {decision.dialog for decision in found}
    for dialog, (covered, key) in sorted(talk.items(), key=lambda item: (-item[1][0], item[1][1])):
        if len(found) >= limit:
            break
        if covered >= TALK and dialog not in known and not _has_decided(connection, dialog):
            found.append(_discussed(connection, key, covered))
    return tuple(found)


def _ranked(connection: sqlite3.Connection, matches: Mapping[int, _Match], meaning: Ranked) -> list[Decision]:
    """The decisions that are close enough, in order."""
    by_words = {key: m.score for key, m in matches.items() if m.covered >= COVERED}
    near = {key: cosine for key, cosine in meaning.items() if cosine >= CLOSE or key in by_words}
    decisions = {key: d for key in {*by_words, *near} if (d := _decision(connection, key)) is not None}
    weighed = {key: score * _weight(decisions[key]) for key, score in by_words.items() if key in decisions}
    if not near:
        scores = weighed
    else:
        close = {key: cosine * _weight(decisions[key]) for key, cosine in near.items() if key in decisions}
        trust = max((m.covered for m in matches.values()), default=0.0)  # words that miss most of it say little
        scores = _fused((weighed, min(trust, 1.0)), (close, 1.0))
    latest_first = sorted(scores, key=lambda key: decisions[key].at, reverse=True)
    order = sorted(latest_first, key=lambda key: round(scores[key], 4), reverse=True)
    return [_scored(decisions[key], scores[key]) for key in order]


def _fused(*orders: tuple[Mapping[int, float], float]) -> dict[int, float]:
    """Several orders, each with its weight, in one, by reciprocal rank; 1 for what comes first in all of them."""
    scores: dict[int, float] = {}
    whole = sum(weight for _, weight in orders)
    for order, weight in orders:
        for rank, key in enumerate(sorted(order, key=lambda key: (-order[key], key))):
            scores[key] = scores.get(key, 0.0) + weight / whole * (K + 1) / (K + 1 + rank)
    return scores


def _weight(decision: Decision) -> float:
    return _STATUS.get(decision.status, 1.0) * (_SUPERSEDED if decision.superseded else 1.0)


def _matches(
    connection: sqlite3.Connection, words: Sequence[str], talk: Mapping[str, tuple[float, int]]
) -> dict[int, _Match]:
    """How well each decision matches the words."""
    rows = {word: _rows(connection, "decision", word) for word in words}
    weights = _weights(connection, "decision", {word: len(found) for word, found in rows.items()})
    whole = sum(weights.values()) or 1.0
    covered: dict[int, float] = {}
    dialogs: dict[int, str] = {}
    for word, found in rows.items():
        for key, dialog in found:
            covered[key] = covered.get(key, 0.0) + weights[word] / whole
            dialogs[key] = dialog
    best = _bm25(connection, words, covered)
    return {
        key: _Match(part, 0.5 * part + 0.3 * best.get(key, 0.0) + 0.2 * talk.get(dialogs[key], (0.0, 0))[0])
        for key, part in covered.items()
    }


def _talk(connection: sqlite3.Connection, words: Sequence[str]) -> dict[str, tuple[float, int]]:
    """For each dialog, how much of the question one of its turns holds at most, and which entry that is."""
    rows = {word: _rows(connection, "entry", word) for word in words}
    weights = _weights(connection, "entry", {word: len(found) for word, found in rows.items()})
    whole = sum(weights.values()) or 1.0
    held: dict[tuple[int, str], float] = {}
    for word, found in rows.items():
        for row in found:
            held[row] = held.get(row, 0.0) + weights[word] / whole
    best: dict[str, tuple[float, int]] = {}
    for (key, dialog), part in held.items():
        if part > best.get(dialog, (0.0, 0))[0]:
            best[dialog] = (part, key)
    return best


def _rows(connection: sqlite3.Connection, table: str, word: str) -> list[tuple[int, str]]:
    """The rows of a table that hold a word, newest first: key and dialog. What was rehearsed is no memory."""
    thought = "dialog NOT IN (SELECT id FROM dialog WHERE rehearsal)"
    if has_fts(connection):
        query = f"SELECT rowid FROM {table}_fts WHERE {table}_fts MATCH ? ORDER BY rowid DESC LIMIT {MOST}"
        query = f"SELECT key, dialog FROM {table} WHERE key IN ({query}) AND {thought}"
        return connection.execute(query, (quoted(word),)).fetchall()
    columns = "topic || ' ' || text || ' ' || more" if table == "decision" else "text"
    query = rf"SELECT key, dialog FROM {table} WHERE {columns} LIKE ? ESCAPE '\' AND {thought}"
    query = f"{query} ORDER BY key DESC LIMIT {MOST}"
    return connection.execute(query, (like(word),)).fetchall()


def _weights(connection: sqlite3.Connection, table: str, counts: Mapping[str, int]) -> dict[str, float]:
    """What each word is worth: the rarer the more; one that stands nowhere as much as the rarest can be."""
    size = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return {word: math.log(1 + (size + 1) / (count + 0.5)) for word, count in counts.items()}


def _bm25(connection: sqlite3.Connection, words: Sequence[str], keys: Mapping[int, float]) -> dict[int, float]:
    """bm25 of the decisions, the topic counting most, 1 for the best; nothing without FTS5."""
    if not keys or not has_fts(connection):
        return {}
    query = (
        "SELECT rowid, -bm25(decision_fts, 3.0, 2.0, 1.0) AS score FROM decision_fts WHERE decision_fts MATCH ?"
        f" ORDER BY score DESC LIMIT {MOST}"
    )
    scores = dict(connection.execute(query, (" OR ".join(map(quoted, words)),)).fetchall())
    highest = max(scores.values(), default=0.0)
    return {key: score / highest for key, score in scores.items()} if highest > 0 else {}


def _decision(connection: sqlite3.Connection, key: int) -> Decision | None:
    row = connection.execute("SELECT facts FROM decision WHERE key = ?", (key,)).fetchone()
    return Decision.from_json(json.loads(row[0])) if row is not None else None


def decisions_of(connection: sqlite3.Connection, dialog: str) -> tuple[Decision, ...]:
    """What a dialog decided, in order."""
    rows = connection.execute("SELECT facts FROM decision WHERE dialog = ? ORDER BY key", (dialog,))
    return tuple(Decision.from_json(json.loads(facts)) for (facts,) in rows)


def _scored(decision: Decision, score: float) -> Decision:
    return replace(decision, score=round(min(score, 1.0), 4))


def _has_decided(connection: sqlite3.Connection, dialog: str) -> bool:
    return connection.execute("SELECT 1 FROM decision WHERE dialog = ? LIMIT 1", (dialog,)).fetchone() is not None


def _discussed(connection: sqlite3.Connection, key: int, covered: float) -> Decision:
    """What was said about it where nobody decided anything."""
    query = (
        "SELECT e.dialog, d.topic, e.text, e.turn, COALESCE(NULLIF(e.at, ''), d.at), d.name,"
        " e.agent FROM entry e JOIN dialog d ON d.id = e.dialog WHERE e.key = ?"
    )
    dialog, topic, text, turn, at, name, agent = connection.execute(query, (key,)).fetchone()
    return Decision(
        dialog=dialog,
        topic=topic,
        ref="",
        status=DISCUSSED,
        text=cut(text),
        method="",
        behind=(Behind(agent, turn),) if agent else (),
        evidence="",
        reason="",
        turns=(turn,) if turn else (),
        at=at,
        score=round(covered / 10, 4),
        archive=name,
    )
