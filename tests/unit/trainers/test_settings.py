import re

import pytest

from keras_transformer.errors import InputError
from keras_transformer.registry import build_model
from keras_transformer.trainers.recipes import change_recipe, load_recipe, recipe_names
from keras_transformer.trainers.settings import TrainSettings

PAPER = {  # sections 5.1 to 5.4 and 6.1
    "tokens_per_batch": 30_000,  # 25,000 and padding
    "warmup_steps": 4_000,
    "peak_rate": None,  # equation 3's
    "label_smoothing": 0.1,
    "beam_size": 4,
    "length_penalty": 0.6,
    "source": "en",
}
BASE = {"preset": "base", "steps": 100_000, "average_last": 5}
BIG = {"preset": "big", "steps": 300_000, "average_last": 20}
GERMAN = {"target": "de", "tokenizer": "bpe", "vocab_size": 37_000}
FRENCH = {"target": "fr", "tokenizer": "wordpiece", "vocab_size": 32_000}


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_recipes_are_settings(name):
    recipe = load_recipe(name)
    settings = TrainSettings.from_dict(recipe)
    assert recipe.items() <= settings.to_dict().items()
    assert TrainSettings.from_dict(settings.to_dict()) == settings


@pytest.mark.parametrize(
    ("name", "values", "dropout"),
    [
        ("wmt14-ende-base", BASE | GERMAN, 0.1),
        ("wmt14-ende-big", BIG | GERMAN, 0.3),
        ("wmt14-enfr-base", BASE | FRENCH, 0.1),
        ("wmt14-enfr-big", BIG | FRENCH, 0.1),  # instead of 0.3: section 6.1
    ],
)
def test_wmt14_is_the_papers(name, values, dropout):
    settings = TrainSettings.from_dict(load_recipe(name))
    assert {**PAPER, **values}.items() <= settings.to_dict().items()
    assert settings.config({"vocab_size": 11}).dropout_rate == dropout


@pytest.mark.parametrize("name", ["tiny", "cased"])
def test_multi30k_keeps_to_the_published_budget(name):
    """2.6 million parameters and 8,000 updates: Wu et al. (2021)."""
    settings = TrainSettings.from_dict(load_recipe(f"multi30k-ende-{name}"))
    assert settings.steps <= 8_000
    assert settings.steps * settings.tokens_per_batch <= 8_000 * 3_072
    num_params = build_model(settings.config({"vocab_size": settings.vocab_size})).count_params()
    assert 2_500_000 < num_params <= 2_605_056


def test_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('data = "bundled"\nsteps = 1_300\nlength_penalty = 1\n[model]\nd_ff = 17\n')
    expected = TrainSettings(data="bundled", steps=1300, length_penalty=1.0, model={"d_ff": 17})
    for recipe in (path, str(path)):
        assert TrainSettings.from_dict(load_recipe(recipe)) == expected
    assert expected.config().d_ff == 17


def test_run_directory(tiny_run, tiny_settings, tmp_path, monkeypatch):
    assert TrainSettings.from_dict(load_recipe(tiny_run.path)) == tiny_settings
    (tmp_path / "demo").symlink_to(tiny_run.path)
    monkeypatch.chdir(tmp_path)
    assert load_recipe("demo")["steps"] == 1_000
    assert load_recipe("./demo") == tiny_run.settings


def test_absolute_paths(tmp_path, monkeypatch):
    """A run is evaluated and exported from any folder."""
    monkeypatch.chdir(tmp_path)
    settings = TrainSettings(data="text", mix="bundled", init_from="../run").with_absolute_paths()
    paths = [settings.data, settings.mix, settings.init_from]
    assert paths == [f"{tmp_path}/text", "bundled", f"{tmp_path.parent}/run"]
    assert TrainSettings(data="tfds:a/b").with_absolute_paths() == TrainSettings(data="tfds:a/b")


def test_recipes_that_cannot_be_read(tmp_path):
    names = ", ".join(recipe_names())
    with pytest.raises(InputError, match=f"^Cannot read the recipe Demo: No such .*: {names}$"):
        load_recipe("Demo")
    (tmp_path / "marked.toml").write_bytes(b'\xef\xbb\xbfdata = "text"')
    assert load_recipe(tmp_path / "marked.toml") == {"data": "text"}
    for name, content in {"mine.toml": "steps", "run.json": "{}"}.items():
        (tmp_path / name).write_text(content)
    for path in (tmp_path / "mine.toml", tmp_path):
        with pytest.raises(InputError, match=f"{path}: it is damaged"):
            load_recipe(path)


