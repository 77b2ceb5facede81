import torch

from castling.tasks.classification.judge import LabelJudge
from castling.tasks.classification.metrics import Accuracy


def test_judge_shows_pictures_and_counts_classes():
    judge, batch = LabelJudge(), {"image": torch.eye(3)[[0, 1, 1]], "target": torch.tensor([0, 1, 2])}
    outputs = judge.forward(lambda images: 2 * images, batch)
    assert torch.equal(outputs, 2 * batch["image"])
    meter = judge.meter()
    assert isinstance(meter, Accuracy)
    meter.update(outputs, batch)
    assert meter.result()[0].shown == "66.67 %"
    assert judge.meter().sums.tolist() == [0, 0, 0, 0]


def test_agreement_is_the_same_choice_for_each_picture():
    outputs = torch.tensor([[1.0, 2.0], [1.0, 2.0], [3.0, 0.0]])
    others = torch.tensor([[0.0, 9.0], [9.0, 0.0], [0.1, 0.0]])
    found = LabelJudge().agreement(outputs, others, {})
    assert found.tolist() == [1.0, 0.0, 1.0]
    assert found.dtype == torch.float32
