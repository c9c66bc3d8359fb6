"""The files of Marian's and Hugging Face's folders, except weights of PyTorch.

Each function raises `InputError` if its file cannot be read or holds something else.
"""

import json
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from keras_transformer.errors import InputError, needs_extra, one_line
from keras_transformer.files import read_failure

# A line of a vocabulary: a piece in double quotes, in single ones, or plain, and its id.
_LINE = re.compile(r"""(?:"(.*)"|'(.*)'|(.*)):[ \t]+(\d+)\s*""")
_ESCAPE = re.compile(r"\\(?:x([\da-fA-F]{2})|u([\da-fA-F]{4})|U([\da-fA-F]{8})|(.?))")
_ESCAPED = dict(
    zip('0abtnvfre "/\\N_LP', '\0\a\b\t\n\v\f\r\x1b "/\\\x85\xa0\u2028\u2029', strict=True)
)


def read_bytes(path: Path) -> bytes:
    with read_failure(path):
        return path.read_bytes()


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object."""
    content = read_bytes(path)
    try:
        return _mapping(json.loads(content))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} must hold a JSON object: {one_line(error)}") from error


def parse_yaml(path: Path, content: bytes) -> dict[str, Any]:
    """Reads a mapping, whose values stay text."""
    with needs_extra("models"):
        import yaml
    try:  # not by libyaml, which dies of deep nesting
        return _mapping(yaml.load(content.rstrip(b"\0"), Loader=yaml.BaseLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path} must hold a YAML mapping: {one_line(error)}") from error


def _mapping(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError(f"it holds {content!r}")
    return content


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Reads the arrays of a Marian model."""
    content = BytesIO(read_bytes(path))
    try:
        with np.load(content) as archive:
            return {name: np.asarray(archive[name]) for name in archive.files}
    except Exception as error:  # a damaged archive may raise anything
        raise InputError(f"{path} must be a model of Marian (.npz)") from error


def read_sentencepiece(path: Path) -> bytes:
    """Reads a SentencePiece model."""
    content = read_bytes(path)
    try:
        sentencepiece.SentencePieceProcessor(model_proto=content)
    except RuntimeError as error:
        raise InputError(f"{path} must be a SentencePiece model") from error
    return content


def read_vocabulary(path: Path) -> dict[str, int]:
    """Reads the ids of pieces, of which </s> is one: a `.spm`, `.json` or `.yml`."""
    content: dict[str, Any]
    if path.suffix == ".spm":
        processor = sentencepiece.SentencePieceProcessor(model_proto=read_sentencepiece(path))
        content = {processor.id_to_piece(i): i for i in range(len(processor))}
    else:
        is_json = path.suffix == ".json" or read_bytes(path).lstrip().startswith(b"{")
        content = read_json(path) if is_json else _read_lines(path)
    try:
        "".join(content).encode()  # no half of a surrogate pair
        vocabulary = {piece: int(index) for piece, index in content.items()}
    except (ValueError, TypeError):
        vocabulary = {}
    if sorted(vocabulary.values()) != list(range(len(vocabulary))) or "</s>" not in vocabulary:
        raise InputError(f"{path} must hold pieces and their ids, </s> among them")
    return vocabulary


def _read_lines(path: Path) -> dict[str, str]:
    """Reads a vocabulary that Marian wrote: YAML, but with any bytes, and pieces such as `null`."""
    vocabulary = {}
    # Other line separators of Unicode are pieces.
    for line in read_bytes(path).decode("utf-8-sig", "replace").split("\n"):
        if line.strip() in ("", "---") or line.startswith("#"):  # a piece is in quotes then
            continue
        try:
            double, single, plain, index = _LINE.fullmatch(line).groups()  # type: ignore[union-attr]
            if double is not None:
                piece = _ESCAPE.sub(_unescape, double)
            else:
                piece = plain if single is None else single.replace("''", "'")
        except (AttributeError, KeyError, ValueError, OverflowError):
            raise InputError(
                f"{path} must hold a piece and its id on each line. Received: {line[:50]!r}"
            ) from None
        vocabulary[piece] = index
    return vocabulary


def _unescape(match: re.Match[str]) -> str:
    code = match[1] or match[2] or match[3]
    return chr(int(code, 16)) if code else _ESCAPED[match[4]]
