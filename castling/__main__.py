"""`python -m castling`, which is also what `torchrun -m castling` starts."""

import sys

from castling.cli.main import main

sys.exit(main())
