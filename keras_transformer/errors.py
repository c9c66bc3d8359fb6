"""The one exception for input that cannot be used."""


class InputError(ValueError):
    """A user's input is wrong: an argument, a file or a run directory.

    Its message is one sentence that names the input, what was expected and what came. The
    command line prints it and exits with status 1.
    """
