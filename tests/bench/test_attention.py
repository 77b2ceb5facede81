import pytest
import torch

from castling.attention import KERNELS
from castling.bench.attention import MOST_QUADRATIC_TOKENS, crossover, crossovers, measure_kernels


@pytest.mark.parametrize(
    ("faster", "expected"),
    [
        ([0.5, 0.9, 1.2, 3.0], 400),
        ([1.2, 0.9, 1.2, 3.0], 400),  # faster once by chance, then slower: it does not stay so
        ([1.1, 1.2, 1.3, 1.4], 64),
        ([0.5, 0.6, 0.7, 1.01], 1600),
        ([0.5, 2.0, 2.0, 1.0], None),  # as fast is not faster
    ],
)
def test_crossover_is_where_a_kernel_becomes_faster_and_stays_so(faster, expected):
    tokens = [64, 100, 400, 1600]
    assert crossover(tokens, faster) == expected
    assert crossover(tokens[::-1], faster[::-1]) == expected


def test_crossovers_keep_kernels_head_sizes_and_threads_apart():
    rows = [
        {"kernel": kernel, "head_dim": head_dim, "threads": threads, "tokens": tokens, "faster": tokens / cut}
        for (kernel, head_dim, threads), cut in {("a", 32, 1): 50, ("a", 64, 1): 150, ("b", 32, 2): 900}.items()
        for tokens in (100, 200)
    ]
    assert [tuple(row.values()) for row in crossovers(rows)] == [
        ("a", 32, 1, 100, 200),
        ("a", 64, 1, 200, 200),
        ("b", 32, 2, None, 200),
    ]


def test_every_kernel_has_a_row_with_macs_and_times():
    threads = torch.get_num_threads()
    rows = measure_kernels(128, heads=2, head_dim=16, threads=threads + 1, repeats=1)
    assert {row["kernel"] for row in rows} == KERNELS.keys() - {"softmax"}
    assert len({row["softmax_ms"] for row in rows}) == 1
    for row in rows:
        assert row["threads"] == threads + 1
        assert row["softmax_macs"] == 2 * 2 * 128 * 128 * 16
        linear_macs = 2 * 2 * 128 * 16 * 16
        expected = [linear_macs, linear_macs + 2 * 128 * 16] if KERNELS[row["kernel"]].linear else [row["softmax_macs"]]
        assert row["kernel_macs"] in expected
        assert row["fewer_macs"] == pytest.approx(row["softmax_macs"] / row["kernel_macs"])
        assert row["faster"] == pytest.approx(row["softmax_ms"] / row["kernel_ms"])
        assert row["kernel_lower_quartile_ms"] <= row["kernel_ms"] <= row["kernel_upper_quartile_ms"]
    assert torch.get_num_threads() == threads


def test_quadratic_kernels_are_left_out_where_their_maps_grow_large(monkeypatch):
    monkeypatch.setattr("castling.bench.attention.MOST_QUADRATIC_TOKENS", 64)
    sizes = {"heads": 1, "head_dim": 8, "repeats": 1}
    for num_tokens, expected in ((64, ["angular", "relu_s"]), (65, ["relu_s"])):
        assert [row["kernel"] for row in measure_kernels(num_tokens, ["angular", "relu_s"], **sizes)] == expected
    assert measure_kernels(65, ["angular"], **sizes) == []
    assert MOST_QUADRATIC_TOKENS == 4096


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_tokens": 0}, "at least 1; got 0, 3, 64 and"),
        ({"head_dim": 0}, "at least 1; got 8, 3, 0 and"),
        ({"threads": 0}, "and 0"),
        ({"kernels": ["relu"]}, "unknown kernel 'relu': did you mean 'relu_s'"),
    ],
)
def test_bad_input_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        measure_kernels(**{"num_tokens": 8, "kernels": list(KERNELS)[:1]} | changes)
