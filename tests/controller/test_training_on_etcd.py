"""A whole training run whose controller lives on a real etcd that loses its leader."""

from __future__ import annotations

from pathlib import Path

import manyhands as mh
from manyhands.controller.registry_address import open_registry
from manyhands.telemetry.event_log import read_events
from tests.cluster.conftest import wait_until
from tests.conftest import blobs
from tests.controller.etcd_cluster import EtcdCluster, etcd_cluster

_DONE = {"ServerLost", "PrimaryMoved", "CopiesRestored", "ControllerReplaced"}


class LosesTheLeader(mh.Callback):
    """Kills etcd's leader after the first epoch, and ends the run when all is well again."""

    def __init__(self, cluster: EtcdCluster) -> None:
        self._cluster = cluster

    def on_epoch_end(self, view: mh.RunView) -> None:
        if view.epoch == 1:
            wait_until(lambda: self._cluster.leader() is not None, what="etcd has a leader")
            self._cluster.kill(self._cluster.leader())
        elif {event["event"] for event in read_events(view.run_dir / "events.jsonl")} >= _DONE:
            view.stop_reason = "all is well again"


def test_a_run_goes_on_when_etcds_leader_a_server_and_the_controller_die(
    make_trainer, tmp_path: Path
) -> None:
    cluster = etcd_cluster(tmp_path)
    try:
        faults = mh.FaultPlan().kill("server/1", at_push=300).kill("controller", at_push=900)
        strategy = mh.Downpour(
            replicas=2, servers=3, registry=cluster.address("lab"), faults=faults
        )
        trainer = make_trainer(strategy=strategy, callbacks=[LosesTheLeader(cluster)])
        result = trainer.fit(blobs(4096), validation=blobs(seed=1), epochs=3000)
        assert len(result.history) < 3000
        assert result.metrics["accuracy"] > 0.9
        left = open_registry(cluster.address("lab")).entries("")
        assert left == [], "the run left its placement behind"
    finally:
        cluster.close()
