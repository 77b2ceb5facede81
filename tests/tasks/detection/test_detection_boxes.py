import torch
from tiny_detector import all_points, level_sizes, random_boxes

from castling.tasks.detection.boxes import decode, encode, mean_distances, points_of


def test_points_are_the_centres_of_cells_row_by_row_and_level_by_level():
    points, strides = points_of(level_sizes(96, 416))
    wanted = [
        (8.0 * 2**level * (x + 0.5), 8.0 * 2**level * (y + 0.5), 8.0 * 2**level)
        for level in range(4)
        for y in range(-(-96 // (8 * 2**level)))
        for x in range(-(-416 // (8 * 2**level)))
    ]
    assert torch.equal(torch.cat([points, strides[:, None]], 1), torch.tensor(wanted))


def test_decoding_is_the_inverse_of_encoding():
    points, strides = all_points(96, 64)
    boxes = random_boxes(len(points))
    torch.testing.assert_close(decode(encode(boxes, points, strides), points, strides), boxes)


def test_a_box_around_a_point_has_its_distances_in_strides():
    [distances] = encode(torch.tensor([[4.0, 8.0, 36.0, 20.0]]), torch.tensor([[20.0, 12.0]]), torch.tensor([8.0]))
    assert distances.tolist() == [2.0, 0.5, 2.0, 1.0]


def test_a_sharp_distribution_is_its_value_and_one_over_two_values_lies_between():
    logits = torch.full((2, 8), -1e4)
    logits[0, 5] = logits[1, 2] = logits[1, 3] = 0
    torch.testing.assert_close(mean_distances(logits), torch.tensor([5.0, 2.5]))
