"""The parts of one gateway, which its routes share."""

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers

from services.gateway.admission.admission import AdmissionController
from services.gateway.api.form_compiler import FormCompiler
from services.gateway.api.plan import BodyPlan, BodyPlanner
from services.gateway.api.request_body import BodyBudget
from services.gateway.api.request_models import ServedBody
from services.gateway.api.serving_fields import ServingTables, with_serving_fields
from services.gateway.cell_context import CellContext
from services.gateway.errors import MAX_NAME_LENGTH, ApiError, unless_left
from services.gateway.metrics import GatewayMetrics
from services.gateway.model_cells import ModelCells
from services.gateway.served_cells import by_model, served_cells
from services.gateway.settings import GatewaySettings
from services.gateway.stores.batch_store import BatchStore
from services.gateway.stores.file_store import FileStore
from shared.api_keys import ANONYMOUS, ApiKey
from shared.errors import RetryLater
from shared.text import TextModel

if TYPE_CHECKING:
    from services.gateway.admission.api_keys import ApiKeyCache


class AppContext:
    def __init__(self, settings: GatewaySettings, texts: Sequence[TextModel], api_keys: "ApiKeyCache | None") -> None:
        """`texts`: of each model. Raises: BadInput if `more_models` or a table of the settings is invalid."""
        of_models = zip(by_model(served_cells(settings)), texts, strict=True)
        self.models = [ModelCells([CellContext(cell, text) for cell in cells]) for cells, text in of_models]
        self.cells = [cell for model in self.models for cell in model.cells]
        self.own_cell = self.cells[0]  # of the gateway's settings, which also has the files and batches
        anonymous = replace(ANONYMOUS, stores_responses=settings.store_responses)
        self.admission = AdmissionController(api_keys, self.cells, settings.max_active_requests, anonymous)
        connection = self.own_cell.connection
        self.files = FileStore(connection, settings.max_files_per_key, settings.max_file_bytes_per_key)
        self.batches = BatchStore(connection)
        self.bodies = BodyBudget(settings.max_body_memory_bytes)
        self.tables = ServingTables(settings.service_tiers, settings.reasoning_efforts)
        self.patterns, self.metrics = FormCompiler(), GatewayMetrics()
        self.started_s = time.time()  # Unix time, seconds

    def check_ready(self) -> None:
        """Raises: RetryLater with the reasons if requests can be served for no model."""
        problems = list[str]()
        for model in self.models:
            for cell in model.cells:
                if not (problem := cell.readiness.problem()):
                    return
                labels = [model.name] * (len(self.models) > 1) + [cell.name] * (len(model.cells) > 1)
                problems.append(": ".join([*labels, problem]))
        raise RetryLater("; ".join(problems))

    async def plan(
        self,
        sent: ServedBody,
        headers: Headers,
        key: ApiKey,
        left: Callable[[], Coroutine[Any, Any, object]] | None = None,
    ) -> tuple[ServedBody, ModelCells, BodyPlan]:
        """The body with its serving fields, the cells that serve its model, and the plan of its requests. `left()` ends
        when the client leaves, for whom no form is then compiled."""
        body = with_serving_fields(sent, headers, self.tables)
        model = self.cells_of(body.model)
        planner = BodyPlanner(model.text, self.patterns, key, model.conversations)
        wanted = await body.wanted(planner)
        planning, has_form = planner.plan(wanted), bool(wanted.forms or wanted.tools.tools)
        return body, model, await (unless_left(left(), planning) if left is not None and has_form else planning)

    def cells_of(self, model: str | None) -> ModelCells:
        """The cells that serve a model; without its name, those of the only one. Raises: ApiError 404 if none does; 400
        without a name if there are several."""
        found = [each for each in self.models if not model or each.name == model]
        if len(found) == 1:
            return found[0]
        served = ", ".join(repr(each.name) for each in self.models)
        if not model:
            message, code = f"model is required; served: {served}", "missing_required_parameter"
            raise ApiError(400, message, param="model", code=code)
        message = f"the model {model[:MAX_NAME_LENGTH]!r} does not exist; served: {served}"
        raise ApiError(404, message, param="model", code="model_not_found")
