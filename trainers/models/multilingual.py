"""Import of models of many languages in Hugging Face's folders: M2M-100, NLLB-200 and SMaLL-100.

Their vocabulary is that of SentencePiece and a token for each language. It becomes a SentencePiece
model of this package, in which a token such as `__de__` or `deu_Latn` is the tag `>>de<<` or
`>>deu_Latn<<`.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.files import require_new
from keras_transformer.languages import find_language
from keras_transformer.run import Run
from keras_transformer.tokenizers import SentencePieceTokenizer
from keras_transformer.tokenizers.learning import (
    CONTROL,
    UNKNOWN,
    UNUSED,
    SourceTag,
    parse_sentencepiece,
    replace_pieces,
    special_pieces,
)
from keras_transformer.trainers.models.files import read_json, read_sentencepiece, read_vocabulary
from keras_transformer.trainers.models.folders import distinct, read_weights
from keras_transformer.trainers.models.options import SIZES, MultilingualOptions, read_settings
from keras_transformer.trainers.models.runs import Order, PublishedModel, write_run

SENTENCEPIECE = "sentencepiece.bpe.model"
SPECIAL_IDS = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
LANGUAGE_TOKEN = re.compile(r"__(\w+)__|([a-z]{3}_[A-Z][a-z]{3})")
# The languages of M2M-100, by their ids, where a folder does not list them.
LANGUAGES = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl "
        "gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
        "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl "
        "tn tr uk ur uz vi wo xh yi yo zh zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}


class Vocabulary(NamedTuple):
    """The pieces of a folder by their ids, and the languages that some of them stand for."""

    pieces: dict[str, int]
    languages: dict[str, int]


def import_multilingual(
    folder: str | Path, run_dir: str | Path, source: str | None, target: str | None
) -> Run:
    """Writes a model of many languages as a run directory, which all commands read.

    Args:
        folder: of Hugging Face's M2M-100, NLLB-200 or SMaLL-100: `config.json`, the weights as
            `model.safetensors` or `pytorch_model.bin`, in shards or not, and
            `sentencepiece.bpe.model`, with `vocab.json` unless it is NLLB-200's.
        run_dir: a directory that does not exist yet.
        source: language of a text that names none, as the model names it, or a common code.
        target: the same for translations.

    Raises:
        InputError: if the folder holds no such model, if it has no such language, or if `run_dir`
            exists.
    """
    folder, run_dir = Path(folder), Path(run_dir)
    require_new(run_dir)
    settings = read_settings(folder, MultilingualOptions)
    options = settings.options
    sentencepiece = _read_sentencepiece(folder)
    vocabulary = _read_vocabulary(folder, settings.tokenizer_config, sentencepiece)
    names = tuple(vocabulary.languages)
    if source is None or target is None:
        raise InputError(
            f"{folder} has {len(names)} languages: `source` and `target` must be given"
        )
    languages = find_language(source, names, "source "), find_language(target, names, "target ")
    source_tag = _source_tag(folder, settings.tokenizer_config)
    tokenizer, order = _tokenizer(sentencepiece, vocabulary, options.vocab_size, source_tag)
    weights = distinct(folder, read_weights(folder), is_shared=True, is_tied=True)
    model = PublishedModel(
        folder=folder,
        config=TransformerConfig(
            vocab_size=len(order),
            output_bias=True,
            position_encoding="marian",
            first_position=2,
            layer_norm_epsilon=1e-5,
            norm_first=True,
            **options.model_dump(include=SIZES),
        ),
        tokenizer=tokenizer.of_languages(languages),
        weights={**weights, "final_logits_bias": [0.0] * options.vocab_size},
        orders=[order],
        search={**settings.search, "length_penalty_kind": "marian"},
        languages=languages,
    )
    return write_run(model, run_dir)


def _read_sentencepiece(folder: Path) -> bytes:
    if not (folder / SENTENCEPIECE).is_file():
        raise InputError(
            f"{folder} must hold {SENTENCEPIECE}; tokenizer.json is not read. The model that this "
            "one was trained from has the file"
        )
    return read_sentencepiece(folder / SENTENCEPIECE)


def _source_tag(folder: Path, settings: dict[str, Any]) -> SourceTag:
    """Returns which language's token stands with a source, and where."""
    kind = str(settings.get("tokenizer_class", ""))
    if kind.startswith("SMALL100") or (folder / "tokenization_small100.py").exists():
        return "target"
    return "source at end" if settings.get("legacy_behaviour") else "source"


