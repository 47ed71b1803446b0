"""A folder of files as a value: how a model or a checkpoint comes to a host that shares no disk, and back."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Carried"]


@dataclass(frozen=True, slots=True)
class Carried:
    """The files of one folder, by name; folders in it are not carried."""

    files: Mapping[str, bytes]

    @staticmethod
    def of(folder: Path) -> "Carried":
        """What is there now."""
        return Carried({file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()})

    def lay(self, folder: Path) -> None:
        """Write all of them into a folder, which is made if it is not there."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)

    @contextmanager
    def laid(self) -> Iterator[Path]:
        """A temporary folder of this host that has them."""
        with tempfile.TemporaryDirectory(prefix="envgym-") as name:
            self.lay(Path(name))
            yield Path(name)
