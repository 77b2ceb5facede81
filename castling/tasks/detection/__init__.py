"""Object detection: boxes with labels."""
