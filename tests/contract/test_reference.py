"""The generated reference is current, and the AsyncAPI document is complete and valid."""

import importlib
import inspect
import json
import pkgutil
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from dilaserve.reference import asyncapi, configuration
from dilaserve.reference.__main__ import pages
from dilaserve.stack.services import SETTINGS
from shared import messages
from shared.bus.codec import encode
from shared.messages.requests import Request

DOCUMENT = asyncapi.document()


def references(node: Any) -> list[str]:
    """Every `$ref` below `node`."""
    if isinstance(node, list):
        return [found for part in node for found in references(part)]
    if isinstance(node, dict):
        below = [found for name, part in node.items() if name != "$ref" for found in references(part)]
        return below + ([node["$ref"]] if "$ref" in node else [])
    return []


def resolve(reference: str) -> Any:
    node: Any = DOCUMENT
    for part in reference.removeprefix("#/").split("/"):
        node = node[part]
    return node


def messages_with_a_subject() -> set[str]:
    modules = [
        importlib.import_module(f"{messages.__name__}.{found.name}")
        for found in pkgutil.iter_modules(messages.__path__)
    ]
    kinds = [kind for module in modules for kind in vars(module).values() if inspect.isclass(kind)]
    return {kind.__name__ for kind in kinds if issubclass(kind, msgspec.Struct) and "Subject: " in (kind.__doc__ or "")}


def test_the_committed_pages_are_current() -> None:
    for path, text in pages().items():
        assert path.read_text() == text, f"{path.name} is stale: run python -m dilaserve.reference"


def test_every_reference_has_a_target() -> None:
    found = references(DOCUMENT)
    assert found
    assert all(resolve(reference) for reference in found)


def test_the_document_has_the_required_parts_of_asyncapi_3() -> None:
    assert DOCUMENT["asyncapi"] == "3.0.0"
    assert {"title", "version"} <= DOCUMENT["info"].keys()
    for operation in DOCUMENT["operations"].values():
        assert operation["action"] == "send"
        channel = resolve(operation["channel"]["$ref"])
        for message in operation["messages"]:
            assert resolve(message["$ref"]) in channel["messages"].values()
    for channel in DOCUMENT["channels"].values():
        named = {part.split("}")[0] for part in (channel["address"] or "").split("{")[1:]}
        assert named == channel.get("parameters", {}).keys()


def test_every_message_with_a_subject_is_in_the_document() -> None:
    missing = messages_with_a_subject() - DOCUMENT["components"]["messages"].keys()
    assert not missing


def test_every_schema_is_a_json_schema() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)


def test_the_schema_accepts_a_request_and_rejects_an_invalid_one() -> None:
    schema = {"$ref": "#/components/schemas/Request", "components": DOCUMENT["components"]}
    validator = jsonschema_rs.validator_for(schema)
    validator.validate(json.loads(encode(Request(request_id="r-1", prompt="2+2?"), json=True)))
    assert not validator.is_valid({"request_id": "not one token.", "prompt": "2+2?"})


@pytest.mark.parametrize("kind", SETTINGS.values(), ids=lambda kind: kind.__name__)
def test_every_setting_is_in_the_reference(kind: type[msgspec.Struct]) -> None:
    page = configuration.text()
    for field in msgspec.structs.fields(kind):
        assert f"`DILASERVE_{field.name.upper()}`" in page
