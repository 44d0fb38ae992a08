# For more than one processor: docker buildx build --platform linux/amd64,linux/arm64 .
# Three stages. The first makes a wheel for the target's processor on the builder's own, with a cross compiler, so nothing
# is compiled in emulation. The second installs it with pip; the last gets only the environment.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

# hadolint ignore=DL3029
FROM --platform=$BUILDPLATFORM ${PYTHON_IMAGE} AS wheel
ARG TARGETARCH
WORKDIR /src
COPY pyproject.toml hatch_build.py compile_modules.py README.md LICENSE ./
COPY broker broker
COPY jetblock jetblock
RUN case "$TARGETARCH" in \
      amd64) python compile_modules.py wheels x86_64 ;; \
      arm64) python compile_modules.py wheels aarch64 ;; \
      *) echo "no wheel for the processor '$TARGETARCH': build with BuildKit, for linux/amd64 or linux/arm64" >&2; exit 1 ;; \
    esac

FROM ${PYTHON_IMAGE} AS build
# "[console]" for an image that can also run `jetblock console`.
ARG EXTRAS=""
COPY --from=wheel /src/dist /wheels
RUN python -m venv /opt/jetblock \
 && /opt/jetblock/bin/pip install --no-cache-dir --only-binary=:all: "$(echo /wheels/*.whl)${EXTRAS}" \
 && /opt/jetblock/bin/python -m compileall -q /opt/jetblock/lib \
 && /opt/jetblock/bin/pip uninstall -y -q pip setuptools

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="jetblock" \
      org.opencontainers.image.description="A NATS and JetStream server that keeps its streams in object storage" \
      org.opencontainers.image.licenses="Apache-2.0"
# The user has a fixed id, so that a directory that is mounted for file:// stores can have this owner beforehand. A new
# volume gets the owner of the folder that it is mounted on, so the folder is made before VOLUME declares it.
RUN groupadd --system --gid 10001 jetblock \
 && useradd --system --uid 10001 --gid jetblock --home-dir /var/lib/jetblock --create-home jetblock \
 && install --directory --owner=jetblock --group=jetblock --mode=0750 /var/lib/jetblock/data
COPY --from=build /opt/jetblock /opt/jetblock
COPY config/jetblock.conf /etc/jetblock/jetblock.conf
# All threads allocate from one heap of the C library, so that what one has freed is not lost for the others.
ENV PATH=/opt/jetblock/bin:$PATH PYTHONDONTWRITEBYTECODE=1 MALLOC_ARENA_MAX=1
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
