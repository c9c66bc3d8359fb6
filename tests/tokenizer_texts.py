"""Texts that tokenizers are trained from, and texts as ids and back."""

import tensorflow as tf

CORPUS = ["the red dog sees the cat", "der rote Hund sieht die Katze", "öl über alles"] * 3
VOCAB_SIZE = 293


def ids_of(tokenizer, text):
    return tokenizer.source.tokenize(tf.constant([text])).to_list()[0]


def round_trip(side, text):
    return side.detokenize(side.tokenize(tf.constant([text]))).numpy()[0].decode()
