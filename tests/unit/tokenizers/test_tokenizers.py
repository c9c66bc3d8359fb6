"""Subwords: ids, normalisation, files, and the errors of training."""

# ruff: noqa: RUF001 -- all scripts

import io
import re
import unicodedata

import keras
import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_texts import CORPUS, VOCAB_SIZE, ids_of, round_trip

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError
from keras_transformer.tokenizers import (
    SentencePieceTokenizer,
    Tokenizer,
)
from keras_transformer.tokenizers.learning import train_sentencepiece

FIRST_BYTE = 4  # after pad, unk, bos, eos


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(CORPUS, VOCAB_SIZE)


def test_fixed_ids(tokenizer):
    assert (PAD_ID, UNK_ID, BOS_ID, EOS_ID) == (0, 1, 2, 3)
    assert tokenizer.source.pieces(tf.range(5)).numpy().tolist() == [
        b"<pad>", b"<unk>", b"<s>", b"</s>", b"<0x00>",
    ]  # fmt: skip
    assert tokenizer.vocab_size == VOCAB_SIZE


def test_ids_are_sentencepieces_own(tokenizer):
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    for text in (*CORPUS, "a cat 😀 sees öl", "x" * 97):
        assert ids_of(tokenizer, text) == processor.encode(text)


@pytest.mark.parametrize("text", ["שלום", "dog 😀 中"])
def test_unseen_characters_become_their_bytes(tokenizer, text):
    ids = ids_of(tokenizer, text)
    assert UNK_ID not in ids
    as_bytes = [i - FIRST_BYTE for i in ids if FIRST_BYTE <= i < FIRST_BYTE + 256]
    unseen = "".join(character for character in text if character not in "dog ")
    assert bytes(as_bytes) == unseen.encode()
    assert round_trip(tokenizer.source, text) == text


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(
        st.characters(max_codepoint=0x24FF, categories=["Lu", "Ll", "Nd", "Po"])
        | st.sampled_from(" \t\n\r\u00a0\u2003\u3000ﬁ①Ⅳ㎏ＡöÅ한中😀")
    )
)
def test_round_trip_is_nfkc_with_single_spaces(tokenizer, text):
    assert round_trip(tokenizer.source, text) == " ".join(
        unicodedata.normalize("NFKC", text).split()
    )


@pytest.fixture(scope="module")
def lowercase(tmp_path_factory):
    """Learned from capitals, saved and loaded."""
    path = tmp_path_factory.mktemp("lowercase") / "tokenizer.model"
    texts = [text.upper() if i % 2 else text.title() for i, text in enumerate(CORPUS)]
    SentencePieceTokenizer.train(texts, VOCAB_SIZE, lowercase=True).save(path)
    return Tokenizer.load(path)


def test_lowercase_learns_what_small_letters_teach(tokenizer, lowercase):
    of_small_letters = SentencePieceTokenizer.train([text.lower() for text in CORPUS], VOCAB_SIZE)
    for text in CORPUS:
        assert ids_of(lowercase, text.upper()) == ids_of(of_small_letters, text.lower())
    assert lowercase.lowercase
    assert not tokenizer.lowercase


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Die Straße", "die straße"),  # case folding would write "strasse"
        ("ＡⅣ Ǆ ™", "aiv dž tm"),  # capitals of NFKC
        ("ΟΔΟΣ, ΑΣ ΑΣ (ΣΟΣ) ΣΑΣ2", "οδος, ας ας (σος) σας2"),  # a sigma at the end of a word
        ("Σ ΟΣΣΑ ΑΣ\u0301Α ςσ", "σ οσσα ασ\u0301α ςσ"),
        ("İ", "i\u0307"),
    ],
)
def test_lowercase(lowercase, text, expected):
    assert round_trip(lowercase.source, text) == expected


def test_final_sigma_is_learned_and_read_alike():
    tokenizer = SentencePieceTokenizer.train(["ΟΔΟΣ ΣΟΦΟΣ"] * 3, 280, lowercase=True)
    pieces = tokenizer.source.pieces(tf.range(tokenizer.vocab_size)).numpy().tolist()
    assert "ος".encode() in pieces
    assert "οσ".encode() not in pieces
    assert ids_of(tokenizer, "ΟΔΟΣ ΣΟΦΟΣ.") == ids_of(tokenizer, "οδος σοφος.")


