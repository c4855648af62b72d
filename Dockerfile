# syntax=docker/dockerfile:1
# Build:  docker build -t trunkline .
# Run:    docker run -p 3000:3000 -v trunkline-models:/models trunkline [MODEL]
# The image is built with the same make targets as a development build.

FROM debian:trixie-20260713-slim AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential ca-certificates make python3 python3-venv rustup \
    && rm -rf /var/lib/apt/lists/*
RUN rustup default 1.95
WORKDIR /src
COPY . .
RUN make wheel && make image-environment PREFIX=/opt/trunkline

FROM debian:trixie-20260713-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 trunkline \
    && install -d -o trunkline -g trunkline /models
COPY --from=build /opt/trunkline /opt/trunkline
USER trunkline
ENV PATH=/opt/trunkline/bin:$PATH HF_HOME=/models TRUNKLINE_HOSTNAME=0.0.0.0 TRUNKLINE_PORT=3000
VOLUME /models
EXPOSE 3000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=2s --start-period=120s --retries=3 \
    CMD ["python3", "-c", "import os, ssl, urllib.request as r; s = 's' if os.environ.get('TRUNKLINE_TLS_CERT') else ''; r.urlopen(f\"http{s}://127.0.0.1:{os.environ['TRUNKLINE_PORT']}/readyz\", timeout=2, context=ssl._create_unverified_context())"]
ENTRYPOINT ["trunkline", "serve"]
