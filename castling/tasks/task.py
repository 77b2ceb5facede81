"""The task interface: all that training, castling, evaluation, prediction, export and reports know of a task.

A task is made from the sections of its recipe. It says which facts of its data are kept beside the weights, and from
both it builds its network; data is opened only where facts or batches are asked for and not known.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from castling.measure.metric import Meter
from castling.measure.trees import Tree, leaves
from castling.plain_values import plain_value
from castling.sentences import shown
from castling.tasks.batches import Shard
from castling.tasks.exhibits import Exhibit

if TYPE_CHECKING:
    from castling.tasks.data_check import DataForm

Batch = dict[str, Any]  # tensors of a batch by name; `image` (B, C, H, W) and `index` (B,) are in all of them
Facts = dict[str, Any]  # what JSON holds
Picture = str | Path | bytes | Image.Image | np.ndarray | Tensor
Unreadable = Sequence[tuple[str, str]]


class Losses(NamedTuple):
    """The loss of a batch.

    Args:
        total: what is trained.
        parts: what it is made of, by name, for the log.
    """

    total: Tensor
    parts: dict[str, Tensor]


class Moment(NamedTuple):
    """How far a training has come; the same in all its processes.

    Args:
        step: the number of steps that are done.
        num_steps: the number of all.
    """

    step: int
    num_steps: int


class Loader(Protocol):
    """Batches of a split, which can be gone through again.

    Attributes:
        num_examples: the size of the split.
        num_batches: the batches of a whole epoch over all processes.
        on_unreadable: a function that is told the names and errors of pictures that could not be read.
    """

    num_examples: int
    num_batches: int
    on_unreadable: Callable[[Unreadable], None]

    def __len__(self) -> int:
        """The batches, or parts of batches, that are to come in this process."""

    def __iter__(self) -> Iterator[Batch]: ...

    def seek(self, epoch: int, start: int = 0) -> None:
        """Begin the next iteration in this epoch, with its batch number `start`."""


class Prediction(Protocol):
    """What a network sees in one picture."""

    @property
    def name(self) -> str:
        """The picture's path, or its place in the input."""

    @property
    def error(self) -> str | None:
        """The reason why the picture could not be read; None where it could."""

    def line(self) -> str:
        """One line of text."""

    def to_json(self) -> dict[str, Any] | list[dict[str, Any]]:
        """Plain values: one entry, or several where the task's form has them."""

    def draw(self, picture: Image.Image) -> Image.Image:
        """The picture with what was seen drawn into it."""


class Predictor(Protocol):
    """A network with what it needs to see pictures as it did in training."""

    def __call__(
        self,
        pictures: Picture | Iterable[Picture],
        batch_size: int = 32,
        on_batch: Callable[[int], None] = lambda done: None,
    ) -> Sequence[Prediction]:
        """One prediction per picture, in order; a folder stands for all pictures in it."""


@dataclass(frozen=True)
class Deployment:
    """How a network is used outside of here.

    Args:
        example: an empty input `(1, C, H, W)` of the size that it is made for.
        preprocessing: how a picture becomes its input, as plain values, such as `mean` and `std`.
        outputs: a name for each leaf of its output tree, in order; by default the tree's own names.
        facts: what gives its outputs a meaning, as plain values, such as the names of classes.
        finish: makes a network that also does what is done to outputs before they are used, such as the choice among
            boxes; None where nothing is.
        tolerance: the largest difference of outputs that means nothing, in their unit.
        predicts: whether the task's predictor can use these outputs.
    """

    example: Tensor
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] | None = None
    facts: Facts = field(default_factory=dict)
    finish: Callable[[nn.Module], nn.Module] | None = None
    tolerance: float = 1e-4
    predicts: bool = True


