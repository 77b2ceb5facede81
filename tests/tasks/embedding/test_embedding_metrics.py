import pickle

import pytest
import torch

from castling.measure.metric import as_values
from castling.tasks.embedding.metrics import OutputError

IMAGES = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
FOUND = IMAGES + 0.3 * torch.randn(30, 4, generator=torch.Generator().manual_seed(1))


def wanted(images):
    return 2 * images


def measured(*parts, outputs=2 * FOUND):
    meter = OutputError(wanted)
    for part in parts or [slice(None)]:
        meter.update(outputs[part], {"image": IMAGES[part]})
    return meter


def test_error_is_relative_and_the_cosine_is_the_mean():
    error, cosine = measured().result()
    difference = (2 * FOUND - 2 * IMAGES).square().sum() / (2 * IMAGES).square().sum()
    assert error.value == pytest.approx(difference.item(), rel=1e-5)
    angles = (FOUND * IMAGES).sum(1) / FOUND.norm(dim=1) / IMAGES.norm(dim=1)
    assert cosine.value == pytest.approx(angles.mean().item(), rel=1e-5)
    assert 0 < error.value < 1
    assert 0 < cosine.value < 1


def test_less_error_decides():
    described = [(metric.name, metric.unit, metric.higher_is_better) for metric in measured().result()]
    assert described == [("error", "", False), ("cosine", "", True)]


@pytest.mark.parametrize(("factor", "error", "cosine"), [(1, 0, 1), (0, 1, 0), (-1, 4, -1), (3, 4, 1)])
def test_what_is_wanted_has_no_error_and_nothing_has_the_error_one(factor, error, cosine):
    found = as_values(measured(outputs=factor * 2 * IMAGES).result())
    assert found == pytest.approx({"error": error, "cosine": cosine}, abs=1e-6)


def test_meters_of_several_processes_are_one_over_all():
    first, second, nothing = measured(slice(7)), measured(slice(7, 20), slice(20, 30)), OutputError(wanted)
    for other in (second, nothing):
        first.merge(pickle.loads(pickle.dumps(other)))  # as it is gathered
    assert as_values(first.result()) == pytest.approx(as_values(measured().result()), rel=1e-6)


def test_meter_travels_without_the_network():
    meter = measured()
    meter.wanted = lambda images: images  # which could not be sent
    copied = pickle.loads(pickle.dumps(meter))
    assert copied.wanted is None
    assert copied.result() == meter.result()


def test_outputs_of_any_shape_and_precision_are_compared():
    outputs, images = (2 * FOUND).reshape(30, 2, 2), IMAGES.reshape(30, 2, 2)
    meter = OutputError(wanted)
    meter.update(outputs.bfloat16().float(), {"image": images})
    low = OutputError(wanted)
    low.update(outputs.bfloat16(), {"image": images})
    assert low.result() == meter.result()
    assert as_values(low.result()) == pytest.approx(as_values(measured().result()), rel=0.05)


def test_nothing_readable_is_an_error():
    with pytest.raises(ValueError, match="no readable picture"):
        OutputError(wanted).result()