@pytest.mark.parametrize("control", ["\x00", "\x1b", "\x80", "\u2581"])
def test_control_characters_and_the_meta_symbol_are_blanks(tokenizer, control):
    assert round_trip(tokenizer.source, f"a{control}b") == "a b"


def test_truncation_at_the_boundary(tokenizer):
    text = "the red dog"
    tokens = ids_of(tokenizer, text)
    n = len(tokens)
    assert n > 3
    for max_length, expected, truncated in (
        (n + 2, tokens, False),
        (n + 1, tokens, False),  # just fits, EOS included
        (n, tokens[:-1], True),
        (2, tokens[:1], True),
    ):
        encoded = tokenizer.encode(tf.constant([text]), max_length)
        assert encoded.ids.numpy().tolist() == [[*expected, EOS_ID]]
        assert encoded.lengths.numpy().tolist() == [len(expected)]
        assert encoded.truncated.numpy().tolist() == [truncated]


class Rotated(SentencePieceTokenizer):
    """A source ends with two ids, and then its first token."""

    num_delimiters = 2

    def delimit(self, tokens):
        end = tf.fill([tokens.nrows(), 2], EOS_ID)
        return tf.concat([tokens[:, 1:], end, tokens[:, :1]], axis=1)


def test_sources_may_end_otherwise(tokenizer):
    rotated, text = Rotated(tokenizer.model), "the red dog"
    tokens = ids_of(tokenizer, text)
    n = len(tokens)
    for max_length, left in ((None, n), (n + 2, n), (n + 1, n - 1), (2, 0)):
        source, target = rotated.encode_pairs([text], [text], max_length, max_length)
        rest = [*tokens[1:left], EOS_ID, EOS_ID, *tokens[: min(left, 1)]]
        assert source.ids.numpy().tolist() == [rest]
        assert (source.lengths.numpy(), source.truncated.numpy()) == (left, left < n)
        last = n if max_length is None else min(n, max_length - 1)
        assert target.ids.numpy().tolist() == [[*tokens[:last], EOS_ID]]
    with pytest.raises(InputError, match=r"`max_length` must be at least 2. Received: max_.*=1"):
        rotated.encode([text], max_length=1)


def test_python_strings(tokenizer):
    texts = ["the red dog", "", "öl 😀 " * 300]
    encoded = tokenizer(texts)
    assert not encoded.truncated.numpy().any()
    assert tokenizer.source.decode(encoded.ids) == [texts[0], "", texts[2].strip()]
    with pytest.raises(InputError, match=r"`ids` must have the shape \[B, S\]. Received: .*\(2,\)"):
        tokenizer.source.decode([5, 7])
    with pytest.raises(InputError, match=r"`texts` must be a list of strings. Received: 'a cat'"):
        tokenizer.encode("a cat")
    with pytest.raises(InputError, match=r"`max_length` must be at least 1. Received: max_.*=0"):
        tokenizer.encode(["a cat"], max_length=0)
    assert tokenizer.source.decode([[BOS_ID, *ids_of(tokenizer, "a cat"), EOS_ID, PAD_ID]]) == [
        "a cat"
    ]


def test_rows_are_padded_to_the_longest(tokenizer):
    texts = ["the red dog", "", "cat", " \t\u00a0\n"]
    encoded = tokenizer.encode(tf.constant(texts), max_length=31)
    rows = [ids_of(tokenizer, text) for text in texts]
    length = len(rows[0]) + 1
    expected = [[*row, EOS_ID] + [PAD_ID] * (length - len(row) - 1) for row in rows]
    assert encoded.ids.numpy().tolist() == expected
    assert encoded.lengths.numpy().tolist() == [len(row) for row in rows]
    assert encoded.lengths.numpy()[[1, 3]].tolist() == [0, 0]
    assert not encoded.truncated.numpy().any()
    assert (encoded.ids.dtype, encoded.lengths.dtype) == (tf.int32, tf.int32)


@pytest.mark.parametrize(
    ("data", "replaced"),
    [
        (b"a\xffb", "a\ufffdb"),  # never in UTF-8
        (b"dog \xe4\xb8", "dog \ufffd"),  # the first two of three bytes
        (b"\xed\xa0\x80", "\ufffd"),  # a surrogate
        (b"\xc0\x80", "\ufffd"),  # an overlong NUL
    ],
)
def test_invalid_utf8_reads_as_replacement_characters(tokenizer, data, replaced):
    ids = ids_of(tokenizer, data)
    assert ids == ids_of(tokenizer, replaced)
    assert UNK_ID not in ids


