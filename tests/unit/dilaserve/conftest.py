import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """The models here are too small to share out, and threads that wait for one another waste a busy machine."""
    torch.set_num_threads(1)
