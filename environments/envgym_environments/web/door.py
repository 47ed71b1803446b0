"""Who may ask an episode's application: nobody between two, since the page of the one before may still write."""

__all__ = ["Door", "asks_document"]


def asks_document(method: str, accept: str, dest: str) -> bool:
    """Whether a request is for a document that a window shows. accept, dest: its Accept and Sec-Fetch-Dest, or "".

    What scripts fetch accepts anything; where the browser says what it is for (W3C, Fetch Metadata), a frame's
    document is another thing.
    """
    return method == "GET" and accept.startswith("text/html") and dest in ("", "document")


class Door:
    """Open to all until it is shut; once it is ajar, the first document that is asked for opens it.

    refused: how many were not let in since it was shut.
    """

    def __init__(self) -> None:
        self.refused = 0
        self._open, self._ajar = True, False

    def shut(self) -> None:
        """Nobody is let in."""
        self._open = self._ajar = False
        self.refused = 0

    def ajar(self) -> None:
        """The next document opens it: what a page that went away has still sent is no document."""
        self._ajar = not self._open

    def admits(self, document: bool) -> bool:
        """Whether a request may come in."""
        self._open = self._open or (self._ajar and document)
        self.refused += not self._open
        return self._open
