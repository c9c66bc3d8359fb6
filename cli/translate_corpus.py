"""`keras-transformer translate-corpus`."""

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer

from keras_transformer.cli.console import (
    Json,
    load_tensorflow,
    print_json,
    progress_bar,
    say,
    stderr,
)
from keras_transformer.errors import InputError
from keras_transformer.export.rows import DEFAULT_SIGNATURE

# What the command does not know is for Beam.
CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}


def translate_corpus_command(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A text file, one text a line, or a quoted pattern for several.",
        ),
    ],
    output: Annotated[
        str,
        typer.Argument(
            metavar="OUTPUT",
            help="Folder for the translations, in shards; a second call goes on where one stopped. "
            "Options of Beam come behind it: --runner=FlinkRunner ...",
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            metavar="MODELS/NAME[/VERSION]", help="An export; without VERSION its newest."
        ),
    ],
    signature: Annotated[
        str, typer.Option(help="Of the export: greedy is fast, document cuts no text.")
    ] = DEFAULT_SIGNATURE,
    lines_per_shard: Annotated[int, typer.Option(help="Lines of a shard.")] = 10_000,
    as_json: Json = False,
) -> None:
    """Translate a text file of any size, on this machine or on any Apache Beam runner."""
    quiet_beam()
    load_tensorflow()
    try:
        from keras_transformer.export.bulk import translate_corpus
    except ModuleNotFoundError as error:
        if error.name != "apache_beam":
            raise
        raise InputError(
            "translate-corpus needs Apache Beam: pip install 'keras3-transformer[bulk]'"
        ) from error
    with _stopped_at_once(), progress_bar("Translating") as progress:
        report = translate_corpus(
            source,
            output,
            model,
            signature=signature,
            lines_per_shard=lines_per_shard,
            beam_options=context.args,
            progress=progress,
        )
    rate = report.lines_now / report.seconds
    say(f"Translated: {report.lines_now:,} lines in {report.seconds:.1f} s ({rate:.1f} a second)")
    if report.lines_now < report.lines:
        say(f"Found: {report.lines - report.lines_now:,} lines that an earlier call translated")
    if report.failed:
        say(f"warning: {report.failed:,} lines failed and are empty: see {output}/failed.tsv")
    if report.truncated:
        say(
            f"warning: {report.truncated:,} lines were too long and their end was not translated; "
            "their numbers are in the reports"
        )
    say(f"Corpus: {report.lines:,} lines in {report.shards:,} shards: {output}/translation-*")
    if as_json:
        print_json({"output": output, **report._asdict()})


@contextmanager
def _stopped_at_once() -> Iterator[None]:
    """Ends the process at SIGINT and SIGTERM: an exception would end up in Beam, somewhere.

    Whatever is left half done, the next call finds.
    """

    def end(number: int, frame: FrameType | None) -> None:
        stderr.show_cursor()
        say(f"error: stopped by {signal.Signals(number).name}: call it again, and it goes on")
        os._exit(128 + number)

    before = {
        number: signal.signal(number, end)
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def quiet_beam() -> None:
    """Shows no warnings of Beam, most of which are about parts of it that nobody uses here.

    Nor the errors of its workers in this process, which come as exceptions as well.
    """
    for name in ("common", "worker"):
        logging.getLogger(f"apache_beam.runners.{name}").setLevel(logging.CRITICAL)
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setLevel(logging.ERROR)
        root.addHandler(handler)
