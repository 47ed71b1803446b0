"""The real projects that tasks of each language are made from: what to fetch, how it is prepared, its suite.

``projects.toml`` beside this file lists them by exact version and hash. Nothing here fetches or runs anything.
"""

import re
import shutil
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from envgym_environments.code_repair.recipe import read_recipe
from envgym_environments.code_repair.suites.guards import Insertion
from envgym_environments.code_repair.suites.suite import LANGUAGES, Language, Suite

__all__ = ["Project", "missing_programs", "projects"]


class Project(BaseModel):
    """One entry of ``projects.toml``.

    origin: which registry has it, asked through its own client: "npm" (`npm pack`), "pypi" (`pip download`),
        "debian" (`apt-get download`: a package that holds source), "debian-source" (`apt-get source`: the upstream
        tarball); or "local", which is none (see `suites.local`).
    source: its name there, of a local one its path beside the recipe; version, sha256: of the archive, checked
        before it is unpacked (a local one's are found).
    inside: the directory of the archive that becomes the tree ("" for its one top directory).
    modules: the folder beside this file with the lock of its node modules.
    prepare: shell commands run once in the tree, while the files that bugs go into are empty: so nothing that is
        built ahead can hold their compiled form.
    files: further files of the tree, path -> text.
    needs: programs that the tests need on this machine.
    bugs: patterns of the files that bugs go into (default: the suite's sources).
    canaries: kinds of test that must fail, each the insertions that make one (see `guards.Insertion`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    origin: Literal["npm", "pypi", "debian", "debian-source", "local"]
    source: str = Field(min_length=1)
    version: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9.!+~:_-]*)?$")
    sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    licence: str = Field(min_length=1)
    inside: str = ""
    modules: str = Field(default="", pattern=r"^[a-z0-9-]*$")
    prepare: tuple[str, ...] = ()
    files: dict[str, str] = Field(default_factory=dict)
    needs: tuple[str, ...] = ()
    bugs: tuple[str, ...] = ()
    canaries: tuple[tuple[Insertion, ...], ...] = ()
    split: Literal["train", "heldout"] = "train"
    suite: Suite

    @model_validator(mode="after")
    def _told_exactly(self) -> "Project":
        if self.origin == "local":
            return self
        if not self.version or not self.sha256:
            raise ValueError(f"version and sha256 are missing; they say which archive of {self.origin} is meant")
        if not re.fullmatch(r"[A-Za-z0-9@][A-Za-z0-9@/._+-]*", self.source):
            raise ValueError(f"source is {self.source!r}; that is no name in {self.origin}")
        return self

    @property
    def language(self) -> Language:
        """Of its suite."""
        return self.suite.language

    @property
    def slug(self) -> str:
        """Name and version, as they appear in task ids."""
        return f"{self.name}-{self.version.partition(':')[2] or self.version}"


def projects(path: Path | None = None, *, language: Language | None = None) -> tuple[Project, ...]:
    """The projects of a recipe file (default: the one of this package), in its order, or those of one language.

    Raises ValueError naming file, entry and field when the file is not a valid recipe.
    """
    if language is not None and language not in LANGUAGES:
        raise ValueError(f"language is {language!r}; it must be one of {', '.join(LANGUAGES)}")
    found = read_recipe(Project, "project", own=f"{__package__}/projects.toml", path=path)
    return tuple(project for project in found if language in (None, project.language))


def missing_programs(project: Project) -> tuple[str, ...]:
    """The programs that the project's tests need and this machine does not have where sandboxes see them."""
    place = "/usr/local/bin:/usr/bin:/bin"
    return tuple(name for name in project.needs if not Path(name).exists() and not shutil.which(name, path=place))
