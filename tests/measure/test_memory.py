from pathlib import Path

import pytest
import torch
from torch import nn

from castling.measure.memory import PeakMemory, available_memory, forecast_memory, peak_memory
from castling.models.baselines import softmax_baseline


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The process finds tests/measure/candidates.py."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.mark.slow
def test_a_large_tensor_is_seen_whatever_this_process_holds():
    ballast = torch.ones(600 * 2**18)  # a child would inherit this peak in ru_maxrss
    memory = peak_memory("candidates:large_tensor", {"mebibytes": 200, "kept": 100})
    assert memory.of_pass == pytest.approx(200, rel=0.2)
    assert memory.of_candidate == pytest.approx(300, rel=0.2)
    assert memory.before - memory.start == pytest.approx(100, rel=0.2)
    assert ballast[0] == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["too_large_tensor", "killed"])
def test_out_of_memory_is_told_from_other_errors(name):
    with pytest.raises(MemoryError, match=f"candidates:{name}"):
        peak_memory(f"candidates:{name}")


@pytest.mark.slow
def test_an_error_comes_with_its_message():
    with pytest.raises(RuntimeError, match="candidates:failing: cannot be built"):
        peak_memory("candidates:failing")


@pytest.mark.parametrize("target", ["candidates", ":large_tensor", "candidates:"])
def test_a_target_is_a_module_and_a_function(target):
    with pytest.raises(ValueError, match="must be 'module:function'"):
        peak_memory(target)


def test_parts_of_the_peak():
    memory = PeakMemory(start=100.0, before=150.0, peak=400.0)
    assert (memory.of_pass, memory.of_candidate) == (250.0, 300.0)


def test_a_forecast_counts_what_is_alive_at_once():
    # Eight weights of 1/4 MiB, the input, and two results of 1 MiB each: the earlier ones are gone by then.
    found = forecast_memory(lambda: nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(8))), (1024, 256))
    assert found == pytest.approx(8 / 4 + 3)


def test_a_forecast_knows_unfused_maps():
    options = {"depth": 1, "embed_dim": 32, "num_heads": 2, "num_classes": 10, "img_size": 512}
    fused, unfused = (
        forecast_memory(
            lambda fused=fused: softmax_baseline("castling_deit_tiny_patch16_224", fused, **options), (1, 3, 512, 512)
        )
        for fused in (True, False)
    )
    two_maps = 2 * 2 * 1025**2 * 4 / 2**20
    assert unfused - fused == pytest.approx(two_maps, rel=0.2)


def test_a_forecast_holds_nothing():
    assert forecast_memory(lambda: nn.Linear(2**20, 2**20, bias=False), (2**20, 2**20)) == 3 * 2**22


def test_some_memory_is_available():
    assert 0 < available_memory() < 2**40
