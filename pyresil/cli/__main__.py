"""``python -m pyresil.cli``."""

from __future__ import annotations

from pyresil.cli import main

if __name__ == "__main__":
    main()
