"""Image classification: pictures in, class scores out."""
