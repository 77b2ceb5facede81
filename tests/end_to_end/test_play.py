"""The playground in a real browser: Debian's chromium, driven by playwright, which downloads nothing."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import castling
from castling.workflows import playing
from castling.workflows.playing import AS_TRAINED, EXPORTED, TWIN, WAITING, Player

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
COMMAND = Path(sys.executable).with_name("castling")
WAIT = 60_000  # milliseconds


def picture(side=64):
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (side, side), np.uint8))


@pytest.fixture(scope="module")
def player(digits_run):
    return Player(digits_run)


def test_a_run_is_shown_as_trained_castled_and_beside_its_twin(player):
    answer = player.look(picture())
    assert [one.network for one in answer.looks] == [AS_TRAINED, "castled", TWIN] == [*player.trained, TWIN]
    assert all(one.milliseconds > 0 and one.mebibytes > 0 for one in answer.looks)
    assert [one.drawn is None for one in answer.looks] == [False, False, True]
    wanted = player.saved.predict(picture())[0].line().removeprefix("0: ")
    assert answer.looks[0].said == wanted
    assert answer.agreement in (0, 1)
    assert player.name == "digits-run"
    assert Player(player.path / "castled").name == "digits-run"


def test_other_sizes_are_those_that_patches_fill(player):
    smallest, largest, step, side = player.sizes
    assert (step, side) == (4, 32)
    assert smallest % step == largest % step == 0
    assert smallest < side < largest
    assert player.view(picture(), 64).size == (64, 64)
    found = player.explain(picture(), (0.1, 0.9), 64)
    assert found.rows[0].row.shape[1:] == (16, 16)
    assert len(player.samples()) == 8


def test_a_network_that_would_hold_too_much_is_not_run(player, monkeypatch):
    monkeypatch.setattr(playing, "MOST_MEMORY", 1.001 * player.look(picture()).looks[1].mebibytes)
    player = Player(player.path)
    first, castled, _ = player.look(picture()).looks
    assert (first.milliseconds, first.drawn) == (None, None)
    assert first.said.startswith("not run: it would hold")
    assert castled.milliseconds > 0
    assert castled.drawn is not None
    assert player.look(picture()).agreement is None


def test_the_castled_network_answers_before_softmax_is_asked(player):
    *_, before, last = player.looks(picture(), 32)
    assert before.looks[0].said == last.looks[0].said  # the last step only measures
    first, *_ = Player(player.path).looks(picture())
    assert [one.said == WAITING for one in first.looks] == [True, False, True]
    assert first.looks[1] == replace(last.looks[1], milliseconds=None, drawn=first.looks[1].drawn)
    assert first.agreement is None


def test_outputs_that_are_no_numbers_are_said(player):
    spoilt = Player(player.path)
    for network in spoilt._networks.values():
        next(network.parameters()).data.fill_(torch.nan)
    castled = spoilt.look(picture()).looks[1]
    assert "not finite" in castled.said
    assert castled.drawn is not None


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_file_answers_in_its_engine(player, tmp_path, dynamic):
    pytest.importorskip("onnxruntime")
    castling.export(player.path / "castled", tmp_path / "model.onnx", dynamic=dynamic)
    file = Player(tmp_path / "model.onnx")
    smallest, largest, step, side = file.sizes
    assert (side, step, smallest < side < largest) == ((32, 4, True) if dynamic else (32, 1, False))
    assert (file.name, file.run, file.attends) == ("model.onnx", None, False)
    for size in {smallest, side}:
        (one,) = file.look(picture(), size).looks
        assert one.said.split()[0] == player.look(picture(), size).looks[1].said.split()[0]
        assert (one.network, one.mebibytes) == (EXPORTED, None)
        assert one.milliseconds > 0
        assert one.drawn is not None


def test_what_is_no_picture_is_said(player):
    with pytest.raises(OSError, match="cannot identify"):
        player.look(b"nothing")


@pytest.fixture(scope="module")
def address(digits_run, tmp_path_factory):
    pytest.importorskip("gradio")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("gradio")))
        words = [COMMAND, "play", str(digits_run), str(digits_run)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                yield found[0]
                break
        else:
            pytest.fail("the page was not served")
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield opened
        opened.close()


class Visitor:
    """A person at the page, and what their browser asked others for."""

    def __init__(self, browser, address, width):
        self.page = browser.new_context(viewport={"width": width, "height": 900}).new_page()
        self.asked = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)
        self.page.get_by_text("Drop a picture, or take a sample.").first.wait_for(timeout=WAIT)

    def give(self, path):
        self.page.locator("input[type=file]").first.set_input_files(str(path))

    def reads(self, words):
        self.page.locator(".prose.castling-said:visible", has_text=words).wait_for(timeout=WAIT)
        return self.page.locator(".prose.castling-said:visible").inner_text()

    @property
    def shown(self):
        """Addresses of the pictures that are to be seen."""
        return [image.get_attribute("src") for image in self.page.locator("img:visible").all()]


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 420])
def test_a_visit(browser, address, width, tmp_path):
    picture().save(tmp_path / "scan.png")
    visitor = Visitor(browser, address, width)
    page = visitor.page
    visitor.give(tmp_path / "scan.png")
    assert "as trained" in visitor.reads("it says the same")
    bars = page.locator(".castling-bar:visible").all_inner_texts()
    assert len(bars) == 6
    assert sum("ms" in bar for bar in bars) == sum("MiB" in bar for bar in bars) == 3
    page.wait_for_function("document.querySelectorAll('img').length >= 5", timeout=WAIT)
    size = page.get_by_label("number input for Side of the picture, pixels").first
    size.fill("64")
    size.blur()
    page.wait_for_function(
        "bars => ![...document.querySelectorAll('.castling-bar')].map(e => e.innerText)"
        ".every((text, place) => text == bars[place])",
        arg=bars,
        timeout=WAIT,
    )
    visitor.reads("it says the same")
    page.wait_for_timeout(1000)
    before = visitor.shown
    view = page.locator("img:visible").nth(2)
    view.click(position={"x": 20, "y": 20})
    left = page.get_by_label("number input for from the left").first
    page.wait_for_function("field => Number(field.value) < 0.4", arg=left.element_handle(), timeout=WAIT)
    page.wait_for_timeout(1500)
    assert visitor.shown != before
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    outside = [url for url in visitor.asked if not url.startswith((address, "data:", "blob:"))]
    assert outside == []


@pytest.mark.slow
def test_keys_do_what_the_mouse_does(browser, address):
    visitor = Visitor(browser, address, 1280)
    page = visitor.page
    page.get_by_label("or one of the run's own").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    visitor.reads("it says the same")
    page.wait_for_timeout(1500)
    before = visitor.shown
    left = page.get_by_label("number input for from the left").first
    left.focus()
    left.fill("0.05")
    page.get_by_role("button", name="Where does this place look?").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_timeout(2500)
    assert visitor.shown != before


@pytest.mark.slow
def test_bad_and_huge_files_get_a_sentence(browser, address, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no picture at all")
    visitor = Visitor(browser, address, 1280)
    visitor.give(tmp_path / "bad.png")
    assert "This cannot be shown" in visitor.reads("This cannot be shown")
    Image.new("1", (20_000, 20_000)).save(tmp_path / "huge.png")
    visitor = Visitor(browser, address, 1280)
    visitor.give(tmp_path / "huge.png")
    assert "pixels" in visitor.reads("This cannot be shown")


@pytest.mark.slow
def test_two_visitors_see_their_own(browser, address, tmp_path):
    picture().save(tmp_path / "one.png")
    Image.new("L", (64, 64), 255).save(tmp_path / "other.png")
    visitors = [Visitor(browser, address, 1280) for _ in range(2)]
    for visitor, name in zip(visitors, ("one.png", "other.png"), strict=True):
        visitor.give(tmp_path / name)
    said = [visitor.reads("it says the same") for visitor in visitors]
    assert said[0] != said[1]
