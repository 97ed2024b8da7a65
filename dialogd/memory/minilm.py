"""A small BERT (MiniLM) in numpy: a text as a vector of length 1, such that texts of like meaning lie close.

Read from `model.safetensors`, `vocab.txt` and `config.json` in one folder; the weights stay on the disk and are mapped.
"""

from __future__ import annotations

import json
import math
import os
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dialogd.memory.wordpiece import read_vocabulary, tokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

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
