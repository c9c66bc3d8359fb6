"""Protected strings come back as they were."""

import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.protection.tokenizer import HEADER, ProtectingTokenizer
from keras_transformer.protection.wrapper import NUM_SLOTS, SLOTS
from keras_transformer.texts.prefixes import read_prefixes
from keras_transformer.texts.sentences import split_sentences
from keras_transformer.tokenizers import SentencePieceTokenizer, Tokenizer, WordPieceTokenizer

PROTECT = ["tags", "placeholders", "urls", "symbols"]
PAIRS = [
    ("Delete {name}?", "Smazat {name}?"),
    ("no link '%s' -> '%d'", "bez '%d' -> '%s' odkaz"),
    ("<b>Save</b> 5 %s", "Uložit <b>5</b> %s"),
    ("the word %s", "slovo"),
    ("word", "slovo %s"),
] * 9
TEXTS = [
    "Delete {name}?",
    "'%s'%d%% ",
    "<b>Save</b> a &amp; b",
    "",
    "word",
    "%s" * 5,
    "保存{0}个文件。",
    " <a href='x\ny'>  %1$s</a>",
]


@pytest.fixture(scope="module")
def tokenizer():
    return ProtectingTokenizer.learn(lambda: PAIRS, 360, PROTECT)


def write(tokenizer, texts, ids):
    """Writes results, the ids of each text [K, T], as Python strings."""
    source = tokenizer.encode(tf.constant(texts))
    written = tokenizer.write(source, tf.ragged.constant(ids).to_tensor(0))
    return [[text.decode() for text in row] for row in written.numpy()]


def kept_in(source):
    """The protected strings of texts."""
    strings = source.context[0].strings.numpy()
    return [[text.decode() for text in row if text] for row in strings]


def slots(tokenizer, text):
    """The numbers of a text's slots, from 0."""
    ids = tokenizer.encode(tf.constant([text])).ids.numpy()[0]
    return [int(each) - tokenizer.first_slot for each in ids if each >= tokenizer.first_slot]


def test_a_source_is_written_as_it_was(tokenizer):
    source = tokenizer.encode(tf.constant(TEXTS))
    written = tokenizer.write(source, source.ids[:, None])[:, 0].numpy()
    expected = [*TEXTS[:-1], TEXTS[-1].strip().replace(">  ", "> ")]
    expected[1] = expected[1].strip()
    assert [text.decode() for text in written] == expected


@pytest.mark.parametrize(
    "string",
    ['<!-- "No." Then -->', "<a title='Is it?) Two'>", "<!-- a.\u00a0B -->", "<a\nb>", "{保。存}"],
)
def test_no_sentence_ends_in_a_protected_string(tokenizer, string):
    hidden, restore = tokenizer.wrapper.hide(
        tf.constant(["", f"A {string} bee. Me@x.org is {string}."])
    )
    parts = restore(split_sentences(hidden)).to_list()
    expected = ["", f"A {string} bee.", " ", f"Me@x.org is {string}."]
    assert [part.decode() for row in parts for part in row] == expected


def test_slots_are_numbered_by_first_appearance(tokenizer):
    assert slots(tokenizer, "%d '%s' %d {a}<b>%s") == [0, 1, 0, 2, 3, 1]
    assert kept_in(tokenizer.encode(["%d of {a}", "%d"])) == [["%d", "{a}"], ["%d"]]


def test_percentages_are_text(tokenizer):
    text = "50%iger 80%-ige 5%-10%ige 3% %1%2 sha256%s 100%% https://a.org/b%20final.pdf"
    assert slots(tokenizer, text) == [0, 1, 2, 3, 4]
    source = tokenizer.encode(tf.constant([text]))
    assert tokenizer.write(source, source.ids[:, None])[0, 0].numpy().decode() == text


def test_no_text_is_a_slot(tokenizer):
    assert slots(tokenizer, f"a {SLOTS[0]} b{SLOTS[-1]}") == [0, 0]  # two U+FFFD, symbols
    pieces = tokenizer.source.pieces(tf.range(tokenizer.vocab_size)).numpy()
    names = {piece.decode(): number for number, piece in enumerate(pieces)}
    spelled = [names[f"<0x{byte:02X}>"] for byte in SLOTS[0].encode()]
    ((written,),) = write(tokenizer, ["%s"], [[[*spelled, tokenizer.first_slot]]])
    assert written.endswith("%s")
    assert SLOTS[0] not in written


