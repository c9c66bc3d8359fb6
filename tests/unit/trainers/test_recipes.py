import dataclasses
import re

import pytest

from keras_transformer.errors import InputError
from keras_transformer.model import Transformer
from keras_transformer.trainers.recipes import (
    TrainSettings,
    change_recipe,
    load_recipe,
    recipe_names,
)

PAPER = {  # sections 5.1 to 5.4 and 6.1
    "tokens_per_batch": 30_000,  # 25,000 and padding
    "warmup_steps": 4_000,
    "peak_rate": None,  # equation 3's
    "label_smoothing": 0.1,
    "beam_size": 4,
    "alpha": 0.6,
    "source": "en",
}
BASE = {"preset": "base", "steps": 100_000, "average_last": 5}
BIG = {"preset": "big", "steps": 300_000, "average_last": 20}
GERMAN = {"target": "de", "tokenizer": "bpe", "vocab_size": 37_000}
FRENCH = {"target": "fr", "tokenizer": "wordpiece", "vocab_size": 32_000}


@pytest.fixture
def write(tmp_path):
    """Writes a recipe file."""

    def write_file(content):
        path = tmp_path / "mine.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


# The recipes of the package.


def test_names():
    names = recipe_names()
    assert names == sorted(names)
    sizes = {"ende-base", "ende-big", "enfr-base", "enfr-big"}
    captions = {"multi30k-ende-tiny", "multi30k-ende-cased"}
    assert {"demo", *captions, *(f"wmt14-{size}" for size in sizes)} == set(names)


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
    assert settings.config(11).dropout_rate == dropout
    assert settings.keep_checkpoints >= settings.average_last
    pair = {"de": "de-en", "fr": "fr-en"}[settings.target]
    assert settings.data == f"tfds:wmt14_translate/{pair}"


def test_wmt14_models_are_table_3s():
    base, big = (
        TrainSettings.from_dict(load_recipe(f"wmt14-ende-{size}")).config(11)
        for size in ("base", "big")
    )
    assert (base.d_model, base.d_ff, base.num_heads, base.num_encoder_layers) == (512, 2048, 8, 6)
    assert (big.d_model, big.d_ff, big.num_heads, big.num_encoder_layers) == (1024, 4096, 16, 6)


@pytest.mark.parametrize("name", ["tiny", "cased"])
def test_multi30k_keeps_to_the_published_budget(name):
    """2.6 million parameters and 8,000 updates: Wu et al. (2021)."""
    settings = TrainSettings.from_dict(load_recipe(f"multi30k-ende-{name}"))
    assert settings.steps <= 8_000
    assert Transformer(settings.config(settings.vocab_size)).count_params() <= 2_605_056


# Recipe files.


def test_file(write):
    path = write('data = "bundled"\nsteps = 1_300\nalpha = 1\n[model]\nd_ff = 17\n')
    for recipe in (path, str(path)):
        settings = TrainSettings.from_dict(load_recipe(recipe))
        assert (settings.steps, settings.alpha, settings.model) == (1300, 1, {"d_ff": 17})
        assert settings.config(11).d_ff == 17
        assert settings == TrainSettings(data="bundled", steps=1300, alpha=1, model={"d_ff": 17})


