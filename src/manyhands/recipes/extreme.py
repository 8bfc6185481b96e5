"""Your own file with very many labels, in the XMLRepository's form or libsvm's: --set train=PATH.

Sizes come from the file. Without a test file a tenth of the samples is held out for measuring.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import manyhands as mh
from manyhands.errors import ConfigError
from manyhands.recipes.recipe import Recipe
from manyhands.recipes.wide_net import WideSettings, labels_of, wide_recipe


@dataclass(frozen=True, kw_only=True)
class Settings(WideSettings):
    """The keys of `--set`."""

    train: Annotated[str | None, "path of the training file, plain or gzipped"] = None
    test: Annotated[str | None, "path of the test file; none holds out a tenth of train"] = None
    bad_lines: Annotated[
        Literal["raise", "skip"], "stop at malformed lines, or leave them out and say which"
    ] = "raise"
    features: Annotated[int | None, "how many features there are; none: as the file says"] = None
    labels: Annotated[int | None, "how many labels there are; none: as the file says"] = None
    first_feature: Annotated[int, "smallest feature number: 0, or 1 as in libsvm's files"] = 0
    first_label: Annotated[int, "smallest label number: 0 or 1"] = 0


def build(settings: Settings) -> Recipe:
    """The model, freshly initialised under the seed, and how to train it."""
    train, test = read(settings, "extreme", "a file of lines like '12,7 4:0.5 19:1.25'")
    return wide_recipe(settings, train, test)


def read(
    settings: Settings, recipe: str, what: str
) -> tuple[mh.data.SparseSource, mh.data.SparseSource | None]:
    """The training and test data that the settings name; `what` the file should be, for whoever
    named none."""
    if settings.train is None:
        raise ConfigError(
            f"The recipe {recipe} needs {what}: say where it is with --set train=PATH, and "
            "--set test=PATH for its test samples."
        )
    train = _file(settings, settings.train, settings.features, settings.labels)
    if settings.test is None:
        return train, None
    if train.report.announced:
        return train, _file(settings, settings.test, train.features.width, labels_of(train))
    # The training file doesn't say how many there are: test samples may have some of their own.
    test = _file(settings, settings.test, settings.features, settings.labels)
    features = max(train.features.width, test.features.width)
    labels = max(labels_of(train), labels_of(test))
    return train.widened(features, labels), test.widened(features, labels)


def _file(
    settings: Settings, path: str, features: int | None, labels: int | None
) -> mh.data.ExtremeSource:
    return mh.data.extreme(
        path,
        features=features,
        labels=labels,
        first_feature=settings.first_feature,
        first_label=settings.first_label,
        bad_lines=settings.bad_lines,
    )
