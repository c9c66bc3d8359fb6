"""SentencePiece models: their training, and their pieces."""

import functools
import io
import itertools
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from tempfile import NamedTemporaryFile
from typing import Any, Literal

import sentencepiece
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError, one_line
from keras_transformer.languages import LANGUAGE_TAG
from keras_transformer.tokenizers.sides import SPECIAL_PIECES

WORD_MARK = "\u2581"  # begins the first piece of a word
# Types of pieces; no text has a control piece, and a text is never cut inside a user-defined one.
UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 2, 3, 4, 5
SPECIAL_IDS = {"pad": PAD_ID, "unk": UNK_ID, "bos": BOS_ID, "eos": EOS_ID}

# The tag that a source has in a model of several languages: before it the one of its target, or its
# own, before it or behind its end. In the last two cases, a translation begins with its own.
SourceTag = Literal["target", "source", "source at end"]

# SentencePiece keeps its training sentences in memory; more of them hardly improve the subwords.
MAX_TRAINING_SENTENCES = 4_000_000
MAX_SENTENCE_BYTES = 2**20  # SentencePiece leaves longer lines out; its default is 4,192

# The fields of sentencepiece_model.proto that matter here. SentencePiece's own Python module needs
# protobuf 7, which Apache Beam (the extra `bulk`) excludes. Fields from 200 are extensions: ours
# mark a model that reads lower-cased text, and hold the normalizer of the target language, the
# names of several source languages, the special pieces around a source, and a `SourceTag`.
_FIELDS: dict[str, tuple[tuple[Any, ...], ...]] = {  # name, number, type, and perhaps the default
    "SentencePiece": (("piece", 1, "STRING"), ("type", 3, "INT32")),
    "TrainerSpec": (
        ("max_sentence_length", 18, "INT32"),
        ("unk_id", 40, "INT32", "0"),
        ("bos_id", 41, "INT32", "1"),
        ("eos_id", 42, "INT32", "2"),
        ("pad_id", 43, "INT32", "-1"),
        ("unk_piece", 45, "STRING"),
        ("bos_piece", 46, "STRING"),
        ("eos_piece", 47, "STRING"),
        ("pad_piece", 48, "STRING"),
    ),
    "NormalizerSpec": (
        ("name", 1, "STRING"),
        ("precompiled_charsmap", 2, "BYTES"),
        ("normalization_rule_tsv", 6, "STRING"),
    ),
    "ModelProto": (
        ("pieces", 1, "SentencePiece"),
        ("trainer_spec", 2, "TrainerSpec"),
        ("normalizer_spec", 3, "NormalizerSpec"),
        ("lowercase", 200, "STRING"),
        ("target_normalizer_spec", 201, "NormalizerSpec"),
        ("source_languages", 202, "STRING"),
        ("delimiters", 203, "STRING"),
        ("source_tag", 204, "STRING", "target"),
    ),
}


def train_sentencepiece(texts: Iterable[str], vocab_size: int, **options: Any) -> bytes:
    """Trains a SentencePiece model with the special ids."""
    model = io.BytesIO()
    failures: list[BaseException] = []

    def sentences() -> Iterator[str]:
        try:
            yield from (text for text in texts if text.strip())
        except (Exception, KeyboardInterrupt) as error:
            failures.append(error)  # SentencePiece raises a RuntimeError in its place
            raise

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences(),
            input_sentence_size=MAX_TRAINING_SENTENCES,
            shuffle_input_sentence=True,
            max_sentence_length=MAX_SENTENCE_BYTES,
            model_writer=model,
            vocab_size=max(vocab_size, EOS_ID + 1),  # below, it does not name the minimum
            hard_vocab_limit=False,
            pad_id=PAD_ID,
            unk_id=UNK_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            minloglevel=2,
            **options,
        )
    except RuntimeError as error:
        if failures:
            raise failures[0] from None
        raise InputError(_training_failure(str(error), vocab_size)) from error
    return model.getvalue()


def train_by_rules(
    texts: Iterable[str], vocab_size: int, rules: Mapping[str, str], **options: Any
) -> Message:
    """Trains a model that changes only runs of spaces, and sequences as rules say.

    It has bytes for characters that it does not know.
    """
    with NamedTemporaryFile("w", suffix=".tsv") as file:
        for sides in rules.items():
            numbers = (" ".join(f"{ord(character):X}" for character in side) for side in sides)
            print(*numbers, sep="\t", file=file)
        file.flush()
        options |= {"byte_fallback": True, "normalization_rule_tsv": file.name}
        model = parse_sentencepiece(train_sentencepiece(texts, vocab_size, **options))
    model.normalizer_spec.ClearField("normalization_rule_tsv")  # the name of a temporary file
    model.trainer_spec.ClearField("max_sentence_length")  # the same model has the same file
    return model


