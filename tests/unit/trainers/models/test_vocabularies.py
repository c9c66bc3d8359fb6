"""Vocabularies of Marian, read from YAML and JSON."""

import pytest

from keras_transformer.trainers.models.files import read_vocabulary

# Lines of vocabularies as Marian and other programs write them. Only "\n" ends a line.
LINES = {
    "</s>": "</s>",
    "\u2028": "\u2028",
    r'"\x92"': "\x92",
    r'"a\x07"': "a\x07",
    r'"\x85c"': "\x85c",
    r'"\u2028d"': "\u2028d",
    "no": "no",
    '"null"': "null",
    "1e5": "1e5",
    "3": "3",
    '"#"': "#",
    "\\": "\\",
    r'"\\n"': r"\n",
    r'"\""': '"',
    "it's": "it's",
    "''''": "'",
    "'\\x'": r"\x",
    '": 7"': ": 7",
    "<<": "<<",
    "\U0001f600": "\U0001f600",
    r'"\U0001F601"': "\U0001f601",
    '"\u2581>>deu<<"': "\u2581>>deu<<",
    '"\udcc1\udcbf"': "\ufffd\ufffd",  # Marian writes "\x7f" as the bytes C1 BF
}
LISTED = "\n".join([f"{line}: {i}" for i, line in enumerate(LINES)][::-1])


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (f"{LISTED}\n", LINES.values()),
        ('{"</s>": 0, "<unk>": 1, "a#": 2}', ["</s>", "<unk>", "a#"]),
        ('\n {\n"</s>": 0,\n"<unk>": 1,\n"a#": 2\n}', ["</s>", "<unk>", "a#"]),
        ("\ufeff---\n# of others\n</s>: 0\n<unk>: 1\na#: 2\n", ["</s>", "<unk>", "a#"]),
    ],
    ids=["marian", "json", "json in lines", "others"],
)
def test_each_piece_of_a_vocabulary_is_itself(text, pieces, tmp_path):
    (tmp_path / "vocab.yml").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert read_vocabulary(tmp_path / "vocab.yml") == {piece: i for i, piece in enumerate(pieces)}
