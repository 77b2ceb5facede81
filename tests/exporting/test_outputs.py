import pytest
import torch

from castling.exporting.outputs import filled, form_of, names_in

TREE = {"boxes": torch.zeros(2), "levels": [torch.zeros(1), (torch.zeros(3),)], "masks": None}


def test_a_form_is_filled_in_the_order_of_its_names():
    form = form_of(TREE)
    assert form == {"boxes": "boxes", "levels": ["levels.0", ["levels.1.0"]], "masks": None}
    assert names_in(form) == ("boxes", "levels.0", "levels.1.0")
    first, second, third = torch.ones(1), torch.ones(2), torch.ones(3)
    assert filled(form, [first, second, third]) == {"boxes": first, "levels": [second, [third]], "masks": None}


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c", "d"), ("a", "b", "a")])
def test_names_that_are_not_those_of_the_outputs_are_refused(names):
    with pytest.raises(ValueError, match=r"the network gives \['boxes', 'levels.0', 'levels.1.0'\]; got the names"):
        form_of(TREE, names)
