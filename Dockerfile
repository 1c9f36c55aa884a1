# The images of DelayCluster; the build context is the repository.
#
#   docker build --target node      -t delaycluster/delaycluster:0.1.0 .             nodes, delayctl for messages, the SDK
#   docker build --target operator  -t delaycluster/delaycluster-operator:0.1.0 .    the same with the operator
#   docker build --target rebalance -t delaycluster/delaycluster-rebalance:0.1.0 .   that with Spark and Java
#
# podman builds them too. Packages are those of locks/, by their hashes. Where they come from somewhere else:
#   a mirror of Debian and Python    --build-arg BASE_IMAGE=registry.example.com/python@sha256:...
#   a mirror of Python packages      --secret id=pip.conf,src=pip.conf   (read while building, never part of the image)
#   a mirror of crates               --secret id=cargo.toml,src=config.toml   (likewise; cargo's configuration)
#   a proxy                          --build-arg HTTPS_PROXY=...         (docker and podman know this one by themselves)
# A release gives BASE_IMAGE by digest (docs/release.md).
# The network is used by pip in `tools` and in `dependencies` and those named after it, by apt-get in `java` and `rust`, and
# by cargo in `rust`; no source file of ours is in those stages, so they are built once and then come from the cache.
ARG BASE_IMAGE=python:3.11-slim-bookworm

# ---- what builds wheels
FROM ${BASE_IMAGE} AS tools
# The time of files in wheels, whose hash pip notes (direct_url.json).
ENV SOURCE_DATE_EPOCH=315619200 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY locks/build.txt locks/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    python -m venv /opt/tools \
    && /opt/tools/bin/pip install --quiet --no-deps --require-hashes --only-binary :all: -r locks/build.txt

# ---- the compiled edge, from Cargo.lock's crates by Debian's Rust: built while edge/ changes, whatever else does
FROM tools AS rust
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends rustc-web cargo-web > /dev/null \
    && rm -rf /var/lib/apt/lists/*
ENV CARGO_HOME=/opt/cargo
COPY edge/Cargo.toml edge/Cargo.lock edge/
RUN --mount=type=secret,id=cargo.toml,target=/opt/cargo/config.toml \
    mkdir edge/src && touch edge/src/lib.rs && cargo fetch --quiet --locked --manifest-path edge/Cargo.toml

FROM rust AS edge
COPY edge edge
# The paths of crates are in the wheel, for panics: without a mirror's name.
RUN --mount=type=secret,id=cargo.toml,target=/opt/cargo/config.toml \
    export CARGO_NET_OFFLINE=true RUSTFLAGS="--remap-path-prefix=$(echo /opt/cargo/registry/src/*)=crates" \
    && /opt/tools/bin/maturin build --quiet --release --manifest-path edge/Cargo.toml --out /wheels

# For a release.
FROM scratch AS edge-wheel
COPY --from=edge /wheels /

# ---- the packages that a node needs, in a virtual environment without pip
FROM tools AS dependencies
COPY locks/node.txt locks/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    python -m venv --without-pip /opt/delaycluster \
    && /opt/tools/bin/pip --python /opt/delaycluster/bin/python install --no-compile \
        --no-deps --require-hashes --only-binary :all: -r locks/node.txt
# Bytecode is compiled now, as the root file system is read-only later; without time stamps and file by file, so that the
# same packages make the same bytes. The Kubernetes client's second half, for asyncio, is 80 MB that nothing of ours imports.
RUN rm -rf /opt/delaycluster/lib/python3*/site-packages/kubernetes/aio \
    && /opt/delaycluster/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/delaycluster

# ---- those that only the operator needs, as the files that are added to the virtual environment
FROM dependencies AS dependencies-operator
COPY locks/operator.txt locks/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /opt/tools/bin/pip --python /opt/delaycluster/bin/python install --no-compile --root /added \
        --no-deps --require-hashes --only-binary :all: -r locks/operator.txt

# pyspark is published as sources only: it is built by the locked tools.
FROM dependencies AS dependencies-rebalance
COPY locks/rebalance.txt locks/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /opt/tools/bin/pip wheel --quiet --no-build-isolation --wheel-dir /wheels \
        --no-deps --require-hashes --only-binary :all: --no-binary pyspark -r locks/rebalance.txt \
    && /opt/tools/bin/pip --python /opt/delaycluster/bin/python install --no-compile --no-index --no-deps /wheels/*.whl \
    && rm -rf /wheels /opt/delaycluster/lib/python3*/site-packages/kubernetes/aio \
    && /opt/delaycluster/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/delaycluster

