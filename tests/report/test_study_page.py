"""A study as data and as a page: against numpy and scipy, and without anything that a file could smuggle in."""

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from castling.measure.metric import Metric
from castling.report.study_comparison import agreement_with_paper, differences, to_json
from castling.report.study_data import StudyData, VariantData, fill, last_rows
from castling.report.study_page import interval, render_study, write_study
from castling.report.study_table import study_markdown

ACCURACY = Metric("top1", 0.0)
RNG = np.random.default_rng(0)
SCORES = {name: dict(enumerate(RNG.normal(mean, 1, 4))) for name, mean in (("a", 80), ("b", 84), ("c", 79))}


def variant(name, **more):
    return VariantData(name, scores=SCORES[name], **more)


def study(*variants, metric=ACCURACY, **more):
    return StudyData("small", "Small", "Which is best?", "an epoch", metric, variants, **more)


def row(name, seed, network, top1, split="validation", **more):
    cells = {"variant": name, "seed": seed, "network": network, "top1": top1, "split": split, "macs": 1000}
    return {key: str(value) for key, value in {**cells, "lost": "", "verdict": "", **more}.items()}


def test_differences_are_those_of_scipys_paired_test():
    found = study(variant("a"), variant("b", opponents=("a",)), variant("c", opponents=("a", "b")))
    pairs = differences(found)
    assert [(pair.variant, pair.other) for pair in pairs] == [("b", "a"), ("c", "a"), ("c", "b")]
    for pair in pairs:
        ours, theirs = (list(SCORES[name].values()) for name in (pair.variant, pair.other))
        test = stats.ttest_rel(ours, theirs)
        low, high = test.confidence_interval(0.95)
        assert (pair.better_by.low, pair.better_by.high) == (pytest.approx(low), pytest.approx(high))
        assert (pair.said != "open") == (test.pvalue < 0.05)
    assert [pair.said for pair in pairs] == ["better", "worse", "worse"]
    near = replace(variant("c", opponents=("a",)), scores={0: 70.0, 1: 90.0})
    assert [pair.said for pair in differences(study(variant("a"), near))] == ["open"]


def test_equal_seeds_are_paired_and_others_left_out():
    ours = replace(variant("b", opponents=("a",)), scores={1: 5.0, 7: 9.0, 3: 4.0})
    found = study(replace(variant("a"), scores={3: 1.0, 1: 4.0, 2: 0.0}), ours)
    (pair,) = differences(found)
    assert (pair.seeds, pair.better_by.mean) == ((1, 3), 2.0)
    (single,) = differences(study(found.variants[0], replace(ours, scores={3: 4.0})))
    assert (single.better_by.low, single.said) == (None, "open")
    assert differences(study(variant("a"), replace(ours, scores={8: 1.0}))) == []


def test_less_is_better_where_the_metric_says_so():
    error = Metric("error", 0.0, unit="px", higher_is_better=False)
    found = study(variant("a", paper=1.0), variant("b", opponents=("a",), paper=3.0), metric=error)
    (pair,) = differences(found)
    assert pair.said == "worse"
    assert pair.better_by.mean == pytest.approx(
        np.mean(list(SCORES["a"].values())) - np.mean(list(SCORES["b"].values()))
    )


def test_the_order_of_the_paper():
    paper = {"a": 26.0, "b": 27.0, "c": 24.4}
    found = agreement_with_paper(study(*(variant(name, paper=paper[name]) for name in SCORES), variant("a")))
    means = [np.mean(list(SCORES[name].values())) for name in SCORES]
    assert found.variants == ("a", "b", "c")
    assert found.correlation == pytest.approx(stats.spearmanr(means, list(paper.values())).statistic)
    for seed, value in found.by_seed.items():
        ours = [SCORES[name][seed] for name in SCORES]
        assert value == pytest.approx(stats.spearmanr(ours, list(paper.values())).statistic)
    assert agreement_with_paper(study(variant("a"))) is None


def test_rows_become_scores():
    rows = [
        row("a", 0, "with branch", 0.8),
        row("a", 0, "castled", 0.79, lost=1.0, verdict="cheap"),
        row("a", 0, "castled", 0.77, split="test", lost=1.0, verdict="cheap"),
        row("b", 0, "as trained", 0.7),
        row("b", 0, "as trained", 0.72),  # trained again
        row("b", 1, "as trained", 0.6),
    ]
    curves = [
        {"variant": "a", "seed": "0", "step": step, "epoch": epoch, "network": network, "top1": top1}
        for step, epoch, network, top1 in (
            ("20", "2", "castled", "0.7"),
            ("10", "1", "castled", "0.5"),
            ("10", "1", "as trained", "0.6"),
            ("20", "2", "as trained", "0.75"),
        )
    ]
    first, second = (fill(VariantData(name), rows, curves, ACCURACY) for name in "ab")
    assert first.scores == {0: pytest.approx(79.0)}
    assert first.tested == {0: pytest.approx(77.0)}
    assert first.with_branch == {0: pytest.approx(80.0)}
    assert (first.lost, first.verdicts, first.macs) == ({0: pytest.approx(1.0)}, {0: "cheap"}, 1000)
    assert first.curves == {0: [(1.0, pytest.approx(50.0)), (2.0, pytest.approx(70.0))]}
    assert first.gaps == {0: [(1.0, pytest.approx(10.0)), (2.0, pytest.approx(5.0))]}
    assert second.gaps == {}
    assert second.scores == {0: pytest.approx(72.0), 1: pytest.approx(60.0)}
    assert last_rows(rows[3:5], ("seed",)) == rows[4:5]


