"""What stops a command: input that cannot be used, and training that ends before its time."""


class InputError(ValueError):
    """A user's input is wrong: an argument, a file or a run directory.

    Its message is one sentence that names the input, what was expected and what came. The
    command line prints it and exits with status 1.
    """


def one_line(text: object, max_length: int = 500) -> str:
    """Makes a message of others fit into one sentence of ours."""
    return " ".join(str(text).split())[:max_length]


class TrainingStoppedError(RuntimeError):
    """Training has stopped before its end; what was saved is whole, and resuming goes on from it.

    Args:
        message: one sentence.
        status: what the command line exits with.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
