"""``python -m tfsearch``: the program ``tfsearch`` where its script is not on the path."""

from __future__ import annotations

import sys

from tfsearch.cli import main

if __name__ == "__main__":
    sys.exit(main())
