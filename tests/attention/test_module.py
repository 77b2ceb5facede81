"""The block against the released one as the text describes it, its two states, and its contract with torch."""

import copy
import math
import pickle
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Attention as TimmAttention

from castling import AttentionConfig, CastlingAttention, castle
from castling.attention import KERNELS
from castling.measure import count_macs, quadratic_tensors


def authors_block(block, x, threshold=0.02, branch=True):
    """The released block from its description, head-major and with full maps; weights of `block`."""
    batch, num_tokens, dim = x.shape
    qkv = block.qkv(x).reshape(batch, num_tokens, 3, block.num_heads, dim // block.num_heads)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, H, N, D) each
    unit_q, unit_k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
    out = 0.5 * v + (1 / math.pi) * unit_q @ (unit_k.transpose(-1, -2) @ v)
    if branch:
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1)
        out = out + (weights * (weights > threshold)) @ v
    out = out / out.norm(dim=-1, keepdim=True)
    out = out + F.conv2d(v, block.local_conv.weight.unsqueeze(-1), padding=(4, 0), groups=block.num_heads)
    return block.proj(out.transpose(1, 2).reshape(batch, num_tokens, dim))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("qkv_bias", [False, True])
@pytest.mark.parametrize(("dim", "num_heads", "num_tokens"), [(192, 3, 197), (64, 4, 50), (24, 1, 9)])
def test_default_block_is_the_authors(dim, num_heads, num_tokens, qkv_bias, batch):
    block = CastlingAttention(dim, num_heads, qkv_bias=qkv_bias).double()
    x = 3 * torch.randn(batch, num_tokens, dim, dtype=torch.float64)
    torch.testing.assert_close(block(x), authors_block(block, x), atol=1e-12, rtol=0)
    assert (block.aux.occupancy > 0).all()
    torch.testing.assert_close(castle(block)(x), authors_block(block, x, branch=False), atol=1e-12, rtol=0)
    single, x = block.float(), x.float()
    torch.testing.assert_close(single(x), authors_block(single, x), atol=1e-6, rtol=0)
    torch.testing.assert_close(castle(single)(x), authors_block(single, x, branch=False), atol=1e-6, rtol=0)


def test_default_state_dict_is_timms_and_the_convolution():
    block = CastlingAttention(64, 4, qkv_bias=True)
    shapes = {name: tuple(tensor.shape) for name, tensor in block.state_dict().items()}
    theirs = {name: tuple(tensor.shape) for name, tensor in TimmAttention(64, 4, qkv_bias=True).state_dict().items()}
    assert shapes == theirs | {"local_conv.weight": (4, 1, 9)}


def test_baseline_is_timms_attention():
    ours, theirs = CastlingAttention(64, 4, True, AttentionConfig.baseline()), TimmAttention(64, 4, qkv_bias=True)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 30, 64)
    torch.testing.assert_close(ours(x), theirs(x))
    with torch.autocast("cpu", torch.bfloat16):  # the fused kernel gets half precision, as in timm
        assert torch.equal(ours(x), theirs(x))


def test_threshold_zero_adds_full_softmax_attention():
    config = AttentionConfig(threshold=0.0, output_norm="none", local_conv="none")
    block = CastlingAttention(32, 2, config=config)
    x = torch.randn(2, 20, 32)
    q, k, v = block.qkv(x).reshape(2, 20, 3, 2, 16).permute(2, 0, 3, 1, 4)
    added = F.linear(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2), block.proj.weight)
    torch.testing.assert_close(block(x) - castle(block)(x), added, atol=1e-6, rtol=0)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("output_norm", ["joint", "rms", "aux", "none"])
def test_with_an_empty_mask_castling_changes_no_bit(kernel, output_norm, batch):
    block = CastlingAttention(48, 3, config=AttentionConfig(kernel=kernel, threshold=1.0, output_norm=output_norm))
    x = torch.randn(batch, 63, 48)
    full = block(x)
    assert (block.aux.occupancy == 0).all()
    assert torch.equal(castle(block)(x), full)


@pytest.mark.parametrize("output_norm", ["joint", "rms", "aux", "none"])
def test_output_norm_says_what_gets_which_length(output_norm):
    config = AttentionConfig(output_norm=output_norm, local_conv="none", threshold=0.0)
    block = CastlingAttention(32, 2, config=config)
    torch.nn.init.eye_(block.proj.weight)
    torch.nn.init.zeros_(block.proj.bias)
    x = torch.randn(1, 30, 32)

    def lengths(tokens):
        return tokens.unflatten(-1, (2, 16)).norm(dim=-1)

    ones = torch.ones(1, 30, 2)
    joint, branch = lengths(block(x)), lengths(block(x) - castle(block)(x))
    assert torch.allclose(joint, ones) == (output_norm == "joint")
    assert torch.allclose(joint, 4 * ones) == (output_norm == "rms")  # of 16 channels
    assert torch.allclose(branch, ones, atol=1e-5) == (output_norm == "aux")


