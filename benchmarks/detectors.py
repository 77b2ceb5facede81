"""Our detectors beside those that a person would take instead: time in one engine and one run, MACs and parameters.

Networks for COCO's 80 classes with new weights, batch 1, up to scores and boxes of all points, before the choice among
them. torchvision's SSDLite is always there; YOLOX and PicoDet come with `pip install libreyolo` (MIT).

python benchmarks/detectors.py --out benchmarks/results [--engines eager openvino]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.models.detection import ssdlite320_mobilenet_v3_large

from castling.bench.results_file import append_row, open_results, time_cells
from castling.conversion import castle, has_castling_attention, softmax_twin_of
from castling.conversion.folding import optimize
from castling.exporting.engines import ENGINES, on_engine
from castling.measure import count_macs, count_parameters, time_interleaved
from castling.measure.heap import keep_heap
from castling.training import load_recipe

ROWS = ("lcnet_s_320", "lcnet_vit_s_320", "lcnet_vit_m_416", "lcnet_vit_l_416", "esnet_vit_s_320", "esnet_vit_l_416")
CLASSES = 80


class Leaves(nn.Module):
    """A detector whose outputs are a flat list of tensors."""

    def __init__(self, detector: nn.Module, forward: Callable[[nn.Module, Tensor], list[Tensor]]) -> None:
        super().__init__()
        self.detector, self.calculate = detector, forward

    def forward(self, image: Tensor) -> list[Tensor]:
        """The tensors."""
        return self.calculate(self.detector, image)


def ours(name: str, softmax: bool = False) -> nn.Module:
    """The detector of a recipe, castled or with softmax attention."""
    network = load_recipe(f"coco/{name}").make_task({"labels": [str(n) for n in range(CLASSES)]}).build_network().eval()
    if not has_castling_attention(network):
        return network
    return softmax_twin_of(network) if softmax else castle(network)


def ssdlite() -> nn.Module:
    """SSDLite320 of torchvision on MobileNetV3, without its resizing and its choice among boxes."""
    network = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=CLASSES + 1).eval()
    return Leaves(network, lambda net, image: list(net.head(list(net.backbone(image).values())).values()))


def others() -> dict[str, tuple[int, Callable[[], nn.Module]]]:
    """Detectors of other packages by name, with the side of their pictures."""
    found: dict[str, tuple[int, Callable[[], nn.Module]]] = {"SSDLite320-MobileNetV3 (torchvision)": (320, ssdlite)}
    try:
        from libreyolo.models.picodet.nn import LibrePICODETModel
        from libreyolo.models.yolox.nn import LibreYOLOXModel
    except ImportError:
        print("libreyolo is not installed: without YOLOX and PicoDet")
        return found
    found["YOLOX-Nano (libreyolo)"] = (416, lambda: Leaves(LibreYOLOXModel("n").eval(), lambda net, x: list(net(x))))
    found["YOLOX-Tiny (libreyolo)"] = (416, lambda: Leaves(LibreYOLOXModel("t").eval(), lambda net, x: list(net(x))))
    found["PicoDet-S (libreyolo)"] = (
        320,
        lambda: Leaves(LibrePICODETModel("s").eval(), lambda net, x: [leaf for leaves in net(x) for leaf in leaves]),
    )
    return found


def main() -> None:
    """Time all detectors, taking turns, in every engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["eager", "openvino"])
    parser.add_argument("--repeats", type=int, default=15, help="rounds of turns")
    flags = parser.parse_args()
    keep_heap()
    makers = others()
    for name in ROWS:
        size = int(name.rpartition("_")[2])
        makers[f"{name}, castled" if "vit" in name else name] = (size, partial(ours, name))
        if "vit" in name:
            makers[f"{name}, softmax twin"] = (size, partial(ours, name, softmax=True))
    networks = {name: (make().eval(), torch.randn(1, 3, size, size)) for name, (size, make) in makers.items()}
    sizes = {name: (count_macs(*pair).total, count_parameters(pair[0])) for name, pair in networks.items()}
    path = open_results(flags.out, "detectors")
    for engine in flags.engines:
        passes = {}
        for name, (network, image) in networks.items():
            try:
                run = on_engine(optimize(network), image, engine)
                run(image)
            except Exception as error:  # every engine refuses in its own way
                print(f"{name} does not run in {engine}: {str(error).splitlines()[0]}")
            else:
                passes[name] = partial(run, image)
        timings = time_interleaved(passes, repeats=flags.repeats, warmup=2)
        for name, timing in timings.items():
            macs, parameters = sizes[name]
            row = {"detector": name, "size": networks[name][1].shape[-1], "engine": engine}
            row |= time_cells("network", timing) | {"macs": macs, "parameters": parameters}
            append_row(path, row)
            print(f"{engine:12s} {name:40s} {1e3 * timing.median:8.1f} ms {macs / 1e9:6.2f} G MACs", flush=True)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
