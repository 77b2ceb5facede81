import math

import pytest
import torch

from castling.tasks.classification.distillation import DistillationConfig
from castling.tasks.classification.losses import label_loss, teacher_loss, total_loss


def config(**options):
    return DistillationConfig(logits="folder", **options)


def probabilities(logits):
    """Softmax in plain Python: a list of rows."""
    rows = []
    for row in logits.tolist():
        weights = [math.exp(value - max(row)) for value in row]
        rows.append([weight / sum(weights) for weight in weights])
    return rows


def cross_entropy(logits, wanted):
    """Mean of `-sum(wanted * log(probability))` over the rows."""
    pairs = zip(probabilities(logits), wanted, strict=True)
    losses = [-sum(w * math.log(p) for p, w in zip(row, want, strict=True)) for row, want in pairs]
    return sum(losses) / len(losses)


def one_hot(targets, classes):
    return [[float(place == target) for place in range(classes)] for target in targets.tolist()]


@pytest.fixture
def logits():
    return 3 * torch.randn(6, 4)


@pytest.fixture
def teacher_logits():
    return 3 * torch.randn(6, 4)


@pytest.fixture
def targets():
    return torch.tensor([0, 1, 2, 3, 3, 0])


def test_label_loss_is_the_cross_entropy(logits, targets):
    assert label_loss(logits, targets).item() == pytest.approx(cross_entropy(logits, one_hot(targets, 4)), rel=1e-5)


def test_smoothing_gives_a_share_to_all_classes(logits, targets):
    wanted = [[0.8 * value + 0.2 / 4 for value in row] for row in one_hot(targets, 4)]
    assert label_loss(logits, targets, 0.2).item() == pytest.approx(cross_entropy(logits, wanted), rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_mixed_targets_are_probabilities_that_are_smoothed_already(logits, smoothing):
    wanted = torch.rand(6, 4)
    wanted /= wanted.sum(-1, keepdim=True)
    found = label_loss(logits, wanted, smoothing).item()
    assert found == pytest.approx(cross_entropy(logits, wanted.tolist()), rel=1e-5)


@pytest.mark.parametrize("kind", ["label", "hard", "soft"])
def test_losses_are_computed_in_single_precision(kind, logits, teacher_logits, targets):
    half = logits.half()
    if kind == "label":
        low, full = label_loss(half, targets, 0.1), label_loss(half.float(), targets, 0.1)
    else:
        low = teacher_loss(half, teacher_logits.half(), config(kind=kind))
        full = teacher_loss(half.float(), teacher_logits.half().float(), config(kind=kind))
    assert low.dtype == torch.float32
    assert torch.equal(low, full)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_soft_distillation_is_the_divergence_at_a_temperature(logits, teacher_logits, temperature):
    student, teacher = probabilities(logits / temperature), probabilities(teacher_logits / temperature)
    divergence = sum(
        q * (math.log(q) - math.log(p))
        for rows in zip(student, teacher, strict=True)
        for p, q in zip(*rows, strict=True)
    )
    found = teacher_loss(logits, teacher_logits, config(kind="soft", temperature=temperature))
    assert found.item() == pytest.approx(temperature**2 * divergence / 6, rel=1e-4)
    theirs = torch.nn.KLDivLoss(reduction="batchmean")(
        (logits / temperature).log_softmax(-1), (teacher_logits / temperature).softmax(-1)
    )
    assert found.item() == pytest.approx(temperature**2 * theirs.item(), rel=1e-4)


def test_soft_distillation_is_zero_where_both_agree(logits):
    assert teacher_loss(logits, logits + 5, config(kind="soft")).item() == pytest.approx(0, abs=1e-5)


def test_hard_distillation_is_the_cross_entropy_with_the_choice_of_the_teacher(logits, teacher_logits):
    chosen = [[float(value == max(row)) for value in row] for row in teacher_logits.tolist()]
    expected = cross_entropy(logits, chosen)
    for temperature in (1.0, 7.0):
        found = teacher_loss(logits, teacher_logits, config(kind="hard", temperature=temperature))
        assert found.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_alpha_is_the_share_of_the_teacher(logits, teacher_logits, targets, kind, alpha):
    how = config(kind=kind, alpha=alpha)
    found = total_loss(logits, targets, 0.1, teacher_logits, how)
    by_label, by_teacher = label_loss(logits, targets, 0.1), teacher_loss(logits, teacher_logits, how)
    assert found.total.item() == pytest.approx((1 - alpha) * by_label.item() + alpha * by_teacher.item(), rel=1e-5)
    assert torch.equal(found.parts["label_loss"], by_label)
    assert torch.equal(found.parts["teacher_loss"], by_teacher)


def test_of_two_heads_the_first_follows_the_label_and_the_second_the_teacher(logits, teacher_logits, targets):
    how, second = config(kind="soft"), torch.randn(6, 4)
    found = total_loss((logits, second), targets, 0.1, teacher_logits, how)
    assert torch.equal(found.parts["label_loss"], label_loss(logits, targets, 0.1))
    assert torch.equal(found.parts["teacher_loss"], teacher_loss(second, teacher_logits, how))


def test_without_a_teacher_there_is_only_the_loss_of_the_labels(logits, targets):
    found = total_loss(logits, targets, 0.1)
    assert found.parts == {}
    assert torch.equal(found.total, label_loss(logits, targets, 0.1))
    assert torch.equal(total_loss((logits, torch.randn(6, 4)), targets, 0.1).total, found.total)


def test_gradients_reach_both_heads(logits, teacher_logits, targets):
    heads = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    total_loss(heads, targets, 0.0, teacher_logits, config(alpha=0.25)).total.backward()
    choices = teacher_logits.argmax(-1)
    for head, share, wanted in zip(heads, (0.75, 0.25), (targets, choices), strict=True):
        expected = share * (logits.softmax(-1) - torch.tensor(one_hot(wanted, 4))) / 6
        assert torch.allclose(head.grad, expected, atol=1e-6)
