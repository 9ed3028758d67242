"""Text as streams of tokens, each of which knows what it may be used for."""

import dataclasses

import numpy as np

from jaxnas.data.roles import ROLES, check_role, read_only, require_role
from jaxnas.data.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
    """The text of one role as one long sequence of tokens, which knows what it may be used for.

    Whoever scores architectures for a search calls `stream.require("search")` first, and whoever
    trains calls `stream.require("train")`; so the test text cannot reach either by accident.

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

    def require(self, *roles: str) -> "Stream":
        """Returns the stream itself if it has one of the roles.

        Raises:
          ValueError: it has another role.
        """
        require_role("stream", self.role, roles)
        return self


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Real text in disjoint streams, each in the order of the text.

    Args:
      name: TFDS name.
      train: the official training text without `search`.
      search: held out of the official training text; compares architectures in a search. None
        if nothing was held out.
      validation: the official validation text.
      test: the official test text, for the networks that were chosen.
      vocabulary: of all streams.

    Raises:
      ValueError: a stream in the place of another, or a token that isn't in the vocabulary.
    """

    name: str
    train: Stream
    search: Stream | None
    validation: Stream
    test: Stream
    vocabulary: Vocabulary

    def __post_init__(self):
        for role in ROLES:
            if (stream := getattr(self, role)) is None:
                if role == "search":
                    continue
                raise ValueError(f"{self.name} has no {role} stream; only the search stream may be missing")
            stream.require(role)
            if stream.tokens.max() >= self.vocabulary.size:
                raise ValueError(
                    f"the {role} stream has the token {stream.tokens.max()}, and the vocabulary"
                    f" has {self.vocabulary.size}; make both with one vocabulary"
                )

    @property
    def streams(self) -> dict[str, Stream]:
        """The streams that there are, by role."""
        streams = {role: getattr(self, role) for role in ROLES}
        return {role: stream for role, stream in streams.items() if stream is not None}

    def whole(self) -> "Corpus":
        """The text whose training stream includes what was held out for a search."""
        if self.search is None:
            return self
        train = join_streams("train", self.train, self.search)
        return dataclasses.replace(self, train=train, search=None)


def join_streams(role: str, first: Stream, second: Stream) -> Stream:
    """Joins two streams as one of a role; the second begins a document of its own."""
    return Stream(
        role,
        np.concatenate([first.tokens, second.tokens]),
        np.concatenate([first.documents, second.documents + (first.documents[-1] + 1)]),
        first.n_bytes + second.n_bytes,
    )
