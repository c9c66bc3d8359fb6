"""Training of SentencePiece models."""

import io
import re
from collections.abc import Iterable, Iterator
from typing import Any

import sentencepiece

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError, one_line

# SentencePiece keeps its training sentences in memory; more of them hardly improve the subwords.
MAX_TRAINING_SENTENCES = 4_000_000


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
            vocab_size=max(vocab_size, EOS_ID + 1),  # it says what it needs only from there on
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
            "`vocab_size` must be at least the fixed ids and the corpus's characters, "
            f"{minimum[1]}. Received: vocab_size={vocab_size}"
        )
    if "sentences_.empty" in message:
        return "The corpus holds no text to train a tokenizer from"
    return f"SentencePiece cannot train a vocabulary of {vocab_size}: {one_line(message)}"
