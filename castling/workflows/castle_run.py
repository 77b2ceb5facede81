"""A run castled: all its networks certified on the validation pictures, and the castled weights written if allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from castling.conversion import Certificate, ConvertedAttention, castle, certify, has_castling_attention, is_castled
from castling.measure.plain_json import json_text
from castling.models.input_size import at_size
from castling.tasks.huggingface import is_huggingface
from castling.tasks.task import Batch, Task
from castling.training.evaluation import OnDevice, best_device
from castling.training.run_folder import write_file
from castling.training.saved import CERTIFICATE, SavedModel, Which, occupancy_history, open_model, write_castled

Track = Callable[[Iterable[Batch], int], Iterable[Batch]]


def castle_run(
    folder: Path | str,
    tolerance: float = 0.5,
    checkpoint: Which | None = None,
    data: str | None = None,
    batch_size: int = 64,
    sizes: Sequence[int] = (),
    track: Track = lambda batches, count: batches,
) -> tuple[Certificate, Path | None]:
    """Certify a run and write its castled weights.

    Args:
        folder: the folder of the run, whose network has branches or was converted.
        tolerance: the largest loss in the deciding metric, in points or in its unit.
        checkpoint: the last one, which is the default, or the best.
        data: another place of the run's pictures.
        batch_size: the number of pictures at a time.
        sizes: other sides of the pictures to measure at; position embeddings are resampled.
        track: shows the progress of batches of which there are so many.

    Returns:
        The certificate, which is written in any case, and the folder of the castled weights; None where the verdict
        forbids them.

    Raises:
        ValueError: if there is nothing to castle, or the tolerance is negative.
    """
    folder = Path(folder)
    saved = open_model(folder, checkpoint)
    task = saved.task if data is None else saved.task.elsewhere(root=data)
    networks = networks_of(saved, task)

    def certified(task: Task, networks: dict[str, nn.Module]) -> Certificate:
        loader = task.loader("val", batch_size)
        batches = OnDevice(track(loader, len(loader)), best_device())
        return certify(networks, task, batches, tolerance, occupancy_history(folder))

    certificate = certified(task, networks)
    by_size = {}
    for size in sizes:
        resized = {name: at_size(network, size) for name, network in networks.items()}
        found = certified(task.elsewhere(image_size=size), resized)
        by_size[size] = {name: report.metrics for name, report in found.networks.items()}
    certificate = replace(certificate, sizes=by_size)
    content = certificate.to_json()
    write_file(folder / CERTIFICATE, json_text(content, indent=2).encode())
    return certificate, write_castled(folder, networks["castled"], content) if certificate.allowed else None


def networks_of(saved: SavedModel, task: Task) -> dict[str, nn.Module]:
    """The networks that a certificate compares, on the best device: what was trained or converted, and the castled one.

    Raises:
        ValueError: if there is nothing to castle, or a converted network still holds some of its host's softmax.
    """
    network = saved.network.to(best_device())
    if any(isinstance(module, ConvertedAttention) for module in network.modules()):
        later = {"converted": network, "castled": castle(network)}  # which refuses a blend below 1
        model = saved.recipe.settings.model
        if model.weights is None and not is_huggingface(model.name):
            return later  # it was trained from nothing, and has no original
        task.build_network(training=True)  # makes the original of its weights
        assert task.original is not None
        return {"original": task.original.to(best_device()), **later}
    if not has_castling_attention(network) or is_castled(network):
        raise ValueError(f"this {type(network).__name__} has no auxiliary branch: it is castled, or never had one")
    return {"with branch": network, "castled": castle(network)}