def test_strings_that_share_a_slot_keep_their_order(tokenizer):
    strings = [f"<t{number}>" for number in range(NUM_SLOTS + 2)]
    text = "".join(strings)
    assert slots(tokenizer, text)[-3:] == [NUM_SLOTS - 1, 0, 1]
    first = tokenizer.first_slot
    ids = [[[first, first, first + 1], [first + 1] * 3]]
    assert write(tokenizer, [text], ids) == [
        ["<t0><t32><t1>", "<t1><t33><t33>"]  # more often than in the source: the last again
    ]
    source = tokenizer.encode(tf.constant([text]))
    words = tokenizer.write(source, tf.constant([[[[first], [first + 1], [first]]]]))
    assert words.numpy().tolist() == [[[b"<t0>", b"<t1>", b"<t32>"]]]


def test_the_translation_of_a_term_takes_its_place(tokenizer):
    source = tokenizer.encode(tf.constant(["Delete ⟦the file|soubor⟧ {a}, ⟦x|⟧"]))
    (written,) = tokenizer.write(source, source.ids[:, None])[:, 0].numpy()
    assert written.decode() == "Delete soubor {a},"


def test_strings_in_a_text_in_capitals_stay(tokenizer):
    source = tokenizer.encode(tf.constant(["DELETE %s: {name}, ⟦FILE|Datei⟧?"]))
    (text,) = tokenizer.write(source, source.ids[:, None]).numpy()[:, 0]
    assert text.decode() == "DELETE %s: {name}, Datei?"


def test_pairs_share_slots(tokenizer):
    sources, targets = zip(*PAIRS[:5], strict=True)
    _, context = tokenizer.wrapper.read(tf.constant(sources))
    _, agree = tokenizer.wrapper.read_targets(context, tf.constant(targets))
    assert agree.numpy().tolist() == [True, True, True, False, False]
    source, target = tokenizer.encode_pairs(tf.constant(sources), tf.constant(targets))
    found = [
        [number - tokenizer.first_slot for number in row if number >= tokenizer.first_slot]
        for row in target.ids.numpy().tolist()
    ]
    assert found == [[0], [1, 0], [0, 1, 2], [], []]  # what only a target protects is text
    written = tokenizer.write(source, target.ids[:, None])[:, 0].numpy()
    assert [text.decode() for text in written] == list(targets)


def test_the_constraint_counts_strings_and_pairs_tags(tokenizer):
    texts = ["%s <b>x</b> %s<br/>", "<i><a y></a> %d", "x", "</b> <b>"]
    texts += ["<a 1></a> <a 2></a>", "<0>x</0>"]
    source = tokenizer.encode(tf.constant(texts))
    found = tokenizer.constraints(source)[0].counts
    assert found.least.numpy()[:, :5].tolist() == [
        [2, 1, 1, 1, 0],
        [1, 1, 1, 1, 0],
        [0] * 5,
        [1, 1, 0, 0, 0],
        [1, 2, 1, 0, 0],
        [1, 1, 0, 0, 0],
    ]
    assert found.most.numpy().tolist() == found.least.numpy().tolist()
    assert tf.where(found.opening).numpy().tolist() == [
        [0, 2, 1],
        [1, 2, 1],
        [4, 1, 0],
        [4, 1, 2],
        [5, 1, 0],
    ]
    assert tf.where(found.closing).numpy().tolist() == [
        [0, 2, 2],
        [1, 2, 2],
        [3, 0, 0],
        [4, 1, 1],
        [5, 1, 1],
    ]


def test_places_of_strings(tokenizer):
    texts = ["the %s word %d%s.", "{a}word{a}", "word", "<b> %s word"]
    found = tokenizer.constraints(tokenizer.encode(tf.constant(texts)))[0].counts
    order = [[0, 1, 0], [0, 0, -1], [-1] * 3, [0, 1, -1]]
    assert found.order.numpy().tolist() == order
    is_place = found.order.numpy() >= 0
    assert found.ranks.numpy()[is_place].tolist() == [0, 0, 1, 0, 1, 0, 0]
    assert found.spaced.numpy()[is_place].tolist() == [True, True, False, False, False, True, True]
    assert found.is_last.numpy().tolist() == [False, True, False, False]


