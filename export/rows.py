"""Texts in batches of about the same length, and the signatures that translate them."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from keras_transformer.errors import InputError, one_line

DEFAULT_SIGNATURE = "serving_default"

# The maximum number of texts in a batch. Every export takes as many in a request (`max_texts`).
BATCH_ROWS = 64

# The maximum of the texts of a request times the bytes of its longest text. Even with a token for
# each byte, a request to `document` keeps to the default of `max_document_tokens`.
REQUEST_BYTES = 2**13

Row = dict[str, Any]  # a signature's outputs for one text, by name
Text = TypeVar("Text", str, bytes)
Answer = TypeVar("Answer")


def by_length(
    texts: Sequence[Text],
    translate: Callable[[list[Text]], Sequence[Answer]],
    *,
    max_rows: int = BATCH_ROWS,
    max_size: float = math.inf,
) -> list[Answer]:
    """Translates texts in batches of about one length; the answers keep the order of the texts.

    A batch takes as long as its longest text. It has at most `max_rows` texts, and their number
    times the length of the longest is at most `max_size`. A longer text is a batch of its own.
    """
    batches: list[list[int]] = []
    for number in sorted(range(len(texts)), key=lambda number: len(texts[number])):
        count = len(batches[-1]) if batches else max_rows
        if count == max_rows or (count + 1) * len(texts[number]) > max_size:
            batches.append([])
        batches[-1].append(number)
    answers: dict[int, Answer] = {}
    for batch in batches:
        answers |= zip(batch, translate([texts[number] for number in batch]), strict=True)
    return [answers[number] for number in range(len(texts))]


def open_saved_model(
    path: str, signature: str, optimize: bool = False
) -> Callable[[Sequence[str | bytes]], list[Row]]:
    """Loads a version, and returns a function from texts to the outputs of a signature.

    With `optimize`, the first call takes longer, and later ones less time.

    Raises:
        InputError: if the signature does not turn `text` into `translation`, or cannot be loaded;
            by the function, if the graph refuses the texts.
    """
    from keras_transformer.export.session import SavedModelSession, SessionError, message_of

    try:
        session = SavedModelSession(path, optimize)
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

    def translate(texts: Sequence[str | bytes]) -> list[Row]:
        try:
            return session.translate(texts, signature)
        except SessionError as error:
            raise InputError(message_of(error)) from error

    return translate
