import math

import pytest
import torch

from castling.report.fitting import HARMONICS, draw_fitting, fit_angular_similarity


@pytest.fixture(scope="module")
def run():
    return fit_angular_similarity(num_steps=2000)


def test_the_network_fits_what_the_linear_terms_cannot(run):
    linear_error = (0.5 + run.cosine / math.pi - run.target).square().mean()
    assert run.losses[-1] < linear_error / 50
    assert run.losses[-1] < run.losses[0]


def test_low_harmonics_are_learned_before_high_ones(run):
    learned = [int((errors < 0.3).nonzero()[0]) for errors in run.harmonic_errors.T[:4]]
    assert learned == sorted(learned)
    assert len(set(learned)) == 4
    assert run.harmonic_errors.shape == (len(run.recorded_steps), len(HARMONICS))


def test_the_same_seed_gives_the_same_run_and_leaves_the_global_one_alone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first, second = (fit_angular_similarity(num_steps=20, seed=5) for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(first.losses, second.losses)
    assert not torch.equal(first.losses, fit_angular_similarity(num_steps=20, seed=6).losses)


def test_picture(run, tmp_path):
    assert draw_fitting(run, tmp_path / "fitting.png").read_bytes().startswith(b"\x89PNG")


def test_no_steps_is_an_error():
    with pytest.raises(ValueError, match="got 0"):
        fit_angular_similarity(num_steps=0)
