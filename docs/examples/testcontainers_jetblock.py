"""jetblock in a container, for tests in Python: needs Docker, and `pip install testcontainers nats-py`.

    with JetblockContainer() as jetblock:
        client = await nats.connect(jetblock.url)
"""

from __future__ import annotations

from types import TracebackType

from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import HttpWaitStrategy

__all__ = ["JetblockContainer"]


class JetblockContainer(DockerContainer):
    """A broker that keeps its streams in memory, on free ports of this machine; ready once it serves clients."""

    def __init__(self, image: str = "jetblock/jetblock", *, store: str = "memory://") -> None:
        super().__init__(image)
        self.with_exposed_ports(4222, 8222)
        self.with_command(["-m", "8222", "--store", store])
        self.waiting_for(HttpWaitStrategy(8222, "/healthz").for_status_code(200))

    def __enter__(self) -> JetblockContainer:
        super().__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 where: TracebackType | None) -> None:
        super().__exit__(kind, error, where)

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"nats://{self.get_container_host_ip()}:{self.get_exposed_port(4222)}"
