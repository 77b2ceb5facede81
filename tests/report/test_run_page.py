import re
from html.parser import HTMLParser

import pytest
from run_folders import SPEED, certificate, make_run, metrics

from castling.measure.metric import Metric
from castling.report.run_data import read_run
from castling.report.run_page import render_page, write_report

ENVIRONMENT = {"processor": "Abacus <x2>", "torch": "2.15.0", "command": "castling train digits", "seed": "0"}


class Page(HTMLParser):
    """Cards by their label, the words of everything, and whatever an element points to."""

    def __init__(self, text):
        super().__init__()
        self.targets, self.texts, self.tags, self.banner = [], [], [], ""
        self.feed(text)
        self.text = " ".join(" ".join(self.texts).split())
        cards = re.findall(r'<div class="label">(.*?)</div><div class="value">(.*?)</div>', text)
        self.cards = dict(cards)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tags.append(tag)
        self.targets += [values[name] for name in ("src", "href", "srcset", "data") if name in values]
        if (values.get("class") or "").startswith("verdict "):
            self.banner = values["class"].split()[1]

    def handle_data(self, data):
        self.texts.append(data.replace("\xa0", " "))


def page_of(*folders, title=None):
    """The page without its figures, which take longest."""
    return Page(render_page([read_run(folder) for folder in folders], [], title))


def page_with_figures(*folders):
    written = write_report([read_run(folder) for folder in folders], folders[0] / "out")
    return Page(written[0].read_text(encoding="utf-8"))


@pytest.fixture
def full(tmp_path):
    summary = {"status": "finished", "seconds": 754, "skipped_steps": 2, "rollbacks": 0}
    speed = {"environment": {"processor": "Slide rule"}, "rows": SPEED}
    files = {"environment": ENVIRONMENT, "certificate": certificate(), "summary": summary, "speed": speed}
    return make_run(tmp_path / "castling", **files)


def test_the_cards_show_what_the_files_say(full, tmp_path):
    page = page_of(full, make_run(tmp_path / "softmax", "softmax"))
    assert page.cards == {
        "With branch": "98.12 %",
        "Castled": "97.79 %",
        "Castling gap": "0.33 points",
        "Baseline": "90.00 %",
        "MACs, castled": "28.7 M",
        "Parameters": "123 K",
        "Speed-up": "7.3x",
    }
    assert "31.8 M with branch" in page.text
    assert "over softmax at 256 px, 4,096 tokens" in page.text


def test_a_converted_run_has_its_original_beside_it_and_is_no_baseline(tmp_path):
    folder = make_run(
        tmp_path / "converted", "converted", certificate=certificate("not yet", original=0.99), speed={"rows": SPEED}
    )
    page = page_of(folder)
    assert page.cards == {
        "Original": "99.00 %",
        "Converted": "98.12 %",
        "Castled": "97.79 %",
        "Castling gap": "0.33 points",
        "Baseline": "\N{EN DASH}",
        "MACs, castled": "28.7 M",
        "Parameters": "123 K",
        "Speed-up": "7.3x",
    }
    assert page.banner == "not-yet"
    assert "33 M original" in page.text
    assert "original 99.00 % 0.3 33 M 120 K 95.00 % 0.5 0.25" in page.text
    assert "nothing to castle" not in page.text
    beside = page_of(make_run(tmp_path / "castling"), folder)
    assert beside.cards["Baseline"] == "\N{EN DASH}"
    assert "converted vit_tiny_patch16_224 converted 98.12 % 97.79 %" in beside.text


def test_the_page_has_all_parts(full):
    page = page_of(full, title="A title")
    assert "A title" in page.text
    assert "98.8 % of 360 answers" in page.text
    assert "Close the mask & castle again." in page.text
    assert "run castling · finished · 50 steps, 5 epochs · 12 min 34 s · 2 steps skipped" in page.text
    assert "with branch 98.12 % 0.3 31.8 M 123 K 98.75 % 0.25 0.125" in page.text
    assert "blocks.1.attn 65 1 yes 6.25 % 0 % yes" in page.text
    assert "Tensors of N x N when castled none" in page.text
    assert "Abacus <x2>" in page.text
    assert "Slide rule" in page.text
    assert "details" in page.tags


def test_the_default_title_is_model_and_task(full):
    assert "castling_deit_tiny_patch16_224, classification" in page_of(full).text.replace("_ ", "_")


def test_other_picture_sizes_have_their_own_table(tmp_path):
    sizes = {64: {"with branch": metrics(0.97), "castled": metrics(0.96)}}
    page = page_of(make_run(tmp_path / "run", certificate=certificate(sizes=sizes)))
    assert (
        "Other picture sizes network top1 loss with branch, 64 px 97.00 % 0.3 castled, 64 px 96.00 % 0.3" in page.text
    )
    assert "Other picture sizes" not in page_of(make_run(tmp_path / "one", certificate=certificate())).text


@pytest.mark.parametrize(
    ("found", "said"), [(None, "not told"), (["mm -> (64, 64)", "bmm -> (1, 64, 64)"], r"mm -> (64, 64), bmm")]
)
def test_tensors_of_n_by_n_are_listed_or_not_told(tmp_path, found, said):
    page = page_of(make_run(tmp_path / "run", certificate=certificate("not yet", quadratic_tensors=found)))
    assert f"Tensors of N x N when castled {said}" in page.text


