"""Hosts that come with Esper: small networks with slots around their blocks."""

from esper.growth.hosts.factory import HostMaker, build_host, make_host, sample_input
from esper.growth.hosts.models import CNNHost, GPTHost, MLPHost

__all__ = ["CNNHost", "GPTHost", "HostMaker", "MLPHost", "build_host", "make_host", "sample_input"]
