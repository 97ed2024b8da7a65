"""Ranking by meaning: the vectors of decisions, made once and kept in the index, against that of a question."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dialogd.errors import StorageError
from dialogd.memory.index import embedded
from dialogd.memory.store import transaction

if TYPE_CHECKING:
    from dialogd.memory.minilm import Array, MiniLM

FOLDER = "model"  # in the memory's folder
ABOUT = "about.json"  # which weights these are
BATCH = 16  # vectors per transaction

_known: dict[tuple[str, int], Meaning] = {}
_loading = threading.Lock()


def meaning(folder: Path) -> Meaning | None:
    """What compares by meaning, for the memory in that folder; None where it is not enabled, or numpy is missing.

    The model is read when it is first asked something, and kept.
    """
    place = folder / FOLDER
    try:
        changed = (place / ABOUT).stat().st_mtime_ns
        sha = str(json.loads((place / ABOUT).read_text(encoding="utf-8"))["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not has_numpy():
        return None
    with _loading:
        return _known.setdefault((str(place), changed), Meaning(place, sha))


def has_numpy() -> bool:
    """True where numpy is installed."""
    from importlib.util import find_spec

    return find_spec("numpy") is not None


class Meaning:
    """A model in a folder, and what it says about decisions. `sha` names its weights."""

    def __init__(self, folder: Path, sha: str) -> None:
        self.folder = folder
        self.sha = sha
        self._one = threading.Lock()  # a model at work takes all cores: one text at a time

    @cached_property
    def model(self) -> MiniLM:
        """The model, read when it is first needed. Raises `StorageError` for one that cannot be."""
        from dialogd.memory.minilm import MiniLM

        try:
            return MiniLM(self.folder)
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise StorageError(
                f"the model in {self.folder} cannot be read: {error!r}",
                fix="put it there anew: dialogd memory enable-semantic",
            ) from error

    def vector(self, text: str) -> Array:
        """The vector of a text. Raises `StorageError`."""
        with self._one:
            return self.model.embed(text)

    def embed(self, connection: sqlite3.Connection, seconds: float) -> tuple[int, int]:
        """Embed decisions that have no vector yet, newest first, for so long; gives how many have one, of how many."""
        self.vector("")  # numpy is loaded by the model, in its own way
        import numpy as np

        deadline = time.monotonic() + seconds
        missing = connection.execute(
            "SELECT sha, topic, text FROM decision WHERE sha NOT IN (SELECT sha FROM vector WHERE model = ?)"
            " GROUP BY sha ORDER BY max(at) DESC",
            (self.sha,),
        ).fetchall()
        done: list[tuple[str, str, bytes]] = []
        for sha, topic, text in missing:
            if time.monotonic() > deadline:
                break
            done.append((sha, self.sha, self.vector(embedded(topic, text)).astype(np.float16).tobytes()))
            if len(done) == BATCH:
                _save(connection, done)
        _save(connection, done)
        count = "SELECT count(DISTINCT c.sha), count(DISTINCT v.sha) FROM decision c LEFT JOIN vector v"
        whole, have = connection.execute(f"{count} ON v.sha = c.sha AND v.model = ?", (self.sha,)).fetchone()
        return have, whole

    def near(self, connection: sqlite3.Connection, question: str) -> dict[int, float]:
        """How close each decision that has a vector is to the question: the cosine, by the decision's key."""
        asked = self.vector(question)
        import numpy as np

        query = "SELECT c.key, v.value FROM decision c JOIN vector v ON v.sha = c.sha AND v.model = ?"
        size = asked.nbytes // 2
        rows = [(key, value) for key, value in connection.execute(query, (self.sha,)) if len(value) == size]
        if not rows:
            return {}
        keys, values = zip(*rows, strict=True)
        vectors = np.frombuffer(b"".join(values), dtype=np.float16).reshape(len(keys), -1).astype(np.float32)
        return {int(key): float(cosine) for key, cosine in zip(keys, vectors @ asked, strict=True)}


def _save(connection: sqlite3.Connection, done: list[tuple[str, str, bytes]]) -> None:
    if done:
        with transaction(connection):
            connection.executemany("INSERT OR REPLACE INTO vector VALUES (?, ?, ?)", done)
        done.clear()
