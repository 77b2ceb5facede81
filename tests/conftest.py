import gc
import os
import time

# Some virtual machines advertise AMX and trap on its instructions; half precision is then computed without it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

if "PYTEST_XDIST_WORKER" in os.environ:  # as many workers as cores: one thread each, and for the commands they run
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

# Compilers leave millions of objects behind; to look through all of them again and again takes minutes.
gc.set_threshold(100_000, 50, 100)


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


@pytest.fixture
def fresh_compiler():
    """Forget graphs of other tests: torch compiles the same code only a few times."""
    torch.compiler.reset()


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory):
    """The folder of a small run on digits, trained by its command and castled: one for all workers, to read only."""
    from castling.cli.main import main

    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root  # which workers share
    folder, done = root / "digits-run", root / "digits-run-done"
    try:
        (root / "digits-run-begun").mkdir()
    except FileExistsError:  # another worker is at it
        while not done.exists():
            time.sleep(0.2)
        return folder
    sizes = ("model.options.depth=1", "model.options.embed_dim=16", "model.options.num_heads=2", "training.epochs=2")
    try:
        assert main(["train", "digits/castling", *sizes, "training.threshold.start=0.01", "--out", str(folder)]) == 0
        assert main(["castle", str(folder)]) == 0
    finally:
        done.touch()
    return folder


# Examples that start a process, or export a network.
SLOW_EXAMPLES = ("castling.measure.memory.peak_memory", "castling.exporting.write.export")


def pytest_collection_modifyitems(items):
    """Mark examples in docstrings, which cannot be marked where they stand."""
    for item in items:
        if item.name in SLOW_EXAMPLES:
            item.add_marker(pytest.mark.slow)