@functools.cache
def compositions() -> dict[str, str]:
    """Returns all sequences that NFC composes to one character, and these characters.

    Unlike NFC, they neither decompose characters nor reorder marks, such as the Arabic shadda and
    the vowel after it.
    """
    composed, nfc = {}, functools.partial(unicodedata.normalize, "NFC")
    for character in map(chr, range(sys.maxunicode + 1)):
        first, *rest = list(unicodedata.normalize("NFD", character))
        if not rest or nfc(character) != character:
            continue
        for marks in itertools.permutations(rest):
            for i in range(len(marks)):
                sequence = nfc(first + "".join(marks[:i])) + "".join(marks[i:])
                if nfc(sequence) == character:
                    composed[sequence] = character
    return composed


def _training_failure(message: str, vocab_size: int) -> str:
    """Returns our message for a message of SentencePiece."""
    if minimum := re.search(r"smaller than required_chars. \d+ vs (\d+)", message):
        return (
            f"`vocab_size` must be at least {minimum[1]}, the number of fixed ids and of the "
            "corpus's characters, and pieces of words need more: leave it out for 8,000, or give "
            f"1,000 or more for a small corpus. Received: vocab_size={vocab_size}"
        )
    if "sentences_.empty" in message:
        return "The corpus holds no text to train a tokenizer from"
    return f"SentencePiece cannot train a vocabulary of {vocab_size}: {one_line(message)}"


def tags_of(message: Message) -> dict[str, int]:
    """Returns the pieces that ask for target languages, and their ids."""
    return {
        piece.piece: index
        for index, piece in enumerate(message.pieces)
        if piece.type == CONTROL and re.fullmatch(LANGUAGE_TAG, piece.piece)
    }


def add_languages(model: bytes, sources: Sequence[str], targets: Sequence[str]) -> bytes:
    """Adds names of sources, and tags of targets, which are pieces that no text has.

    Symbols keep the last ids.
    """
    message = parse_sentencepiece(model)
    message.source_languages = " ".join(
        dict.fromkeys([*message.source_languages.split(), *sources])
    )
    pieces, old = list(message.pieces), tags_of(message)
    tags = [f">>{name}<<" for name in targets]
    new = [type(pieces[0])(piece=tag, type=CONTROL) for tag in tags if tag not in old]
    symbols = [*itertools.takewhile(lambda piece: piece.type == USER_DEFINED, pieces[::-1])][::-1]
    del message.pieces[:]
    message.pieces.extend([*pieces[: len(pieces) - len(symbols)], *new, *symbols])
    return message.SerializeToString()


def special_pieces(message: Message) -> list[Message]:
    """Makes the special pieces of this package, in the order of their ids."""
    make = type(message.pieces[0])
    return [
        make(piece=piece, type=UNKNOWN if index == UNK_ID else CONTROL)
        for index, piece in enumerate(SPECIAL_PIECES)
    ]


def replace_pieces(message: Message, pieces: Sequence[Message]) -> None:
    """Replaces the pieces of a model; the first four are special, in the order of their ids."""
    for name, index in SPECIAL_IDS.items():
        setattr(message.trainer_spec, f"{name}_id", index)
        setattr(message.trainer_spec, f"{name}_piece", pieces[index].piece)
    del message.pieces[:]
    message.pieces.extend(pieces)


def parse_sentencepiece(model: bytes) -> Message:
    """Returns a SentencePiece model as a message with its `pieces`; it keeps unknown fields."""
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="p.proto", package="pieces", syntax="proto2")
    for message, fields in _FIELDS.items():
        added = file.message_type.add(name=message)
        for name, number, type_name, *default in fields:
            field = added.field.add(name=name, number=number, label=kind.LABEL_OPTIONAL)
            if type_name in _FIELDS:
                field.type, field.type_name = kind.TYPE_MESSAGE, type_name
            else:
                field.type = getattr(kind, f"TYPE_{type_name}")
            if name == "pieces":
                field.label = kind.LABEL_REPEATED
            if default:
                field.default_value = default[0]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    message_type = message_factory.GetMessageClass(pool.FindMessageTypeByName("pieces.ModelProto"))
    return message_type.FromString(model)
