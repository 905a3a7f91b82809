"""Settings that all tests share."""

import torch
from hypothesis import settings

settings.register_profile("esper", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("esper")
torch.set_num_threads(1)
