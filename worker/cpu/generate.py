"""Sampling for many requests at once, with a cache of shared prompt prefixes.

One thread owns the model. Requests join the running batch between two tokens and leave it when
they are done (continuous batching, as in Orca, Yu et al. 2022), so a short reply does not wait
for a long one.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from transformers import DynamicCache, PreTrainedModel

from worker.cpu.prefixes import KeyValues, PrefixCache, layers


@dataclass
class Generation:
    """What was sampled: ids with their log-probabilities (natural log, at the temperature)."""

    ids: list[int]
    log_probs: list[float]
    finish_reason: str


@dataclass
class Request:
    """One prompt. ``temperature`` 0 is greedy.

    ``seed`` makes sampling repeatable. The prompt is part of it: the turns of a conversation have
    one seed and must not be drawn with the same noise.
    """

    prompt: list[int]
    max_tokens: int
    temperature: float
    seed: int | None = None
    future: Future[Generation] = field(default_factory=Future)


@dataclass
class _Active:
    request: Request
    length: int
    generator: torch.Generator
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)


class Generator:
    """Serves requests in a thread of its own until ``close``.

    ``pause`` waits for running requests and keeps new ones waiting, so that an update can change
    the weights; ``resume`` forgets every cached prefix, which belongs to the old weights.
    """

    def __init__(self, model: PreTrainedModel, *, end: int, pad: int, max_batch: int = 64) -> None:
        self._model = model
        self._end = end
        self._pad = pad
        self._max_batch = max_batch
        self._changed = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._paused = False
        self._idle = True
        self._closed = False
        self._prefixes = PrefixCache()
        self._rows: list[_Active] = []
        self._cache: KeyValues = []
        self._mask = torch.zeros(0, 0, dtype=torch.long)
        self._thread = threading.Thread(target=self._serve, name="generator", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> Future[Generation]:
        """Queues a request; its future carries the generation or the error."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the generator is closed")
            self._waiting.append(request)
            self._changed.notify_all()
        return request.future

    def pause(self) -> None:
        """Returns when nothing is being generated; new requests wait."""
        with self._changed:
            self._paused = True
            self._changed.wait_for(lambda: self._idle or self._closed)
            if self._closed:
                raise RuntimeError("the generator is closed")

    def resume(self) -> None:
        """Forgets cached prefixes and goes on."""
        with self._changed:
            self._prefixes.clear()
            self._paused = False
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread; waiting requests fail."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout=30)

    # --- the generator's thread -----------------------------------------------------------------

    def _serve(self) -> None:
        # A step of few rows is too small to share, and a second thread would wait for a core.
        torch.set_num_threads(1)
        try:
            self._serve_until_closed()
        finally:
            # Whatever ended it, nobody may wait for a thread that is gone.
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            closed = RuntimeError("the generator was closed")
            for request in [*(row.request for row in self._rows), *self._waiting]:
                if not request.future.done():
                    request.future.set_exception(closed)

    def _serve_until_closed(self) -> None:
        while True:
            for request in self._next_requests():
                self._admit(request)
            if self._closed:
                break
            if self._rows:
                try:
                    self._advance()
                except Exception as error:  # noqa: BLE001 each caller gets it
                    # The batch is lost, the server is not: each caller learns why.
                    for row in self._rows:
                        if not row.request.future.done():
                            row.request.future.set_exception(error)
                    self._select([])

    def _next_requests(self) -> list[Request]:
        """What may join the batch now; waits only while there is nothing to do."""
        with self._changed:
            while not self._closed and not self._rows and (self._paused or not self._waiting):
                self._idle = True
                self._changed.notify_all()
                self._changed.wait()
            self._idle = False
            if self._paused or self._closed:
                return []
            room = self._max_batch - len(self._rows)
            return [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]

    @torch.inference_mode()
    def _admit(self, request: Request) -> None:
        """Reads the prompt but for its cached prefix, samples one token, joins the batch."""
        if not request.future.set_running_or_notify_cancel():
            return
        try:
            start, known = self._prefixes.longest(request.prompt)
            cache = DynamicCache.from_legacy_cache(tuple(known)) if start else DynamicCache()
            positions = torch.arange(start, len(request.prompt)).unsqueeze(0)
            logits = self._forward(
                torch.tensor([request.prompt[start:]]),
                torch.arange(len(request.prompt)) <= positions.unsqueeze(-1),
                positions,
                cache,
            )
            keys_values = layers(cache)
            self._prefixes.keep(request.prompt, keys_values)
            generator = torch.Generator()
            if request.seed is None:
                generator.seed()
            else:
                generator.manual_seed(_mixed(request.seed, request.prompt))
            row = _Active(request, len(request.prompt), generator)
            if not self._take(row, logits[0]):
                self._join(row, keys_values)
        except Exception as error:  # noqa: BLE001 the caller gets it
            request.future.set_exception(error)

    @torch.inference_mode()
    def _advance(self) -> None:
        """One token for every row of the batch."""
        tokens = torch.tensor([[row.ids[-1]] for row in self._rows])
        positions = torch.tensor([[row.length - 1] for row in self._rows])
        ones = torch.ones(len(self._rows), 1, dtype=torch.long)
        self._mask = torch.cat([self._mask, ones], dim=1)
        cache = DynamicCache.from_legacy_cache(tuple(self._cache))
        logits = self._forward(tokens, self._mask.bool().unsqueeze(1), positions, cache)
        self._cache = layers(cache)
        going_on = [i for i, row in enumerate(self._rows) if not self._take(row, logits[i])]
        if len(going_on) < len(self._rows):
            self._select(going_on)

    def _forward(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        cache: DynamicCache,
    ) -> torch.Tensor:
        """Logits of the last position, [batch, vocabulary]; ``cache`` is extended.

        Args:
            mask: Whether each new token sees each position, [batch, new, positions]. Given whole:
                transformers would take longer to work it out than the model takes to run.
        """
        output = self._model(
            input_ids=ids,
            attention_mask=mask.unsqueeze(1),
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = output.logits[:, -1].float()
        return logits

    def _take(self, row: _Active, logits: torch.Tensor) -> bool:
        """Samples one token into ``row``; True when the row is finished and answered."""
        temperature = row.request.temperature
        if temperature > 0:
            log_probs = torch.log_softmax(logits / temperature, dim=-1)
            token = int(torch.multinomial(log_probs.exp(), 1, generator=row.generator))
        else:
            log_probs = torch.log_softmax(logits, dim=-1)
            token = int(log_probs.argmax())
        row.ids.append(token)
        row.log_probs.append(float(log_probs[token]))
        row.length += 1
        if token == self._end:
            reason = "stop"
        elif len(row.ids) >= row.request.max_tokens:
            reason = "length"
        else:
            return False
        row.request.future.set_result(Generation(row.ids, row.log_probs, reason))
        return True

    # --- the batch's cache, left-padded ---------------------------------------------------------

    def _join(self, row: _Active, keys_values: KeyValues) -> None:
        length = keys_values[0][0].shape[2]
        if not self._rows:
            self._cache = keys_values
            self._mask = torch.ones(1, length, dtype=torch.long)
        else:
            width = max(length, self._mask.shape[1])
            self._cache = [
                (
                    torch.cat([_left_pad(old_k, width), _left_pad(new_k, width)]),
                    torch.cat([_left_pad(old_v, width), _left_pad(new_v, width)]),
                )
                for (old_k, old_v), (new_k, new_v) in zip(self._cache, keys_values, strict=True)
            ]
            mine = torch.ones(1, length, dtype=torch.long)
            self._mask = torch.cat([_pad_mask(self._mask, width), _pad_mask(mine, width)])
        self._rows.append(row)

    def _select(self, rows: list[int]) -> None:
        self._rows = [self._rows[i] for i in rows]
        if not rows:
            self._cache, self._mask = [], torch.zeros(0, 0, dtype=torch.long)
            return
        self._mask = self._mask[rows]
        unused = int((self._mask.cumsum(1) == 0).sum(1).min())
        self._mask = self._mask[:, unused:]
        self._cache = [(k[rows][:, :, unused:], v[rows][:, :, unused:]) for k, v in self._cache]


def _mixed(seed: int, prompt: list[int]) -> int:
    text = f"{seed}/{prompt}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8]) >> 1


def _left_pad(tensor: torch.Tensor, width: int) -> torch.Tensor:
    missing = width - tensor.shape[2]
    return torch.nn.functional.pad(tensor, (0, 0, missing, 0)) if missing else tensor


def _pad_mask(mask: torch.Tensor, width: int) -> torch.Tensor:
    missing = width - mask.shape[1]
    return torch.nn.functional.pad(mask, (missing, 0)) if missing else mask
