"""Texts in batches of about the same length, and the signatures that translate them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from keras_transformer.errors import InputError, one_line

DEFAULT_SIGNATURE = "serving_default"

# Texts in a batch. Every export takes so many in a request (`ServingOptions.max_texts`).
BATCH_ROWS = 64

Row = dict[str, Any]  # a signature's outputs for one text, by name
Text = TypeVar("Text", str, bytes)
Answer = TypeVar("Answer")


def by_length(
    texts: Sequence[Text],
    translate: Callable[[list[Text]], Sequence[Answer]],
    *,
    max_rows: int = BATCH_ROWS,
    max_size: int | None = None,
) -> list[Answer]:
    """Translates texts in batches of similar length: a batch takes as long as its longest text.

    Args:
        texts: in any order.
        translate: returns an answer for each text of a batch.
        max_rows: the maximum number of texts in a batch.
        max_size: the maximum of texts times the length of the longest of a batch; None for any.
            A longer text is a batch of its own.

    Returns:
        The answers in the order of the texts.

    Raises:
        ValueError: if `translate` does not return an answer for each text.
    """
    answers: dict[int, Answer] = {}
    batch: list[int] = []

    def flush() -> None:
        translated = translate([texts[number] for number in batch])
        answers.update(zip(batch, translated, strict=True))
        batch.clear()

    for number in sorted(range(len(texts)), key=lambda number: len(texts[number])):
        size = (len(batch) + 1) * len(texts[number])
        if len(batch) == max_rows or (batch and max_size is not None and size > max_size):
            flush()
        batch.append(number)
    if batch:
        flush()
    return [answers[number] for number in range(len(texts))]


def open_saved_model(
    path: str, signature: str = DEFAULT_SIGNATURE
) -> Callable[[Sequence[str | bytes]], list[Row]]:
    """Loads a SavedModel, and returns a function from texts to the outputs of a signature.

    Args:
        path: the folder of a version.
        signature: one that turns `text` into `translation`.

    Raises:
        InputError: if there is no such SavedModel or signature.
    """
    from keras_transformer.export.session import SavedModelSession

    try:
        session = SavedModelSession(path)
    except ValueError as error:
        raise InputError(one_line(error)) from error
    suitable = [
        name
        for name, tensors in session.signatures.items()
        if list(tensors.inputs) == ["text"] and "translation" in tensors.outputs
    ]
    if signature not in suitable:
        raise InputError(
            f"{path} has no signature {signature} that translates. There are: "
            f"{', '.join(sorted(suitable)) or 'none'}"
        )
    return functools.partial(session.translate, signature=signature)
