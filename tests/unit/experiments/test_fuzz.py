"""Damaged messages are refused by the code behind each entry point; `python -m experiments.fuzz` runs for longer."""

import random
from pathlib import Path

import pytest

from experiments.fuzz.live import message_targets
from experiments.fuzz.mutations import mutated_message
from experiments.fuzz.receivers import RECEIVERS, Receiver
from experiments.fuzz.samples import SAMPLES, plain
from shared.bus.codec import encode
from shared.errors import BadInput
from shared.messages.decisions import StepDecisions
from shared.messages.gateway import StoredFile
from shared.messages.launch import LaunchReply
from shared.messages.predict import StepsLeft
from shared.messages.requests import ActiveRequest, UnfinishedRequests

INPUTS = 150
ANSWERS = (ActiveRequest, UnfinishedRequests, StepsLeft, LaunchReply)  # on a subject that the asking service makes
STORED = Path(__file__).parents[2] / "contract" / "samples"


@pytest.mark.parametrize("receiver", RECEIVERS, ids=lambda receiver: receiver.name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_damaged_message_is_refused_or_read_without_another_error(receiver: Receiver) -> None:
    rng = random.Random(receiver.name)
    content = plain(SAMPLES[receiver.kind])
    receiver.receive(encode(SAMPLES[receiver.kind]))
    refused = 0
    for _ in range(INPUTS):
        try:
            receiver.receive(mutated_message(content, rng))
        except BadInput:
            refused += 1
    assert 0 < refused < INPUTS


def test_every_message_on_a_subject_is_sent_to_a_running_cluster() -> None:
    sent = {kind for kind, _ in message_targets("a-1", ["weights.a", "canary.a"])}
    assert sent | {*ANSWERS, StepDecisions, StoredFile} == set(SAMPLES)  # parts of an outcome and of an object's entry
    assert not sent & {*ANSWERS}


def test_every_type_of_message_is_fuzzed() -> None:
    assert {kind.__name__ for kind in SAMPLES} == {path.stem for path in STORED.glob("*.msgpack")}
