"""Networks of runs as models of transformers: classifiers, detectors and segmenters.

They hold the task's own network and give what it gives; a loss is the task's own, from labels in transformers' form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from castling.conversion import BlendSchedule, castle
from castling.extras import import_extra
from castling.hub.config import CastlingConfig, task_of
from castling.tasks.task import Batch
from castling.training.schedules import set_blend_to

transformers: Any = import_extra("transformers", "huggingface")
outputs: Any = import_extra("transformers.modeling_outputs", "huggingface")
NO_OBJECT = -1  # the label of boxes that fill up a batch


@dataclass
class DetectorOutput(outputs.ModelOutput):
    """What a detector gives.

    Args:
        loss: the loss, in training.
        scores: scores of classes at all points `(B, P, K)`, from 0 to 1.
        boxes: corners x0 y0 x1 y1 `(B, P, 4)`, in pixels of the input.
    """

    loss: Tensor | None = None
    scores: Tensor | None = None
    boxes: Tensor | None = None


class CastlingModel(transformers.PreTrainedModel):
    """The network of a run.

    Args:
        config: a `CastlingConfig`.

    Attributes:
        network: the network as its task makes it, castled where the configuration says so.

    Raises:
        ValueError: for a configuration without a recipe, or of another task.
    """

    config_class = CastlingConfig
    base_model_prefix = "network"
    main_input_name = "pixel_values"
    task_name: ClassVar[str]
    auto_class: ClassVar[str]

    def __init__(self, config: CastlingConfig) -> None:
        super().__init__(config)
        if config.recipe.get("task") != self.task_name:
            raise ValueError(
                f"{type(self).__name__} is of the task {self.task_name}; this configuration is of "
                f"{config.recipe.get('task')!r}"
            )
        self.task = task_of(config.recipe, config.facts)
        with torch.device("cpu"):  # transformers would have all tensors without numbers, and loses those not saved
            network = self.task.build_network()
        if config.castled:
            set_blend_to(network, BlendSchedule("fixed", start=1.0), 1.0)
            network = castle(network, inplace=True)
        self.network: nn.Module = network
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: the task has made them."""

    def training_loss(self, batch: Batch) -> Tensor:
        """The task's own loss.

        Raises:
            ValueError: outside of training, where networks give what is used and not what is learned from.
        """
        if not self.training:
            raise ValueError("this task has a loss in training only: call model.train() first, or leave labels out")
        total: Tensor = self.task.losses(self.network, batch).total
        return total


class CastlingForImageClassification(CastlingModel):
    """A classifier: logits in the order of `config.id2label`."""

    task_name = "classification"
    auto_class = "AutoModelForImageClassification"

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None, **options: Any) -> Any:
        """Logits `(B, K)` of images `(B, C, H, W)`, and the loss where labels `(B,)` are given."""
        logits = self.network(pixel_values)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return outputs.ImageClassifierOutput(loss=loss, logits=logits)


class CastlingForSemanticSegmentation(CastlingModel):
    """A segmenter: scores of classes at a quarter of the input's size."""

    task_name = "segmentation"
    auto_class = "AutoModelForSemanticSegmentation"

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None, **options: Any) -> Any:
        """Scores `(B, K, H / 4, W / 4)` of images `(B, 3, H, W)`, or in training the loss of labels `(B, H, W)`."""
        if labels is not None:
            return outputs.SemanticSegmenterOutput(loss=self.training_loss({"image": pixel_values, "labels": labels}))
        return outputs.SemanticSegmenterOutput(logits=self.network(pixel_values))


class CastlingForObjectDetection(CastlingModel):
    """A detector: scores and boxes of all points; `post_process_object_detection` of the processor chooses."""

    task_name = "detection"
    auto_class = "AutoModelForObjectDetection"

    def forward(self, pixel_values: Tensor, labels: list[dict[str, Tensor]] | None = None, **options: Any) -> Any:
        """Scores and boxes of images `(B, 3, S, S)`, or in training the loss of what is there.

        Args:
            pixel_values: images.
            labels: for each image `class_labels` `(M,)` and `boxes` `(M, 4)`: the centre, width and height as shares of
                the image, as transformers has them.
            **options: of others; without effect.
        """
        if labels is not None:
            return DetectorOutput(loss=self.training_loss(_padded(pixel_values, labels)))
        found = self.network(pixel_values)
        return DetectorOutput(scores=found["scores"], boxes=found["boxes"])


def _padded(images: Tensor, labels: list[dict[str, Tensor]]) -> Batch:
    """Objects of all images as a batch of the task's: corners in pixels, filled up to the most that one image has."""
    most = max(len(one["class_labels"]) for one in labels)
    boxes, classes = images.new_zeros(len(labels), most, 4), torch.full((len(labels), most), NO_OBJECT)
    sides = images.new_tensor([images.shape[-1], images.shape[-2]]).repeat(2)
    for place, one in enumerate(labels):
        count = len(one["class_labels"])
        centre, size = one["boxes"].to(images).split(2, dim=-1)
        boxes[place, :count] = torch.cat([centre - size / 2, centre + size / 2], dim=-1) * sides
        classes[place, :count] = one["class_labels"]
    return {"image": images, "boxes": boxes, "labels": classes.to(images.device)}


MODELS: dict[str, type[CastlingModel]] = {
    model.task_name: model
    for model in (CastlingForImageClassification, CastlingForObjectDetection, CastlingForSemanticSegmentation)
}