@pytest.mark.parametrize("half", [["<0xF0>", "<0x9F>"], ["▁", "<0xE4>"]])
def test_half_a_character_leaves_no_space(tokenizer, half):
    pieces = tokenizer.source.pieces(tf.range(tokenizer.vocab_size)).numpy().tolist()
    half = [pieces.index(each.encode()) for each in half]
    red, cat = ids_of(tokenizer, "red"), ids_of(tokenizer, "cat")
    source = tokenizer.encode(tf.constant(["red"]))
    rows = [[*red, *half], [*half, *red], [*red, *half, *cat], half]
    ids = tf.ragged.constant([rows], dtype=tf.int32).to_tensor(0)
    assert tokenizer.write(source, ids).numpy().tolist() == [[b"red", b"red", b"red cat", b""]]
    assert tokenizer.write(source, ids[:, None]).numpy()[0, 0, 3] == b""


def test_survives_setting_the_random_seed(tokenizer):
    # TensorFlow clears its kernels, and a kept SentencePiece op would lose its model.
    before = ids_of(tokenizer, "the cat")
    keras.utils.set_random_seed(17)
    assert ids_of(tokenizer, "the cat") == before
    assert round_trip(tokenizer.source, "the cat") == "the cat"


def test_a_loaded_graph_has_the_normal_form_of_each_side(tokenizer, tmp_path):
    """`tf.saved_model.load` gives ops of one name one resource."""
    shared, module = tokenizer.shared(), tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def tokens(texts):
        return [side.tokenize(texts).to_tensor() for side in (shared.source, shared.target)]

    module.tokens = tokens
    tf.saved_model.save(module, str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    texts = [tokenizer.target.decode(ids) for ids in loaded.tokens(tf.constant(["½\u00a0Öl"]))]
    assert texts == [["1⁄2 Öl"], ["½\u00a0Öl"]]


def test_save_and_load(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "t.model")
    loaded = Tokenizer.load(tmp_path / "t.model")
    assert loaded.fingerprint == tokenizer.fingerprint
    assert ids_of(loaded, CORPUS[1]) == ids_of(tokenizer, CORPUS[1])
    other = SentencePieceTokenizer.train(CORPUS, VOCAB_SIZE - 2)
    assert other.fingerprint != tokenizer.fingerprint


@pytest.mark.parametrize("content", [None, b"", b"no model"])
def test_missing_and_wrong_files(content, tmp_path):
    path = tmp_path / "t.model"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=re.escape(str(path))):
        Tokenizer.load(path)


def test_foreign_special_ids():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, vocab_size=29, minloglevel=2
    )
    message = "ids for pad, unk, bos, eos must be 0, 1, 2, 3. Received: -1, 0, 1, 2"
    with pytest.raises(InputError, match=message):
        SentencePieceTokenizer(model.getvalue())


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_vocabulary_is_as_large_as_the_texts_allow(model_type):
    largest = SentencePieceTokenizer.train(CORPUS, 5000, model_type).vocab_size
    assert 281 < largest < 500  # 260 fixed ids and 21 characters
    assert SentencePieceTokenizer.train(CORPUS, largest - 1, model_type).vocab_size == largest - 1


@pytest.mark.parametrize("vocab_size", [0, 265])
def test_vocabulary_too_small(vocab_size):
    # 260 fixed ids, the five letters of the corpus, and the mark of a word's start.
    texts = ["abcde", "edcba", "abc de"]
    message = f"`vocab_size` must be at least 266, .* Received: vocab_size={vocab_size}"
    with pytest.raises(InputError, match=message):
        SentencePieceTokenizer.train(texts, vocab_size)
    assert SentencePieceTokenizer.train(texts, 266).vocab_size == 266


def test_long_lines_are_learned_from():
    tokenizer = SentencePieceTokenizer.train(["волокно сильный " * 300, "a dog"] * 9, 330)
    assert tokenizer.source.tokenize(tf.constant(["волокно сильный"])).row_lengths()[0] < 6


# Targets: what is written is what the training text has.

