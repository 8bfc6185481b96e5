"""What a person can ask of a Downpour run while it goes on: its replicas and servers.

Requests and answers are plain values; they come through the run's control socket
(`transport/control.py`) from `manyhands replicas`, `servers` and `drain`.
"""

from __future__ import annotations

from typing import Any

from manyhands.errors import ConfigError, ServerUnavailable
from manyhands.strategies.downpour_driver.controller_keeper import ControllerKeeper
from manyhands.strategies.downpour_driver.replica_crew import ReplicaCrew
from manyhands.strategies.downpour_driver.server_crew import ServerCrew
from manyhands.strategies.native_form import counted

_MOST_AT_ONCE = 64


class DownpourCommands:
    """Answers requests, one at a time. A refusal is `{"ok": False, "message": one sentence}`."""

    def __init__(
        self, crew: ReplicaCrew, servers: ServerCrew, controller: ControllerKeeper
    ) -> None:
        self._crew = crew
        self._servers = servers
        self._controller = controller
        self._commands = {
            "replicas": self._show_replicas,
            "add": self._add_replicas,
            "remove": self._remove_replicas,
            "servers": self._show_servers,
            "add_servers": self._add_servers,
            "drain": self._drain,
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request."""
        command = self._commands.get(str(request.get("command")))
        if command is None:
            message = f"No command is called {request.get('command')!r}."
            return {"ok": False, "message": message}
        try:
            return {"ok": True, "message": "", **command(request)}
        except (ConfigError, ServerUnavailable) as error:
            return {"ok": False, "message": str(error)}

    def _show_replicas(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"replicas": self._replica_table()}

    def _add_replicas(self, request: dict[str, Any]) -> dict[str, Any]:
        count = _count(request)
        self._crew.add(count)
        message = f"{counted(count, 'replica')} will join."
        return {"message": message, "replicas": self._replica_table()}

    def _remove_replicas(self, request: dict[str, Any]) -> dict[str, Any]:
        gone = self._crew.remove(_count(request))
        message = f"{counted(len(gone), 'replica')} will leave; one always stays."
        return {"message": message, "replicas": self._replica_table()}

    def _show_servers(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"servers": self._server_table()}

    def _add_servers(self, request: dict[str, Any]) -> dict[str, Any]:
        count = _count(request)
        self._servers.add(count)
        message = f"{counted(count, 'server')} will join."
        return {"message": message, "servers": self._server_table()}

    def _drain(self, request: dict[str, Any]) -> dict[str, Any]:
        number = request.get("server")
        if type(number) is not int:
            raise ConfigError(f"server is {number!r}; expected the number of a server.")
        self._servers.drain(number)
        message = f"Server {number} is being emptied, and leaves when it holds nothing more."
        return {"message": message, "servers": self._server_table()}

    def _replica_table(self) -> list[dict[str, Any]]:
        return [
            {
                "replica": place.number,
                "pid": place.role.pid,
                "samples_per_s": place.samples_per_s,
            }
            for place in self._crew.places
        ]

    def _server_table(self) -> list[dict[str, Any]]:
        parts = self._controller.ask("status")["servers"]
        rows = []
        for place in self._servers.places:
            part = parts.get(str(place.number), {})
            rows.append(
                {
                    "server": place.number,
                    "pid": place.role.pid,
                    "primaries": part.get("primaries", 0),
                    "mirrors": part.get("mirrors", 0),
                    "joining": part.get("joining", 0),
                    "bytes": part.get("bytes", 0),
                    "state": _state(part, leaving=place.leaving),
                }
            )
        return rows


def _state(part: dict[str, Any], *, leaving: bool) -> str:
    if not part:
        return "starting"
    if leaving:
        return "leaving"
    return "serving" if part["alive"] else "silent"


def _count(request: dict[str, Any]) -> int:
    count = request.get("count", 0)
    if type(count) is not int or not 1 <= count <= _MOST_AT_ONCE:
        raise ConfigError(f"count is {count!r}; expected 1 to {_MOST_AT_ONCE}.")
    return count