def test_the_page_says_what_was_found_and_needs_nothing_else():
    masks = {0: {"blocks.0.attn": [(0, 0.0), (10, 0.1), (20, 0.0)]}}
    lines = {seed: [(1.0, 70.0 + seed), (2.0, 80.0 + seed)] for seed in range(2)}
    found = study(
        variant("a", paper=26.0, curves=lines, masks=masks, verdicts={0: "free"}, lost={0: 0.0}),
        variant("b", opponents=("a",), paper=27.0, note="<script>x</script>", tested={0: 70.0}),
        variant("c", paper=24.4),
        missing={"d-0": "no <folder>"},
        facts={"commit": "abc-dirty"},
    )
    page = render_study(found)
    assert "<script" not in page
    assert "no &lt;folder&gt;" in page
    assert "&lt;script&gt;x&lt;/script&gt;" in page
    values = list(SCORES["b"].values())
    assert f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}" in page
    assert "better" in page
    assert "1 free" in page
    assert "abc-dirty" in page
    assert "1.00" in page  # of the order


def test_a_page_of_nothing_yet_says_so():
    page = render_study(study(VariantData("a"), VariantData("b", opponents=("a",)), missing={"a-0": "not yet"}))
    assert "Nothing can be compared yet" in page
    assert "a-0: not yet" in page


def test_the_written_page_has_all_figures_inside(tmp_path):
    pytest.importorskip("matplotlib")
    masks = {seed: {"blocks.0.attn": [(0, 0.0), (10, 0.1 * seed)], "blocks.1.attn": [(0, 0.0)]} for seed in range(2)}
    lines = {seed: [(1.0, 70.0 + seed), (2.0, 80.0)] for seed in range(2)}
    many = [replace(variant("c", curves=lines), name=f"other {number}") for number in range(9)]
    found = study(
        variant("a", paper=26.0, curves=lines, gaps=lines, masks=masks),
        variant("b", opponents=("a",), paper=27.0),
        *many,
    )
    page = write_study(found, tmp_path).read_text()
    figures = sorted(path.stem for path in (tmp_path / "figures" / found.name).iterdir())
    assert figures == ["curves", "differences", "gaps", "masks", "paper", "scores"]
    assert page.count("data:image/png;base64,") == 6
    assert not re.search(r"(src|href)=\"(?!data:)", page)


def test_json_has_the_same_numbers():
    found = study(variant("a", paper=26.0), variant("b", opponents=("a",), paper=27.0, tested={0: 1.0}))
    content = to_json(found)
    values = list(SCORES["a"].values())
    assert content["variants"]["a"]["validation"]["mean"] == pytest.approx(np.mean(values))
    assert content["variants"]["a"]["validation"]["deviation"] == pytest.approx(np.std(values, ddof=1))
    assert content["variants"]["b"]["test"] == {"mean": 1.0, "deviation": None, "by_seed": {0: 1.0}}
    (pair,) = content["differences"]["validation"]
    assert (pair["variant"], pair["said"], pair["better_by"]["count"]) == ("b", "better", 4)
    assert content["differences"]["test"] == []
    assert content["metric"] == {"name": "top1", "unit": "%", "better": "higher"}


def test_the_markdown_table_has_spread_differences_and_what_castling_lost():
    found = study(variant("a", note="plain"), variant("b", opponents=("a", "c"), lost={0: 0.25, 1: 0.0}), variant("c"))
    text = study_markdown(found)
    lines = text.splitlines()
    assert lines[0] == "| variant | what it is | top1, % | seeds | better, points (95 % interval) |"
    assert lines[2].startswith("| `a` | plain | ")
    pairs = differences(found)
    assert lines[3].endswith(f"| {interval(pairs[0].better_by)} than `a`; {interval(pairs[1].better_by)} than `c` |")
    assert lines[-1] == "an epoch; on validation pictures; castling lost 0.25 points at most."


def test_the_markdown_table_shows_test_pictures_where_they_were_looked_at():
    tested = replace(variant("a"), tested={0: 50.0, 1: 52.0})
    text = study_markdown(study(tested, variant("b", opponents=("a",))))
    assert "| `a` |  | 51.00 ± 1.41 | 2 |" in text
    assert "`b`" not in text  # it has not seen them
    assert text.endswith("an epoch; on the test pictures.")
