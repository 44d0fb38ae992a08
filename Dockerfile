# Two stages: the first makes wheels, with pip and perhaps a compiler; the second gets only the environment.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
RUN python -m venv /opt/jetblock
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY broker broker
COPY jetblock jetblock
RUN /opt/jetblock/bin/pip install --no-cache-dir . \
 && /opt/jetblock/bin/python -m compileall -q /opt/jetblock/lib \
 && /opt/jetblock/bin/pip uninstall -y -q pip setuptools

FROM ${PYTHON_IMAGE}
# The user has a fixed id, so that a directory that is mounted for file:// stores can have this owner beforehand. A new
# volume gets the owner of the folder that it is mounted on, so the folder is made before VOLUME declares it.
RUN groupadd --system --gid 10001 jetblock \
 && useradd --system --uid 10001 --gid jetblock --home-dir /var/lib/jetblock --create-home jetblock \
 && install --directory --owner=jetblock --group=jetblock --mode=0750 /var/lib/jetblock/data
COPY --from=build /opt/jetblock /opt/jetblock
COPY config/jetblock.conf /etc/jetblock/jetblock.conf
ENV PATH=/opt/jetblock/bin:$PATH PYTHONDONTWRITEBYTECODE=1
# The user is a number, so that an orchestrator can see that it is not root.
USER 10001:10001
WORKDIR /var/lib/jetblock
VOLUME /var/lib/jetblock/data
EXPOSE 4222 8222
# The check passes for a live broker, also for a standby and for one that replays a long log; /healthz without ?live=1
# passes only for a broker that serves clients. The request ignores proxies in the environment.
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 CMD ["python", "-c", \
  "import os, urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:' + (os.environ.get('JETBLOCK_HTTP_PORT') or '8222') + '/healthz?live=1', timeout=2)"]
# SIGTERM stops cleanly: commit, acknowledge, close.
STOPSIGNAL SIGTERM
ENTRYPOINT ["jetblock"]
CMD ["-c", "/etc/jetblock/jetblock.conf", "--store", "file:///var/lib/jetblock/data"]
