"""When each secret was last used, as this process saw it: kept in memory, and now and then to be written. Pure."""

from __future__ import annotations

from collections.abc import Mapping

AGAIN_S = 60.0
"""A secret in use is written once a minute: who looks wants to know the day, and a write per request would cost."""


class KeyUses:
    """Secrets by their digests, with the unix time of their last use."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._written: dict[str, float] = {}

    def note(self, digest: str, at: float) -> None:
        """A request came with this secret, and it was let in."""
        self._last[digest] = at

    def due(self, now: float, *, all: bool = False) -> dict[str, float]:
        """What is to be written: secrets used for the first time here, and those not written for a minute."""
        return {
            digest: at
            for digest, at in self._last.items()
            if at > (written := self._written.get(digest, 0.0)) and (all or now - written >= AGAIN_S)
        }

    def written(self, uses: Mapping[str, float]) -> None:
        """These are kept. What is not used any more is forgotten."""
        for digest, at in uses.items():
            self._written[digest] = at
            if self._last.get(digest) == at:
                del self._last[digest]
