"""The tokenizer of a parser: sentences and trees (section 6.3)."""

import base64
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self

import numpy as np
import tensorflow as tf
from google.protobuf.message import Message

from keras_transformer.config import EOS_ID
from keras_transformer.errors import InputError, one_line
from keras_transformer.parsing.symbols import TreeConstraint, TreeSymbols
from keras_transformer.search.constraints import Constraint
from keras_transformer.tokenizers.base import EncodedTexts, Tokenizer
from keras_transformer.tokenizers.learning import WORD_MARK, parse_sentencepiece, train_by_rules
from keras_transformer.tokenizers.sides import SPECIAL_PIECES, Side, index_pieces
from keras_transformer.tokenizers.subword import (
    SentencePieceSide,
    WordPieceSide,
    sentencepiece_sides,
)
from keras_transformer.tokenizers.wrappers import Visible, Wrapper

HEADER = b"# trees\n"  # of its file
MIN_COUNT = 5  # all words that occur less often have one entry in the dictionary
MIN_SHARE = 0.001  # a rarer tag of a word is taken for an error of annotation


class SentenceSide(SentencePieceSide):
    """Sentences whose words are separated by spaces; a parenthesis becomes -LRB- or -RRB-."""

    kind = "a parser"

    def sentencepiece_model(self) -> bytes:
        return Side.sentencepiece_model(self)  # raises an error

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        rules = {r"\p{Z}": " ", WORD_MARK: "_", r"\(": "-LRB-", r"\)": "-RRB-"}
        for pattern, replacement in rules.items():
            texts = tf.strings.regex_replace(texts, pattern, replacement)
        return super()._tokenize(texts)


class TreeTokenizer(Tokenizer):
    """Subwords of sentences, and the symbols of their trees (section 6.3).

    Its source is sentences, and its target linearized trees, of symbols separated by spaces. A
    search with it finds well-formed trees only, and `write` writes them in brackets. A word that
    is frequent in the treebank gets a tag that it has there (a tag dictionary, Ratnaparkhi 1996).
    The pieces that begin a word have the first ids, and so have the tags (`sizes`).

    Args:
        model: a header, then JSON.
    """

    splits_sentences = False

    def __init__(self, model: bytes) -> None:
        try:
            content = json.loads(model.removeprefix(HEADER))
            sentencepiece = base64.b64decode(content["sentencepiece"])
            sentences, *_ = sentencepiece_sides(sentencepiece, SentenceSide)
            self.symbols = TreeSymbols(tuple(content["tags"]), tuple(content["labels"]))
            dictionary = content["dictionary"]  # the first entry is for all words that have none
            self._tags = np.zeros((len(dictionary), len(self.symbols.tags)), bool)
            for entry, tags in enumerate(dictionary.values()):
                self._tags[entry, tags] = True
            self._entries = index_pieces([*dictionary], first_id=0, unknown_id=0)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise InputError("The tokenizer is damaged") from error
        trees = WordPieceSide([*SPECIAL_PIECES, *self.symbols.pieces], {})
        super().__init__(model, sentences, trees)
        pieces = parse_sentencepiece(sentencepiece).pieces
        num_first = sum(piece.piece.startswith(WORD_MARK) for piece in pieces)
        self._word_id_ends = EOS_ID + 1 + num_first, self.symbols.first_label

    @property
    def wrappers(self) -> Sequence[Wrapper]:
        """The words of a tree are those of its sentence, also in capitals."""
        return [Visible()]

    @property
    def sizes(self) -> dict[str, Any]:
        """Those of other tokenizers, and where the ids of words end, as `NextWordConfig` has it."""
        return {**super().sizes, "word_id_ends": self._word_id_ends}

    @classmethod
    def train(
        cls,
        pairs: Iterable[tuple[str, str]],
        vocab_size: int,
        model_type: Literal["bpe", "unigram"] = "bpe",
    ) -> Self:
        """Learns at most `vocab_size` subwords from sentences, and symbols from their trees."""
        parsed = [(sentence, tree.split(" ")) for sentence, tree in pairs]
        # `write` returns the words as they are.
        sentences = (sentence for sentence, _ in parsed)
        model = train_by_rules(sentences, vocab_size, {WORD_MARK: "_"}, model_type=model_type)
        symbols = TreeSymbols.of({symbol for _, tree in parsed for symbol in tree})
        if not symbols.labels:
            raise InputError("The treebank must have constituents. It has tagged words only")
        ids = {tag: i for i, tag in enumerate(symbols.tags)}
        counts: dict[str, Counter[int]] = {}
        for sentence, tree in parsed:
            words, tags = sentence.split(" "), [ids[symbol] for symbol in tree if symbol in ids]
            if len(tags) != len(words):
                raise InputError(
                    "No label of the treebank may also be a tag. Received: the symbols "
                    f"{one_line(' '.join(tree))} of a sentence of {len(words)} words"
                )
            for word, tag in zip(words, tags, strict=True):
                counts.setdefault(word, Counter())[tag] += 1
        rare = [word for word, tags in counts.items() if tags.total() < MIN_COUNT]
        of_rare = sum((counts.pop(word) for word in rare), Counter())
        content = {
            "sentencepiece": base64.b64encode(_words_first(model)).decode(),
            **symbols._asdict(),
            "dictionary": {
                "": _frequent(of_rare) or [*ids.values()],
                **{word: _frequent(tags) for word, tags in counts.items()},
            },
        }
        return cls(HEADER + json.dumps(content).encode())

    def constraints(self, source: EncodedTexts) -> list[Constraint]:
        words = self._words(source)
        entries = tf.ragged.map_flat_values(self._entries, words).to_tensor(0)
        entries = tf.pad(entries, [[0, 0], [0, 1]])
        num_words = tf.cast(words.row_lengths(), tf.int32)
        return [TreeConstraint(self.symbols, tf.constant(self._tags), entries, num_words)]

    def write(self, source: EncodedTexts, ids: tf.Tensor) -> tf.Tensor:
        """Writes trees in brackets, with the words of their sources."""
        return self.symbols.write(self._words(source), ids)

    def _words(self, source: EncodedTexts) -> tf.RaggedTensor:
        """Returns the words of sources, string [B, (words)]."""
        return tf.strings.split(self.source.detokenize(source.ids))


def _words_first(model: Message) -> bytes:
    """Moves the pieces that begin a word to the front, after the special ones."""
    special, rest = model.pieces[: EOS_ID + 1], model.pieces[EOS_ID + 1 :]
    rest.sort(key=lambda piece: not piece.piece.startswith(WORD_MARK))
    del model.pieces[:]
    model.pieces.extend([*special, *rest])
    return model.SerializeToString()


def _frequent(tags: Counter[int]) -> list[int]:
    """Returns the tags that are not rarer than `MIN_SHARE`."""
    return sorted(tag for tag in tags if tags[tag] >= MIN_SHARE * tags.total())
