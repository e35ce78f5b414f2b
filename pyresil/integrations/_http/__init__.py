"""What `pyresil.integrations.requests` is made of: bounded sockets below urllib3, and policies per host above requests."""

from __future__ import annotations
