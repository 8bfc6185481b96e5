"""The README's program is the example's, and it runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_program_in_the_readme_is_the_example():
    readme = (ROOT / "README.md").read_text()
    block = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert block is not None
    example = (ROOT / "examples" / "quickstart.py").read_text()
    assert example.endswith(block[1])


def test_the_example_runs_as_it_is(tmp_path):
    outcome = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "quickstart.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    assert outcome.returncode == 0, outcome.stderr
    accuracy = re.search(r"^(\d+\.\d+)%", outcome.stdout, re.MULTILINE)
    assert accuracy is not None
    assert float(accuracy[1]) > 96


def test_every_file_that_the_readme_names_exists():
    readme = (ROOT / "README.md").read_text()
    links = [link for link in re.findall(r"\]\(([^)]+)\)", readme) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
