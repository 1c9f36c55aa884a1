# The images of DelayCluster; the build context is the repository.
#
#   docker build --target operator  -t delaycluster/delaycluster:0.1.0 .             also a node, delayctl and the SDK
#   docker build --target rebalance -t delaycluster/delaycluster-rebalance:0.1.0 .   the same with Spark and Java
#
# `node` and `operator` are the same image: nodes run the operator's own unless told otherwise. podman builds it too.
# Where packages come from somewhere else:
#   a mirror of Debian and Python    --build-arg BASE_IMAGE=registry.example.com/python:3.11-slim-bookworm
#   a mirror of Python packages      --secret id=pip.conf,src=pip.conf   (read while building, never part of the image)
#   a proxy                          --build-arg HTTPS_PROXY=...         (docker and podman know this one by themselves)
# The network is used by pip in `tools`, `dependencies` and `dependencies-spark`, and by apt-get in `java`; no source file
# of ours is in those stages, so they are built once and then come from the cache.
ARG BASE_IMAGE=python:3.11-slim-bookworm

# ---- what builds our wheel, without a network afterwards
FROM ${BASE_IMAGE} AS tools
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    python -m venv /opt/tools && /opt/tools/bin/pip install --quiet 'pip>=24' 'setuptools>=77'

# ---- the packages that ours needs, in a virtual environment without pip
FROM tools AS dependencies
COPY pyproject.toml ./
# An empty package of our name and version: pip then reads the extras itself.
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    mkdir node operator && touch README.md \
    && /opt/tools/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /empty . \
    && python -m venv --without-pip /opt/delaycluster \
    && /opt/tools/bin/pip --python /opt/delaycluster/bin/python install --no-compile "$(echo /empty/*.whl)[operator]" \
    && /opt/tools/bin/pip --python /opt/delaycluster/bin/python uninstall --quiet --yes delaycluster
# Bytecode is compiled now, as the root file system is read-only later, and without time stamps, so that the same
# packages make the same bytes. The Kubernetes client's second half, for asyncio, is 80 MB that nothing of ours imports.
RUN rm -r /opt/delaycluster/lib/python3*/site-packages/kubernetes/aio \
    && /opt/delaycluster/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/delaycluster

FROM dependencies AS dependencies-spark
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /opt/tools/bin/pip --python /opt/delaycluster/bin/python install --no-compile "$(echo /empty/*.whl)[operator,spark]" \
    && /opt/tools/bin/pip --python /opt/delaycluster/bin/python uninstall --quiet --yes delaycluster \
    && /opt/delaycluster/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/delaycluster

# ---- our package, as the files that are added to the virtual environment
FROM dependencies AS package
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY node node
COPY operator operator
RUN /opt/tools/bin/pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/tools/bin/pip --python /opt/delaycluster/bin/python install --quiet --no-index --no-deps --no-compile \
        --root /added /wheels/*.whl \
    && /opt/delaycluster/bin/python -m compileall -q --invalidation-mode unchecked-hash -s /added /added

# ---- what runs: uid 10001, nothing of it writable; /tmp is the only place that needs to be
FROM ${BASE_IMAGE} AS runtime
RUN groupadd --gid 10001 delaycluster \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin delaycluster
ENV PATH=/opt/delaycluster/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
WORKDIR /tmp
CMD ["delayctl", "--help"]

FROM runtime AS java
# The slim image has no manual pages, and the JRE's package wants to link one.
RUN mkdir -p /usr/share/man/man1 && apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
# Spark's workers run the job's own interpreter.
ENV PYSPARK_PYTHON=/opt/delaycluster/bin/python SPARK_LOCAL_DIRS=/tmp

FROM java AS rebalance
COPY --from=dependencies-spark /opt/delaycluster /opt/delaycluster
COPY --from=package /added /
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

FROM runtime AS node
COPY --from=dependencies /opt/delaycluster /opt/delaycluster
COPY --from=package /added /
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="delaycluster" \
      org.opencontainers.image.description="Delayed messages on Kubernetes: the operator, the nodes, delayctl and the SDK" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 10001:10001

FROM node AS operator
