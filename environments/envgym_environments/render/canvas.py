"""What makes pictures of a source text, and what makes such texts: the seam between an episode and its language."""

from typing import Protocol

from envgym.messages import ToolSpec

__all__ = ["SIZE", "Canvas"]

SIZE = (320, 240)
"""Width and height of a picture, in pixels."""


class Canvas(Protocol):
    """Draws texts of one language, each by itself: nothing of a text before is left."""

    tool: ToolSpec
    """How a model calls it: one argument, which is the text."""

    async def picture(self, source: str) -> tuple[bytes | None, str]:
        """A PNG, or None and why there is no picture, which is the model's fault.

        Raises EnvgymError for the world's.
        """
        ...

    async def parts(self) -> str:
        """What the text shows that was drawn last, in words; "" where nobody knows."""
        ...

    async def close(self) -> None:
        """End what draws. Idempotent."""
        ...
