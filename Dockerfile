# Two stages: wheels are made where pip and a compiler may be needed, and only the environment goes on.
FROM python:3.11-slim AS build
WORKDIR /src
RUN python -m venv /opt/jetblock
COPY pyproject.toml README.md LICENSE ./
COPY broker broker
RUN /opt/jetblock/bin/pip install --no-cache-dir . \
 && /opt/jetblock/bin/python -m compileall -q /opt/jetblock/lib \
 && /opt/jetblock/bin/pip uninstall -y -q pip setuptools

FROM python:3.11-slim
# A fixed id, so that a directory mounted for file:// stores can be given to it beforehand.
RUN useradd --system --uid 10001 --home-dir /var/lib/jetblock --create-home jetblock
COPY --from=build /opt/jetblock /opt/jetblock
COPY config/jetblock.conf /etc/jetblock/jetblock.conf
ENV PATH=/opt/jetblock/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER jetblock
WORKDIR /var/lib/jetblock
EXPOSE 4222 8222
# A standby answers 503: it is alive but takes no clients yet.
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 CMD ["python", "-c", \
  "import urllib.request as u; u.urlopen('http://127.0.0.1:8222/healthz', timeout=2)"]
# SIGTERM is the clean end: commit, answer what was committed, close.
STOPSIGNAL SIGTERM
ENTRYPOINT ["jetblock"]
CMD ["-c", "/etc/jetblock/jetblock.conf", "--store", "file:///var/lib/jetblock/data"]