@pytest.mark.parametrize(
    ("config", "changed"),
    [
        ({"value_term": "sum"}, True),
        ({"reduction": "mean"}, True),
        ({"local_conv": "none"}, True),
        ({"aux_similarity": "cosine", "threshold": 0.0}, True),
        ({"threshold": 0.02}, False),
    ],
)
def test_options_reach_the_computation(config, changed):
    plain, other = CastlingAttention(32, 2), CastlingAttention(32, 2, config=AttentionConfig(**config))
    other.load_state_dict(plain.state_dict(), strict=False)
    x = torch.randn(2, 64, 32)
    assert torch.allclose(plain(x), other(x)) != changed


@pytest.mark.parametrize("prefix", [0, 1, 4])
def test_grid_convolution_with_prefix_tokens_on_a_rectangle(prefix):
    config = AttentionConfig(local_conv="grid", local_conv_size=3, aux=False)
    block = CastlingAttention(32, 2, config=config, num_prefix_tokens=prefix)
    assert block.local_conv.weight.shape == (2, 1, 3, 3)
    x = torch.randn(2, prefix + 15, 32)
    assert block(x, grid=(3, 5)).shape == x.shape
    assert not torch.allclose(block(x, grid=(3, 5)), block(x, grid=(5, 3)))
    with pytest.raises(ValueError, match="4 x 4 grid does not hold 15 tokens"):
        block(x, grid=(4, 4))
    with pytest.raises(ValueError, match="pass grid="):
        block(x)


