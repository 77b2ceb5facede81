import argparse
import json
import re
from html.parser import HTMLParser

import pytest
from torch import nn

from castling.cli import report
from castling.report.run_data import measure_run, occupancy_trajectories, read_run
from castling.report.run_figures import draw_cost, draw_occupancy, draw_run
from castling.report.run_page import write_report
from castling.report.run_text import describe_occupancy, num_tokens_at

LAYERS = ("blocks.0.attn", "blocks.1.attn")
FILLED = [[0.0, 0.0], [0.001, 0.003], [0.02, 0.06], [0.0, 0.0], [0.0, 0.0]]  # two heads at five steps: opens, closes
ENVIRONMENT = {"processor": "Abacus <x2>", "torch": "2.15.0", "command": "castling train digits", "seed": "0"}
SPEED = [
    {"size": 32, "macs": {"castled": 10, "softmax": 15}, "milliseconds": {"castled": 2.0, "softmax": 1.0}},
    {"size": 256, "macs": {"castled": 640, "softmax": 6400}, "milliseconds": {"castled": 4.0, "softmax": 29.2}},
]


def certificate(verdict="free", **changes):
    layers = [
        {
            "name": name,
            "num_tokens": 65,
            "cut": 1.0,
            "can_empty": True,
            "occupancy": [0.0, 0.0],
            "peak": [0.02, 0.0625],
            "opened": True,
        }
        for name in LAYERS
    ]
    content = {
        "verdict": verdict,
        "tolerance": 0.5,
        "metric": "top1",
        "with_branch": 0.9812,
        "castled": 0.9779,
        "gap": 0.0033,
        "agreement": 0.9875,
        "num_examples": 360,
        "largest_difference": 0.25,
        "median_difference": 0.125,
        "state_dict_equal": True,
        "parameters": 123_456,
        "macs_with_branch": 31_800_000,
        "macs_castled": 28_700_000,
        "quadratic_tensors": [],
        "layers": layers,
        "advice": ["Close the mask & castle again."],
    }
    return content | changes


