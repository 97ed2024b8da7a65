"""Act at every moment of a piece of work: just before each call that it makes into the operating system."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

MODULES = ("posix", "fcntl")
CALLS = frozenset({"open", "close", "read", "pread", "write", "fsync", "stat", "lstat", "fstat", "flock", "fcntl"})


def moments(work: Callable[[], object]) -> list[str]:
    """Do the work; the names of its system calls, in order."""
    names: list[str] = []
    watched(work, names.append)
    return names


def at(actions: Mapping[int, Callable[[], object]], work: Callable[[], object]) -> None:
    """Do the work; before its n-th system call (from 0), do `actions[n]`."""
    count = -1

    def called(_: str) -> None:
        nonlocal count
        count += 1
        if count in actions:
            actions[count]()

    watched(work, called)


def written(files: Mapping[str, Path], work: Callable[[], object]) -> list[str]:
    """Do the work; every write to these files, flush of them and reading of them, in order: `["flush dialog", ...]`."""
    words = {"write": "write", "fsync": "flush", "pread": "read"}
    steps: list[str] = []

    def called(name: str, frame: FrameType) -> None:
        if name not in words or not isinstance(frame.f_locals.get("fd"), int):
            return  # a pipe to another program
        touched = os.fstat(frame.f_locals["fd"])
        found = [file for file, path in files.items() if path.exists() and os.path.samestat(path.stat(), touched)]
        steps.extend(f"{words[name]} {file}" for file in found)

    _hooked(work, called)
    return steps


def watched(work: Callable[[], object], called: Callable[[str], None]) -> None:
    """Do the work; tell `called` the name of each system call just before it is made, by this thread."""
    _hooked(work, lambda name, _: called(name))


def _hooked(work: Callable[[], object], called: Callable[[str, FrameType], None]) -> None:
    # The interpreter's own hook: our code runs unchanged, and does not know.
    def hook(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and function.__module__ in MODULES and function.__name__ in CALLS:
            called(function.__name__, frame)

    before = sys.getprofile()
    gc.collect()
    gc.freeze()  # else each collection walks the heap of every library that other tests have imported
    gc.disable()  # what others left open is not closed meanwhile
    sys.setprofile(hook)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