FROM dependencies AS package-edge
COPY --from=edge /wheels /wheels
RUN /opt/tools/bin/pip --python /opt/delaycluster/bin/python install --quiet --no-index --no-deps --no-compile \
        --root /added /wheels/*.whl \
    && /opt/delaycluster/bin/python -m compileall -q --invalidation-mode unchecked-hash -s /added /added

# ---- our package, likewise: for nodes without the operator's half
FROM dependencies AS package-node
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY node node
RUN mkdir operator \
    && /opt/tools/bin/pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/tools/bin/pip --python /opt/delaycluster/bin/python install --quiet --no-index --no-deps --no-compile \
        --root /added /wheels/*.whl \
    && /opt/delaycluster/bin/python -m compileall -q --invalidation-mode unchecked-hash -s /added /added

FROM dependencies-operator AS package-operator
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY node node
COPY operator operator
RUN if [ ! -d node/delayconsole/vendor ]; then echo "the console's libraries are missing: run 'make assets'" >&2; exit 1; fi \
    && /opt/tools/bin/pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/tools/bin/pip --python /opt/delaycluster/bin/python install --quiet --no-index --no-deps --no-compile \
        --root /added /wheels/*.whl \
    && /opt/delaycluster/bin/python -m compileall -q --invalidation-mode unchecked-hash -s /added /added

# ---- what runs: uid 10001, nothing of it writable; /tmp is the only place that needs to be
FROM ${BASE_IMAGE} AS runtime
# What installs packages goes, as files and from Debian's list: python.org's image has it in /usr/local, Debian's in
# packages. The build fails where any of it is left.
RUN packages=$(dpkg-query -W -f '${Package}\n' | grep -E '^python3[.0-9]*-(pip|pip-whl|setuptools|setuptools-whl|pkg-resources|wheel|venv)$' || true) \
    && if [ -n "$packages" ]; then dpkg --purge --force-depends $packages > /dev/null; fi \
    && for place in /usr/local/lib/python3* /usr/lib/python3*; do \
        rm -rf "$place"/ensurepip; \
        for name in pip setuptools pkg_resources _distutils_hack distutils-precedence wheel; do \
            rm -rf "$place"/*-packages/"$name" "$place"/*-packages/"$name"[-.]*; \
        done; \
    done \
    && rm -rf /usr/share/python-wheels /usr/local/bin/pip* /usr/local/bin/wheel /usr/bin/pip* \
        /var/log/dpkg.log /var/lib/dpkg/*-old /var/cache/debconf/*-old \
    && left=$(find / -xdev \( -name 'pip' -o -name 'pip-*' -o -name 'setuptools*' -o -name 'ensurepip' \) ! -path '/proc/*') \
    && if [ -n "$left" ]; then echo "left: $left" >&2; exit 1; fi \
    && echo 'delaycluster:x:10001:' >> /etc/group \
    && echo 'delaycluster:x:10001:10001::/tmp:/usr/sbin/nologin' >> /etc/passwd
ENV PATH=/opt/delaycluster/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
WORKDIR /tmp
CMD ["delayctl", "--help"]

FROM runtime AS java
# The slim image has no manual pages, and the JRE's package wants to link one. Debian's own trust store for Java notes when
# each authority was added, so `trust` writes one of those in /etc/ssl/certs instead. Logs and ldconfig's cache have times.
RUN mkdir -p /usr/share/man/man1 && apt-get update -qq && export DEBIAN_FRONTEND=noninteractive \
    && CACERT_UPDATES=disabled apt-get install -y -qq --no-install-recommends \
        openjdk-17-jre-headless libnss-wrapper p11-kit p11-kit-modules \
    && SOURCE_DATE_EPOCH=315619200 trust extract --format=java-cacerts --filter=ca-anchors --purpose=server-auth \
        /etc/ssl/certs/java/cacerts \
    && apt-get purge -y -qq p11-kit p11-kit-modules \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/* \
        /var/log/apt /var/log/dpkg.log /var/log/alternatives.log
# Spark's workers run the job's own interpreter.
ENV PYSPARK_PYTHON=/opt/delaycluster/bin/python SPARK_LOCAL_DIRS=/tmp

FROM java AS rebalance
COPY --from=dependencies-rebalance /opt/delaycluster /opt/delaycluster
COPY --from=package-operator /added /
# What Spark calls the command of an executor's pod; images of Spark's own have a shell script for it.
RUN printf '#!/bin/sh\nexec python -m delayrebalance.executor\n' > /usr/local/bin/executor \
    && chmod 755 /usr/local/bin/executor
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="delaycluster-rebalance" \
      org.opencontainers.image.description="DelayCluster's rebalance job: nodes' wheels in, a DelayRebalance out" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 10001:10001

FROM runtime AS node-files
COPY --from=dependencies /opt/delaycluster /opt/delaycluster
COPY --from=package-edge /added /
COPY --from=package-node /added /

FROM node-files AS node
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="delaycluster" \
      org.opencontainers.image.description="Delayed messages on Kubernetes: the nodes, delayctl for messages, the SDK" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 10001:10001

FROM node-files AS operator
COPY --from=package-operator /added /
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="delaycluster-operator" \
      org.opencontainers.image.description="Delayed messages on Kubernetes: the operator, the nodes, delayctl and the SDK" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 10001:10001
