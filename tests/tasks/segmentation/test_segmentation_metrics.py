"""Metrics equal an independent count, pixel by pixel, whatever the sizes, and ignored pixels count nowhere."""

import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from castling.measure.metric import as_values, headlines
from castling.tasks.segmentation.metrics import MeanIoU, confusion, judge, label_maps, resize_scores

NAMES = ["a", "b", "c", "d"]


def counted(pairs, num_classes):
    """The definitions, with sets of pixels."""
    truth = np.concatenate([one.ravel() for one, _ in pairs])
    found = np.concatenate([one.ravel() for _, one in pairs])
    pixels = [index for index in range(len(truth)) if truth[index] != 255]
    ious, accuracies, right = {}, [], 0
    for label in range(num_classes):
        there = {index for index in pixels if truth[index] == label}
        seen = {index for index in pixels if found[index] == label}
        right += len(there & seen)
        if there | seen:
            ious[label] = len(there & seen) / len(there | seen)
        if there:
            accuracies.append(len(there & seen) / len(there))
    return sum(ious.values()) / len(ious), sum(accuracies) / len(accuracies), right / len(pixels), ious


def batch_of(truths, stride=4):
    """A batch of pictures that are seen at their own size, with the truth as labels."""
    sizes = [truth.shape for truth in truths]
    height, width = (-(-max(sides) // 32) * 32 for sides in zip(*sizes, strict=True))
    labels = torch.full((len(truths), max(size[0] for size in sizes), max(size[1] for size in sizes)), 255)
    for place, truth in enumerate(truths):
        labels[place, : truth.shape[0], : truth.shape[1]] = torch.as_tensor(truth.astype(np.int64))
    size = torch.tensor(sizes)
    images = torch.zeros(len(truths), 3, height, width)
    return {"image": images, "labels": labels, "seen": size, "size": size, "index": torch.arange(len(truths))}


def random_batch(seed, sizes=((33, 45), (64, 31), (50, 50)), num_classes=4):
    rng = np.random.default_rng(seed)
    truths = [rng.choice([0, 1, 2, 255], size, p=[0.5, 0.3, 0.1, 0.1]) for size in sizes]
    batch = batch_of(truths)
    height, width = batch["image"].shape[-2:]
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(sizes), num_classes, height // 4, width // 4, generator=generator), batch


def test_metrics_equal_an_independent_count():
    scores, batch = random_batch(0)
    scores[:, 3] -= 100  # a class that is neither there nor seen
    meter = MeanIoU(NAMES)
    meter.update(scores, batch)
    pairs = [(picture.truth.numpy(), picture.found.numpy()) for picture in judge(scores, batch)]
    miou, macc, pacc, ious = counted(pairs, 4)
    values = as_values(meter.result())
    assert values["miou"] == pytest.approx(miou, abs=1e-12)
    assert values["macc"] == pytest.approx(macc, abs=1e-12)
    assert values["pacc"] == pytest.approx(pacc, abs=1e-12)
    assert {name: values.get(f"iou_of_{name}") for name in NAMES} == {
        **{NAMES[label]: pytest.approx(iou, abs=1e-12) for label, iou in ious.items()},
        "d": None,
    }


def test_a_class_that_is_seen_and_not_there_has_no_accuracy_and_an_iou_of_zero():
    truth = np.zeros((32, 32))
    scores = torch.zeros(1, 3, 8, 8)
    scores[:, 0, :, :4] = 1
    scores[:, 1, :, 4:] = 1
    meter = MeanIoU(NAMES[:3])
    meter.update(scores, batch_of([truth]))
    values = as_values(meter.result())
    assert values["iou_of_b"] == 0
    assert "iou_of_c" not in values
    assert values["miou"] == values["iou_of_a"] / 2
    assert values["macc"] == values["pacc"] == values["iou_of_a"]


def test_what_decides_comes_first_and_classes_are_details():
    scores, batch = random_batch(1)
    meter = MeanIoU(NAMES)
    meter.update(scores, batch)
    result = meter.result()
    assert [metric.name for metric in headlines(result)] == ["miou", "macc", "pacc"]
    assert result[0].higher_is_better


def test_ignored_pixels_count_nowhere():
    scores, batch = random_batch(2)
    meter, other = MeanIoU(NAMES), MeanIoU(NAMES)
    meter.update(scores, batch)
    elsewhere = {**batch, "labels": batch["labels"].clone()}
    there = torch.stack([F.pad(one, (0, 50 - one.shape[1], 0, 64 - one.shape[0])) for one in label_maps(scores, batch)])
    elsewhere["labels"][batch["labels"] == 255] = there[batch["labels"] == 255]  # had they counted, as right
    other.update(scores, elsewhere)
    assert int(meter.counts.sum()) == int((batch["labels"] != 255).sum())
    assert as_values(meter.result())["pacc"] < as_values(other.result())["pacc"]


def test_processes_add_their_counts():
    whole, parts = MeanIoU(NAMES), [MeanIoU(NAMES), MeanIoU(NAMES)]
    for number in range(4):
        pair = random_batch(number)
        whole.update(*pair)
        parts[number % 2].update(*pair)
    first, second = (pickle.loads(pickle.dumps(part)) for part in parts)
    first.merge(second)
    assert torch.equal(first.counts, whole.counts)
    assert first.counts.dtype == torch.int64
    assert first.result() == whole.result()


def test_nothing_to_count_is_an_error():
    meter = MeanIoU(NAMES)
    with pytest.raises(ValueError, match="no readable picture with a labelled pixel"):
        meter.result()
    meter.update(torch.zeros(1, 4, 8, 8), batch_of([np.full((32, 32), 255)]))
    with pytest.raises(ValueError, match="no readable picture with a labelled pixel"):
        meter.result()


def test_counts_are_exact_beyond_what_floats_hold():
    meter = MeanIoU(["a", "b"])
    meter.counts[0, 0] = 2**53
    other = MeanIoU(["a", "b"])
    other.counts += torch.tensor([[1, 0], [0, 1]])
    meter.merge(other)
    assert int(meter.counts[0, 0]) == 2**53 + 1


def test_confusion_is_symmetric_in_its_transpose():
    one, other = torch.randint(0, 4, (2, 20, 20))
    assert torch.equal(confusion(one, other, 4), confusion(other, one, 4).T)


def test_scores_are_resized_as_torch_does_where_cells_fit():
    scores = torch.randn(5, 16, 24)
    wanted = F.interpolate(scores[None, :, :10, :20], (77, 191), mode="bilinear", align_corners=False)[0]
    assert torch.allclose(resize_scores(scores, (64, 96), (40, 80), (77, 191)), wanted, atol=1e-5)


@pytest.mark.parametrize("seen", [(37, 50), (64, 33), (1, 1), (61, 96)])
@pytest.mark.parametrize("size", [(37, 50), (100, 41), (1, 1)])
def test_scores_are_where_their_pixels_are_though_a_cell_is_cut(seen, size):
    """Scores that grow by place say which place each pixel of the result was taken from."""
    rows = (torch.arange(16.0) * 4 + 1.5)[:, None].expand(16, 24)  # centres of cells, in pixels
    columns = (torch.arange(24.0) * 4 + 1.5).expand(16, 24)
    found = resize_scores(torch.stack([rows, columns]), (64, 96), seen, size)
    assert found.shape == (2, *size)
    for place in range(2):
        wanted = (torch.arange(size[place]) + 0.5) * seen[place] / size[place] - 0.5
        last = -(-seen[place] // 4) * 4 - 2.5  # centre of the last cell that has a pixel of the picture
        line = found[place][:, 0] if place == 0 else found[place][0]
        assert torch.allclose(line, wanted.clamp(1.5, last), atol=1e-3)


def test_padding_has_no_say():
    scores, batch = random_batch(3)
    maps = label_maps(scores, batch)
    for place, (height, width) in enumerate(batch["seen"].tolist()):
        scores[place, :, -(-height // 4) :] = 1e6 * torch.randn(1)
        scores[place, 1, :, -(-width // 4) :] = 1e6
    for before, after, size in zip(maps, label_maps(scores, batch), batch["size"].tolist(), strict=True):
        assert torch.equal(before, after)
        assert (list(before.shape), before.dtype) == (size, torch.int64)


def test_half_precision_is_measured_too():
    scores, batch = random_batch(4)
    meter = MeanIoU(NAMES)
    meter.update(scores.bfloat16(), batch)
    assert 0 < meter.result()[0].value < 1
