# plmctl in a container. Configs, text and runs are in the folder that is mounted at /work:
#
#   docker build --target cpu -t plmctl:cpu .
#   docker build --target cuda -t plmctl:cuda .
#   docker run --rm -it -v "$PWD:/work" plmctl:cpu pretrain bert-base
#   docker run --rm -it --gpus all --shm-size 8g -v "$PWD:/work" plmctl:cuda pretrain bert-base

FROM python:3.13-slim AS base
# torch.compile builds its kernels with a compiler. The versions are those of the image's Debian.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1
WORKDIR /src
COPY constraints.txt ./

FROM base AS cpu
RUN pip install -c constraints.txt torch --index-url https://download.pytorch.org/whl/cpu
COPY . .
RUN pip install -c constraints.txt '.[elmo,peft,samples,samples-zh,tensorboard,text,zh]'
WORKDIR /work
ENTRYPOINT ["plmctl"]
CMD ["--help"]

FROM base AS cuda
# PyPI's torch for Linux brings the CUDA libraries; the host has the driver and NVIDIA's toolkit for
# containers.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN pip install -c constraints.txt torch
COPY . .
RUN pip install -c constraints.txt '.[elmo,peft,samples,samples-zh,tensorboard,text,zh]'
WORKDIR /work
ENTRYPOINT ["plmctl"]
CMD ["--help"]
