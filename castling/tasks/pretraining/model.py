"""The masked autoencoder: a ViT sees some patches of a picture, and a decoder draws the others (He et al., CVPR 2022).

Nothing leaks from hidden patches: they leave the sequence before the first block, so that attention and linear layers
never meet them, and convolutions, which need the grid, see zeros in their places.
"""

from __future__ import annotations

from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from castling.attention.grid import gather_tokens, with_prefix
from castling.tasks.pretraining.decoder import Decoder, DecoderConfig, sine_positions
from castling.tasks.pretraining.patches import Patch, grid_of


class MaskedAutoencoder(nn.Module):
    """A ViT with a decoder behind it.

    Args:
        backbone: the ViT that is pretrained, of timm or ours, without a head.
        config: the decoder.

    Raises:
        ValueError: for a network whose tokens do not stay one a patch.

    Example:
        >>> import timm
        >>> options = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
        >>> vit = timm.create_model("castling_deit_tiny_patch16_224", num_classes=0, **options)
        >>> network, images = MaskedAutoencoder(vit, DecoderConfig(16, 1, 2)), torch.zeros(2, 3, 32, 32)
        >>> network(images)["features"].shape
        torch.Size([2, 16, 16])
        >>> network(images, torch.tensor([[0, 3, 7, 9]] * 2))["patches"].shape
        torch.Size([2, 16, 192])
    """

    def __init__(self, backbone: nn.Module, config: DecoderConfig) -> None:
        super().__init__()
        vit: Any = backbone
        if not isinstance(vit, VisionTransformer):
            raise ValueError(
                "masked pretraining needs a vision transformer whose tokens stay one a patch, such as castling_deit_* "
                f"or vit_*; got {type(vit).__name__}"
            )
        self.backbone: Any = vit
        height, width = vit.patch_embed.patch_size
        self.patch_size: Patch = (int(height), int(width))
        patch_dim = height * width * vit.in_chans
        self.decoder = Decoder(config, vit.embed_dim, patch_dim, vit.num_prefix_tokens)

    def forward(self, images: Tensor, visible: Tensor | None = None) -> dict[str, Tensor]:
        """Look at pictures, or at parts of them.

        Args:
            images: pictures `(B, C, H, W)`.
            visible: the places of the patches that are seen, `(B, Nv)`, as many in every picture; None for all.

        Returns:
            For parts: all patches as they are drawn, `patches` `(B, N, height * width * C)`. For whole pictures: what
            the network is pretrained for, `features` `(B, N, C)`, the normalised tokens of all patches.
        """
        tokens = self.encode(images, visible)
        if visible is None:
            return {"features": tokens[:, self.backbone.num_prefix_tokens :]}
        return {"patches": self.decoder(tokens, visible, grid_of(images, self.patch_size)).float()}

    def encode(self, images: Tensor, visible: Tensor | None = None) -> Tensor:
        """Normalised tokens of the prefix and of the patches that are seen, `(B, prefix + Nv, C)`."""
        vit = self.backbone
        tokens = vit._pos_embed(vit.patch_embed(images))
        if visible is not None:
            tokens = gather_tokens(tokens, with_prefix(visible, vit.num_prefix_tokens))
            if hasattr(vit.patch_embed, "grid_note"):  # ours: timm's own have no convolutions on the grid
                vit.patch_embed.grid_note.visible = visible  # until the patches of the next picture
        tokens = vit.blocks(vit.norm_pre(tokens))
        encoded: Tensor = vit.fc_norm(vit.norm(tokens))  # it has one of them
        return encoded

    @torch.no_grad()
    def start_positions(self) -> None:
        """Let the position embeddings of the ViT start as sines, which say more than small noise; they are learned."""
        positions = self.backbone.pos_embed
        if positions is not None:
            sines = sine_positions(self.backbone.patch_embed.grid_size, positions.shape[-1])
            positions[:, -len(sines) :] = sines.to(positions)

    def set_input_size(self, img_size: tuple[int, int]) -> None:
        """Resample position embeddings to another picture size; those of the decoder fit all."""
        self.backbone.set_input_size(img_size=img_size)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that are not decayed."""
        return {f"backbone.{name}" for name in self.backbone.no_weight_decay()} | {"decoder.mask_token"}
