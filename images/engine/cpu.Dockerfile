# vLLM's CPU build, for tests where there is no GPU and no registry: the engine image's base instead of the official
# one. The versions are constraints-vllm.txt's, installed as they are, less what only tests and benchmarks need.
#
#   scripts/make_images.sh cpu-engine
#
# PyTorch's CPU build comes from the folder of wheels that the builder gives as the context `wheels`, else from
# PyTorch's own index. Secrets as in Dockerfile.
ARG BASE_IMAGE=docker.io/library/python:3.12.12-slim-bookworm

FROM scratch AS wheels

FROM ${BASE_IMAGE}
RUN apt-get update -q && apt-get install -qy --no-install-recommends libnuma1 libstdc++6 && rm -rf /var/lib/apt/lists/*
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv /opt/vllm
ENV PATH=/opt/vllm/bin:$PATH LANG=C.UTF-8
COPY constraints-vllm.txt /tmp/
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN --mount=type=secret,id=pip,target=/run/pip.conf --mount=type=secret,id=ca,target=/run/ca.pem \
    --mount=type=bind,from=wheels,target=/wheels \
    if [ -s /run/pip.conf ]; then export PIP_CONFIG_FILE=/run/pip.conf; fi; \
    if [ -s /run/ca.pem ]; then export PIP_CERT=/run/ca.pem; fi; \
    torch="$(sed -n 's/^torch==//p' /tmp/constraints-vllm.txt)+cpu" \
    && { pip install --no-deps --no-index --find-links /wheels "torch==$torch" \
         || pip install --no-deps --index-url "$TORCH_INDEX" "torch==$torch"; } \
    && grep -vE '^(pytest|hypothesis|libcachesim|matplotlib|torch)' /tmp/constraints-vllm.txt >/tmp/vllm.txt \
    && pip install --no-deps --only-binary :all: -r /tmp/vllm.txt && rm /tmp/*.txt \
    && python -W ignore -c 'import torch, vllm._C; print(torch.__version__)'
# Containers of this base alone do not run as root. Dockerfile switches to root while it builds.
USER 10001:10001
