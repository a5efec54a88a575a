"""Places in the KV cache: who gets one, what is kept when it is given back, and what gives way."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence

import torch

from .backbone import Backbone
from .kept import Kept
from .kv_cache import Slot
from .run import Run
from .scheduler import Entry, Scheduler

log = logging.getLogger(__name__)


class Places:
    """Keeps the promise of the cache's size, whoever needs it.

    Slots of running sequences come first; the memory promised to nobody holds what runs that are
    over left, and rows of banks that nobody has.
    """

    def __init__(self, backbone: Backbone, scheduler: Scheduler) -> None:
        self.backbone, self.scheduler = backbone, scheduler
        self.kept = Kept()

    def hold(self, more: int = 0) -> None:
        """Have everything else give way to what is promised: what is kept, then empty rows.

        Args:
            more: bytes that are about to be kept in addition.
        """
        spare, slots = self.scheduler.spare - more, self.backbone.slots
        self.kept.shrink(max(0, spare - slots.unused))
        slots.tighten(max(0, spare - self.kept.nbytes))
        slots.spare = max(0, spare - self.kept.nbytes)

    def take(self, run: Run, context: array[int], tokens: int) -> Slot:
        """A slot for so many tokens, with what is kept of this beginning.

        Raises:
            RuntimeError, MemoryError: the machine has no memory for it.
        """
        prompt, found = len(run.prompt_ids), None
        if run.request.use_cache:
            found = self.kept.take(context, prompt, (run.handle, run.parent))
        self.hold()
        slot = self.backbone.slots.take(tokens, prompt)
        if found is not None:
            slot.load(*found)
        return slot

    def keep(self, context: Sequence[int], slot: Slot, run: Run) -> None:
        """Keep what a slot holds, if that fits beside what is promised."""
        nbytes = slot.length * self.backbone.layout.bytes_per_token
        if nbytes <= self.scheduler.spare:
            self.hold(nbytes)
            self.kept.put(context, slot.park(), run.handle)

    def leave(self, entry: Entry) -> int:
        """Give a run's slots back, keeping what they hold; returns the bytes of that."""
        nbytes = 0
        for row in entry.decoding.rows:
            if row.slot is None:
                continue
            try:
                if entry.run.request.use_cache and row.slot.length:
                    nbytes += row.slot.length * self.backbone.layout.bytes_per_token
                    self.keep(row.context, row.slot, entry.run)
            except Exception:  # it is only for later
                log.exception("nothing is kept of run %s", entry.run.handle)
            finally:
                row.give_back()
        return nbytes

    def give_way(self, wanting: Entry) -> bool:
        """After an allocation failed: promise less from now on, and let `wanting` try again later.

        Returns:
            False if it is alone, and there is nothing left to give up.
        """
        gave_up = len(self.kept) > 0
        self.kept.shrink(0)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        others = sum(e.nbytes for e in self.scheduler.running if e is not wanting)
        if not others and not gave_up:
            return False
        if others:
            self.scheduler.cache_bytes = max(others, wanting.nbytes)
        for row in wanting.decoding.rows if wanting.decoding else ():
            row.give_back()
        self.scheduler.put_back(wanting)
        return True

    def forget(self) -> None:
        """In a forked process: what is kept may be half written, and slots are the parent's."""
        for entry in self.scheduler.all():
            for row in entry.decoding.rows if entry.decoding else ():
                row.slot = None
        self.kept = Kept()
        self.backbone.slots.forget()


def no_memory(error: Exception) -> bool:
    """Whether an allocation failed, here or on a device."""
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or "DefaultCPUAllocator" in str(error)
