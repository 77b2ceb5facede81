"""Detection by nested loops over plain numbers, written from the papers' definitions."""

import math


def area(box):
    return (box[2] - box[0]) * (box[3] - box[1])


def iou(a, b):
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    union = area(a) + area(b) - shared
    return shared / union if union > 0 else 0.0


def giou(a, b):
    hull = area((min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3])))
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    union = area(a) + area(b) - max(width, 0) * max(height, 0)
    return iou(a, b) - (hull - union) / hull


def is_inside(point, box):
    return box[0] < point[0] < box[2] and box[1] < point[1] < box[3]


def centre(box):
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def varifocal(p, q):
    """VarifocalNet, Eq. 2, with alpha 0.75 and gamma 2."""
    if q > 0:
        return -q * (q * math.log(p) + (1 - q) * math.log(1 - p))
    return -0.75 * p**2 * math.log(1 - p)


def distribution_focal(logits, y):
    """Generalized Focal Loss, Eq. 6; PicoDet keeps the label 0.1 below the last value."""
    y = min(max(y, 0.0), len(logits) - 1 - 0.1)
    total = sum(math.exp(logit) for logit in logits)
    i = math.floor(y)
    return -((i + 1 - y) * math.log(math.exp(logits[i]) / total) + (y - i) * math.log(math.exp(logits[i + 1]) / total))


def smallest(values, count):
    """The keys of the smallest values; of equal ones the first."""
    finite = {key: value for key, value in values.items() if math.isfinite(value)}
    return sorted(finite, key=lambda key: (finite[key], key))[:count]


def settle(takers, liking):
    """Each point goes to the box of those that took it which it likes best; of equal ones to the first."""
    return {point: max(boxes, key=lambda box: (liking(box, point), -box)) for point, boxes in takers.items()}


def atss(points, strides, boxes, predicted, topk=9):
    """ATSS, Algorithm 1, with anchors of five strides."""
    takers = {}
    for number, box in enumerate(boxes):
        candidates = []
        for level in sorted(set(strides)):
            distances = {a: math.dist(centre(box), points[a]) ** 2 for a in range(len(points)) if strides[a] == level}
            candidates += smallest({a: round(d, 9) for a, d in distances.items()}, topk)
        overlaps = {a: iou(box, anchor(points[a], strides[a])) for a in candidates}
        mean = sum(overlaps.values()) / len(overlaps)
        deviation = math.sqrt(sum((x - mean) ** 2 for x in overlaps.values()) / max(len(overlaps) - 1, 1))
        for a, overlap in overlaps.items():
            if overlap >= mean + deviation and is_inside(points[a], box):
                takers.setdefault(a, []).append(number)
    owners = settle(takers, lambda box, a: iou(boxes[box], anchor(points[a], strides[a])))
    return {a: (box, iou(boxes[box], predicted[a])) for a, box in owners.items()}


def anchor(point, stride):
    return point[0] - 2.5 * stride, point[1] - 2.5 * stride, point[0] + 2.5 * stride, point[1] + 2.5 * stride


def task_aligned(points, boxes, labels, scores, predicted, topk=13):
    """TOOD, Eq. 2 and the normalisation of section 3.2, with alpha 1 and beta 6."""

    def alignment(box, a):
        return scores[a][labels[box]] * overlap(boxes[box], predicted[a]) ** 6

    takers = {}
    for number, box in enumerate(boxes):
        inside = {a: -alignment(number, a) for a in range(len(points)) if is_inside(points[a], box)}
        for a in smallest(inside, topk):
            takers.setdefault(a, []).append(number)
    owners = settle(takers, lambda box, a: iou(boxes[box], predicted[a]))
    found = {}
    for a, box in owners.items():
        others = [b for b, owner in owners.items() if owner == box]
        largest = max(alignment(box, b) for b in others)
        found[a] = box, alignment(box, a) / (largest + 1e-9) * max(iou(boxes[box], predicted[b]) for b in others)
    return found


def simota(points, strides, boxes, labels, scores, predicted, topk=10):
    """YOLOX, section 2.1, with PicoDet's cost of Eq. 3."""

    def is_central(a, box):
        return all(abs(points[a][i] - centre(box)[i]) < 2.5 * strides[a] for i in range(2))

    possible = [a for a in range(len(points)) if any(is_inside(points[a], box) or is_central(a, box) for box in boxes)]
    costs, takers = {}, {}
    for number, box in enumerate(boxes):
        overlaps = {a: overlap(box, predicted[a]) for a in possible}
        for a in possible:
            far = 0 if is_inside(points[a], box) and is_central(a, box) else 1e5
            qualities = [overlaps[a] if label == labels[number] else 0.0 for label in range(len(scores[a]))]
            by_class = math.fsum(varifocal(p, q) for p, q in zip(scores[a], qualities, strict=True))
            costs[number, a] = by_class + 6 * (1 - giou(box, predicted[a])) + far
        best = sorted((x for x in overlaps.values() if not math.isnan(x)), reverse=True)[:topk]
        for a in smallest({a: costs[number, a] for a in possible}, max(int(sum(best)), 1)):
            takers.setdefault(a, []).append(number)
    owners = settle(takers, lambda box, a: -costs[box, a])
    return {a: (box, iou(boxes[box], predicted[a])) for a, box in owners.items()}


def overlap(box, predicted):
    return math.nan if any(map(math.isnan, predicted)) else iou(box, predicted)


def select(scores, boxes, score, overlap, before, at_most):
    """Class-wise NMS: (score, label, box) of what is left, the likeliest first; of equal ones the first."""
    pairs = [
        (p, label, point)
        for point, row in enumerate(scores)
        for label, p in enumerate(row)
        if p > score and all(math.isfinite(x) for x in boxes[point])
    ]
    pairs = sorted(pairs, key=lambda pair: -pair[0])[:before]
    left = []
    for p, label, point in pairs:
        if all(label != other or iou(boxes[point], box) <= overlap for _, other, box in left):
            left.append((p, label, boxes[point]))
    return left[:at_most]
