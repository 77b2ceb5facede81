import pytest
import torch
import torch.nn.functional as F

from castling.attention import AuxiliarySoftmax, attend, reference


@pytest.fixture
def qkv():
    return (2 * torch.randn(2, 63, 3, 4, 16, dtype=torch.float64)).unbind(2)


@pytest.mark.parametrize("similarity", ["scaled_dot", "dot", "cosine"])
@pytest.mark.parametrize("threshold", [0.0, 0.02, 0.1, 1.0])
def test_branch_equals_eq_10(qkv, threshold, similarity):
    branch = AuxiliarySoftmax(threshold, similarity=similarity)
    expected = reference.masked_softmax_attention(*qkv, threshold, similarity)
    torch.testing.assert_close(branch(*qkv), expected, atol=1e-10, rtol=0)


def test_relative_threshold_counts_in_units_of_one_over_n(qkv):
    expected = reference.masked_softmax_attention(*qkv, 1.5 / 63)
    torch.testing.assert_close(AuxiliarySoftmax(1.5, relative=True)(*qkv), expected)


def test_threshold_zero_is_full_softmax_attention(qkv):
    q, k, v = (x.transpose(1, 2) for x in qkv)
    expected = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    torch.testing.assert_close(AuxiliarySoftmax(0.0)(*qkv), expected)


def test_bias_joins_the_logits(qkv):
    q, k, v = (x.transpose(1, 2) for x in qkv)
    bias = torch.randn(4, 63, 63, dtype=torch.float64)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)
    torch.testing.assert_close(AuxiliarySoftmax(0.0)(*qkv, bias), expected)
    torch.testing.assert_close(attend(*qkv, "softmax", bias=bias), expected)


def test_threshold_one_is_exactly_nothing(qkv):
    sharp = [100 * x for x in qkv]  # single entries reach weight 1
    branch = AuxiliarySoftmax(1.0)
    assert (branch(*sharp) == 0).all()
    assert (branch.occupancy == 0).all()


@pytest.mark.parametrize(("threshold", "relative"), [(1.0, False), (63.0, True), (100.0, True)])
def test_training_makes_no_map_behind_a_closed_mask(qkv, threshold, relative, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "softmax", None)
    branch = AuxiliarySoftmax(threshold, relative=relative)
    out = branch(*(x.half() for x in qkv))
    assert out.shape == (2, 63, 4, 16)
    assert out.dtype == torch.float32
    assert not out.any()
    assert branch.occupancy.tolist() == [0.0] * 4
    with pytest.raises(TypeError):
        AuxiliarySoftmax(0.99)(*qkv)
    with pytest.raises(TypeError):
        branch.eval()(*qkv)


def test_occupancy_is_the_surviving_share_per_head(qkv):
    q, k, _ = (x.transpose(1, 2) for x in qkv)
    branch = AuxiliarySoftmax(0.05)
    assert branch.occupancy is None
    branch(*qkv)
    expected = (reference.softmax_weights(q, k) > 0.05).double().mean((0, 2, 3))
    torch.testing.assert_close(branch.occupancy.double(), expected)
    assert 0 < expected.min() < expected.max() < 1


def test_occupancy_is_that_of_the_last_forward_in_either_mode(qkv):
    branch = AuxiliarySoftmax(0.05)
    branch(*qkv)
    assert (branch.occupancy > 0).all()
    branch.eval()
    branch.set_threshold(1.0)
    branch(*qkv)
    assert (branch.occupancy == 0).all()


def test_branch_owns_nothing_and_keeps_no_map(qkv):
    branch = AuxiliarySoftmax()
    branch(*(x.requires_grad_() for x in qkv))
    assert not list(branch.parameters())
    assert not branch.state_dict()
    kept = [value for value in vars(branch).values() if isinstance(value, torch.Tensor)]
    assert [tensor.shape for tensor in kept] == [(4,)]
    assert not kept[0].requires_grad


def test_dropout_acts_on_the_map_while_training(qkv):
    branch = AuxiliarySoftmax(0.0, attn_drop=0.5)
    full = branch.eval()(*qkv)
    assert not torch.allclose(branch.train()(*qkv), full)
    torch.testing.assert_close(branch.eval()(*qkv), full)


def test_bad_values_are_refused_and_change_nothing():
    with pytest.raises(ValueError, match=r"threshold must lie in \[0, 1\].*got 1.2"):
        AuxiliarySoftmax(1.2)
    with pytest.raises(ValueError, match="got nan"):
        AuxiliarySoftmax(float("nan"))
    with pytest.raises(ValueError, match="unknown similarity 'scaled': did you mean 'scaled_dot'"):
        AuxiliarySoftmax(similarity="scaled")
    branch = AuxiliarySoftmax(0.02)
    with pytest.raises(ValueError, match="got -3"):
        branch.set_threshold(-3)
    assert branch.threshold == 0.02
