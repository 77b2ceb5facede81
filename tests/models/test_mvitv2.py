import pytest
import timm
import torch

from castling import AttentionConfig, load_host_weights
from castling.models.mvitv2 import without_relative_positions

TINY = "castling_mvitv2_tiny"
SHALLOW = {"depths": (1, 1, 1, 1)}


def test_weights_of_timm_load_but_for_relative_positions():
    theirs, ours = timm.create_model("mvitv2_tiny"), timm.create_model(TINY)
    new = load_host_weights(ours, theirs.state_dict(), without_relative_positions)
    assert {name.rpartition("blocks.")[2][2:] for name in new} == {"attn.local_conv.weight", "mlp.conv.weight"}
    block, host = ours.stages[1].blocks[0], theirs.stages[1].blocks[0]
    assert torch.equal(block.attn.pool_q.weight, host.attn.pool_q.weight)
    assert torch.equal(block.shortcut_proj_attn.weight, host.shortcut_proj_attn.weight)


def test_a_block_that_keeps_the_grid_is_timms_with_softmax_and_no_convolutions():
    """Stage 4 of MViTv2 does not pool keys; without relative positions the two are the same network there."""
    theirs = timm.create_model("mvitv2_tiny").eval()
    ours = timm.create_model(TINY, attention=AttentionConfig.baseline(), mlp_conv_size=0).eval()
    load_host_weights(ours, theirs.state_dict(), without_relative_positions)
    host = theirs.stages[3].blocks[1]
    host.attn.rel_pos_type = "none"
    x = torch.randn(2, 49, 768)
    expected, _ = host(x, [7, 7])
    actual, grid = ours.stages[3].blocks[1](x, (7, 7))
    assert grid == (7, 7)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_grids_halve_from_stage_to_stage_for_any_image():
    model = timm.create_model(TINY, features_only=True, **SHALLOW)
    shapes = [tuple(features.shape[2:]) for features in model(torch.randn(1, 3, 100, 161))]
    assert shapes == [(25, 41), (13, 21), (7, 11), (4, 6)]
    assert model.feature_info.channels() == [96, 192, 384, 768]


def test_softmax_twin():
    model = timm.create_model(TINY, kernel="softmax", **SHALLOW)
    attentions = [stage.blocks[0].attn for stage in model.stages]
    assert all(attention.aux is None and attention.config.kernel == "softmax" for attention in attentions)


def test_bad_kernel_is_named():
    with pytest.raises(ValueError, match="did you mean 'cosine'"):
        timm.create_model(TINY, kernel="cosin")
