# Two stages: wheels are made where pip and a compiler may be needed, and only the environment goes on.
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
# A fixed id, so that a directory mounted for file:// stores can be given to it beforehand. A new volume takes the
# owner of the folder that it is mounted on: the folder is made before it is declared one.
RUN groupadd --system --gid 10001 jetblock \
 && useradd --system --uid 10001 --gid jetblock --home-dir /var/lib/jetblock --create-home jetblock \
 && install --directory --owner=jetblock --group=jetblock --mode=0750 /var/lib/jetblock/data
COPY --from=build /opt/jetblock /opt/jetblock
COPY config/jetblock.conf /etc/jetblock/jetblock.conf
ENV PATH=/opt/jetblock/bin:$PATH PYTHONDONTWRITEBYTECODE=1
# By number, so that an orchestrator can see that it is not root.
USER 10001:10001
WORKDIR /var/lib/jetblock
VOLUME /var/lib/jetblock/data
EXPOSE 4222 8222
# Whether it is alive, which a standby and a broker that replays a long log are, too; whether it serves clients is what
# /healthz says without ?live=1. Past any proxy that the environment names.
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 CMD ["python", "-c", \
  "import os, urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:' + (os.environ.get('JETBLOCK_HTTP_PORT') or '8222') + '/healthz?live=1', timeout=2)"]
# SIGTERM is the clean end: commit, answer what was committed, close.
STOPSIGNAL SIGTERM
ENTRYPOINT ["jetblock"]
CMD ["-c", "/etc/jetblock/jetblock.conf", "--store", "file:///var/lib/jetblock/data"]
