"""How alike two pictures are, as numbers that an empty page does not get for the white around what is drawn.

Pure functions of arrays [H, W, 3] uint8. Nothing here knows a browser.
"""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

__all__ = ["Pixels", "apart", "colour", "pixels", "ssim", "structure", "vision"]

Pixels = NDArray[np.uint8]

_WINDOW, _STRIDE = 8, 4
_C1, _C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
_ROWS, _COLUMNS = ("top", "middle", "bottom"), ("left", "centre", "right")


def pixels(image: bytes, *, size: tuple[int, int] | None = None) -> Pixels:
    """The pixels [H, W, 3] of an encoded image; size: (W, H) that it is scaled to where it is another.

    Raises ValueError for what is no image.
    """
    try:
        with Image.open(io.BytesIO(image)) as opened:
            plain = opened.convert("RGB")
    except UnidentifiedImageError as error:
        raise ValueError(
            f"{len(image)} bytes that are no image of a known format"
        ) from error  # theirs names an address
    except (OSError, Image.DecompressionBombError) as error:
        raise ValueError(f"no image can be read: {error}") from error
    if size is not None and plain.size != size:
        plain = plain.resize(size)
    return np.asarray(plain)


def ssim(a: Pixels, b: Pixels) -> float:
    """The mean structural similarity of two pictures of one size, over windows of 8 x 8 of each colour.

    1.0 for equal ones; it can be negative. Both sides are at least 8. Raises ValueError for sizes that differ.
    Source: Wang, Bovik, Sheikh, Simoncelli, "Image quality assessment: from error visibility to structural
    similarity", IEEE TIP 13(4), 2004: their index with constants (0.01 L)^2 and (0.03 L)^2, L = 255, uniform
    windows in the place of Gaussian ones.
    """
    if a.shape != b.shape:
        raise ValueError(f"pictures of shapes {a.shape} and {b.shape} cannot be compared: they must be equal")
    x, y = (_windows(one) for one in (a, b))
    mean_x, mean_y = x.mean((-2, -1)), y.mean((-2, -1))
    variance = x.var((-2, -1)) + y.var((-2, -1))
    covariance = (x * y).mean((-2, -1)) - mean_x * mean_y
    light = (2 * mean_x * mean_y + _C1) / (mean_x**2 + mean_y**2 + _C1)
    return float((light * (2 * covariance + _C2) / (variance + _C2)).mean())


def _windows(picture: Pixels) -> NDArray[np.float64]:
    """[rows, columns, 3, window, window]."""
    seen = np.lib.stride_tricks.sliding_window_view(picture.astype(np.float64), (_WINDOW, _WINDOW), (0, 1))
    return seen[::_STRIDE, ::_STRIDE]


def structure(wanted: Pixels, made: Pixels) -> float:
    """0.0 for what is no more like the wanted picture than a white one, 1.0 for the picture itself."""
    floor = ssim(wanted, _white(wanted))
    return float(np.clip((ssim(wanted, made) - floor) / (1.0 - floor), 0.0, 1.0)) if floor < 1.0 else 0.0


def colour(wanted: Pixels, made: Pixels) -> float:
    """1.0 less the mean distance of colours, which is 1.0 for a white picture; never below 0.0."""
    far = _distance(wanted, _white(wanted))
    return float(np.clip(1.0 - _distance(wanted, made) / far, 0.0, 1.0)) if far else 0.0


def vision(wanted: Pixels, made: Pixels) -> float:
    """The mean of `structure` and `colour`: 0.0 for a white picture, 1.0 for the wanted one alone."""
    return 0.5 * (structure(wanted, made) + colour(wanted, made))


def apart(wanted: Pixels, made: Pixels, *, most: int = 3) -> list[tuple[str, float]]:
    """Which of nine regions differ most, and by how much of the whole range of colours, the worst first."""
    found: list[tuple[str, float]] = []
    for row, above in zip(np.array_split(wanted, 3, 0), np.array_split(made, 3, 0), strict=True):
        for a, b in zip(np.array_split(row, 3, 1), np.array_split(above, 3, 1), strict=True):
            name = f"{_ROWS[len(found) // 3]} {_COLUMNS[len(found) % 3]}"
            found.append((name, _distance(a, b) / 255.0))
    return sorted((one for one in found if one[1] > 0), key=lambda one: -one[1])[:most]


def _white(picture: Pixels) -> Pixels:
    return np.full_like(picture, 255)


def _distance(a: Pixels, b: Pixels) -> float:
    """The mean absolute difference, 0 to 255."""
    return float(np.abs(a.astype(np.int16) - b).mean())
