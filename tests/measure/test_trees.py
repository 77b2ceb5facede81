from collections import OrderedDict

import pytest
import torch

from castling.measure.trees import absolute_differences, leaves, like, named_leaves

BOXES, LOW, HIGH = torch.zeros(2, 4), torch.ones(1), torch.full((1, 2), 3.0)
TREE = {"boxes": BOXES, "levels": [LOW, {"high": HIGH}], "nothing": None}


def test_leaves_are_named_by_the_way_to_them_in_order():
    found = named_leaves(TREE)
    assert list(found) == ["boxes", "levels.0", "levels.1.high"]
    assert all(a is b for a, b in zip(leaves(TREE), (BOXES, LOW, HIGH), strict=True))


@pytest.mark.parametrize("tree", [[LOW, HIGH], (LOW, HIGH), OrderedDict([("0", LOW), ("1", HIGH)])])
def test_lists_tuples_and_mappings_are_trees(tree):
    assert list(named_leaves(tree)) == ["0", "1"]


def test_a_lone_tensor_has_a_name():
    assert list(named_leaves(LOW)) == ["output"]


def test_what_holds_something_else_is_refused():
    with pytest.raises(ValueError, match="got float"):
        named_leaves({"boxes": BOXES, "score": 0.5})
    with pytest.raises(ValueError, match="got str"):
        named_leaves("boxes")


def test_a_tree_of_the_same_form_is_made_of_other_tensors():
    others = [torch.randn(2), torch.randn(3), torch.randn(4)]
    found = like(TREE, others)
    assert list(found) == ["boxes", "levels", "nothing"]
    assert found["nothing"] is None
    assert all(a is b for a, b in zip(leaves(found), others, strict=True))
    assert like(LOW, [HIGH]) is HIGH


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_a_tree_is_made_of_neither_more_nor_fewer_tensors(count):
    with pytest.raises(ValueError, match=f"a tree of 3 tensors cannot be made of {count}"):
        like(TREE, [LOW] * count)


def test_differences_are_those_of_every_number_of_every_leaf():
    other = {"boxes": BOXES - 2, "levels": [LOW + 0.5, {"high": HIGH}], "nothing": None}
    assert absolute_differences(TREE, other).tolist() == [2.0] * 8 + [0.5] + [0.0] * 2
    assert len(absolute_differences({}, {})) == 0


def test_differences_are_taken_in_float32():
    """65504 + 65504 has no place in half precision."""
    half = torch.full((1,), 65504.0, dtype=torch.float16)
    found = absolute_differences(half, -half)
    assert found.dtype == torch.float32
    assert found.tolist() == [2 * 65504.0]
    assert absolute_differences(torch.tensor([3]), torch.tensor([5])).tolist() == [2.0]


def test_a_number_that_is_none_is_a_difference_that_is_none():
    assert absolute_differences(torch.tensor([torch.nan, 1.0]), torch.ones(2)).isnan().tolist() == [True, False]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"boxes": BOXES, "levels": [LOW]}, r"outputs have other names: .*levels\.1\.high.* and \['boxes', 'levels.0'"),
        ({"boxes": BOXES, "levels": [LOW, {"high": HIGH.T}]}, r"levels\.1\.high has the shape \(1, 2\), not \(2, 1\)"),
        (LOW, r"other names: .* and \['output'\]"),
    ],
)
def test_trees_of_another_form_are_not_compared(other, message):
    with pytest.raises(ValueError, match=message):
        absolute_differences(TREE, other)
