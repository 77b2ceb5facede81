import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from castling.tasks.segmentation.matcher import Matcher, assign

NAN, INF = math.nan, math.inf


def make_matcher(num_points=64):
    return Matcher(class_weight=2.0, mask_weight=5.0, dice_weight=5.0, num_points=num_points)


def pairs(found):
    return set(zip(*(part.tolist() for part in found), strict=True))


@pytest.mark.parametrize("shape", [(7, 3), (3, 7), (5, 5), (1, 1)])
def test_clean_costs_are_assigned_as_scipy_does_and_as_trying_all_would(shape):
    costs = torch.randn(shape)
    queries, masks = assign(costs)
    assert [queries.tolist(), masks.tolist()] == [list(part) for part in linear_sum_assignment(costs.numpy())]
    tall = costs if shape[0] >= shape[1] else costs.T
    least = min(
        sum(tall[row, column] for column, row in enumerate(rows))
        for rows in itertools.permutations(range(tall.shape[0]), tall.shape[1])
    )
    torch.testing.assert_close(costs[queries, masks].sum(), least)


@pytest.mark.parametrize("bad", [NAN, INF, -INF, 1e30, -NAN])
def test_a_bad_cost_is_taken_only_for_want_of_others(bad):
    costs = torch.tensor([[bad, 1.0], [2.0, bad], [3.0, 4.0]])
    assert pairs(assign(costs)) == {(0, 1), (1, 0)}
    assert pairs(assign(torch.tensor([[bad, 1.0], [bad, 2.0]]))) in ({(0, 1), (1, 0)}, {(0, 0), (1, 1)})


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_bad_costs_alone_still_give_an_assignment(bad):
    queries, masks = assign(torch.full((4, 2), bad))
    assert (len(queries), sorted(masks.tolist())) == (2, [0, 1])
    costs = torch.full((4, 2), bad)
    costs[2, 1] = 50.0
    assert (2, 1) in pairs(assign(costs))


def test_nothing_to_match_gives_empty_matches():
    for shape in ((4, 0), (0, 3)):
        queries, masks = assign(torch.zeros(shape))
        assert (queries.tolist(), masks.tolist()) == ([], [])
        assert queries.dtype == masks.dtype == torch.long


def slow_costs(masks, classes, wanted, labels, weights=(2.0, 5.0, 5.0)):
    """Of masks that are the same everywhere: whatever points are drawn, they see the same."""
    costs = np.zeros((len(masks), len(labels)))
    for query, mask in itertools.product(range(len(masks)), range(len(labels))):
        p, y = 1 / (1 + math.exp(-masks[query])), wanted[mask]
        entropy = -math.log(p) if y else -math.log(1 - p)
        points = 64
        dice = 1 - (2 * p * y * points + 1) / (p * points + y * points + 1)
        by_class = -float(classes[query].softmax(-1)[labels[mask]])
        costs[query, mask] = weights[0] * by_class + weights[1] * entropy + weights[2] * dice
    return costs


def test_costs_are_those_of_slow_loops():
    """Predictions of one value each, so that the random points do not matter; bilinear samples fade at the border."""
    values, wanted = [0.5, -1.0, 2.0], [1.0, 0.0]
    classes, labels = torch.randn(3, 5), torch.tensor([3, 1])
    matcher = make_matcher()
    masks = torch.tensor(values)[:, None, None].expand(3, 8, 8)
    targets = torch.tensor(wanted)[:, None, None].expand(2, 16, 16)
    inside = torch.rand(1, 64, 2) * 0.5 + 0.25
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "rand", lambda *shape, **_: inside)
        found = matcher.costs(masks, classes, targets, labels)
    np.testing.assert_allclose(found.numpy(), slow_costs(values, classes, wanted, labels.tolist()), rtol=1e-4)


def make_picture(num_masks=2, queries=5):
    masks = torch.rand(num_masks, 16, 16).round()
    return torch.randn(queries, 8, 8), torch.randn(queries, 4), masks, torch.arange(num_masks)


def test_queries_that_say_the_masks_are_matched_with_them():
    _, _, wanted, labels = make_picture(3)
    order = torch.tensor([4, 0, 2])  # the query of each mask
    masks, classes = torch.zeros(5, 16, 16), torch.zeros(5, 4)
    masks[order] = 20 * wanted - 10
    classes[order, labels] = 5.0
    ((queries, found),) = make_matcher()(masks[None], classes[None], [wanted], [labels])
    assert pairs((queries, found)) == {(4, 0), (0, 1), (2, 2)}


def test_pictures_without_masks_have_empty_matches_beside_others():
    masks, classes, wanted, labels = make_picture()
    both = torch.stack([masks, masks]), torch.stack([classes, classes])
    empty, full = make_matcher()(*both, [wanted[:0], wanted], [labels[:0], labels])
    assert [len(part) for part in (*empty, *full)] == [0, 0, 2, 2]


@pytest.mark.parametrize("bad", [NAN, INF, -INF, 3e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_that_are_no_numbers_are_survived_under_autocast_too(bad, dtype):
    masks, classes, wanted, labels = make_picture()
    masks[1], classes[2] = bad, bad
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ((queries, found),) = make_matcher()(masks[None].to(dtype), classes[None].to(dtype), [wanted], [labels])
    assert sorted(found.tolist()) == [0, 1]
    assert len(set(queries.tolist())) == 2
    assert not ({1} if bad == 3e38 else {1, 2}) & set(queries.tolist())  # equal logits are fine classes, however large
    all_bad = torch.full_like(masks, bad)[None], torch.full_like(classes, bad)[None]
    ((queries, found),) = make_matcher()(*all_bad, [wanted], [labels])
    assert sorted(found.tolist()) == [0, 1]


def test_costs_are_float32_under_autocast():
    picture = make_picture()
    torch.manual_seed(1)
    wanted = make_matcher().costs(*picture)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.manual_seed(1)
        seen = []
        matcher = make_matcher()
        costs = matcher.costs
        matcher.costs = lambda *given: seen.append(costs(*given)) or seen[-1]
        matcher(*(part[None] for part in picture[:2]), [picture[2]], [picture[3]])
    torch.testing.assert_close(seen[0], wanted, rtol=0, atol=0)
