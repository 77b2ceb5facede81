"""What a converted model learns from its original."""

from types import SimpleNamespace

import pytest
import timm
import torch
from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg
from torch import nn

import castling
from castling.config import AttentionConfig
from castling.conversion import original_of
from castling.tasks.imitation import Imitation, attention_losses, feature_losses, relative_error

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def make(family="vit", local_conv="tokens"):
    torch.manual_seed(0)
    if family == "vit":
        host = timm.create_model(
            "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=5
        )
    else:
        host = MultiScaleVit(MultiScaleVitCfg((1, 1), embed_dim=24), img_size=32, num_classes=5)
    return castling.convert(host.eval(), AttentionConfig(aux=False, local_conv=local_conv))


@pytest.mark.parametrize("family", ["vit", "mvitv2"])
@pytest.mark.parametrize("losses", [attention_losses, feature_losses])
def test_the_original_has_nothing_to_learn(family, losses):
    student = make(family)
    found = losses(student, original_of(student), IMAGES)
    assert len(found) == 2
    assert all(float(loss) < 1e-9 for loss in found.values())
    castling.set_blend(student, 1.0)
    assert all(float(loss) > 1e-3 for loss in losses(student, original_of(student), IMAGES).values())


def test_an_original_is_frozen_and_stays_what_it_was():
    student = make()
    wanted = student(IMAGES).detach()
    original = original_of(student)
    castling.set_blend(student, 1.0)
    nn.init.normal_(student.blocks[0].attn.qkv.weight)
    assert not any(parameter.requires_grad for parameter in original.parameters())
    torch.testing.assert_close(original(IMAGES), wanted)


def test_attentions_learn_by_themselves_and_nothing_else_does():
    student = make()
    original = original_of(student)
    castling.set_blend(student, 1.0)
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    errors = []
    for _ in range(30):
        losses = attention_losses(student, original, IMAGES)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        errors.append({name: float(loss) for name, loss in losses.items()})
    assert set(errors[0]) == {"blocks.0.attn", "blocks.1.attn"}
    for name, before in errors[0].items():
        assert errors[-1][name] < 0.5 * before
    trained = {name for name, parameter in student.named_parameters() if parameter.grad is not None}
    assert {name.split(".")[2] for name in trained} == {"attn"}
    # The second attention is fed by the original: what the first one became does not change its error.
    nn.init.normal_(student.blocks[0].attn.proj.weight)
    assert float(attention_losses(student, original, IMAGES)["blocks.1.attn"]) == pytest.approx(
        errors[-1]["blocks.1.attn"], rel=0.2
    )


def test_features_are_those_of_the_whole_network():
    student = make()
    original = original_of(student)
    with torch.no_grad():
        student.blocks[0].attn.proj.weight.mul_(2)
    found = feature_losses(student, original, IMAGES)
    assert list(found) == ["blocks.0", "blocks.1"]
    assert all(float(loss) > 0 for loss in found.values())
    found["blocks.1"].backward()
    assert student.blocks[0].mlp.fc1.weight.grad.abs().sum() > 0


def test_the_grid_of_the_tokens_is_passed_on():
    student = make(local_conv="grid")
    original = original_of(student)
    castling.set_blend(student, 1.0)
    assert set(attention_losses(student, original, IMAGES)) == {"blocks.0.attn", "blocks.1.attn"}
    assert student.blocks[0].attn.grid_note.grid == (4, 4)


def test_errors_are_relative():
    wanted = torch.randn(4, 5)
    assert float(relative_error(1.1 * wanted, wanted)) == pytest.approx(0.01, rel=1e-3)
    assert float(relative_error(torch.ones(3), torch.zeros(3))) > 0  # and a number


@pytest.mark.parametrize(("what", "losses"), [("attention", attention_losses), ("features", feature_losses)])
def test_imitation_is_the_mean_of_all_layers_and_looks_at_no_label(what, losses):
    student = make()
    task = SimpleNamespace(original=original_of(student))
    castling.set_blend(student, 1.0)
    total, parts = Imitation(task, what)(student, {"image": IMAGES})
    wanted = losses(student, task.original, IMAGES)
    assert parts.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(parts[name], value)
    torch.testing.assert_close(total, sum(wanted.values()) / 2)
    total.backward()
    assert student.blocks[0].attn.qkv.weight.grad.abs().sum() > 0
