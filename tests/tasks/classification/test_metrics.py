import pickle

import pytest
import torch

from castling.measure.metric import as_values
from castling.tasks.classification.metrics import Accuracy


def counted(*batches):
    accuracy = Accuracy()
    for logits, targets in batches:
        accuracy.update(logits, {"target": targets})
    return accuracy


def values(*batches):
    return as_values(counted(*batches).result())


@pytest.fixture
def batch():
    logits, targets = torch.randn(60, 12), torch.randint(12, (60,))
    logits[torch.arange(60), targets] += 1.0  # better than chance
    return logits, targets


def test_metrics_are_those_of_scikit_learn(batch):
    metrics = pytest.importorskip("sklearn.metrics")
    logits, targets = batch
    found = values(batch)
    for name, k in (("top1", 1), ("top5", 5)):
        expected = metrics.top_k_accuracy_score(targets.numpy(), logits.numpy(), k=k, labels=range(12))
        assert found[name] == pytest.approx(expected)
    expected = metrics.log_loss(targets.numpy(), logits.double().softmax(-1).numpy(), labels=range(12))
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    assert 0 < found["top1"] < found["top5"] < 1


def test_top1_decides_and_less_loss_is_better(batch):
    found = counted(batch).result()
    wanted = [("top1", "%", True), ("top5", "%", True), ("loss", "", False)]
    assert [(metric.name, metric.unit, metric.higher_is_better) for metric in found] == wanted


def test_batches_add_up(batch):
    logits, targets = batch
    assert values((logits[:7], targets[:7]), (logits[7:], targets[7:])) == pytest.approx(values(batch))


def test_processes_add_up(batch):
    logits, targets = batch
    parts = [(logits[some], targets[some]) for some in (slice(20), slice(20, 21), slice(21, 60))]
    first, *others = (pickle.loads(pickle.dumps(counted(part))) for part in parts)  # as they are gathered
    for other in [*others, Accuracy()]:  # the last process had nothing to look at
        first.merge(other)
    assert as_values(first.result()) == pytest.approx(values(batch), rel=1e-6)


def test_fewer_than_five_classes():
    found = values((torch.eye(3), torch.tensor([0, 1, 0])))
    assert found["top1"] == pytest.approx(2 / 3)
    assert found["top5"] == 1.0


def test_half_precision_is_counted_in_single_precision(batch):
    logits, targets = batch[0].bfloat16(), batch[1]
    assert values((logits, targets)) == values((logits.float(), targets))


def test_nothing_readable_is_an_error():
    with pytest.raises(ValueError, match="no readable picture"):
        Accuracy().result()
