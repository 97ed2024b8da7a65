"""The state directory: a private folder per dialog file, the archive, the registry of daemons, logs."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dialogd.errors import UnsafeFile
from dialogd.store.disk import make_folder, why, write_over

PATH = "path"  # in the folder of a dialog file: where that lies


@dataclass(frozen=True, slots=True)
class StateDir:
    """The state directory; everything in it is 0700 and made when it is first asked for."""

    root: Path

    def dialog(self, file: Path) -> Path:
        """The folder of one dialog file, by its absolute path: journals, drafts, what was set aside."""
        folder = self._made(self.root / "dialogs" / _key(file))
        with suppress(OSError):  # it only tells where a file came from that was moved
            if not (folder / PATH).exists():
                write_over(os.fsencode(_absolute(file)), folder / PATH, durable=False)
        return folder

    def agent(self, file: Path, agent: str) -> Path:
        """The folder of one agent's backend at one dialog file; beside it lies what all backends share."""
        return self._made(self.agents / f"{_key(file)}-{agent}")

    @property
    def agents(self) -> Path:
        """The folder of the agents' folders and what all backends share; not created by this."""
        return self.root / "agents"

    @property
    def archive(self) -> Path:
        """Copies of dialogs that were stopped."""
        return self._made(self.root / "archive")

    @property
    def plans(self) -> Path:
        """The plans of dialogs in the default file."""
        return self._made(self.archive / "plans")

    @property
    def memory(self) -> Path:
        """The index over the archive, and the outcomes that the person recorded."""
        return self._made(self.root / "memory")

    @property
    def registry(self) -> Path:
        """One file per running daemon."""
        return self._made(self.root / "running")

    @property
    def sessions(self) -> Path:
        """The dialogs that programs began by MCP, and what is known of their processes."""
        return self._made(self.root / "sessions")

    @property
    def logs(self) -> Path:
        """The daemons' logs."""
        return self._made(self.root / "logs")

    def _made(self, path: Path) -> Path:
        try:
            make_folder(path)
            owner = self.root.stat().st_uid
        except OSError as error:
            raise UnsafeFile(
                f"{path} in the state directory cannot be used: {why(error)}",
                fix="move it away, or name another state directory with DIALOGD_STATE_DIR",
            ) from error
        if owner != os.geteuid():
            raise UnsafeFile(
                f"the state directory {self.root} belongs to another user (uid {owner})",
                fix="name one of your own with DIALOGD_STATE_DIR",
            )
        return path


def _key(file: Path) -> str:
    return f"{file.stem[:40]}-{hashlib.sha256(os.fsencode(_absolute(file))).hexdigest()[:12]}"


def _absolute(file: Path) -> Path:
    return file.resolve().parent / file.name


def file_of(folder: Path) -> Path | None:
    """The dialog file whose folder this is; None where that is not noted."""
    try:
        return Path(os.fsdecode((folder / PATH).read_bytes()))
    except (OSError, ValueError):
        return None


def listed_beside(folder: Path) -> Path:
    """Where the daemons are listed in the state directory that the folder of a dialog is in; not made by this."""
    return folder.parent.parent / "running"
