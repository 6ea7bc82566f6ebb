# The agent in a container: docker build -t livekit-unified-memory .
# Its root may be read-only: all it writes goes to the volume /data, temporary files included.
# FalkorDB's server is under the SSPL and is left out; --build-arg WITH_EMBEDDED=1 adds it, for a machine of its own.

FROM python:3.12.12-slim-bookworm AS base
ARG WITH_EMBEDDED=0
ENV PATH=/opt/venv/bin:$PATH \
    HF_HOME=/opt/models
# tini hands SIGTERM on and reaps what outlives a killed call. Debian keeps one version of a package, so none is named.
# hadolint ignore=DL3008
RUN apt-get update \
    && if [ "$WITH_EMBEDDED" = 1 ]; then embedded=libgomp1; fi \
    && apt-get install -y --no-install-recommends tini ${embedded:+"$embedded"} \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /app

FROM base AS build
COPY scripts/setup.sh scripts/
COPY requirements/server.txt requirements/models.txt requirements/embedded.txt requirements/
RUN if [ "$WITH_EMBEDDED" = 1 ]; then embedded=requirements/embedded.txt; fi \
    && PIP_NO_CACHE_DIR=1 sh scripts/setup.sh /opt/venv requirements/server.txt requirements/models.txt ${embedded:+"$embedded"}
COPY agent agent
COPY memory memory
RUN python -m compileall -q agent memory
# Without a network (75) the image is built all the same: what could not be fetched is named, and done without.
RUN mkdir -p "$HF_HOME" \
    && { VOICEASSIST_DATA_DIR=/tmp/build python -m agent download-files || [ "$?" -eq 75 ]; }

FROM base
LABEL org.opencontainers.image.title="livekit-unified-memory" \
      org.opencontainers.image.description="A LiveKit voice agent that remembers its callers" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 agent \
    && useradd --uid 10001 --gid agent --no-create-home --home-dir /data --shell /usr/sbin/nologin agent \
    && install -d -o agent -g agent -m 0700 /data
COPY --from=build /opt/venv /opt/venv
COPY --from=build /opt/models /opt/models
COPY --from=build /app/agent agent
COPY --from=build /app/memory memory
COPY LICENSE NOTICE deploy/healthcheck.py ./
ENV HOME=/data \
    TMPDIR=/data \
    VOICEASSIST_DATA_DIR=/data \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
VOLUME /data
EXPOSE 8081
# Told to stop, a worker takes no new calls and ends when its last one has: give it AGENT_DRAIN_SECONDS and 30 more.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 CMD ["python", "/app/healthcheck.py"]
ENTRYPOINT ["tini", "--"]
CMD ["python", "-m", "agent", "start"]
