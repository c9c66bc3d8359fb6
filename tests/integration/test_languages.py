"""A model of several languages, asked for each in every way that texts come to it.

The expected translations are transformers' own, of texts with tags.
"""

import json

import pytest
import urllib3
from command_line import assert_refused, cli
from fake_models import serving
from marian_models import extract
from running_servers import running_app

from keras_transformer.errors import InputError
from keras_transformer.export.clients import GrpcClient, RestClient
from keras_transformer.export.gateway import Gateway
from keras_transformer.export.session import SavedModelSession, SessionError
from keras_transformer.languages import Languages
from keras_transformer.trainers.models.importing import import_marian
from keras_transformer.translator import Translator

TEXTS = ["The girl listens to her woman.", "At 5 o'clock, Öl!"]
UNKNOWN = "There is no target language 'es', but deu, fra"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose target is no language that it has a tag for."""
    folder = extract("huggingface", tmp_path_factory.mktemp("models")) / "shared"
    return import_marian(folder, folder / "run", target="mul", like="huggingface"), folder


@pytest.fixture(scope="module")
def translations(run):
    """Transformers' translations of TEXTS, the first into German, the second into French."""
    expected = json.loads((run[1] / "expected.json").read_text("utf-8"))
    assert expected["sentences"][:2] == [f">>deu<< {TEXTS[0]}", f">>fra<< {TEXTS[1]}"]
    return expected["beam"][:2]


@pytest.fixture
def export(kinds):
    """Its target is French, if a text asks for none."""
    return kinds["several"].path


@pytest.mark.usefixtures("eager")
def test_a_translator(run, translations):
    translator = Translator.of(run[0])

    tagged = f">>fra<< {TEXTS[1]}"
    asked = {
        TEXTS[0]: "de-AT",
        TEXTS[1]: "fr",
        tagged: None,
        f">>en:fra<< {TEXTS[1]}": "",
        f">>fra<<  {TEXTS[1]}": "deu",  # its own tag is text then
        f">>deu<< >>fra<<  {TEXTS[1]}": None,
        " ": "fra",
    }
    found = translator.translate(asked, source="en_US", target=list(asked.values()))
    german, *french, text, same_text, blank = [each.text for each in found]
    assert [german, *french] == [*translations, *translations[1:] * 2]
    assert text == same_text != translations[1]
    assert blank == ""
    (found,) = translator.translate(TEXTS[1:], target="fr", sentences=True)
    assert found.text == translations[1]
    with pytest.raises(InputError, match=UNKNOWN):
        translator.translate(TEXTS, target=["de", "es"])


@pytest.mark.usefixtures("eager")
def test_the_runs_target_is_the_default(run, translations, tmp_path):
    own = Translator.of(import_marian(run[1], tmp_path / "run", target="fr", like="huggingface"))
    found = own.translate([*TEXTS[1:], f">>deu<< {TEXTS[0]}", "\t "])
    assert [each.text for each in found] == [translations[1], translations[0], ""]


@pytest.mark.usefixtures("eager")
def test_the_command_line(run, translations, tmp_path):
    path = run[0].path
    code, out, err = cli("translate", path, TEXTS[0], "--target", "de_AT", "--source", "eng")
    assert (code, out) == (0, f"{translations[0]}\n"), err
    assert_refused(cli("translate", path, TEXTS[0], "--target", "es"), UNKNOWN)
    text = f'msgid ""\nmsgstr "Language: fr_CA\\n"\n\nmsgid "{TEXTS[1]}"\nmsgstr ""\n'
    (tmp_path / "a.po").write_text(text)
    files = "--input", tmp_path / "a.po", "--output", tmp_path / "b.po"
    assert cli("translate", path, *files)[0] == 0
    assert f'msgstr "{translations[1]}"' in (tmp_path / "b.po").read_text("utf-8")


@pytest.mark.distributed  # it loads a SavedModel, and its graphs
def test_the_signatures(export, translations):
    session = SavedModelSession(export)
    known = Languages("en", "fra", ("en",), ("deu", "fra"))
    (row,) = session.translate(["x"], "languages")
    assert row == {**known._asdict(), "sources": ["en"], "targets": ["deu", "fra"]}
    texts = [text.encode() for text in TEXTS]

    def best(**inputs):
        outputs = session.run("translate", {"text": texts, **inputs})
        return [text.decode() for text in outputs["translation"]]

    assert best(source=["", "en"], target=["deu", "fra"]) == translations
    assert best(target=["deu", "fra"]) == translations
    to_french = best(target=["fra"])
    assert to_french[1] == translations[1]
    assert best() == best(source=["en"], target=[""]) == to_french
    tagged = [f">>{tag}<< {text}" for tag, text in zip(known.targets, TEXTS, strict=True)]
    assert [each["translation"] for each in session.translate(tagged, "document")] == translations
    assert session.run("translate", {"text": [b" "], "target": ["deu"]})["translation"] == [b""]
    for inputs, message in (
        ({"source": ["en", "xx"]}, "source languages that the signature languages lists.*xx"),
        ({"target": ["de"]}, "target languages that the signature languages lists.*de"),
        ({"target": ["deu"] * 3}, "one target, or one for each text.*3"),
    ):
        with pytest.raises(SessionError, match=message):
            best(**inputs)


@pytest.mark.distributed
def test_servers_clients_and_the_gateway(export, translations, tmp_path):
    with serving(export.parent) as server:
        url = f"{server.url}/v1/models/several"
        clients = RestClient(url), GrpcClient(server.grpc, "several")
        for client in clients:
            known = client.languages()
            rows = client.translate(known.tagged(TEXTS, target=["de", "fr"]))
            assert [row["translation"] for row in rows] == translations
            client.close()
        code, out, err = cli("translate", "--url", url, TEXTS[1], "--target", "fr-CA")
        assert (code, out) == (0, f"{translations[1]}\n"), err
        code, out, _ = cli("translate", export.parent, TEXTS[1], "--target", "fr")
        assert (code, out) == (0, f"{translations[1]}\n")
        grpc = "--grpc", server.grpc, "--model", "several"
        assert_refused(cli("translate", *grpc, TEXTS[1], "--target", "es"), UNKNOWN)
        with running_app(Gateway({}, 500, 9, 60, several=[url]).app()) as gateway:
            asked = {"q": TEXTS[0], "source": "en", "target": "de"}
            answer = urllib3.request("POST", f"{gateway}/translate", json=asked, timeout=60)
            assert answer.json() == {"translatedText": translations[0]}
    (tmp_path / "corpus.txt").write_text(f"{TEXTS[0]}\n\n")
    corpus = tmp_path / "corpus.txt", tmp_path / "out", "--model", export.parent
    code, _, err = cli("translate-corpus", *corpus, "--target", "de", "--runner=FnApiRunner")
    assert code == 0, err
    (output,) = (tmp_path / "out").glob("translation-*")
    assert output.read_text("utf-8") == f"{translations[0]}\n\n"
