"""What Downpour refuses of a model before anything starts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.errors import ConfigError, ModelError

SGD = mh.optim.SGD(lr=0.1)


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_weights_that_are_not_finite_are_named(value: float) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    with torch.no_grad():
        model[1].weight[0, 0] = value
    with pytest.raises(ModelError, match=r"'1\.weight' holds numbers that are not finite"):
        mh.Downpour().check(model, SGD)
    mh.Downpour(refuse_nonfinite=False).check(model, SGD)


def test_a_form_of_no_parameter_is_named() -> None:
    with pytest.raises(ConfigError, match="forms names 'head'"):
        mh.Downpour(forms={"head": "rows"}).check(nn.Linear(4, 3), SGD)
