"""SentencePiece models: their training, and their pieces."""

import io
import re
from collections.abc import Iterable, Iterator
from typing import Any

import sentencepiece
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import Message

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError, one_line

# SentencePiece keeps its training sentences in memory; more of them hardly improve the subwords.
MAX_TRAINING_SENTENCES = 4_000_000

# The fields of sentencepiece_model.proto that matter here. SentencePiece's own Python module needs
# protobuf 7, which Apache Beam (the extra `bulk`) excludes.
_PROTO = """
name: "pieces.proto" package: "pieces" syntax: "proto2"
message_type {
  name: "SentencePiece"
  field { name: "piece" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "type" number: 3 type: TYPE_INT32 label: LABEL_OPTIONAL }
}
message_type {
  name: "TrainerSpec"
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
  name: "ModelProto"
  field {
    name: "pieces" number: 1 type: TYPE_MESSAGE type_name: "SentencePiece" label: LABEL_REPEATED
  }
  field {
    name: "trainer_spec" number: 2 type: TYPE_MESSAGE type_name: "TrainerSpec" label: LABEL_OPTIONAL
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


def _training_failure(message: str, vocab_size: int) -> str:
    """Returns our message for a message of SentencePiece."""
    if minimum := re.search(r"smaller than required_chars. \d+ vs (\d+)", message):
        return (
            f"`vocab_size` must be at least {minimum[1]}, the number of fixed ids and of the "
            f"corpus's characters. Received: vocab_size={vocab_size}"
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
