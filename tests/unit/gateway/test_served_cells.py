"""The cells of a gateway, from its settings."""

import pytest

from services.gateway.served_cells import by_model, served_cells
from services.gateway.settings import GatewaySettings
from shared.errors import BadInput

NATS_URL = "nats://own:4222"


def settings(*more_models: str) -> GatewaySettings:
    return GatewaySettings(model="models/demo", nats_url=NATS_URL, cell="own", alive_file="a", more_models=more_models)


def test_without_further_models_the_own_cell_is_the_only_one() -> None:
    [own] = served_cells(settings())
    assert (own.model, own.model_name, own.cell, own.nats_url, own.alive_file) == (
        *("models/demo", "demo"),
        *("own", NATS_URL, "a"),
    )


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("big=/models/big@b", ("big", "/models/big", "b", NATS_URL)),
        ("big=GSAI-ML/LLaDA-8B@cell-1", ("big", "GSAI-ML/LLaDA-8B", "cell-1", NATS_URL)),
        ("GSAI-ML/big=m@tls://gateway:p@other:4222/b", ("GSAI-ML/big", "m", "b", "tls://gateway:p@other:4222")),
        ("big=m@nats://other/own", ("big", "m", "own", "nats://other")),
        ("big=m=1@b", ("big", "m=1", "b", NATS_URL)),
    ],
)
def test_an_entry_names_a_model_and_its_cell(entry: str, expected: tuple[str, ...]) -> None:
    own, cell = served_cells(settings(entry))
    assert (cell.model_name, cell.model, cell.cell, cell.nats_url) == expected
    assert (own.alive_file, cell.alive_file, cell.more_models) == ("a", "", ())


@pytest.mark.parametrize("entry", ["big", "big=m", "=m@b", "big=@b", "big=m@", "big=m@B", "big=m@ftp://x/b", "a b=m@b"])
def test_an_entry_of_another_form_is_refused_by_its_number(entry: str) -> None:
    with pytest.raises(BadInput, match=r"DILASERVE_MORE_MODELS: entry 2\b"):
        served_cells(settings("fine=m@fine", entry))


def test_a_refused_entry_does_not_show_its_password() -> None:
    for entry in ("big=m@nats://gateway:secret@other:4222/B", "big=m@nats://gateway:secret@other:port/b"):
        with pytest.raises(BadInput) as refusal:
            served_cells(settings(entry))
        assert "secret" not in refusal.value.message


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (("demo=m@b",), "the name demo is there with two models, models/demo and m"),
        (("a=m@b", "a=n@c"), "the name a is there with two models, m and n"),
        (("a=m@b", "a=m@nats://other/b"), "two cells of the model a have the name b"),
        (("a=m@own",), "the cell own is there twice"),
        (("a=m@b", "c=n@b"), "the cell b is there twice"),
    ],
)
def test_a_name_and_a_cell_belong_to_one_model(entries: tuple[str, ...], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        served_cells(settings(*entries))


def test_several_cells_may_serve_one_model() -> None:
    cells = served_cells(settings("demo=models/demo@b", "big=m@c", "demo=models/demo@d"))
    assert [[cell.cell for cell in of_model] for of_model in by_model(cells)] == [["own", "b", "d"], ["c"]]