@pytest.mark.parametrize("name", ["nothing", "nowhere/demo", "Demo"])
def test_missing_recipe_says_what_there_is(name):
    message = (
        f"Cannot read the recipe {name}: No such file or directory. It must be a TOML file, a run "
        f"directory, or one of: {', '.join(recipe_names())}"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        load_recipe(name)


def test_folder_is_no_recipe(tmp_path):
    message = f"Cannot read the recipe {re.escape(str(tmp_path))}: Is a directory. It must be"
    with pytest.raises(InputError, match=f"^{message}"):
        load_recipe(tmp_path)


def test_run_directory(tiny_run, tiny_settings):
    assert TrainSettings.from_dict(load_recipe(tiny_run.path)) == tiny_settings


def test_run_directory_called_as_a_recipe(tiny_run, tmp_path, monkeypatch):
    (tmp_path / "demo").symlink_to(tiny_run.path)
    monkeypatch.chdir(tmp_path)
    assert load_recipe("demo")["steps"] == 1_000
    assert load_recipe("./demo") == tiny_run.settings


@pytest.mark.parametrize("content", ["", "7", "[7]", "{}", '{"settings": 7}'])
def test_damaged_run_directory(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match=r"run\.json is not the manifest of a run$"):
        load_recipe(tmp_path)


def test_recipe_that_is_no_utf8(write):
    path = write(b'data = "\xe4"\n')
    message = f"Cannot read the recipe {re.escape(str(path))}: not valid UTF-8. It must be"
    with pytest.raises(InputError, match=f"^{message}"):
        load_recipe(path)


@pytest.mark.parametrize(
    ("text", "line"), [("steps", 1), ("steps = 7\nsteps = 7\n", 2), ("a = 1\nb = one\n", 2)]
)
def test_invalid_toml_names_the_file_and_the_line(write, text, line):
    path = write(text)
    message = rf"^The recipe {re.escape(str(path))} is not valid TOML: .*(line {line}|end of doc)"
    with pytest.raises(InputError, match=message):
        load_recipe(path)


# Changes.


@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        ("steps=7", "steps", 7),
        ("steps = 1_300", "steps", 1300),
        ("peak_rate=1e-3", "peak_rate", 0.001),
        ("jit=true", "jit", True),
        ("jit=True", "jit", "True"),
        ("vocab_size=none", "vocab_size", None),
        ("source=pt", "source", "pt"),
        ("data=tfds:wmt14_translate/de-en", "data", "tfds:wmt14_translate/de-en"),
        ("data=/a folder/b=c", "data", "/a folder/b=c"),
        ('data="none"', "data", "none"),
        ("data='7'", "data", "7"),
        ("data=", "data", ""),
    ],
)
def test_changed_values(change, key, value):
    changed = change_recipe({"data": "bundled"}, [change])
    assert changed == {"data": "bundled", key: value}
    assert type(changed[key]) is type(value)


def test_changes_of_the_model():
    recipe = {"data": "bundled", "model": {"d_ff": 5, "d_model": 10}}
    changed = change_recipe(recipe, ["model.d_ff=7", "steps=3", "model.d_k=none", "steps=11"])
    assert changed == {
        "data": "bundled",
        "steps": 11,
        "model": {"d_ff": 7, "d_model": 10, "d_k": None},
    }
    assert recipe == {"data": "bundled", "model": {"d_ff": 5, "d_model": 10}}


def test_the_whole_model_may_be_changed():
    changed = change_recipe({"model": {"d_ff": 5}}, ["model={d_model = 7}", "model.num_heads=1"])
    assert changed == {"model": {"d_model": 7, "num_heads": 1}}


@pytest.mark.parametrize("change", ["steps", "", "=", "=7", " = 7"])
def test_malformed_changes(change):
    message = f"A change must have the form key=value. Received: {change!r}"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        change_recipe({}, [change])


@pytest.mark.parametrize("key", ["a.b", "models.d_ff", "model.a.b", ".steps", "steps."])
def test_dots_are_for_the_model(key):
    message = f"Unknown setting {key}: only the settings of `model` have a dot in their names"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        change_recipe({}, [f"{key}=7"])


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [({"model": 5}, []), ({"model": "big"}, ["steps=7"]), ({}, ["model=5", "model.d_ff=7"])],
)
def test_model_that_is_no_table(recipe, changes):
    with pytest.raises(InputError, match=r"^`model` must be a table\. Received: model="):
        TrainSettings.from_dict(change_recipe({"data": "bundled", **recipe}, changes))


# Settings.


def test_unknown_settings_say_what_there_is():
    with pytest.raises(InputError) as caught:
        TrainSettings.from_dict({"data": "bundled", "step": 7, "depth": 3})
    unknown, known = str(caught.value).split(". There are: ")
    assert unknown == "Unknown setting depth, step"
    assert known.split(", ") == [field.name for field in dataclasses.fields(TrainSettings)]


def test_settings_that_are_the_models():
    message = "^Unknown setting dropout_rate: it is the model's, model.dropout_rate$"
    with pytest.raises(InputError, match=message):
        TrainSettings.from_dict({"data": "bundled", "dropout_rate": 0.2})


