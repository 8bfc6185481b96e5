"""Everything of a run is killed at once, in the middle of an epoch: it goes on from the store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from torch import nn

import manyhands as mh
from tests.cluster.conftest import wait_until
from tests.conftest import blobs, small_net

RUN = """
    import sys
    from torch import nn
    import manyhands as mh
    from tests.conftest import blobs, small_net
    trainer = mh.Trainer(small_net(), loss=nn.CrossEntropyLoss(), progress=False,
                         optimizer=mh.optim.Adam(lr=1e-3), batch_size=8, run_dir=sys.argv[1],
                         strategy=mh.Downpour(replicas=2, servers=2, push="gradients",
                                              write_back_s=0.1))
    trainer.fit(blobs(12_000), epochs=1000)
"""


def epochs_saved(run: Path) -> int:
    names = [path.name for path in (run / "checkpoints").glob("epoch-*")]
    return max((int(name[6:10]) for name in names), default=0)


def is_store_newer(run: Path) -> bool:
    """Than the newest checkpoint."""
    segments = [path.stat().st_mtime for path in (run / "store").glob("*.segment")]
    checkpoints = [path.stat().st_mtime for path in (run / "checkpoints").glob("epoch-*")]
    return max(segments, default=0.0) > max(checkpoints)


def killed_in_the_middle(run: Path, script: Path) -> None:
    """Start a run and kill all of its processes when its store is newer than its checkpoint.

    The driver is stopped before, so that it doesn't write another checkpoint meanwhile.
    """
    script.write_text(textwrap.dedent(RUN))
    driver = subprocess.Popen(
        [sys.executable, str(script), str(run)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        start_new_session=True,
    )
    try:
        wait_until(lambda: epochs_saved(run) > 0, what="the first checkpoint")
        os.kill(driver.pid, signal.SIGSTOP)
        wait_until(lambda: is_store_newer(run), what="a store that is newer")
    finally:
        everything = [*psutil.Process(driver.pid).children(recursive=True)]
        os.kill(driver.pid, signal.SIGKILL)
        for process in everything:
            if process.is_running():
                process.kill()
        driver.wait()


@pytest.mark.parametrize("servers", [1, 3])
def test_a_run_that_was_killed_goes_on_from_the_store(tmp_path: Path, servers: int) -> None:
    run = tmp_path / "run"
    killed_in_the_middle(run, tmp_path / "train.py")
    done = epochs_saved(run)
    trainer = mh.Trainer(
        small_net(),
        loss=nn.CrossEntropyLoss(),
        optimizer=mh.optim.Adam(lr=1e-3),
        batch_size=8,
        progress=False,
        strategy=mh.Downpour(replicas=2, servers=servers, push="gradients", write_back_s=0.1),
    )
    result = trainer.fit(blobs(12_000), validation=blobs(seed=1), epochs=done + 1, resume=run)
    assert len(result.history) == done + 1
    assert result.metrics["accuracy"] > 0.9
    told = (run / "events.jsonl").read_text()
    assert "Going on from what the parameter servers wrote back" in told
