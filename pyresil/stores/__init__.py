"""Where shared state lives: small contracts whose every method is one atomic step, and the stores that keep them.

`base` has the contracts, `backend` connects by URL, and there is one module or package for each kind of server. Stores know
keys, owners, tokens and durations; they never know a strategy.
"""

from __future__ import annotations
