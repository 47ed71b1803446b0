"""How a corpus is searched: by the words themselves (BM25), or by vectors that are computed from the corpus alone.

`Words` is BM25 by the library ``bm25s``. `Vectors` is latent semantic analysis by scikit-learn: a singular value
decomposition of the documents' tf-idf weights (Deerwester et al. 1990), so that words which stand beside the same
words are near each other. No weights are downloaded: what such vectors know of a language is what the corpus says.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, get_args

import bm25s
import numpy as np
from numpy.typing import NDArray

__all__ = ["RETRIEVALS", "Corpus", "Index", "Retrieval", "Vectors", "Words"]

Retrieval = Literal["bm25", "lsa"]
RETRIEVALS: tuple[str, ...] = get_args(Retrieval)

_SIZE = 256
_DIGITS = 6
"""Scores are compared to so many digits: sums of floats differ in the last ones with the number of threads."""


class Index(Protocol):
    """Scores every text of a corpus for a query; 0 or less where it has nothing to do with it."""

    def scores(self, query: str) -> NDArray[np.float64]:
        """One number for each text, in their order."""
        ...


class Words:
    """BM25: rare words that a text shares with the query count most."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._count = len(texts)
        self._index = bm25s.BM25()
        self._index.index(self._tokens(list(texts)), show_progress=False)

    @staticmethod
    def _tokens(texts: list[str]) -> Any:
        return bm25s.tokenize(texts, stopwords="en", show_progress=False, return_ids=False)

    def scores(self, query: str) -> NDArray[np.float64]:
        """See `Index`."""
        (tokens,) = self._tokens([query])
        if not tokens:
            return np.zeros(self._count)
        return np.asarray(self._index.get_scores(tokens), np.float64)


class Vectors:
    """Latent semantic analysis: cosines of vectors of half as many numbers as there are texts, and at most `size`.

    As many numbers as texts would tell nothing but which words they share. A query of unknown words has nothing to
    do with any text. Raises ImportError without its library, ValueError where the texts hold no word at all.
    """

    def __init__(self, texts: Sequence[str], *, size: int = _SIZE) -> None:
        try:  # imported here: it takes a second, and who searches by words needs nothing of it
            from sklearn.decomposition import TruncatedSVD
            from sklearn.feature_extraction.text import TfidfVectorizer
        except ImportError as error:
            raise ImportError(
                f"retrieval 'lsa' needs scikit-learn ({error}): install the extra 'search'"
            ) from error
        self._weights = TfidfVectorizer(stop_words="english", sublinear_tf=True)
        weighed = self._weights.fit_transform(texts)
        self._reduced = TruncatedSVD(min(size, (len(texts) + 1) // 2, weighed.shape[1]), random_state=0)
        # texts that are all alike have no variance, whose shares the library also computes; they are not used here
        with np.errstate(invalid="ignore"):
            self._vectors = _of_length_one(self._reduced.fit_transform(weighed))

    def scores(self, query: str) -> NDArray[np.float64]:
        """See `Index`."""
        (vector,) = _of_length_one(self._reduced.transform(self._weights.transform([query])))
        found: NDArray[np.float64] = self._vectors @ vector
        return found


def _of_length_one(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    shortened: NDArray[np.float64] = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return shortened


_INDICES: dict[str, Callable[[Sequence[str]], Index]] = {"bm25": Words, "lsa": Vectors}


class Corpus:
    """Documents, title and text each, under an index. Raises ValueError without documents or for another index."""

    def __init__(self, documents: Sequence[tuple[str, str]], *, retrieval: str = "bm25") -> None:
        if not documents:
            raise ValueError("a corpus holds at least one document")
        if retrieval not in _INDICES:
            raise ValueError(f"retrieval is {retrieval!r}; it must be one of {', '.join(RETRIEVALS)}")
        self.texts = dict(documents)
        self._titles = [title for title, _ in documents]
        self._index = _INDICES[retrieval]([f"{title} {text}" for title, text in documents])

    def best(self, query: str, most: int) -> list[str]:
        """The titles of the best documents, ties in the corpus' order; never those with nothing of the query."""
        scores = np.round(self._index.scores(query), _DIGITS)
        order = sorted(range(len(self._titles)), key=lambda place: (-float(scores[place]), place))
        return [self._titles[place] for place in order[:most] if scores[place] > 0]