def test_metrics_of_another_task_have_their_own_name_and_unit(tmp_path):
    def error(value):
        return [Metric("error", value, "px", higher_is_better=False)]

    page = page_of(make_run(tmp_path / "run", evaluated=error))
    assert page.cards["Castled"] == "0.9 px"
    assert page.cards["Castling gap"] == "0.00 px"
    assert "error, latest evaluation" in page.text
    assert "top1" not in page.text


def test_the_page_points_to_nothing_outside_and_runs_nothing(full):
    page = page_with_figures(full)
    assert page.tags.count("img") == 4
    assert {target.partition(",")[0] for target in page.targets} == {"data:image/png;base64"}
    assert not {"script", "link", "iframe", "object", "base"} & set(page.tags)
    style = (full / "out" / "report.html").read_text().partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_strings_from_files_are_escaped(tmp_path):
    evil = "<script>alert(1)</script>"
    content = certificate(advice=[evil], quadratic_tensors=[evil])
    content["layers"][0]["name"] = evil
    content["networks"] = {evil: content["networks"]["with branch"], "castled": content["networks"]["castled"]}
    folder = make_run(tmp_path / "run", certificate=content, environment={"host": evil})
    with (folder / "config.yaml").open("a") as config:
        config.write(f"# {evil}\n")
    page = page_of(folder, title=evil)
    assert "script" not in page.tags
    # Twice the title; a network's name in its line, beside MACs and beside parameters.
    assert page.text.count(evil) == 10


def test_the_names_of_metrics_and_labels_of_runs_are_escaped(tmp_path):
    def evil(value):
        return [Metric("<script>m</script>", value, "<script>u</script>")]

    page = page_of(make_run(tmp_path / "<script>", evaluated=evil), make_run(tmp_path / "softmax", "softmax"))
    assert "script" not in page.tags
    assert "<script>m</script>" in page.text


@pytest.mark.parametrize(
    ("said", "colour"), [("free", "free"), ("cheap", "cheap"), ("unused", "unused"), ("not yet", "not-yet")]
)
def test_the_banner_has_the_verdicts_colour(tmp_path, said, colour):
    page = page_of(make_run(tmp_path / "run", certificate=certificate(said)))
    assert page.banner == colour
    style = page.text.partition("body {")[2]
    assert re.search(rf"\.{colour}\b[^{{]*{{ --tone: var", style)


def test_without_certificate_the_banner_is_grey_and_the_latest_evaluation_counts(tmp_path):
    page = page_of(make_run(tmp_path / "run"))
    assert page.banner == "none"
    assert "No certificate yet" in page.text
    assert page.cards["With branch"] == page.cards["Castled"] == "90.00 %"
    assert page.cards["Speed-up"] == page.cards["Baseline"] == "\N{EN DASH}"


def test_a_softmax_run_alone_says_that_there_is_nothing_to_castle(tmp_path):
    page = page_with_figures(make_run(tmp_path / "run", "softmax"))
    assert page.banner == "none"
    assert "nothing to castle" in page.text
    assert page.cards == {"Softmax": "90.00 %"}
    assert page.tags.count("img") == 2


def test_a_run_that_has_just_begun_has_a_page(tmp_path):
    page = page_with_figures(make_run(tmp_path / "run", filled=[]))
    assert "Nothing is logged yet" in page.text
    assert page.cards["With branch"] == "\N{EN DASH}"


def test_a_baseline_stands_beside_the_run(full, tmp_path):
    page = page_with_figures(full, make_run(tmp_path / "softmax", "softmax"))
    assert "The softmax baseline stands at 90.00 % after 5 epochs." in page.text
    assert "softmax castling_deit_tiny_patch16_224 softmax 90.00 %" in page.text


def test_a_branch_that_never_opened_has_its_figure_and_says_so(tmp_path):
    page = page_with_figures(make_run(tmp_path / "run", filled=[[0.0, 0.0]] * 3))
    assert "The branch never opened: every mask was empty at each of the 3 logged steps." in page.text
    assert page.tags.count("img") == 3


def test_unreadable_pictures_are_said(tmp_path):
    folder = make_run(tmp_path / "run")
    (folder / "quarantine.jsonl").write_text('{"name": "a.png", "error": "broken", "split": "train"}\n')
    assert "1 unreadable pictures left out" in page_of(folder).text


def test_runs_of_one_name_are_told_apart(tmp_path):
    page = page_of(make_run(tmp_path / "first" / "run"), make_run(tmp_path / "second" / "run"))
    assert "first/run, second/run" in page.text


def test_the_page_and_its_figures_are_written(full):
    written = write_report([read_run(full)], full)
    assert [path.relative_to(full).as_posix() for path in written] == [
        "report.html",
        "figures/metric.png",
        "figures/loss.png",
        "figures/occupancy.png",
        "figures/cost.png",
    ]


def test_without_runs_there_is_nothing_to_report(tmp_path):
    with pytest.raises(ValueError, match="nothing to report"):
        write_report([], tmp_path)
