"""The state of an optimizer from a checkpoint: it is taken up exactly, or refused before anything has stepped."""

import copy

import pytest
import torch
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3

from castling.training import RunFolder
from castling.training.checkpoint import Checkpoint, save_checkpoint
from castling.training.optimizer_state import load_optimizer
from castling.training.state import Progress, RunState


def trained(name="adamw", steps=2, network=None, optimizer=None):
    """A network with its optimizer after a few steps."""
    torch.manual_seed(steps)
    network = network or torch.nn.Linear(3, 2)
    optimizer = optimizer or create_optimizer_v2(network, name, lr=0.01, weight_decay=0.05, momentum=0.9)
    for _ in range(steps):
        network(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return network, optimizer


@pytest.mark.parametrize("name", ["adamw", "sgd", "lamb", "lion", "adafactorbv", "madgrad", "nadamw", "novograd"])
def test_an_optimizer_goes_on_as_if_nothing_had_happened(tmp_path, name):
    network, optimizer = trained(name)
    saved = copy.deepcopy(optimizer.state_dict())
    copied = copy.deepcopy(network)
    fresh = create_optimizer_v2(copied, name, lr=0.01, weight_decay=0.05, momentum=0.9)
    before = torch.random.get_rng_state()
    load_optimizer(fresh, saved, tmp_path)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in copied.parameters())
    assert torch.equal(copied.weight, network.weight)
    trained(steps=3, network=network, optimizer=optimizer)
    trained(steps=3, network=copied, optimizer=fresh)
    assert torch.equal(copied.weight, network.weight)


WRONG = {
    "a factor that grows without end": lambda saved: saved["param_groups"][0].update(betas=(1e200, 0.999)),
    "one factor of two": lambda saved: saved["param_groups"][0].update(betas=(0.9,)),
    "a setting of another type": lambda saved: saved["param_groups"][0].update(eps="small"),
    "a moment of another shape": lambda saved: saved["state"][0].update(exp_avg=torch.zeros(7)),
    "a moment that is none": lambda saved: saved["state"][0].update(exp_avg_sq=None),
    "no step": lambda saved: saved["state"][0].pop("step"),
    "fewer groups": lambda saved: saved["param_groups"].pop(),
    "no groups": lambda saved: saved.pop("param_groups"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_state_that_the_optimizer_cannot_step_with_is_refused(tmp_path, name):
    network, optimizer = trained()
    saved = copy.deepcopy(optimizer.state_dict())
    WRONG[name](saved)
    weight = network.weight.detach().clone()
    with pytest.raises(ValueError, match="the state of its optimizer is not that of AdamW") as error:
        load_optimizer(optimizer, saved, tmp_path)
    assert str(tmp_path) in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert torch.equal(network.weight, weight)


def run_with(folder, weights=("model", "ema"), **state):
    """A folder with a checkpoint of a small run, and the state of one that would go on with it."""
    network, optimizer = trained()
    tensors = dict.fromkeys(weights, network.state_dict())
    state = {"progress": {"step": 2}, "share": 0.5, "log_size": 0, "num_examples": [3, 2], **state}
    (folder / "checkpoints").mkdir()
    save_checkpoint(folder / "checkpoints", Checkpoint(2, tensors, optimizer.state_dict(), state))
    ema, scaler = ModelEmaV3(network, 0.9), torch.amp.GradScaler("cpu")
    return RunState(network, optimizer, ema, scaler, Progress(), [3, 2])


def test_the_scaler_of_losses_is_taken_up(tmp_path):
    scaler = {"scale": 8.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 9, "_growth_tracker": 1}
    state = run_with(tmp_path, scaler=scaler)
    state.restore(RunFolder(tmp_path, writes=False))
    assert state.scaler.state_dict() == scaler


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"num_examples": 5}, "state.json: num_examples must be a list"),
        ({"num_examples": [5]}, "state.json: num_examples must be a list of 2"),
        ({"num_examples": [4, 2]}, "was trained on 4 pictures and evaluated on 2; now there are 3 and 2"),
        (
            {"progress": {"step": 10**9}},
            "the progress of its checkpoint is at step 1000000000, and the checkpoint at step 2",
        ),
        ({"scaler": {"scale": 1.0}}, "the scaler of its checkpoint lacks 'growth_factor'"),
        ({"weights": ("model",)}, "its checkpoint lacks the moving average that config.yaml describes"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, wrong, said):
    state = run_with(tmp_path, **wrong)
    with pytest.raises(ValueError, match=said) as error:
        state.restore(RunFolder(tmp_path, writes=False))
    assert str(tmp_path) in str(error.value)
