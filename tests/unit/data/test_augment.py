"""Augmentation: what each setting does to an image, and which settings are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from manyhands.data.augment import Augment
from manyhands.errors import ConfigError


def noise(count: int = 64, channels: int = 1, height: int = 12, width: int = 12) -> torch.Tensor:
    shape = (count, channels, height, width)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def dots(count: int, size: int = 29) -> torch.Tensor:
    """Images whose pixel values are their coordinates: x in channel 0 and y in channel 1."""
    axis = torch.arange(size, dtype=torch.float32) - (size - 1) / 2
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    return torch.stack((x, y)).expand(count, 2, size, size)


def test_no_setting_changes_nothing() -> None:
    images = noise()
    assert torch.equal(Augment().apply(images, seed=3), images)


@pytest.mark.parametrize("augment", [Augment.digits(), Augment.natural(), Augment(shear=0.2)])
@pytest.mark.parametrize("shape", [(5, 1, 28, 28), (3, 3, 16, 24), (1, 2, 9, 7)])
def test_the_seed_decides_and_the_input_stays(augment: Augment, shape: tuple[int, ...]) -> None:
    images = noise(*shape)
    before = images.clone()
    first, again, other = (augment.apply(images, seed=seed) for seed in (1, 1, 2))
    assert first.shape == images.shape
    assert first.dtype == torch.float32
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(images, before)


def test_images_of_a_batch_change_each_in_its_own_way() -> None:
    images = noise(1).expand(32, -1, -1, -1)
    for augment in (Augment.digits(), Augment(crop_padding=4), Augment(elastic_pixels=1.0)):
        changed = augment.apply(images, seed=0)
        assert len({tuple(image.flatten().tolist()) for image in changed}) > 16


def test_a_flat_image_stays_flat() -> None:
    images = torch.full((8, 1, 28, 28), -0.42)
    for augment in (Augment.digits(), Augment.natural()):
        torch.testing.assert_close(augment.apply(images, seed=0), images)


def test_rotation_turns_within_its_range_and_keeps_lengths() -> None:
    turned = Augment(rotation_degrees=30.0).apply(dots(500), seed=0)
    right, below = turned[:, :, 14, 14 + 8], turned[:, :, 14 + 8, 14]
    torch.testing.assert_close(right.norm(dim=1), torch.full((500,), 8.0))
    torch.testing.assert_close(below, torch.stack((-right[:, 1], right[:, 0]), dim=1))
    degrees = torch.rad2deg(torch.atan2(right[:, 1], right[:, 0]))
    assert 28.0 < float(degrees.max()) <= 30.001
    assert -30.001 <= float(degrees.min()) < -28.0
    assert abs(float(degrees.mean())) < 3.0


def test_scale_stretches_each_axis_by_itself() -> None:
    changed = Augment(log_scale=0.2).apply(dots(500), seed=0)
    x, y = changed[:, 0, 14, 20] / 6.0, changed[:, 1, 20, 14] / 6.0
    low, high = torch.exp(torch.tensor(-0.2)), torch.exp(torch.tensor(0.2))
    for factor in (x, y):
        assert (factor > low - 1e-4).all()
        assert (factor < high + 1e-4).all()
        assert float(factor.max() - factor.min()) > 0.35
    assert abs(float(torch.corrcoef(torch.stack((x, y)))[0, 1])) < 0.2


def test_shear_slants_and_leaves_the_rows_in_place() -> None:
    changed = Augment(shear=0.3).apply(dots(500), seed=0)
    slant = changed[:, 0, 20, 14] / 6.0
    assert 0.28 < float(slant.max()) < 0.3001
    assert -0.3001 < float(slant.min()) < -0.28
    torch.testing.assert_close(changed[:, 1, 20, 14], torch.full((500,), 6.0))


def test_shift_moves_the_whole_picture() -> None:
    moved = Augment(shift_pixels=2.0).apply(dots(500), seed=0)[:, :, 14, 14]
    for axis in (0, 1):
        assert 1.9 < float(moved[:, axis].max()) <= 2.0001
        assert -2.0001 <= float(moved[:, axis].min()) < -1.9


def test_the_elastic_field_has_the_deviation_and_the_reach_that_were_asked_for() -> None:
    augment = Augment(elastic_pixels=0.5, elastic_sigma=4.0)
    field = (augment.apply(dots(3000), seed=0) - dots(3000))[:, :, 8:21, 8:21]
    assert float(field.std()) == pytest.approx(0.5, rel=0.05)
    assert abs(float(field.mean())) < 0.02
    x = field[:, 0]
    # White noise under a Gaussian: the correlation at distance d is exp(-d^2 / (4 sigma^2)).
    for distance, expected in ((4, 0.779), (8, 0.368), (12, 0.105)):
        pair = torch.stack((x[:, 0, 0], x[:, 0, distance]))
        assert float(torch.corrcoef(pair)[0, 1]) == pytest.approx(expected, abs=0.06)
    across = torch.stack((field[:, 0, 6, 6], field[:, 1, 6, 6]))
    assert abs(float(torch.corrcoef(across)[0, 1])) < 0.06


def test_height_and_width_may_differ() -> None:
    pixels = torch.zeros(200, 1, 9, 31)
    pixels[:, :, 4, 15] = 1.0
    changed = Augment(shift_pixels=3.0).apply(pixels, seed=0)
    rows, columns = changed.sum(dim=(1, 3)), changed.sum(dim=(1, 2))
    assert (rows[:, 1:8].sum(dim=1) > 0.99).all()
    assert (columns[:, 12:19].sum(dim=1) > 0.99).all()
    assert (rows[:, 1] > 0).any()
    assert (columns[:, 12] > 0).any()


def test_reflection_mirrors_half_of_the_images() -> None:
    images = noise(200, 3)
    changed = Augment(reflect=True).apply(images, seed=0)
    same = (changed == images).flatten(1).all(dim=1)
    mirrored = (changed == images.flip(3)).flatten(1).all(dim=1)
    assert (same ^ mirrored).all()
    assert 60 < int(mirrored.sum()) < 140


def test_a_crop_moves_by_whole_pixels_and_repeats_the_border() -> None:
    images = noise(300, 2, 6, 7)
    changed = Augment(crop_padding=2).apply(images, seed=0)
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2), mode="replicate")
    seen = set()
    for index in range(len(images)):
        found = [
            (top, left)
            for top in range(5)
            for left in range(5)
            if torch.equal(padded[index, :, top : top + 6, left : left + 7], changed[index])
        ]
        assert len(found) == 1
        seen.update(found)
    assert len(seen) == 25


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rotation_degrees": -1}, "rotation_degrees is -1: expected a finite number, 0 or more"),
        ({"rotation_degrees": 181}, "rotation_degrees is 181: expected 0 to 180"),
        ({"log_scale": float("nan")}, "log_scale is nan"),
        ({"shear": float("inf")}, "shear is inf"),
        ({"shift_pixels": "2"}, "shift_pixels is '2': expected a number"),
        ({"elastic_pixels": None}, "elastic_pixels is None"),
        ({"elastic_sigma": 0.0}, "elastic_sigma is 0.0: expected 0.5 or more"),
        ({"reflect": 1}, "reflect is 1: expected True or False"),
        ({"crop_padding": 1.5}, "crop_padding is 1.5: expected a whole number"),
        ({"crop_padding": True}, "crop_padding is True: expected a number"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Augment(**settings)
