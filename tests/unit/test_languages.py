"""Names of languages for common codes, and the tags that ask for them."""

import pytest

from keras_transformer.errors import InputError
from keras_transformer.languages import Languages, common_codes, find_language

# Some of NLLB's 202 names, of M2M-100's 100, and of those in OPUS-MT's tags.
NLLB = [
    "ace_Arab",
    "ace_Latn",
    "arb_Arab",
    "arz_Arab",
    "deu_Latn",
    "eng_Latn",
    "heb_Hebr",
    "hrv_Latn",
    "kaz_Cyrl",
    "kor_Hang",
    "nno_Latn",
    "nob_Latn",
    "pbt_Arab",
    "pes_Arab",
    "por_Latn",
    "srp_Cyrl",
    "zho_Hans",
    "zho_Hant",
]
M2M = ["ar", "ceb", "de", "en", "fa", "he", "hr", "no", "ns", "pt", "sr", "zh"]
OPUS = ["cmn_Hans", "cmn_Hant", "deu", "nob", "por", "pt_br", "srp_Cyrl", "srp_Latn", "ROMANCE"]
CODES = {
    "de": ("deu_Latn", "de", "deu"),
    "DEU_latn": ("deu_Latn", "de", "deu"),
    "de-AT": ("deu_Latn", "de", "deu"),
    "de_DE.UTF-8@euro": ("deu_Latn", "de", "deu"),
    "zh": ("zho_Hans", "zh", "cmn_Hans"),
    "cmn": ("zho_Hans", "zh", "cmn_Hans"),
    "zh_TW": ("zho_Hant", "zh", "cmn_Hant"),
    "zh-Hant": ("zho_Hant", None, "cmn_Hant"),
    "nb": ("nob_Latn", "no", "nob"),
    "no": ("nob_Latn", "no", "nob"),
    "nn": ("nno_Latn", None, None),
    "pt-BR": ("por_Latn", "pt", "pt_br"),
    "pt-PT": ("por_Latn", "pt", "por"),
    "sr": ("srp_Cyrl", "sr", "srp_Cyrl"),
    "sr-Latn": (None, None, "srp_Latn"),
    "hr": ("hrv_Latn", "hr", None),
    "ar": ("arb_Arab", "ar", None),
    "arz": ("arz_Arab", None, None),
    "iw": ("heb_Hebr", "he", None),
    "ko": ("kor_Hang", None, None),
    "ps": ("pbt_Arab", None, None),
    "fa-IR": ("pes_Arab", "fa", None),
    "kk-Latn": (None, None, None),
    "ace": ("ace_Latn", None, None),
    "romance": (None, None, "ROMANCE"),
    "ns": (None, "ns", None),
    "und": (None, None, None),
    "Latn": (None, None, None),
}


@pytest.mark.parametrize(("code", "names"), CODES.items())
def test_common_codes_stand_for_a_models_names(code, names):
    for known, expected in zip((NLLB, M2M, OPUS), names, strict=True):
        if expected is None:
            with pytest.raises(InputError, match=f"^There is no language '{code}', but "):
                find_language(code, tuple(known))
        else:
            assert find_language(code, tuple(known)) == expected


def test_the_nearest_names_come_first():
    for code, expected in {
        "deutsch": "deu, ",  # by its letters
        "sr-Arab": "srp_Cyrl, srp_Latn, ",  # by the language
    }.items():
        with pytest.raises(
            InputError, match=f"There is no target language '{code}', but {expected}"
        ):
            find_language(code, tuple(OPUS), "target ")
    with pytest.raises(
        InputError, match=r"^There is no language 'x', but (\w+, ){5}and 13 others$"
    ):
        find_language("x", tuple(NLLB))
    with pytest.raises(InputError, match=r"^There is no language 'x', but none$"):
        find_language("x", ())


def test_names_have_common_codes():
    codes = common_codes(tuple(NLLB))
    assert all(find_language(code, tuple(NLLB)) == name for name, code in codes.items())
    expected = "ace-Arab ace-Latn ar arz de en he hr kk ko nn nb pbt fa pt sr zh-Hans zh-Hant"
    assert list(codes.values()) == expected.split()
    opus = "zh-Hans zh-Hant de nb pt pt-BR sr-Cyrl sr-Latn ROMANCE"
    assert list(common_codes(tuple(OPUS)).values()) == opus.split()


def test_what_a_text_asks_for():
    known = Languages.of(("en", "de"), NLLB, NLLB)
    assert known[:2] == ("eng_Latn", "deu_Latn")
    assert known.tag() == known.tag("", None) == ""
    assert known.tag("fa", "nb") == ">>pes_Arab:nob_Latn<<"
    assert known.tag(target="pt_BR") == ">>eng_Latn:por_Latn<<"
    assert known.tag("ko") == ">>kor_Hang:deu_Latn<<"
    texts = ["a ", " b", " \u3000", "c"]
    to_portuguese = [">>eng_Latn:por_Latn<< a ", ">>eng_Latn:por_Latn<<  b", " \u3000"]
    assert known.tagged(texts, target="pt") == [*to_portuguese, ">>eng_Latn:por_Latn<< c"]
    each = known.tagged(texts, ["ko", None, "en", None], [None, "", "", "fa"])
    assert each == [
        ">>kor_Hang:deu_Latn<< a ",
        " b",
        " \u3000",
        ">>eng_Latn:pes_Arab<< c",
    ]
    with pytest.raises(
        InputError, match="`target` must be one language, or one for each of 4 texts"
    ):
        known.tagged(texts, target=["pt", "de"])


def test_no_text_asks_for_its_own_language():
    known = Languages.of(("en", "de"), ["en", "de", "fr"], ["en", "de", "fr"])
    assert known.tag("de") == ">>de:en<<"
    assert known.tag(None, "en") == ">>de:en<<"
    assert (known.tag("fr"), known.tag(None, "fr")) == (">>fr:de<<", ">>en:fr<<")


def test_models_of_one_source_or_one_pair():
    several = Languages.of(("en", "mul"), (), ["deu", "fra"])  # whose default is not known
    assert several == ("en", "", ("en",), ("deu", "fra"))
    assert several.tag("en_US") == ""
    assert several.tag(None, "de") == several.tag("en", "de") == ">>en:deu<<"
    pair = Languages.of(("en", "deu"))
    assert pair.tag("eng", "de") == ""
    for known in (several, pair):
        with pytest.raises(InputError, match="There is no source language 'fr', but en"):
            known.tag("fr")
        with pytest.raises(InputError, match="There is no target language 'es', but deu"):
            known.tag("en", "es")
