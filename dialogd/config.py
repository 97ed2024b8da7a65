"""Where settings come from: flags > environment > .env > dialogd.toml > the user's config > defaults.

`dialogd.toml` in the working directory, or else `[tool.dialogd]` of its pyproject.toml, and the user's
`config.toml` hold the same keys, the names of `SETTINGS`. A relative path counts from where it is written:
from the file's folder, or from the working directory for flags and variables.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from dialogd.errors import BadInput
from dialogd.settings import SETTINGS, Setting, Settings, default_port

__all__ = ["SETTINGS", "Settings", "default_port", "dotenv", "load"]


class _Written(NamedTuple):
    """A value as somebody wrote it: where, and the folder its relative paths count from."""

    value: object
    origin: str
    folder: Path


def load(flags: Mapping[str, object], environment: Mapping[str, str], cwd: Path) -> Settings:
    """Put the settings together; a flag that is None was not given, an empty variable is not set.

    Raises `BadInput` for a value that makes no sense, an unknown key of a file and a file that cannot be read.
    """
    strongest: dict[str, _Written] = {}
    for source in _sources(flags, environment, cwd):
        strongest = source | strongest
    values: dict[str, Any] = {s.name: _read(s, strongest[s.name]) for s in SETTINGS if s.name in strongest}
    origins = {name: written.origin for name, written in strongest.items()}
    return Settings(**values, origins=MappingProxyType(origins))


def dotenv(cwd: Path) -> dict[str, str]:
    """What that folder's `.env` sets; {} without one. It is never put into the process's own environment."""
    text = _contents(cwd / ".env")
    if not text:
        return {}
    from io import StringIO

    from dotenv import dotenv_values

    values = dotenv_values(stream=StringIO(text), interpolate=False)
    return {name: value for name, value in values.items() if value}


def _sources(flags: Mapping[str, object], environment: Mapping[str, str], cwd: Path) -> Iterator[dict[str, _Written]]:
    """Every place a value may stand, strongest first."""
    from platformdirs import user_config_path

    _check(flags, "the command line", [s.name for s in SETTINGS])
    given = {name: value for name, value in flags.items() if value is not None}
    yield {name: _Written(value, f"flag --{name.replace('_', '-')}", cwd) for name, value in given.items()}
    yield _variables(environment, "environment", cwd)
    own = dotenv(cwd)
    variables = [variable for setting in SETTINGS for variable in setting.variables]
    _check([name for name in own if name.startswith("DIALOGD_")], str(cwd / ".env"), variables)
    yield _variables(own, str(cwd / ".env"), cwd)
    yield _toml(cwd / "dialogd.toml") or _toml(cwd / "pyproject.toml", "tool", "dialogd")
    yield _toml(user_config_path("dialogd") / "config.toml")


def _variables(environment: Mapping[str, str], where: str, cwd: Path) -> dict[str, _Written]:
    """The settings that environment variables hold."""
    found: dict[str, _Written] = {}
    for setting in SETTINGS:
        for variable in setting.variables:
            if environment.get(variable):
                found.setdefault(setting.name, _Written(environment[variable], f"{where} {variable}", cwd))
    return found


def _toml(path: Path, *tables: str) -> dict[str, _Written]:
    """The settings in a TOML file, or in a table of one that has other uses too."""
    text = _contents(path)
    if not all(table in text for table in tables):
        return {}
    import tomllib

    try:
        table: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{path} is not TOML: {error}", fix="correct that line, or move the file away") from None
    for name in tables:
        table = table.get(name, {}) if isinstance(table, dict) else table
    if not isinstance(table, dict):
        raise BadInput(f"{'.'.join(tables)} in {path} is not a table", fix=f"write [{'.'.join(tables)}]")
    _check(table, str(path), [s.name for s in SETTINGS])
    return {name: _Written(value, f"{path} {name}", path.parent) for name, value in table.items()}


def _check(names: Iterable[str], where: str, known: Sequence[str]) -> None:
    """Refuse the first name that nobody knows."""
    from difflib import get_close_matches

    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=2) or known
            raise BadInput(f"unknown setting {name!r} in {where}", fix=f"did you mean {' or '.join(close)}?")


def _read(setting: Setting, written: _Written) -> object:
    try:
        return setting.read(written.value, written.folder)
    except ValueError as error:
        message = f"{setting.name} {written.value!r} ({written.origin}) {error}"
        raise BadInput(message, fix=f"correct {written.origin}: {setting.about}") from None


def _contents(path: Path) -> str:
    """The text of a file of settings, "" without one. Raises `BadInput` when it cannot be trusted or read."""
    try:
        if not path.is_file():  # a virtual environment may be called .env
            return ""
        owner, trusted = path.stat().st_uid, (os.geteuid(), 0, path.parent.stat().st_uid)
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}", fix="correct the file, or move it away") from None
    # In a shared folder such as /tmp anybody could leave a file that names a command to run.
    if owner not in trusted:
        raise BadInput(f"{path} belongs to another user", fix="work in a folder of your own, or remove the file")
    return text
