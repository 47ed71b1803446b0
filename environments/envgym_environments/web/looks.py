"""How the page of a web application is shown to who plays it."""

from dataclasses import dataclass
from typing import Literal, get_args

from envgym.browsing import open_browser

__all__ = ["Looks", "See"]

See = Literal["tree", "image", "both"]


@dataclass(frozen=True, slots=True)
class Looks:
    """How a page is shown.

    browser: which registered kind shows the page. diffs: whether of the tree only what changed is shown. see: what
    an observation shows of the page: its tree as text, a picture (an `ImagePart` in the last message, whose PNG is
    in `Step.images`), or both. marks: whether the refs of what can be acted on are drawn into the picture. Raises
    ValueError for an unknown browser, and for pictures of one that draws none.
    """

    browser: str = "chromium"
    diffs: bool = False
    see: See = "tree"
    marks: bool = False

    def __post_init__(self) -> None:
        if self.see not in get_args(See):
            raise ValueError(f"see is {self.see!r}; it must be one of {', '.join(get_args(See))}")
        if self.marks and self.see == "tree":
            raise ValueError("marks are drawn into pictures, and see is 'tree': give see='image' or 'both'")
        drawing = open_browser(self.browser)  # an unknown one is refused before anything is played
        if self.see != "tree" and not drawing.draws:
            raise ValueError(
                f"browser {self.browser!r} draws no pages: see is {self.see!r}, it must be 'tree' there"
            )
