"""However a driver ends, its workers end; a run that was killed goes on from its checkpoint."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from manyhands.telemetry.event_log import read_events
from tests.cluster.conftest import wait_until, workers_of

# No `if __name__ == "__main__"`, a lambda and a class of its own: a script as people write them.
SCRIPT = """
    import sys
    import torch
    from torch import nn
    import manyhands as mh

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 4))

        def forward(self, x):
            return self.layers(x)

    torch.manual_seed(0)
    points, labels = torch.randn(4000, 20), torch.randint(4, (4000,))
    trainer = mh.Trainer(Net(), step=lambda model, batch: nn.functional.cross_entropy(
                             model(batch[0]), batch[1]),
                         optimizer=mh.optim.SGD(lr=0.01), strategy=mh.Hogwild(workers=2),
                         batch_size=8, run_dir=None if len(sys.argv) > 2 else sys.argv[1])
    result = trainer.fit((points, labels), epochs=int(sys.argv[2]) if len(sys.argv) > 2 else 10000,
                         resume=sys.argv[1] if len(sys.argv) > 2 else None)
    print("reason", result.reason, len(result.history))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


@pytest.fixture(autouse=True)
def _no_driver_outlives_its_test():
    yield
    for driver in started:
        if driver.poll() is None:
            driver.kill()
            driver.communicate()
    started.clear()


started: list[subprocess.Popen[str]] = []


def start(script: Path, *arguments: str) -> subprocess.Popen[str]:
    driver = subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    started.append(driver)
    return driver


def epochs_done(run: Path) -> int:
    log = run / "events.jsonl"
    if not log.exists():
        return 0
    return sum(event["event"] == "EpochEnded" for event in read_events(log))


def gone(processes: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


def test_kill_9_of_the_driver_leaves_no_worker_and_the_run_resumes(script, tmp_path):
    run = tmp_path / "run"
    driver = start(script, str(run))
    wait_until(lambda: epochs_done(run) >= 2, what="two epochs trained")
    workers = workers_of(driver.pid)
    assert len(workers) == 2
    driver.kill()
    driver.communicate()
    wait_until(lambda: gone(workers), what="workers ended after their driver")
    before = epochs_done(run)
    again = start(script, str(run), str(before + 2))
    output, _ = again.communicate(timeout=90)
    assert again.returncode == 0, output
    assert f"reason finished {before + 2}" in output


def test_ctrl_c_while_workers_start_prints_no_traceback_of_theirs(script, tmp_path):
    run = tmp_path / "run"
    driver = start(script, str(run))
    wait_until(lambda: len(workers_of(driver.pid)) == 2, what="workers started")
    workers = workers_of(driver.pid)
    os.killpg(driver.pid, signal.SIGINT)
    output, _ = driver.communicate(timeout=90)
    wait_until(lambda: gone(workers), what="workers ended after Ctrl-C")
    assert "BrokenPipe" not in output
    assert output.count("Traceback") == 1  # the driver's own KeyboardInterrupt


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_everything(script, tmp_path, times):
    run = tmp_path / "run"
    driver = start(script, str(run))
    wait_until(lambda: epochs_done(run) >= 1, what="an epoch trained")
    workers = workers_of(driver.pid)
    for _ in range(times):
        os.killpg(driver.pid, signal.SIGINT)
    output, _ = driver.communicate(timeout=90)
    assert driver.returncode != 0
    wait_until(lambda: gone(workers), what="workers ended after Ctrl-C")
    assert "reason" not in output
    if times == 1:
        assert read_events(run / "events.jsonl")[-1]["reason"] == "interrupted"
