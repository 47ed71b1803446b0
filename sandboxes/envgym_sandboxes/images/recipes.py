"""The recipes of ``containers/images.toml``: what each named image holds, and the digest that it must have.

Data only; `build` carries a recipe out, `store` keeps what came of it.
"""

import tomllib
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

__all__ = ["Recipe", "recipes"]

_BESIDE = Path(__file__).with_name("images.toml")  # in an installed package
_CHECKOUT = Path(__file__).resolve().parents[3] / "containers" / "images.toml"

_Name = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
_Package = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]*$")]
_Path = Annotated[str, Field(pattern=r"^/[A-Za-z0-9/._*-]+$")]


class Recipe(BaseModel):
    """How one image is built from Debian packages, without a container registry.

    purpose: one line for people. suite: the Debian release. packages: installed with what they depend on, not
        with what they recommend. leave_out: files that packages are not to install, as dpkg's path-exclude.
    epoch: seconds since 1970; nothing in the image is younger, so that two builds are equal.
    digest, size_bytes: of the content (see `rootfs.content_digest`), as last built by the maintainers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    purpose: str
    suite: Annotated[str, Field(pattern=r"^[a-z]+$")]
    packages: tuple[_Package, ...]
    leave_out: tuple[_Path, ...] = ()
    epoch: Annotated[int, Field(ge=0)]
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    size_bytes: Annotated[int, Field(gt=0)]


@cache
def recipes(path: Path | None = None) -> dict[str, Recipe]:
    """Name -> recipe, of `path` or the project's own file. Raises ValueError with the place of a mistake."""
    path = path or (_BESIDE if _BESIDE.exists() else _CHECKOUT)
    try:
        return TypeAdapter(dict[_Name, Recipe]).validate_python(tomllib.loads(path.read_text()))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{path}: {where}: {first['msg']} (and {error.error_count() - 1} more)") from error
