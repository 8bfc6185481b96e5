"""The recipe that the README shows can be loaded, set and built."""

import re
from pathlib import Path

from manyhands.recipes.loading import load_recipe

README = Path(__file__).parents[3] / "README.md"


def test_the_recipe_in_the_readme_works(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    file = tmp_path / "my_recipe.py"
    file.write_text(next(block for block in blocks if "def build" in block))
    module = load_recipe(str(file))
    recipe = module.build(module.apply({"width": "512"}))
    assert recipe.model[1].out_features == 512