class Task(ABC):
    """What is learned, from which pictures, and how well.

    Its recipe has a section `model`, a `castling.tasks.networks.NetworkConfig`, and a section `data` with `root` and
    `image_size`; all else is the task's own.

    Args:
        config: the recipe's sections, an instance of `Config`.
        facts: what an earlier run kept; read from the data where None.

    Attributes:
        original: the network before it was converted, frozen, once a converted network is built for training.

    Raises:
        ValueError: for facts that lack one of `FactTypes`, or have one of another type.
    """

    Config: ClassVar[type]
    PredictConfig: ClassVar[type]
    FactTypes: ClassVar[Mapping[str, Any]] = {}  # types of the facts that a run has kept; `| None` where it may not

    def __init__(self, config: Any, facts: Facts | None = None) -> None:
        self.config = config
        self.original: nn.Module | None = None
        self._facts = None if facts is None else self._checked(facts)

    def _checked(self, facts: Facts) -> Facts:
        for name, kind in {"transformers": dict[str, Any] | None, **self.FactTypes}.items():
            if name not in facts and NoneType not in get_args(kind):
                raise ValueError(f"facts of {type(self).__name__} need {name!r}; got {shown(list(facts))}")
            plain_value(facts.get(name), kind, f"facts.{name}")
        return facts

    @property
    def facts(self) -> Facts:
        """What is kept beside the weights, such as the names of classes."""
        if self._facts is None:
            self._facts = self.read_facts()
        return self._facts

    def elsewhere(self, root: str | None = None, image_size: int | None = None) -> Task:
        """The same task with its pictures in another folder, or seen at another size.

        Raises:
            ValueError: if its pictures are not read from a folder.
        """
        data = self.config.data
        if root is not None and data.root is None:
            raise ValueError(f"the pictures of this run are not read from a folder; got {root!r}")
        changes = {"root": root, "image_size": image_size}
        data = replace(data, **{name: value for name, value in changes.items() if value is not None})
        return type(self)(replace(self.config, data=data), self._facts)

    def on_test(self) -> Task:
        """The same task whose `val` is the held-out split of the data itself, which its training did not read.

        Raises:
            ValueError: if its training was evaluated on that split already.
        """
        data = self.config.data
        if not getattr(data, "held_out", 0.0):
            raise ValueError(
                "the held-out pictures of this data were looked at in training already: with data.held_out it is "
                "evaluated on some of the training pictures instead"
            )
        return type(self)(replace(self.config, data=replace(data, held_out=0.0)), self._facts)

    @classmethod
    def following_original(cls, config: Any) -> Any:
        """The same sections, in which a converted network learns from its original's outputs too, where a task can."""
        return config

    @classmethod
    def data_forms(cls) -> Sequence[DataForm]:
        """The forms in which data of this task can be checked; by default none."""
        return ()

    def check_data(self) -> None:  # noqa: B027 - most tasks have nothing to refuse
        """Refuse data that a training would stop at later on; by default none is looked at.

        A new run asks once, in its first process, before its folder is made.

        Raises:
            ValueError: names what is wrong.
        """

    @abstractmethod
    def read_facts(self) -> Facts:
        """Learn from the data what is to be kept beside the weights."""

    @abstractmethod
    def build_network(self, training: bool = False) -> nn.Module:
        """Make the network of configuration and facts.

        Args:
            training: load its starting weights, and make what it learns from: its teacher, or its original where it is
                converted. Otherwise weights that belong to it will be loaded.
        """

    @abstractmethod
    def loader(
        self,
        split: str,
        batch_size: int,
        seed: int | None = None,
        shard: Shard = Shard(),  # noqa: B008 - immutable
        parts: int = 1,
        workers: int = 0,
    ) -> Loader:
        """Batches of a split: shuffled and augmented for training, or as they are and in order.

        Args:
            split: `train` or `val`.
            batch_size: the examples of a batch over all processes.
            seed: the seed of shuffling and augmentation; None for neither.
            shard: the part of every batch that this process works on.
            parts: the number of parts in which a training batch comes.
            workers: the number of reading processes.
        """

    def at_moment(self, batch: Batch, moment: Moment) -> Batch:
        """A training batch as it is wanted at this moment of a training, such as at another size; as it came."""
        return batch

    @abstractmethod
    def losses(self, network: nn.Module, batch: Batch) -> Losses:
        """The losses of a training batch."""

    def forward(self, network: Callable[..., Tree], batch: Batch) -> Tree:
        """The outputs of a network, or of an engine that runs it, for a batch."""
        return network(batch["image"])

    @abstractmethod
    def meter(self) -> Meter:
        """A new meter; the first of its metrics decides which checkpoint is best and what castling costs."""

    @abstractmethod
    def agreement(self, outputs: Tree, others: Tree, batch: Batch) -> Tensor:
        """How far two networks say the same, from 0 to 1 for each example `(B,)`."""

    def evidence(self, outputs: Tree) -> Tensor:
        """The number whose reasons a relevance map shows, for each picture `(B,)`; by default how large outputs are."""
        found = leaves(outputs)
        return torch.stack([leaf.float().square().flatten(1).sum(1) for leaf in found]).sum(0)

    @abstractmethod
    def predictor(self, network: nn.Module, options: Any = None) -> Predictor:
        """The network as something that looks at pictures; `options` are an instance of `PredictConfig`."""

    @abstractmethod
    def deployment(self) -> Deployment:
        """How the network is used outside of here."""

    def training_inputs(self) -> Sequence[tuple[Tensor, ...]]:
        """Empty inputs of the network as it gets them in training, for every size; by default those of deployment."""
        example = self.deployment().example
        sides = dict.fromkeys(getattr(self.config.data, "sizes", ()))
        return [(example.new_zeros(*example.shape[:2], side, side),) for side in sides] or [(example,)]

    def examine(self, network: nn.Module, batches: Iterable[Batch]) -> Sequence[Exhibit]:
        """What a report shows of a network beside its metrics; nothing, where a task has nothing to show.

        Args:
            network: the network, in evaluation mode.
            batches: the validation pictures in order, on the network's device.
        """
        return ()

    def write_answers(self, network: nn.Module, batches: Iterable[Batch], folder: Path) -> int:
        """Write what the network says of training pictures, for a student of the same task to learn from.

        Args:
            network: the teacher, in evaluation mode.
            batches: all training pictures in order, on the network's device.
            folder: the folder to write into, made where needed.

        Returns:
            The number of pictures.

        Raises:
            ValueError: if students of this task learn from no such answers.
        """
        raise ValueError(f"students of the task {type(self).__name__} learn from no written answers")
