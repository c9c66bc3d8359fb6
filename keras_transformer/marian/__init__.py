"""What Marian's models have: the layout of their weights, and their tokenizer."""

HEADER = b"# marian\n"  # of a tokenizer's file
TOKENIZERS = {HEADER: "marian.tokenizer:MarianTokenizer"}
