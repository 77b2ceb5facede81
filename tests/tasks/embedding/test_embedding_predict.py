import json

import torch
from PIL import Image

from castling.tasks.embedding.predict import VectorPrediction, interpret_vectors
from castling.tasks.prediction import Seen


def test_outputs_are_flat_vectors_of_the_pictures():
    outputs = torch.arange(12.0).reshape(2, 3, 2).bfloat16()
    first, second = interpret_vectors(outputs, [Seen("a.png", (4, 4)), Seen("b.png", (4, 4))])
    assert (first.name, first.vector, first.error) == ("a.png", [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], None)
    assert (second.name, second.vector) == ("b.png", [6.0, 7.0, 8.0, 9.0, 10.0, 11.0])


def test_prediction_is_a_line_plain_values_and_a_picture():
    prediction = VectorPrediction("a.png", [0.123456, 2.0, -3.0, 4.0, 5.0])
    assert prediction.line() == "a.png: 5 numbers: 0.1235, 2, -3, 4, ..."
    assert json.loads(json.dumps(prediction.to_json())) == {
        "name": "a.png",
        "vector": [0.123456, 2.0, -3.0, 4.0, 5.0],
        "error": None,
    }
    drawn = prediction.draw(Image.new("L", (64, 64)))
    assert (drawn.mode, drawn.height > 64) == ("RGB", True)
