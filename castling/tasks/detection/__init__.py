"""Detection: boxes and labels in pictures, by PicoDet-style detectors on any backbone of three strides."""
