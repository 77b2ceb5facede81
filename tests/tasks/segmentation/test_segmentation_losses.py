import math

import pytest
import torch
from tiny_segmenter import DECODERS, SIZE, tiny_config, tiny_segmenter

from castling.tasks.segmentation.losses import IGNORE, masks_of, segmentation_losses

HEIGHT, WIDTH = SIZE
MASK2FORMER = DECODERS[1:]


def some_labels(batch=2):
    """Blocks of classes, with ignored pixels among them."""
    labels = torch.randint(0, 3, (batch, HEIGHT // 16, WIDTH // 16)).repeat_interleave(16, 1).repeat_interleave(16, 2)
    labels[:, :5, 7:40] = IGNORE
    return labels


def nothing(batch=2):
    return torch.full((batch, HEIGHT, WIDTH), IGNORE)


def slow_pixel_loss(logits, labels):
    """Pixel by pixel, with bilinear weights by hand."""
    batch, _, h, w = logits.shape
    height, width = labels.shape[1:]
    total, count = 0.0, 0
    for picture in range(batch):
        for row in range(height):
            for column in range(width):
                if labels[picture, row, column] == IGNORE:
                    continue
                y, x = max((row + 0.5) * h / height - 0.5, 0), max((column + 0.5) * w / width - 0.5, 0)
                top, left = int(y), int(x)
                bottom, right = min(top + 1, h - 1), min(left + 1, w - 1)
                dy, dx = y - top, x - left
                values = (1 - dy) * (1 - dx) * logits[picture, :, top, left] + (1 - dy) * dx * logits[
                    picture, :, top, right
                ]
                values = values + dy * (1 - dx) * logits[picture, :, bottom, left]
                values = values + dy * dx * logits[picture, :, bottom, right]
                total = total - values.log_softmax(0)[labels[picture, row, column]]
                count += 1
    return total / count


def test_cross_entropy_of_the_light_decoder_is_that_of_slow_loops():
    logits = torch.randn(2, 3, 2, 3, requires_grad=True)
    labels = torch.randint(0, 3, (2, 8, 12))
    labels[0, :3] = IGNORE
    losses = segmentation_losses({"logits": logits}, labels, tiny_config(), 3)
    wanted = slow_pixel_loss(logits, labels)
    torch.testing.assert_close(losses.total, wanted, rtol=1e-4, atol=1e-5)
    assert set(losses.parts) == {"cross_entropy"}
    found, slow = torch.autograd.grad(losses.total, logits)[0], torch.autograd.grad(wanted, logits)[0]
    torch.testing.assert_close(found, slow, rtol=1e-4, atol=1e-5)


def test_a_batch_without_labels_has_no_gradient_with_the_light_decoder():
    segmenter = tiny_segmenter()
    losses = segmentation_losses(segmenter(torch.randn(2, 3, *SIZE)), nothing(), segmenter.config, 3)
    losses.total.backward()
    assert float(losses.total.detach()) == 0
    assert all(not parameter.grad.any() for parameter in segmenter.parameters())


def test_masks_are_one_for_each_class_and_leave_ignored_pixels_out():
    labels = some_labels(3)
    labels[2] = IGNORE
    masks, classes = masks_of(labels, num_classes=3)
    assert [len(found) for found in classes] == [len(set(x.unique().tolist()) - {IGNORE}) for x in labels]
    assert masks[2].shape == (0, HEIGHT, WIDTH)
    for picture in range(2):
        torch.testing.assert_close(masks[picture].sum(0), (labels[picture] != IGNORE).float())
        for mask, one in zip(masks[picture], classes[picture], strict=True):
            assert labels[picture][mask.bool()].unique().tolist() == [int(one)]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("labels", ["some", "none", "one picture has none"])
@pytest.mark.parametrize(("decoder", "pixel_decoder"), DECODERS)
def test_losses_and_gradients_are_finite(decoder, pixel_decoder, labels, autocast):
    segmenter = tiny_segmenter(decoder, pixel_decoder)
    wanted = {"some": some_labels(), "none": nothing(), "one picture has none": some_labels()}[labels]
    if labels == "one picture has none":
        wanted[0] = IGNORE
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        losses = segmentation_losses(segmenter(torch.randn(2, 3, *SIZE)), wanted, segmenter.config, 3)
    assert losses.total.dtype == torch.float32
    losses.total.backward()
    assert losses.total.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in segmenter.parameters())
    torch.testing.assert_close(sum(losses.parts.values()), losses.total)


@pytest.mark.parametrize("value", [2.0, -1.5])
def test_losses_of_mask2former_are_its_weights_times_its_losses(value, monkeypatch):
    """Predictions that are known: every query has the same class, and the same mask at all places."""
    draw = torch.rand
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: 0.25 + draw(*shape) / 2)  # samples fade at the border
    config, layers, queries = tiny_config("mask2former"), 2, 5
    classes = torch.zeros(1, queries, 4)  # each of 3 classes, and none, with 1/4
    outputs = {"class_logits": [classes] * layers, "mask_logits": [torch.full((1, queries, 16, 24), value)] * layers}
    parts = segmentation_losses(outputs, torch.zeros(1, HEIGHT, WIDTH, dtype=torch.long), config, 3).parts
    p, points = 1 / (1 + math.exp(-value)), config.points
    wanted = {
        "cross_entropy": 2 * math.log(4),
        "mask": -5 * math.log(p),
        "dice": 5 * (1 - (2 * p * points + 1) / (p * points + points + 1)),
    }
    assert {name: float(part) for name, part in parts.items()} == pytest.approx(
        {name: layers * part for name, part in wanted.items()}, rel=1e-4
    )


