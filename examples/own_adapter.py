"""Convert a network of your own: an adapter is the host's class, a stand-in with the host's `forward`, and a name."""

import torch
from torch import Tensor, nn

from castling import AttentionConfig, castle, convert, preview, set_blend
from castling.conversion import ConvertedAttention
from castling.conversion.adapters import Adapter, Site, register_adapter


class MyAttention(nn.Module):
    """The attention of your network, as it is."""

    def __init__(self, dim: int, heads: int, temperature: float | None = None) -> None:
        super().__init__()
        self.heads, self.temperature = heads, temperature
        self.to_q, self.to_kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Attend among tokens `(B, N, dim)`."""
        q = self.to_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.to_kv(x).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scale = self.temperature or q.shape[-1] ** -0.5
        return self.to_out(((scale * q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))


class MyStandIn(ConvertedAttention):
    """The same with `self.attend` in the middle. All layers of the host are here, under the names they have there."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend among tokens `(B, N, dim)`: q, k and v stay `(B, N, heads, width)`, without a transpose."""
        q = self.to_q(x).unflatten(-1, (self.num_heads, -1))
        k, v = self.to_kv(x).unflatten(-1, (2, self.num_heads, -1)).unbind(2)
        return self.to_out(self.attend(q, k, v).flatten(2))


def build(site: Site, config: AttentionConfig) -> ConvertedAttention:
    """Make the stand-in of one attention; the attention itself stays as it is."""
    return MyStandIn(site.module, site.module.heads, config)


def refuses(site: Site, config: AttentionConfig) -> str | None:
    """Name what the stand-in does not know, instead of leaving it out."""
    return "temperature" if site.module.temperature is not None else None


if __name__ == "__main__":
    register_adapter(Adapter("my network", (MyAttention,), build, refuses))
    model = nn.Sequential(MyAttention(32, 4), nn.ReLU(), MyAttention(32, 4))
    x = torch.randn(2, 64, 32)
    before = model(x)
    print(preview(model))
    convert(model)
    assert torch.allclose(model(x), before, atol=1e-5, rtol=0)  # train it from here, while the blend goes to 1
    set_blend(model, 1)
    print(castle(model)(x).shape)
    print(preview(nn.Sequential(MyAttention(32, 4, temperature=1.0))))
