# syntax=docker/dockerfile:1
# Build:  docker build -t trunkline:0.2.0 --build-arg REVISION=$(git rev-parse HEAD) .
#         docker build -t trunkline:0.2.0-cuda --target cuda .
# Run:    docker run --read-only --tmpfs /tmp -p 3000:3000 -v trunkline-models:/models trunkline:0.2.0 [MODEL]
# The image is built with the same make targets as a development build. docs/kubernetes.md has its sizes.

FROM debian:trixie-20260713-slim AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential ca-certificates make python3 python3-venv rustup \
    && rm -rf /var/lib/apt/lists/*
RUN rustup default 1.95
WORKDIR /src
COPY . .
RUN make wheel

FROM build AS environment-cpu
RUN make image-environment PREFIX=/opt/trunkline

FROM build AS environment-cuda
# The address of a wheel of flash-attn for `--numerics fast`, which no registry has (docs/gpu.md).
ARG FLASH_ATTN=""
RUN make image-environment PREFIX=/opt/trunkline GPU=1 FLASH="$FLASH_ATTN"

# The user has a number, so that Kubernetes sees that it is not root. Only /models and /tmp are written to. The second
# port answers the health check, whatever keys and certificates the first one asks for.
FROM debian:trixie-20260713-slim AS system
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --no-create-home --home-dir /tmp --uid 10001 trunkline \
    && install -d -o trunkline -g trunkline /models
ENV PATH=/opt/trunkline/bin:$PATH HOME=/tmp HF_HOME=/models XDG_CACHE_HOME=/models/cache PYTHONDONTWRITEBYTECODE=1 \
    TRUNKLINE_HOSTNAME=0.0.0.0 TRUNKLINE_PORT=3000 TRUNKLINE_METRICS_PORT=9000
USER 10001:10001
VOLUME /models
EXPOSE 3000 9000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=2s --start-period=120s --retries=3 \
    CMD ["python3", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ['TRUNKLINE_METRICS_PORT']}/readyz\", timeout=2)"]
ENTRYPOINT ["trunkline", "serve"]
ARG VERSION=0.2.0
ARG REVISION=""
LABEL org.opencontainers.image.title="Trunkline" \
    org.opencontainers.image.description="An inference server for large language models in long conversations" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version=$VERSION \
    org.opencontainers.image.revision=$REVISION

# Triton compiles the launchers of its kernels with a C compiler and Python's headers.
FROM system AS cuda
USER 0
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev python3-dev \
    && rm -rf /var/lib/apt/lists/*
USER 10001:10001
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility TRUNKLINE_BACKEND=cuda
COPY --from=environment-cuda /opt/trunkline /opt/trunkline

FROM system AS cpu
COPY --from=environment-cpu /opt/trunkline /opt/trunkline
