"""What a playground shows of a run: its networks on one picture, what they say, take and attend to."""

from __future__ import annotations

import copy
import logging
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from castling.attention import branches
from castling.conversion import ConvertedAttention, castle, has_castling_attention, optimize
from castling.conversion.twins import softmax_twin_of
from castling.measure.memory import forecast_memory
from castling.measure.trees import Tree, finite_examples
from castling.models.input_size import at_size, patch_size
from castling.report.explanation import Explanation
from castling.report.run_data import RunData, read_run
from castling.tasks.pictures import in_channels
from castling.tasks.prediction import NOT_FINITE, Failed, PicturePredictor, Seen, open_picture
from castling.tasks.task import Picture, Task
from castling.training.evaluation import best_device
from castling.training.saved import CASTLED, SavedModel
from castling.workflows.calls import FileNetwork
from castling.workflows.calls import open as open_any
from castling.workflows.castle_run import networks_of
from castling.workflows.explaining import explain, seen_picture

logger = logging.getLogger(__name__)

AS_TRAINED, TWIN, EXPORTED, ORIGINAL = "as trained", "softmax twin", "as exported", "original"
WAITING = "…"
STEP, LARGEST = 32, 1024  # pixels: of networks that do not say it, and the largest side that is offered
ROUNDS = 3
SLOW = 0.2  # seconds of a pass from which it is not repeated: somebody waits for the page
MOST_MEMORY = 2048.0  # MiB; what would hold more is not run, as maps of N x N are soon too large for a machine
NUM_SAMPLES = 8


@dataclass(frozen=True)
class Look:
    """What one network made of a picture.

    Args:
        network: its name.
        said: what it says, in a line; empty for one that was not trained and shows only what it costs.
        drawn: the picture with that drawn in; None likewise.
        milliseconds: the median time of a pass; None as long as it is not known, and for a network that would hold too
            much and was not run.
        mebibytes: what weights and one pass hold at most; None for an exported file, whose engine does not say it.
    """

    network: str
    said: str
    drawn: Image.Image | None
    milliseconds: float | None
    mebibytes: float | None


@dataclass(frozen=True)
class Answer:
    """What all networks made of a picture.

    Args:
        looks: each network's part.
        agreement: how far the castled network says the same as the one that was trained; None as long as both were not
            asked, and where there is one only.
    """

    looks: Sequence[Look]
    agreement: float | None


@dataclass(frozen=True)
class _AtSide:
    """What depends on the side of pictures.

    Args:
        task: the task at that size.
        plain: its networks, whose attentions can be listened to.
        ready: the same, the castled one folded.
        mebibytes: what each holds at most.
        milliseconds: how long a pass of each took, once somebody has looked.
    """

    task: Task
    plain: dict[str, nn.Module]
    ready: dict[str, nn.Module]
    mebibytes: dict[str, float | None]
    milliseconds: dict[str, float] = field(default_factory=dict)

    def prepare(self, picture: Image.Image) -> Tensor:
        """The networks' input `(1, C, H, W)`."""
        first = next(iter(self.ready.values()))
        predictor = _predictor(self.task, first)
        images = predictor.prepare(in_channels(picture, predictor.channels))[None]
        return images.to(next((weights.device for weights in first.parameters()), images.device))


