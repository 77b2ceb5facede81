"""The plan by speed: the network is timed with each kind of attention castled, and the hybrid must win."""

import json

import pytest
import timm
import torch
from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg

import castling
from castling.bench import planner
from castling.bench.planner import plan_speed
from castling.cli.main import main
from castling.measure import Timing

VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}


@pytest.fixture
def host():
    """Two layers of different widths of attention, so that they are two kinds."""
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", **VIT).eval()
    model.blocks[1].attn = timm.models.vision_transformer.Attention(32, num_heads=4, qkv_bias=True).eval()
    return model


@pytest.fixture
def clock(monkeypatch):
    """Runs every candidate once, and says the times that it is told, in the order of the candidates."""

    def set_times(*rounds):
        left = list(rounds)

        def timed(candidates, **kwargs):
            for run in candidates.values():
                run()
            seconds = dict(zip(candidates, left.pop(0), strict=True))
            return {name: Timing(median=value / 1e3, lower=0, upper=1) for name, value in seconds.items()}

        monkeypatch.setattr(planner, "time_interleaved", timed)

    return set_times


def test_the_attentions_that_save_time_are_castled(host, clock):
    clock((10.0, 8.0, 10.5), (10.0, 8.2))
    image = torch.randn(1, 3, 32, 32)
    before = host(image)
    plan = plan_speed(host, image)
    assert plan.chosen == ("blocks.0.attn",)
    assert [layer.castle for layer in plan.layers] == [True, False]
    assert [layer.saved_ms for layer in plan.layers] == pytest.approx([2.0, -0.5])
    assert {layer.shape for layer in plan.layers} == {(1, 17, 32)}
    found = (plan.original_ms, plan.predicted_ms, plan.hybrid_ms, plan.planned_ms)
    assert found == pytest.approx((10.0, 8.0, 8.2, 8.2))
    wanted = castling.castle(castling.convert(host, only="blocks.0.attn", blend=1.0, inplace=False)).eval()
    torch.testing.assert_close(plan.network(image), wanted(image), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(host(image), before, atol=0, rtol=0)
    assert [layer["castle"] for layer in json.loads(json.dumps(plan.to_json()))["layers"]] == [True, False]


def test_the_hybrid_has_all_kinds_that_save_time(host, clock):
    clock((10.0, 9.0, 7.0), (10.5, 6.0))
    plan = plan_speed(host, torch.randn(1, 3, 32, 32))
    assert plan.chosen == ("blocks.0.attn", "blocks.1.attn")
    assert (plan.original_ms, plan.predicted_ms, plan.hybrid_ms) == pytest.approx((10.5, 6.5, 6.0))


def test_a_hybrid_that_loses_is_not_taken(host, clock):
    clock((10.0, 9.0, 9.0), (10.0, 10.1))
    image = torch.randn(1, 3, 32, 32)
    plan = plan_speed(host, image)
    assert (plan.chosen, plan.planned_ms, plan.hybrid_ms) == ((), 10.0, 10.1)
    torch.testing.assert_close(plan.network(image), host(image), atol=1e-5, rtol=1e-5)


def test_layers_of_one_kind_are_castled_together(clock):
    model = timm.create_model("vit_tiny_patch16_224", **{**VIT, "depth": 3})
    clock((10.0, 13.0))
    plan = plan_speed(model, torch.randn(1, 3, 32, 32))
    assert (len(plan.layers), plan.chosen, plan.predicted_ms) == (3, (), 10.0)
    assert [layer.saved_ms for layer in plan.layers] == pytest.approx([-1.0] * 3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["levit", "mvitv2"])
def test_some_layers_of_other_families(family, clock):
    if family == "levit":
        model = timm.create_model("levit_128", img_size=64, embed_dim=(32, 48), depth=(1, 1), num_heads=(2, 2))
    else:
        model = MultiScaleVit(MultiScaleVitCfg((1, 1), embed_dim=24), img_size=64, num_classes=5)
    clock((2.0, 1.0), (2.0, 1.0))
    plan = plan_speed(model, torch.randn(1, 3, 64, 64), only="stages.0.blocks.0.*")
    assert len(plan.chosen) == 1


@pytest.mark.slow
def test_on_another_engine(clock):
    clock((2.0, 1.0), (2.0, 1.0))
    model = timm.create_model("vit_tiny_patch16_224", **{**VIT, "depth": 1})
    plan = plan_speed(model, torch.randn(1, 3, 32, 32), "openvino")
    assert plan.chosen == ("blocks.0.attn",)


@pytest.mark.slow
def test_the_command(capsys):
    small = ["deit_tiny_patch16_224", "--size", "32x48", "--repeats", "1", "--only", "blocks.0.*"]
    assert main(["plan", *small]) == 0
    said = capsys.readouterr().out
    assert "blocks.0.attn" in said
    assert "1 x 7 x 192" in said
    assert "original:" in said
    assert main(["plan", *small, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["layers"][0]["name"] == "blocks.0.attn"
    assert found["environment"]["processor"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["castling_deit_tiny_patch16_224"], "has castling attention already; plan for 'deit_tiny_patch16_224'"),
        (["deit_tinny_patch16_224"], "did you mean 'deit_tiny_patch16_224'"),
        (["resnet18", "--size", "64"], "found no attention to convert"),
        (["deit_tiny_patch16_224", "--repeats", "0"], "must be at least 1"),
    ],
)
def test_bad_input(arguments, message, capsys):
    assert main(["plan", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_picture_that_patches_do_not_fill_is_refused_before_any_measurement(host):
    with pytest.raises(ValueError, match="an image of 30 x 32 does not fit patches of 8 x 8; the nearest sizes are"):
        plan_speed(host, torch.zeros(1, 3, 30, 32))
