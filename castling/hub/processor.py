"""Pictures as a published network wants them, and its outputs as transformers wants them, by the task of its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from castling.extras import import_extra
from castling.hub.config import task_of
from castling.tasks.pictures import in_channels
from castling.tasks.prediction import PicturePredictor, Seen, named_pictures, open_picture
from castling.tasks.task import Picture, Task

utils: Any = import_extra("transformers.image_processing_utils", "huggingface")


class CastlingImageProcessor(utils.BaseImageProcessor):
    """Reads, resizes and normalises pictures as the evaluation of the run did.

    Args:
        recipe: the recipe of the run.
        facts: what was kept of its data.
        **others: what all image processors have.
    """

    model_input_names = ["pixel_values"]  # noqa: RUF012 - as transformers has it

    def __init__(
        self, recipe: Mapping[str, Any] | None = None, facts: Mapping[str, Any] | None = None, **others: Any
    ) -> None:
        super().__init__(**others)
        self.recipe, self.facts = dict(recipe or {}), dict(facts or {})

    def preprocess(self, images: Picture | Sequence[Picture], return_tensors: str | None = "pt", **options: Any) -> Any:
        """Pictures, in any form that `castling predict` takes, as `pixel_values` `(B, C, H, W)`.

        Args:
            images: one or several.
            return_tensors: `pt`.
            **options: of others; without effect.

        Raises:
            ValueError: for another kind of tensors, or pictures that the run's own preparation gives different sizes.
        """
        predictor = _predictor(self._task())
        opened = [open_picture(picture) for _, picture in named_pictures(images)]
        prepared = [predictor.prepare(in_channels(picture, predictor.channels)) for picture in opened]
        if len({tuple(image.shape) for image in prepared}) > 1:
            raise ValueError("these pictures come in different sizes to the network: give them one by one")
        return utils.BatchFeature({"pixel_values": torch.stack(prepared)}, tensor_type=return_tensors)

    def post_process_object_detection(
        self, outputs: Any, threshold: float = 0.3, target_sizes: Any = None
    ) -> list[dict[str, Tensor]]:
        """Objects that a detector sees: `scores`, `labels` and `boxes` (corners in pixels) of each picture.

        Args:
            outputs: what the model gave.
            threshold: the score that a box must exceed.
            target_sizes: height and width of each picture; those of the network's input where None.
        """
        task = self._task()
        side = task.config.data.image_size
        sizes = [(side, side)] * len(outputs["scores"]) if target_sizes is None else _sizes(target_sizes)
        options = replace(task.PredictConfig(), score=threshold)
        found = cast(Any, _predictor(task, options).interpret(dict(outputs), _seen(sizes)))
        return [
            {
                "scores": torch.tensor([one.score for one in picture.objects]),
                "labels": torch.tensor(picture.places, dtype=torch.long),
                "boxes": torch.tensor([one.box for one in picture.objects]).reshape(-1, 4),
            }
            for picture in found
        ]

    def post_process_semantic_segmentation(self, outputs: Any, target_sizes: Any = None) -> list[Tensor]:
        """The place of each pixel's class `(H, W)`, for each picture.

        Args:
            outputs: what the model gave.
            target_sizes: height and width of each picture; a quarter of the network's input where None.
        """
        if target_sizes is None:
            return list(outputs.logits.argmax(1))
        found = cast(Any, _predictor(self._task()).interpret(outputs.logits, _seen(_sizes(target_sizes))))
        return [torch.from_numpy(picture.places).long() for picture in found]

    def _task(self) -> Task:
        return task_of(self.recipe, self.facts)


def _predictor(task: Task, options: Any = None) -> PicturePredictor:
    """The task's way with pictures, around no network."""
    found = task.predictor(nn.Identity(), options)
    assert isinstance(found, PicturePredictor)
    return found


def _seen(sizes: Sequence[tuple[int, int]]) -> list[Seen]:
    return [Seen(str(place), (width, height)) for place, (height, width) in enumerate(sizes)]


def _sizes(given: Any) -> list[tuple[int, int]]:
    return [(int(height), int(width)) for height, width in given]
