import pytest
import torch

from castling.tasks.classification.metrics import Accuracy


def counted(*batches):
    accuracy = Accuracy()
    for logits, targets in batches:
        accuracy.add(logits, targets)
    return accuracy


@pytest.fixture
def batch():
    logits, targets = torch.randn(60, 12), torch.randint(12, (60,))
    logits[torch.arange(60), targets] += 1.0  # better than chance
    return logits, targets


def test_metrics_are_those_of_scikit_learn(batch):
    metrics = pytest.importorskip("sklearn.metrics")
    logits, targets = batch
    found = counted(batch).metrics()
    for name, k in (("top1", 1), ("top5", 5)):
        expected = metrics.top_k_accuracy_score(targets.numpy(), logits.numpy(), k=k, labels=range(12))
        assert found[name] == pytest.approx(expected)
    expected = metrics.log_loss(targets.numpy(), logits.double().softmax(-1).numpy(), labels=range(12))
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    assert 0 < found["top1"] < found["top5"] < 1


def test_batches_add_up(batch):
    logits, targets = batch
    parts = counted((logits[:7], targets[:7]), (logits[7:], targets[7:]))
    assert parts.metrics() == pytest.approx(counted(batch).metrics())


def test_processes_add_up(batch):
    logits, targets = batch
    halves = counted((logits[:20], targets[:20])), counted((logits[20:], targets[20:]))
    found = halves[0].metrics(lambda sums: sums + halves[1].sums)
    assert found == pytest.approx(counted(batch).metrics())


def test_unreadable_pictures_do_not_count(batch):
    logits, targets = batch
    marked = targets.clone()
    marked[::3] = -1
    kept = targets[marked >= 0], logits[marked >= 0]
    assert counted((logits, marked)).metrics() == pytest.approx(counted(kept[::-1]).metrics())
    nothing = logits, torch.full((60,), -1)
    assert counted(batch, nothing).metrics() == counted(batch).metrics()


def test_fewer_than_five_classes():
    found = counted((torch.eye(3), torch.tensor([0, 1, 0]))).metrics()
    assert found["top1"] == pytest.approx(2 / 3)
    assert found["top5"] == 1.0


def test_half_precision_is_counted_in_single_precision(batch):
    logits, targets = batch[0].bfloat16(), batch[1]
    assert counted((logits, targets)).metrics() == counted((logits.float(), targets)).metrics()


def test_nothing_readable_is_an_error():
    for accuracy in (Accuracy(), counted((torch.randn(2, 3), torch.tensor([-1, -1])))):
        with pytest.raises(ValueError, match="no readable picture"):
            accuracy.metrics()
