"""The SLO, priority, quality floor and block length of a body that does not give them itself: from its headers, or else
from the operator's tables for OpenAI's fields `service_tier` and `reasoning_effort`."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict
from starlette.datastructures import Headers

from services.gateway.api.request_models import MAX_SLO_MS, BlockLength, Priority, ServedBody, SloMs, Threshold
from services.gateway.errors import MAX_NAME_LENGTH, ApiError
from shared.errors import BadInput

PREFIX = "X-Dilaserve-"
NEUTRAL_TIERS = ("auto", "default")
MAX_PRIORITY = 100  # of a tier, and the lowest is its negative
TIER = re.compile(r"([A-Za-z0-9_-]+)=([0-9]{1,8})(?::(-?[0-9]{1,3}))?")
EFFORT = re.compile(r"([A-Za-z0-9_-]+)=([0-9]{0,2}\.?[0-9]{1,6})")

Fields = Mapping[str, float]  # values by the body's field

B = TypeVar("B", bound=ServedBody)


def header_name(name: str) -> str:
    """The header of a field: `X-Dilaserve-Slo-Ms` for `slo_ms`."""
    return PREFIX + "-".join(part.capitalize() for part in name.split("_"))


class HeaderFields(BaseModel):
    """The fields that a client may send as headers. Their values are texts, so numbers are read from them."""

    model_config = ConfigDict(frozen=True, alias_generator=header_name)

    slo_ms: SloMs | None = None
    priority: Priority | None = None
    min_threshold: Threshold | None = None
    block_length: BlockLength | None = None


_HEADERS = {header_name(name).lower(): header_name(name) for name in HeaderFields.model_fields}


@dataclass(frozen=True, slots=True)
class ServingTables:
    """The operator's tables: by name, the fields of a tier and of an effort."""

    tiers: Mapping[str, Fields] = field(default_factory=dict)
    efforts: Mapping[str, Fields] = field(default_factory=dict)

    @classmethod
    def read(cls, tiers: Sequence[str], efforts: Sequence[str]) -> Self:
        """From the settings `service_tiers` and `reasoning_efforts`. Raises: BadInput naming the wrong entry."""
        return cls(_table("service_tiers", tiers, _tier), _table("reasoning_efforts", efforts, _effort))

    def ignored(self, body: ServedBody) -> list[str]:
        """The fields of the body that have no effect, as their table is empty."""
        name, effort = body.effort
        has_tier, has_effort = body.service_tier not in (None, *NEUTRAL_TIERS), effort is not None
        return ["service_tier"] * (has_tier and not self.tiers) + [name] * (has_effort and not self.efforts)

    def fields_of(self, body: ServedBody) -> dict[str, float]:
        """The fields that the body's tier and effort name. Raises: ApiError 400 for an unknown one."""
        fields: dict[str, float] = {}
        if body.service_tier is not None and body.service_tier not in NEUTRAL_TIERS and self.tiers:
            fields |= _find("service_tier", body.service_tier, self.tiers, (*NEUTRAL_TIERS, *self.tiers))
        name, effort = body.effort
        if effort is not None and self.efforts:
            fields |= _find(name, effort, self.efforts, self.efforts)
        return fields


def with_serving_fields(body: B, headers: Headers, tables: ServingTables) -> B:
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


def _find(param: str, name: str, table: Mapping[str, Fields], accepted: Iterable[str]) -> Fields:
    if name not in table:
        message = f"{param} {name[:MAX_NAME_LENGTH]!r} is not known; accepted: {', '.join(accepted)}"
        raise ApiError(400, message, param=param, code="unsupported_value")
    return table[name]


def _table(setting: str, entries: Sequence[str], read: Callable[[str], tuple[str, Fields]]) -> dict[str, Fields]:
    table: dict[str, Fields] = {}
    for entry in entries:
        name, fields = read(entry)
        if name in table:
            raise _invalid(setting, entry, f"the name {name} is used twice")
        table[name] = fields
    return table


def _tier(entry: str) -> tuple[str, Fields]:
    accepted = f"NAME=SLO_MS or NAME=SLO_MS:PRIORITY, such as flex=60000:-20; up to {MAX_SLO_MS} ms, -100 to 100"
    found = TIER.fullmatch(entry)
    if found is None:
        raise _invalid("service_tiers", entry, f"accepted: {accepted}")
    name, slo_ms, priority = found[1], int(found[2]), int(found[3] or 0)
    if name in NEUTRAL_TIERS:
        raise _invalid("service_tiers", entry, f"{name} always means no tier; choose another name")
    if not 0 < slo_ms <= MAX_SLO_MS or abs(priority) > MAX_PRIORITY:
        raise _invalid("service_tiers", entry, f"accepted: {accepted}")
    return name, {"slo_ms": slo_ms} | ({"priority": priority} if found[3] else {})


def _effort(entry: str) -> tuple[str, Fields]:
    found = EFFORT.fullmatch(entry)
    if found is None or float(found[2]) > 1:
        raise _invalid("reasoning_efforts", entry, "accepted: NAME=THRESHOLD, such as high=0.9; 0 to 1")
    return found[1], {"min_threshold": float(found[2])}


def _invalid(setting: str, entry: str, reason: str) -> BadInput:
    variable = f"DILASERVE_{setting.upper()}"
    return BadInput(f"{variable}: {entry!r}: {reason}", field=variable)
