"""SentencePiece models: their training, and their pieces."""

import functools
import io
import itertools
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from tempfile import NamedTemporaryFile
from typing import Any

import sentencepiece
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import Message

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError, one_line

WORD_MARK = "\u2581"  # begins the first piece of a word

# SentencePiece keeps its training sentences in memory; more of them hardly improve the subwords.
MAX_TRAINING_SENTENCES = 4_000_000
MAX_SENTENCE_BYTES = 2**20  # SentencePiece leaves longer lines out; its default is 4,192

# The fields of sentencepiece_model.proto that matter here. SentencePiece's own Python module needs
# protobuf 7, which Apache Beam (the extra `bulk`) excludes. Fields from 200 are extensions: ours
# mark a model that reads lower-cased text, and hold the normalizer of the target language.
_PROTO = """
name: "pieces.proto" package: "pieces" syntax: "proto2"
message_type {
  name: "SentencePiece"
  field { name: "piece" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "type" number: 3 type: TYPE_INT32 label: LABEL_OPTIONAL }
}
message_type {
  name: "TrainerSpec"
  field { name: "max_sentence_length" number: 18 type: TYPE_INT32 label: LABEL_OPTIONAL }
  field { name: "unk_id" number: 40 type: TYPE_INT32 label: LABEL_OPTIONAL default_value: "0" }
  field { name: "bos_id" number: 41 type: TYPE_INT32 label: LABEL_OPTIONAL default_value: "1" }
  field { name: "eos_id" number: 42 type: TYPE_INT32 label: LABEL_OPTIONAL default_value: "2" }
  field { name: "pad_id" number: 43 type: TYPE_INT32 label: LABEL_OPTIONAL default_value: "-1" }
  field { name: "unk_piece" number: 45 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "bos_piece" number: 46 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "eos_piece" number: 47 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "pad_piece" number: 48 type: TYPE_STRING label: LABEL_OPTIONAL }
}
message_type {
  name: "NormalizerSpec"
  field { name: "name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "precompiled_charsmap" number: 2 type: TYPE_BYTES label: LABEL_OPTIONAL }
  field { name: "normalization_rule_tsv" number: 6 type: TYPE_STRING label: LABEL_OPTIONAL }
}
message_type {
  name: "ModelProto"
  field {
    name: "pieces" number: 1 type: TYPE_MESSAGE type_name: "SentencePiece" label: LABEL_REPEATED
  }
  field {
    name: "trainer_spec" number: 2 type: TYPE_MESSAGE type_name: "TrainerSpec" label: LABEL_OPTIONAL
  }
  field {
    name: "normalizer_spec" number: 3 type: TYPE_MESSAGE
    type_name: "NormalizerSpec" label: LABEL_OPTIONAL
  }
  field { name: "lowercase" number: 200 type: TYPE_STRING label: LABEL_OPTIONAL }
  field {
    name: "target_normalizer_spec" number: 201 type: TYPE_MESSAGE
    type_name: "NormalizerSpec" label: LABEL_OPTIONAL
  }
}
"""


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
    """Trains a SentencePiece model that changes only what rules say, and runs of spaces.

    Characters outside the vocabulary become their bytes.

    Args:
        texts: as for `train_sentencepiece`.
        vocab_size: as for `train_sentencepiece`.
        rules: sequences of characters, and what replaces them. A model without any would log that.
        options: more of SentencePiece's options.
    """
    with NamedTemporaryFile("w", suffix=".tsv") as file:
        for sides in rules.items():
            print(
                *(" ".join(f"{ord(each):X}" for each in side) for side in sides),
                sep="\t",
                file=file,
            )
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


def parse_sentencepiece(model: bytes) -> Message:
    """Returns a SentencePiece model as a message with its `pieces`; it keeps unknown fields."""
    file = text_format.Parse(_PROTO, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("pieces.ModelProto"))
    return kind.FromString(model)
