"""What a key may use: requests and tokens per minute, requests at a time, money per month.

`estimate` is what a request will use as far as its body tells, `window` and `local` count within this process, the Lua
scripts and `store` over all processes, `admission` puts the two together and keeps what is held until it is settled.
"""

from streaming.limits.admission import Limits
from streaming.limits.estimate import Estimate, estimate
from streaming.limits.holds import Hold

__all__ = ["Estimate", "Hold", "Limits", "estimate"]