def test_a_prefix_keeps_its_strings_of_a_shared_slot(tokenizer):
    strings = [f"<t{number}>" for number in range(NUM_SLOTS + 2)]
    texts = tf.constant(["".join(strings), "<a>%s<a>"])
    prefixes = tf.constant(["<t33><t0><t2>", ""])
    given, source = read_prefixes(tokenizer, tokenizer.encode(texts), prefixes)
    prefix = given.tokens[0].numpy().tolist()
    first = tokenizer.first_slot
    written = tokenizer.write(source, tf.constant([[[*prefix, first, first + 1]], [[0] * 6]]))
    assert written.numpy()[0, 0] == b"<t33><t0><t2><t32><t1>"
    kept = kept_in(source)
    assert sorted(kept[0]) == sorted(strings)
    assert kept[1] == ["<a>", "%s", "<a>"]


def test_own_expressions_may_have_percentages_or_find_nothing():
    own = ProtectingTokenizer.learn(lambda: PAIRS, 360, ["[0-9]+%", "placeholders"])
    assert slots(own, "50% of 5%iger") == [0, 1]
    codes = ProtectingTokenizer.learn(lambda: PAIRS, 360, ["[0-9]+%[A-Z]{2}"])
    assert slots(codes, "100%CP 5%iger") == [0]
    both = ProtectingTokenizer.learn(lambda: PAIRS, 360, ["[0-9]+%[A-Z]{2}", "placeholders"])
    assert slots(both, "100%CP 5%iger %s") == [0, 1]
    empty = ProtectingTokenizer.learn(lambda: PAIRS, 360, [r"\b"])
    assert slots(empty, "a word %s") == []


def test_a_free_model_decides_how_often(tokenizer):
    free = ProtectingTokenizer.learn(lambda: PAIRS, 360, PROTECT, free=True)
    found = free.constraints(free.encode(tf.constant(["%s <b>x</b>", "x"])))[0].counts
    assert found.least.numpy().max() == 0
    assert (found.most.numpy()[:, :4] > 0).tolist() == [[True] * 3 + [False], [False] * 4]


def test_pieces_and_file(tokenizer, tmp_path):
    ids = tokenizer.encode(tf.constant(["{a} word"])).ids
    pieces = [piece.decode() for piece in tokenizer.source.pieces(ids)[0].numpy()]
    assert pieces[:2] == ["▁", "⟦1⟧"]
    assert tokenizer.shares_pieces
    tokenizer.save(tmp_path / "tokenizer.model")
    loaded = Tokenizer.load(tmp_path / "tokenizer.model")
    assert isinstance(loaded, ProtectingTokenizer)
    assert (loaded.protect, loaded.fingerprint) == (PROTECT, tokenizer.fingerprint)


def test_extension_keeps_the_ids():
    plain = SentencePieceTokenizer.train([text for pair in PAIRS for text in pair], 300)
    extended = ProtectingTokenizer.extend(plain, PAIRS, PROTECT)
    assert extended.vocab_size == plain.vocab_size + NUM_SLOTS
    assert (
        extended.source.tokenize(["the word"]).to_list()
        == plain.source.tokenize(["the word"]).to_list()
    )
    assert slots(extended, "the {a} word %s") == [0, 1]
    assert ProtectingTokenizer.extend(extended, PAIRS, PROTECT) is extended
    with pytest.raises(InputError, match=r"`protect` must be that of `init_from`, \['tags'"):
        ProtectingTokenizer.extend(extended, PAIRS, ["tags"])
    with pytest.raises(InputError, match=r"of SentencePiece\. Received: a WordPieceTokenizer"):
        ProtectingTokenizer.extend(WordPieceTokenizer.train(["a b"] * 9, 40), PAIRS, PROTECT)


def test_bad_files_and_other_engines(tokenizer):
    for model in (HEADER + b"{}", HEADER + b'{"sentencepiece": 1}', HEADER + b"\xff"):
        with pytest.raises(InputError, match="damaged"):
            ProtectingTokenizer(model)
    with pytest.raises(InputError, match="Other engines"):
        tokenizer.source.sentencepiece_model()
