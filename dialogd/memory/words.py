"""The words of a question: what is looked up, and how it is put to SQLite so that nothing in it is syntax."""

from __future__ import annotations

import re

MOST = 40  # words of a question that are looked up

_WORD = re.compile(r"[^\W_]+")
_STOP = """a about above after again against ago all already also am an and any anybody anyone anything are as at be
because been before being below between both but by came can cannot come could did do does doing done down during
each either else ever every for from further get give go goes going gone got had has have having he her here hers
him his how i if in instead into is it its just last let like made make many may maybe me more most much must my
need neither no nor not nothing now of off on once one only or other our ours out over own please previously put
rather really recently same say said she should since so some still such than that the their them then there these
they thing things this those though through thus to too towards under until up upon us use used using very was way
we well went were what whatever when where whether which while who whom whose why will with within without would
yes yet you your yours"""
# What a question about decisions is framed by, and says nothing about the matter.
_FRAME = """agree agreed agreement answer choice choose chose chosen conclude concluded conclusion consensus
decide decided decides decision decisions dialog dialogs discuss discussed discussion earlier
outcome past reach reached recall remember resolve resolved result settle settled team verdict
talked topic"""
_EMPTY = frozenset(_STOP.split())
_FRAMING = frozenset(_FRAME.split())


def content(question: str) -> tuple[str, ...]:
    """The words that say what a question is about, each once; all of them where it has no others."""
    found = tuple(dict.fromkeys(word.casefold() for word in _WORD.findall(question)))
    telling = tuple(word for word in found if word not in _EMPTY and word not in _FRAMING)
    plain = tuple(word for word in found if word not in _EMPTY)
    return (telling or plain or found)[:MOST]


def terms(words: str) -> tuple[str, ...]:
    """What somebody searches for, as they typed it, word by word; what holds neither letter nor digit is left out."""
    return tuple(dict.fromkeys(word for word in words.replace("\0", " ").split() if _WORD.search(word)))[:MOST]


def quoted(term: str) -> str:
    """A term as FTS5 takes it: a phrase, whatever it holds."""
    return '"' + term.replace("\0", " ").replace('"', '""') + '"'


def like(term: str) -> str:
    """A term as LIKE takes it, where there is no FTS5: its beginning without a common ending."""
    stem = re.sub(r"(?<=\w{3})(?:ing|ed|es|s)$", "", term)
    return "%" + re.sub(r"([\\%_])", r"\\\1", stem) + "%"
