"""What every registered model promises; what timm asks of it is in `test_timm_contract.py`."""

import copy
import io
from itertools import product

import pytest
import timm
import torch

from castling import AttentionConfig, castle, is_castled, optimize
from castling.measure import count_macs, quadratic_tensors
from castling.models.levit import SIZES
from castling.models.levit_attention import LevitDesign

TRANSFORMERS = ["castling_deit_tiny_patch16_224", "castling_levit_128", "castling_mvitv2_tiny"]
HYBRIDS = ["castling_lcnet_vit_small", "castling_esnet_vit_small"]
SMALLEST = [*TRANSFORMERS, *HYBRIDS]
# Larger hybrids differ in widths alone, which `test_lcnet_vit.py` and `test_esnet_vit.py` count.
MODELS = [name for name in timm.list_models("castling_*") if "net_vit" not in name or name in SMALLEST]
# The smallest of a family stand for it in the fast tier.
BY_SIZE = [name if name in SMALLEST else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]


def shallow(name, **kwargs):
    """A network of few blocks, where more add time but nothing to see; in two stages, where those are alike."""
    family = name.split("_")[1]
    sizes = {
        "deit": {"depth": 2},
        "mvitv2": {"depths": (1, 1)},
        "esnet": {"ratios": ((0.5, 0.5), (0.5,), (0.5, 0.5))},
    }.get(family, {})
    if family == "levit":
        sizes = {key: SIZES[name][key][:2] for key in ("embed_dim", "num_heads")} | {"depth": (1, 1)}
    return timm.create_model(name, **sizes, **kwargs)


def images(height=64, width=64, batch=2):
    return torch.randn(batch, 3, height, width)


def test_the_names():
    sizes = {"deit": ["tiny", "small", "base"], "levit": [128, 192, 256, 384], "mvitv2": ["tiny", "small", "base"]}
    sizes |= {family: ["small", "medium", "large"] for family in ("lcnet_vit", "esnet_vit")}
    names = {f"castling_{family}_{size}" for family in sizes for size in sizes[family]}
    assert {name.removesuffix("_patch16_224") for name in timm.list_models("castling_*")} == names


@pytest.mark.parametrize("name", BY_SIZE)
def test_forward_and_backward(name):
    model = timm.create_model(name, num_classes=10)
    assert not is_castled(model)
    logits = model(images())
    assert logits.shape == (2, 10)
    assert logits.isfinite().all()
    logits.square().sum().backward()
    without = [parameter for parameter, value in model.named_parameters() if value.grad is None]
    assert without == []
    assert all(value.grad.isfinite().all() for value in model.parameters())


@pytest.mark.parametrize("name", BY_SIZE)
def test_other_sizes_and_rectangles(name):
    model = shallow(name, num_classes=10).eval()
    for size in ((96, 96), (64, 128), (160, 32)):
        logits = model(images(*size, batch=1))
        assert logits.shape == (1, 10)
        assert logits.isfinite().all()


@pytest.mark.parametrize("name", BY_SIZE)
def test_save_and_load(name):
    model, x, file = shallow(name).eval(), images(), io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = shallow(name).eval()
    assert not torch.equal(other(x), model(x))
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x), model(x))
    assert torch.equal(copy.deepcopy(model)(x), model(x))


@pytest.mark.parametrize("name", BY_SIZE)
def test_castle(name):
    model, x = shallow(name).eval(), images(batch=1)
    fast = castle(model)
    assert is_castled(fast)
    assert list(fast.state_dict()) == list(model.state_dict())
    assert fast(x).isfinite().all()


@pytest.mark.parametrize("name", BY_SIZE)
def test_castled_forward_makes_no_quadratic_tensor(name):
    side = {"mvitv2": 512, "esnet": 4096}.get(name.split("_")[1], 2048)  # 16,384 tokens: no layer has more channels
    with torch.device("meta"):
        model, x = shallow(name).eval(), images(side, side, batch=1)
    assert quadratic_tensors(lambda: model(x), 16_384)
    assert not quadratic_tensors(lambda: castle(model)(x), 16_384)


@pytest.mark.parametrize("name", BY_SIZE)
def test_castled_macs_are_exactly_linear_in_the_tokens(name):
    with torch.device("meta"):
        model = castle(shallow(name)).eval()
    macs = [count_macs(model, torch.randn(1, 3, side, side, device="meta")).total for side in (256, 512, 1024)]
    # Tokens grow by 4; what does not grow, a class token and the head, is the same in all three.
    assert macs[2] - macs[1] == 4 * (macs[1] - macs[0])


