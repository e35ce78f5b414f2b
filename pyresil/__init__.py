"""Sync-first, thread-safe resilience for Python services that run on threads."""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
