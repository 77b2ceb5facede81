import ctypes

import pytest
import timm
import torch
from torch import nn

from castling.exporting import ENGINES, on_engine, openvino
from castling.exporting.capture import capture
from castling.exporting.openvino import compile_for_cpu, openvino_core, to_openvino
from castling.measure.trees import absolute_differences, named_leaves

pytestmark = pytest.mark.slow

PLAIN = {
    "deit_tiny_patch16_224": {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2},
    "levit_128": {"img_size": 32, "embed_dim": (32, 48), "depth": (1, 1), "num_heads": (2, 2)},
}


FLOAT32 = [name for name in ENGINES if name != "openvino_bf16"]


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("engine", FLOAT32)
def test_every_engine_gives_pytorchs_outputs(deit, engine):
    model, x = deit, torch.randn(2, 3, 32, 32)
    wanted = model(x).detach()
    run = on_engine(model, x, engine, threads=1)
    torch.testing.assert_close(run(x), wanted, atol=1e-4, rtol=1e-4)
    first, second = run(x), run(2 * x)
    torch.testing.assert_close(first, wanted, atol=1e-4, rtol=1e-4)  # a result is not written over by the next
    torch.testing.assert_close(second, model(2 * x).detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("engine", FLOAT32)
def test_every_engine_gives_the_tree_of_the_network(pair, images, engine):
    wanted, run = pair(images), on_engine(pair, images, engine, threads=1)
    first = run(images)
    run(2 * images)
    assert list(named_leaves(first)) == ["tokens", "maps.0", "maps.1"]
    assert first["masks"] is None
    assert absolute_differences(first, wanted).max() < 1e-5


def test_bfloat16_is_near_pytorchs_outputs_and_not_the_same(deit):
    if "BF16" not in openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this processor has no instructions for bfloat16")
    x = torch.randn(2, 3, 32, 32)
    wanted, found = deit(x).detach(), on_engine(deit, x, "openvino_bf16")(x)
    torch.testing.assert_close(found, wanted, atol=3e-2 * float(wanted.abs().max()), rtol=0)
    assert (found - wanted).abs().max() > 1e-5


def test_bfloat16_is_refused_where_the_processor_lacks_it(deit, monkeypatch):
    class Core:
        def get_property(self, device, name):
            return ["FP32", "INT8"]

    monkeypatch.setattr(openvino, "openvino_core", Core)
    with pytest.raises(ValueError, match=r"no instructions for bfloat16 .*: choose openvino"):
        on_engine(deit, torch.zeros(1, 3, 32, 32), "openvino_bf16")


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime"])
@pytest.mark.parametrize("name", PLAIN)
def test_networks_of_timm_run_as_well(name, engine):
    model, x = timm.create_model(name, **PLAIN[name]).eval(), torch.randn(1, 3, 32, 32)
    wanted = model(x).detach()  # before: timm 1.0.22 caches what LeViT computes while torch 2.7 captures it
    torch.testing.assert_close(on_engine(model, x, engine)(x), wanted, atol=1e-4, rtol=1e-4)


def test_softmax_attention_stays_fused_in_openvino():
    model = timm.create_model("deit_tiny_patch16_224", **PLAIN["deit_tiny_patch16_224"]).eval()
    graph = to_openvino(capture(model, torch.zeros(1, 3, 32, 32), dynamic=False))
    assert "ScaledDotProductAttention" in {node.get_type_name() for node in graph.get_ops()}
    running = compile_for_cpu(graph, 1).get_runtime_model().get_ops()
    kinds = {node.get_rt_info()["layerType"].astype(str) for node in running}
    assert not kinds & {"Softmax", "MatMul"}  # all of it is one operator, whatever its name


def test_threads_are_set_for_a_call_and_given_back():
    seen, before = [], torch.get_num_threads()

    class Network(torch.nn.Module):
        def forward(self, x):
            seen.append(torch.get_num_threads())
            return x

    on_engine(Network(), torch.zeros(1), "eager", threads=before + 1)(torch.zeros(1))
    assert (seen, torch.get_num_threads()) == ([before + 1], before)


def test_bad_input():
    model, x = torch.nn.Identity(), torch.zeros(1, 3, 8, 8)
    with pytest.raises(ValueError, match="unknown engine 'openvin': did you mean 'openvino'"):
        on_engine(model, x, "openvin")
    with pytest.raises(ValueError, match="threads must be at least 1; got 0"):
        on_engine(model, x, "eager", threads=0)


def test_openvino_leaves_the_stack_of_signals_alone():
    """Runtimes that go in another order than they came would leave a stack in freed memory."""

    class Stack(ctypes.Structure):
        _fields_ = (("pointer", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))

    def stack():
        found = Stack()
        assert ctypes.CDLL(None).sigaltstack(None, ctypes.byref(found)) == 0
        return found.pointer, found.flags, found.size

    captured = capture(torch.nn.Conv2d(3, 4, 3), torch.zeros(1, 3, 8, 8), dynamic=False)
    compile_for_cpu(to_openvino(captured))  # the runtime sets its own stack once
    before = stack()
    first, second = (compile_for_cpu(to_openvino(captured)) for _ in range(2))
    del first
    del second
    assert stack() == before


@pytest.mark.usefixtures("fresh_compiler")
def test_compiling_freezes_the_weights():
    network, x = nn.Linear(8, 4).eval(), torch.randn(2, 8)
    run = on_engine(network, x, "compile")
    before = run(x)
    nn.init.zeros_(network.weight)  # the compiled network has packed copies by now
    torch.testing.assert_close(run(x), before)
    assert not torch.allclose(network(x), before)
