"""Runs and recipes of any task are measured as models are, beside their softmax twins."""

import pytest
import torch
from box_pictures import box_recipe, write_boxes

from castling import is_castled
from castling.bench import models
from castling.bench.candidates import Setting, passes_of, patch_of, raw_model
from castling.bench.models import make_settings, measure_row
from castling.bench.planner import plan_speed
from castling.bench.subjects import build_subject, is_subject
from castling.cli.main import main
from castling.conversion import has_castling_attention, softmax_twin_of
from castling.training import parse_recipe
from castling.training.recipe import recipe_text

pytest.importorskip("faster_coco_eval")


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    """A recipe whose network has a dict of outputs, and its data."""
    folder = tmp_path_factory.mktemp("subject")
    root = write_boxes(folder / "coco")
    (folder / "recipe.yaml").write_text(recipe_text(parse_recipe(box_recipe(root))))
    return str(folder / "recipe.yaml")


def test_what_is_a_subject(detector, digits_run):
    assert is_subject(detector)
    assert is_subject(str(digits_run))
    assert is_subject(str(digits_run / "castled"))
    assert not is_subject("deit_tiny")


def test_a_run_has_its_own_patches_channels_and_no_host(digits_run):
    (setting,) = make_settings([str(digits_run)], [32], [], ["eager"])
    assert setting.patch == patch_of(str(digits_run))
    assert setting.image().shape == (1, 1, 32, 32)
    assert passes_of(None, setting.model) == ["castled", "softmax"]
    castled, softmax = (raw_model(setting, kind) for kind in passes_of(None, setting.model))
    assert is_castled(castled)
    assert has_castling_attention(castled)
    assert not has_castling_attention(softmax)
    assert castled(setting.image()).shape == softmax(setting.image()).shape


@pytest.mark.slow
def test_a_detector_is_a_row(detector, monkeypatch):
    monkeypatch.setattr(models, "TOTAL_SECONDS", 0.0)
    row = measure_row(Setting(detector, 64, 16), memory=False)
    assert row["notes"] == ""
    assert min(row["castled_ms"], row["softmax_ms"]) > 0
    assert row["host_ms"] is None
    assert row["castled_macs"] > 0
    assert row["paper_castled_mb"] is None


def test_a_plan_compares_a_network_of_ours_with_its_twin(detector):
    network, example = build_subject(detector, (64, 96))
    plan = plan_speed(network, example, repeats=1)
    assert [layer.name.rpartition(".")[2] for layer in plan.layers] == ["attn", "attn"]
    assert plan.layers[0].shape[1] == 4 * 6
    chosen = set(plan.chosen)
    assert chosen <= {layer.name for layer in plan.layers}
    for layer in plan.layers:
        kernel = plan.network.get_submodule(layer.name).config.kernel
        assert kernel == ("linear_angular" if layer.name in chosen else "softmax")


def test_some_attentions_alone_become_softmax(detector):
    network, _ = build_subject(detector)
    first, second = (name for name, module in network.named_modules() if type(module).__name__ == "CastlingAttention")
    twin = softmax_twin_of(network, [second])
    kernels = [twin.get_submodule(name).config.kernel for name in (first, second)]
    assert kernels == ["linear_angular", "softmax"]
    torch.testing.assert_close(twin.state_dict(), network.state_dict(), atol=0, rtol=0)


def test_the_command_plans_for_a_run(digits_run, capsys):
    assert main(["plan", str(digits_run), "--repeats", "1"]) == 0
    assert "blocks.0.attn" in capsys.readouterr().out
    assert main(["plan", "castling_deit_tiny_patch16_224"]) == 2
    assert "or a run" in capsys.readouterr().err
