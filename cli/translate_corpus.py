"""`keras-transformer translate-corpus`."""

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Annotated

import typer
from typer import Argument, Option

from keras_transformer.cli import console
from keras_transformer.cli.check import find_export
from keras_transformer.cli.console import ProgressBar, load_session, print_json, say
from keras_transformer.cli.options import NONE, Fields, Given, Json
from keras_transformer.cli.translators import TranslateOptions
from keras_transformer.errors import needs_extra
from keras_transformer.export.options import DEFAULT_SIGNATURE

# Options that the command does not know are passed to Beam.
TYPER = {"context_settings": {"allow_extra_args": True, "ignore_unknown_options": True}}


def translate_corpus_command(
    context: typer.Context,
    pattern: Annotated[
        str,
        Argument(
            metavar="INPUT",
            help="A file with one text per line, or a quoted pattern for several files.",
        ),
    ],
    output: Annotated[
        str,
        Argument(
            metavar="OUTPUT",
            help="New folder for the translations. Beam's options follow it, such as "
            "--runner=FlinkRunner.",
        ),
    ],
    model: Annotated[
        str, Option(metavar="MODELS/NAME[/VERSION]", help="An export; without VERSION, the newest.")
    ],
    signature: Annotated[
        str, Option(help="Signature of the export: greedy is fast, document cuts no text.")
    ] = DEFAULT_SIGNATURE,
    languages: Annotated[Given, Fields(TranslateOptions, ("source", "target"))] = NONE,
    lines_per_shard: Annotated[int, Option(help="Number of lines in an output file.")] = 10_000,
    as_json: Json = False,
) -> None:
    """Translate text files with Apache Beam.

    It runs on this machine, or on any other runner of Beam.
    """
    # Beam logs warnings, and its workers log the errors that the command prints.
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("apache_beam.runners").setLevel(logging.CRITICAL)
    load_session()
    with needs_extra("bulk"):
        from keras_transformer.export.bulk import translate_corpus
    if "://" not in model:  # a remote file system
        find_export(model)  # warns
    others = {**languages, "lines_per_shard": lines_per_shard, "beam_options": context.args}
    with _exit_on_signals(output), ProgressBar("Translating"):
        report = translate_corpus(pattern, output, model, signature=signature, **others)
    if report.failed or report.truncated:
        say(
            f"warning: {report.failed:,} lines failed and are empty, {report.truncated:,} lines "
            f"are too long and their end is not translated: see {output}/problems-*.tsv"
        )
    say(
        f"Corpus: {report.lines:,} lines in {report.seconds:.1f} s "
        f"({report.lines / report.seconds:.1f} a second), {report.shards:,} shards: "
        f"{output}/translation-*"
    )
    if as_json:
        print_json({"output": output, **report._asdict()})


@contextmanager
def _exit_on_signals(output: str) -> Iterator[None]:
    """Ends the process at SIGINT and SIGTERM. Beam's threads would outlive an exception."""

    def end(number: int, frame: FrameType | None) -> None:
        console.stderr.show_cursor()
        say(f"error: stopped by {signal.Signals(number).name}: delete {output} and start again")
        os._exit(128 + number)

    with ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, number, signal.signal(number, end))
        yield
