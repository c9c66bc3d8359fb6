import pytest

from keras_transformer.config import DecodingOptions
from keras_transformer.errors import InputError
from keras_transformer.records import settings_of
from keras_transformer.registry import build_model
from keras_transformer.trainers.recipes import (
    Layer,
    change_recipe,
    load_recipe,
    recipe_names,
    resolve,
)
from keras_transformer.trainers.settings import GROUPS, TrainSettings

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


def test_every_setting_is_in_one_group_and_says_what_it_is_for():
    names = [name for group in GROUPS.values() for name in settings_of(group)]
    assert names == list(TrainSettings(data="x").to_dict())
    assert len(set(names)) == len(names)
    assert all(declared.help for declared in settings_of(TrainSettings).values())


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


FLAT = 'data = "bundled"\nsteps = 1_300\nlength_penalty = 1\n[model]\nd_ff = 17\n'
SECTIONS = (
    '[data]\ndata = "bundled"\n[model]\npreset = "tiny"\nd_ff = 17\n'
    "[training]\nsteps = 1_300\n[search]\nlength_penalty = 1\n"
)


@pytest.mark.parametrize("text", [FLAT, SECTIONS])
def test_a_file_with_or_without_sections(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    expected = TrainSettings(data="bundled", steps=1300, length_penalty=1.0, model={"d_ff": 17})
    assert TrainSettings.from_dict(load_recipe(str(path))) == expected
    assert expected.config().d_ff == 17


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"training": {"beam_size": 3}}, "^`beam_size` belongs in the section search"),
        ({"training": {"stepz": 3}}, "^Unknown setting stepz"),
        ({"steps": 3, "training": {"steps": 5}}, "`steps` stands in the section training and"),
    ],
)
def test_wrong_sections(values, message):
    with pytest.raises(InputError, match=message):
        TrainSettings.from_dict({"data": "bundled", **values})


def test_the_strongest_layer_decides():
    layers = [Layer("a", {"steps": 3}), Layer("b", {"steps": 5, "seed": 7, "model": {"d_ff": 11}})]
    resolved = resolve(layers, ["model.d_k=13", "seed=17"])
    assert resolved == {"steps": 3, "seed": 17, "model": {"d_ff": 11, "d_k": 13}}


def test_layers_and_the_run_to_start_from(tiny_run):
    """Its search is inherited, its sizes are decided, and a message says who contradicts it."""
    layers = [Layer("the recipe x", {"init_from": str(tiny_run.path), "beam_size": 7})]
    resolved = resolve(layers)
    assert (resolved["beam_size"], resolved["tokenizer"]) == (7, "bpe")
    inherited = {name: value for name, value in resolved.items() if name != "beam_size"}
    assert settings_of(DecodingOptions).keys() - {"beam_size"} <= inherited.keys()
    with pytest.raises(InputError, match=r"tokenizer='unigram', from --set$"):
        resolve(layers, ["tokenizer=unigram"])
    layers.append(Layer("the recipe y", {"preset": "base"}))
    with pytest.raises(InputError, match=r"preset='base', from the recipe y$"):
        resolve(layers)


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
    with pytest.raises(InputError, match=r"^Cannot read the recipe Demo: No such .*: demo, "):
        load_recipe("Demo")
    (tmp_path / "marked.toml").write_bytes(b'\xef\xbb\xbfdata = "text"')
    assert load_recipe(tmp_path / "marked.toml") == {"data": "text"}
    for name, content in {"mine.toml": "steps", "run.json": "{}"}.items():
        (tmp_path / name).write_text(content)
    for path in (tmp_path / "mine.toml", tmp_path):
        with pytest.raises(InputError, match=f"{path}: it is damaged"):
            load_recipe(path)
    (tmp_path / "mine.toml").write_text("[data]\nsteps = 3")
    with pytest.raises(InputError, match=r"^`steps` belongs in the section training, not in data$"):
        load_recipe(tmp_path / "mine.toml")


@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        ("steps = 1_300", "steps", 1300),
        ("training.steps=7", "steps", 7),
        ("model.preset=base", "preset", "base"),
        ("data.data=x", "data", "x"),
        ("data.augment.end=0.5", "augment", {"lower": 0.1, "end": 0.5}),
        ("peak_rate=1e-3", "peak_rate", 0.001),
        ("vocab_size=none", "vocab_size", None),
        ("data=tfds:wmt14_translate/de-en", "data", "tfds:wmt14_translate/de-en"),
        ("data=/a folder/b=c", "data", "/a folder/b=c"),
        ('data="none"', "data", "none"),
        ("augment={}", "augment", {}),
    ],
)
def test_changed_values(change, key, value):
    recipe = {"data": "bundled", "augment": {"lower": 0.1}}
    changed = change_recipe(recipe, [change])
    assert changed == {**recipe, key: value}
    assert type(changed[key]) is type(value)


def test_changes_of_the_model():
    recipe = {"data": "bundled", "model": {"d_ff": 5, "d_model": 10}}
    changed = change_recipe(recipe, ["model.d_ff=7", "steps=3", "model.d_k=none", "steps=11"])
    model = {"d_ff": 7, "d_model": 10, "d_k": None}
    assert changed == {"data": "bundled", "steps": 11, "model": model}
    assert recipe["model"] == {"d_ff": 5, "d_model": 10}
    assert change_recipe(recipe, ["model={d_k = 3}"])["model"] == {"d_k": 3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("steps", r"must have the form .*'steps'$"),
        (" = 7", r"must have the form .*' = 7'$"),
        ("models.d_ff=7", r"^Unknown setting models\. Did you mean model\b"),
        ("model.a.b=7", r"^Unknown setting a\."),
        ("steps.a=7", r"^`steps`: .* steps={'a': 7}$"),
        ("training.stepz=7", r"^Unknown setting stepz\. Did you mean steps\?$"),
        ("training.augment.end=0.1", r"^`augment` belongs in the section data, not in training$"),
    ],
)
def test_malformed_changes(change, message):
    with pytest.raises(InputError, match=message):
        TrainSettings.from_dict(change_recipe({"data": "bundled"}, [change]))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": 0}, "`steps`: .* steps=0"),
        ({"augment": {"end": 1.5}}, r"`augment\.end`: .* augment\.end=1\.5"),
        ({"sample_from": 3}, "`sample_from` needs a `beam_size` of 1"),
        ({"warmup": 7}, r"^Unknown setting warmup\. Did you mean warmup_steps\?$"),
        (
            {"droput_rate": 0.2},
            r"^Unknown setting droput_rate\. Did you mean model\.dropout_rate\b",
        ),
        ({"dropout_rate": 0.2}, r"^Unknown setting dropout_rate\. .* model\.dropout_rate\b"),
        ({"model": {"d_modle": 7}}, r"^Unknown setting d_modle\. Did you mean d_model"),
        ({"model": {"vocab_size": 7}}, "`vocab_size` must not be in `model`"),
        ({"augment": {"typo": 0.1}}, r"^`augment\.typo`: .* 'quotes', .*'typing'\. Received"),
        ({"augment": 3}, "^`augment`: .*augment=3$"),
        ({"preset": "huge"}, "`preset` must be one of tiny, base, big, .*A-1-head, .*'huge'"),
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
def test_wrong_settings(values, message):
    with pytest.raises(InputError, match=message):
        TrainSettings.from_dict({"data": "bundled", **values})


def test_a_table_that_is_none_stays_for_the_check():
    assert change_recipe({"augment": 3}, ["augment.end=0.5"]) == {"augment": 3}
