from __future__ import annotations

import pytest
import torch

from castling.bench.neighbours import knn_accuracy


def test_near_votes_count_more():
    known = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    labels = torch.tensor([0, 1, 1])
    asked = torch.tensor([[1.0, 0.1]])
    assert knn_accuracy(known, labels, asked, torch.tensor([0]), k=3) == 1.0


def test_directions_alone_decide():
    torch.manual_seed(0)
    labels = torch.arange(40) % 4
    known = torch.eye(4)[labels] + 0.1 * torch.randn(40, 4)
    sizes = torch.rand(40, 1) * 100
    assert knn_accuracy(known * sizes, labels, known, labels, k=5) == 1.0
    assert knn_accuracy(known, labels, known, (labels + 1) % 4, k=5) == 0.0


@pytest.mark.parametrize("k", [0, 4])
def test_number_of_neighbours_must_fit(k):
    with pytest.raises(ValueError, match=f"between 1 and the 3 known examples; got {k}"):
        knn_accuracy(torch.ones(3, 2), torch.zeros(3).long(), torch.ones(1, 2), torch.zeros(1).long(), k=k)


def test_nothing_asked_is_an_error():
    with pytest.raises(ValueError, match="no example"):
        knn_accuracy(torch.ones(3, 2), torch.zeros(3).long(), torch.ones(0, 2), torch.zeros(0).long(), k=1)
