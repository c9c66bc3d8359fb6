"""Protected strings: placeholders, tags, addresses and symbols that a translation keeps."""

PROTECTS = {  # the sets of `patterns.py`, and what they have
    "tags": "tags and entities of XML and HTML",
    "urls": "addresses of web and mail",
    "placeholders": "such as %s and {name}",
    "options": "of commands, such as --help and -h",
    "symbols": "emoji and other symbols",
    "foreign": "letters of scripts that the training text does not have",
}
HEADER = b"# protected\n"  # of a tokenizer's file
TOKENIZERS = {HEADER: "protection.tokenizer:ProtectingTokenizer"}