def test_the_class_none_weighs_a_tenth():
    config = tiny_config("mask2former")
    masks = torch.full((1, 2, 16, 24), 10.0)
    classes = torch.tensor([[[8.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 3.0]]])  # the first is class 0, the second none
    outputs = {"class_logits": [classes], "mask_logits": [masks]}
    found = segmentation_losses(outputs, torch.zeros(1, HEIGHT, WIDTH, dtype=torch.long), config, 3).parts
    entropy = -classes[0].log_softmax(-1)
    wanted = 2 * (entropy[0, 0] + 0.1 * entropy[1, 3]) / 1.1
    torch.testing.assert_close(found["cross_entropy"], wanted)


def test_more_classes_than_queries_are_fine():
    segmenter = tiny_segmenter("mask2former", queries=2)
    losses = segmentation_losses(segmenter(torch.randn(2, 3, *SIZE)), some_labels(), segmenter.config, 3)
    assert losses.total.isfinite()


@pytest.mark.parametrize("decoder", ["fpn", "mask2former"])
def test_labels_of_another_shape_are_refused(decoder):
    with pytest.raises(ValueError, match=r"\(batch, height, width\); got \(2, 1, 64, 96\)"):
        segmentation_losses({}, some_labels()[:, None], tiny_config(decoder), 3)


def test_labels_that_are_no_class_are_refused():
    labels = some_labels()
    labels[1, 20, 20] = 7
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 2\], or be 255 .*; got 7"):
        masks_of(labels, num_classes=3)


@pytest.mark.slow
@pytest.mark.parametrize(("decoder", "pixel_decoder"), DECODERS)
def test_one_picture_is_learned(decoder, pixel_decoder):
    labels, images = some_labels(1), torch.randn(1, 3, *SIZE)
    segmenter = tiny_segmenter(decoder, pixel_decoder, points=256)
    optimizer = torch.optim.AdamW(segmenter.parameters(), lr=2e-3, weight_decay=0.0)
    totals = []
    for _ in range(150):
        losses = segmentation_losses(segmenter(images), labels, segmenter.config, 3)
        optimizer.zero_grad()
        losses.total.backward()
        torch.nn.utils.clip_grad_norm_(segmenter.parameters(), 1.0)
        optimizer.step()
        totals.append(float(losses.total.detach()))
    assert sum(totals[-10:]) < 0.5 * sum(totals[:10])
    scores = torch.nn.functional.interpolate(segmenter.eval()(images), SIZE, mode="bilinear")
    labelled = labels != IGNORE
    assert (scores.argmax(1) == labels)[labelled].float().mean() > 0.85
