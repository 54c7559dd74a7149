# syntax=docker/dockerfile:1
# mmrepro for a machine with NVIDIA GPUs, as the nightly runs it: docs/gpu.md has the commands.
# What only observes a server is Dockerfile.sidecar: 140 MB.
#
# The base is pinned by its tag; where your registry can be asked, pin its digest as well:
#   docker build --build-arg BASE=nvidia/cuda:13.0.2-runtime-ubuntu24.04@sha256:… -t mmrepro .
# The driver comes from the host (NVIDIA Container Toolkit), CUDA's libraries with each engine's own
# torch. Any base of Debian or Ubuntu with Python 3.11 or later will do; without a GPU: debian:12-slim.
ARG BASE=nvidia/cuda:13.0.2-runtime-ubuntu24.04

# hadolint ignore=DL3006
FROM ${BASE} AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY constraints.txt ./
# uv, of the version and hash in constraints.txt, then mmrepro in an environment of its own.
RUN awk '/^uv==/ { on = 1; print; next } on && /^[^ ]/ { exit } on' constraints.txt > uv.txt \
 && python3 -m venv /opt/uv \
 && /opt/uv/bin/pip install --no-cache-dir --require-hashes -r uv.txt
COPY . .
RUN python3 -m venv --without-pip /opt/mmrepro \
 && /opt/uv/bin/uv pip install --no-cache --python /opt/mmrepro/bin/python \
    --constraint constraints.txt --compile-bytecode ".[run]"

# hadolint ignore=DL3006
FROM ${BASE}
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# libnuma1: vLLM's wheels for a CPU need it.
# bubblewrap: a report runs in it; .ci/issue/box.sh has the options of docker that it needs.
# git: a report is tried at commits of a clone.
# gcc, libc6-dev, python3-dev: Triton compiles a small C module for each kernel it launches.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
    bubblewrap ca-certificates gcc git libc6-dev libcap2-bin libnuma1 python3 python3-dev strace \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/mmrepro /opt/mmrepro
# To trace other processes, py-spy and strace need CAP_SYS_PTRACE (`--cap-add SYS_PTRACE`), and a user
# who is not root gets it from the file. Such a file cannot be executed at all where the container
# lacks the capability: then the plain one runs, which kernel.yama.ptrace_scope=0 allows to trace.
RUN for tool in /opt/mmrepro/bin/py-spy /usr/bin/strace; do \
      cp "$tool" "$tool.ptrace"; \
      mv "$tool" "$tool.plain"; \
      setcap cap_sys_ptrace+ep "$tool.ptrace"; \
      printf '#!/bin/sh\n%s.ptrace -h >/dev/null 2>&1 && exec %s.ptrace "$@"\nexec %s.plain "$@"\n' \
        "$tool" "$tool" "$tool" > "$tool"; \
      chmod 755 "$tool"; \
    done \
 && ln -s /opt/mmrepro/bin/mmrepro /usr/local/bin/mmrepro \
 && mkdir -p /cache/home /out \
 && chown -R 10001:10001 /cache /out
# One volume: environments share their files with uv's cache by hard links, and name interpreters that
# the next container must find. HOME is in it for what engines compile and keep.
ENV HOME=/cache/home \
    MMREPRO_CACHE_DIR=/cache/mmrepro \
    UV_CACHE_DIR=/cache/uv \
    UV_PYTHON_INSTALL_DIR=/cache/python \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
VOLUME /cache
WORKDIR /out
USER 10001:10001
ENTRYPOINT ["mmrepro"]
CMD ["check"]
