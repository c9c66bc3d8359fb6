"""Systems that train by Keras's `fit`."""

import queue
import threading
import time
from typing import Any

import keras

from bench.cases import Case, sizes_of
from bench.inputs import Pairs, plan_batches


class Turns(keras.callbacks.Callback):
    """Lets one `fit` make some updates at a time: between them it waits.

    Args:
        updates: of a turn.
    """

    def __init__(self, updates: int) -> None:
        super().__init__()
        self.updates = updates
        self.done = 0
        self.asked: queue.Queue[bool] = queue.Queue()  # whether to go on
        self.answers: queue.Queue[float | Exception] = queue.Queue()  # seconds

    def turn(self) -> float:
        """Has a turn's updates made, and returns their seconds."""
        self.asked.put(True)
        answer = self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def on_train_begin(self, logs: Any = None) -> None:
        """Waits for the first turn."""
        self._wait()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts; after a turn's last update, answers and waits."""
        self.done += 1
        if self.done % self.updates == 0:
            self.answers.put(time.perf_counter() - self.started)
            self._wait()

    def _wait(self) -> None:
        if not self.asked.get():
            self.model.stop_training = True
        self.started = time.perf_counter()


class FitInTurns:
    """A model in `fit`, over the same batches again and again.

    Args:
        jit: whether XLA compiles.
    """

    turns: Turns | None = None

    def __init__(self, jit: bool = False) -> None:
        self.jit = jit

    def make(self, case: Case) -> keras.Model:
        """Returns the compiled model."""
        raise NotImplementedError

    def prepare(self, case: Case) -> None:
        """Starts `fit` and makes two turns, of which the first compiles."""
        from keras_transformer.trainers.batches import make_dataset

        self._end()
        keras.utils.set_random_seed(1)
        pairs = Pairs(case)
        plan, steps = plan_batches(case)
        self.tokens = sum(int(plan.lengths[plan.batch(step)[1], 1].sum()) for step in steps)
        dataset = make_dataset(pairs, plan, steps, static_shapes=self.jit).repeat()
        self.turns = turns = Turns(len(steps))
        model = self.make(case)

        def fit() -> None:
            try:
                model.fit(
                    dataset,
                    steps_per_epoch=10**9,
                    epochs=1,
                    callbacks=[turns],
                    shuffle=False,
                    verbose=0,
                )
            except Exception as error:
                turns.answers.put(error)

        self.thread = threading.Thread(target=fit, daemon=True)
        self.thread.start()
        for _ in range(2):
            self.run()

    def run(self) -> float:
        """Makes a turn's updates."""
        assert self.turns is not None
        return self.turns.turn()

    def count(self, _: float) -> dict[str, Any]:
        """Target tokens that are not padding."""
        return {"tokens": self.tokens}

    def _end(self) -> None:
        """Ends the `fit` of an earlier case."""
        if self.turns is not None:
            self.turns.asked.put(False)
            self.thread.join(60)


class Fit(FitInTurns):
    """This package's training: its loss, optimizer, metrics and batches, as `train` has them."""

    def make(self, case: Case) -> keras.Model:
        """Returns the compiled model."""
        from keras_transformer.model import Transformer
        from keras_transformer.trainers.recipes import TrainSettings
        from keras_transformer.trainers.training import _compile

        settings = TrainSettings(data="none", jit=self.jit)
        return _compile(Transformer(sizes_of(case["size"])), settings)[0]
