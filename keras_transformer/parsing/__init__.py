"""Constituency parsing (section 6.3): trees, their symbols and constraint, and their tokenizer."""

from keras_transformer.rooms import Architecture

ARCHITECTURES = {
    "next_word": Architecture(
        config="parsing.config:NextWordConfig",
        model="parsing.next_word:NextWordTransformer",
        step="parsing.next_word_step:NextWordStep",
    )
}
HEADER = b"# trees\n"  # of a tokenizer's file
TOKENIZERS = {HEADER: "parsing.tokenizer:TreeTokenizer"}
TASKS = {"parsing": "trainers.parsing.task:Parsing"}