def make_run(folder, kernel=None, filled=FILLED, note="", extra="", **files):
    """A run folder as training writes it; `files` are JSON files by their stem."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        f"model: {{name: castling_deit_tiny_patch16_224, kernel: {kernel or 'null'}}}\n"
        f"data: {{source: digits, image_size: 32, channels: 1}}\n{note}"
    )
    softmax = kernel == "softmax"
    lines = []
    for index, heads in enumerate(filled):
        occupancy = {} if softmax else dict.fromkeys(LAYERS, heads)
        step = {"kind": "step", "step": 10 * index, "epoch": index / 2, "loss": 2.0 / (index + 1), "skipped": 0}
        lines.append(step | {"threshold": None if softmax else 0.02 + 0.2 * index, "occupancy": occupancy})
        metrics = {"top1": 0.5 + 0.1 * index, "loss": 0.3}
        both = {"model": metrics, "castled": None if softmax else metrics, "occupancy": occupancy}
        lines.append({"kind": "eval", "step": 10 * index, "epoch": index + 1} | both)
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + extra)
    for stem, content in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(content))
    return folder


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


def page_of(*folders, **options):
    written = write_report([read_run(folder) for folder in folders], folders[0] / "out", **options)
    return Page(written[0].read_text(encoding="utf-8"))


@pytest.fixture
def full(tmp_path):
    summary = {"status": "finished", "seconds": 754, "skipped_steps": 2, "rollbacks": 0}
    speed = {"environment": {"processor": "Slide rule"}, "rows": SPEED}
    files = {"environment": ENVIRONMENT, "certificate": certificate(), "summary": summary, "speed": speed}
    return make_run(tmp_path / "castling", **files)


def test_the_cards_show_what_the_files_say(full, tmp_path):
    summary = {"status": "finished", "model": {"top1": 0.9444}, "castled": None}
    page = page_of(full, make_run(tmp_path / "softmax", kernel="softmax", summary=summary))
    assert page.cards == {
        "With branch": "98.12 %",
        "Castled": "97.79 %",
        "Castling gap": "0.33",
        "Baseline": "94.44 %",
        "MACs, castled": "28.7 M",
        "Parameters": "123 K",
        "Speed-up": "7.3x",
    }
    assert "31.8 M with the branch" in page.text
    assert "over softmax at 256 px, 4,096 tokens" in page.text


def test_the_page_has_all_parts(full):
    page = page_of(full, title="A title")
    assert "A title" in page.text
    assert "98.8 % of 360 answers" in page.text
    assert "Close the mask & castle again." in page.text
    assert "12 min 34 s" in page.text
    assert "2 steps skipped" in page.text
    assert "blocks.1.attn 65 1 yes 6.25 % 0 % yes" in page.text
    assert "Abacus <x2>" in page.text
    assert "Slide rule" in page.text
    assert page.tags.count("img") == 4
    assert "details" in page.tags


def test_the_page_points_to_nothing_outside_and_runs_nothing(full):
    page = page_of(full)
    assert {target.partition(",")[0] for target in page.targets} == {"data:image/png;base64"}
    assert not {"script", "link", "iframe", "object", "base"} & set(page.tags)
    style = (full / "out" / "report.html").read_text().partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_strings_from_files_are_escaped(tmp_path):
    evil = "<script>alert(1)</script>"
    content = certificate(advice=[evil], quadratic_tensors=[evil])
    content["layers"][0]["name"] = evil
    folder = make_run(tmp_path / "run", note=f"note: '{evil}'\n", certificate=content, environment={"host": evil})
    page = page_of(folder, title=evil)
    assert "script" not in page.tags
    assert page.text.count(evil) == 7  # twice the title


@pytest.mark.parametrize(
    ("verdict", "colour", "headline"),
    [
        ("free", "free", "Castling is free"),
        ("cheap", "cheap", "Castling is cheap"),
        ("not yet", "not-yet", "Not yet"),
    ],
)
def test_the_banner_has_the_verdicts_colour(tmp_path, verdict, colour, headline):
    page = page_of(make_run(tmp_path / "run", certificate=certificate(verdict)))
    assert page.banner == colour
    assert headline in page.text
    assert "from 98.12 % to 97.79 %, a gap of 0.33 points where 0.5 are tolerated" in page.text


def test_without_certificate_the_banner_is_grey_and_the_latest_evaluation_counts(tmp_path):
    page = page_of(make_run(tmp_path / "run"))
    assert page.banner == "none"
    assert "No certificate yet" in page.text
    assert page.cards["With branch"] == page.cards["Castled"] == "90.00 %"
    assert page.cards["Speed-up"] == page.cards["Baseline"] == "\N{EN DASH}"


def test_a_softmax_run_alone_says_that_there_is_nothing_to_castle(tmp_path):
    page = page_of(make_run(tmp_path / "run", kernel="softmax"))
    assert page.banner == "none"
    assert "nothing to castle" in page.text
    assert page.cards == {"Softmax": "90.00 %"}
    assert page.tags.count("img") == 2


def test_a_run_that_has_just_begun_has_a_page(tmp_path):
    page = page_of(make_run(tmp_path / "run", filled=[]))
    assert "Nothing is logged yet" in page.text
    assert page.cards["With branch"] == "\N{EN DASH}"


def test_a_baseline_stands_beside_the_run(full, tmp_path):
    page = page_of(full, make_run(tmp_path / "softmax", kernel="softmax"))
    assert "The softmax baseline stands at 90.0 % after 5 epochs." in page.text
    assert "softmax castling_deit_tiny_patch16_224 softmax 90.00 %" in page.text


def test_figures_are_written_as_png(full):
    written = write_report([read_run(full)], full)
    assert [path.relative_to(full).as_posix() for path in written] == [
        "report.html",
        "figures/accuracy.png",
        "figures/loss.png",
        "figures/occupancy.png",
        "figures/cost.png",
    ]
    for path in written[1:]:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_the_trajectory_of_nonzeros(full):
    first, second = occupancy_trajectories(read_run(full))
    assert (first.layer, second.layer) == LAYERS
    assert first.steps == (0, 10, 20, 30, 40)
    assert first.mean == pytest.approx([0, 0.002, 0.04, 0, 0])
    assert (first.low[2], first.high[2]) == (0.02, 0.06)
    caption = describe_occupancy([first, second])
    assert "opened in 2 of 2 layers, most in layer 0: 6.0 % in its fullest head at step 20" in caption
    assert "From step 30 on every logged mask is empty" in caption


def test_a_branch_that_never_opened_says_so(tmp_path):
    page = page_of(make_run(tmp_path / "run", filled=[[0.0, 0.0]] * 3))
    assert "The branch never opened: every mask was empty at each of the 3 logged steps." in page.text
    assert page.tags.count("img") == 3


def test_a_branch_that_is_still_open_says_how_much(tmp_path):
    run = read_run(make_run(tmp_path / "run", filled=FILLED[:3]))
    assert "the fullest head still keeps 6.0 %" in describe_occupancy(occupancy_trajectories(run))


def test_what_was_not_logged_is_not_drawn(tmp_path):
    run = read_run(make_run(tmp_path / "run", kernel="softmax"))
    with pytest.raises(ValueError, match="no occupancy"):
        draw_occupancy(run, tmp_path / "occupancy.png")
    with pytest.raises(ValueError, match="no measured speed"):
        draw_cost(run, tmp_path / "cost.png")
    assert [figure.title for figure in draw_run([run], tmp_path)] == ["Accuracy", "Loss"]


def test_losses_that_are_not_finite_are_left_out(tmp_path):
    bad = '{"kind": "step", "step": 50, "epoch": 3, "loss": NaN, "threshold": null, "skipped": 4, "occupancy": {}}\n'
    page = page_of(make_run(tmp_path / "run", extra=bad + bad.replace("NaN", "null").replace("50", "60")))
    assert "ends at 0.4 after 40 steps. 4 steps were skipped" in page.text


def test_names_that_matplotlib_would_interpret_are_drawn_as_they_are(tmp_path):
    runs = [read_run(make_run(tmp_path / name)) for name in ("_hidden", "$x^{", "a$b$")]
    assert len(draw_run(runs, tmp_path / "figures")) == 3


def test_runs_of_one_name_are_told_apart(tmp_path):
    page = page_of(make_run(tmp_path / "first" / "run"), make_run(tmp_path / "second" / "run"))
    assert "first/run, second/run" in page.text


def test_a_line_that_is_cut_short_is_left_out_at_the_end_only(tmp_path):
    folder = make_run(tmp_path / "run", extra='{"kind": "step", "st')
    assert len(read_run(folder).steps) == 5
    with (folder / "log.jsonl").open("a") as log:
        log.write('\n{"kind": "note"}\n')
    with pytest.raises(ValueError, match=r"log\.jsonl, line 11 is not JSON"):
        read_run(folder)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"is not a run folder: it lacks config\.yaml and log\.jsonl"):
        read_run(tmp_path)
    folder = make_run(tmp_path / "run", certificate=[1])
    with pytest.raises(ValueError, match=r"certificate\.json must hold an object; got list"):
        read_run(folder)
    (folder / "certificate.json").write_text("{")
    with pytest.raises(ValueError, match=r"certificate\.json is not JSON"):
        read_run(folder)
    with pytest.raises(ValueError, match="nothing to report"):
        write_report([], tmp_path)


def test_tokens_are_those_of_the_certificate_scaled(full, tmp_path):
    assert [num_tokens_at(read_run(full), size) for size in (32, 48, 256)] == [64, 144, 4096]
    assert num_tokens_at(read_run(make_run(tmp_path / "run")), 32) is None


def test_measured_speed_is_kept_with_its_environment(tmp_path):
    folder = make_run(tmp_path / "run")
    models = nn.Conv2d(1, 2, 1), nn.Conv2d(1, 4, 1)
    content = measure_run(folder, *models, sizes=[8, 4], channels=1)
    assert read_run(folder).speed == json.loads(json.dumps(content))
    assert [row["macs"] for row in content["rows"]] == [
        {"castled": 32, "softmax": 64},
        {"castled": 128, "softmax": 256},
    ]
    assert "processor" in content["environment"]


@pytest.fixture
def command(monkeypatch):
    """The verb in this process, with models that cost nothing; `calls` holds the runs it built them for."""
    calls = []
    monkeypatch.setattr(report, "_models_of", lambda run: calls.append(run) or (nn.Conv2d(1, 2, 1), nn.Conv2d(1, 4, 1)))
    parser = argparse.ArgumentParser()
    report.add_parser(parser.add_subparsers())

    def call(*arguments):
        flags = parser.parse_args(["report", *map(str, arguments)])
        flags.run(flags)

    call.calls = calls
    return call


def test_the_verb_measures_once(command, tmp_path, capsys):
    folder = make_run(tmp_path / "run")
    command(folder)
    assert [row["size"] for row in read_run(folder).speed["rows"]] == [32, 64, 128, 256]
    assert "report.html" in capsys.readouterr().out
    command(folder)
    assert len(command.calls) == 1
    command(folder, "--measure-again")
    command(folder, "--sizes", 16, 8)
    command(folder, "--sizes", 8, 16)
    assert len(command.calls) == 3
    assert [row["size"] for row in read_run(folder).speed["rows"]] == [8, 16]


def test_the_verb_measures_nothing_where_that_is_not_wanted_or_not_possible(command, tmp_path, monkeypatch, caplog):
    folder = make_run(tmp_path / "run")
    command(folder, "--no-speed", "--out", tmp_path / "out", "--title", "Mine")
    command(make_run(tmp_path / "softmax", kernel="softmax"))
    assert command.calls == []
    assert "Mine" in (tmp_path / "out" / "report.html").read_text()
    assert not (folder / "report.html").exists()

    def refuse(run):
        raise ValueError("no weights yet")

    monkeypatch.setattr(report, "_models_of", refuse)
    command(folder)
    assert "speed is not measured: no weights yet" in caplog.text
    assert (folder / "report.html").exists()