@pytest.mark.parametrize("name", BY_SIZE)
def test_the_full_models_macs_are_not(name):
    with torch.device("meta"):
        model = shallow(name).eval()
    macs = [count_macs(model, torch.randn(1, 3, side, side, device="meta")).total for side in (512, 1024, 2048)]
    assert macs[2] - macs[1] > 5 * (macs[1] - macs[0])


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    ("name", "state"), [*product(TRANSFORMERS, ["full", "castled"]), *product(HYBRIDS, ["castled"])]
)
def test_compile_captures_the_whole_graph(name, state):
    """With its gradients as it is trained, without as it is used."""
    model, x = shallow(name).eval(), images(batch=1)
    model = castle(model) if state == "castled" else model
    # Tracing gradients as well takes long; those of hybrids are of the same layers.
    backend = "aot_eager" if name in TRANSFORMERS else "eager"
    with torch.set_grad_enabled(state == "full"):
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)


# A layer of each kind that is ours; a C++ compiler takes seconds for every one.
LAYERS = {"deit": ["blocks.0"], "levit": ["stages.1.downsample", "stages.1.blocks.0"], "mvitv2": ["stages.1.blocks.0"]}


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", TRANSFORMERS)  # what convolutions of hybrids add is torch's own, and takes long
def test_compile_to_native_code(name):
    model, x, seen = castle(shallow(name)).eval(), images(batch=1), {}
    layers = LAYERS[name.split("_")[1]]
    for layer in layers:
        model.get_submodule(layer).register_forward_pre_hook(
            lambda _, inputs, layer=layer: seen.update({layer: inputs})
        )
    with torch.no_grad():
        model(x)
        for layer in layers:
            module = model.get_submodule(layer)
            module._forward_pre_hooks.clear()
            compiled = torch.compile(module, fullgraph=True)
            torch.testing.assert_close(compiled(*seen[layer]), module(*seen[layer]), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["full", "castled"])
@pytest.mark.parametrize("name", TRANSFORMERS)  # hybrids are exported for any size
def test_export(name, state):
    model, x = shallow(name).eval(), images(64, 96)
    model = castle(model) if state == "castled" else model
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x), atol=1e-5, rtol=1e-5)


def rotary_rms(name, **options):
    config = AttentionConfig(rotary=True, **{"output_norm": "rms", **options})
    return shallow(name, **({"design": LevitDesign(attention=config)} if "levit" in name else {"attention": config}))


def mean_centred_rotary(name):
    return rotary_rms(name, kernel="mean_centred", output_norm="none")


@pytest.mark.parametrize("form", [rotary_rms, mean_centred_rotary])
@pytest.mark.parametrize("name", SMALLEST)
def test_rotary_attention_in_every_family(name, form):
    model, x = form(name), images(64, 96)
    assert list(model.state_dict()) == list(shallow(name).state_dict())
    model(x).square().sum().backward()
    assert all(value.grad is not None and value.grad.isfinite().all() for value in model.parameters())
    fast = castle(model.eval())
    with torch.no_grad():
        torch.testing.assert_close(optimize(fast)(x), fast(x), atol=1e-5, rtol=0)
    with torch.device("meta"):
        castled = castle(form(name)).eval()
        macs = [count_macs(castled, images(side, side, batch=1)).total for side in (256, 512, 1024)]
    assert macs[2] - macs[1] == 4 * (macs[1] - macs[0])


@pytest.mark.slow
@pytest.mark.parametrize("form", [shallow, rotary_rms, mean_centred_rotary])
@pytest.mark.parametrize("name", SMALLEST)
def test_export_for_any_size(name, form):
    model = castle(form(name)).eval()
    step = 32 if "net_vit" in name else 64
    sides = {axis: step * torch.export.Dim(label, min=2, max=32) for axis, label in ((2, "rows"), (3, "columns"))}
    program = torch.export.export(model, (images(192, 320),), dynamic_shapes={"x": sides}, strict=False)
    for size in ((128, 4 * step), (5 * step, 128)):
        x = images(*size)
        torch.testing.assert_close(program.module()(x), model(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", BY_SIZE)
def test_softmax_twin(name):
    model = shallow(name, kernel="softmax").eval()
    assert set(model.state_dict()) == set(shallow(name).state_dict())
    assert any("scaled_dot_product" in line for line in quadratic_tensors(lambda: model(images()), 10**9))
