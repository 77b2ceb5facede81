import math

import pytest
import torch

from castling.tasks.pretraining.losses import drawing_loss, picture_errors
from castling.tasks.pretraining.metrics import DrawingError

PATCH = (4, 4)


def slow_error(drawn, image, visible, normalised):
    """Patch by patch and number by number, for one picture."""
    errors = []
    for place in range(6):
        row, column = divmod(place, 3)
        if place in visible:
            continue
        cut = image[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
        wanted = [float(cut[channel, y, x]) for y in range(4) for x in range(4) for channel in range(3)]
        if normalised:
            mean = sum(wanted) / 48
            variance = sum((value - mean) ** 2 for value in wanted) / 47
            wanted = [(value - mean) / math.sqrt(variance + 1e-6) for value in wanted]
        errors.append(sum((float(a) - b) ** 2 for a, b in zip(drawn[place], wanted, strict=True)) / 48)
    return sum(errors) / len(errors)


@pytest.fixture
def batch():
    return {"image": torch.randn(3, 3, 8, 12), "visible": torch.tensor([[0, 5], [1, 2], [3, 4]])}


@pytest.mark.parametrize("normalised", [True, False])
def test_only_hidden_patches_count(batch, normalised):
    drawn = torch.randn(3, 6, 48)
    wanted = [
        slow_error(*one, normalised) for one in zip(drawn, batch["image"], batch["visible"].tolist(), strict=True)
    ]
    arguments = (batch["image"], batch["visible"], PATCH, normalised)
    assert picture_errors(drawn, *arguments).tolist() == pytest.approx(wanted, rel=1e-4)
    loss, parts = drawing_loss(drawn, *arguments)
    assert (loss.item(), parts) == (pytest.approx(sum(wanted) / 3, rel=1e-4), {})
    changed = drawn.clone()
    for image, places in enumerate(batch["visible"].tolist()):
        changed[image, places] = 1e3
    assert torch.equal(drawing_loss(changed, *arguments).total, loss)


def test_processes_add_up_exactly(batch):
    drawn = torch.randn(3, 6, 48)
    whole, first, second = (DrawingError(PATCH, True) for _ in range(3))
    whole.update({"patches": drawn}, batch)
    for meter, some in ((first, slice(0, 2)), (second, slice(2, 3))):
        meter.update({"patches": drawn[some]}, {name: value[some] for name, value in batch.items()})
    first.merge(second)
    (found,), (wanted,) = first.result(), whole.result()
    assert found.value == pytest.approx(wanted.value, rel=1e-6)
    assert (found.name, found.unit, found.higher_is_better) == ("error", "", False)
    with pytest.raises(ValueError, match="no readable picture"):
        DrawingError(PATCH, True).result()
