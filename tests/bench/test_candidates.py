from dataclasses import asdict

import pytest
import torch
from torch import nn

from castling.bench.candidates import (
    Setting,
    build_candidate,
    build_pass,
    check_against,
    onnx_pass,
    open_pass,
    patch_of,
    timm_model,
    write_pass,
)

DEIT = "castling_deit_tiny_patch16_224"
LEVIT = Setting("castling_levit_128", 64, 16)


@pytest.mark.parametrize(
    ("model", "size", "patch", "message"),
    [
        (DEIT, 100, 16, "nearest sizes are 96 x 96 and 112 x 112"),
        (DEIT, 224, 0, "at least 1; got 224, 0 and 1"),
        ("deit_tiny_patch16_224", 224, 16, "unknown model 'deit_tiny_patch16_224'"),
    ],
)
def test_bad_settings_are_named(model, size, patch, message):
    with pytest.raises(ValueError, match=message):
        Setting(model, size, patch)


@pytest.mark.parametrize(
    ("name", "size", "tokens"),
    [
        ("castling_levit_128", 64, 16),
        ("castling_mvitv2_tiny", 70, 324),
        ("castling_lcnet_vit_small", 70, 25),
        ("castling_esnet_vit_small", 70, 9),
    ],
)
def test_tokens_are_those_that_the_first_attention_sees(name, size, tokens):
    seen, setting = [], Setting(name, size, patch_of(name))
    model = build_candidate(setting, "castled")
    attention = next(module for name, module in model.named_modules() if name.endswith("attn"))
    attention.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
    model(torch.randn(1, 3, setting.size, setting.size))
    assert seen == [setting.num_tokens] == [tokens]


@pytest.mark.parametrize("kind", ["castled", "softmax", "host", "unfused", "against"])
def test_candidates_run_as_networks_for_inference(kind):
    output = build_pass(kind, "resnet18", **asdict(LEVIT))()
    assert output.shape == (1, 1000)
    assert output.is_inference()
    norms = [
        module for module in build_candidate(LEVIT, kind, "resnet18").modules() if isinstance(module, nn.BatchNorm1d)
    ]
    assert norms == []


def test_several_images_at_a_time_in_any_engine():
    for engine in ("eager", "openvino"):
        if engine == "openvino":
            pytest.importorskip("openvino")
        output = build_pass("castled", model="castling_levit_128", size=64, patch=16, engine=engine, batch=3)()
        assert output.shape == (3, 1000)
    with pytest.raises(ValueError, match="batches must be at least 1; got 64, 16 and 0"):
        Setting("castling_levit_128", 64, 16, batch=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["openvino", "onnxruntime"])
def test_files_run_without_the_network(engine, tmp_path):
    pytest.importorskip(engine)
    setting = Setting("castling_levit_128", 64, 16, engine, batch=2)
    path = write_pass(tmp_path, setting, "castled")
    found = open_pass(str(path), [2, 3, 64, 64])()
    assert (found[0] if isinstance(found, list) else found).shape == (2, 1000)


def test_a_model_of_timms_is_made_for_the_size():
    assert timm_model("vit_tiny_patch16_224", 64).patch_embed.img_size == (64, 64)
    assert not timm_model("resnet18", 64).training


def test_what_is_neither_a_file_nor_a_model_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"there is no file .*none\.onnx"):
        check_against(str(tmp_path / "none.onnx"))
    with pytest.raises(ValueError, match="got 'resnet'; did you mean"):
        check_against("resnet")
    check_against("resnet18")
    check_against(None)


def test_an_onnx_file_runs_at_the_sizes_that_it_takes(tmp_path):
    pytest.importorskip("onnxruntime")
    path = write_onnx(tmp_path / "pool.onnx", [1, 3, "height", "width"])
    (output,) = onnx_pass(path, torch.full((1, 3, 8, 12), 2.0), threads=1)()
    assert output.tolist() == [[2.0, 2.0, 2.0]]
    path = write_onnx(tmp_path / "fixed.onnx", [1, 3, 224, 224])
    with pytest.raises(ValueError, match=r"fixed.onnx takes an image \[1, 3, 224, 224\], not \[1, 3, 8, 8\]"):
        onnx_pass(path, torch.zeros(1, 3, 8, 8), threads=1)


def write_onnx(path, shape):
    """A network that averages an image."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    axes = helper.make_tensor("axes", TensorProto.INT64, [2], [2, 3])
    mean = helper.make_node("ReduceMean", ["image", "axes"], ["mean"], keepdims=0)
    image, out = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("image", shape), ("mean", [1, 3]))
    )
    graph = helper.make_graph([mean], "pool", [image], [out], [axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)
    return path
