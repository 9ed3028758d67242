"""Text as streams of tokens, one for each role."""

import dataclasses

import numpy as np

from jaxnas.data.roles import Parts, check_role, read_only
from jaxnas.data.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
    """The text of one role as one long sequence of tokens.

    Args:
      role: "train", "search", "validation" or "test".
      tokens: int32 [n], not negative; read-only.
      documents: int32 [n], not decreasing: the document of each token; read-only.
      n_bytes: of the text in UTF-8. Nats summed over the stream, divided by `n_bytes * log(2)`, are bits per
        byte, whatever the tokens are.
    """

    role: str
    tokens: np.ndarray
    documents: np.ndarray
    n_bytes: int

    def __post_init__(self):
        check_role(self.role)
        shape = self.tokens.shape
        for name in ("tokens", "documents"):
            array = getattr(self, name)
            if array.dtype != np.int32 or array.ndim != 1 or array.shape != shape or not array.size:
                raise ValueError(
                    f"the {self.role} stream has {name} {array.dtype}{list(array.shape)}; expected int32 [n] "
                    "of one length for tokens and documents."
                )
        if self.tokens.min() < 0:
            raise ValueError(
                f"the {self.role} stream has the token {self.tokens.min()}, expected none below 0."
            )
        if self.documents[0] < 0 or np.any(np.diff(self.documents) < 0):
            raise ValueError(
                f"the documents of the {self.role} stream must be numbered from 0 in the order of the text."
            )
        for name in ("tokens", "documents"):
            object.__setattr__(self, name, read_only(getattr(self, name)))

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"Stream({self.role!r}, {len(self)} tokens, {self.n_bytes} bytes)"

    def first(self, count: int) -> "Stream":
        """The first tokens, with their share of the bytes."""
        share = min(count / len(self), 1.0)
        n_bytes = max(1, round(share * self.n_bytes))
        return Stream(self.role, self.tokens[:count], self.documents[:count], n_bytes)

    def join(self, other: "Stream") -> "Stream":
        """Both texts in the role of this one; `other` begins a new document."""
        return Stream(
            self.role,
            np.concatenate([self.tokens, other.tokens]),
            np.concatenate([self.documents, other.documents + (self.documents[-1] + 1)]),
            self.n_bytes + other.n_bytes,
        )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Corpus(Parts[Stream]):
    """Text in disjoint streams with one vocabulary; see `Parts`.

    Raises:
      ValueError: a token that isn't in the vocabulary, or as `Parts`.
    """

    vocabulary: Vocabulary

    def __post_init__(self):
        super().__post_init__()
        for role, stream in self.splits.items():
            if stream.tokens.max() >= self.vocabulary.size:
                raise ValueError(
                    f"the {role} stream has the token {stream.tokens.max()}, and the vocabulary has "
                    f"{self.vocabulary.size}; make both with one vocabulary."
                )
