"""The `castling` command: one file per verb."""
