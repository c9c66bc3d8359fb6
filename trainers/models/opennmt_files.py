"""The files of an OpenNMT-tf 2 model beside its checkpoint.

Each function raises `InputError` if its file cannot be read or holds something else.
"""

import ast
import logging
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pydantic
from pydantic import Field

from keras_transformer.errors import InputError, one_line
from keras_transformer.trainers.models.files import parse_yaml, read_bytes
from keras_transformer.trainers.models.options import check

logger = logging.getLogger(__name__)

SIDES = ("source", "target")
SPECIAL_TOKENS = ["<blank>", "<s>", "</s>"]  # the first ones of a vocabulary
# The Transformers of the catalogue that have absolute positions, and their heads.
CATALOGUE = {
    "Transformer": 8,
    "TransformerBase": 8,
    "TransformerBaseSharedEmbeddings": 8,
    "TransformerBig": 16,
    "TransformerBigSharedEmbeddings": 16,
    "TransformerTiny": 2,
    "ScalingNmtEnDe": 16,
    "ScalingNmtEnFr": 16,
}
ACTIVATIONS = {
    "tf.nn.relu": "relu",
    "tf.nn.swish": "swish",
    "tf.nn.silu": "swish",
    "tf.nn.gelu": "gelu",  # opennmt.layers.gelu is an approximation of it
}
# Options of a Transformer that its weights do not show, and the values that can be computed.
POSSIBLE_OPTIONS = {
    "ffn_activation": list(ACTIVATIONS),
    "maximum_relative_position": ["None"],
    "position_encoder_class": [
        f"{module}SinusoidalPositionEncoder" for module in ("opennmt.layers.", "layers.", "")
    ],
}
# Options of `params` that the search here does not have.
NO_SEARCH_OPTIONS = (
    "coverage_penalty",
    "decoding_noise",
    "minimum_decoding_length",
    "replace_unknown_target",
    "sampling_topk",
)


class _SentencePiece(pydantic.BaseModel, extra="forbid"):
    """Parameters of SentencePieceTokenizer."""

    model: str
    nbest_size: str = "0"  # for training, as alpha
    alpha: str = "1"


class _OpenNMTTokenizer(pydantic.BaseModel, extra="forbid"):
    """Parameters of OpenNMTTokenizer that leave everything to SentencePiece."""

    mode: Literal["none"]
    model: str = Field(alias="sp_model_path")
    sp_nbest_size: str = "0"  # for training, as sp_alpha
    sp_alpha: str = "1"


TOKENIZERS: dict[str, type[Any]] = {
    "OpenNMTTokenizer": _OpenNMTTokenizer,
    "SentencePieceTokenizer": _SentencePiece,
}


class Controls(pydantic.BaseModel):
    """The delimiters of a source."""

    start: bool = False
    end: bool = False


class DataOptions(pydantic.BaseModel):
    """The section `data`."""

    source_vocabulary: str
    target_vocabulary: str
    source_tokenization: dict[str, Any] | str | None = None
    target_tokenization: dict[str, Any] | str | None = None
    source_sequence_controls: Controls | None = None


class SearchOptions(pydantic.BaseModel, allow_inf_nan=False):
    """The section `params`, with the values of `--auto_config`."""

    beam_size: int = Field(4, alias="beam_width")
    length_penalty: float = 0.0


class Description(NamedTuple):
    """What model_description.py says of a model."""

    num_heads: int | None = None
    activation: str = "relu"
    ends_source: bool = False  # whether `--auto_config` ends sources with </s>


def find_yaml(folder: Path) -> Path:
    """Finds the YAML file that names vocabularies: in a model's folder, or in the two above."""
    for parent in (folder, *folder.resolve().parents[:2]):
        files = [path for path in sorted(parent.iterdir()) if path.suffix in (".yml", ".yaml")]
        files = [path for path in files if b"vocabulary:" in read_bytes(path)]
        if len(files) == 1:
            return files[0]
        if files:
            raise InputError(
                f"{parent} holds several YAML files of models, so `config` must name one of them. "
                f"Received: {', '.join(path.name for path in files)}"
            )
    raise InputError(
        f"{folder}, or a folder above it, must hold the YAML file that names the vocabularies, or "
        "`config` must name it"
    )


