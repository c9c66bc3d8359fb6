"""SacreBLEU's BLEU, with errors that say what is wrong."""

import sacrebleu

from keras_transformer.errors import InputError, one_line


def make_bleu(tokenize: str, lowercase: bool = False) -> sacrebleu.BLEU:
    """Returns sacreBLEU's BLEU; `InputError` if it has no such tokenizer, or cannot load it."""
    if tokenize not in sacrebleu.BLEU.TOKENIZERS:
        names = ", ".join(sacrebleu.BLEU.TOKENIZERS)
        raise InputError(f"`tokenize` must be one of {names}. Received: tokenize={tokenize!r}")
    try:
        # `force` turns off a warning about tokenized text.
        return sacrebleu.BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    except (Exception, SystemExit) as error:  # a missing package, or no network
        raise InputError(f"sacreBLEU cannot load {tokenize}: {one_line(error)}") from error