@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        ("steps = 1_300", "steps", 1300),
        ("peak_rate=1e-3", "peak_rate", 0.001),
        ("jit=true", "jit", True),
        ("vocab_size=none", "vocab_size", None),
        ("data=tfds:wmt14_translate/de-en", "data", "tfds:wmt14_translate/de-en"),
        ("data=/a folder/b=c", "data", "/a folder/b=c"),
        ('data="none"', "data", "none"),
        ("data='7'", "data", "7"),
    ],
)
def test_changed_values(change, key, value):
    changed = change_recipe({"data": "bundled"}, [change])
    assert changed == {"data": "bundled", key: value}
    assert type(changed[key]) is type(value)


def test_changes_of_the_model():
    recipe = {"data": "bundled", "model": {"d_ff": 5, "d_model": 10}}
    changed = change_recipe(recipe, ["model.d_ff=7", "steps=3", "model.d_k=none", "steps=11"])
    model = {"d_ff": 7, "d_model": 10, "d_k": None}
    assert changed == {"data": "bundled", "steps": 11, "model": model}
    assert recipe["model"] == {"d_ff": 5, "d_model": 10}
    assert change_recipe(recipe, ["model={d_k = 3}"])["model"] == {"d_k": 3}
    assert change_recipe({"model": 3}, ["model.d_ff=7"]) == {"model": 3}


@pytest.mark.parametrize("change", ["steps", " = 7", "models.d_ff=7", "model.a.b=7"])
def test_malformed_changes(change):
    with pytest.raises(InputError, match=re.escape(change.removesuffix("=7"))):
        change_recipe({}, [change])


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("data", 7, "valid string / Input should be a valid list"),
        ("steps", 0, "than or equal to 1"),
        ("strategy", "tpu", "'one', 'mirrored' or 'multiworker'"),
        ("label_smoothing", 1.0, "less than 1"),
        ("r_drop", float("inf"), "a finite number"),
        ("augment", "typing", "'all'"),
    ],
)
def test_wrong_values(name, value, expected):
    with pytest.raises(InputError) as caught:
        TrainSettings.from_dict({"data": "bundled", name: value})
    message = str(caught.value)
    assert expected in message
    assert message.startswith(f"`{name}`: ")
    assert message.endswith(f"Received: {name}={value!r}")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step": 7}, r"^Unknown setting step\. Did you mean .*\bsteps\b"),
        ({"warmup": 7}, r"^Unknown setting warmup\. Did you mean warmup_steps\?$"),
        (
            {"droput_rate": 0.2},
            r"^Unknown setting droput_rate\. Did you mean model\.dropout_rate\b",
        ),
        ({"layers": 2}, r" model\.num_decoder_layers or .*model\.num_encoder_layers\b"),
        ({"qqq": 7}, r"^Unknown setting qqq\. There are: data, source, "),
        ({"dropout_rate": 0.2}, "^Unknown setting dropout_rate: .* model.dropout_rate$"),
        (
            {"model": {"d_modle": 7}},
            r"^Unknown setting d_modle\. Did you mean d_model",
        ),
        ({"augment": {"lower": 0.1, "typo": 0.2}}, "`augment.typo`: .* augment.typo='typo'"),
        ({"augment": {"end": 1.5}}, "`augment.end`: .* less than 1. .* augment.end=1.5"),
        ({"model": {"vocab_size": 7}}, "`vocab_size` must not be in `model`"),
        ({"preset": "huge"}, "`preset` must be one of tiny, base, big, A-1-head, .*'huge'"),
        ({"task": "singing"}, "`task` must be one of translation.*'singing'"),
        ({"metric": "f1", "bleu_sentences": 7}, "`metric` must be bleu, chrf or loss .*'f1'"),
        ({"metric": "chrf"}, "metric='chrf', bleu_sentences=0"),
        ({"average_last": 6, "keep_checkpoints": 5}, "average_last=6, keep_checkpoints=5"),
        ({"max_length": 50, "tokens_per_batch": 49}, "max_length=50, tokens_per_batch=49"),
        ({"cooldown": 0.5, "patience": 3}, "patience=3, max_hours=None"),
        ({"tokenizer": "wordpiece", "lowercase": True}, "^`lowercase` needs the `tokenizer`"),
        (
            {"max_length": 37, "model": {"position_encoding": "learned", "max_length": 31}},
            "31 learned positions. Received: max_length=37",
        ),
    ],
)
def test_settings_that_contradict_each_other(values, message):
    with pytest.raises(InputError, match=message):
        TrainSettings.from_dict({"data": "bundled", **values})
