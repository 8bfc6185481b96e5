"""The shape of the house: the direction of imports, the public names, what importing costs."""

import subprocess
import sys
from pathlib import Path

import manyhands as mh

ROOT = Path(__file__).parents[2]


def test_imports_go_one_way():
    command = [str(Path(sys.executable).with_name("lint-imports"))]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout


def test_the_public_names():
    assert sorted(mh.__all__) == [
        "Callback",
        "Downpour",
        "EMA",
        "EarlyStopping",
        "FaultPlan",
        "Hogwild",
        "Result",
        "RunView",
        "Strategy",
        "Synchronous",
        "Trainer",
        "data",
        "errors",
        "optim",
        "sparse",
    ]
    assert all(hasattr(mh, name) for name in mh.__all__)


def test_importing_brings_no_plotting_and_no_tensorboard():
    heavy = ("matplotlib", "tensorboard")
    code = f"import sys, manyhands.trainer; print([m for m in {heavy} if m in sys.modules])"
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert outcome.stdout.strip() == "[]"


def test_a_parameter_server_needs_no_torch():
    rooms = "manyhands.launch.role_process, manyhands.parameter_server.server_task"
    code = f"import sys, {rooms}; print('torch' in sys.modules)"
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert outcome.stdout.strip() == "False", outcome.stderr