TARGETS = {
    "fa": "\u200fمی\u200cخواهم کتاب\u200cها را بخوانم؛ قطعِّی است",
    "zh": "请打开“新文件”（全部），然后……好吗？１００％！",
    "fr": "Êtes-vous «\u00a0prêt\u00a0»\u202f? L’œuf pèse ½\u202fkg\u00a0!",
    "ml": "അവന്\u200d വന്നു, ക്\u200cഷ",
    "de": "„Größe“: 5 m² – № 7™ …",
    "ar": "\u202bالسِّمات\u202c هُنا\u200e، نَعَم",
    "ja": "ﾊﾝｶｸ　と　全角：「１２３～ＡＢＣ」",
    "hi": "\u092a\u0922\u093c\u093e \u092a\u095d\u093e",  # a letter and its dot, together or apart
}


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_targets_are_written_as_they_are(model_type, tmp_path):
    sources = [f"line {language} " * 3 for language in TARGETS]
    trained = SentencePieceTokenizer.train(sources, 600, model_type, targets=TARGETS.values())
    trained.save(tmp_path / "t.model")
    target = Tokenizer.load(tmp_path / "t.model").target
    ids = target.tokenize([*TARGETS.values()]).to_tensor()
    assert target.decode(ids) == [*TARGETS.values()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  a   b  ", "a b"),
        ("\u00a0a\u2003\u2003b\u3000", "\u00a0a\u2003\u2003b\u3000"),
        ("a\tb\x85c\u2581d▁", "a b c_d_"),
        (b"a\xffb", "a\ufffdb"),
        ("</s> <unk> <0x41>", "</s> <unk> <0x41>"),
        ("e\u0301\u0301 o\u0323\u0302 o\u0302\u0323 ô\u0323", "é\u0301 ộ ộ ộ"),
        ("\u1112\u1161\u11ab \ud558\u11ab \u1112\u1161", "한 한 하"),
        ("\u2126 \u212b \ufa10", "\u2126 \u212b \ufa10"),  # NFC would decompose these
    ],
)
def test_normal_form_of_targets(tokenizer, text, expected):
    assert round_trip(tokenizer.target, text) == expected


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\u2581")))
def test_targets_are_canonically_equivalent(tokenizer, text):
    single = re.sub(" +", " ", text).strip(" ")
    found = round_trip(tokenizer.target, text)
    assert unicodedata.normalize("NFC", found) == unicodedata.normalize("NFC", single)
    composed = unicodedata.normalize("NFC", single)
    assert round_trip(tokenizer.target, composed) == composed


def test_pieces_are_learned_as_each_side_is_read():
    tokenizer = SentencePieceTokenizer.train(["ｘ，ｙ"] * 3, 300, targets=["ａ：ｂ"] * 3)
    pieces = b"".join(tokenizer.source.pieces(tf.range(260, tokenizer.vocab_size)).numpy()).decode()
    assert {*pieces} == {"\u2581", *"x,y", *"ａ：ｂ"}


def test_lower_case_targets_are_written_as_they_are(lowercase):
    text = "Die GRÖSSE™:\u00a05 M² ＡＢ… E\u0301 İ ΟΔΟΣ"
    expected = "die grösse™:\u00a05 m² ａｂ… é i\u0307 οδος"
    assert round_trip(lowercase.target, text) == expected


def test_both_sides_share_their_pieces(tokenizer):
    assert tokenizer.shares_pieces
    ids = tf.range(tokenizer.vocab_size)
    source, target = (side.pieces(ids).numpy() for side in (tokenizer.source, tokenizer.target))
    assert source.tolist() == target.tolist()
    models = [side.sentencepiece_model() for side in (tokenizer.source, tokenizer.target)]
    processors = [sentencepiece.SentencePieceProcessor(model_proto=model) for model in models]
    read = [processor.decode(processor.encode("öl\u00a0½…")) for processor in processors]
    assert read == ["öl 1⁄2...", "öl\u00a0½…"]


def test_models_of_one_normal_form_keep_it(tmp_path):
    """As others write them."""
    options = {"model_type": "bpe", "byte_fallback": True}
    (tmp_path / "t.model").write_bytes(train_sentencepiece(CORPUS, VOCAB_SIZE, **options))
    tokenizer = Tokenizer.load(tmp_path / "t.model")
    assert tokenizer.target is tokenizer.source
    assert round_trip(tokenizer.target, "Öl\u00a0½…") == "Öl 1⁄2..."


def test_damaged_target_normalizer(tokenizer):
    with pytest.raises(InputError, match="The tokenizer is not a SentencePiece model"):
        SentencePieceTokenizer(tokenizer.model + b"\xca\x0c\x02\x0a\x7f")  # it ends too early
