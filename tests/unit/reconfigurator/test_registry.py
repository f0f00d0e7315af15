"""What the reconfigurator knows of instances."""

from typing import cast

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from services.reconfigurator.execution.registered_instances import RegisteredInstances
from shared.bus.codec import encode
from shared.messages.instances import Instance, ModelCard

CARD = ModelCard(name="m", max_length=512, mask_token_id=0, eos_token_id=1, vocab_size=100)


async def test_an_instance_that_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, nobody = RegisteredInstances(), cast("Client", None)
    renewal = encode(Instance(instance_id="i-1", model=CARD, tp_degree=1))
    await registry._hear(Msg(nobody, subject="$KV.instances-c.i-1", data=renewal))
    assert [instance.instance_id for instance in registry.instances()] == ["i-1"]
    with monkeypatch.context() as later:
        later.setattr("services.reconfigurator.execution.registered_instances.INSTANCE_TTL_S", -1.0)
        assert registry.instances() == []
    assert registry.instances() == [], "not only left out: workers that come and go would fill the memory"
