"""The SLO, priority, quality floor and block length of a body that does not give them itself: from its headers, or else
from the operator's tables for OpenAI's fields `service_tier` and `reasoning_effort`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.datastructures import Headers

from services.gateway.api.field_types import MAX_SLO_MS, BlockLength, Priority, SloMs, Threshold
from services.gateway.api.request_models import ServedBody
from services.gateway.errors import MAX_NAME_LENGTH, ApiError
from shared.errors import BadInput

PREFIX = "X-Dilaserve-"
NEUTRAL_TIERS = ("auto", "default")
TIER = re.compile(r"(?P<name>[A-Za-z0-9_-]+)=(?P<slo_ms>[0-9]{1,8})(?::(?P<priority>-?[0-9]{1,3}))?")
EFFORT = re.compile(r"(?P<name>[A-Za-z0-9_-]+)=(?P<min_threshold>[0-9]{0,2}\.?[0-9]{1,6})")
ACCEPTED_TIER = f"NAME=SLO_MS or NAME=SLO_MS:PRIORITY, such as flex=60000:-20; up to {MAX_SLO_MS} ms, -100 to 100"
ACCEPTED_EFFORT = "NAME=THRESHOLD, such as high=0.9; 0 to 1"

Fields = Mapping[str, float]  # values by the body's field


def header_name(name: str) -> str:
    """The header of a field: `X-Dilaserve-Slo-Ms` for `slo_ms`."""
    return PREFIX + "-".join(part.capitalize() for part in name.split("_"))


class HeaderFields(BaseModel):
    """The fields that a client may send as headers, or an operator's tables have. Their numbers are read from texts."""

    model_config = ConfigDict(frozen=True, alias_generator=header_name, populate_by_name=True)

    slo_ms: SloMs | None = None
    priority: Priority | None = None
    min_threshold: Threshold | None = None
    block_length: BlockLength | None = None


_HEADERS = {header_name(name).lower(): header_name(name) for name in HeaderFields.model_fields}


class ServingTables:
    """The operator's tables: by name, the fields of a tier and of an effort."""

    def __init__(self, tiers: Sequence[str] = (), efforts: Sequence[str] = ()) -> None:
        """From the settings `service_tiers` and `reasoning_efforts`. Raises: BadInput naming the wrong entry."""
        self.tiers = _table("service_tiers", tiers, TIER, ACCEPTED_TIER)
        self.efforts = _table("reasoning_efforts", efforts, EFFORT, ACCEPTED_EFFORT)

    def ignored(self, body: ServedBody) -> list[str]:
        """The fields of the body that have no effect, as their table is empty."""
        return [field for field, _, table in self._chosen(body) if not table]

    def fields_of(self, body: ServedBody) -> dict[str, float]:
        """The fields that the body's tier and effort name. Raises: ApiError 400 for an unknown one."""
        fields: dict[str, float] = {}
        for field_name, name, table in self._chosen(body):
            if table and name not in table:
                accepted = ", ".join([*(NEUTRAL_TIERS if table is self.tiers else ()), *table])
                message = f"{field_name} {name[:MAX_NAME_LENGTH]!r} is not known; accepted: {accepted}"
                raise ApiError(400, message, param=field_name, code="unsupported_value")
            fields |= table.get(name, {})
        return fields

    def _chosen(self, body: ServedBody) -> Iterator[tuple[str, str, Mapping[str, Fields]]]:
        """Each of the body's fields that names an entry of a table, the name, and the table."""
        if body.service_tier is not None and body.service_tier not in NEUTRAL_TIERS:
            yield "service_tier", body.service_tier, self.tiers
        effort: Any = body
        for name in body.effort_field.split("."):
            effort = getattr(effort, name, None)
        if isinstance(effort, str):
            yield body.effort_field, effort, self.efforts


def with_serving_fields(body: ServedBody, headers: Headers, tables: ServingTables) -> ServedBody:
    """Fill in the serving fields that the body leaves open: a header comes before a table.

    Raises: pydantic's ValidationError naming the wrong header; ApiError 400 for an unknown tier or effort.
    """
    sent = {_HEADERS[name]: value for name, value in headers.items() if name in _HEADERS}
    fields: dict[str, Any] = tables.fields_of(body)
    if sent:
        fields |= HeaderFields.model_validate(sent).model_dump(exclude_none=True)
    missing: dict[str, Any] = {name: value for name, value in fields.items() if getattr(body, name) is None}
    if "service_tier" in tables.ignored(body):
        missing["service_tier"] = "default"
    return body.model_copy(update=missing) if missing else body


def _table(setting: str, entries: Sequence[str], form: re.Pattern[str], accepted: str) -> dict[str, Fields]:
    """Raises: BadInput naming the wrong entry."""
    table: dict[str, Fields] = {}
    for entry in entries:
        found, reason = form.fullmatch(entry), ""
        try:
            given = HeaderFields.model_validate(found.groupdict() if found is not None else {})
        except ValidationError:
            found = None
        if found is None:
            reason = f"accepted: {accepted}"
        elif form is TIER and found["name"] in NEUTRAL_TIERS:
            reason = f"{found['name']} always means no tier; choose another name"
        elif found["name"] in table:
            reason = f"the name {found['name']} is used twice"
        if reason or found is None:
            variable = f"DILASERVE_{setting.upper()}"
            raise BadInput(f"{variable}: {entry!r}: {reason}", field=variable)
        table[found["name"]] = given.model_dump(exclude_none=True)
    return table