def test_data_is_needed():
    with pytest.raises(InputError, match=r"^The setting `data` is missing$"):
        TrainSettings.from_dict({"steps": 7})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("data", 7, "a string"),
        ("data", None, "a string"),
        ("source_script", 7, "a string"),
        ("steps", 7.0, "an integer"),
        ("steps", "7", "an integer"),
        ("steps", True, "an integer"),
        ("steps", None, "an integer"),
        ("vocab_size", 7.5, "an integer"),
        ("seed", float("inf"), "an integer"),
        ("alpha", "0.6", "a number"),
        ("alpha", False, "a number"),
        ("peak_rate", "fast", "a number"),
        ("jit", 1, "true or false"),
        ("drop_duplicates", "yes", "true or false"),
        ("model", "big", "a table"),
        ("model", None, "a table"),
        ("tokenizer", "char", "one of bpe, unigram, wordpiece"),
        ("strategy", "tpu", "one of one, mirrored, multiworker"),
        ("precision", 16, "one of float32, mixed_bfloat16, mixed_float16"),
    ],
)
def test_wrong_types_name_the_setting(name, value, expected):
    message = f"`{name}` must be {expected}. Received: {name}={value!r}"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        TrainSettings.from_dict({"data": "bundled", name: value})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("beam_size", 0, "at least 1 and below 1001"),
        ("beam_size", 1001, "at least 1 and below 1001"),
        ("alpha", -0.1, "at least 0 and below 1000"),
        ("alpha", 1000.5, "at least 0 and below 1000"),  # which no search takes
        ("average_last", -1, "at least 0 and below 2**31"),
        ("keep_checkpoints", 0, "at least 1 and below 2**31"),
        ("keep_checkpoints", 2**31, "at least 1 and below 2**31"),
        ("patience", 0, "at least 1 and below 2**31"),
        ("bleu_sentences", -7, "at least 0 and below 2**31"),
        ("seed", 2**32, "at least 0 and below 2**32"),
        ("ema_decay", 1.0, "at least 0 and below 1"),
        ("r_drop", -0.5, "at least 0 and finite"),
        ("r_drop", float("inf"), "at least 0 and finite"),
        ("r_drop", float("nan"), "at least 0 and finite"),
        ("max_length_ratio", 0.9, "at least 1 and finite"),
        ("clip_norm", 0, "positive and finite"),
        ("clip_norm", float("nan"), "positive and finite"),
        ("max_hours", -1.5, "positive and finite"),
    ],
)
def test_out_of_range(name, value, expected):
    message = f"`{name}` must be {expected}. Received: {name}={value}"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        TrainSettings(data="bundled", **{name: value})


def test_bounds_are_allowed():
    bounds = {"beam_size": 1, "alpha": 0, "r_drop": 0, "ema_decay": 0, "max_length_ratio": 1}
    settings = TrainSettings(data="bundled", max_length=2, tokens_per_batch=2, **bounds)
    assert bounds.items() <= settings.to_dict().items()


def test_only_checkpoints_that_are_kept_are_averaged():
    assert TrainSettings(data="bundled", average_last=5, keep_checkpoints=5).average_last == 5
    message = (
        "`average_last` must be at most `keep_checkpoints`. "
        "Received: average_last=6, keep_checkpoints=5"
    )
    with pytest.raises(InputError, match=f"^{message}$"):
        TrainSettings(data="bundled", average_last=6, keep_checkpoints=5)


def test_learned_positions_must_reach():
    model = {"position_encoding": "learned", "max_length": 31}
    assert TrainSettings(data="bundled", max_length=31, model=model).config(7).max_length == 31
    message = (
        "`max_length` must be at most the model's 31 learned positions. Received: max_length=37"
    )
    with pytest.raises(InputError, match=f"^{message}$"):
        TrainSettings(data="bundled", max_length=37, model=model)


def test_word_pieces_keep_capitals():
    message = '^`lowercase` needs the tokenizer "bpe" or "unigram". Received: tokenizer="wordpiece"'
    with pytest.raises(InputError, match=message):
        TrainSettings(data="bundled", tokenizer="wordpiece", lowercase=True)


@pytest.mark.parametrize("name", ["vocab_size", "preset"])
def test_settings_that_are_none_of_the_model(name):
    message = f"^`{name}` is a setting of its own, and none of `model`$"
    with pytest.raises(InputError, match=message):
        TrainSettings(data="bundled", model={name: 7})


@pytest.mark.parametrize("name", ["d_modle", "steps"])
def test_unknown_settings_of_the_model(name):
    message = f"^Unknown model setting {name}. There are: vocab_size, d_model, "
    with pytest.raises(InputError, match=message):
        TrainSettings(data="bundled", model={name: 7})
