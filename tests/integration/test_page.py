"""The page at `/`, in a real browser."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from fake_models import save_model, serving

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect
ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "fake"
    save_model(folder, 3)
    with serving(folder) as server:
        yield server


@pytest.fixture
def open_page(browser):
    """Opens the page; at the end there were no errors, and no other host was asked."""
    contexts = []

    def open_page(server, width=1000, **options):
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        page = context.new_page()
        page.set_default_timeout(20_000)
        expect.set_options(timeout=20_000)  # a busy machine is slow
        errors, hosts = [], set()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
        contexts.append((context, errors, hosts, server))
        page.goto(server.url)
        return page

    yield open_page
    for context, errors, hosts, server in contexts:
        context.close()
        assert errors == []
        assert {host for host in hosts if host} == {server.url.removeprefix("http://")}


def test_translates_with_the_keyboard_alone(open_page, server):
    page = open_page(server)
    expect(page.get_by_role("heading", name="fake", exact=True)).to_be_visible()
    expect(page.locator("#about")).to_have_text("version 3")
    expect(page.get_by_label("Text to translate")).to_be_focused()
    page.keyboard.type("abc")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#translation")).to_have_text("3:ABC")
    expect(page.locator("#note")).to_have_text("Score -3.000.")
    # The third hypothesis is missing.
    expect(page.get_by_role("listitem")).to_have_text(["abc1-0.500", "abc2-1.250"])
    for _ in range(3):
        page.keyboard.press("Tab")
    expect(page.locator("#scroll")).to_be_focused()
    page.keyboard.press("ArrowDown")  # shows the first cell: the last letter looks at the first
    expect(page.locator("#reading")).to_have_text(re.compile("c.* looks at .*a.*: 0.0 %"))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#reading")).to_have_text(re.compile("c.* looks at .*c.*: 100.0 %"))


def test_attention_is_a_picture_of_the_weights(open_page, server):
    page = open_page(server)
    page.get_by_label("Text to translate").fill("abcd")
    page.get_by_role("button", name="Translate").click()
    expect(page.locator("#matrix text")).to_have_text([*"abcd", *"dcba"])
    expect(page.locator("#matrix .unsure")).to_have_text(["b"])  # of probability 0.37
    alphas = page.evaluate(
        """async () => {
            const image = new Image();
            image.src = document.querySelector("#matrix image").getAttribute("href");
            await image.decode();
            const pen = document.createElement("canvas").getContext("2d");
            pen.drawImage(image, 0, 0);
            const pixels = pen.getImageData(0, 0, image.width, image.height).data;
            return [image.width, image.height, [...pixels].filter((_, n) => n % 4 === 3)];
        }"""
    )
    anti_diagonal = [255 * (row + column == 3) for row in range(4) for column in range(4)]
    assert alphas == [4, 4, anti_diagonal]


def test_long_text_is_marked_and_fits_a_phone(open_page, server):
    page = open_page(server, width=390, is_mobile=True, has_touch=True)
    page.get_by_label("Text to translate").fill("<img src=x onerror=alert(1)>" * 9)
    page.get_by_role("button", name="Translate").tap()
    expect(page.locator("#note")).to_contain_text("its end was cut off")
    expect(page.locator("#attention")).to_be_visible()
    assert page.locator("img").count() == 0  # markup is text
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    expect(page.locator("#hint")).to_be_hidden()  # there is no keyboard


def test_menus_of_a_model_of_several_languages(open_page, tmp_path):
    folder = tmp_path / "fake"
    version = save_model(folder, 2)
    names = ["zho_Hans", "eng_Latn", "deu_Latn", "apc_Arab"]
    known = {"source": "eng_Latn", "target": "zho_Hans", "sources": names[1:3], "targets": names}
    (version / "assets.extra").mkdir()
    (version / "assets.extra" / "metadata.json").write_text(json.dumps({"languages": known}))
    with serving(folder) as server:
        page = open_page(server)
        expect(page.locator("#about")).to_have_text("4 languages, version 2")
        source, target = page.get_by_label("From"), page.get_by_label("To", exact=True)
        assert source.locator("option").all_inner_texts() == ["English", "German"]
        targets = target.locator("option").all_inner_texts()
        assert targets == ["apc_Arab", "Chinese", "English", "German"]
        assert (source.input_value(), target.input_value()) == ("eng_Latn", "zho_Hans")
        page.get_by_label("Text to translate").fill("ab")
        page.keyboard.press("Control+Enter")
        translation = page.locator("#translation")
        expect(translation).to_have_text("2:>>ENG_LATN:ZHO_HANS<< AB")
        assert translation.evaluate("it => it.closest('[lang]').lang") == "zh"
        target.select_option("German")
        page.get_by_role("button", name="Translate").click()
        expect(translation).to_have_text("2:>>ENG_LATN:DEU_LATN<< AB")
        assert '"target":"deu_Latn"' in page.locator("#curl").text_content()


def test_layout_of_a_document_is_kept(open_page, tmp_path):
    folder = tmp_path / "fake"
    version = save_model(folder, 5, document=True)
    about = {
        "format": "keras-transformer export",
        "source": "en",
        "target": "he",
        "examples": [{"text": "it's $1"}],
        "protect": ["tags"],
    }
    (version / "assets.extra").mkdir()
    (version / "assets.extra" / "metadata.json").write_text(json.dumps(about))
    with serving(folder) as server:
        page = open_page(server, permissions=["clipboard-read", "clipboard-write"])
        expect(page.locator("#about")).to_have_text("English to Hebrew, version 5")
        text = page.get_by_label("Text to translate")
        text.fill("\n" * 9)
        assert text.evaluate("it => it.scrollHeight - it.clientHeight") == 0  # it grows
        text.fill("ab\n\nאבג")
        page.keyboard.press("Control+Enter")
        expect(page.locator("#note")).to_have_text(
            re.compile(r"^3 sentences\. Score 0\.000\. Hypotheses .* one sentence")
        )
        assert page.locator("#translation").inner_text() == "5:AB\n\nאבג"
        assert page.locator("#translation").evaluate("it => it.closest('[lang]').lang") == "he"
        assert not page.locator("#nbest, #attention").filter(visible=True).count()
        page.get_by_role("button", name="Copy").click()
        expect(page.locator("#copy")).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == "5:AB\n\nאבג"
        page.get_by_role("button", name="Example").click()
        expect(page.locator("#translation")).to_have_text("5:IT'S $1")
        expect(page.get_by_role("listitem")).to_have_text(["it's $11-0.500", "it's $12-1.250"])
        page.get_by_text("Terms").click()
        page.get_by_label("Words and how to translate them").fill(
            "a = B\nfile\tc d\n\n文=e\n.x = y\nk=v\tw"
        )
        text.fill("a file? files, <b a>⟦a|b⟧ 中文 {a} ab.x http://a k=v")
        page.keyboard.press("Control+Enter")
        expect(page.locator("#translation")).to_have_text(
            "5:⟦A|B⟧ ⟦FILE|C D⟧? FILES, <B A>⟦A|B⟧ 中⟦文|E⟧ {A} AB⟦.X|Y⟧ HTTP://A ⟦K=V|W⟧"
        )
        page.get_by_label("Words and how to translate them").fill("file")
        page.get_by_role("button", name="Translate").click()
        expect(page.get_by_role("alert")).to_have_text(re.compile(".*Received: file"))
        page.get_by_text("Use it in a program").click()
        curl = shlex.split(page.locator("#curl").inner_text())
        assert json.loads(curl[2]) == {"instances": ["it's $1"]}
        with page.expect_response("**/metadata") as answer:
            page.get_by_role("link").click()
        assert answer.value.ok


def test_translation_without_the_rest(open_page, server):
    def refuse(route):
        if route.request.post_data_json["signature_name"] == "nbest":
            route.fulfill(status=429, json={"error": "The answer has more than 1,000,000 values"})
        else:
            route.continue_()

    page = open_page(server)
    page.route("**/*:predict", refuse)
    page.get_by_label("Text to translate").fill("abc")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#translation")).to_have_text("3:ABC")
    assert page.locator("#attention").is_visible()
    assert not page.locator("#nbest").is_visible()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_empty_text_and_failing_server(open_page, server):
    page = open_page(server)
    page.get_by_label("Text to translate").fill("  ")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("alert")).to_have_text("Type a text first.")
    page.get_by_label("Text to translate").fill("abc")
    page.route(
        "**/*:predict", lambda route: route.fulfill(status=503, json={"error": "The queue is full"})
    )
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("alert")).to_have_text("The queue is full")
    expect(page.locator("#answer")).to_be_hidden()
    page.unroute("**/*:predict")
    page.route("**/v1/**", lambda route: route.abort())
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached")
    page.unroute("**/v1/**")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#translation")).to_have_text("3:ABC")
    expect(page.get_by_role("alert")).to_be_hidden()


def test_model_without_nbest_and_attention(open_page, tmp_path):
    folder = tmp_path / "fake & <plain>"
    save_model(folder, 4, nbest=False, attention=False)
    with serving(folder) as server:
        page = open_page(server)
        expect(page.get_by_role("heading", name="fake & <plain>")).to_be_visible()
        page.get_by_label("Text to translate").fill("abc")
        page.keyboard.press("Control+Enter")
        expect(page.locator("#translation")).to_have_text("4:ABC")
        expect(page.locator("#nbest")).to_be_hidden()
        expect(page.locator("#attention")).to_be_hidden()


def test_site_searches_in_a_file(browser, tmp_path):
    """A browser starts no worker from a file; the site's script runs it in a frame."""
    shutil.copy(ROOT / "docs" / "site" / "iframe-worker.js", tmp_path)
    (tmp_path / "worker.js").write_text(
        "addEventListener('message', it => postMessage(it.data + 1))"
    )
    (tmp_path / "page.html").write_text("<body><script src='iframe-worker.js'></script>")
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    answer = """() => new Promise(resolve => {
        const worker = new Worker("worker.js");
        worker.addEventListener("message", event => resolve(event.data));
        worker.postMessage(6);
    })"""
    assert page.evaluate(answer) == 7
    page.close()
