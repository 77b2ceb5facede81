"""Every decision of `forms`, pinned: who runs, on what, with how many images and tokens."""

import pytest
import torch

from castling.attention.forms import FEW_TOKENS, heads_at_once, in_place, prefix_joins_early, products_in_place


@pytest.fixture(params=["eager", "compile", "export"])
def runner(request, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: request.param != "eager")
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: request.param == "export")
    return request.param


def tokens(images=2, device="cpu", **options):
    return torch.empty(images, 16, 3, 8, device=device, **options)


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_only_several_images_on_a_cpu_are_computed_head_by_head_and_not_in_an_exported_graph(runner, device, images):
    expected = runner == "export" or device != "cpu" or images == 1
    assert heads_at_once(tokens(images, device)) is expected


def test_the_number_of_images_is_over_all_axes_in_front():
    assert heads_at_once(torch.empty(16, 3, 8))
    assert heads_at_once(torch.empty(1, 1, 16, 3, 8))
    assert not heads_at_once(torch.empty(1, 2, 16, 3, 8))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_writing_over_memory_is_for_eager_without_a_backward_pass(runner, device):
    plain, leaf = tokens(device=device), tokens(device=device, requires_grad=True)
    assert in_place(plain, plain) is (runner == "eager")
    assert not in_place(plain, leaf)
    with torch.no_grad():
        assert in_place(plain, leaf) is (runner == "eager")


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_products_are_written_in_place_on_a_cpu_only(runner, device):
    plain, leaf = tokens(device=device), tokens(device=device, requires_grad=True)
    assert products_in_place(plain, plain) is (runner == "eager" and device == "cpu")
    assert not products_in_place(plain, leaf)


def test_prefix_tokens_join_early_where_tokens_are_few_or_a_compiler_joins_them(runner):
    assert prefix_joins_early(FEW_TOKENS)
    assert prefix_joins_early(FEW_TOKENS + 1) is (runner != "eager")


class Questions(torch.nn.Module):
    """Answers as numbers, so that the graph that is made holds them."""

    def forward(self, x):
        return x + torch.tensor([heads_at_once(x), in_place(x), prefix_joins_early(5000)]).to(x.dtype)


@pytest.mark.usefixtures("fresh_compiler")
def test_compiler_and_exporter_are_recognised():
    x = torch.zeros(2, 5000, 1, 3)
    with torch.no_grad():
        assert Questions()(x)[0, 0, 0].tolist() == [0, 1, 0]
        assert torch.compile(Questions(), fullgraph=True, backend="eager")(x)[0, 0, 0].tolist() == [0, 0, 1]
        for strict in (True, False):
            program = torch.export.export(Questions(), (x,), strict=strict)
            assert program.module()(x)[0, 0, 0].tolist() == [1, 0, 1]
