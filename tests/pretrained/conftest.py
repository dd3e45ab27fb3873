"""Tiny models gain nothing from a second thread, and on a busy machine two threads wait for each other."""

import pytest


@pytest.fixture(scope="package", autouse=True)
def _one_thread():
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
