"""What takes part in `castling bench models`: the castled network, its softmax baselines, and one of the user's own.

A candidate is described by plain data, so that a fresh process can build the same one to measure its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import timm
import torch
from torch import Tensor, nn

from castling.bench.subjects import build_subject, is_subject, recipe_of
from castling.config import check_choice
from castling.conversion import castle, softmax_twin_of
from castling.conversion.folding import optimize
from castling.exporting.capture import capture
from castling.exporting.engines import ENGINES, OPENVINO, EngineName, on_engine
from castling.exporting.onnx import onnx_session, to_onnx
from castling.exporting.openvino import openvino_runner, read_openvino, save_openvino, to_openvino
from castling.models import deit, esnet_vit, mvitv2
from castling.models.baselines import HYBRIDS, NAMES, softmax_baseline, softmax_twin
from castling.models.input_size import check_image_size

Kind = Literal["castled", "softmax", "host", "unfused", "against"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Setting:
    """One row: a model at an image size, with a patch size, in an engine, for so many images at a time.

    Args:
        model: name of a Castling model, a run, or a recipe whose data is there.
        size: side of a square image in pixels, or height and width as `HxW`.
        patch: side of a patch; for the others than DeiT, the stride of their first attention.
        engine: a name in `castling.exporting.engines.ENGINES`.
        batch: images at a time.

    Raises:
        ValueError: for a model without a baseline, an unknown engine, or a size that the patches do not fit into.

    Example:
        >>> Setting("castling_deit_tiny_patch16_224", 512, 16, "eager").num_tokens
        1024
        >>> Setting("castling_deit_tiny_patch16_224", "352x480", 16, "eager").num_tokens
        660
    """

    model: str
    size: int | str
    patch: int
    engine: EngineName = "eager"
    batch: int = 1

    def __post_init__(self) -> None:
        if not is_subject(self.model):
            check_choice("model", self.model, NAMES)
        check_choice("engine", self.engine, ENGINES)
        if min(*self.sides, self.patch, self.batch) < 1:
            raise ValueError(
                f"sizes, patches and batches must be at least 1; got {self.size}, {self.patch} and {self.batch}"
            )
        if self.model in deit.SIZES:
            check_image_size(self.sides, (self.patch, self.patch))

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of the image."""
        height, _, width = str(self.size).partition("x")
        return int(height), int(width or height)

    @property
    def num_tokens(self) -> int:
        """Patches of the image: the tokens of the first attention, without class tokens."""
        height, width = (-(-side // self.patch) for side in self.sides)
        return height * width

    @property
    def options(self) -> dict[str, Any]:
        """Keywords with which the model is made."""
        if self.model in HYBRIDS or is_subject(self.model):  # convolutions take any size, and no such argument
            return {}
        return {"img_size": self.sides, **({"patch_size": self.patch} if self.model in deit.SIZES else {})}

    def image(self) -> Tensor:
        """An input of its size and number, of noise."""
        channels = recipe_of(self.model).settings.data.channels if is_subject(self.model) else 3
        return torch.randn(self.batch, channels, *self.sides)


def patch_of(model: str) -> int:
    """Patch size of a model as it is registered, or as its run or recipe has it."""
    if is_subject(model):
        network = recipe_of(model).settings.model
        return int(network.options.get("patch_size", patch_of(network.name)))
    if model in esnet_vit.SIZES:
        return 32
    return 4 if model in mvitv2.DEPTHS else 16


def build_candidate(setting: Setting, kind: Kind, against: str | None = None) -> nn.Module:
    """A candidate as it infers.

    Args:
        setting: the row.
        kind: `castled`; `softmax` for the same network with softmax attention; `host` for the plain network that it
            came from; `unfused` for that with N x N maps; or `against`.
        against: timm's name of a model, for that kind.

    Returns:
        The network as `optimize` folds it: a baseline loses its batch norms just as the castled network does.
    """
    return optimize(raw_model(setting, kind, against), inplace=True)


def raw_model(setting: Setting, kind: Kind, against: str | None = None) -> nn.Module:
    """A candidate before it is folded, in evaluation mode: the one whose MACs tables count."""
    if is_subject(setting.model) and kind != "against":
        network, _ = build_subject(setting.model, setting.sides)
        return castle(network, inplace=True) if kind == "castled" else softmax_twin_of(network)
    if kind == "castled":
        return castle(timm.create_model(setting.model, **setting.options), inplace=True).eval()
    if kind == "against":
        return timm_model(str(against), setting.sides)
    if kind == "softmax":
        return softmax_twin(setting.model, **setting.options)
    return softmax_baseline(setting.model, fused=kind == "host", **setting.options)


def timm_model(name: str, size: int | tuple[int, int]) -> nn.Module:
    """A model of timm's in evaluation mode, made for this size where it wants to know."""
    try:
        return timm.create_model(name, img_size=size).eval()
    except TypeError:  # most convolutional networks take any size, and no such argument
        return timm.create_model(name).eval()


def build_pass(kind: Kind, against: str | None = None, **setting: Any) -> Callable[[], object]:
    """A forward pass in the engine of a row given by its fields; what the process of `peak_memory` calls."""
    return build_timed(Setting(**setting), kind, torch.get_num_threads(), against)


def build_timed(setting: Setting, kind: Kind, threads: int, against: str | None = None) -> Callable[[], object]:
    """A forward pass in the engine of the row; an ONNX file runs in ONNX Runtime whatever the engine."""
    image = setting.image()
    if kind == "against" and is_onnx(against):
        return onnx_pass(Path(str(against)), image, threads)
    network = build_candidate(setting, kind, against)
    return partial(on_engine(network, image, setting.engine, threads), image)


def write_pass(folder: Path, setting: Setting, kind: Kind, against: str | None = None) -> Path:
    """Write a candidate as the file that the engine of its row reads, OpenVINO or ONNX Runtime."""
    captured = capture(build_candidate(setting, kind, against), setting.image(), dynamic=False)
    if setting.engine in OPENVINO:
        save_openvino(to_openvino(captured), folder / "model.xml")
        return folder / "model.xml"
    path = folder / "model.onnx"
    path.write_bytes(to_onnx(captured).SerializeToString())
    return path


def open_pass(path: str, shape: Sequence[int], engine: str = "openvino") -> Callable[[], object]:
    """A forward pass of a file, in a process that never saw the network: what `peak_memory` calls for such engines."""
    image = torch.randn(*shape)
    if is_onnx(path):
        return onnx_pass(Path(path), image, torch.get_num_threads())
    return partial(openvino_runner(read_openvino(Path(path)), precision=OPENVINO[engine]), image)


def onnx_pass(path: Path, image: Tensor, threads: int) -> Callable[[], object]:
    """A forward pass of an ONNX file.

    Raises:
        ValueError: if the file takes images of another size only.
    """
    session = onnx_session(str(path), threads)
    taken = session.get_inputs()[0]
    given = tuple(image.shape)
    fits = len(taken.shape) == len(given) and all(
        not isinstance(length, int) or length == wanted for length, wanted in zip(taken.shape, given, strict=False)
    )
    if not fits:
        raise ValueError(f"{path.name} takes an image {taken.shape}, not {list(given)}")
    return partial(session.run, None, {taken.name: image.numpy()})


def is_onnx(against: str | None) -> bool:
    """Whether this is the name of an ONNX file rather than of a model."""
    return against is not None and against.endswith(".onnx")


def check_against(against: str | None) -> None:
    """Refuse what is neither an ONNX file nor a model of timm's.

    Raises:
        ValueError: names it and what it may be.
    """
    if against is None:
        return
    if is_onnx(against):
        if not Path(against).is_file():
            raise ValueError(f"there is no file {against}")
    elif not timm.is_model(against):
        near = timm.list_models(f"*{against}*")[:3]
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ValueError(f"--against takes an .onnx file or a model of timm's; got {against!r}{hint}")


def passes_of(against: str | None, model: str | None = None) -> list[Kind]:
    """The candidates of a row; a run or recipe has no plain network of timm's beside it."""
    left_out = [] if against else ["against"]
    if model is not None and is_subject(model):
        left_out += ["host", "unfused"]
    return [kind for kind in KINDS if kind not in left_out]