@pytest.mark.parametrize("state", ["full", "castled"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_parameter_gets_a_gradient(kernel, state):
    block = CastlingAttention(32, 2, True, AttentionConfig(kernel=kernel))
    block = castle(block) if state == "castled" else block
    block(torch.randn(2, 60, 32)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in block.parameters())


@pytest.mark.parametrize("state", ["full", "castled"])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("local_conv", ["tokens", "grid"])
class TestTools:
    @pytest.fixture
    def block(self, state, local_conv):
        size = 9 if local_conv == "tokens" else 3
        block = CastlingAttention(32, 2, config=AttentionConfig(local_conv=local_conv, local_conv_size=size))
        return castle(block) if state == "castled" else block

    @pytest.fixture
    def x(self, batch):
        return torch.randn(batch, 64, 32)

    def test_deepcopy_and_pickle(self, block, x):
        block(x)
        assert torch.equal(copy.deepcopy(block)(x), block(x))
        assert torch.equal(pickle.loads(pickle.dumps(block))(x), block(x))

    @pytest.mark.slow
    @pytest.mark.usefixtures("fresh_compiler")
    def test_compile_whole(self, block, x, batch, local_conv):
        """Into native code in half of the cases, with either batch and either convolution: a compiler is slow."""
        backend = "inductor" if (batch == 1) == (local_conv == "tokens") else "aot_eager"
        compiled = torch.compile(block, fullgraph=True, backend=backend)
        torch.testing.assert_close(compiled(x), block(x), atol=1e-5, rtol=1e-5)

    def test_export(self, block, x):
        program = torch.export.export(block, (x,))
        torch.testing.assert_close(program.module()(x), block(x))


def test_export_with_any_batch_and_any_number_of_tokens():
    block = castle(CastlingAttention(32, 2))
    sizes = {"x": {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("tokens", min=2, max=8192)}}
    program = torch.export.export(block, (torch.randn(2, 64, 32),), dynamic_shapes=sizes)
    for shape in ((1, 197, 32), (5, 33, 32)):
        x = torch.randn(shape)
        torch.testing.assert_close(program.module()(x), block(x), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_training_tracks_occupancy_and_a_moving_threshold():
    block = CastlingAttention(32, 2)
    compiled = torch.compile(block, fullgraph=True)
    x = 3 * torch.randn(2, 40, 32)
    shares = []
    for threshold in [0.0, *torch.linspace(0.02, 1.0, 12).tolist()]:
        block.aux.set_threshold(threshold)
        torch.testing.assert_close(compiled(x), block(x), atol=1e-5, rtol=1e-5)
        compiled(x)
        shares.append(block.aux.occupancy.mean().item())
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1
    assert shares[-1] == 0


def test_a_host_can_leave_the_grid_instead_of_passing_it():
    block = CastlingAttention(32, 2, config=AttentionConfig(local_conv="grid", local_conv_size=3))
    x = torch.randn(2, 15, 32)
    expected = block(x, grid=(3, 5))
    block.grid_note.grid = (3, 5)
    assert torch.equal(block(x), expected)


@pytest.mark.parametrize("mask", [{"attn_mask": torch.ones(20, 20)}, {"is_causal": True}], ids=str)
def test_masks_are_refused(mask):
    with pytest.raises(ValueError, match="no masks"):
        CastlingAttention(32, 2)(torch.randn(1, 20, 32), **mask)


def test_dropout_as_in_timm():
    x = torch.ones(1, 20, 32)
    block = CastlingAttention(32, 2, config=AttentionConfig.baseline(), attn_drop=0.5)
    assert not torch.equal(block(x), block(x))
    assert torch.equal(block.eval()(x), block(x))
    block = CastlingAttention(32, 2, proj_drop=0.5)
    assert (block(x) == 0).any()
    assert not (block.eval()(x) == 0).any()


@pytest.mark.parametrize("kernel", [name for name, kernel in KERNELS.items() if kernel.linear])
def test_castled_forward_makes_no_quadratic_tensor(kernel):
    block = CastlingAttention(32, 2, config=AttentionConfig(kernel=kernel)).eval()
    x = torch.randn(2, 500, 32)
    assert quadratic_tensors(lambda: block(x), 500)
    assert not quadratic_tensors(lambda: castle(block)(x), 500)
    assert not quadratic_tensors(lambda: castle(block)(x).sum().backward(), 500)


@pytest.mark.parametrize("kernel", [name for name, kernel in KERNELS.items() if kernel.linear])
def test_castled_macs_are_exactly_linear(kernel):
    block = castle(CastlingAttention(48, 3, config=AttentionConfig(kernel=kernel)))
    macs = [count_macs(block, torch.randn(1, num_tokens, 48)).total for num_tokens in (100, 200, 400)]
    assert macs[1] == 2 * macs[0]
    assert macs[2] == 4 * macs[0]


def test_macs_of_the_block():
    """ARCHITECTURES' formula: projections 4 N C^2, linear attention 2 N C D, 9 taps."""
    num_tokens, dim, num_heads = 197, 192, 3
    macs = count_macs(castle(CastlingAttention(dim, num_heads)), torch.randn(1, num_tokens, dim)).total
    assert macs == num_tokens * dim * (4 * dim + 2 * dim // num_heads + 9)


MEMORY_PROBE = """
import psutil, resource, torch
from castling import CastlingAttention, castle
block = castle(CastlingAttention(512, 8)).eval()
with torch.no_grad():
    block(torch.randn(1, 64, 512))
    x = torch.randn(1, 65536, 512)  # 128 MiB, so that the peak of the imports does not count
    before = psutil.Process().memory_info().rss
    block(x)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print((peak - before) / (x.numel() * 4))
"""


@pytest.mark.slow
def test_peak_memory_of_65536_tokens_is_a_small_multiple_of_the_input():
    """Three copies of the input are q, k, v; the map of softmax attention would be 1,000 copies."""
    result = subprocess.run([sys.executable, "-c", MEMORY_PROBE], capture_output=True, text=True, check=True)
    assert 0 < float(result.stdout) < 9


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CastlingAttention(65, 4), "num_heads must divide dim; got dim=65, num_heads=4"),
        (lambda: CastlingAttention(64, 0), "num_heads=0"),
        (lambda: AttentionConfig(kernel="sotfmax"), "unknown kernel 'sotfmax': did you mean 'softmax'"),
        (lambda: AttentionConfig(value_term="x"), "unknown value_term 'x': Legal: 'own', 'sum'"),
        (lambda: AttentionConfig(reduction="men"), "did you mean 'mean'"),
        (lambda: AttentionConfig(output_norm="yes"), "unknown output_norm"),
        (lambda: AttentionConfig(local_conv="token"), "did you mean 'tokens'"),
        (lambda: AttentionConfig(aux_similarity="cos"), "unknown aux_similarity"),
        (lambda: AttentionConfig(threshold=-0.1), r"threshold must lie in \[0, 1\].*got -0.1"),
        (lambda: AttentionConfig(threshold=2), "got 2"),
        (lambda: AttentionConfig(local_conv_size=8), "local_conv_size must be odd.*got 8"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_relative_threshold_may_exceed_one():
    assert AttentionConfig(threshold=3, threshold_relative=True).threshold == 3