def read_options(path: Path) -> tuple[DataOptions, SearchOptions]:
    """Reads a YAML file."""
    content = parse_yaml(path, read_bytes(path))
    data, params = (content.get(name, {}) for name in ("data", "params"))
    for name, section in (("data", data), ("params", params)):
        if not isinstance(section, dict):
            raise InputError(f"{path}: `{name}` must be a mapping. Received: {section!r}")
    if ignored := [name for name in NO_SEARCH_OPTIONS if name in params]:
        logger.warning("%s: the search has no %s", path, ", ".join(ignored))
    # A name without a side is for both.
    both = {f"{side}_{name}": value for name, value in data.items() for side in SIDES}
    return check(path, DataOptions, both | data), check(path, SearchOptions, params)


def find_file(name: str, yaml: Path) -> Path:
    """Returns a file that a YAML file names; it may have moved to the YAML file's folder."""
    path = yaml.parent / name
    return path if path.is_file() else yaml.parent / path.name


def find_sentencepiece(tokenization: dict[str, Any] | str | None, yaml: Path) -> Path | None:
    """Returns the SentencePiece model of a tokenization; None if the text was cut beforehand."""
    if isinstance(tokenization, str):
        yaml = find_file(tokenization, yaml)
        tokenization = parse_yaml(yaml, read_bytes(yaml))
    if not tokenization:
        return None
    kind, params = tokenization.get("type"), tokenization.get("params")
    if kind is None:
        kind, params = "OpenNMTTokenizer", tokenization
    try:
        return find_file(TOKENIZERS[kind].model_validate(params).model, yaml)
    except (KeyError, pydantic.ValidationError) as error:
        raise InputError(
            f"{yaml}: the tokenization must be SentencePiece's alone, `mode: none` with "
            f"`sp_model_path`. Received: {one_line(tokenization)}"
        ) from error


def read_vocabulary(path: Path) -> list[str]:
    """Reads tokens by id. One more id, after theirs, is for unknown words."""
    text = read_bytes(path).decode("utf-8", "replace")
    tokens = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]
    if tokens[:3] != SPECIAL_TOKENS or len(set(tokens)) < len(tokens):
        raise InputError(
            f"{path} must hold different tokens, one on each line, and begin with "
            f"{', '.join(SPECIAL_TOKENS)}. Received: {one_line(', '.join(tokens[:3]))}"
        )
    return tokens


def read_description(path: Path) -> Description:
    """Reads model_description.py, which is not run."""
    try:
        nodes = list(ast.walk(ast.parse(read_bytes(path))))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{path} must hold Python: {one_line(error)}") from error
    names = {getattr(node, "attr", getattr(node, "id", "")) for node in nodes}
    options = {}
    for node in nodes:
        if isinstance(node, ast.keyword):
            options[node.arg] = ast.unparse(node.value)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("model_from_catalog"):
            names = {ast.unparse(argument).strip("'") for argument in node.args}
        elif isinstance(node, ast.Call) and len(node.args) > 4:  # the fifth one
            options.setdefault("num_heads", ast.unparse(node.args[4]))
    heads = {CATALOGUE[name] for name in names & CATALOGUE.keys()}
    if not heads:
        raise InputError(
            f"{path} must describe one of {', '.join(CATALOGUE)}, or a class that is based on one. "
            f"Received: {one_line(', '.join(sorted(names)))}"
        )
    for name, values in POSSIBLE_OPTIONS.items():
        if options.get(name, values[0]) not in values:
            raise InputError(
                f"{path}: `{name}` must be {' or '.join(values)}. Received: {options[name]}"
            )
    if "num_heads" in options:
        heads = {int(options["num_heads"])} if options["num_heads"].isdecimal() else set()
    return Description(
        heads.pop() if len(heads) == 1 else None,
        ACTIVATIONS[options.get("ffn_activation", "tf.nn.relu")],
        ends_source=any(name.startswith("ScalingNmt") for name in names),
    )
