"""Text as streams of tokens, each of which knows what it may be used for."""

import dataclasses

import numpy as np

from jaxnas.data.roles import Parts, check_role, read_only
from jaxnas.data.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
    """The text of one role as one long sequence of tokens, which knows what it may be used for.

    Args:
      role: "train", "search", "validation" or "test".
      tokens: int32 [n], not negative; kept as a read-only view.
      documents: int32 [n], not decreasing: the number of the document that a token is part of;
        kept as a read-only view.
      n_bytes: of the text in UTF-8. Nats summed over the stream, divided by `n_bytes * log(2)`,
        are bits per byte, whatever the tokens are.

    Raises:
      ValueError: unknown role, wrong shapes or dtypes, no tokens.
    """

    role: str
    tokens: np.ndarray
    documents: np.ndarray
    n_bytes: int

    def __post_init__(self):
        check_role(self.role)
        if self.tokens.dtype != np.int32 or self.tokens.ndim != 1:
            raise ValueError(f"tokens must be int32 [n], got {self.tokens.dtype} {list(self.tokens.shape)}")
        if self.documents.dtype != np.int32 or self.documents.shape != self.tokens.shape:
            raise ValueError(
                f"documents must be int32 [{len(self.tokens)}], as the tokens, got"
                f" {self.documents.dtype} {list(self.documents.shape)}"
            )
        if not len(self.tokens):
            raise ValueError(f"the {self.role} stream has no tokens")
        if self.tokens.min() < 0:
            raise ValueError(
                f"the {self.role} stream has the token {self.tokens.min()}; tokens are numbered from 0"
            )
        if self.documents[0] < 0 or np.any(self.documents[1:] < self.documents[:-1]):
            raise ValueError(
                f"the documents of the {self.role} stream must be numbered from 0 in the order of"
                " the text; sort them, with the tokens"
            )
        if self.n_bytes < 1:
            raise ValueError(f"n_bytes of the {self.role} stream must be positive, got {self.n_bytes}")
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
        """Both texts in the role of this one; that of `other` comes last and begins a new document."""
        return Stream(
            self.role,
            np.concatenate([self.tokens, other.tokens]),
            np.concatenate([self.documents, other.documents + (self.documents[-1] + 1)]),
            self.n_bytes + other.n_bytes,
        )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Corpus(Parts[Stream]):
    """Real text in disjoint streams, each in the order of the text; see `Parts`.

    Args:
      vocabulary: of all streams.

    Raises:
      ValueError: a token that isn't in the vocabulary, or as `Parts`.
    """

    vocabulary: Vocabulary

    def __post_init__(self):
        super().__post_init__()
        for role, stream in self.splits.items():
            if stream.tokens.max() >= self.vocabulary.size:
                raise ValueError(
                    f"the {role} stream has the token {stream.tokens.max()}, and the vocabulary"
                    f" has {self.vocabulary.size}; make both with one vocabulary"
                )
