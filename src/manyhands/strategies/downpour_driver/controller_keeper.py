"""The controller of a run as the driver knows it: started, heard, asked, replaced when it dies.

What it does is in `controller/`; training goes on without it, so its death is told and mended and
nothing else (Adam, section 3.3.3).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from manyhands.controller.controller import REQUEST_S
from manyhands.controller.task import ControllerServing
from manyhands.errors import ConfigError, ManyhandsError, ServerUnavailable, WorkerError
from manyhands.launch.local import Role, error_of
from manyhands.launch.role_process import Failure
from manyhands.strategies.downpour_driver.notices import Notices
from manyhands.strategies.downpour_driver.restarts import RestartHistory, too_often
from manyhands.telemetry.events import ControllerReplaced, Note
from manyhands.transport.calls import Caller

logger = logging.getLogger(__name__)

_START_WITHIN_S = 120.0
_ANSWER_S = REQUEST_S + 1.0  # longer than it takes to say that the registry is away
_LOOK_EVERY_S = 1.0
_SILENCE_S = 15.0
_AWAY_S = 5.0
_TROUBLE_TOLD = 5  # answers in a row, one a second


class ControllerKeeper:
    """Keeps one controller going. Thread-safe; `look` and `channels` are for the coordinator.

    A thread of its own carries what the driver has to say, as often as it takes, and notices when
    the controller hangs.
    """

    def __init__(
        self, start_controller: Callable[[], Role], caller: Caller, notices: Notices
    ) -> None:
        self._start_controller = start_controller
        self._caller = caller
        self._notices = notices
        self._history = RestartHistory()
        self._role: Role | None = None
        self._serves = False  # one has served
        self._failure = ""
        self._last: tuple[int, str] = (0, "")  # the process that died last, and why
        self._restart_at: float | None = None
        self._excused = False
        self._troubled = 0  # answers in a row that named a trouble
        self._answered = self._looked = time.monotonic()
        self._errands: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._messenger = threading.Thread(target=self._run_errands, name="errands", daemon=True)

    # --- for the session

    def start(self) -> None:
        """Start the process, without waiting for it."""
        self._role = self._start_controller()
        self._answered = time.monotonic()
        self._messenger.start()

    def await_serving(self) -> None:
        """Wait for a controller. WorkerError, or what it raised, when none serves."""
        notices = self._notices
        with notices.changed:
            notices.changed.wait_for(lambda: notices.has_failed or self._serves, _START_WITHIN_S)
            notices.check()
            if not self._serves:
                raise WorkerError(f"The controller did not start within {_START_WITHIN_S:g} s.")

    @property
    def pid(self) -> int | None:
        """Its process, while there is one."""
        with self._notices.changed:
            return None if self._role is None else self._role.pid

    def ask(self, command: str, timeout_s: float = _ANSWER_S, **arguments: Any) -> Any:
        """The controller's answer; ServerUnavailable when it is away."""
        return self._caller.call(command, timeout_s, **arguments)

    def send(self, command: str, **arguments: Any) -> None:
        """Have the controller told, as soon as there is one."""
        self._errands.put((command, arguments))

    def expect_death(self) -> None:
        """The next death is nobody's fault, and does not count."""
        with self._notices.changed:
            self._excused = True

    def close(self) -> None:
        """End the controller; may be called twice."""
        self._closing.set()
        self.send("status")  # wakes the messenger
        self._caller.close()
        if self._messenger.is_alive():
            self._messenger.join()
        if self._role is not None:
            self._role.close()

    # --- for the coordinator

    def channels(self) -> Mapping[Connection, Callable[[Any], None]]:
        return {} if self._role is None else {self._role.channel: self._hear}

    def look(self) -> None:
        now = time.monotonic()
        if now - self._looked > _AWAY_S:  # it was us who were stopped, and heard nobody
            self._answered = now
        self._looked = now
        if self._restart_at is not None and now >= self._restart_at:
            self._replace(now)
        elif self._role is not None and now - self._answered > _SILENCE_S and not self._failure:
            self._failure = f"did not answer for {now - self._answered:.0f} s and was ended"
            self._role.process.kill()

    def _hear(self, message: Any) -> None:
        if isinstance(message, ControllerServing):
            self._serves, self._answered = True, time.monotonic()
        elif isinstance(message, Failure):
            if not self._serves and isinstance(message.known, ConfigError):
                raise error_of("the controller", message)
            self._failure = message.summary
        elif message is None:
            self._lose()

    def _lose(self) -> None:
        role, self._role = self._role, None
        assert role is not None
        reason = role.ending()
        role.close()
        self._last = role.pid, self._failure or reason
        now = time.monotonic()
        pause_s = 0.0 if self._excused else self._history.pause_after_death(now)
        self._failure, self._excused = "", False
        if pause_s is None:
            if not self._serves:
                raise WorkerError(f"The controller did not start ({too_often(self._last[1])}).")
            self._tell(too_often(self._last[1]), None)
        else:
            self._restart_at = now + pause_s
            self.look()

    def _replace(self, now: float) -> None:
        self._restart_at, self._answered = None, now
        self._role = self._start_controller()
        self._tell(self._last[1], self._role.pid)

    def _tell(self, reason: str, successor: int | None) -> None:
        self._notices.tell(
            ControllerReplaced(pid=self._last[0], reason=reason, replaced_by=successor)
        )

    # --- the messenger

    def _run_errands(self) -> None:
        while not self._closing.is_set():
            try:
                command, arguments = self._errands.get(timeout=_LOOK_EVERY_S)
            except queue.Empty:
                command, arguments = "status", {}  # to see whether it answers
            self._deliver(command, arguments)

    def _deliver(self, command: str, arguments: dict[str, Any]) -> None:
        while not self._closing.is_set():
            try:
                answer = self._caller.call(command, _ANSWER_S, **arguments)
                if command == "status":
                    self._pass_on(str(answer.get("trouble", "")))
            except ServerUnavailable:
                if command == "status":
                    return
                self._closing.wait(0.1)
            except ManyhandsError as error:
                logger.warning("The controller refuses %r: %s", command, error)
                break
            else:
                break
        self._answered = time.monotonic()

    def _pass_on(self, trouble: str) -> None:
        """Tell of a registry that stays away while a checkpoint can be taken, and of its return.

        An etcd that elects a new leader is away for a moment, which is nobody's concern.
        """
        before, self._troubled = self._troubled, self._troubled + 1 if trouble else 0
        if self._troubled == _TROUBLE_TOLD:
            message = (
                f"{trouble} Training goes on, but nobody can take the place of a server that is "
                "lost meanwhile: should one be, the run ends and can be resumed."
            )
            self._notices.tell(Note(message=message, warning=True))
        elif before >= _TROUBLE_TOLD and not trouble:
            self._notices.tell(Note(message="The controller can decide again."))
