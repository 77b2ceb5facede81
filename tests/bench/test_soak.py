import threading
import time
from functools import partial

import pytest
import torch
from PIL import Image

import castling
from castling.bench.soak import SoakReport, changing_picture, soak


def test_answers_that_depend_on_the_company_are_found():
    local = threading.local()

    def answer(picture):
        first = not hasattr(local, "seen")
        local.seen = True
        return picture.size, first and threading.current_thread() is not threading.main_thread()

    assert len(soak(answer, 40, threads=1).different) == 1


def test_every_picture_is_asked_about_once_by_each_side():
    asked = []

    def answer(picture):
        time.sleep(1e-4)
        asked.append(picture.size)
        return picture.size

    report = soak(answer, 50, threads=4, picture=lambda number: Image.new("L", (number + 1, 1)))
    assert report.different == []
    assert sorted(asked) == sorted([(number + 1, 1) for number in range(50)] * 2)


def test_an_error_in_a_thread_is_not_lost():
    def answer(picture):
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("in a thread")

    with pytest.raises(ValueError, match="in a thread"):
        soak(answer, 20, threads=2)


def test_growth_is_the_last_quarter_over_the_second():
    assert SoakReport(8, 1, 1.0, [], [0.0, 50, 60, 60, 61, 65, 70, 72]).growth == 11
    with pytest.raises(ValueError, match="at least 20 pictures"):
        soak(lambda picture: None, 5)


@pytest.mark.slow
def test_a_predictor_in_four_threads_answers_as_in_one(digits_run):
    model = castling.open(digits_run / "castled")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        report = soak(
            lambda picture: model.predict(picture)[0].to_json(), 1000, 4, partial(changing_picture, largest=320)
        )
    finally:
        torch.set_num_threads(before)
    assert report.different == []
    assert report.growth < 15  # MiB; pictures that are kept would be 50
