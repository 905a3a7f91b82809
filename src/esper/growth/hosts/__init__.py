"""Hosts that come with Esper: small networks with slots around their blocks."""

from esper.growth.hosts.cnn import CNNHost
from esper.growth.hosts.gpt import GPTHost
from esper.growth.hosts.making import HostMaker, build_host, make_host, sample_input
from esper.growth.hosts.mlp import MLPHost

__all__ = ["CNNHost", "GPTHost", "HostMaker", "MLPHost", "build_host", "make_host", "sample_input"]
