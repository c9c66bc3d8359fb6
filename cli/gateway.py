"""`keras-transformer gateway`."""

import contextlib
import re
from typing import Annotated

from typer import Argument, Option

from keras_transformer.cli.console import say
from keras_transformer.errors import InputError, needs_extra


def gateway_command(
    models: Annotated[
        list[str],
        Argument(
            metavar="[SOURCE:TARGET=]URL",
            help="Languages and URL of a model, such as "
            "en:cs=http://localhost:8501/v1/models/messages; the URL alone of a model of several "
            "languages. May be repeated.",
        ),
    ],
    port: Annotated[int, Option(min=1, max=65535, help="Port for HTTP.")] = 5000,
    host: Annotated[
        str, Option(help="Address to listen at; with 0.0.0.0, other machines can connect.")
    ] = "127.0.0.1",
    max_characters: Annotated[int, Option(min=1, help="Most characters in a request.")] = 20_000,
    max_texts: Annotated[int, Option(min=1, help="Most texts in a request.")] = 64,
    timeout: Annotated[float, Option(min=0.001, help="Seconds to wait for a model server.")] = 60,
) -> None:
    """Answer LibreTranslate's API by models on TensorFlow Serving or the local server.

    Weblate, Nextcloud and browser extensions can then use a model.
    """
    with needs_extra("serve"):
        from keras_transformer.export.gateway import Direction, Gateway
        from keras_transformer.export.server.http import HttpServer
    urls, several = {}, []
    for model in models:
        match = re.fullmatch(r"(https?://.*)|([^:=]+):([^:=]+)=(.+)", model)
        if match is None:
            raise InputError(
                "A model must have the form SOURCE:TARGET=URL, such as "
                f"en:cs=http://localhost:8501/v1/models/messages. Received: {model}"
            )
        alone, source, target, url = match.groups()
        if alone:
            several.append(alone)
        elif Direction(source, target) in urls:
            raise InputError(f"There must be one model from {source} to {target}. Received: two")
        else:
            urls[Direction(source, target)] = url
    app = Gateway(urls, max_characters, max_texts, timeout, several).app()
    server = HttpServer(app, host, port)
    say(f"LibreTranslate's API: {server.url}/translate")
    example = f"{server.url}/languages"
    for source, target in list(urls)[:1]:
        example = f"-d q=Hello -d source={source} -d target={target} {server.url}/translate"
    say(f"Try: curl {example}")
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
