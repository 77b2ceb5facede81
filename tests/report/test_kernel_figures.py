import torch

from castling.attention.reference import angular_kernel
from castling.report.kernel_figures import draw_expansion, draw_feature_space, scale_to_features


def test_scaling_keeps_the_kernels_distances():
    points = torch.randn(30, 2, dtype=torch.float64)
    similarity = angular_kernel(points, points)
    features = scale_to_features(similarity, num_dims=30)
    expected = 2 * (1 - similarity)  # Eq. 7
    distances = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist") ** 2
    torch.testing.assert_close(distances, expected, atol=1e-6, rtol=0)


def test_leading_dimensions_come_first():
    points = torch.randn(50, 2, dtype=torch.float64)
    spread = scale_to_features(angular_kernel(points, points)).var(0)
    assert spread.shape == (3,)
    assert spread.tolist() == sorted(spread.tolist(), reverse=True)


def test_pictures_are_written_into_a_new_folder(tmp_path):
    for draw in (draw_expansion, draw_feature_space):
        path = draw(tmp_path / "new" / f"{draw.__name__}.png")
        assert path.read_bytes().startswith(b"\x89PNG")
