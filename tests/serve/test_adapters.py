"""Adapters on one trunk: each answers as by itself, they share batches, and come and go while requests are answered."""

import shutil
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "checkpoint"))
from serving import running, same, wait_until
from test_adapters_folder import write_adapter

import bertkit
from bertkit.errors import RequestError
from bertkit.serve.engine import SharedEncoder
from bertkit.serve.models import load_models

CPU = torch.device("cpu")
