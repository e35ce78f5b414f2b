"""Sphinx: ``python -m sphinx -W docs docs/_build``, with the dependency group ``docs``."""

from __future__ import annotations

import pathlib
import re

project = "pyresil"
author = "the pyresil maintainers"
copyright = "the pyresil maintainers"  # noqa: A001 - Sphinx's name
_package = pathlib.Path(__file__).parent.parent / "pyresil" / "__init__.py"
release = version = re.search(r'^__version__ = "(.+)"', _package.read_text(encoding="utf-8"), re.MULTILINE)[1]

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nitpicky = True
suppress_warnings = ["misc.highlighting_failure"]  # Pygments knows no crontab

html_theme = "furo"
html_title = f"pyresil {release}"