class Player:
    """A run with its networks, or a file that was exported from one, for one person after the other.

    Args:
        path: a run folder, its castled folder, or the file.

    Attributes:
        name: the name of the folder or file.
        run: what its folder says; None of a file.
        trained: names of the networks that say something.
        attends: whether it can be asked where a place looks.
        sizes: the sides of pictures that can be asked for: smallest, largest, step, and that of training.

    Raises:
        ValueError: for a folder without a run, a file that makes no predictions, or a task whose pictures are not
            prepared one by one.
    """

    def __init__(self, path: Path | str) -> None:
        path = Path(path)
        path = path.parent if path.name == CASTLED and (path.parent / "config.yaml").is_file() else path
        self.path, self.name = path, path.resolve().name
        self.run: RunData | None = None if path.is_file() else read_run(path)
        self.saved: SavedModel = open_any(path)
        self.task: Task = self.saved.task
        if not isinstance(self.task.predictor(self.saved.network), PicturePredictor):
            raise ValueError(f"{path}: pictures of the task {self.saved.recipe.task} are not prepared one by one")
        self._networks = _networks(self.saved)
        self.attends = EXPORTED not in self._networks
        self.trained = [name for name in self._networks if name != TWIN]
        self._sized: dict[int, _AtSide] = {}
        self._lock = threading.Lock()  # attentions are listened to where they stand
        side = int(self.saved.recipe.settings.data.image_size)
        step = _step(self.saved.network)
        if step is None:
            self.sizes = (side, side, 1, side)
        else:
            step = step if side % step == 0 else side
            self.sizes = (min(side, max(step, side // 2 // step * step)), max(side, LARGEST // step * step), step, side)

    def view(self, picture: Picture, size: int | None = None) -> Image.Image:
        """The picture as the networks see it."""
        at_side = self._at(size)
        return seen_picture(at_side.prepare(open_picture(picture))[0], at_side.task)

    def look(self, picture: Picture, size: int | None = None) -> Answer:
        """Show a picture to all networks.

        Args:
            picture: a picture in any form that `predict` takes.
            size: the side that they see it at; that of training where None.

        Raises:
            ValueError: for what is no picture, or a size that patches do not fill.
        """
        *_, answer = self.looks(picture, size)
        return answer

    def looks(self, picture: Picture, size: int | None = None) -> Iterator[Answer]:
        """The same in steps, as softmax may take long: first what the castled network says, at the end all of it."""
        opened, at_side = open_picture(picture), self._at(size)
        images = at_side.prepare(opened)
        found = {name: Look(name, WAITING, None, None, held) for name, held in at_side.mebibytes.items()}
        outputs: dict[str, Tree] = {}
        first_times: dict[str, float] = {}
        for name in sorted(found, key=lambda name: name != CASTLED):
            with self._lock:
                found[name] = self._first_look(found[name], at_side, opened, images, outputs, first_times)
            yield Answer([*found.values()], None)
        if not at_side.milliseconds:  # once for a size: pictures of one size take the same time
            with self._lock:
                small = {name: at_side.ready[name] for name in first_times}
                at_side.milliseconds.update(_times(small, images, first_times))
        for name, milliseconds in at_side.milliseconds.items():
            found[name] = replace(found[name], milliseconds=milliseconds)
        agreement = None
        before = next(iter(found))
        if before in outputs and CASTLED in outputs and before != CASTLED:
            both = outputs[before], outputs[CASTLED]
            agreement = float(at_side.task.agreement(*both, {"image": images}).mean())
        yield Answer([*found.values()], agreement)

    def explain(self, picture: Picture, at: Sequence[float], size: int | None = None) -> Explanation:
        """What the castled network, or the only one, attends to from a place.

        Args:
            picture: a picture.
            at: shares of the width and the height.
            size: the side that it sees it at; that of training where None.
        """
        at_side = self._at(size)
        with self._lock:
            network = at_side.plain.get(CASTLED) or next(iter(at_side.plain.values()))
            return explain(replace(self.saved, network=network, task=at_side.task), open_picture(picture), at)

    def samples(self) -> list[Image.Image]:
        """Some validation pictures as the network sees them; none where the data is not here."""
        try:
            batch = next(iter(self.task.loader("val", NUM_SAMPLES)))
        except (OSError, ValueError, StopIteration):
            return []
        return [seen_picture(image, self.task) for image in batch["image"]]

    @torch.inference_mode()
    def _first_look(
        self,
        look: Look,
        at_side: _AtSide,
        opened: Image.Image,
        images: Tensor,
        outputs: dict[str, Tree],
        seconds: dict[str, float],
    ) -> Look:
        """What one network says. Its outputs, and what its first pass took, are added to those of the others."""
        name, network = look.network, at_side.ready[look.network]
        if look.mebibytes is not None and look.mebibytes > MOST_MEMORY:
            return replace(look, said=f"not run: it would hold {look.mebibytes:,.0f} MiB")
        if name not in self.trained and at_side.milliseconds:
            return replace(look, said="")
        start = time.perf_counter()
        outputs[name] = network(images)
        seconds[name] = time.perf_counter() - start
        if name not in self.trained:
            return replace(look, said="")
        looking = _predictor(at_side.task, network)
        if looking.network is network:
            (prediction,) = looking.interpret(outputs[name], [Seen("0", opened.size)])
        else:  # it sees something else of the picture, such as windows
            (prediction,) = looking(opened)
        if not finite_examples(outputs[name]).all():
            prediction = Failed("0", NOT_FINITE)
        said = prediction.error or prediction.line().partition(": ")[2]
        return replace(look, said=said, drawn=prediction.draw(opened.convert("RGB")))

    def _at(self, size: int | None) -> _AtSide:
        """All that depends on the side of pictures, kept for the next time."""
        size = size or self.sizes[3]
        with self._lock:
            if size not in self._sized:
                self._sized[size] = self._made(size)
            return self._sized[size]

    def _made(self, size: int) -> _AtSide:
        task = self.task if size == self.sizes[3] else self.task.elsewhere(image_size=size)
        if not self.attends:  # the file is what it is
            return _AtSide(task, self._networks, self._networks, dict.fromkeys(self._networks))
        resized = {name: at_size(network, size).to(best_device()) for name, network in self._networks.items()}
        _, channels, *sides = task.deployment().example.shape
        shape = (1, channels, *sides)
        memory: dict[str, float | None] = {
            name: forecast_memory(partial(copy.deepcopy, one), shape) for name, one in resized.items()
        }
        ready = {name: optimize(one) if name == CASTLED else one for name, one in resized.items()}
        return _AtSide(task, resized, ready, memory)


def _networks(saved: SavedModel) -> dict[str, nn.Module]:
    """The network as it was trained, castled, and what it would cost with softmax in every place.

    Of a converted network its original and the castled one; of a file what is in it.
    """
    if isinstance(saved.network, FileNetwork):
        return {EXPORTED: saved.network}
    if any(isinstance(module, ConvertedAttention) for module in saved.network.modules()):
        try:
            found = networks_of(saved, saved.task)
        except (OSError, ValueError) as error:  # weights or pictures are not here, or its blend is below 1
            logger.info("no original of %s: %s", type(saved.network).__name__, error)
        else:
            return {name: found[name] for name in (ORIGINAL, CASTLED) if name in found}
    found = {AS_TRAINED: saved.network}
    if branches(saved.network):
        found[CASTLED] = castle(saved.network)
    if has_castling_attention(saved.network):
        found[TWIN] = softmax_twin_of(saved.network)
    return found


def _step(network: nn.Module) -> int | None:
    """The number of which sides of pictures are multiples; None where there is one size only."""
    if isinstance(network, FileNetwork):
        metadata = network.metadata
        return metadata.side_step if {"height", "width"} <= set(metadata.dynamic) else None
    return (patch_size(network) or (STEP, STEP))[0]


def _predictor(task: Task, network: nn.Module) -> PicturePredictor:
    found: Any = task.predictor(network)
    return found


@torch.inference_mode()
def _times(networks: Mapping[str, nn.Module], images: Tensor, first: Mapping[str, float]) -> dict[str, float]:
    """Milliseconds of a pass, the median of a few in turns; the first of each does not count, unless it was slow."""
    seconds: dict[str, list[float]] = {name: [] for name in networks}
    for _ in range(ROUNDS):
        for name, network in networks.items():
            if first[name] <= SLOW:
                start = time.perf_counter()
                network(images)
                seconds[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(taken or [first[name]]) for name, taken in seconds.items()}