def _read_vocabulary(folder: Path, settings: dict[str, Any], model: bytes) -> Vocabulary:
    if (folder / "vocab.json").is_file():
        pieces = read_vocabulary(folder / "vocab.json")
    else:
        own = [piece.piece for piece in parse_sentencepiece(model).pieces]
        pieces = SPECIAL_IDS | {piece: i for i, piece in enumerate(own[3:], start=4)}
    for piece, index in SPECIAL_IDS.items():
        if pieces.get(piece) != index:
            raise InputError(
                f"{folder}: the id of {piece} must be {index}. Received: {pieces.get(piece)}"
            )
    return Vocabulary(pieces, _read_languages(folder, settings, len(pieces)))


def _read_languages(folder: Path, settings: dict[str, Any], first_id: int) -> dict[str, int]:
    """Returns the ids of languages by their names."""
    path = folder / "special_tokens_map.json"
    special = read_json(path) if path.is_file() else {}
    added = settings.get("added_tokens_decoder", {})
    for ids, listed in (
        (map(int, added), added.values()),
        (None, settings.get("additional_special_tokens", [])),
        (None, settings.get("extra_special_tokens", [])),
        (None, special.get("additional_special_tokens", [])),
    ):
        tokens = [str(token["content"] if isinstance(token, dict) else token) for token in listed]
        matches = [LANGUAGE_TOKEN.fullmatch(token) for token in tokens]
        names = [match[1] or match[2] for match in matches if match]
        if ids is not None:
            own_ids = [index for index, match in zip(ids, matches, strict=True) if match]
        else:
            own_ids = [*range(first_id, first_id + len(names))]
        if names:
            return dict(zip(names, own_ids, strict=True))
    codes = LANGUAGES.get(settings.get("language_codes", "m2m100"))
    if codes is None or not (folder / "vocab.json").is_file():
        raise InputError(
            f"{folder} must list the tokens of languages, such as deu_Latn, in "
            "tokenizer_config.json or special_tokens_map.json"
        )
    return {name: first_id + i for i, name in enumerate(codes.split())}


def _tokenizer(
    model: bytes, vocabulary: Vocabulary, size: int, source_tag: SourceTag
) -> tuple[SentencePieceTokenizer, Order]:
    """Returns the tokenizer of `size` ids, and the model's id at the place of each of its own."""
    message = parse_sentencepiece(model)
    own = {piece.piece: piece for piece in message.pieces if piece.type not in (UNKNOWN, CONTROL)}
    new = type(message.pieces[0])
    pieces = special_pieces(message)
    name_of = {index: piece for piece, index in vocabulary.pieces.items()}
    name_of |= {index: f">>{name}<<" for name, index in vocabulary.languages.items()}
    # The decoder starts with </s>. No translation has <s>, whose logit counts.
    order = [*(SPECIAL_IDS[piece] for piece in ("<pad>", "<unk>", "</s>", "</s>", "<s>"))]
    order += range(len(SPECIAL_IDS), size)
    for index in order[len(pieces) :]:
        name = name_of.get(index) if index else None
        pieces.append(own.pop(name, None) or new(piece=name or f"<unused_{index}>", type=CONTROL))
    for piece in own.values():  # which the model does not have
        piece.type = UNUSED
    replace_pieces(message, [*pieces, *own.values()])
    message.source_languages, message.source_tag = " ".join(vocabulary.languages), source_tag
    order += [-1] * len(own)
    return SentencePieceTokenizer(message.SerializeToString()), order
