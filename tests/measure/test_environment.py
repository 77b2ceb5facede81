import torch

from castling.measure.environment import describe_environment


def test_environment_names_versions_and_hardware():
    environment = describe_environment()
    assert environment["torch"] == torch.__version__
    assert all(isinstance(value, str) and value for value in environment.values())
