"""What a sandbox backend says of itself on this host; plain data, for `envgym doctor` and for `check_sandbox`."""

from pydantic import BaseModel, ConfigDict

__all__ = ["BackendReport"]


class BackendReport(BaseModel):
    """What `envgym doctor` says of a backend: whether it works here, how strong it is, and what would fix it.

    isolates, missing: sentences that begin with what they are about and a colon, such as "network: ...". A bound of
    `Resources` that every world has, and that is taken but kept less than promised, begins a line of `missing`:
    "memory: ...", "pids: ...", "disk: ...". What is a world's to ask for is refused with ValueError instead.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: str
    works: bool
    isolates: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
