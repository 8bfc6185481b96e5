"""What a controller goes by, checked before anything starts."""

from __future__ import annotations

from dataclasses import dataclass

from manyhands.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class ControllerSettings:
    """How many copies, and after how long a silence a server counts as lost.

    `servers` is how many are waited for before the first placement; more may come later.
    `fill_mb_s` is the servers' own limit, by which a controller knows that a copy takes too long.
    """

    servers: int
    copies: int
    lease_s: float = 1.0
    closed_s: float = 0.2  # after the connection of the heartbeats was closed
    settle_s: float = 1.0  # of calm before loads are evened out
    leader_s: float = 2.0  # etcd grants no less
    join_mb: float = 64.0  # copied at a time, to one server and from one
    fill_mb_s: float = 200.0

    def __post_init__(self) -> None:
        if self.servers < 1:
            raise ConfigError(f"servers is {self.servers!r}; expected a number >= 1.")
        if self.copies < 1:
            raise ConfigError(f"copies is {self.copies!r}; expected a number >= 1.")
        for name in ("lease_s", "closed_s", "leader_s", "join_mb", "fill_mb_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected a number > 0.")

    @property
    def join_bytes(self) -> int:
        return int(self.join_mb * 1e6)

    def join_s(self, bucket_bytes: int) -> float:
        """How long a copy of this size may take until it is given up, whatever its primary says.

        Generous: the optimizer's states come along, and primaries notice a standstill themselves.
        """
        return 60.0 + 10 * max(bucket_bytes / 1e6, self.join_mb) / self.fill_mb_s
