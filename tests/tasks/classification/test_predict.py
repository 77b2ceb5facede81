import json

import numpy as np
import pytest
import torch
from PIL import Image

from castling.tasks.classification.predict import LabelOptions, LabelPrediction, interpret_logits
from castling.tasks.prediction import Seen

LABELS = ["ape", "bee", "cat", "dog"]
LOGITS = torch.tensor([[0.5, 2.0, -1.0, 1.0], [3.0, 0.0, 1.0, 2.0]])
SEEN = [Seen("a.png", (4, 4)), Seen("b.png", (5, 3))]


def interpreted(**options):
    return interpret_logits(LABELS, LabelOptions(**options))(LOGITS, SEEN)


def test_labels_come_with_their_probabilities_best_first():
    first, second = interpreted()
    assert (first.name, second.name) == ("a.png", "b.png")
    assert (first.error, second.error) == (None, None)
    assert first.labels == ["bee", "dog", "ape", "cat"]
    assert second.labels == ["ape", "dog", "cat", "bee"]
    weights = np.exp([2.0, 1.0, 0.5, -1.0])
    assert first.probabilities == pytest.approx(weights / weights.sum(), abs=1e-6)


def test_half_precision_is_interpreted_in_single_precision():
    [found] = interpret_logits(LABELS, LabelOptions())(LOGITS[:1].bfloat16(), SEEN[:1])
    assert found == interpreted()[0]


@pytest.mark.parametrize(("top", "count"), [(1, 1), (3, 3), (4, 4), (99, 4)])
def test_top_is_how_many_classes_are_named(top, count):
    for found, everything in zip(interpreted(top=top), interpreted(top=4), strict=True):
        assert found.labels == everything.labels[:count]
        assert found.probabilities == everything.probabilities[:count]


@pytest.mark.parametrize("top", [0, -1])
def test_top_is_checked(top):
    with pytest.raises(ValueError, match=f"top must be at least 1; got {top}"):
        LabelOptions(top)


def test_prediction_is_a_line_plain_values_and_a_picture():
    prediction = LabelPrediction("a.png", ["cat", "dog"], [0.75, 0.25])
    assert prediction.line() == "a.png: cat 75.0 %, dog 25.0 %"
    assert json.loads(json.dumps(prediction.to_json())) == {
        "name": "a.png",
        "labels": ["cat", "dog"],
        "probabilities": [0.75, 0.25],
        "error": None,
    }
    drawn = prediction.draw(Image.new("L", (64, 64)))
    assert (drawn.mode, drawn.height > 64) == ("RGB", True)
