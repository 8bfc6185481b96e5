"""A parameter server: holds chunks and applies what is pushed to them.

Adam, section 3.3. Python decides here, who may come in and what is held; receiving, checking,
queueing, applying and answering are native (`native/server/`), a thread for each lane:

    1 connection   accept, greet (transport), adopt: the lane reads frames and checks them
    2 batcher      updates wait in the queue of their chunk
    3 apply        a chunk's waiting updates, block by block while it is in cache
    4 reply        acknowledgements, values and refusals, many in one write

With a controller the server holds what the newest placement says and keeps copies in step
(`replication.py`); without one it is the only holder of its chunks of the shard map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from manyhands import kernels
from manyhands.errors import ConfigError
from manyhands.messages import Refusal, Welcome
from manyhands.optim.native import RuleSpec
from manyhands.parameter_server.persistence import Persistence, WriteBack
from manyhands.parameter_server.reception import Reception
from manyhands.parameter_server.replication import Replication, ReplicationSettings
from manyhands.parameter_server.reports import ServerReport, report
from manyhands.parameter_server.shard_map import Chunk, Form, ShardMap
from manyhands.transport.certificates import Credentials
from manyhands.transport.endpoint import Endpoint
from manyhands.transport.framing import close_fds
from manyhands.transport.listener import Arrival, listen

STALENESS = ("ignore", "scale")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """What a server refuses and how it applies. Given by the driver, the same to every server.

    `staleness="scale"` divides an update's rate by the updates that it did not know of. Updates
    with values that are not finite are refused, unless `refuse_nonfinite` is False: then large ones
    are applied in pieces as they arrive. `max_connections` bounds the memory that clients can take:
    each may have one payload of `max_payload_bytes` under way.

    `host` is where clients connect. Other servers connect to `replication_host`, and heartbeats
    leave from `admin_host`: None for the same. `fill_mb_s` bounds, in megabytes a second, what a
    server sends to fill new copies.
    """

    host: str = "127.0.0.1"
    replication_host: str | None = None
    admin_host: str | None = None
    fill_mb_s: float = 200.0
    tls: bool = False  # also on loopback; elsewhere always
    refuse_nonfinite: bool = True
    staleness: str = "ignore"
    max_payload_bytes: int = 64 << 20
    max_connections: int = 1024
    pin: bool = True

    def __post_init__(self) -> None:
        if self.staleness not in STALENESS:
            raise ConfigError(
                f"staleness is {self.staleness!r}; expected one of {', '.join(STALENESS)}."
            )
        if self.max_payload_bytes < 1 << 20:
            raise ConfigError(
                f"max_payload_bytes is {self.max_payload_bytes!r}; expected a chunk's 1 MB or more."
            )
        if self.max_connections < 1:
            raise ConfigError(f"max_connections is {self.max_connections!r}; expected at least 1.")
        if not self.fill_mb_s > 0:
            raise ConfigError(f"fill_mb_s is {self.fill_mb_s!r}; expected a number > 0.")


class ParameterServer:
    """The chunks of one server, behind a door that clients come in by.

    Use it in a `with` statement. Threads of its own do the work; `report` and `cut` may
    be called from any thread. What a client does wrong is answered to that client, counted, and
    never raised here.
    """

    def __init__(
        self,
        shard_map: ShardMap,
        server: int,
        rules: Sequence[RuleSpec],
        settings: ServerSettings,
        *,
        token: str,
        credentials: Credentials | None = None,
        client_credentials: Credentials | None = None,
        controller: Endpoint | None = None,
        machine: str | None = None,
        write_back: WriteBack | None = None,
    ) -> None:
        self._shards = shard_map
        self._server = server
        self._settings = settings
        # A server of a replicated run may come to hold any chunk.
        self._layout = shard_map.chunks_of(server) if controller is None else shard_map.chunks
        self._chunks = kernels.ChunkServer(
            lanes=shard_map.lanes,
            max_payload_bytes=settings.max_payload_bytes,
            refuse_nonfinite=settings.refuse_nonfinite,
            staleness=settings.staleness,
            pin=settings.pin,
            replicated=controller is not None,
        )
        self._add_chunks(rules)
        self._door = Reception(
            listen(settings.host, token=token, credentials=credentials, tls=settings.tls),
            self._admit,
            "A client",
        )
        self._replication: Replication | None = None
        self._persistence: Persistence | None = None
        if write_back is not None:
            self._persistence = Persistence(
                self._chunks, shard_map, rules, write_back, self._served
            )
        if controller is not None:
            self._replication = Replication(
                self._chunks,
                shard_map,
                server,
                self.endpoint,
                ReplicationSettings(
                    controller=controller,
                    host=settings.replication_host or settings.host,
                    admin_host=settings.admin_host,
                    token=token,
                    credentials=credentials,
                    client_credentials=client_credentials,
                    tls=settings.tls,
                    fill_mb_s=settings.fill_mb_s,
                    machine=machine,
                ),
                states=[len(rule.state_starts) for rule in rules],
                restore=None if self._persistence is None else self._persistence.restore,
            )

    @property
    def endpoint(self) -> Endpoint:
        """Where clients connect."""
        return self._door.endpoint

    @property
    def incarnation(self) -> str:
        """What the controller knows this process by; empty without one."""
        return "" if self._replication is None else self._replication.incarnation

    @property
    def is_over(self) -> bool:
        """Whether this process should end: the controller has another for it, or it is broken."""
        return self._replication is not None and self._replication.is_over

    def start(self) -> None:
        """Allocate the weights, as zeros until an admin sets them, and let clients in."""
        self._chunks.start()
        self._door.start()
        if self._replication is not None:
            self._replication.start()
        if self._persistence is not None:
            self._persistence.start()

    def report(self) -> ServerReport:
        """What the server has done so far."""
        strangers, lost = self._door.strangers, 0
        if self._replication is not None:
            strangers += self._replication.strangers
            lost = self._replication.mirrors.lost
        return report(
            self._server,
            self._chunks.stats(),
            strangers=strangers,
            lost_buckets=lost,
            store=None if self._persistence is None else self._persistence.report,
        )

    def cut(self, other: int | None, on: bool) -> None:
        """For faults: be cut off from another server (None: the controller), or no longer."""
        if self._replication is not None:
            self._replication.cut(other, on)

    def close(self) -> None:
        """Let nobody in, end the lanes and every connection."""
        if self._replication is not None:
            self._replication.close()
        self._door.close()
        if self._persistence is not None:
            self._persistence.close()
        self._chunks.stop()

    def __enter__(self) -> ParameterServer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _add_chunks(self, rules: Sequence[RuleSpec]) -> None:
        natives = [rule.native() for rule in rules]
        for chunk in self._layout:
            self._chunks.add_chunk(
                chunk.number,
                lane=self._shards.lane_of(chunk),
                parameter=chunk.parameter,
                first_row=chunk.first_row,
                rows=chunk.rows,
                row_floats=chunk.row_floats,
                rule=natives[chunk.parameter],
                state_starts=rules[chunk.parameter].state_starts,
                by_rows=self._shards.parameters[chunk.parameter].form is Form.ROWS,
            )

    def _served(self) -> Sequence[int]:
        """The chunks that this server is primary of."""
        if self._replication is None:
            return [chunk.number for chunk in self._layout]
        return self._replication.mirrors.served()

    def _admit(self, arrival: Arrival) -> None:
        hello = arrival.hello
        if hello.peer >= 0:
            arrival.refuse(Refusal.NOT_ALLOWED, "This door is for clients, not for servers.")
            return
        if hello.lane >= self._shards.lanes:
            sentence = f"There is no lane {hello.lane}; this server has {self._shards.lanes}."
            arrival.refuse(Refusal.WRONG_LANE, sentence)
            return
        most = self._settings.max_connections
        if self._chunks.stats()["connections"] >= most:
            arrival.refuse(Refusal.NOT_ALLOWED, f"{most} connections are open, which is the limit.")
            return
        shown = [self._chunks.memory_fd] if arrival.same_machine else []
        fd = arrival.welcome(self._welcome(hello.lane, arrival.same_machine), shown)
        try:
            self._chunks.adopt(
                fd,
                lane=hello.lane,
                client=hello.client,
                admin=hello.admin,
                shared_fd=arrival.fds[0] if arrival.fds else -1,
                shared_bytes=hello.shared_bytes,
            )
        except BaseException:
            close_fds((fd, *arrival.fds))
            raise

    def _welcome(self, lane: int, same_machine: bool) -> Welcome:
        own: Sequence[Chunk] = self._layout if same_machine else ()
        return Welcome(
            lanes=self._shards.lanes,
            map_version=self._shards.version,
            memory_bytes=self._chunks.memory_bytes if same_machine else 0,
            places=tuple(
                (chunk.number, *self._chunks.place_of(chunk.number))
                for chunk in own
                if self._shards.lane_of(chunk) == lane
            ),
        )
