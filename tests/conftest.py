import os

# Some virtual machines advertise AMX and trap on its instructions; half precision is then computed without it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

if "PYTEST_XDIST_WORKER" in os.environ:  # as many workers as cores: one thread each, and for the commands they run
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


@pytest.fixture
def fresh_compiler():
    """Forget graphs of other tests: torch compiles the same code only a few times."""
    torch.compiler.reset()
