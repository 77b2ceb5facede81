"""`python -m castling`, which is also what `torchrun -m castling` starts."""

import sys

from castling_command import main

sys.exit(main())
