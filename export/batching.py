"""Requests that come at the same time are answered by one run of the model."""

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.export.protocol import Limits, ServingError
from keras_transformer.export.session import Signature

Arrays = Mapping[str, np.ndarray]

LONG_TEXT = 2**15  # bytes of a request, for which short ones shall not wait


class _Request(NamedTuple):
    """A request that waits.

    Attributes:
        signature: that it asks for.
        inputs: by name.
        rows: of each input, or as many as a batch may have if it is to run alone.
        arrived: when, in seconds of the monotonic clock.
        answer: what whoever sent it waits for.
    """

    signature: str
    inputs: Arrays
    rows: int
    arrived: float
    answer: Future[dict[str, np.ndarray]]


def can_merge(signature: Signature) -> bool:
    """Whether the rows of an answer are the same whoever shares the batch.

    Dimension 0 of every input and output must be the batch, and so of any size, and the others of
    outputs must not be: padding to the longest row of a batch would tell of the others.
    """
    infos = (*signature.inputs.values(), *signature.outputs.values())
    return (
        bool(signature.inputs)
        and all(info.shape and info.shape[0] is None for info in infos)
        and all(None not in (info.shape or ())[1:] for info in signature.outputs.values())
    )


class Batcher:
    """Merges requests by rows, runs them in threads, and splits the answers.

    Requests are merged if they ask for the same signature and their inputs differ in dimension 0
    only. A batch is run when it is full, or when its oldest request has waited for
    `batch_timeout`; while all threads are busy, batches grow. A request that has more rows than a
    batch, or long texts, runs alone. If a merged batch fails, its requests run one by one, so that
    only the guilty one fails; if it takes too long, all of them do.

    Args:
        run: takes a signature's name and its inputs, returns its outputs; called by many threads.
        signatures: by name.
        limits: `max_batch_size`, `batch_timeout`, `max_queue` and `num_batch_threads`.
    """

    def __init__(
        self,
        run: Callable[[str, Arrays], dict[str, np.ndarray]],
        signatures: Mapping[str, Signature],
        limits: Limits,
    ) -> None:
        self._run = run
        self._limits = limits
        self._mergeable = {name for name, info in signatures.items() if can_merge(info)}
        self._queues: dict[Hashable, deque[_Request]] = {}
        self._waiting = 0
        self._closed = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name=f"batch-{i}", daemon=True)
            for i in range(limits.num_batch_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, signature: str, inputs: Arrays) -> Future[dict[str, np.ndarray]]:
        """Queues a request.

        Args:
            signature: its name.
            inputs: by name.

        Returns:
            What will hold the outputs by name.

        Raises:
            ServingError: UNAVAILABLE, if the queue is full or closed.
        """
        sizes = {array.shape[:1] for array in inputs.values()}
        alone = signature not in self._mergeable or len(sizes) != 1 or () in sizes
        alone = alone or _text_size(inputs) > LONG_TEXT
        rows = self._limits.max_batch_size if alone else next(iter(sizes))[0]
        answer: Future[dict[str, np.ndarray]] = Future()
        request = _Request(signature, inputs, rows, time.monotonic(), answer)
        # Every input without its rows. A request that must run alone shares its key with none.
        shapes = frozenset((name, array.shape[1:]) for name, array in inputs.items())
        key: Hashable = object() if alone else (signature, shapes)
        with self._changed:
            if self._closed:
                raise ServingError(tf.errors.UNAVAILABLE, "The version is being unloaded")
            if self._waiting >= self._limits.max_queue:
                raise ServingError(
                    tf.errors.UNAVAILABLE,
                    "The batch scheduling queue to which this task was submitted is full: "
                    f"{self._waiting} requests wait",
                )
            self._queues.setdefault(key, deque()).append(request)
            self._waiting += 1
            self._changed.notify()
        answer.add_done_callback(functools.partial(self._drop, key))
        return answer

    def close(self) -> None:
        """Answers what waits, and ends the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while batch := self._next_batch():
            requests = [
                request for request in batch if request.answer.set_running_or_notify_cancel()
            ]
            if len(requests) > 1 and self._answer_merged(requests):
                continue
            for request in requests:
                try:
                    request.answer.set_result(self._run(request.signature, request.inputs))
                except Exception as error:
                    request.answer.set_exception(error)

    def _next_batch(self) -> list[_Request]:
        """Waits for a batch that is to be run; returns none when the batcher is closed."""
        with self._changed:
            while True:
                now = time.monotonic()
                timeout = None
                # Of the queues that are ripe, the one whose head came first.
                for key, queue in sorted(self._queues.items(), key=lambda item: item[1][0].arrived):
                    left = queue[0].arrived + self._limits.batch_timeout - now
                    rows = sum(request.rows for request in queue)
                    if left <= 0 or rows >= self._limits.max_batch_size or self._closed:
                        return self._take(key)
                    timeout = left if timeout is None else timeout
                if self._closed:
                    return []
                self._changed.wait(timeout)

    def _take(self, key: Hashable) -> list[_Request]:
        queue = self._queues[key]
        batch = [queue.popleft()]
        rows = batch[0].rows
        while queue and rows + queue[0].rows <= self._limits.max_batch_size:
            batch.append(queue.popleft())
            rows += batch[-1].rows
        if not queue:
            del self._queues[key]
        self._waiting -= len(batch)
        return batch

    def _drop(self, key: Hashable, answer: Future[dict[str, np.ndarray]]) -> None:
        """Gives the place of a cancelled request to others, if it has not been taken yet."""
        if not answer.cancelled():
            return
        with self._changed:
            queue = self._queues.get(key, deque())
            for position, request in enumerate(queue):
                if request.answer is answer:
                    del queue[position]
                    self._waiting -= 1
                    break
            if not queue:
                self._queues.pop(key, None)

    def _answer_merged(self, requests: list[_Request]) -> bool:
        """Runs requests as one; returns whether all were answered."""
        rows = sum(request.rows for request in requests)
        try:
            columns = {
                name: np.concatenate([request.inputs[name] for request in requests])
                for name in requests[0].inputs
            }
            outputs = self._run(requests[0].signature, columns)
        except tf.errors.DeadlineExceededError as error:
            for request in requests:  # one by one they would take as long again
                request.answer.set_exception(error)
            return True
        except Exception:
            return False
        if any(array.ndim == 0 or len(array) != rows for array in outputs.values()):
            return False
        start = 0
        for request in requests:
            end = start + request.rows
            request.answer.set_result({name: array[start:end] for name, array in outputs.items()})
            start = end
        return True


def _text_size(inputs: Arrays) -> int:
    texts = (array for array in inputs.values() if array.dtype == object)
    return sum(len(text) for array in texts for text in array.flat)
