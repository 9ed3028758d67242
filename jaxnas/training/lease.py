"""A lock in an object store, where there is no kernel that drops it when its holder is killed.

The lock is an object. It is written on the condition that it is still of the generation that was read, so
that of all who want it one gets it. Its holder writes it anew every `RENEW` seconds; a lock that another
process has watched for `LEASE` seconds without a new generation is that of a killed run, and is taken over in
the same way. So no clocks are compared; the times in the object are for people.

Requests go through TensorStore, which writes the arrays of checkpoints to the same place.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import tensorstore

_log = logging.getLogger(__name__)
RENEW = 20.0  # seconds between two renewals by the holder
LEASE = 120.0  # seconds without a renewal after which a lock is taken over
ANSWER = 60.0  # seconds that the store has to answer


@contextlib.contextmanager
def hold(path: str | os.PathLike, holder: str) -> Iterator[None]:
    """Holds an object as a lock until the context ends.

    A process that comes back after its lock was taken over, as one that was suspended, is ended at once: its
    writes would go between those of the new holder. It may have written for up to `RENEW` seconds by then.

    Args:
      path: of the object, gs://bucket/folder/name.
      holder: who this is, for the messages of others.

    Raises:
      BlockingIOError: another process holds the lock and renews it; the message says who.
      OSError: the store does not answer, or refuses.
    """
    lock = _Lock(path, holder)
    lock.take()
    done = threading.Event()
    thread = threading.Thread(target=lock.keep, args=(done,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        try:
            if not lock.write(held=False):
                _log.warning("%s was taken over by another run before this one ended. Look at both.", path)
        except OSError as error:  # The run itself is done. The next one waits for `LEASE` seconds.
            _log.warning("%s", error)


class _Lock:
    """The object of a lock, and the generation of it that this process may replace."""

    def __init__(self, path: str | os.PathLike, holder: str) -> None:
        self.path, self.generation = os.fspath(path), b""
        bucket, _, name = self.path.removeprefix("gs://").partition("/")
        folder, _, self.name = name.rpartition("/")
        # Not by its address, in which TensorStore gives # ? and % a meaning.
        place = {"driver": "gcs", "bucket": bucket, "path": folder + "/" if folder else ""}
        with self.asking():
            self.store = tensorstore.KvStore.open(place).result(timeout=ANSWER)
        self.about = {"holder": holder, "token": secrets.token_hex(8)}

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # TensorStore has a kind of its own for each status of the store.
            reason = str(error) or type(error).__name__
            raise OSError(f"the lock {self.path} cannot be read or written: {reason}") from error

    def read(self) -> tuple[dict[str, Any], bytes]:
        """What the object says, {} if there is none, and its generation."""
        with self.asking():
            found = self.store.read(self.name).result(timeout=ANSWER)
        if found.state == "missing":
            return {}, found.stamp.generation
        try:
            return dict(json.loads(found.value)), found.stamp.generation
        except (ValueError, TypeError):  # Not of this module. If someone uses it, it will change.
            holder = found.value.decode(errors="replace").strip()
            return {"held": True, "holder": holder}, found.stamp.generation

    def write(self, held: bool = True) -> bool:
        """Writes the object if it is still of our generation, and says whether it was."""
        data = json.dumps({"held": held, **self.about, "written": _now()}) + "\n"
        while True:
            with self.asking():
                stamp = self.store.write(self.name, data, if_equal=self.generation).result(timeout=ANSWER)
            if stamp.generation:
                self.generation = stamp.generation
                return True
            found, generation = self.read()
            if found.get("token") != self.about["token"]:
                return False
            self.generation = generation  # We wrote it, and the answer was lost.

    def take(self) -> None:
        """Returns when this process holds the lock; see `hold`."""
        found, self.generation = self.read()
        seen, start = self.generation, time.monotonic()
        if found.get("held"):
            _log.warning(
                "%s is held by %s. Waiting up to %.0f seconds to see whether that run is still there; if you "
                "know that it is not, remove this file to go on at once.",
                self.path,
                _who(found),
                LEASE,
            )
        while True:
            killed = self.generation == seen and time.monotonic() - start >= LEASE
            if not found.get("held") or killed:
                self.about["since"] = _now()
                if self.write():
                    return
            elif self.generation != seen:
                raise BlockingIOError(_who(found))
            else:
                time.sleep(RENEW / 4)
            found, self.generation = self.read()

    def keep(self, done: threading.Event) -> None:
        """Renews the lock until `done`, and ends this process when another one has it."""
        while not done.wait(RENEW):
            try:
                ours = self.write()
            except OSError as error:
                _log.warning("%s. This is tried again.", error)
                continue
            if not ours:
                print(
                    f"error: {self.path} was taken over by another run or removed, while this one did not "
                    "renew it. This one ends here, so that the two do not write over each other.",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(1)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _who(found: dict[str, Any]) -> str:
    """The holder of a lock, with how long ago it took it and wrote it by the clock of this machine."""
    about = str(found.get("holder", "an unknown process"))
    try:
        now = datetime.datetime.now(datetime.UTC)
        ages = [
            max(0, int((now - datetime.datetime.fromisoformat(found[x])).total_seconds()))
            for x in ("since", "written")
        ]
    except (KeyError, ValueError, TypeError):
        return about
    return f"{about}, which took it {ages[0]:,} seconds ago and renewed it {ages[1]:,} seconds ago"
