"""Which image sizes a network takes, and an error that names the nearest ones."""

from __future__ import annotations


def check_image_size(height: int, width: int, stride: int) -> None:
    """Refuse an image whose sides are not multiples of the stride.

    Raises:
        ValueError: names the nearest legal sizes.

    Example:
        >>> check_image_size(225, 224, stride=16)
        Traceback (most recent call last):
        ValueError: an image of 225 x 224 does not fit patches of 16; the nearest sizes are 224 x 224 and 240 x 224
    """
    if height % stride == 0 and width % stride == 0 and min(height, width) >= stride:
        return
    below, above = (
        " x ".join(str(max(stride, side // stride * stride + (up if side % stride else 0))) for side in (height, width))
        for up in (0, stride)
    )
    raise ValueError(
        f"an image of {height} x {width} does not fit patches of {stride}; the nearest sizes are {below} and {above}"
    )
