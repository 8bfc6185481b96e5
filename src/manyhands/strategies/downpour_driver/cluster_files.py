"""What a run's servers and controller keep on the disk: the durable store, and the registry.

The store outlives the run, for a resume; the registry is of one start of the run and goes with it.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from pathlib import Path

from manyhands.controller.registry_address import in_run, open_registry
from manyhands.errors import CheckpointError, RegistryUnavailable
from manyhands.optim.native import rule_spec
from manyhands.parameter_server.persistence import WriteBack
from manyhands.parameter_server.store.folder import discard, next_era
from manyhands.parameter_server.store.restoring import CHANNELS_LAST, StoredModel, read_flat
from manyhands.strategies.downpour_driver.plan import DownpourPlan

_STORE = "store"
_REGISTRY = ".registry-"


class ClusterFiles:
    """Where they are. Without a run directory nothing is written back."""

    def __init__(self, plan: DownpourPlan) -> None:
        self._plan = plan
        self._run_dir = plan.job.run_dir
        self._start = secrets.token_hex(4)  # names this start of the run
        self._folder: Path | None = None

    @property
    def keeps_store(self) -> bool:
        return self._run_dir is not None and self._plan.strategy.write_back_s is not None

    @property
    def registry(self) -> str:
        """The registry's address."""
        address = self._plan.strategy.registry
        if address != "embedded":
            run = "run" if self._run_dir is None else self._run_dir.name
            return in_run(address, f"{run}-{self._start}")
        if self._folder is None:
            self._remove_leftovers()
            self._folder = Path(tempfile.mkdtemp(prefix=_REGISTRY, dir=self._run_dir))
        return f"sqlite:{self._folder / 'registry.db'}"

    def read_store(self) -> tuple[StoredModel | None, str]:
        """What servers of an earlier start wrote back, if it is newer than the checkpoint that is
        resumed; and a sentence when it can't be used.

        What is not used is removed, so that it never mixes with what this start writes.
        """
        store, resumed_at = self._store, self._plan.job.resumed_at
        if store is None or not store.is_dir():
            return None, ""
        try:
            if resumed_at is not None:
                stored = self._read(store)
                if stored.written_at > resumed_at:
                    return stored, " ".join(stored.refused)
            reason = ""
        except (CheckpointError, OSError) as error:
            reason = f"Going on from the checkpoint: {error}"
        discard([store])
        return None, reason

    def write_back(self) -> WriteBack | None:
        """How servers write back in this start of the run."""
        every_s = self._plan.strategy.write_back_s
        if self._store is None or every_s is None:
            return None
        return WriteBack(
            directory=self._store,
            era=next_era([self._store]),
            every_s=every_s,
            order=self._order,
        )

    def discard_store(self) -> None:
        """Remove what was written back: the run is complete, and its checkpoint too."""
        if self._store is not None and self._store.is_dir():
            shutil.rmtree(self._store, ignore_errors=True)

    def close(self) -> None:
        """Remove the registry; may be called twice."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        elif self._plan.strategy.registry != "embedded":
            self._empty_registry()

    @property
    def _store(self) -> Path | None:
        return None if self._run_dir is None else self._run_dir / _STORE

    @property
    def _order(self) -> str:
        return CHANNELS_LAST if self._plan.channels_last else ""

    def _read(self, store: Path) -> StoredModel:
        shard_map = self._plan.shard_map
        rules = [rule_spec(self._plan.server_rule)] * len(shard_map.parameters)
        return read_flat([store], shard_map, rules, order=self._order)

    def _remove_leftovers(self) -> None:
        """Remove the registries of starts that were killed: no two run in one directory."""
        for leftover in self._run_dir.glob(f"{_REGISTRY}*") if self._run_dir is not None else ():
            shutil.rmtree(leftover, ignore_errors=True)

    def _empty_registry(self) -> None:
        registry = open_registry(self.registry)
        try:
            for entry in registry.entries(""):
                registry.delete(entry.key)
        except RegistryUnavailable:
            pass  # somebody else's to tidy up then: a few hundred bytes
        finally:
            registry.close()
