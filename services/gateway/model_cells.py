"""The cells that serve one model: which of them gets a request, and which one has it."""

import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

from services.gateway.cell_context import CellContext
from services.gateway.errors import MAX_NAME_LENGTH, SLO_UNATTAINABLE, ApiError
from services.gateway.inflight import Confirm, InFlightRequest
from services.gateway.routing import route
from services.gateway.stores.conversations import Conversations
from services.gateway.stores.idempotency import IdempotencyKeys
from shared.errors import RetryLater, StorageFull
from shared.messages.gateway import Claim


class ModelCells:
    def __init__(self, cells: Sequence[CellContext]) -> None:
        self.cells = cells
        self.first = cells[0]  # has the model's Idempotency-Keys and stored responses
        self.text = self.first.text
        self.name = self.text.card.name  # the model's name in the API
        self.idempotency = IdempotencyKeys(self.first.connection)
        self.conversations = Conversations({cell.name: cell.connection for cell in cells}, self.first.name)
        self._random = random.Random()

    def named(self, name: str) -> CellContext:
        """The cell with this name. Raises: ApiError 404 if the model has none."""
        for cell in self.cells:
            if cell.name == name:
                return cell
        names = ", ".join(cell.name for cell in self.cells)
        message = f"the model {self.name} has no cell {name[:MAX_NAME_LENGTH]!r}; accepted: {names}"
        raise ApiError(404, message, param="cell", code="not_found")

    def routed(self) -> Iterator[CellContext]:
        """The cells that accept requests, best first."""
        return route(self.cells, lambda cell: cell.readiness.load(), self._random)

    async def offer(self, open_in: Callable[[CellContext], Awaitable[InFlightRequest]]) -> InFlightRequest:
        """Call `open_in` for one cell after the other until one does not refuse.

        Raises: the refusal of the best cell if all are full or cannot meet the SLO; RetryLater with the reasons if none
        accepts requests; any other error of `open_in`.
        """
        refusal: Exception | None = None
        for cell in self.routed():
            try:
                return await open_in(cell)
            except StorageFull as error:
                refusal = refusal or error
            except ApiError as error:
                if error.code != SLO_UNATTAINABLE:
                    raise
                refusal = refusal or error
        raise refusal or self._refusal()

    async def claimed(self, owner: str, key: str, path: str, body: str) -> tuple[str, CellContext, Confirm]:
        """The request that an Idempotency-Key names, its cell, and what confirms that the bus has stored it.

        The cell is the one that has the request, or the best one for a new key.

        Raises: as IdempotencyKeys.claim; RetryLater if the cell cannot serve, and has no outcome of the request.
        """
        request_id, claim = await self.idempotency.claim(owner, key, path, body, self._best_name())
        return request_id, *await self._claimed(request_id, claim)

    async def claimed_line(self, request_id: str) -> tuple[CellContext, Confirm]:
        """As `claimed`, for the line of a batch, at whichever gateway. Raises: RetryLater."""
        if len(self.cells) == 1:
            return self.first, self._confirm(self.first, request_id, Claim(fingerprint="", cell=self.first.name))
        return await self._claimed(request_id, await self.idempotency.first_claim(request_id, "", self._best_name()))

    def _best_name(self) -> str | None:
        best = next(self.routed(), None)
        return None if best is None else best.name

    async def _claimed(self, request_id: str, claim: Claim | None) -> tuple[CellContext, Confirm]:
        if claim is None:
            raise self._refusal()
        cell = self.named(claim.cell) if claim.cell else self.first  # a claim of an earlier version has no cell
        try:
            cell.readiness.check_serves()
        except RetryLater:
            if not cell.connection.is_connected or await cell.connection.bus.outcome(request_id) is None:
                raise
        return cell, self._confirm(cell, request_id, claim)

    def _confirm(self, cell: CellContext, request_id: str, claim: Claim) -> Confirm:
        return partial(self.idempotency.confirm, cell.connection, request_id, claim)

    def _refusal(self) -> RetryLater:
        """Why no cell accepts requests."""
        reasons = list[RetryLater]()
        for cell in self.cells:
            try:
                cell.readiness.check_accepts()
            except RetryLater as error:
                reasons.append(error if len(self.cells) == 1 else RetryLater(f"{cell.name}: {error}"))
        return reasons[0] if len(reasons) == 1 else RetryLater("; ".join(map(str, reasons)) or "try again")
