import pytest
import torch

from castling.bench.linear_probe import fit_linear_probe, linear_probe_accuracy


def clouds(num_classes=4, count=50, dim=6, spread=1.0):
    made = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(num_classes, dim, generator=made)
    labels = torch.arange(num_classes).repeat(count)
    return centres[labels] + spread * torch.randn(len(labels), dim, generator=made), labels


def test_it_is_scikit_learns_regression():
    linear_model = pytest.importorskip("sklearn.linear_model")
    features, labels = clouds(spread=2.0)
    layer, mean, spread = fit_linear_probe(features, labels, penalty=1e-2)
    inputs = ((features.double() - mean) / spread).numpy()
    other = linear_model.LogisticRegression(C=1 / (1e-2 * len(features)), tol=1e-10, max_iter=10_000)
    other.fit(inputs, labels.numpy())
    ours = layer(torch.from_numpy(inputs)).softmax(-1).detach()
    torch.testing.assert_close(ours, torch.from_numpy(other.predict_proba(inputs)), atol=1e-4, rtol=0)


def test_features_that_tell_are_worth_more_than_those_that_do_not():
    features, labels = clouds(spread=0.3)
    known, asked = (features[:100], labels[:100]), (features[100:], labels[100:])
    assert linear_probe_accuracy(*known, *asked) == 1
    noise = torch.randn(len(labels), 6)
    assert linear_probe_accuracy(noise[:100], labels[:100], noise[100:], labels[100:]) < 0.6


def test_scales_and_constant_features_do_not_matter():
    features, labels = clouds(spread=1.5)
    scaled = torch.cat([features * 1e4 + 7, torch.ones(len(labels), 1)], dim=1)
    found = [linear_probe_accuracy(some[:100], labels[:100], some[100:], labels[100:]) for some in (features, scaled)]
    assert found[0] == pytest.approx(found[1], abs=0.02)


def test_it_learns_inside_of_no_grad_too():
    features, labels = clouds()
    with torch.no_grad():
        assert linear_probe_accuracy(features, labels, features, labels) > 0.8


def test_errors():
    features, labels = clouds()
    with pytest.raises(ValueError, match="penalty must be at least 0; got -1"):
        linear_probe_accuracy(features, labels, features, labels, penalty=-1)
    with pytest.raises(ValueError, match="a probe needs examples to learn from and to ask; got 200 and 0"):
        linear_probe_accuracy(features, labels, features[:0], labels[:0])
